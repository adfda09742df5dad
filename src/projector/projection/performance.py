"""Time of one job's step as users see it: every term, what limits it, what it reaches."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.config.job import Job
from projector.kernels.collectives import ALGORITHMS
from projector.operations.counts import ModelCounts, count_model
from projector.operations.table import CATEGORIES, COLLECTIVE, EXCHANGE, FORWARD
from projector.projection import measures
from projector.projection.evaluate import Evaluation
from projector.projection.job_pipeline import pipeline_run_of
from projector.projection.memory import MemoryProjection, memory_projection
from projector.projection.provenance import Provenance, envelope, provenance_of, uncertainty
from projector.projection.step import BREAKDOWN
from projector.schedule.placement import Placement
from projector.schedule.replay.run import PipelineRun
from projector.units import to_gib, to_ms


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
    """What of it lengthens the step, with the slowdown of the compute it hides behind."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as ``--json`` prints it."""
        return {
            "algorithm": self.algorithm,
            "bytes": self.bytes,
            "time_ms": to_ms(self.time_s),
            "exposed_ms": to_ms(self.exposed_s),
        }


@dataclass(frozen=True, slots=True, repr=False)
class PerformanceProjection:
    """How long one step takes, and why."""

    job: Job
    schedule: str
    iteration_time_s: float
    breakdown_s: dict[str, float]
    """Terms on the rank that ends the step; they add up to ``iteration_time_s``."""
    communication: dict[str, Communication]
    recompute_flop: float
    """Matrix FLOP that recomputation repeats in one step, over all devices."""
    busiest_stage: int
    """Pipeline rank with the most work."""
    busiest_s: float
    """Work of that rank."""
    ending_s: float
    """Work of the rank that ends the step."""
    pipeline_s: float
    """Until the last operation of any rank, gradients and optimizer left out."""
    counts: ModelCounts
    memory: MemoryProjection
    provenance: Provenance
    pipeline: PipelineRun = field(compare=False)
    """Every operation of the pipeline, with its times and what the ranks hold."""
    alternatives: tuple["PerformanceProjection", ...] = ()
    """Other schedules that were compared, slower or too large."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Schedules that cannot run, each with the reason."""

    @property
    def breakdown(self) -> dict[str, float]:
        """Terms of the step in seconds."""
        return self.breakdown_s

    @property
    def gpus(self) -> int:
        """Devices of the job."""
        return self.job.cluster.gpus

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Trained tokens per second and device."""
        training = self.job.training
        rate: float = measures.tokens_per_s_per_gpu(
            training.global_batch_size, training.seq_length, self.iteration_time_s, self.gpus
        )
        return rate

    @property
    def model_flop(self) -> float:
        """Matrix FLOP the model needs for one step, no recomputation, causal attention halved."""
        return self.counts.flop_per_sequence * self.job.training.global_batch_size

    @property
    def tflops_per_gpu(self) -> float:
        """Needed TFLOP/s of each device, the numerator of MFU."""
        return float(measures.tflops_per_gpu(self.model_flop, self.iteration_time_s, self.gpus))

    @property
    def peak_tflops(self) -> float:
        """Dense datasheet peak of the training precision."""
        return self.job.cluster.device.peak_tflops(self.job.training.precision)

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation."""
        return self.tflops_per_gpu / self.peak_tflops

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilisation: MFU with the recomputed FLOP."""
        return float(measures.hardware_utilisation(self.mfu, self.recompute_flop, self.model_flop))

    @property
    def bubble_fraction(self) -> float:
        """Idle time of the busiest pipeline rank relative to its work."""
        return float(measures.bubble_fraction(self.pipeline_s, self.busiest_s))

    @property
    def microbatches(self) -> int:
        """Microbatches of one data-parallel rank in one step."""
        return self.job.training.global_batch_size // (
            self.job.training.micro_batch_size * self.degrees["dp"]
        )

    @property
    def degrees(self) -> dict[str, int]:
        """Every parallel degree."""
        split = self.job.parallelism
        return {
            "tp": split.tp,
            "pp": split.pp,
            "vpp": split.vpp,
            "cp": split.cp,
            "ep": split.ep,
            "etp": split.expert_tp if self.job.model.moe else 1,
            "dp": self.gpus // (split.tp * split.pp * split.cp),
        }

    @property
    def bound(self) -> str:
        """Name what limits the step: its largest term, or too few microbatches."""
        found = measures.bounds(
            np.array([list(self.breakdown_s.values())]),
            np.array([self.iteration_time_s]),
            np.array([self.job.parallelism.pp]),
            np.array([self.microbatches]),
            np.array([self.busiest_s]),
            np.array([self.ending_s]),
            np.array([self.busiest_stage]),
        )
        return found.texts[0]

    @property
    def uncertainty(self) -> dict[str, Any]:
        """Band of the step time, from published training runs."""
        return uncertainty(self.job, "time")

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``projector performance --json`` prints."""
        result = {
            **envelope(self.provenance, self.uncertainty),
            "iteration_time_ms": to_ms(self.iteration_time_s),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "bubble_fraction": self.bubble_fraction,
            "busiest_stage": self.busiest_stage,
            "schedule": self.schedule,
            "microbatches": self.microbatches,
            "nodes": self.job.cluster.nodes,
            "gpus": self.gpus,
            "parallelism": self.degrees,
            "breakdown_ms": {name: to_ms(value) for name, value in self.breakdown_s.items()},
            "communication": {name: entry.to_dict() for name, entry in self.communication.items()},
            "memory": {"peak_gib": to_gib(self.memory.peak_bytes), "fits": self.memory.fits},
            "bound": self.bound,
            "provenance": {"times": "analytic", **self.provenance.to_dict()},
        }
        if self.alternatives:
            result["alternatives"] = [
                {
                    "schedule": other.schedule,
                    "vpp": other.degrees["vpp"],
                    "iteration_time_ms": to_ms(other.iteration_time_s),
                    "bubble_fraction": other.bubble_fraction,
                    "peak_gib": to_gib(other.memory.peak_bytes),
                    "fits": other.memory.fits,
                }
                for other in self.alternatives
            ]
        if self.left_out:
            result["left_out"] = [
                {"schedule": name, "reason": reason} for name, reason in self.left_out
            ]
        return result

    def __repr__(self) -> str:
        """Give the step in one line."""
        return (
            f"PerformanceProjection({self.job.model.name} on {self.gpus} x "
            f"{self.job.cluster.device.name}: {to_ms(self.iteration_time_s):,.1f} ms a step, "
            f"{self.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, MFU {self.mfu:.1%}, "
            f"limited by {self.bound})"
        )

    def _repr_html_(self) -> str:
        from projector.projection.html import html_table

        rows = [
            {"term": name, "ms": to_ms(value), "share": f"{value / self.iteration_time_s:.1%}"}
            for name, value in self.breakdown_s.items()
        ]
        return html_table(repr(self), rows)


