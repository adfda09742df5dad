"""Changes to try next: candidates from a result, each projected before it is suggested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.config.load import load_job
from projector.config.training import FUSED_UNITS
from projector.errors import ProjectorError
from projector.projection.api import project_jobs
from projector.projection.bands import FITS, VERDICTS
from projector.projection.memory import MemoryProjection
from projector.projection.performance import PerformanceProjection
from projector.report.terminal.grid import assignments

MAX_CANDIDATES = 6
"""Jobs projected to find the suggestions of one report."""

MAX_SHOWN = 4

WORTH_NAMING = 0.01
"""Least gain in tokens per second, or of memory that is missing, for a suggestion."""

Overrides = Mapping[str, Any]

WORTH_TRYING = 0.02
"""Least share of the step that a term has before changes against it are projected."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that was projected and helps."""

    overrides: dict[str, Any]
    speed: float
    """Change of tokens per second and device, as a fraction."""
    peak_bytes: float
    """Change of the peak."""
    verdict: str

    @property
    def fits(self) -> bool:
        """Whether the changed job fits with the band of its memory."""
        return self.verdict == FITS

    @property
    def change(self) -> str:
        """The change as it is written on the command line."""
        return assignments(self.overrides)

    @property
    def changes_training(self) -> bool:
        """Whether the job would also train differently, not only elsewhere or in other order."""
        return bool(self.overrides.keys() & _TRAINS_DIFFERENTLY)


_TRAINS_DIFFERENTLY = {"training.global_batch_size", "training.grad_reduce_dtype"}


def suggest(result: PerformanceProjection) -> list[Suggestion]:
    """Return up to four changes that make the job fit, or faster while it still fits.

    A job at risk gets what lowers its peak, as one that does not fit. Every candidate is
    projected; those that are illegal or do not help are left out. Where no single change makes it
    fit, the first is a layout that does, on more devices if it must be.
    """
    options = _projected(
        result, faster(result) if result.memory.verdict == FITS else smaller(result.memory)
    )
    if result.memory.verdict == FITS:
        helpful = [option for option in options if option.fits and option.speed >= WORTH_NAMING]
        helpful.sort(key=lambda option: -option.speed)
    else:
        missing = result.memory.peak_high_bytes - result.memory.usable_bytes
        helpful = [option for option in options if -option.peak_bytes >= WORTH_NAMING * missing]
        # What makes the job fit goes alone; else what leaves it at risk, with what it needs less.
        if any(option.fits for option in helpful):
            helpful = [option for option in helpful if option.fits]
        helpful.sort(
            key=lambda option: (
                VERDICTS.index(option.verdict),
                -option.speed if option.fits else option.peak_bytes,
            )
        )
        if not any(option.fits for option in helpful):
            from projector.searches.configurations import fitting_overrides

            overrides = fitting_overrides(result.job)
            helpful = [*([] if overrides is None else _projected(result, [overrides])), *helpful]
    return helpful[:MAX_SHOWN]


def _projected(result: PerformanceProjection, candidates: Sequence[Overrides]) -> list[Suggestion]:
    jobs, changes = _legal(result.job, candidates)
    if not jobs:
        return []
    return [
        Suggestion(
            overrides=dict(change),
            speed=other.tokens_per_s_per_gpu / result.tokens_per_s_per_gpu - 1.0,
            peak_bytes=other.memory.peak_bytes - result.memory.peak_bytes,
            verdict=other.memory.verdict,
        )
        for change, other in zip(changes, _project(jobs), strict=True)
        if other is not None
    ]


