"""One pass through the layers of a stage with sharded weights or gradients beside it.

Shape suffixes
    R   runs of equal layers, S stages; ``run_offset`` cuts runs into stages (CSR)
Units
    seconds, float64.
"""

import numpy as np
from numpy.typing import NDArray

from ._jit import kernel


@kernel
def overlapped_stages(
    run_offset: NDArray[np.int64],
    run_count: NDArray[np.int64],
    compute_s: NDArray[np.float64],
    gather_s: NDArray[np.float64],
    reduce_s: NDArray[np.float64],
    backward: bool,
    duration_s: NDArray[np.float64],
    tail_s: NDArray[np.float64],
) -> None:
    """Run compute and one communication channel through each stage, layer by layer.

    A layer computes once its weights are gathered; the gather of the next layer starts when
    this one computes, so two layers of gathered weights are held at most. A layer's gradients
    are reduced once it has computed, after any gather already waiting.

    Parameters
    ----------
    run_offset : int64[S + 1]
        First run of each stage.
    run_count : int64[R]
        Layers of each run.
    compute_s : float64[R]
        Compute of one layer.
    gather_s, reduce_s : float64[R]
        Gathering the weights and reducing the gradients of one layer.
    backward : bool
        Walk from the last layer to the first.
    duration_s : float64[S]
        Output: until the last layer has computed.
    tail_s : float64[S]
        Output: how much longer the channel is busy after that.
    """
    for stage in range(run_offset.shape[0] - 1):
        begin, end = run_offset[stage], run_offset[stage + 1]
        computed = 0.0
        started = 0.0
        channel = 0.0
        pending = 0.0
        for step in range(end - begin):
            run = end - 1 - step if backward else begin + step
            for _ in range(run_count[run]):
                ready = computed
                if gather_s[run] > 0.0:
                    channel = max(channel, started) + gather_s[run]
                    ready = max(computed, channel)
                # The gather was asked for before the layer in front had computed, so its
                # gradients go out behind it.
                if pending > 0.0:
                    channel = max(channel, computed) + pending
                started = ready
                computed = started + compute_s[run]
                pending = reduce_s[run]
        if pending > 0.0:
            channel = max(channel, computed) + pending
        duration_s[stage] = computed
        tail_s[stage] = max(0.0, channel - computed)


@kernel
def gathered_forwards(
    stage_offset: NDArray[np.int64],
    rank_of_stage: NDArray[np.int64],
    run_offset: NDArray[np.int64],
    run_count: NDArray[np.int64],
    compute_s: NDArray[np.float64],
    gather_s: NDArray[np.float64],
    slowdown: NDArray[np.float64],
    channel_s: NDArray[np.float64],
    silent_s: NDArray[np.float64],
    duration_s: NDArray[np.float64],
) -> None:
    """Run the first microbatch through the stages while updated weights are still gathered.

    Every pipeline rank starts gathering when the step starts, its layers in model order, however
    late the first microbatch arrives; a layer computes once its weights are there. What a rank
    computes while its own gathers still run takes longer by the share ``slowdown``.

    Parameters
    ----------
    stage_offset : int64[jobs + 1]
        First virtual stage of each job, in model order.
    rank_of_stage : int64[S]
        Pipeline rank of each virtual stage.
    run_offset, run_count, compute_s, gather_s
        As in `overlapped_stages`.
    slowdown : float64[jobs]
    channel_s, silent_s : float64[max(rank_of_stage) + 1]
        Scratch.
    duration_s : float64[S]
        Output: from the arrival of the microbatch at a stage until its last layer has computed.
    """
    for job in range(stage_offset.shape[0] - 1):
        for stage in range(stage_offset[job], stage_offset[job + 1]):
            channel_s[rank_of_stage[stage]] = 0.0
            silent_s[rank_of_stage[stage]] = 0.0
        for stage in range(stage_offset[job], stage_offset[job + 1]):
            rank = rank_of_stage[stage]
            for run in range(run_offset[stage], run_offset[stage + 1]):
                silent_s[rank] += run_count[run] * gather_s[run]
        arrival = 0.0
        for stage in range(stage_offset[job], stage_offset[job + 1]):
            rank = rank_of_stage[stage]
            computed = arrival
            waited = 0.0
            for run in range(run_offset[stage], run_offset[stage + 1]):
                for _ in range(run_count[run]):
                    if gather_s[run] > 0.0:
                        channel_s[rank] += gather_s[run]
                        waited += max(0.0, channel_s[rank] - computed)
                        computed = max(computed, channel_s[rank])
                    computed += compute_s[run]
            beside = min(computed, silent_s[rank]) - arrival - waited
            computed += slowdown[job] * max(0.0, beside)
            duration_s[stage] = computed - arrival
            arrival = computed
