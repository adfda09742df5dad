"""Every legal way to split one job over a cluster, ranked by speed."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from projector.config.formats.emit.emitted import check_model
from projector.config.job import Job
from projector.config.load import load_job
from projector.config.space import flat_fields
from projector.projection.api import project_jobs
from projector.schedule import registry
from projector.searches import limits as bounds
from projector.searches import ranking
from projector.searches.candidates import candidates
from projector.searches.exploration import explore
from projector.searches.result import SearchResult, closest, least_nodes


def search(
    job: Job | Mapping[str, Any] | str,
    *,
    nodes: int | None = None,
    top: int = 20,
    limits: bounds.Limits | None = None,
    allow_risk: bool = False,
    objective: str = ranking.TIME,
    most_seconds: float | None = None,
    progress: Callable[[bounds.Progress], None] | None = None,
    keep_interrupted: bool = False,
) -> SearchResult:
    """Evaluate every legal configuration of a job and rank them.

    Model, cluster, sequence length and global batch stay. Tried are all tensor, pipeline, virtual
    pipeline, context and expert degrees that divide what they must, micro-batch sizes, recompute
    and ZeRO stages of the limits, and their schedules. Fields that the limits fix keep the value
    of the job.

    Orders that are planned for each configuration take milliseconds each. They are planned the most
    promising first, until it is proven that no other one can be among the best ``top``, or need
    less memory than all that are as good.

    Args:
        job (Job, mapping or str): Anything that `load_job` reads.
        nodes (int, optional): Replaces ``cluster.nodes``.
        top (int): Configurations that are projected in full.
        limits (Limits, optional): Limits of the configurations.
        allow_risk (bool): Whether configurations are ranked that are at risk: their peak fits, but
            not the upper end of the band of memory. ``limits.allow_risk`` says the same.
        objective (str): What is made small: ``time`` of a step, or ``cost``, ``energy`` or ``co2``
            of the run, whose tokens the job states then; ``cost`` needs a price.
        most_seconds (float, optional): Wall clock after which nothing more is begun. The result
            says what was left out.
        progress (callable, optional): Called with a `Progress` now and then; the first one of
            orders comes before they are planned.
        keep_interrupted (bool): Whether an interrupt ends the search with what was found, instead
            of being raised.

    Raises:
        ConfigError: If the job cannot be read, or an argument is out of range.
    """
    watch = bounds.Watch(bounds.check_seconds(most_seconds), progress)
    bounds.check_top(top)
    limits = limits or bounds.Limits()
    if allow_risk:
        limits = replace(limits, allow_risk=True)
    limits.check()
    cleared: dict[str, Any] = {} if nodes is None else {"cluster.nodes": nodes}
    base = load_job(job, cleared)
    stated = flat_fields(base)
    cleared |= {name: None for name in bounds.PLACED if stated.get(name) is not None}
    base = load_job(base, dict.fromkeys(bounds.PLACED))
    ranking.check_objective(base, objective)
    check_model(base, limits.formats)
    if "training.schedule" in limits.fixed:
        registry.resolve(base.training.schedule)
    result = _search(
        base, ranking.Goal(limits, objective, top), watch, keep_interrupted=keep_interrupted
    )
    return replace(result, cleared=cleared, seconds=watch.seconds)


def _search(
    base: Job, goal: ranking.Goal, watch: bounds.Watch, *, keep_interrupted: bool
) -> SearchResult:
    """Evaluate and rank the layouts of a job that states none; ``seconds`` are left open."""
    limits, told = goal.limits, watch.quiet()
    explored = explore(candidates(base, limits), goal, watch, keep_interrupted=keep_interrupted)
    evaluated, stopped = explored.configurations, explored.stopped
    enough = ranking.roomy(evaluated, limits)
    best_first = tuple(ranking.ranked(evaluated, limits))
    best = project_jobs([load_job(base, each.overrides) for each in best_first[: goal.top]])
    least = None
    if not best_first and not stopped:
        least = least_nodes(base, lambda job: find_fitting(job, limits, told))
        stopped = bounds.OUT_OF_TIME if told.is_over else ""
    return SearchResult(
        job=base,
        limits=limits,
        best=tuple(best),
        pareto=tuple(ranking.front(best_first)),
        configurations=best_first,
        evaluated=len(evaluated),
        at_risk=len(enough) - len(ranking.fitting(enough)),
        too_large=len(evaluated) - len(enough),
        illegal=dict(sorted(explored.illegal.items())),
        seconds=0.0,
        objective=goal.objective,
        closest=None if best_first else closest(evaluated),
        least=least,
        planned=explored.planned,
        ruled_out=explored.ruled_out,
        left_out=explored.left_out,
        left_out_s=explored.left_out_s,
        stopped=stopped,
        estimated_s=watch.estimated_s,
    )


def find_fitting(
    job: Job, limits: bounds.Limits, watch: bounds.Watch | None = None
) -> ranking.Evaluated:
    """Rank by speed those layouts of a job within limits that need little memory.

    They have the smallest micro-batch and the most recomputation that the limits allow. Where the
    job lays layers out is not kept.
    """
    small = replace(
        limits,
        micro_batch_sizes=(min(limits.micro_batch_sizes),),
        recompute=(max(limits.recompute, key=bounds.RECOMPUTE.index),),
    )
    return _fastest(job, small, watch or bounds.Watch())


def _fastest(job: Job, limits: bounds.Limits, watch: bounds.Watch) -> ranking.Evaluated:
    """Rank the layouts of a job by speed; of planned orders, only what may be the first."""
    explored = explore(candidates(job, limits), ranking.Goal(limits, ranking.TIME, 1), watch)
    return ranking.ranked(explored.configurations, limits)


def fitting_overrides(job: Job) -> dict[str, Any] | None:
    """Return what makes a job fit: a layout on the hosts it has, else on the least that would do.

    The layout is the fastest with micro-batches of one sequence; model, sequence and global batch
    stay. What the job has already is left out. None means that no number of hosts that was tried
    would do.
    """
    freed = {field: None for field in bounds.PLACED if _field(job, field) is not None}
    base = load_job(job, freed)
    limits = bounds.Limits(micro_batch_sizes=bounds.MICRO_BATCHES[:1])
    found = _fastest(base, limits, bounds.Watch())
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
