"""The one path of every projection: jobs in, columns of memory and time out.

A single job is a batch of one. Rows are independent: what a job gives does not depend on the
jobs it is evaluated with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.config.job import Job
from projector.kernels.collectives import ALL_REDUCE, SEND_RECV, collective_time_columns
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.lower.jobs import lower_jobs
from projector.lower.workloads import MOE, Workloads, layout_of, lower
from projector.operations.cost import (
    RowCosts,
    WorkloadCosts,
    cost_rows,
    sum_workloads,
)
from projector.operations.emit import emit_operations
from projector.operations.table import FORWARD, OperationTable
from projector.projection.data_parallel import (
    DataParallelCosts,
    StageTimes,
    cost_data_parallel,
    parameter_bytes,
    stage_times,
)
from projector.projection.memory_columns import StageMemory, stage_memory, usable_bytes
from projector.projection.step import StepInputs, Steps, run_steps, stage_sums
from projector.schedule import registry
from projector.schedule.costs import costs_from
from projector.schedule.order import Order
from projector.schedule.placement import Placement
from projector.schedule.replay import to_ps
from projector.units import GB, MICROSECOND, MILLISECOND

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIDDLE = 1
"""Class of durations that most microbatches have."""


@dataclass(frozen=True, slots=True)
class RunCosts:
    """One layer of each run on its job's cluster, host side included."""

    exposed_s: Floats
    """float64[runs, phases, categories]."""
    launch_s: Floats
    """float64[runs, phases]: gaps between kernels and waits for the host."""
    layer_s: Floats
    """float64[runs, phases]: everything but data parallelism."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything known about a batch of jobs, in columns."""

    jobs: tuple[Job, ...]
    schedules: tuple[str, ...]
    """Resolved schedule of each job."""
    workloads: Workloads
    table: OperationTable
    rows: RowCosts
    costs: WorkloadCosts
    runs: RunCosts
    parallel: DataParallelCosts
    stages: StageTimes
    memory: StageMemory
    steps: Steps
    """The step of each job."""
    p2p_s: list[Floats]
    """float64[pp * chunks, 2] for each job: latency from each virtual stage to the next and to the
    one before."""
    p2p_bytes: Floats
    """float64[jobs]."""
    placements: tuple[Placement, ...]
    """Which rank of each job holds which stage."""
    orders: tuple[Order, ...]
    """What each rank of each job does."""


def evaluate(jobs: Sequence[Job]) -> Evaluation:
    """Project memory and time of ``jobs``.

    Raises
    ------
    ProjectorError
        If a job cannot exist, a schedule cannot run, or a number leaves its range.
    """
    workloads = lower(jobs)
    names = [_schedule(job, int(workloads.jobs.microbatches[row])) for row, job in enumerate(jobs)]
    placements = [
        registry.placement(name, job.parallelism.pp, job.parallelism.vpp)
        for name, job in zip(names, jobs, strict=True)
    ]
    table = emit_operations(workloads.rows)
    rows = cost_rows(table, workloads)
    costs = sum_workloads(table, rows, workloads)
    runs = _cost_runs(jobs, workloads, costs)
    parallel = cost_data_parallel(jobs, workloads, costs, placements)
    times = stage_times(
        jobs, workloads, runs.layer_s[:, FORWARD], _backward(runs.layer_s), parallel, placements
    )
    p2p_bytes, p2p_s = _cost_p2p(workloads, placements)
    memory = stage_memory(jobs, workloads, costs, placements)
    stages = stage_sums(workloads, runs.exposed_s, runs.launch_s, runs.layer_s)
    orders = [
        _order(name, row, jobs[row], workloads, times, stages.weight_s, p2p_s[row], memory)
        for row, name in enumerate(names)
    ]
    steps = run_steps(
        StepInputs(
            jobs=jobs,
            workloads=workloads,
            placements=placements,
            orders=orders,
            times=times,
            stages=stages,
            p2p_s=p2p_s,
            optimizer_s=_cost_optimizer(jobs, workloads, memory),
            tied_s=_cost_tied_embeddings(jobs, workloads, placements),
            memory=memory,
        )
    )
    return Evaluation(
        jobs=tuple(jobs),
        schedules=tuple(names),
        workloads=workloads,
        table=table,
        rows=rows,
        costs=costs,
        runs=runs,
        parallel=parallel,
        stages=times,
        memory=memory,
        steps=steps,
        p2p_s=p2p_s,
        p2p_bytes=p2p_bytes,
        placements=tuple(placements),
        orders=tuple(orders),
    )


def check_exists(job: Job) -> None:
    """Raise what nearly every job that cannot exist breaks, much cheaper than evaluating it.

    Raises
    ------
    ProjectorError
        If its degrees, its layout or its schedule cannot exist.
    """
    columns = lower_jobs([job])
    layout_of(job)
    _schedule(job, int(columns.microbatches[0]))


