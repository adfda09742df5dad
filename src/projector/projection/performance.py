"""Time of one job's step as users see it: every term, what limits it, what it reaches.

Beside it stands the pipeline, operation by operation, and its schedules compared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.config.bands import Band
from projector.config.job import Job
from projector.config.load import load_job
from projector.envelope import Told, envelope, told
from projector.kernels.collective_algorithms import ALGORITHMS
from projector.lower.batch import data_parallel
from projector.operations.counts import ModelCounts
from projector.operations.table import CATEGORIES, COLLECTIVE, EXCHANGE
from projector.operations.work import repeated_rows
from projector.projection.bands import WORDS, time_band, verdict_of
from projector.projection.evaluate import Evaluation, check_placed, evaluate
from projector.projection.memory import MemoryProjection, memory_projection
from projector.projection.provenance import Provenance
from projector.projection.replicas import tied_embedding_bytes
from projector.projection.results import PERFORMANCE_SCALARS, Results, json_object
from projector.projection.run import RunProjection, project_runs
from projector.projection.terms import BREAKDOWN
from projector.schedule.compare import ALL, ScheduleComparison, compared
from projector.schedule.order import Placement
from projector.schedule.registry import SCHEDULES
from projector.schedule.replay.run import PipelineRun
from projector.units import to_gib, to_ms

if TYPE_CHECKING:
    from projector.measure.record import Record
    from projector.projection.comparison import Comparison
    from projector.projection.profiling import Source


@dataclass(frozen=True, slots=True)
class Communication:
    """One kind of collective over a whole step, on the rank that ends it."""

    algorithm: str
    """Algorithm chosen for the largest message; ``mixed`` where layers differ."""
    bytes: float
    """Buffer bytes over the step (see ``docs/collectives.md`` for what a buffer is)."""
    time_s: float
    """Time of all of them, hidden or not."""
    exposed_s: float
    """What of it lengthens the step, with the slowdown of the compute it hides behind; never more
    than all of it, but where it slows compute down by more than its own time. Those of a group add
    up to its term of the breakdown."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as ``--json`` prints it."""
        return told(self, "algorithm bytes time_ms exposed_ms")


ELSEWHERE = "elsewhere"
"""Entry of a group for what the rank that ends the step waits for collectives of other ranks."""

NOT_NARROWED = (
    "not narrower for measured terms, since no published run was restored from a measurement"
)
"""Why a hybrid step has the band of a modelled one."""

_OF_MEMORY = ("peak_gib", "peak_gib_low", "peak_gib_high", "fits", "verdict")
"""What a step tells about memory."""

_OF_ALTERNATIVES = (
    "schedule",
    "parallelism.vpp",
    "iteration_time_ms",
    "bubble_fraction",
    *_OF_MEMORY,
)
"""What a report tells about a compared schedule."""


