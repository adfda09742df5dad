"""Every legal way to split one job over a cluster, ranked by speed."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from projector.arrays import Ints
from projector.config.job import Job
from projector.config.load import load_job
from projector.config.space import flat_fields
from projector.projection.api import project_jobs
from projector.projection.bands import uncertainty
from projector.projection.evaluate import Evaluation, evaluate_possible, find_legal
from projector.projection.performance import PerformanceProjection
from projector.projection.results import Results
from projector.projection.verdict import FITS
from projector.schedule import registry
from projector.searches.candidates import Candidates, candidates
from projector.searches.checks import check_top
from projector.searches.configuration import Configuration
from projector.searches.groups import noise_groups, pair_noise
from projector.searches.least import Least, closest, least_nodes
from projector.searches.limits import MICRO_BATCHES, PLACED, RECOMPUTE, Limits
from projector.searches.objectives import KEYS, TIME, check_objective, objective_values
from projector.units import GIB, to_gib, to_ms

BATCH = 8192
"""Configurations that are evaluated together."""


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """Configurations of a job within the limits, the best by the objective first."""

    job: Job
    limits: Limits
    best: tuple[PerformanceProjection, ...]
    """The best ones in full."""
    pareto: tuple[Configuration, ...]
    """Configurations that no other beats in both the objective and memory, the best first."""
    configurations: tuple[Configuration, ...]
    """All configurations within the limits, ranked."""
    evaluated: int
    at_risk: int
    """Configurations whose peak leaves enough memory, but not the upper end of its band."""
    too_large: int
    """Configurations that are legal and leave too little memory."""
    illegal: Mapping[str, int]
    """Illegal configurations, counted by the field that refuses them."""
    seconds: float
    objective: str = TIME
    """What is ranked by: ``time``, ``cost``, ``energy`` or ``co2``."""
    closest: Configuration | None = None
    """Where nothing is ranked: the configuration that needs least memory."""
    least: Least | None = None
    """Where nothing is ranked: the least hosts on which something is, if any of those tried."""
    cleared: Mapping[str, Any] = field(default_factory=dict)
    """Dotted fields in which every configuration differs from the job that was given: the number
    of nodes that was asked for, and settings of its own layout that would not suit another."""

    def overrides(self, configuration: Configuration) -> dict[str, Any]:
        """Return all fields that turn the job that was given into a configuration."""
        return {**self.cleared, **configuration.overrides}

    @property
    def uncertainty(self) -> dict[str, Any]:
        """Band of the best one's step, or of the job's where nothing is ranked."""
        return self.best[0].uncertainty if self.best else uncertainty(self.job, "time")

    @property
    def fitting(self) -> int:
        """Configurations that fit with the band of their memory."""
        return self.evaluated - self.at_risk - self.too_large

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Group of each ranked configuration: those of one cannot be told apart; 1 the best.

        Cost and energy of a run are taken to be as uncertain as its time.
        """
        values = np.array([each.value for each in self.configurations], np.float64)
        settings = [each.overrides for each in self.configurations]
        return tuple(noise_groups(values, settings, pair_noise).tolist())

    @cached_property
    def speed_front(self) -> tuple[Configuration, ...]:
        """Configurations that no other beats in both speed and memory, the fastest first."""
        if self.objective == TIME:
            return self.pareto
        by_time = sorted(self.configurations, key=lambda c: (c.iteration_time_s, c.peak_bytes))
        return tuple(_pareto(by_time))

    def __repr__(self) -> str:
        return (
            f"SearchResult({self.fitting:,} of {self.evaluated:,} legal configurations fit, "
            f"{self.at_risk:,} are at risk; the best: {self.best[0] if self.best else None!r})"
        )

    def _ways_out(self) -> dict[str, Any]:
        """Return the keys of JSON that stand where nothing is ranked."""
        closest, least = self.closest, self.least
        return {
            "closest": None if closest is None else _plain(closest, self.job, self.objective),
            "least_nodes": None if least is None else least.nodes,
            "least_gpus": None if least is None else least.gpus,
            "least_overrides": None if least is None else self.least_overrides,
        }

    @property
    def least_overrides(self) -> dict[str, Any]:
        """What turns the job into the one that fits on the least hosts."""
        assert self.least is not None, "nothing fits on any number of hosts that was tried"
        return self.overrides(self.least.configuration) | {"cluster.nodes": self.least.nodes}

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector search --json`` prints, without its envelope."""
        configurations, groups = self.configurations, self.groups
        group_of = {id(each): group for each, group in zip(configurations, groups, strict=True)}
        return {
            **({} if self.objective == TIME else {"objective": self.objective}),
            "evaluated": self.evaluated,
            "fitting": self.fitting,
            "at_risk": self.at_risk,
            "too_large": self.too_large,
            "within_noise": groups.count(1),
            "infeasible": dict(self.illegal),
            "seconds": self.seconds,
            **({} if self.configurations else self._ways_out()),
            "best": [
                {
                    "rank": index + 1,
                    "group": groups[index],
                    **_plain(configurations[index], self.job, self.objective),
                    **_figures(step),
                }
                for index, step in enumerate(self.best)
            ],
            "pareto": [
                {"group": group_of[id(each)], **_plain(each, self.job, self.objective)}
                for each in self.pareto
            ],
        }


def search(
    job: Job | Mapping[str, Any] | str,
    *,
    nodes: int | None = None,
    top: int = 20,
    limits: Limits | None = None,
    allow_risk: bool = False,
    objective: str = TIME,
) -> SearchResult:
    """Evaluate every legal configuration of a job and rank them.

    Model, cluster, sequence length and global batch stay. Tried are all tensor, pipeline, virtual
    pipeline, context and expert degrees that divide what they must, micro-batch sizes, recompute
    and ZeRO stages of the limits, and their schedules. Fields that the limits fix keep the value
    of the job.

    Parameters
    ----------
    job : Job, mapping or str
        Anything that `load_job` reads.
    nodes : int, optional
        Replaces ``cluster.nodes``.
    top : int
        Configurations that are projected in full.
    limits : Limits, optional
        Limits of the configurations.
    allow_risk : bool
        Whether configurations are ranked that are at risk: their peak fits, but not the upper end
        of the band of memory. ``limits.allow_risk`` says the same.
    objective : str
        What is made small: ``time`` of a step, or ``cost``, ``energy`` or ``co2`` of the run, whose
        tokens the job states then; ``cost`` needs a price.

    Raises
    ------
    ConfigError
        If the job cannot be read, or an argument is out of range.
    """
    began = time.perf_counter()
    check_top(top)
    limits = limits or Limits()
    if allow_risk:
        limits = replace(limits, allow_risk=True)
    limits.check()
    cleared: dict[str, Any] = {} if nodes is None else {"cluster.nodes": nodes}
    base = load_job(job, cleared)
    stated = flat_fields(base)
    cleared |= {name: None for name in PLACED if stated.get(name) is not None}
    base = load_job(base, dict.fromkeys(PLACED))
    check_objective(base, objective)
    if "training.schedule" in limits.fixed:
        registry.resolve(base.training.schedule)
    result = _search(base, limits, top, objective)
    return replace(result, cleared=cleared, seconds=time.perf_counter() - began)


def _search(base: Job, limits: Limits, top: int, objective: str) -> SearchResult:
    """Evaluate and rank the layouts of a job that states none; ``seconds`` are left open."""
    illegal: Counter[str] = Counter()
    evaluated = _evaluate(candidates(base, limits), illegal, objective)
    roomy = _roomy(evaluated, limits)
    fitting = [each for each in roomy if each.verdict == FITS]
    ranked = _ranked(evaluated, limits)
    best = project_jobs([load_job(base, each.overrides) for each in ranked[:top]])
    return SearchResult(
        job=base,
        limits=limits,
        best=tuple(best),
        pareto=tuple(_pareto(ranked)),
        configurations=tuple(ranked),
        evaluated=len(evaluated),
        at_risk=len(roomy) - len(fitting),
        too_large=len(evaluated) - len(roomy),
        illegal=dict(sorted(illegal.items())),
        seconds=0.0,
        objective=objective,
        closest=None if ranked else closest(evaluated),
        least=None if ranked else least_nodes(base, lambda job: find_fitting(job, limits)),
    )


def find_fitting(job: Job, limits: Limits) -> list[Configuration]:
    """Rank by speed those layouts of a job within limits that need little memory.

    They have the smallest micro-batch and the most recomputation that the limits allow.

    Parameters
    ----------
    job : Job
        The job; where it lays layers out is not kept.
    limits : Limits
        Limits of the configurations.
    """
    small = replace(
        limits,
        micro_batch_sizes=(min(limits.micro_batch_sizes),),
        recompute=(max(limits.recompute, key=RECOMPUTE.index),),
    )
    return _ranked(_evaluate(candidates(job, small), Counter(), TIME), limits)


def fitting_overrides(job: Job) -> dict[str, Any] | None:
    """Return what makes a job fit: a layout on the hosts it has, else on the least that would do.

    The layout is the fastest with micro-batches of one sequence. What the job has already is left
    out. None means that no number of hosts that was tried would do.

    Parameters
    ----------
    job : Job
        A job that does not fit. Its model, sequence and global batch stay.
    """
    freed = {field: None for field in PLACED if _field(job, field) is not None}
    base = load_job(job, freed)
    limits = Limits(micro_batch_sizes=MICRO_BATCHES[:1])
    found = _ranked(_evaluate(candidates(base, limits), Counter(), TIME), limits)
    overrides: dict[str, Any] = {}
    if found:
        overrides |= found[0].overrides
    else:
        least = least_nodes(base, lambda larger: find_fitting(larger, limits))
        if least is None:
            return None
        overrides |= {"cluster.nodes": least.nodes, **least.configuration.overrides}
    return freed | {
        field: value for field, value in overrides.items() if not _has(job, field, value)
    }


def _field(job: Job, dotted: str) -> Any:
    section, _, name = dotted.partition(".")
    return getattr(getattr(job, section), name)


def _has(job: Job, dotted: str, value: Any) -> bool:
    given = _field(job, dotted)
    return bool(given == value or getattr(given, "granularity", None) == value)


def _roomy(evaluated: Iterable[Configuration], limits: Limits) -> list[Configuration]:
    return [each for each in evaluated if each.headroom_bytes >= limits.headroom_gib * GIB]


def _ranked(evaluated: Iterable[Configuration], limits: Limits) -> list[Configuration]:
    """Return the configurations within the limits, the best first."""
    roomy = _roomy(evaluated, limits)
    ranked = roomy if limits.allow_risk else [each for each in roomy if each.verdict == FITS]
    # Runs that never end come into no ranking, unless none ends: then the first says why.
    ranked = [each for each in ranked if np.isfinite(each.value)] or ranked
    # Equally good ones are sorted by memory, then by the order in which they were tried.
    return sorted(ranked, key=lambda each: (each.value, each.peak_bytes))


def _evaluate(proposed: Candidates, illegal: Counter[str], objective: str) -> list[Configuration]:
    """Evaluate the candidates that can exist, in their order; the others are counted by key."""
    illegal += proposed.illegal
    batch = proposed.batch
    configurations: list[Configuration] = []
    legal = find_legal(batch)
    refused = np.bincount(legal.refused + 1, minlength=len(legal.errors) + 1)[1:]
    for error, count in zip(legal.errors, refused.tolist(), strict=True):
        if count:
            illegal[error.key or "job"] += count
    legal_rows = np.flatnonzero(legal.refused < 0)
    for begin in range(0, len(legal_rows), BATCH):
        part = legal_rows[begin : begin + BATCH]
        for rows, evaluation in evaluate_possible(
            batch.take(part), legal.take(part), lambda error: illegal.update([error.key or "job"])
        ):
            configurations += _configurations(proposed, part[rows], evaluation, objective)
    return configurations


def _configurations(
    proposed: Candidates, rows: Ints, evaluation: Evaluation, objective: str
) -> Iterator[Configuration]:
    steps, results = evaluation.steps, Results(evaluation)
    columns = (
        steps.iteration_s,
        steps.peak_bytes,
        results.headroom_bytes,
        results.peak_low_bytes,
        results.peak_high_bytes,
    )
    verdicts = results.verdict.to_list()
    values = objective_values(results, objective).tolist()
    chosen = map(proposed.overrides, rows.tolist())
    return map(Configuration, chosen, *(column.tolist() for column in columns), verdicts, values)


def _pareto(ranked: list[Configuration]) -> Iterator[Configuration]:
    """Yield configurations that no better one beats in memory; ``ranked`` is by the objective."""
    least_bytes = float("inf")
    for configuration in ranked:
        if configuration.peak_bytes < least_bytes:
            least_bytes = configuration.peak_bytes
            yield configuration


def _plain(configuration: Configuration, job: Job, objective: str) -> dict[str, Any]:
    key = KEYS.get(objective)
    tokens = job.training.global_batch_size * job.training.seq_length
    return {
        "overrides": dict(configuration.overrides),
        "iteration_time_ms": to_ms(configuration.iteration_time_s),
        "tokens_per_s_per_gpu": tokens / configuration.iteration_time_s / job.cluster.gpus,
        "peak_gib": to_gib(configuration.peak_bytes),
        "peak_gib_low": to_gib(configuration.peak_low_bytes),
        "peak_gib_high": to_gib(configuration.peak_high_bytes),
        "headroom_gib": to_gib(configuration.headroom_bytes),
        "verdict": configuration.verdict,
        **({} if key is None else {key: configuration.value}),
    }


def _figures(step: PerformanceProjection) -> dict[str, Any]:
    return {
        "parallelism": step.degrees,
        "schedule": step.schedule,
        "mfu": step.mfu,
        "bubble_fraction": step.bubble_fraction,
        "bound": step.bound,
        **({} if step.run is None else {"run": step.run.to_dict()}),
    }
