"""Layers of a stage beside a channel that gathers their weights and reduces their gradients.

Units
    seconds, float64.
"""

from projector.arrays import Floats, Ints

from ._jit import inlined

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
def _silent_at(
    begin: int,
    end: int,
    stage_rank: Ints,
    stage_kind: Ints,
    run_offset: Ints,
    count: Ints,
    runs: Floats,
    silent_s: Floats,
) -> None:
    """Write when each rank of some stages has gathered all that it holds of them."""
    for stage in range(begin, end):
        silent_s[stage_rank[stage]] = 0.0
    for stage in range(begin, end):
        rank, kind = stage_rank[stage], stage_kind[stage]
        for run in range(run_offset[kind], run_offset[kind + 1]):
            silent_s[rank] += count[run] * runs[run, GATHERING]


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
    _silent_at(begin, end, stage_rank, stage_kind, run_offset, count, runs, silent_s)
    for stage in range(begin, end):
        channel_s[stage_rank[stage]] = 0.0
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