def performance_projection(evaluation: Evaluation, row: int) -> PerformanceProjection:
    """Read one job's step out of an evaluated batch."""
    job, steps = evaluation.job(row), evaluation.steps
    terms = dict(zip(BREAKDOWN, steps.breakdown_s[row].tolist(), strict=True))
    return PerformanceProjection(
        job=job,
        schedule=evaluation.schedule(row),
        iteration_time_s=float(steps.iteration_s[row]),
        breakdown_s=terms,
        communication=_communication(evaluation, row),
        recompute_flop=float(recompute_flop(evaluation)[row]),
        busiest_stage=int(steps.busiest_rank[row]),
        busiest_s=float(steps.busiest_s[row]),
        ending_s=float(steps.ending_s[row]),
        pipeline_s=float(steps.pipeline_s[row]),
        counts=count_model(job),
        memory=memory_projection(evaluation, row),
        provenance=provenance_of(job),
        pipeline=pipeline_run_of(evaluation, row),
    )


def recompute_flop(evaluation: Evaluation) -> NDArray[np.float64]:
    """Return the matrix FLOP that recomputation repeats in one step of each job, all devices."""
    columns, workloads = evaluation.workloads.jobs, evaluation.workloads
    ranks = columns.gpus // columns.pp
    each = evaluation.inputs.costs.recompute_flop[workloads.pipeline]
    return np.asarray(ranks * columns.microbatches * each)


def _run_weights(
    evaluation: Evaluation, row: int, stages: Iterable[int], microbatches: int
) -> dict[int, float]:
    """Return how often each workload of some stages of a job runs in a step."""
    workloads = evaluation.workloads
    weights: dict[int, float] = {}
    for stage in stages:
        for run in workloads.runs(row, stage):
            workload = int(workloads.run_workload[run])
            weights[workload] = weights.get(workload, 0.0) + microbatches * float(
                workloads.run_count[run]
            )
    return weights


