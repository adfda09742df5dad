"""What data parallelism shards, sends and overlaps, for every run of layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.config.job import Job
from projector.kernels.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    collective_time_columns,
)
from projector.kernels.step import gathered_forwards, overlapped_stages
from projector.lower.workloads import Workloads
from projector.operations.cost import WorkloadCosts
from projector.schedule.placement import Placement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class DataParallelCosts:
    """Collectives of the data-parallel groups, for each run (one layer) and virtual stage."""

    gather_s: Floats
    """float64[runs]: all-gather of one layer's weights."""
    reduce_s: Floats
    """float64[runs]: reduction of one layer's gradients."""
    gather_bytes: Floats
    """float64[runs]: what one layer's gather moves into each rank."""
    reduce_bytes: Floats
    gather_algorithm: Ints
    """int64[runs]: of the dense part; -1 where nothing moves."""
    reduce_algorithm: Ints


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Durations of each virtual stage, float64[stages], by class where classes differ."""

    forward_s: Floats
    """float64[stages, 3]: first, middle, last microbatch."""
    backward_s: Floats
    """float64[stages, 3]: input and weight gradient together."""
    exposed_forward_s: Floats
    """float64[stages, 3]: what data parallelism adds to the forward."""
    exposed_backward_s: Floats
    tail_s: Floats
    """float64[stages]: gradient traffic left when the last backward has ended."""
    reduce_after_s: Floats
    """float64[stages]: gradient traffic that waits for the rank's last backward."""
    gather_after_s: Floats
    """float64[stages]: parameter gather that nothing overlaps."""


def cost_data_parallel(
    jobs: Sequence[Job],
    workloads: Workloads,
    costs: WorkloadCosts,
    placements: Sequence[Placement],
) -> DataParallelCosts:
    """Cost the gathers and reductions of every run of layers.

    Dense parameters are reduced over DP * CP ranks, routed experts over the replicas of an
    expert, both over all directions of the pipeline. Layers share buckets: a layer's time is its
    share of a bucket's.
    """
    copies = np.array([placement.directions for placement in placements], np.int64)
    job_of_run = _job_of_run(workloads)
    columns = workloads.jobs
    workload = workloads.run_workload
    fabric = workloads.rows["fabric"][workload]
    grad_bytes = np.array([DTYPE_BYTES[job.training.reduce_dtype] for job in jobs])[job_of_run]
    weight_bytes = np.array([parameter_bytes(job) for job in jobs])[job_of_run]
    stage = columns.zero_stage[job_of_run]
    num_runs = len(workload)
    sums = {
        name: np.zeros(num_runs)
        for name in ("gather_s", "reduce_s", "gather_bytes", "reduce_bytes")
    }
    algorithms: dict[str, Ints] = {}
    groups = (
        (costs.dense_parameters[workload], columns.dp * columns.cp * copies, columns.shard_local),
        (costs.expert_parameters[workload], columns.edp * copies, columns.edp_local),
    )
    for position, (parameters, ranks_of_job, local_of_job) in enumerate(groups):
        ranks, local = ranks_of_job[job_of_run], local_of_job[job_of_run]
        size = np.maximum(parameters, bucket_parameters(jobs, job_of_run, ranks))
        share = parameters / size
        gathers = (stage >= 1) & (ranks > 1)
        operation = np.where(stage >= 1, REDUCE_SCATTER, ALL_REDUCE)
        gather_s, gather_algorithm = collective_time_columns(
            ALL_GATHER, size * weight_bytes * gathers, ranks, local, fabric, workloads.fabrics
        )
        reduce_s, reduce_algorithm = collective_time_columns(
            operation, size * grad_bytes, ranks, local, fabric, workloads.fabrics
        )
        sums["gather_s"] += gather_s * share
        sums["reduce_s"] += reduce_s * share
        sums["gather_bytes"] += parameters * weight_bytes * gathers
        sums["reduce_bytes"] += parameters * grad_bytes * (ranks > 1)
        if position == 0:
            algorithms = {"gather": gather_algorithm, "reduce": reduce_algorithm}
    return DataParallelCosts(
        gather_s=sums["gather_s"],
        reduce_s=sums["reduce_s"],
        gather_bytes=sums["gather_bytes"],
        reduce_bytes=sums["reduce_bytes"],
        gather_algorithm=algorithms["gather"],
        reduce_algorithm=algorithms["reduce"],
    )


