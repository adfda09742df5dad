"""The pipeline of an evaluated job, operation by operation, and its schedules compared."""

from typing import Any

from projector.config.job import Job
from projector.config.load import load_job
from projector.lower.jobs import data_parallel
from projector.lower.workloads import lower
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.memory_columns import usable_bytes
from projector.schedule.compare import ALL, Candidate, ScheduleComparison, attempt, ranked
from projector.schedule.registry import SCHEDULES, refuse_on_request, resolve
from projector.schedule.run import PipelineRun

SCHEDULE = "training.schedule"


def pipeline_run_of(evaluation: Evaluation, row: int) -> PipelineRun:
    """Return what the ranks of one evaluated job do, and what they hold.

    It fits where `MemoryProjection` says so: the limit is the usable memory of the device, and
    everything but activations counts for the whole step.
    """
    memory = evaluation.memory
    stage = int(evaluation.workloads.stage_offset[row]) + evaluation.placements[row].model_stage
    return PipelineRun(
        schedule=evaluation.schedules[row],
        order=evaluation.orders[row],
        duration_ps=evaluation.steps.duration_ps[row],
        p2p_ps=evaluation.steps.latency_ps[row],
        activation_bytes=memory.saved_bytes[stage],
        w_share=float(memory.weight_share[row]),
        static_bytes=memory.static_bytes(row),
        limit_bytes=usable_bytes(evaluation.jobs[row]),
        sends_ps=evaluation.steps.sends_ps[row],
    )


def under_schedule(job: Job, name: str) -> Job:
    """Return a job under another schedule, its layers in as many chunks as that needs."""
    overrides: dict[str, Any] = {SCHEDULE: name}
    chunks = SCHEDULES[name].chunks(job.parallelism.vpp)
    if chunks != job.parallelism.vpp:
        overrides["parallelism.vpp"] = chunks
    return load_job(job, overrides)


def compare_job_schedules(job: Job, algorithm: str = ALL) -> ScheduleComparison:
    """Run one schedule of a job or all of them.

    With ``all``, a schedule that needs another number of chunks has the layers laid out in them;
    one that is named runs in the layout of the job.

    Parameters
    ----------
    job : Job
        Gives everything but the schedule.
    algorithm : str
        Name of a schedule, ``auto`` or ``all``.

    Raises
    ------
    ProjectorError
        If the job cannot exist, or the one schedule that is named cannot run.
    """
    split, training = job.parallelism, job.training
    lower([job])  # A job that cannot exist is no fault of the schedules.
    every = algorithm == ALL

    def candidate(name: str) -> Candidate:
        def run() -> tuple[PipelineRun, float]:
            if every:
                refuse_on_request(name)
            own = under_schedule(job, name) if every else load_job(job, {SCHEDULE: name})
            evaluation = evaluate([own])
            return pipeline_run_of(evaluation, 0), float(evaluation.steps.iteration_s[0])

        chunks = SCHEDULES[name].chunks(split.vpp) if every else split.vpp
        return attempt(name, chunks, run, excuse=every)

    names = SCHEDULES if every else [resolve(algorithm, split.vpp).name]
    candidates = ranked(map(candidate, names))
    microbatches = training.global_batch_size // (training.micro_batch_size * data_parallel(job))
    return ScheduleComparison(split.pp, split.vpp, microbatches, candidates)
