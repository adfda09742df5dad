"""What to change next: candidates drawn from a result, each projected before it is named."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.projection.api import project_jobs
from projector.projection.memory import MemoryProjection
from projector.projection.performance import PerformanceProjection

MAX_CANDIDATES = 6
"""Jobs projected to find the suggestions of one report."""

MAX_SHOWN = 4

WORTH_NAMING = 0.01
"""Least gain in tokens per second, or of memory that is missing, for a suggestion."""

Overrides = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that was projected and helps."""

    overrides: dict[str, Any]
    speed: float
    """Change of tokens per second and device, as a fraction."""
    peak_bytes: float
    """Change of the peak."""
    fits: bool

    @property
    def change(self) -> str:
        """The change as it is written on the command line."""
        return " ".join(
            f"{key}={_text(value)}" for key, value in self.overrides.items() if value is not None
        )

    @property
    def changes_training(self) -> bool:
        """Whether the job would also train differently, not only elsewhere or in other order."""
        return bool(self.overrides.keys() & _TRAINS_DIFFERENTLY)


_TRAINS_DIFFERENTLY = {"training.global_batch_size", "training.grad_reduce_dtype"}


def suggest(result: PerformanceProjection) -> list[Suggestion]:
    """Return up to four changes that make the job fit, or faster while it still fits.

    Every candidate is projected; those that are illegal or do not help are left out.
    """
    jobs, changes = _legal(result.job, _candidates(result))
    if not jobs:
        return []
    found = [
        Suggestion(
            overrides=dict(change),
            speed=other.tokens_per_s_per_gpu / result.tokens_per_s_per_gpu - 1.0,
            peak_bytes=other.memory.peak_bytes - result.memory.peak_bytes,
            fits=other.memory.fits,
        )
        for change, other in zip(changes, _project(jobs), strict=True)
        if other is not None
    ]
    if result.memory.fits:
        helpful = [each for each in found if each.fits and each.speed >= WORTH_NAMING]
        helpful.sort(key=lambda each: -each.speed)
    else:
        missing = -result.memory.headroom_bytes
        helpful = [each for each in found if -each.peak_bytes >= WORTH_NAMING * missing]
        if any(each.fits for each in helpful):
            helpful = [each for each in helpful if each.fits]
        helpful.sort(
            key=lambda each: (not each.fits, -each.speed if each.fits else each.peak_bytes)
        )
    return helpful[:MAX_SHOWN]


def smaller(memory: MemoryProjection) -> list[Overrides]:
    """Return changes that may lower the peak, the least intrusive first."""
    job = memory.job
    split, training = job.parallelism, job.training
    stage = memory.stages[memory.peak_stage]
    activations = stage.activations_bytes + stage.transient_bytes
    states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    free_dp = {"parallelism.dp": None} if split.dp is not None else {}
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
    """Return changes that may shorten the step, those against the largest losses first."""
    job = result.job
    split, training = job.parallelism, job.training
    free_dp = {"parallelism.dp": None} if split.dp is not None else {}
    share = {name: value / result.iteration_time_s for name, value in result.breakdown_s.items()}
    roomy = result.memory.headroom_bytes > 0.25 * result.memory.usable_bytes
    usual_schedule = {} if training.schedule == "auto" else {"training.schedule": "auto"}
    ranked: list[tuple[float, Overrides]] = []

    def offer(worth: float, **overrides: Any) -> None:
        ranked.append((worth, {key.replace("__", "."): value for key, value in overrides.items()}))

    if training.recompute.granularity != "none":
        offer(0.3, training__recompute="none")
        if training.recompute.granularity == "full":
            offer(0.2, training__recompute="selective")
    if share["pp_bubble"] > 0.03 and split.pp > 1:
        bubble = share["pp_bubble"]
        layers = job.model.num_layers // split.pp
        vpp = next((v for v in range(split.vpp + 1, layers + 1) if layers % v == 0), None)
        if vpp is not None:
            ranked.append((bubble, {"parallelism.vpp": vpp, **usual_schedule}))
        fewer: Overrides = {"parallelism.pp": split.pp // 2, **free_dp}
        if split.pp == 2:
            single = {"parallelism.vpp": 1} if split.vpp > 1 else {}
            fewer = {**fewer, **single, **usual_schedule}
        ranked.append((bubble * 0.9, fewer))
        offer(bubble * 0.8, training__global_batch_size=training.global_batch_size * 2)
        if training.micro_batch_size > 1 and training.micro_batch_size % 2 == 0:
            offer(bubble * 0.5, training__micro_batch_size=training.micro_batch_size // 2)
    if share["tp_comm"] > 0.03:
        ranked.append((share["tp_comm"], {"parallelism.tp": split.tp // 2, **free_dp}))
        if not split.tp_comm_overlap:
            offer(share["tp_comm"] * 0.9, parallelism__tp_comm_overlap=True)
    if share["ep_comm"] > 0.03:
        if not split.overlap_moe_expert_parallel_comm:
            offer(share["ep_comm"] * 0.9, parallelism__overlap_moe_expert_parallel_comm=True)
        if training.moe.dispatcher != "deepep":
            offer(share["ep_comm"] * 0.6, training__moe__dispatcher="deepep")
        if split.ep > 1:
            offer(share["ep_comm"] * 0.5, parallelism__ep=split.ep // 2)
    if share["cp_comm"] > 0.03 and split.cp > 1:
        ranked.append((share["cp_comm"], {"parallelism.cp": split.cp // 2, **free_dp}))
    if share["launch"] > 0.02:
        if not training.cuda_graphs:
            offer(share["launch"], training__cuda_graphs=True)
        elif not training.torch_compile:
            offer(share["launch"] * 0.5, training__torch_compile=True)
    if share["dp_comm"] > 0.02:
        if not (split.overlap_grad_reduce and split.overlap_param_gather):
            offer(
                share["dp_comm"],
                parallelism__overlap_grad_reduce=True,
                parallelism__overlap_param_gather=True,
            )
        if training.reduce_dtype == "fp32":
            offer(share["dp_comm"] * 0.5, training__grad_reduce_dtype="bf16")
        offer(share["dp_comm"] * 0.4, training__global_batch_size=training.global_batch_size * 2)
    if split.sharding_stage == 3 and not split.fsdp and roomy:
        offer(share["dp_comm"], parallelism__zero_stage=1)
    if roomy:
        offer(0.05, training__micro_batch_size=training.micro_batch_size * 2)
        if split.tp > 1:
            ranked.append((0.04, {"parallelism.tp": split.tp // 2, **free_dp}))
    if not training.torch_compile and share["compute_other"] > 0.1:
        offer(share["compute_other"] * 0.3, training__torch_compile=True)
    ranked.sort(key=lambda entry: -entry[0])
    return [change for _, change in ranked]


def _candidates(result: PerformanceProjection) -> list[Overrides]:
    return faster(result) if result.memory.fits else smaller(result.memory)


def _legal(job: Job, candidates: list[Overrides]) -> tuple[list[Job], list[Overrides]]:
    """Keep the first few candidates that describe a job which can exist."""
    from projector.lower.jobs import lower_jobs
    from projector.lower.workloads import layout_of
    from projector.schedule import registry

    jobs: list[Job] = []
    changes: list[Overrides] = []
    for change in candidates:
        if len(jobs) == MAX_CANDIDATES:
            break
        if change in changes:
            continue
        try:
            changed = load_job(job, change)
            columns = lower_jobs([changed])
            layout_of(changed)
            split = changed.parallelism
            registry.check(
                changed.training.schedule, split.pp, split.vpp, int(columns.microbatches[0])
            )
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


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