def stage_times(
    jobs: Sequence[Job],
    workloads: Workloads,
    forward_s: Floats,
    backward_s: Floats,
    parallel: DataParallelCosts,
    placements: Sequence[Placement],
) -> StageTimes:
    """Put compute and data-parallel traffic of each stage beside each other.

    Parameters
    ----------
    forward_s, backward_s : float64[runs]
        One layer of each run, everything but data parallelism.

    Notes
    -----
    ZeRO 3 and FSDP gather in every forward and backward and reduce in every backward, ZeRO 2
    reduces in every backward. Below ZeRO 3 only the first forward waits for parameters, which all
    ranks gather from the start of the step on; below ZeRO 2 only the last backward sends
    gradients, whose remainder is the stage's tail. What overlaps slows the compute beside it by
    the device's ``comm_compute_slowdown``.
    """
    columns = workloads.jobs
    job_of_run = _job_of_run(workloads)
    job_of_stage = np.repeat(np.arange(len(jobs)), np.diff(workloads.stage_offset))
    zero = columns.zero_stage
    every_gather = zero >= 3
    every_reduce = zero >= 2
    overlaps_gather = (
        np.array([job.parallelism.overlap_param_gather for job in jobs]) | every_gather
    )
    overlaps_reduce = np.array([job.parallelism.overlap_grad_reduce for job in jobs])
    regathers = np.array(
        [not job.parallelism.fsdp or job.parallelism.fsdp_reshard_after_forward for job in jobs]
    )
    slowdown = workloads.slowdown[workloads.device_of_job][job_of_stage]
    pass_of = _Passes(workloads, slowdown, placements)
    nothing = np.zeros(len(job_of_run))
    plain_f, plain_b = pass_of.total(forward_s), pass_of.total(backward_s)
    gather, reduce = parallel.gather_s, parallel.reduce_s

    def select(flags: NDArray[np.bool_], values: Floats) -> Floats:
        return np.where(flags[job_of_run], values, 0.0)

    ahead = overlaps_gather & ~every_gather
    every_f, _ = pass_of.run(forward_s, select(every_gather, gather), nothing, backward=False)
    first_f = np.where(
        ahead[job_of_stage], pass_of.run_ahead(forward_s, select(ahead, gather)), every_f
    )
    every_b, every_tail = pass_of.run(
        backward_s,
        select(every_gather & regathers, gather),
        select(every_reduce, reduce),
        backward=True,
    )
    last_b, last_tail = pass_of.run(
        backward_s,
        select(every_gather & regathers, gather),
        select(overlaps_reduce | every_reduce, reduce),
        backward=True,
    )
    # With a reduction in every backward the next operation waits for it.
    waits = every_reduce[job_of_stage]
    every_b = every_b + np.where(waits, every_tail, 0.0)
    last_b = last_b + np.where(waits, last_tail, 0.0)
    after = ~overlaps_reduce & ~every_reduce
    tail = np.where(waits, 0.0, last_tail)
    forward = np.stack([first_f, every_f, every_f], axis=1)
    backward = np.stack([every_b, every_b, last_b], axis=1)
    return StageTimes(
        forward_s=forward,
        backward_s=backward,
        exposed_forward_s=forward - plain_f[:, None],
        exposed_backward_s=backward - plain_b[:, None],
        tail_s=tail,
        reduce_after_s=pass_of.total(select(after, reduce)),
        gather_after_s=pass_of.total(select(~overlaps_gather, gather)),
    )


class _Passes:
    """Runs the overlap kernel over all stages and adds the slowdown of what was hidden."""

    def __init__(
        self, workloads: Workloads, slowdown: Floats, placements: Sequence[Placement]
    ) -> None:
        self._workloads = workloads
        # The first copy stands for all: each gathers on ranks of its own.
        self._rank_of_stage = np.concatenate(
            [placement.rank_of[: placement.num_stages] for placement in placements]
        )
        self._slowdown = slowdown
        self._num_stages = len(workloads.run_offset) - 1
        self._stage_of_run = np.repeat(np.arange(self._num_stages), np.diff(workloads.run_offset))

    def total(self, values: Floats) -> Floats:
        """Sum one value a layer over the layers of each stage."""
        weighted = values * self._workloads.run_count
        return np.asarray(np.bincount(self._stage_of_run, weighted, self._num_stages), np.float64)

    def run(
        self, compute_s: Floats, gather_s: Floats, reduce_s: Floats, *, backward: bool
    ) -> tuple[Floats, Floats]:
        """Return durations and tails of each stage."""
        plain = self.total(compute_s)
        if not gather_s.any() and not reduce_s.any():
            return plain, np.zeros_like(plain)
        duration, tail = np.empty(self._num_stages), np.empty(self._num_stages)
        overlapped_stages(
            self._workloads.run_offset, self._workloads.run_count, compute_s, gather_s, reduce_s,
            backward, duration, tail,
        )  # fmt: skip
        sent = self.total(gather_s) + self.total(reduce_s)
        # Rounding may leave the recurrence a hair off the plain sum; where nothing is sent
        # nothing is exposed, also beside other jobs that do send.
        exposed = np.where(sent > 0.0, np.maximum(duration - plain, 0.0), 0.0)
        hidden = np.maximum(sent - exposed - tail, 0.0)
        return plain + exposed + self._slowdown * hidden, tail

    def run_ahead(self, compute_s: Floats, gather_s: Floats) -> Floats:
        """Return durations of the first microbatch behind gathers that run ahead of it."""
        plain, duration = self.total(compute_s), np.empty(self._num_stages)
        ranks = int(self._rank_of_stage.max()) + 1
        first = self._workloads.stage_offset[:-1]
        gathered_forwards(
            self._workloads.stage_offset, self._rank_of_stage, self._workloads.run_offset,
            self._workloads.run_count, compute_s, gather_s, self._slowdown[first],
            np.empty(ranks), np.empty(ranks), duration,
        )  # fmt: skip
        # Where nothing is gathered nothing is added, whatever the rounding.
        return np.where(self.total(gather_s) > 0.0, np.maximum(duration, plain), plain)


def bucket_parameters(jobs: Sequence[Job], job: Ints, ranks: Ints) -> Floats:
    """Return the parameters of a gradient bucket for each entry of ``job``.

    Without a size Megatron takes max(40 M, 1 M * ranks) (DistributedDataParallel).
    """
    stated = np.array([split.parallelism.ddp_bucket_size or 0 for split in jobs])[job]
    return np.where(stated > 0, stated, np.maximum(40e6, 1e6 * ranks))


def parameter_bytes(job: Job) -> float:
    """Bytes of a weight on the wire and in memory."""
    if job.training.fp8_param_gather:
        return 1.0
    return 4.0 if job.training.precision == "fp32" else 2.0


def _job_of_run(workloads: Workloads) -> Ints:
    runs_of_stage = np.diff(workloads.run_offset)
    stages_of_job = np.diff(workloads.stage_offset)
    job_of_stage = np.repeat(np.arange(len(stages_of_job)), stages_of_job)
    return np.asarray(np.repeat(job_of_stage, runs_of_stage), np.int64)
