"""Data parallelism beside the layers of stages: what of gathers and reductions shows, and when.

Shapes
    replicas; kinds of their stages, and stages, replica after replica (see `kernels.replicas`)
    rows    stages of the pipelines, their runs of equal layers cut by ``run_offset`` (CSR)
Units
    seconds, float64.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints

from ._jit import inlined, kernel
from .replicas import Patterns


class PassReplicas(NamedTuple):
    """How replicas gather and reduce."""

    pattern: Ints
    """``int64[replicas]``"""
    pipeline: Ints
    """``int64[replicas]``"""
    row_first: Ints
    """``int64[replicas]``: row of its first stage."""
    sharing: Ints
    """``int64[replicas]``: equal where layers are sent alike."""
    flags: Ints
    """``int64[replicas]``: the bits below."""
    forward_ahead: Ints
    """``int64[replicas]``: layers gathered ahead of the one that computes, in the forward."""
    backward_ahead: Ints
    """``int64[replicas]``"""
    slowdown: Floats
    """``float64[replicas]``: by how much compute takes longer beside collectives."""
    longer: Floats
    """``float64[replicas]``: how many times as long collectives take beside compute."""


EVERY_GATHER, EVERY_REDUCE, OVERLAPS_GATHER, OVERLAPS_REDUCE, REGATHERS = (
    1 << bit for bit in range(5)
)
"""Gathers in every forward and backward; reduces in every backward; gathers beside the first
forward; reduces beside the last backward; frees weights behind the forward."""


class PassLayers(NamedTuple):
    """Runs of equal layers in the stages of pipelines."""

    run_offset: Ints
    """``int64[rows + 1]``"""
    layers: Ints
    """``int64[runs]``: layers of each."""
    layer: Ints
    """``int64[runs]``: equal where as much is sent."""
    forward_s: Floats
    """``float64[runs]``: one layer."""
    backward_s: Floats
    """``float64[runs]``"""


class SentLayers(NamedTuple):
    """Collectives of one layer, as it is sent."""

    row: Ints
    """``int64[sharings, layers]``: row below of what is sent; others mean nothing."""
    gather_s: Floats
    """``float64[sent]``: all-gather of its weights."""
    reduce_s: Floats
    """``float64[sent]``: reduction of its gradients."""
    gather_copy_s: Floats
    """``float64[sent]``: copies of gathered weights, in the stream of the compute."""
    reduce_copy_s: Floats
    """``float64[sent]``: copies of gradients before they are reduced."""


class StageTimes(NamedTuple):
    """Durations of the stages of replicas, ``float64[kinds]`` but for the first forward."""

    forward_s: Floats
    """Every forward but the first."""
    backward_s: Floats
    """Every backward but the last: input and weight gradient together."""
    last_backward_s: Floats
    exposed_each_s: Floats
    """What data parallelism adds to another forward and to a backward, together."""
    exposed_last_s: Floats
    """What it adds to the last backward."""
    tail_s: Floats
    """Gradient traffic left when the last backward has ended."""
    reduce_after_s: Floats
    """Gradient traffic that waits for the rank's last backward."""
    gather_after_s: Floats
    """Parameter gather that nothing overlaps."""
    first_forward_s: Floats
    """``float64[stages]``: forward of the first microbatch; it depends on the stages before."""
    exposed_first_s: Floats
    """``float64[stages]``: what data parallelism adds to it."""


OWN = 6
"""What a layer of a run takes: forward, backward, gathering, reducing, and the copies of both."""

FORWARD, BACKWARD, GATHER, REDUCE, GATHER_COPY, REDUCE_COPY = range(OWN)

PASS = 3
"""What it takes in one pass: compute, and the two collectives."""

COMPUTE, GATHERING, REDUCING = range(PASS)


class _Timed(NamedTuple):
    """What is known of one kind of stage."""

    plain_forward_s: float
    plain_backward_s: float
    forward_s: float
    backward_s: float
    last_backward_s: float
    tail_s: float
    """Of a last backward."""