def _schedule(job: Job, microbatches: int) -> str:
    split = job.parallelism
    group_size = split.microbatch_group_size_per_vp_stage
    return registry.check(job.training.schedule, split.pp, split.vpp, microbatches, group_size).name


def _order(
    name: str,
    row: int,
    job: Job,
    workloads: Workloads,
    times: StageTimes,
    weight_s: Floats,
    p2p_s: Floats,
    memory: StageMemory,
) -> Order:
    """Return the order of a job; a planned one suits its times and what its device has left.

    Where a microbatch alone does not fit, it is planned as if it did: such a job is projected in
    full, as one that does not fit.
    """
    split, microbatches = job.parallelism, int(workloads.jobs.microbatches[row])
    entry = registry.SCHEDULES[name]
    costs = None
    if entry.planned:
        stages = slice(workloads.stage_offset[row], workloads.stage_offset[row + 1])
        kept = memory.saved_bytes[stages]
        least = kept[entry.stages(split.pp, split.vpp)].sum(axis=1)
        weight = weight_s[stages]
        limit = usable_bytes(job) - memory.static_bytes(row)
        if job.training.zero_bubble_max_pending_backward is not None:
            limit = np.minimum(limit, job.training.zero_bubble_max_pending_backward * least)
        costs = costs_from(
            forward_ps=to_ps(times.forward_s[stages, MIDDLE]),
            backward_ps=to_ps(np.maximum(0.0, times.backward_s[stages, MIDDLE] - weight)),
            weight_ps=to_ps(weight),
            p2p_ps=to_ps(p2p_s).T,
            activation=kept,
            w_share=float(memory.weight_share[row]),
            limit=np.maximum(least, limit),
            objective="period" if job.training.optimizer_post_validation else "makespan",
        )
    group_size = split.microbatch_group_size_per_vp_stage
    return registry.build(name, split.pp, split.vpp, microbatches, costs, group_size)


def _backward(per_phase: Floats) -> Floats:
    """Input and weight gradient together, for schedules that do not split them."""
    return np.asarray(per_phase[:, 1] + per_phase[:, 2], np.float64)


def _job_of_run(workloads: Workloads) -> tuple[Ints, Ints]:
    job_of_stage = np.repeat(
        np.arange(len(workloads.stage_offset) - 1), np.diff(workloads.stage_offset)
    )
    return np.repeat(job_of_stage, np.diff(workloads.run_offset)), job_of_stage


def _cost_runs(jobs: Sequence[Job], workloads: Workloads, costs: WorkloadCosts) -> RunCosts:
    """Add the host: it runs ahead of the device unless launching takes longer than computing.

    A graph is launched as a whole, so only its own gaps between kernels remain; a compiler
    removes the framework's part of each launch.
    """
    job_of_run, _ = _job_of_run(workloads)

    def column(value: list[float]) -> Floats:
        return np.array(value, np.float64)[job_of_run][:, None]

    software = [job.cluster.software for job in jobs]
    graphs = [job.training.cuda_graphs for job in jobs]
    gap_s = column(
        [
            (
                job.cluster.device.kernel_start_graph_us
                if graph
                else job.cluster.device.kernel_start_us
            )
            * MICROSECOND
            for job, graph in zip(jobs, graphs, strict=True)
        ]
    )
    host_s = column(
        [
            0.0
            if graph
            else (soft.launch_us + (0.0 if job.training.torch_compile else soft.operator_us))
            * MICROSECOND
            for job, graph, soft in zip(jobs, graphs, software, strict=True)
        ]
    )
    sync_s = column([soft.host_sync_us * MICROSECOND for soft in software])
    workload = workloads.run_workload
    exposed_s = costs.exposed_s[workload]
    # Phase by phase and term by term, so that the order of additions is fixed.
    device_s = np.zeros(exposed_s.shape[:2])
    for term in range(exposed_s.shape[2]):
        device_s += exposed_s[:, :, term]
    launches, syncs = costs.launches[workload], costs.syncs[workload]
    gaps_s = launches * gap_s
    # Routing, permutation and dispatch keep the host busier than their launches tell.
    is_moe = workloads.rows["kind"][workload] == MOE
    host_floor_s = column([_moe_host_s(job) for job in jobs]) * is_moe[:, None] * MOE_HOST_PHASES
    busy_s = np.maximum(launches * host_s, host_floor_s)
    waiting_s = np.maximum(0.0, busy_s - device_s - gaps_s)
    launch_s = gaps_s + waiting_s + syncs * sync_s
    offload_s = column(
        [
            job.training.activation_offload_fraction / (job.cluster.device.host_link_gb_per_s * GB)
            for job in jobs
        ]
    )
    moved_s = costs.saved_bytes[workload][:, None] * offload_s
    # Offloading runs beside the forward and, coming back, beside the backward.
    layer_s = device_s + launch_s
    late_s = np.maximum(0.0, moved_s - layer_s) * np.array([1.0, 1.0, 0.0])
    return RunCosts(exposed_s, launch_s + late_s, layer_s + late_s)