def _communication(evaluation: Evaluation, row: int) -> dict[str, Communication]:
    """Sum collectives of a step by label on the rank that ends it."""
    table, rows = evaluation.table, evaluation.rows
    rank = int(evaluation.steps.ending_rank[row])
    held = _replica(evaluation, row)[1].model_stage[rank].tolist()
    weights = _run_weights(evaluation, row, held, evaluation.order(row).microbatches)
    found: dict[str, Communication] = {}
    recompute = evaluation.workloads.columns.recompute
    for index in np.flatnonzero((table.kind == COLLECTIVE) | (table.kind == EXCHANGE)):
        workload = int(table.workload[index])
        times = weights.get(workload, 0.0)
        if times == 0.0 or rows.time_s[index] == 0.0:
            continue
        if table.phase[index] == FORWARD and recompute[workload] == 2:
            times *= 2.0
        exchange = table.kind[index] == EXCHANGE
        code = int(rows.detail[index])
        algorithm = "exchange" if exchange else ALGORITHMS[code]
        group = CATEGORIES[table.category[index]].removesuffix("_comm")
        name = f"{group}:{table.labels[table.label[index]]}"
        moved = float(table.bytes[index] * table.repeats[index])
        entry = Communication(
            algorithm,
            times * moved,
            times * float(rows.time_s[index]),
            times * float(rows.exposed_s[index]),
        )
        found[name] = _add(found[name], entry) if name in found else entry
    found.update(_data_parallel_communication(evaluation, row, rank))
    if evaluation.inputs.p2p.bytes[_replica(evaluation, row)[0]] > 0.0:
        found["pp:send_recv"] = _pipeline_communication(evaluation, row, rank)
    return found


def _replica(evaluation: Evaluation, row: int) -> tuple[int, Placement]:
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
    replica, placement = _replica(evaluation, row)
    replicas = evaluation.inputs.replicas
    stage = int(workloads.jobs.zero_stage[row])
    microbatches = float(evaluation.order(row).microbatches)
    gathers = 2.0 * microbatches if stage >= 3 else 1.0
    reduces = microbatches if stage >= 2 else 1.0
    sums = {"dp:param_all_gather": [0.0, 0.0], "dp:grad_reduce": [0.0, 0.0]}
    codes = {"dp:param_all_gather": -1, "dp:grad_reduce": -1}
    first = replicas.stage_offset[replica]
    for virtual in (first + placement.model_stage[rank]).tolist():
        kind = int(replicas.stage_kind[virtual])
        for run in range(int(replicas.run_offset[kind]), int(replicas.run_offset[kind + 1])):
            count = float(workloads.run_count[replicas.run[run]])
            for name, times, seconds, num_bytes, code in (
                (
                    "dp:param_all_gather",
                    gathers,
                    parallel.gather_s,
                    parallel.gather_bytes,
                    parallel.gather_algorithm,
                ),
                (
                    "dp:grad_reduce",
                    reduces,
                    parallel.reduce_s,
                    parallel.reduce_bytes,
                    parallel.reduce_algorithm,
                ),
            ):
                sums[name][0] += times * count * float(num_bytes[run])
                sums[name][1] += times * count * float(seconds[run])
                codes[name] = max(codes[name], int(code[run]))
    total = sum(seconds for _, seconds in sums.values())
    exposed = float(evaluation.steps.breakdown_s[row, BREAKDOWN.index("dp_comm")])
    return {
        name: Communication(
            ALGORITHMS[codes[name]] if codes[name] >= 0 else "exchange",
            num_bytes,
            seconds,
            exposed * seconds / total,
        )
        for name, (num_bytes, seconds) in sums.items()
        if seconds > 0.0
    }


def _pipeline_communication(evaluation: Evaluation, row: int, rank: int) -> Communication:
    replica, placement = _replica(evaluation, row)
    p2p = evaluation.inputs.p2p
    p2p_s = p2p.latency_s[evaluation.inputs.replicas.chunk_first[replica] :]
    microbatches = float(evaluation.order(row).microbatches)
    seconds, messages = 0.0, 0.0
    for stage in placement.stage_of[rank].tolist():
        for direction in range(2):
            if placement.neighbour[stage, direction] != rank:
                seconds += microbatches * float(p2p_s[stage, direction])
                messages += microbatches
    exposed = float(evaluation.steps.breakdown_s[row, BREAKDOWN.index("pp_comm")])
    return Communication("send_recv", messages * float(p2p.bytes[replica]), seconds, exposed)
