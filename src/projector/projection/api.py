"""Projecting jobs: one, many, or one under every schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError, ProjectorError
from projector.projection.evaluate import check_placed, evaluate
from projector.projection.job_pipeline import under_schedule
from projector.projection.memory import MemoryProjection, memory_projection
from projector.projection.performance import PerformanceProjection, performance_projection
from projector.projection.results import Results
from projector.schedule.registry import SCHEDULES, refuse_on_request

JobLike = Job | Mapping[str, Any] | str | Path


def project_memory(job: JobLike) -> MemoryProjection:
    """Project the memory of every pipeline stage.

    Parameters
    ----------
    job : Job, mapping, str or Path
        A job, or anything that `load_job` reads.

    Raises
    ------
    ProjectorError
        If the job cannot exist. A job that does not fit is projected all the same.
    """
    return memory_projection(Results(evaluate([load_job(job)])), 0)


def project_performance(
    job: JobLike, *, target_nodes: int | None = None, schedule: str | None = None
) -> PerformanceProjection:
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

    Raises
    ------
    ProjectorError
        If the job cannot exist. A job that does not fit is projected all the same.
    """
    return project_jobs([job], target_nodes=target_nodes, schedule=schedule)[0]


def project_jobs(
    jobs: Sequence[JobLike], *, target_nodes: int | None = None, schedule: str | None = None
) -> list[PerformanceProjection]:
    """Project a batch of jobs; each result equals that of the job alone, bit for bit."""
    if isinstance(jobs, Job | Mapping | str | bytes | Path) or not _iterable(jobs):
        msg = f"jobs are a sequence of jobs, got {jobs!r}"
        raise ConfigError(msg, key="jobs", value=jobs, allowed="a list of jobs")
    if not isinstance(schedule, str | None):
        msg = f"schedule is a name, got {schedule!r}"
        raise ConfigError(msg, key="training.schedule", value=schedule, allowed="a name")
    overrides: dict[str, Any] = {}
    if target_nodes is not None:
        overrides["cluster.nodes"] = target_nodes
    if schedule not in (None, "all"):
        overrides["training.schedule"] = schedule
    loaded = [
        job if isinstance(job, Job) and not overrides else load_job(job, overrides) for job in jobs
    ]
    if not loaded:
        return []
    if schedule == "all":
        return [_compare_schedules(job) for job in loaded]
    results = Results(evaluate(loaded))
    return [performance_projection(results, row) for row in range(len(loaded))]


def _iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _compare_schedules(job: Job) -> PerformanceProjection:
    """Return the fastest schedule that fits, with the others and those that cannot run."""
    check_placed(job)  # A job that cannot exist is no fault of the schedules.
    candidates, left_out = [], []
    refusal: ProjectorError | None = None
    for name in SCHEDULES:
        try:
            refuse_on_request(name)
            results = Results(evaluate([under_schedule(job, name)]))
        except ProjectorError as error:
            refusal = refusal or error
            left_out.append((name, error.message))
        else:
            candidates.append(performance_projection(results, 0))
    if not candidates:
        assert refusal is not None
        raise refusal
    # Of equally fast ones the first stands for what holds less.
    ranked = sorted(
        candidates,
        key=lambda one: (not one.memory.fits, one.iteration_time_s, one.memory.peak_bytes),
    )
    return replace(ranked[0], alternatives=tuple(ranked[1:]), left_out=tuple(left_out))
