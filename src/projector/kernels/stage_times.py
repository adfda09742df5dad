"""Data parallelism beside the layers of stages: what of gathers and reductions shows, and when.

Shapes
    replicas; kinds of their stages, and stages, replica after replica (see `kernels.replicas`)
    rows    stages of the pipelines, their runs of equal layers cut by ``run_offset`` (CSR)
Units: seconds, float64.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels._jit import inlined, kernel
from projector.kernels.replicas import Patterns

PASS = 3
"""Columns of what a layer takes in one pass, in seconds: compute, and the two collectives."""

COMPUTE, GATHERING, REDUCING = range(PASS)


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

    begin, end : int. Runs of the stage.
    count : int64[runs]. Layers of each run.
    runs : float64[runs, PASS]. What one of them takes.
    backward : bool. Walk from the last layer to the first.
    ahead : int. Layers whose weights are gathered ahead of the one that computes.
    run_of_layer, gathered : int64[layers], float64[layers]. Scratch.
    Returns duration_s, until the last layer has computed, and tail_s, how much longer the channel
        is busy after that.
    """
    layers = _list_layers(begin, end, count, backward, run_of_layer)
    computed = 0.0
    channel = 0.0
    # What is asked for before the first layer may start.
    asked = min(layers, max(1, ahead))
    for layer in range(asked):
        seconds = runs[run_of_layer[layer], GATHERING]
        channel += seconds
        gathered[layer] = channel if seconds > 0.0 else 0.0
    for layer in range(layers):
        run = run_of_layer[layer]
        started = max(computed, gathered[layer])
        computed = started + runs[run, COMPUTE]
        if asked < layers:
            seconds = runs[run_of_layer[asked], GATHERING]
            gathered[asked] = 0.0
            if seconds > 0.0:
                channel = max(channel, started if ahead > 0 else computed) + seconds
                gathered[asked] = channel
            asked += 1
        reduce_s = runs[run, REDUCING]
        if reduce_s > 0.0:
            channel = max(channel, computed) + reduce_s
    return computed, max(0.0, channel - computed)


