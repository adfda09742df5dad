"""Projecting jobs: one, many, or one under every schedule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

from projector.config.device import refuse_first_order
from projector.config.first_order import TILES, by_closed_forms
from projector.config.first_order_job import FirstOrderJob, load_first_order_job
from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError, ProjectorError
from projector.first_order import api as first_order
from projector.first_order.results import FirstOrderMemory, FirstOrderPerformance
from projector.projection.evaluate import check_placed, evaluate
from projector.projection.job_pipeline import under_schedule
from projector.projection.memory import MemoryProjection, memory_projection
from projector.projection.performance import PerformanceProjection, performance_projection
from projector.projection.results import Results
from projector.schedule.registry import SCHEDULES, refuse_on_request

JobLike = Job | Mapping[str, Any] | str | Path

FirstOrder = Literal["first-order"]


@overload
def project_memory(job: JobLike, *, fidelity: Literal["tiles"] = "tiles") -> MemoryProjection: ...


@overload
def project_memory(job: JobLike | FirstOrderJob, *, fidelity: FirstOrder) -> FirstOrderMemory: ...


def project_memory(
    job: JobLike | FirstOrderJob, *, fidelity: str = TILES
) -> MemoryProjection | FirstOrderMemory:
    """Project the memory of every pipeline stage.

    Parameters
    ----------
    job : Job, mapping, str or Path
        A job, or anything that `load_job` reads.
    fidelity : str
        ``tiles``, or ``first-order`` for the closed forms of ``docs/first_order.md``, which also
        take devices without compute units.

    Raises
    ------
    ProjectorError
        If the job cannot exist. A job that does not fit is projected all the same.
    """
    if by_closed_forms(fidelity):
        return first_order.project_memory(load_first_order_job(job))
    return memory_projection(Results(evaluate([load_job(_tile_job(job))])), 0)


@overload
def project_performance(
    job: JobLike,
    *,
    target_nodes: int | None = None,
    schedule: str | None = None,
    fidelity: Literal["tiles"] = "tiles",
) -> PerformanceProjection: ...


@overload
def project_performance(
    job: JobLike | FirstOrderJob,
    *,
    target_nodes: int | None = None,
    schedule: str | None = None,
    fidelity: FirstOrder,
) -> FirstOrderPerformance: ...


def project_performance(
    job: JobLike | FirstOrderJob,
    *,
    target_nodes: int | None = None,
    schedule: str | None = None,
    fidelity: str = TILES,
) -> PerformanceProjection | FirstOrderPerformance:
    """Project the time of one training step.

    Parameters
    ----------
    job : Job, mapping, str or Path
        A job, or anything that `load_job` reads.
    target_nodes : int, optional
        Replaces ``cluster.nodes``; the global batch stays.
    schedule : str, optional
        Replaces ``training.schedule``. ``all`` compares every schedule that can run, each in the
        chunks (``vpp``) it needs, and returns the fastest that fits, or the fastest of all if none
        fits. ``alternatives`` has the others; ``left_out`` has those that cannot run.
    fidelity : str
        ``tiles``, or ``first-order`` for the closed forms of ``docs/first_order.md``, which know
        the bubble of 1F1B and of its interleaved form alone.

    Raises
    ------
    ProjectorError
        If the job cannot exist. A job that does not fit is projected all the same.
    """
    if by_closed_forms(fidelity):
        overrides = _overrides(target_nodes, schedule)
        return first_order.project_performance([load_first_order_job(job, overrides)])[0]
    tile_job = _tile_job(job)
    return project_jobs([tile_job], target_nodes=target_nodes, schedule=schedule)[0]


def _tile_job(job: JobLike | FirstOrderJob) -> JobLike:
    """Refuse a job whose device has no compute units."""
    if isinstance(job, FirstOrderJob):
        refuse_first_order(job.cluster.device.name, "cluster.device")
    return job


def project_jobs(
    jobs: Sequence[JobLike], *, target_nodes: int | None = None, schedule: str | None = None
) -> list[PerformanceProjection]:
    """Project a batch of jobs; each result equals that of the job alone, bit for bit."""
    if isinstance(jobs, Job | Mapping | str | bytes | Path) or not _iterable(jobs):
        msg = f"jobs are a sequence of jobs, got {jobs!r}"
        raise ConfigError(msg, key="jobs", value=jobs, allowed="a list of jobs")
    overrides = _overrides(target_nodes, schedule)
    loaded = [
        job if isinstance(job, Job) and not overrides else load_job(job, overrides) for job in jobs
    ]
    if not loaded:
        return []
    if schedule == "all":
        return [compare_schedules(job, _project_one) for job in loaded]
    results = Results(evaluate(loaded))
    return [performance_projection(results, row) for row in range(len(loaded))]


def _overrides(target_nodes: int | None, schedule: str | None) -> dict[str, Any]:
    if not isinstance(schedule, str | None):
        msg = f"schedule is a name, got {schedule!r}"
        raise ConfigError(msg, key="training.schedule", value=schedule, allowed="a name")
    overrides: dict[str, Any] = {}
    if target_nodes is not None:
        overrides["cluster.nodes"] = target_nodes
    if schedule not in (None, "all"):
        overrides["training.schedule"] = schedule
    return overrides


def _iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _project_one(job: Job) -> PerformanceProjection:
    return performance_projection(Results(evaluate([job])), 0)


def compare_schedules(
    job: Job, project: Callable[[Job], PerformanceProjection]
) -> PerformanceProjection:
    """Return the fastest schedule that fits, with the others and those that cannot run.

    Parameters
    ----------
    job : Job
    project : callable
        Projects the job under one schedule.
    """
    check_placed(job)  # A job that cannot exist is no fault of the schedules.
    candidates, left_out = [], []
    refusal: ProjectorError | None = None
    for name in SCHEDULES:
        try:
            refuse_on_request(name)
            candidate = project(under_schedule(job, name))
        except ProjectorError as error:
            refusal = refusal or error
            left_out.append((name, error.message))
        else:
            candidates.append(candidate)
    if not candidates:
        assert refusal is not None
        raise refusal
    # Of equally fast ones the first stands for what holds less.
    ranked = sorted(
        candidates,
        key=lambda one: (not one.memory.fits, one.iteration_time_s, one.memory.peak_bytes),
    )
    return replace(ranked[0], alternatives=tuple(ranked[1:]), left_out=tuple(left_out))