@inlined
def _gathered_at(
    runs: Floats, run_of_layer: Ints, layer: int, now: float, channel: float, gathered: Floats
) -> float:
    """Gather the weights of a layer, asked for at ``now``; return until when the channel is busy.

    ``gathered`` takes the moment at which they are there, 0 where nothing is to be gathered.
    """
    seconds = runs[run_of_layer[layer], GATHERING]
    gathered[layer] = 0.0
    if seconds > 0.0:
        channel = max(channel, now) + seconds
        gathered[layer] = channel
    return channel


@inlined
def _list_layers(begin: int, end: int, count: Ints, backward: bool, run_of_layer: Ints) -> int:
    """Write the run of each layer, in the order in which they compute; return their number."""
    layers = 0
    for step in range(end - begin):
        run = end - 1 - step if backward else begin + step
        for _ in range(count[run]):
            run_of_layer[layers] = run
            layers += 1
    return layers


@inlined
def run_layers(
    begin: int,
    end: int,
    count: Ints,
    runs: Floats,
    backward: bool,
    ahead: int,
    run_of_layer: Ints,
    gathered: Floats,
) -> tuple[float, float]:
    """Run compute and one communication channel through a stage, layer by layer.

    A layer computes once its weights are gathered. When it starts to, the gather of the layer
    ``ahead`` positions on is asked for, so that ``ahead + 1`` layers of gathered weights are held
    at most; with 0 that of the next layer is asked for when this one has computed. A layer's
    gradients are reduced once it has computed. The channel serves what is asked for in order.

    Parameters
    ----------
    begin, end : int
        Runs of the stage.
    count : int64[runs]
        Layers of each run.
    runs : float64[runs, PASS]
        What one of them takes.
    backward : bool
        Walk from the last layer to the first.
    ahead : int
        Layers whose weights are gathered ahead of the one that computes.
    run_of_layer, gathered : int64[layers], float64[layers]
        Scratch.

    Returns
    -------
    duration_s : float
        Until the last layer has computed.
    tail_s : float
        How much longer the channel is busy after that.
    """
    layers = _list_layers(begin, end, count, backward, run_of_layer)
    computed = 0.0
    channel = 0.0
    asked = 0
    for layer in range(layers):
        # What is asked for before the first layer may start.
        while asked < min(layers, max(1, ahead)):
            channel = _gathered_at(runs, run_of_layer, asked, 0.0, channel, gathered)
            asked += 1
        started = max(computed, gathered[layer])
        if ahead > 0 and asked < layers:
            channel = _gathered_at(runs, run_of_layer, asked, started, channel, gathered)
            asked += 1
        run = run_of_layer[layer]
        computed = started + runs[run, COMPUTE]
        if ahead == 0 and asked < layers:
            channel = _gathered_at(runs, run_of_layer, asked, computed, channel, gathered)
            asked += 1
        reduce_s = runs[run, REDUCING]
        if reduce_s > 0.0:
            channel = max(channel, computed) + reduce_s
    return computed, max(0.0, channel - computed)