@inlined
def reduce_layers(
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

    begin, end : int. Virtual stages, in model order.
    stage_rank, stage_kind : int64[stages]. Pipeline rank of each, and the kind that says its runs.
    run_offset : int64[kinds + 1]. First run of each kind.
    count, runs. As of `run_layers`, of all kinds.
    slowdown : float
    channel_s, silent_s : float64[ranks]. Scratch.
    place : int. Row of the first of them in ``duration_s``.
    duration_s : float64[any]. Output: from the arrival of the microbatch at a stage until its last
        layer has computed.
    """
    # When each rank has gathered all that it holds of them.
    for stage in range(begin, end):
        channel_s[stage_rank[stage]] = silent_s[stage_rank[stage]] = 0.0
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


EVERY_GATHER, EVERY_REDUCE, OVERLAPS_GATHER, OVERLAPS_REDUCE, REGATHERS, SPLITS = (
    1 << bit for bit in range(6)
)
"""Gathers in every forward and backward; reduces in every backward; gathers beside the first
forward; reduces beside the last backward; frees weights behind the forward; gradients of the
weights are operations of their own."""


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
    """``float64[runs]``: both gradients."""
    input_s: Floats
    """``float64[runs]``: gradient of the input, of replicas with `SPLITS`."""
    weight_s: Floats
    """``float64[runs]``: gradient of the weights, of the same."""


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
    """Durations of the stages of replicas, ``float64[kinds]`` but for the first forward.

    ``rows`` are first forwards: one of each kind, behind these one of each stage of replicas whose
    first forwards are not those of kinds.
    """

    forward_s: Floats
    """Every forward but the first."""
    backward_s: Floats
    """Every backward but the last: input and weight gradient together, or that of the input."""
    last_backward_s: Floats
    weight_s: Floats
    """Every gradient of the weights but the last, 0 where the backward has it."""
    last_weight_s: Floats
    exposed_each_s: Floats
    """What data parallelism adds to another forward and to both gradients, together."""
    exposed_last_s: Floats
    """What it adds to the last gradients."""
    tail_s: Floats
    """Gradient traffic left when the last backward has ended."""
    reduce_after_s: Floats
    """Gradient traffic that waits for the rank's last backward."""
    gather_after_s: Floats
    """Parameter gather that nothing overlaps."""
    first_forward_s: Floats
    """``float64[rows]``: forward of the first microbatch; it may depend on the stages before."""
    exposed_first_s: Floats
    """``float64[rows]``: what data parallelism adds to it."""
    first_row: Ints
    """``int64[replicas]``: row of the first forward of its first stage, the others follow it;
    replicas may share them. It is -1 where each stage has the one of its kind."""


OWN = 7
"""Columns of what a layer of a run takes by itself, in seconds; below them their names."""

FORWARD, BACKWARD, WEIGHT, GATHER, REDUCE, GATHER_COPY, REDUCE_COPY = range(OWN)

(
    EVERY_FORWARD, EVERY_BACKWARD, LAST_BACKWARD, EVERY_WEIGHT, LAST_WEIGHT, EXPOSED_EACH,
    EXPOSED_LAST, TAIL, REDUCE_AFTER, GATHER_AFTER, KIND_TIMES,
) = range(11)  # fmt: skip
"""Rows of ``kind_s`` of `time_stages`, which are the fields of `StageTimes` for kinds."""


@inlined
def _total(begin: int, end: int, count: Ints, values: Floats, column: int) -> float:
    total = 0.0
    for run in range(begin, end):
        total += values[run, column] * count[run]
    return total


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
) -> tuple[float, float, float, float, float]:
    """Time one kind of stage, whose runs stand at ``begin``.

    ZeRO 3 and FSDP gather in every forward and backward and reduce in every backward, ZeRO 2
    reduces in every backward. Below ZeRO 2 only the last backward sends gradients. Where gradients
    of the weights are operations of their own, these send, and those of the input gather. The loops
    over passes and runs are not functions of their own: to hand on an array counts a reference.
    Returns forward_s, backward_s, weight_s, last_s of the operation that sends, and tail_s: what it
        leaves.
    """
    every_gather, every_reduce = flags & EVERY_GATHER != 0, flags & EVERY_REDUCE != 0
    regathers, splits = flags & REGATHERS != 0, flags & SPLITS != 0
    last_alone = flags & OVERLAPS_REDUCE != 0 and not every_reduce
    sender = WEIGHT if splits else BACKWARD
    forward_s = backward_s = weight_s = last_s = tail_s = 0.0
    for number in range(sender + (2 if last_alone else 1)):
        kind = min(number, sender)
        backward = kind > FORWARD
        gathers = every_gather and (kind == FORWARD or (kind == BACKWARD and regathers))
        reduces = kind == sender and (every_reduce or number > sender)
        plain = gather = reduce = 0.0
        for run in range(begin, end):
            compute_s = own[run, FORWARD] + own[run, GATHER_COPY]
            if backward:
                copies_s = own[run, REDUCE_COPY] if kind == sender else 0.0
                if kind == BACKWARD and regathers:
                    copies_s += own[run, GATHER_COPY]
                compute_s = own[run, kind] + copies_s
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
                duration, tail = reduce_layers(begin, end, count, runs, backward)
            # What the compute waits for has nothing beside it.
            tail /= longer
            exposed = max(duration - plain, 0.0) / longer
            hidden = max(sent - exposed - tail, 0.0) * longer
            seconds = plain + exposed + slowdown * hidden
        if every_reduce:
            # The next operation waits for every reduction.
            seconds, tail = seconds + tail, 0.0
        if number == FORWARD:
            forward_s = seconds
        elif number == BACKWARD:
            backward_s = seconds
        elif number == WEIGHT and splits:
            weight_s = seconds
        last_s, tail_s = seconds, tail
    return forward_s, backward_s, weight_s, last_s, tail_s


