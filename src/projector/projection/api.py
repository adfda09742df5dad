"""Projecting jobs: one, many, or one under every schedule."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, overload

from projector.config.device_file import refuse_first_order
from projector.config.first_order import TILES, by_closed_forms
from projector.config.first_order_job import FirstOrderJob, load_first_order_job
from projector.config.formats.emit.emitted import Emitted, write_job
from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError, ProjectorError, shown
from projector.first_order import results as first_order
from projector.first_order.results import FirstOrderMemory, FirstOrderPerformance
from projector.measure.options import AUTO, BOTH, SIMULATE
from projector.projection.evaluate import check_exists, check_placed, evaluate
from projector.projection.memory import MemoryProjection, memory_projection
from projector.projection.performance import (
    PerformanceProjection,
    microbatches_of,
    performance_projection,
    under_schedule,
)
from projector.projection.provenance import Provenance
from projector.projection.results import Results
from projector.schedule.registry import SCHEDULES, refuse_long

if TYPE_CHECKING:  # What is measured loads with the first record.
    from projector.projection.measured import Hybrid
    from projector.projection.profiling import RecordLike, Source

JobLike = Job | Mapping[str, Any] | str | Path

Records = Union["RecordLike", Sequence["RecordLike"], None]

FirstOrder = Literal["first-order"]


@overload
def project_memory(
    job: JobLike,
    *,
    fidelity: Literal["tiles"] = "tiles",
    records: Records = None,
    profiling_mode: str | None = None,
    benchmark_gpus: int | None = None,
) -> MemoryProjection: ...


@overload
def project_memory(job: JobLike | FirstOrderJob, *, fidelity: FirstOrder) -> FirstOrderMemory: ...


def project_memory(
    job: JobLike | FirstOrderJob,
    *,
    fidelity: str = TILES,
    records: Records = None,
    profiling_mode: str | None = None,
    benchmark_gpus: int | None = None,
) -> MemoryProjection | FirstOrderMemory:
    """Project the memory of every pipeline stage.

    Args:
        job (Job, mapping, str or Path): A job, or anything that `load_job` reads.
        fidelity (str): ``tiles``, or ``first-order`` for the closed forms of
            ``docs/first_order.md``, which also take devices without compute units.
        records, profiling_mode, benchmark_gpus (optional): As in `project_performance`: the peak is
            anchored on that of a measured step.

    Raises:
        ProjectorError: If the job cannot exist, or a record does not hold for it. A job that does
            not fit is projected all the same.
    """
    given = _listed(records)
    if by_closed_forms(fidelity):
        _refuse_measured(given, profiling_mode, benchmark_gpus)
        return first_order.project_memory(load_first_order_job(job))
    loaded = load_job(_tile_job(job))
    if profiling_mode is None and not given and benchmark_gpus is None:
        return memory_projection(Results(evaluate([loaded])), 0)
    from projector.projection.profiling import choose_source

    source = choose_source(loaded, profiling_mode or AUTO, given, benchmark_gpus=benchmark_gpus)
    return project_from(loaded, source).memory


@overload
def project_performance(
    job: JobLike,
    *,
    target_nodes: int | None = None,
    schedule: str | None = None,
    fidelity: Literal["tiles"] = "tiles",
    records: Records = None,
    profiling_mode: str | None = None,
    benchmark_gpus: int | None = None,
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
    records: Records = None,
    profiling_mode: str | None = None,
    benchmark_gpus: int | None = None,
) -> PerformanceProjection | FirstOrderPerformance:
    """Project the time of one training step.

    Args:
        job (Job, mapping, str or Path): A job, or anything that `load_job` reads.
        target_nodes (int, optional): Replaces ``cluster.nodes``; the global batch stays.
        schedule (str, optional): Replaces ``training.schedule``. ``all`` compares every schedule
            that can run, each in the chunks (``vpp``) it needs, and returns the fastest that fits,
            or the fastest of all if none fits. ``alternatives`` has the others; ``left_out`` has
            those that cannot run.
        fidelity (str): ``tiles``, or ``first-order`` for the closed forms of
            ``docs/first_order.md``, which know the bubble of 1F1B and of its interleaved form
            alone.
        records (Record, str, Path, or a sequence of them, optional): What was measured: times of
            the record nearest to the job are taken, scaled where it is not the same, and the models
            stand for the rest (``docs/measure.md``).
        profiling_mode (str, optional): ``simulate`` takes the models alone and no record;
            ``benchmark`` takes records, or measures now where there are none; ``both`` also
            compares with the models (``comparison``); ``auto`` measures now if a GPU of the job's
            type is at hand. Unless stated, records are taken where they are given, and nothing is
            measured.
        benchmark_gpus (int, optional): Devices to measure on; asks for a measurement.

    Raises:
        ProjectorError: If the job cannot exist, a record does not hold for it, or nothing can be
            measured here. A job that does not fit is projected all the same.
    """
    given = _listed(records)
    if by_closed_forms(fidelity):
        _refuse_measured(given, profiling_mode, benchmark_gpus)
        overrides = _overrides(target_nodes, schedule)
        return first_order.project_performance([load_first_order_job(job, overrides)])[0]
    tile_job = _tile_job(job)
    if profiling_mode is None and not given and benchmark_gpus is None:
        return project_jobs([tile_job], target_nodes=target_nodes, schedule=schedule)[0]
    loaded = load_job(tile_job, _overrides(target_nodes, None))
    from projector.projection.profiling import choose_source

    source = choose_source(loaded, profiling_mode or AUTO, given, benchmark_gpus=benchmark_gpus)
    return project_from(loaded, source, schedule=schedule)


def _listed(records: Records) -> list["RecordLike"]:
    if records is None:
        return []
    if isinstance(records, Sequence) and not isinstance(records, str):
        return list(records)
    return [records]


def _refuse_measured(given: list["RecordLike"], mode: str | None, gpus: int | None) -> None:
    if given or mode not in (None, AUTO, SIMULATE) or gpus is not None:
        key = "records" if given else "profiling_mode"
        msg = f"{key}: closed forms take nothing that is measured; leave out fidelity"
        raise ConfigError(msg, key=key, value=mode, allowed=TILES)


def _tile_job(job: JobLike | FirstOrderJob) -> JobLike:
    if isinstance(job, FirstOrderJob):
        refuse_first_order(job.cluster.device.name, "cluster.device")
    return job


def project_jobs(
    jobs: Sequence[JobLike], *, target_nodes: int | None = None, schedule: str | None = None
) -> list[PerformanceProjection]:
    """Project a batch of jobs; each result equals that of the job alone, bit for bit."""
    if isinstance(jobs, Job | Mapping | str | bytes | Path) or not isinstance(jobs, Iterable):
        msg = f"jobs are a sequence of jobs, got {shown(jobs)}"
        raise ConfigError(msg, key="jobs", value=jobs, allowed="a list of jobs")
    overrides = _overrides(target_nodes, schedule)
    loaded = [
        job if isinstance(job, Job) and not overrides else load_job(job, overrides) for job in jobs
    ]
    if not loaded:
        return []
    if schedule == "all":
        return [compare_schedules(job, lambda one: project_jobs([one])[0]) for job in loaded]
    results = Results(evaluate(loaded))
    return [performance_projection(results, row) for row in range(len(loaded))]


def emit_job(job: JobLike, format: str) -> Emitted:  # noqa: A002  # the option's name
    """Write a job as the configuration of a training framework.

    Args:
        job (Job, mapping, str or Path): Anything that `load_job` reads.
        format (str): ``megatron``, ``primus``, ``torchtitan`` or ``deepspeed``.

    Returns:
        Emitted: the text, the ending of its file, and the fields that it carries beside the
            framework's own.

    Raises:
        ConfigError: If the job cannot be read or cannot exist, as for `project_performance`, or for
            an unknown format.
        UnsupportedError: If the framework cannot run the job, or the file would not give the same
            one.
    """
    loaded = job if isinstance(job, Job) else load_job(job)
    check_exists(loaded)
    return write_job(loaded, format)


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


def project_from(
    job: Job, source: "Source", *, schedule: str | None = None
) -> PerformanceProjection:
    """Project a job from what was measured for it, or from the models where nothing was."""
    if source.record is None:
        result = project_jobs([job], schedule=schedule)[0]
        return _from(result, source) if source.why else result
    from projector.projection.measured import Hybrid, compare_record

    overrides = _overrides(None, schedule)
    changed = load_job(job, overrides) if overrides else job
    hybrid = Hybrid(changed, source.record)
    by_all = schedule == "all"
    result = compare_schedules(changed, hybrid.project) if by_all else hybrid.project(changed)
    if source.mode == BOTH:
        comparison = compare_record(hybrid.benchmark, result, project_jobs([result.job])[0])
        memory = replace(result.memory, comparison=comparison.memory)
        result = replace(result, memory=memory, comparison=comparison)
    return _from(_with_reduction(result, hybrid), source)


def _with_reduction(result: PerformanceProjection, hybrid: "Hybrid") -> PerformanceProjection:
    """Say what was reduced of the projected job to what was measured, and how copies are restored.

    The record itself may be that of a job with other degrees, on other nodes.
    """
    from projector.measure.reduction import reduction_to
    from projector.projection.comparison import by_proportion

    reduction = reduction_to(result.job, hybrid.record.reduction)
    told = reduction.to_dict() | {"benchmark": hybrid.record.reduction["benchmark"]}
    if reduction.min_dp != reduction.target_dp:
        proportion = by_proportion(reduction, hybrid.evaluate, result.breakdown_s)
        told |= {} if proportion is None else {"closed_form": proportion.to_dict()}

    def with_reduction(each: Provenance) -> Provenance:
        times = each.times
        return replace(
            each, times=times and replace(times, record={**times.record, "reduction": told})
        )

    return _with_provenance(result, with_reduction)


def _from(result: PerformanceProjection, source: "Source") -> PerformanceProjection:
    told = _with_provenance(
        result, lambda each: replace(each, warnings=(*each.warnings, *source.warnings))
    )
    return replace(told, source=source)


def _with_provenance(
    result: PerformanceProjection, change: Callable[[Provenance], Provenance]
) -> PerformanceProjection:
    memory = replace(result.memory, provenance=change(result.memory.provenance))
    return replace(result, provenance=change(result.provenance), memory=memory)


def compare_schedules(
    job: Job, project: Callable[[Job], PerformanceProjection]
) -> PerformanceProjection:
    """Return the fastest schedule that fits, and the others; ``project`` projects under one."""
    check_placed(job)  # A job that cannot exist is no fault of the schedules.
    microbatches = microbatches_of(job)
    candidates, left_out = [], []
    refusal: ProjectorError | None = None
    for name in SCHEDULES:
        try:
            refuse_long(name, job.parallelism.pp, microbatches)
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