@inlined
def first_forwards(
    begin: int,
    end: int,
    stage_rank: Ints,
    stage_kind: Ints,
    run_offset: Ints,
    count: Ints,
    runs: Floats,
    slowdown: float,
    channel_s: Floats,
    silent_s: Floats,
    place: int,
    duration_s: Floats,
) -> None:
    """Run the first microbatch through the stages while updated weights are still gathered.

    Every pipeline rank starts gathering when the step starts, its layers in model order, however
    late the first microbatch arrives; a layer computes once its weights are there. What a rank
    computes while its own gathers still run takes longer by the share ``slowdown``.

    Parameters
    ----------
    begin, end : int
        Virtual stages, in model order.
    stage_rank, stage_kind : int64[stages]
        Pipeline rank of each, and the kind that says its runs.
    run_offset : int64[kinds + 1]
        First run of each kind.
    count, runs
        As of `run_layers`, of all kinds.
    slowdown : float
    channel_s, silent_s : float64[ranks]
        Scratch.
    place : int
        Row of the first of them in ``duration_s``.
    duration_s : float64[any]
        Output: from the arrival of the microbatch at a stage until its last layer has computed.
    """
    for stage in range(begin, end):
        channel_s[stage_rank[stage]] = 0.0
        silent_s[stage_rank[stage]] = 0.0
    for stage in range(begin, end):
        rank, kind = stage_rank[stage], stage_kind[stage]
        for run in range(run_offset[kind], run_offset[kind + 1]):
            silent_s[rank] += count[run] * runs[run, GATHERING]
    arrival = 0.0
    for stage in range(begin, end):
        rank, kind = stage_rank[stage], stage_kind[stage]
        channel, computed, waited = channel_s[rank], arrival, 0.0
        for run in range(run_offset[kind], run_offset[kind + 1]):
            gather, compute = runs[run, GATHERING], runs[run, COMPUTE]
            for _ in range(count[run]):
                if gather > 0.0:
                    channel += gather
                    waited += max(0.0, channel - computed)
                    computed = max(computed, channel)
                computed += compute
        channel_s[rank] = channel
        beside = min(computed, silent_s[rank]) - arrival - waited
        computed += slowdown * max(0.0, beside)
        duration_s[place + stage - begin] = computed - arrival
        arrival = computed


@inlined
def _total(begin: int, end: int, count: Ints, values: Floats, column: int) -> float:
    """Add one value a layer up over the layers of a stage."""
    total = 0.0
    for run in range(begin, end):
        total += values[run, column] * count[run]
    return total


@inlined
def _reduce_layers(
    begin: int, end: int, count: Ints, runs: Floats, backward: bool
) -> tuple[float, float]:
    """Return what `run_layers` does, of a stage that gathers nothing."""
    computed = 0.0
    channel = 0.0
    for step in range(end - begin):
        run = end - 1 - step if backward else begin + step
        compute_s, reduce_s = runs[run, COMPUTE], runs[run, REDUCING]
        for _ in range(count[run]):
            computed += compute_s
            if reduce_s > 0.0:
                channel = max(channel, computed) + reduce_s
    return computed, max(0.0, channel - computed)


@inlined
def _time_kind(
    begin: int,
    end: int,
    count: Ints,
    own: Floats,
    flags: int,
    ahead_f: int,
    ahead_b: int,
    slowdown: float,
    longer: float,
    runs: Floats,
    run_of_layer: Ints,
    gathered: Floats,
) -> _Timed:
    """Time one kind of stage, whose runs stand at ``begin``.

    ZeRO 3 and FSDP gather in every forward and backward and reduce in every backward, ZeRO 2
    reduces in every backward. Below ZeRO 2 only the last backward sends gradients. Copies around
    the collectives of FSDP take their turn with the compute.
    """
    every_gather, every_reduce = flags & EVERY_GATHER != 0, flags & EVERY_REDUCE != 0
    regathers = flags & REGATHERS != 0
    last_alone = flags & OVERLAPS_REDUCE != 0 and not every_reduce
    forward_s = backward_s = last_s = tail_s = 0.0
    for number in range(3 if last_alone else 2):
        backward = number > 0
        gathers = every_gather and (regathers or not backward)
        reduces = backward and (every_reduce or number == 2)
        plain = gather = reduce = 0.0
        for run in range(begin, end):
            compute_s = own[run, FORWARD] + own[run, GATHER_COPY]
            if backward:
                copies_s = own[run, REDUCE_COPY] + (own[run, GATHER_COPY] if regathers else 0.0)
                compute_s = own[run, BACKWARD] + copies_s
            gather_s = own[run, GATHER] if gathers else 0.0
            reduce_s = own[run, REDUCE] if reduces else 0.0
            plain += compute_s * count[run]
            gather += gather_s * count[run]
            reduce += reduce_s * count[run]
            runs[run, COMPUTE] = compute_s
            runs[run, GATHERING], runs[run, REDUCING] = gather_s * longer, reduce_s * longer
        sent, seconds, tail = gather + reduce, plain, 0.0
        # Where nothing is sent nothing is exposed, whatever the rounding of the recurrence.
        if sent > 0.0:
            if gather > 0.0:
                ahead = ahead_b if backward else ahead_f
                duration, tail = run_layers(
                    begin, end, count, runs, backward, ahead, run_of_layer, gathered
                )
            else:
                duration, tail = _reduce_layers(begin, end, count, runs, backward)
            # What the compute waits for has nothing beside it.
            tail /= longer
            exposed = max(duration - plain, 0.0) / longer
            hidden = max(sent - exposed - tail, 0.0) * longer
            seconds = plain + exposed + slowdown * hidden
        if not backward:
            forward_s = seconds
        elif number == 1:
            backward_s = last_s = seconds
            tail_s = tail
        else:
            last_s, tail_s = seconds, tail
    if every_reduce:
        # The next operation waits for the reduction of every backward.
        backward_s += tail_s
        last_s, tail_s = backward_s, 0.0
    plain_f = _total(begin, end, count, own, FORWARD)
    plain_b = _total(begin, end, count, own, BACKWARD)
    return _Timed(plain_f, plain_b, forward_s, backward_s, last_s, tail_s)