@inlined
def _write_kind(
    begin: int,
    end: int,
    count: Ints,
    own: Floats,
    flags: int,
    timed: tuple[float, float, float, float, float],
    at: int,
    kind_s: Floats,
) -> tuple[float, float]:
    """Write what is known of one kind of stage; return its own forward and all of its gathers."""
    forward_s, backward_s, weight_s, last_s, tail_s = timed
    last_weight_s = 0.0
    if flags & SPLITS != 0:
        last_s, last_weight_s = backward_s, last_s
    plain_f = plain_b = plain_w = gather_all = reduce_all = 0.0
    for run in range(begin, end):
        plain_f += own[run, FORWARD] * count[run]
        plain_b += own[run, BACKWARD] * count[run]
        plain_w += own[run, WEIGHT] * count[run]
        gather_all += own[run, GATHER] * count[run]
        reduce_all += own[run, REDUCE] * count[run]
    after = flags & (OVERLAPS_REDUCE | EVERY_REDUCE) == 0
    kind_s[EVERY_FORWARD, at], kind_s[EVERY_BACKWARD, at] = forward_s, backward_s
    kind_s[LAST_BACKWARD, at], kind_s[TAIL, at] = last_s, tail_s
    kind_s[EVERY_WEIGHT, at], kind_s[LAST_WEIGHT, at] = weight_s, last_weight_s
    kind_s[EXPOSED_EACH, at] = (forward_s - plain_f) + (backward_s - plain_b) + (weight_s - plain_w)
    kind_s[EXPOSED_LAST, at] = (last_s - plain_b) + (last_weight_s - plain_w)
    kind_s[REDUCE_AFTER, at] = reduce_all if after else 0.0
    kind_s[GATHER_AFTER, at] = gather_all if flags & OVERLAPS_GATHER == 0 else 0.0
    return plain_f, gather_all


@inlined
def _gathers_alike(
    one: int,
    other: int,
    row_first: int,
    kind_stage: Ints,
    begin_kind: int,
    end_kind: int,
    run_offset: Ints,
    layer_of: Ints,
    sent_row: Ints,
    gather_s: Floats,
) -> bool:
    """Whether two sharings gather the layers of some kinds of stages alike."""
    for kind in range(begin_kind, end_kind):
        row = row_first + kind_stage[kind]
        for run in range(run_offset[row], run_offset[row + 1]):
            layer = layer_of[run]
            if gather_s[sent_row[one, layer]] != gather_s[sent_row[other, layer]]:
                return False
    return True


