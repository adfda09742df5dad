"""Measuring a job on the devices at hand: reduce, measure, keep."""

from collections.abc import Callable
from typing import Literal

from projector.config.adapter import refuse_adapter
from projector.config.job import Job
from projector.measure.process import run_task
from projector.measure.programs import record_of, task_of
from projector.measure.progress import Sparing
from projector.measure.record import Record
from projector.measure.reduction import Reduction, reduce_job
from projector.measure.task import Pace

Tell = Callable[[str], None]
"""Takes one line for people: a plan, progress, what was chosen."""


def benchmark_record(
    job: Job,
    benchmark_gpus: int | None = None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    pace: Pace | None = None,
    threads: int | None = None,
    timeout_s: float | None = None,
    tell: Tell | None = None,
) -> Record:
    """Measure the layers of a job on as many devices as there are.

    Parameters
    ----------
    job : Job
        The job asked for, however many devices it takes.
    benchmark_gpus : int, optional
        Devices to measure on; those of a node of the job unless stated.
    device : str
        ``cpu``, ``cuda`` for GPUs of either vendor, or ``auto``.
    pace : Pace, optional
        How often something runs until its time counts.
    threads : int, optional
        Threads of a processor; all of its cores unless stated.
    timeout_s : float, optional
        Longest time of the whole measurement.
    tell : callable, optional
        Called with each line of progress.
    """
    refuse_adapter(job.training.adapter, "layers are measured with all weights trained")
    reduction = reduce_job(job, benchmark_gpus)
    return measure_reduction(
        reduction, device=device, pace=pace, threads=threads, timeout_s=timeout_s, tell=tell
    )


def measure_reduction(
    reduction: Reduction,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    pace: Pace | None = None,
    threads: int | None = None,
    timeout_s: float | None = None,
    tell: Tell | None = None,
) -> Record:
    """Measure a job that was reduced; see `benchmark_record`."""
    if tell is not None:
        for line in reduction.lines():
            tell(line)
    task = task_of(reduction, device=device, pace=pace or Pace())
    task = task.model_copy(update={"threads": threads})
    progress = None if tell is None else Sparing(tell)
    answer = run_task(task, timeout_s=timeout_s, progress=progress)
    return record_of(reduction, task, answer)