@dataclass(frozen=True, slots=True, repr=False)
class PerformanceProjection:
    """How long one step takes, and why."""

    job: Job
    iteration_time_s: float
    breakdown_s: dict[str, float]
    """Terms on the rank that ends the step; they add up to ``iteration_time_s``."""
    communication: dict[str, Communication]
    model_flop: float
    """Matrix FLOP the model needs for one step, no recomputation, causal attention halved."""
    recompute_flop: float
    """Matrix FLOP that recomputation repeats in one step, over all devices."""
    busiest_s: float
    """Work of the pipeline rank with the most work."""
    ending_stage: int
    """Pipeline rank that ends the step; breakdown and communication are its own."""
    ending_s: float
    """Work of the rank that ends the step."""
    pipeline_s: float
    """Until the last operation of any rank, gradients and optimizer left out."""
    memory: MemoryProjection
    scalars: Mapping[str, Any]
    """Every scalar of `SCALARS`, under the name of its column."""
    provenance: Provenance
    pipeline: PipelineRun = field(compare=False)
    """Every operation of the pipeline, with its times and what the ranks hold."""
    run: RunProjection | None = None
    """The whole run, where the job says how much is trained."""
    alternatives: tuple["PerformanceProjection", ...] = ()
    """Other schedules that were compared, slower or too large."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Schedules that cannot run, each with the reason."""
    source: "Source | None" = None
    """What the times were taken from; the models alone if there is none."""
    comparison: "Comparison | None" = None
    """Measured beside simulated, where both were asked for."""

    @property
    def record(self) -> "Record | None":
        """What was measured for this projection."""
        return self.source.record if self.source is not None else None

    @property
    def origins(self) -> dict[str, str]:
        """Whether each term was measured, scaled or is analytic; empty with models alone."""
        return {} if self.provenance.times is None else self.provenance.times.terms

    schedule = Told(str)

    @property
    def counts(self) -> ModelCounts:
        """What the model has and needs."""
        return self.memory.counts

    @property
    def breakdown(self) -> dict[str, float]:
        """Terms of the step in seconds."""
        return self.breakdown_s

    gpus = Told(int)
    tokens_per_s_per_gpu = Told(float)
    """Trained tokens per second and device."""
    tflops_per_gpu = Told(float)
    """Needed TFLOP/s of each device, the numerator of MFU."""

    @property
    def peak_tflops(self) -> float:
        """Dense datasheet peak of the training precision."""
        return self.job.cluster.device.peak_tflops(self.job.training.precision)

    mfu = Told(float)
    """Model FLOP utilisation."""
    hfu = Told(float)
    """Hardware FLOP utilisation: MFU with the recomputed FLOP."""
    bubble_fraction = Told(float)
    """Idle time of the busiest pipeline rank relative to its work."""
    busiest_stage = Told(int)
    """Pipeline rank with the most work."""
    microbatches = Told(int)
    """Microbatches of one data-parallel rank in one step."""

    @property
    def degrees(self) -> dict[str, int]:
        """Every parallel degree."""
        return dict(json_object(self.scalars, PERFORMANCE_SCALARS)["parallelism"])

    bound = Told(str)
    """Name what limits the step: its largest term, or too few microbatches."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may not be as it was meant, and that memory is at risk."""
        return self.memory.warnings

    @property
    def band(self) -> Band:
        """Band of the step time, from published runs; wider with an attention not measured."""
        share = self.breakdown_s["compute_attention"] / self.iteration_time_s
        times = self.provenance.times
        if times is None:
            return time_band(self.job, share)
        # Where the kernel was measured, nothing hangs on what the model knows of it.
        band = time_band(self.job, share * times.shares["compute_attention"]["analytic"])
        return replace(band, basis=f"{band.basis}; {NOT_NARROWED}")

    @property
    def uncertainty(self) -> dict[str, Any]:
        """The band as the JSON object has it."""
        return self.band.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``projector performance --json`` prints."""
        scalars = json_object(self.scalars, PERFORMANCE_SCALARS)
        bound = scalars.pop("bound")
        result = {
            **envelope(self.warnings, self.uncertainty),
            "ignored_settings": list(self.job.ignored),
            **scalars,
            "communication": {name: entry.to_dict() for name, entry in self.communication.items()},
            "memory": {**{name: self.scalars[name] for name in _OF_MEMORY}, **self.memory.measured},
            "bound": bound,
            **({"run": self.run.to_dict()} if self.run else {}),
            "provenance": {
                "times": "analytic",
                **self.provenance.to_dict(),
                **(self.source.to_dict() if self.source is not None else {}),
            },
        }
        if self.comparison is not None:
            result["comparison"] = self.comparison.to_dict()
        if self.alternatives:
            result["alternatives"] = [
                {name.rpartition(".")[2]: other.scalars[name] for name in _OF_ALTERNATIVES}
                for other in self.alternatives
            ]
        if self.left_out:
            result["left_out"] = [
                {"schedule": name, "reason": reason} for name, reason in self.left_out
            ]
        return result

    def __repr__(self) -> str:
        return (
            f"PerformanceProjection({self.job.model.name} on {self.gpus} x "
            f"{self.job.cluster.device.name}: {to_ms(self.iteration_time_s):,.1f} ms a step, "
            f"{self.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, MFU {self.mfu:.1%}, "
            f"limited by {self.bound}; memory {WORDS[self.memory.verdict]}, peak "
            f"{to_gib(self.memory.peak_bytes):.2f} GiB ({self.memory.peak_band}))"
        )

    def _repr_html_(self) -> str:
        from projector.frames import html_table

        origins = self.origins
        rows = [
            {
                "term": name,
                "ms": to_ms(value),
                "share": f"{value / self.iteration_time_s:.1%}",
                **({"from": origins[name]} if origins else {}),
            }
            for name, value in self.breakdown_s.items()
        ]
        return html_table(repr(self), rows)


def performance_projection(results: Results, row: int) -> PerformanceProjection:
    """Read one job's step out of an evaluated batch."""
    evaluation, steps = results.evaluation, results.steps
    job, memory = evaluation.job(row), memory_projection(results, row)
    return PerformanceProjection(
        job=job,
        iteration_time_s=float(steps.iteration_s[row]),
        breakdown_s=dict(zip(BREAKDOWN, steps.breakdown_s[row].tolist(), strict=True)),
        communication=_communication(evaluation, row),
        model_flop=float(results.model_flop[row]),
        recompute_flop=float(results.recompute_flop[row]),
        busiest_s=float(steps.busiest_s[row]),
        ending_stage=int(steps.ending_rank[row]),
        ending_s=float(steps.ending_s[row]),
        pipeline_s=float(steps.pipeline_s[row]),
        memory=memory,
        scalars=memory.scalars,
        provenance=memory.provenance,
        pipeline=pipeline_run_of(evaluation, row),
        run=project_runs(results).of(row) if job.run.is_stated else None,
    )