MOE_HOST_PHASES = np.array([1.0 / 3.0, 2.0 / 3.0, 0.0])
"""Host time of an MoE layer in forward and backward; assumed to follow their operators."""


def _moe_host_s(job: Job) -> float:
    """Least host time of one MoE layer and microbatch; a graph needs none."""
    routing, software = job.training.moe, job.cluster.software
    if job.training.cuda_graphs:
        return 0.0
    waits = routing.host_sync and routing.capacity_factor is None
    return (software.moe_layer_ms if waits else software.moe_layer_sync_free_ms) * MILLISECOND


def _cost_p2p(workloads: Workloads, placements: Sequence[Placement]) -> tuple[Floats, list[Floats]]:
    """Latency of activations between virtual stages, within a domain or between nodes."""
    columns = workloads.jobs
    sequence = np.maximum(1, columns.cp)
    tokens = columns.micro_batch * columns.seq // sequence
    first_run = workloads.run_offset[workloads.stage_offset[:-1]]
    record = workloads.rows[workloads.run_workload[first_run]]
    split = np.where(record["sequence_parallel"] == 1, columns.tp, 1)
    num_bytes = 2.0 * (tokens // split) * record["hidden"] * (columns.pp > 1)
    # A second copy of the model has virtual stages of its own.
    job = np.repeat(np.arange(len(placements)), [len(each.rank_of) for each in placements])
    rank = np.concatenate([each.rank_of for each in placements])[:, None]
    other = np.concatenate([each.neighbour for each in placements])
    width = (columns.gpus // columns.pp)[job][:, None]
    domain = columns.domain[job][:, None]
    same = rank == other
    near = rank * width // domain == other * width // domain
    local = np.where(near & ~same, 2, 1)
    seconds = np.zeros(local.shape)
    for direction in range(2):
        moved = num_bytes[job] * ~same[:, direction]
        seconds[:, direction], _ = collective_time_columns(
            SEND_RECV, moved, 2, local[:, direction], record["fabric"][job], workloads.fabrics
        )
    ends = np.cumsum([len(each.rank_of) for each in placements])[:-1]
    return np.asarray(num_bytes, np.float64), np.split(seconds, ends)


def _cost_optimizer(jobs: Sequence[Job], workloads: Workloads, memory: StageMemory) -> list[Floats]:
    """Seconds of the update on each pipeline rank: its states pass through memory once.

    Each owned parameter reads its gradient twice (norm and update), reads and writes master and
    moments, and writes its weight; a narrow type also quantises every weight row- and
    column-wise. Offloaded states move gradient and weight over the host link.
    """
    seconds = []
    for row, job in enumerate(jobs):
        training = job.training
        optimizer = training.optimizer
        state = memory.optimizer_state_bytes[row]
        gradient = 4.0 if training.gradient_dtype == "fp32" else 2.0
        weight = parameter_bytes(job)
        per_owned = 2.0 * gradient + 2.0 * state + weight
        narrow = training.precision in {"fp8", "mxfp8", "nvfp4"}
        operand = float(OPERAND_BYTES[MATRIX_TYPES.index(training.precision)])
        quantise = (2.0 + 2.0 * operand) if narrow else 0.0
        device = workloads.devices[workloads.device_of_job[row]]
        owned, held = memory.owned_parameters[row], memory.held_parameters[row]
        on_device = owned * (1.0 - optimizer.offload_fraction)
        traffic = on_device * per_owned + held * quantise
        link = job.cluster.device.host_link_gb_per_s * GB
        moved = owned * optimizer.offload_fraction * (gradient + weight)
        seconds.append(traffic / float(device["hbm_bytes_per_s"]) + moved / link)
    return seconds


def _cost_tied_embeddings(
    jobs: Sequence[Job], workloads: Workloads, placements: Sequence[Placement]
) -> Floats:
    """Sum of the two copies' gradients, where two ranks of a pipeline hold the embedding."""
    columns = workloads.jobs
    apart = np.array([not each.joins_ends.any() for each in placements])
    tied = np.array([job.model.tied_embeddings for job in jobs]) & apart
    size = np.array(
        [
            -(-job.model.padded_vocab_size(job.parallelism.tp) // job.parallelism.tp)
            * job.model.hidden_size
            * (4.0 if job.training.reduce_dtype == "fp32" else 2.0)
            for job in jobs
        ]
    )
    last = (columns.pp - 1) * (columns.gpus // columns.pp)
    local = np.where(tied & (last // columns.domain == 0), 2, 1)
    fabric = np.array([_first_fabric(workloads, row) for row in range(len(jobs))], np.int64)
    seconds, _ = collective_time_columns(
        ALL_REDUCE, size * tied, 2, local, fabric, workloads.fabrics
    )
    return seconds


def _first_fabric(workloads: Workloads, row: int) -> int:
    run = workloads.run_offset[workloads.stage_offset[row]]
    return int(workloads.rows["fabric"][workloads.run_workload[run]])
