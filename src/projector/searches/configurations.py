"""Every legal way to split one job over a cluster, ranked by what it reaches."""

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.config.job import Job
from projector.config.load import Variants, load_job
from projector.errors import ConfigError, ProjectorError
from projector.lower.batch import JobBatch
from projector.lower.hardware import domain_gpus
from projector.lower.jobs import divisors
from projector.projection.api import project_jobs
from projector.projection.evaluate import Evaluation, evaluate_possible, find_legal
from projector.projection.performance import PerformanceProjection
from projector.schedule import registry
from projector.units import GIB, to_gib, to_ms

PLACED = (
    "parallelism.dp",
    "parallelism.decoder_first_pipeline_num_layers",
    "parallelism.decoder_last_pipeline_num_layers",
    "parallelism.pipeline_model_parallel_layout",
)
"""Fields that belong to one configuration; the search starts without them."""

BATCH = 8192
"""Configurations that are evaluated together."""

RECOMPUTE = ("none", "selective", "full")
MICRO_BATCHES = (1, 2, 4, 8, 16)
ZERO_STAGES = (1, 3)
MOST_CHUNKS = 8
LEAST_TOKENS_OF_A_CP_RANK = 2048
"""Sequences are not cut into shorter pieces; below, context parallelism only adds traffic."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a search may not do."""

    headroom_gib: float = 0.0
    """Memory that must stay free on every rank."""
    tp_inside_node: bool = True
    """Keep tensor parallelism within one scale-up domain."""
    recompute: tuple[str, ...] = RECOMPUTE
    micro_batch_sizes: tuple[int, ...] = MICRO_BATCHES
    zero_stages: tuple[int, ...] = ZERO_STAGES
    schedules: tuple[str, ...] = ("auto",)

    def check(self) -> None:
        """Raise `ConfigError` where a limit leaves nothing to try, or asks for what is unknown."""
        for name, known in (("recompute", RECOMPUTE), ("schedules", ("auto", *registry.SCHEDULES))):
            for value in getattr(self, name):
                if value not in known:
                    msg = f"{name} must be among {', '.join(known)}, got {value!r}"
                    raise ConfigError(msg, key=name, value=value, allowed=list(known))
        for name in ("recompute", "micro_batch_sizes", "zero_stages", "schedules"):
            if not getattr(self, name):
                msg = f"{name} must have at least one value"
                raise ConfigError(msg, key=name, value=[], allowed="at least one value")
        # NaN compares false, so it is refused as well.
        if not self.headroom_gib >= 0.0:
            msg = f"headroom_gib is at least 0, got {self.headroom_gib!r}"
            raise ConfigError(msg, key="headroom_gib", value=str(self.headroom_gib), allowed=">= 0")


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration that was evaluated."""

    overrides: Mapping[str, Any]
    """Dotted fields that differ from the job, and their values."""
    iteration_time_s: float
    peak_bytes: float
    headroom_bytes: float

    @property
    def fits(self) -> bool:
        """Whether the device has room for it, limits of the search aside."""
        return self.headroom_bytes >= 0.0


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """Configurations of a job, the fastest that keeps to the limits first."""

    job: Job
    limits: Limits
    best: tuple[PerformanceProjection, ...]
    """The fastest ones in full."""
    pareto: tuple[Configuration, ...]
    """Those that no other beats in both speed and memory, the fastest first."""
    configurations: tuple[Configuration, ...]
    """All that keep to the limits, ranked."""
    evaluated: int
    too_large: int
    """Configurations that are legal and leave too little memory."""
    illegal: Mapping[str, int]
    """Configurations that cannot exist, counted by the field that says so."""
    seconds: float

    def __repr__(self) -> str:
        return (
            f"SearchResult({len(self.configurations):,} of {self.evaluated:,} legal "
            f"configurations fit; the fastest: {self.best[0] if self.best else None!r})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector search --json`` prints, without its envelope."""
        found = self.configurations
        return {
            "evaluated": self.evaluated,
            "fitting": len(found),
            "too_large": self.too_large,
            "infeasible": dict(self.illegal),
            "seconds": self.seconds,
            "best": [
                {"rank": place + 1, **_plain(found[place], self.job), **_figures(step)}
                for place, step in enumerate(self.best)
            ],
            "pareto": [_plain(each, self.job) for each in self.pareto],
        }


def search(
    job: Job | Mapping[str, Any] | str,
    *,
    nodes: int | None = None,
    top: int = 20,
    limits: Limits | None = None,
) -> SearchResult:
    """Evaluate every legal configuration of a job and rank them.

    Model, cluster, sequence length and global batch stay. Tried are all tensor, pipeline, virtual
    pipeline, context and expert degrees that divide what they must, micro-batch sizes, recompute
    and ZeRO stages of the limits, and their schedules.

    Parameters
    ----------
    job : Job, mapping or str
        Anything that `load_job` reads.
    nodes : int, optional
        Replaces ``cluster.nodes``.
    top : int
        Configurations that are projected in full.
    limits : Limits, optional
        What the configurations must keep to.

    Raises
    ------
    ConfigError
        If the job cannot be read, or an argument is out of range.
    """
    began = time.perf_counter()
    _check_top(top)
    limits = limits or Limits()
    limits.check()
    base = load_job(job, {} if nodes is None else {"cluster.nodes": nodes})
    base = load_job(base, dict.fromkeys(PLACED))
    illegal: Counter[str] = Counter()
    found = _evaluate(base, _candidates(base, limits), illegal)
    kept = [each for each in found if each.headroom_bytes >= limits.headroom_gib * GIB]
    # Of equally fast ones what leaves more memory, then the order in which they were tried.
    kept.sort(key=lambda each: (each.iteration_time_s, each.peak_bytes))
    best = project_jobs([load_job(base, each.overrides) for each in kept[:top]])
    return SearchResult(
        job=base,
        limits=limits,
        best=tuple(best),
        pareto=tuple(_pareto(kept)),
        configurations=tuple(kept),
        evaluated=len(found),
        too_large=len(found) - len(kept),
        illegal=dict(sorted(illegal.items())),
        seconds=time.perf_counter() - began,
    )