@inlined
def _read_runs(
    begin: int,
    row: int,
    share: int,
    layers: PassLayers,
    sent: SentLayers,
    count: Ints,
    own: Floats,
) -> int:
    """Write what the layers of one stage take, from run ``begin`` on; return where they end."""
    run_offset, count_of, layer_of, forward_s, backward_s = layers
    sent_row, gather_s, reduce_s, gather_copy_s, reduce_copy_s = sent
    end = begin
    for run in range(run_offset[row], run_offset[row + 1]):
        at = sent_row[share, layer_of[run]]
        count[end] = count_of[run]
        own[end, FORWARD], own[end, BACKWARD] = forward_s[run], backward_s[run]
        own[end, GATHER], own[end, REDUCE] = gather_s[at], reduce_s[at]
        own[end, GATHER_COPY], own[end, REDUCE_COPY] = gather_copy_s[at], reduce_copy_s[at]
        end += 1
    return end


@inlined
def _write_kind(
    at: int, begin: int, end: int, count: Ints, own: Floats, flags: int, timed: _Timed,
    times: StageTimes,
) -> None:  # fmt: skip
    """Write what is known of one kind of stage, whose runs stand at ``begin``."""
    every_f, every_b, last_b, exposed_each, exposed_last, tail = times[:6]
    reduce_after, gather_after = times[6:8]
    every_f[at], every_b[at] = timed.forward_s, timed.backward_s
    last_b[at], tail[at] = timed.last_backward_s, timed.tail_s
    exposed_f = timed.forward_s - timed.plain_forward_s
    exposed_each[at] = exposed_f + (timed.backward_s - timed.plain_backward_s)
    exposed_last[at] = timed.last_backward_s - timed.plain_backward_s
    reduce_after[at] = gather_after[at] = 0.0
    if flags & (OVERLAPS_REDUCE | EVERY_REDUCE) == 0:
        reduce_after[at] = _total(begin, end, count, own, REDUCE)
    if flags & OVERLAPS_GATHER == 0:
        gather_after[at] = _total(begin, end, count, own, GATHER)


@inlined
def _gathers_alike(
    replica: int,
    other: int,
    replicas: PassReplicas,
    patterns: Patterns,
    layers: PassLayers,
    sent: SentLayers,
) -> bool:
    """Whether layers are gathered alike in all kinds of stages of two replicas of a pipeline."""
    pattern = replicas.pattern[replica]
    if (
        replicas.pattern[other] != pattern
        or replicas.slowdown[other] != replicas.slowdown[replica]
        or replicas.longer[other] != replicas.longer[replica]
    ):
        return False
    one, two = replicas.sharing[replica], replicas.sharing[other]
    for kind in range(patterns.kind_first[pattern], patterns.kind_first[pattern + 1]):
        row = replicas.row_first[replica] + patterns.kind_stage[kind]
        for run in range(layers.run_offset[row], layers.run_offset[row + 1]):
            layer = layers.layer[run]
            if sent.gather_s[sent.row[one, layer]] != sent.gather_s[sent.row[two, layer]]:
                return False
    return True