def run_weights(
    evaluation: Evaluation, row: int, stages: Iterable[int], microbatches: int
) -> dict[int, float]:
    """Return how often each workload of some stages of a job runs in a step."""
    workloads = evaluation.workloads
    weights: dict[int, float] = {}
    for stage in stages:
        for run in workloads.runs(evaluation.family(row), stage):
            workload = int(workloads.run_workload[run])
            weights[workload] = weights.get(workload, 0.0) + microbatches * float(
                workloads.run_count[run]
            )
    return weights


def _communication(evaluation: Evaluation, row: int) -> dict[str, Communication]:
    table, rows = evaluation.table, evaluation.rows
    rank = int(evaluation.steps.ending_rank[row])
    held = replica_of(evaluation, row)[1].model_stage[rank].tolist()
    weights = run_weights(evaluation, row, held, evaluation.order(row).microbatches)
    collectives: dict[str, Communication] = {}
    again = repeated_rows(table, evaluation.workloads)
    for index in np.flatnonzero((table.kind == COLLECTIVE) | (table.kind == EXCHANGE)):
        times = weights.get(int(table.workload[index]), 0.0)
        if times == 0.0 or rows.time_s[index] == 0.0:
            continue
        times *= 2.0 if again[index] else 1.0
        exchange = table.kind[index] == EXCHANGE
        algorithm = "exchange" if exchange else ALGORITHMS[int(rows.detail[index])]
        group = CATEGORIES[table.category[index]].removesuffix("_comm")
        name = f"{group}:{table.labels[table.label[index]]}"
        moved = float(table.bytes[index] * table.repeats[index])
        entry = Communication(
            algorithm,
            times * moved,
            times * float(rows.time_s[index]),
            times * float(rows.exposed_s[index]),
        )
        collectives[name] = _add(collectives[name], entry) if name in collectives else entry
    collectives.update(_data_parallel_communication(evaluation, row, rank))
    if evaluation.inputs.p2p.bytes[replica_of(evaluation, row)[0]] > 0.0:
        collectives.update(_pipeline_communication(evaluation, row, rank))
    return collectives


def replica_of(evaluation: Evaluation, row: int) -> tuple[int, Placement]:
    """Return the replica of a job, and where its stages lie."""
    replicas = evaluation.inputs.replicas
    replica = int(replicas.of_job[row])
    return replica, replicas.placement(replica)


def _add(first: Communication, second: Communication) -> Communication:
    same = first.algorithm == second.algorithm
    return Communication(
        first.algorithm if same else "mixed",
        first.bytes + second.bytes,
        first.time_s + second.time_s,
        first.exposed_s + second.exposed_s,
    )


def _data_parallel_communication(
    evaluation: Evaluation, row: int, rank: int
) -> dict[str, Communication]:
    """Return gathers and reductions of one rank; what is exposed is shared by their times."""
    workloads, parallel = evaluation.workloads, evaluation.parallel
    replica, placement = replica_of(evaluation, row)
    replicas = evaluation.inputs.replicas
    stage = int(evaluation.jobs.zero_stage[row])
    microbatches = float(evaluation.order(row).microbatches)
    times = np.array(
        [2.0 * microbatches if stage >= 3 else 1.0, microbatches if stage >= 2 else 1.0]
    )
    spent, moved = np.zeros((2, len(parallel.parts), 2))
    codes = np.full(moved.shape, -1)
    first = replicas.stage_offset[replica]
    for virtual in (first + placement.model_stage[rank]).tolist():
        kind = int(replicas.stage_kind[virtual])
        for run in range(int(replicas.run_offset[kind]), int(replicas.run_offset[kind + 1])):
            count = float(workloads.run_count[replicas.run[run]])
            sent = int(parallel.of_run[run])
            for place, part in enumerate(parallel.parts):
                spent[place] += times * count * part.time_s[:, sent]
                moved[place] += times * count * part.bytes[:, sent]
                codes[place] = np.maximum(codes[place], part.algorithm[:, sent])
    total = float(spent.sum())
    exposed = float(evaluation.steps.breakdown_s[row, BREAKDOWN.index("dp_comm")])
    found: dict[str, Communication] = {}
    tied = _tied_embeddings(evaluation, row, rank)
    if tied is not None:
        found["dp:tied_embeddings"] = tied
        exposed -= tied.exposed_s
    own = min(max(exposed, 0.0), total)
    for place, direction in np.argwhere(spent > 0.0).tolist():
        name = f"dp:{('', 'experts.')[place]}{('param_all_gather', 'grad_reduce')[direction]}"
        seconds, code = float(spent[place, direction]), int(codes[place, direction])
        found[name] = Communication(
            ALGORITHMS[code] if code >= 0 else "exchange",
            float(moved[place, direction]),
            seconds,
            own * seconds / total,
        )
    return found | _elsewhere("dp", exposed - own, exposed)