def _check_top(top: Any) -> None:
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        msg = f"top must be an integer of at least 1, got {top!r}"
        raise ConfigError(msg, key="top", value=top, allowed=">= 1")


def _candidates(job: Job, limits: Limits) -> Iterator[dict[str, Any]]:
    """Propose configurations; what their degrees must divide is looked at here."""
    model, gpus, seq = job.model, job.cluster.gpus, job.training.seq_length
    domain = domain_gpus(job.cluster)
    most_tp = domain if limits.tp_inside_node else gpus
    experts = model.moe.num_experts if model.moe else 1
    for tp in divisors(model.num_attention_heads, most_tp):
        if gpus % tp:
            continue
        for pp, cp in itertools.product(divisors(gpus // tp, model.num_layers), divisors(seq)):
            if gpus % (tp * pp * cp) or (cp > 1 and seq // cp < LEAST_TOKENS_OF_A_CP_RANK):
                continue
            for vpp, ep in itertools.product(
                _chunks(_places(job), pp), divisors(experts, gpus // pp)
            ):
                for schedule, micro_batch, recompute, zero in itertools.product(
                    limits.schedules, limits.micro_batch_sizes, limits.recompute, limits.zero_stages
                ):
                    yield {
                        "parallelism.tp": tp,
                        "parallelism.pp": pp,
                        "parallelism.vpp": vpp,
                        "parallelism.cp": cp,
                        "parallelism.ep": ep,
                        "parallelism.etp": 1 if model.moe else None,
                        "parallelism.zero_stage": zero,
                        "parallelism.fsdp": False,
                        "training.micro_batch_size": micro_batch,
                        "training.recompute": recompute,
                        "training.schedule": schedule,
                    }


def _places(job: Job) -> int:
    """Return the layers that stages share, with the embedding and the loss where they count."""
    split = job.parallelism
    ends = (split.account_for_embedding_in_pipeline_split, split.account_for_loss_in_pipeline_split)
    return job.model.num_layers + sum(ends)


def _chunks(places: int, pp: int) -> list[int]:
    """Return the chunks of a rank that its layers divide into."""
    if pp == 1:
        return [1]
    return [1, *(v for v in range(2, MOST_CHUNKS + 1) if places % (pp * v) == 0)]


def _evaluate(
    base: Job, candidates: Iterable[dict[str, Any]], illegal: Counter[str]
) -> list[Configuration]:
    """Evaluate the candidates that can exist, in their order; the others are counted by key."""
    chosen, jobs = [], []
    variants = Variants(base)
    for overrides in candidates:
        try:
            jobs.append(variants.job(overrides))
            chosen.append(overrides)
        except ProjectorError as error:
            illegal[error.key or "job"] += 1
    if not jobs:
        return []
    batch = JobBatch.of(jobs)
    found: list[Configuration] = []
    legal = find_legal(batch)
    for number in legal.refused[legal.refused >= 0].tolist():
        illegal[legal.errors[number].key or "job"] += 1
    kept = np.flatnonzero(legal.refused < 0)
    for begin in range(0, len(kept), BATCH):
        part = kept[begin : begin + BATCH]
        for rows, evaluation in evaluate_possible(
            batch.take(part), legal.take(part), lambda error: illegal.update([error.key or "job"])
        ):
            found += _configurations([chosen[row] for row in part[rows].tolist()], evaluation)
    return found


def _configurations(
    chosen: list[dict[str, Any]], evaluation: Evaluation
) -> Iterator[Configuration]:
    steps = evaluation.steps
    headroom = evaluation.batch.cluster.usable_bytes - steps.peak_bytes
    columns = (steps.iteration_s.tolist(), steps.peak_bytes.tolist(), headroom.tolist())
    return map(Configuration, chosen, *columns)


def _pareto(ranked: list[Configuration]) -> Iterator[Configuration]:
    """Return what no faster configuration beats in memory; ``ranked`` is by time."""
    least = float("inf")
    for each in ranked:
        if each.peak_bytes < least:
            least = each.peak_bytes
            yield each


def _plain(each: Configuration, job: Job) -> dict[str, Any]:
    tokens = job.training.global_batch_size * job.training.seq_length
    return {
        "overrides": dict(each.overrides),
        "iteration_time_ms": to_ms(each.iteration_time_s),
        "tokens_per_s_per_gpu": tokens / each.iteration_time_s / job.cluster.gpus,
        "peak_gib": to_gib(each.peak_bytes),
        "headroom_gib": to_gib(each.headroom_bytes),
    }


def _figures(step: PerformanceProjection) -> dict[str, Any]:
    return {
        "parallelism": step.degrees,
        "schedule": step.schedule,
        "mfu": step.mfu,
        "bubble_fraction": step.bubble_fraction,
        "bound": step.bound,
    }