def smaller(memory: MemoryProjection) -> list[Overrides]:
    """Return changes that may lower the peak, the least intrusive first."""
    job = memory.job
    split, training = job.parallelism, job.training
    stage = memory.stages[memory.peak_stage]
    activations = stage.activations_bytes + stage.transient_bytes
    states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    free_dp = _free_dp(job)
    for_activations: list[Overrides] = []
    if training.recompute.granularity == "none":
        stated = "granularity" in training.recompute.model_fields_set
        mode = {"training.recompute.granularity": "selective"} if stated else {}
        narrow = ["layernorm"] if job.model.moe is None else ["layernorm", "moe_act"]
        for_activations.append({**mode, "training.recompute.modules": narrow})
        wide = ["mlp"] if job.model.moe is None else ["moe"]
        for_activations.append({**mode, "training.recompute.modules": wide})
    if training.recompute.granularity != "full":
        for_activations.append({"training.recompute": "full"})
    if training.micro_batch_size > 1 and training.micro_batch_size % 2 == 0:
        for_activations.append({"training.micro_batch_size": training.micro_batch_size // 2})
    for_states: list[Overrides] = []
    if split.sharding_stage < 3:
        for_states.append({"parallelism.zero_stage": 3})
    for_states.append({"parallelism.pp": split.pp * 2, **free_dp})
    if job.model.moe is not None:
        for_states.append({"parallelism.ep": split.ep * 2})
    both: list[Overrides] = [{"parallelism.tp": split.tp * 2, **free_dp}]
    both.append({"cluster.nodes": job.cluster.nodes * 2, **free_dp})
    ordered = (
        (for_activations, for_states) if activations > states else (for_states, for_activations)
    )
    return [*ordered[0], *both, *ordered[1]]


def faster(result: PerformanceProjection) -> list[Overrides]:
    """Return changes that may shorten the step, against the largest losses first."""
    granularity = result.job.training.recompute.granularity
    changes: _Ranked = []
    if granularity != "none":
        changes.append((0.3, {"training.recompute": "none"}))
    if granularity == "full":
        changes.append((0.2, {"training.recompute": "selective"}))
    ranked = [
        *changes,
        *_against_bubble(result),
        *_against_communication(result),
        *_against_small_work(result),
    ]
    ranked.sort(key=lambda entry: -entry[0])
    return [change for _, change in ranked]


_Ranked = list[tuple[float, Overrides]]
"""Changes with a rough estimate of their gain, to choose which ones to project."""


def _share(result: PerformanceProjection, term: str) -> float:
    return result.breakdown_s[term] / result.iteration_time_s


def _free_dp(job: Job) -> dict[str, Any]:
    return {"parallelism.dp": None} if job.parallelism.dp is not None else {}


def _against_bubble(result: PerformanceProjection) -> _Ranked:
    job = result.job
    split, training = job.parallelism, job.training
    bubble = _share(result, "pp_bubble")
    if bubble < WORTH_TRYING or split.pp == 1:
        return []
    usual = {} if training.schedule == "auto" else {"training.schedule": "auto"}
    layers = job.model.num_layers // split.pp
    vpp = next((v for v in range(split.vpp + 1, layers + 1) if layers % v == 0), None)
    changes: _Ranked = []
    if vpp is not None:
        changes.append((bubble, {"parallelism.vpp": vpp, **usual}))
    fewer: dict[str, Any] = {"parallelism.pp": split.pp // 2, **_free_dp(job)}
    if split.pp == 2:
        fewer |= {**({"parallelism.vpp": 1} if split.vpp > 1 else {}), **usual}
    changes.append((bubble * 0.9, fewer))
    changes.append((bubble * 0.8, {"training.global_batch_size": training.global_batch_size * 2}))
    if training.micro_batch_size % 2 == 0:
        changes.append(
            (bubble * 0.5, {"training.micro_batch_size": training.micro_batch_size // 2})
        )
    return changes


def _against_communication(result: PerformanceProjection) -> _Ranked:
    job = result.job
    split, training = job.parallelism, job.training
    tp, cp, ep, dp = (_share(result, f"{name}_comm") for name in ("tp", "cp", "ep", "dp"))
    changes: _Ranked = []
    if tp > WORTH_TRYING:
        changes.append((tp, {"parallelism.tp": split.tp // 2, **_free_dp(job)}))
        if not split.tp_comm_overlap:
            changes.append((tp * 0.9, {"parallelism.tp_comm_overlap": True}))
    if ep > WORTH_TRYING:
        if not split.overlap_moe_expert_parallel_comm:
            changes.append((ep * 0.9, {"parallelism.overlap_moe_expert_parallel_comm": True}))
        if training.moe.dispatcher not in FUSED_UNITS:
            changes.append((ep * 0.6, {"training.moe.dispatcher": "deepep"}))
        changes.append((ep * 0.5, {"parallelism.ep": split.ep // 2}))
    if cp > WORTH_TRYING:
        changes.append((cp, {"parallelism.cp": split.cp // 2, **_free_dp(job)}))
    if dp > WORTH_TRYING:
        overlap = ("overlap_grad_reduce", "overlap_param_gather")
        off = {f"parallelism.{name}": True for name in overlap if not getattr(split, name)}
        if off:
            changes.append((dp, off))
        if training.reduce_dtype == "fp32":
            changes.append((dp * 0.5, {"training.grad_reduce_dtype": "bf16"}))
        changes.append((dp * 0.4, {"training.global_batch_size": training.global_batch_size * 2}))
        if split.sharding_stage > 1 and not split.fsdp:
            changes.append((dp, {"parallelism.zero_stage": 1}))
    return changes


def _against_small_work(result: PerformanceProjection) -> _Ranked:
    job = result.job
    split, training = job.parallelism, job.training
    launch, other = _share(result, "launch"), _share(result, "compute_other")
    changes: _Ranked = []
    if launch > WORTH_TRYING and not training.cuda_graphs:
        changes.append((launch, {"training.cuda_graphs": True}))
    if not training.torch_compile and max(launch, other / 3) > WORTH_TRYING:
        changes.append((max(launch / 2, other / 3), {"training.torch_compile": True}))
    if job.model.moe is not None and training.moe.host_sync:
        # What tuned runs have together: a graph of all needs counts that nobody waits for.
        tuned: dict[str, Any] = {"training.cuda_graphs": True, "training.moe.host_sync": False}
        if split.ep > 1 and job.cluster.device.vendor == "nvidia":
            tuned["training.moe.dispatcher"] = "hybridep"
        changes.append((1.0, tuned))
    if result.memory.headroom_bytes > 0.25 * result.memory.usable_bytes:
        changes.append((0.05, {"training.micro_batch_size": training.micro_batch_size * 2}))
        if split.tp > 1:
            changes.append((0.04, {"parallelism.tp": split.tp // 2, **_free_dp(job)}))
    return changes


def _legal(job: Job, candidates: Sequence[Overrides]) -> tuple[list[Job], list[Overrides]]:
    """Keep the first few candidates that give a legal job."""
    from projector.projection.evaluate import check_exists

    jobs: list[Job] = []
    changes: list[Overrides] = []
    for change in candidates:
        if len(jobs) == MAX_CANDIDATES:
            break
        if change in changes:
            continue
        try:
            changed = load_job(job, change)
            check_exists(changed)
        except ProjectorError:
            continue
        jobs.append(changed)
        changes.append(change)
    return jobs, changes


def _project(jobs: list[Job]) -> list[PerformanceProjection | None]:
    """Project all at once; where one of them turns out illegal, one by one without it."""
    try:
        return [*project_jobs(jobs)]
    except ProjectorError:
        return [_project_alone(job) for job in jobs]


def _project_alone(job: Job) -> PerformanceProjection | None:
    try:
        return project_jobs([job])[0]
    except ProjectorError:
        return None