@kernel
def time_stages(
    replicas: PassReplicas,
    patterns: Patterns,
    layers: PassLayers,
    sent: SentLayers,
    times: StageTimes,
) -> None:
    """Time the stages of replicas with their data parallelism.

    Below ZeRO 3 only the first forward waits for parameters, which all ranks gather from the start
    of the step on. Replicas of one pipeline that gather alike have the same first forwards.

    Parameters
    ----------
    replicas : PassReplicas
    patterns : Patterns
    layers : PassLayers
        Of the pipelines.
    sent : SentLayers
    times : StageTimes
        Output.
    """
    pattern_of, pipeline_of, row_first, sharing, flags_of = replicas[:5]
    forward_ahead, backward_ahead, slowdown_of, longer_of = replicas[5:]
    stage_first, stage_kind, stage_rank, kind_first, kind_stage = patterns[:5]
    forward_s, first_s, exposed_s = times.forward_s, times.first_forward_s, times.exposed_first_s
    count, first_run = np.empty_like(layers.layers), np.empty(len(kind_stage) + 1, np.int64)
    own, runs = np.empty((len(count), OWN)), np.empty((len(count), PASS))
    plain, gathers = np.empty(len(kind_stage)), np.empty(len(kind_stage))
    most = layers.layers.sum()
    run_of_layer, gathered = np.empty(most, np.int64), np.empty(most)
    channel_s, silent_s = np.empty(stage_rank.max() + 1), np.empty(stage_rank.max() + 1)
    known = np.full(pipeline_of.max() + 1, -1)
    known_at = np.empty_like(known)
    first_kind, at = 0, 0
    for replica in range(pattern_of.shape[0]):
        pattern, pipeline, flags = pattern_of[replica], pipeline_of[replica], flags_of[replica]
        slowdown, longer = slowdown_of[replica], longer_of[replica]
        kinds = kind_first[pattern + 1] - kind_first[pattern]
        first_run[0] = end = 0
        for kind in range(kinds):
            row = row_first[replica] + kind_stage[kind_first[pattern] + kind]
            begin = end
            end = _read_runs(begin, row, sharing[replica], layers, sent, count, own)
            timed = _time_kind(
                begin, end, count, own, flags, forward_ahead[replica], backward_ahead[replica],
                slowdown, longer, runs, run_of_layer, gathered,
            )  # fmt: skip
            _write_kind(first_kind + kind, begin, end, count, own, flags, timed, times)
            first_run[kind + 1], plain[kind] = end, timed.plain_forward_s
            gathers[kind] = _total(begin, end, count, own, GATHER)
        base, stages = stage_first[pattern], stage_first[pattern + 1] - stage_first[pattern]
        other = known[pipeline]
        if flags & OVERLAPS_GATHER == 0 or flags & EVERY_GATHER != 0:
            for stage in range(stages):
                first_s[at + stage] = forward_s[first_kind + stage_kind[base + stage]]
        elif other >= 0 and _gathers_alike(replica, other, replicas, patterns, layers, sent):
            for stage in range(stages):
                first_s[at + stage] = first_s[known_at[pipeline] + stage]
        else:
            for run in range(end):
                runs[run, COMPUTE] = own[run, FORWARD]
                runs[run, GATHERING] = own[run, GATHER] * longer
            first_forwards(
                base, base + stages, stage_rank, stage_kind, first_run, count, runs, slowdown,
                channel_s, silent_s, at, first_s,
            )  # fmt: skip
            for stage in range(stages):
                kind = stage_kind[base + stage]
                # Where nothing is gathered nothing is added, whatever the rounding.
                if not gathers[kind] > 0.0 or first_s[at + stage] < plain[kind]:
                    first_s[at + stage] = plain[kind]
            known[pipeline], known_at[pipeline] = replica, at
        for stage in range(stages):
            exposed_s[at + stage] = first_s[at + stage] - plain[stage_kind[base + stage]]
        first_kind += kinds
        at += stages