def _tied_embeddings(evaluation: Evaluation, row: int, rank: int) -> Communication | None:
    replica = int(evaluation.inputs.replicas.of_job[row])
    seconds = float(evaluation.inputs.tied_s[replica])
    last = int(evaluation.jobs.pp[row]) - 1
    if seconds == 0.0 or rank not in (0, last):
        return None
    num_bytes = float(tied_embedding_bytes(evaluation.inputs.replicas)[replica])
    return Communication("all_reduce", num_bytes, seconds, seconds)


def _elsewhere(group: str, seconds: float, exposed_s: float) -> dict[str, Communication]:
    """Return what a rank waits for collectives of others, apart from rounding."""
    if seconds <= 1e-12 * exposed_s:
        return {}
    return {f"{group}:{ELSEWHERE}": Communication("wait", 0.0, seconds, seconds)}


def _pipeline_communication(
    evaluation: Evaluation, row: int, rank: int
) -> dict[str, Communication]:
    replica, placement = replica_of(evaluation, row)
    p2p = evaluation.inputs.p2p
    p2p_s = p2p.latencies_s(replica, placement.stage_of.size)
    microbatches = float(evaluation.order(row).microbatches)
    seconds, messages = 0.0, 0.0
    for stage in placement.stage_of[rank].tolist():
        for direction in range(2):
            if placement.neighbour[stage, direction] != rank:
                seconds += microbatches * float(p2p_s[stage, direction])
                messages += microbatches
    exposed = float(evaluation.steps.breakdown_s[row, BREAKDOWN.index("pp_comm")])
    # The replay also waits for messages that others send.
    own = min(exposed, seconds)
    sends = Communication("send_recv", messages * float(p2p.bytes[replica]), seconds, own)
    return {"pp:send_recv": sends, **_elsewhere("pp", exposed - own, exposed)}


SCHEDULE = "training.schedule"


def pipeline_run_of(evaluation: Evaluation, row: int) -> PipelineRun:
    """Return what the ranks of one evaluated job do, and what they hold.

    It fits where `MemoryProjection` says so: the limit is the usable memory of the device, and
    everything but activations counts for the whole step.
    """
    inputs, job = evaluation.inputs, evaluation.job(row)
    limit_bytes = evaluation.usable_bytes(row)
    replicas, pipeline = inputs.replicas, evaluation.pipeline(row)
    replica, timings = int(replicas.of_job[row]), pipeline.timings
    sends_ps = None
    if timings.blocks[0]:
        sends_ps = pipeline.replayed.rank_busy_ps[0] - pipeline.alone.rank_busy_ps[0]
    return PipelineRun(
        schedule=evaluation.schedule(row),
        chosen=evaluation.order(row),
        duration_ps=timings.duration_ps[0],
        p2p_ps=timings.latency_ps[0],
        activation_bytes=pipeline.activation_bytes,
        w_share=float(inputs.costs.weight_share[replicas.pipeline[replica]]),
        static_bytes=inputs.held.static[replicas.kinds_of_ranks(replica)],
        limit_bytes=limit_bytes,
        memory_band=verdict_of(job, float(evaluation.steps.peak_bytes[row]), limit_bytes),
        sends_ps=sends_ps,
    )


def under_schedule(job: Job, name: str) -> Job:
    """Return a job under another schedule, its layers in as many chunks as that needs."""
    overrides: dict[str, Any] = {SCHEDULE: name}
    chunks = SCHEDULES[name].chunks(job.parallelism.vpp)
    if chunks != job.parallelism.vpp and job.parallelism.pp > 1:
        overrides["parallelism.vpp"] = chunks
    return load_job(job, overrides)


def microbatches_of(job: Job) -> int:
    """Return the microbatches of a step of a job that can exist."""
    training = job.training
    return training.global_batch_size // (training.micro_batch_size * data_parallel(job))


def compare_job_schedules(job: Job, algorithm: str = ALL) -> ScheduleComparison:
    """Run one schedule of a job (a name or ``auto``) or ``all`` of them.

    A schedule that needs another number of chunks has the layers laid out in them.
    """
    split = job.parallelism
    check_placed(job)  # A job that cannot exist is no fault of the schedules.

    def run(name: str, chunks: int) -> tuple[PipelineRun, float]:  # noqa: ARG001  # the job knows
        evaluation = evaluate([under_schedule(job, name)])
        return pipeline_run_of(evaluation, 0), float(evaluation.steps.iteration_s[0])

    return compared(split.pp, split.vpp, microbatches_of(job), algorithm, run, splits=True)