@kernel
def time_stages(
    replicas: PassReplicas,
    patterns: Patterns,
    layers: PassLayers,
    sent: SentLayers,
    known: Ints,
    kind_s: Floats,
    first_s: Floats,
    exposed_s: Floats,
    first_row: Ints,
) -> int:
    """Time the stages of replicas with their data parallelism.

    Below ZeRO 3 only the first forward waits for parameters, which all ranks gather from the start
    of the step on. Replicas of one pipeline that gather alike have the same first forwards.

    replicas : PassReplicas
    patterns : Patterns
    layers : PassLayers. Of the pipelines.
    sent : SentLayers
    known : int64[pipelines]. Scratch, all -1: the newest replica of each pipeline that has rows of
        its own.
    kind_s : float64[KIND_TIMES, kinds]. Output.
    first_s, exposed_s : float64[at least rows]. Outputs: ``first_forward_s`` and
        ``exposed_first_s`` of `StageTimes`.
    first_row : int64[replicas]. Output; see `StageTimes`.
    Returns ``rows`` of `StageTimes`.
    """
    # To take an array out of a tuple counts a reference, so each is taken out once.
    pattern_of, pipeline_of, row_first, sharing, flags_of = replicas[:5]
    forward_ahead, backward_ahead, slowdown_of, longer_of = replicas[5:]
    stage_first, stage_kind, stage_rank, kind_first, kind_stage = patterns[:5]
    run_offset, count_of, layer_of, forward_s, backward_s, input_s, weight_s = layers
    sent_row, gather_s, reduce_s, gather_copy_s, reduce_copy_s = sent
    # Places for the kinds, runs, layers and ranks of one replica.
    num_runs, ranks, num_layers = len(count_of), 0, 0
    for rank in stage_rank:
        ranks = max(ranks, rank + 1)
    for run in range(num_runs):
        num_layers += count_of[run]
    first_run, count = np.empty(len(kind_stage) + 1, np.int64), np.empty(num_runs, np.int64)
    own, runs = np.empty((num_runs, OWN)), np.empty((num_runs, PASS))
    run_of_layer, gathered = np.empty(num_layers, np.int64), np.empty(num_layers)
    channel_s, silent_s = np.empty(ranks), np.empty(ranks)
    at, place = 0, int(kind_s.shape[1])
    for replica in range(len(pattern_of)):
        pattern, row, flags = pattern_of[replica], row_first[replica], flags_of[replica]
        share, slowdown, longer = sharing[replica], slowdown_of[replica], longer_of[replica]
        begin_kind, end_kind = kind_first[pattern], kind_first[pattern + 1]
        gathers, first_run[0] = False, 0
        for kind in range(end_kind - begin_kind):
            begin = end = first_run[kind]
            stage = row + kind_stage[begin_kind + kind]
            for run in range(run_offset[stage], run_offset[stage + 1]):
                one = sent_row[share, layer_of[run]]
                count[end] = count_of[run]
                own[end, FORWARD], own[end, BACKWARD] = forward_s[run], backward_s[run]
                own[end, WEIGHT] = 0.0
                if flags & SPLITS != 0:
                    own[end, BACKWARD], own[end, WEIGHT] = input_s[run], weight_s[run]
                own[end, GATHER], own[end, REDUCE] = gather_s[one], reduce_s[one]
                own[end, GATHER_COPY], own[end, REDUCE_COPY] = (
                    gather_copy_s[one],
                    reduce_copy_s[one],
                )
                end += 1
            first_run[kind + 1] = end
            timed = _time_kind(
                begin, end, count, own, flags, forward_ahead[replica], backward_ahead[replica],
                slowdown, longer, runs, run_of_layer, gathered,
            )  # fmt: skip
            plain, gather_all = _write_kind(begin, end, count, own, flags, timed, at, kind_s)
            first_s[at] = kind_s[EVERY_FORWARD, at]
            exposed_s[at] = first_s[at] - plain
            gathers = gathers or gather_all > 0.0 or exposed_s[at] != 0.0
            at += 1
        first_row[replica] = -1
        if not gathers or flags & OVERLAPS_GATHER == 0 or flags & EVERY_GATHER != 0:
            continue
        other = known[pipeline_of[replica]]
        if (
            other >= 0
            and pattern_of[other] == pattern
            and slowdown_of[other] == slowdown
            and longer_of[other] == longer
            and _gathers_alike(
                share, sharing[other], row, kind_stage, begin_kind, end_kind, run_offset, layer_of,
                sent_row, gather_s,
            )
        ):  # fmt: skip
            first_row[replica] = first_row[other]
            continue
        known[pipeline_of[replica]], first_row[replica] = replica, place
        begin, end = stage_first[pattern], stage_first[pattern + 1]
        for run in range(first_run[end_kind - begin_kind]):
            runs[run, COMPUTE], runs[run, GATHERING] = own[run, FORWARD], own[run, GATHER] * longer
        first_forwards(
            begin, end, stage_rank, stage_kind, first_run, count, runs, slowdown, channel_s,
            silent_s, place, first_s,
        )  # fmt: skip
        for stage in range(begin, end):
            begin_run, end_run = first_run[stage_kind[stage]], first_run[stage_kind[stage] + 1]
            plain = _total(begin_run, end_run, count, own, FORWARD)
            # Where nothing is gathered nothing is added, whatever the rounding.
            if not _total(begin_run, end_run, count, own, GATHER) > 0.0 or first_s[place] < plain:
                first_s[place] = plain
            exposed_s[place] = first_s[place] - plain
            place += 1
    return place
