"""The pipeline of an evaluated job, operation by operation, and its schedules compared."""

from typing import Any

from projector.config.job import Job
from projector.config.load import load_job
from projector.lower.batch import data_parallel
from projector.projection.bands import verdict_of
from projector.projection.evaluate import Evaluation, check_placed, evaluate
from projector.schedule.compare import ALL, Candidate, ScheduleComparison, attempt, ranked
from projector.schedule.registry import SCHEDULES, refuse_on_request, resolve
from projector.schedule.replay.run import PipelineRun

SCHEDULE = "training.schedule"


def pipeline_run_of(evaluation: Evaluation, row: int) -> PipelineRun:
    """Return what the ranks of one evaluated job do, and what they hold.

    It fits where `MemoryProjection` says so: the limit is the usable memory of the device, and
    everything but activations counts for the whole step.
    """
    inputs, job = evaluation.inputs, evaluation.job(row)
    limit_bytes = evaluation.usable_bytes(row)
    replicas, pipeline = inputs.replicas, evaluation.pipeline(row)
    replica, timings = int(replicas.of_job[row]), pipeline.timings
    sends_ps = None
    if timings.blocks[0]:
        sends_ps = pipeline.replayed.rank_busy_ps[0] - pipeline.alone.rank_busy_ps[0]
    return PipelineRun(
        schedule=evaluation.schedule(row),
        order=evaluation.order(row),
        duration_ps=timings.duration_ps[0],
        p2p_ps=timings.latency_ps[0],
        activation_bytes=pipeline.activation_bytes,
        w_share=float(inputs.costs.weight_share[replicas.pipeline[replica]]),
        static_bytes=inputs.held.static[replicas.kinds_of_ranks(replica)],
        limit_bytes=limit_bytes,
        memory_band=verdict_of(job, float(evaluation.steps.peak_bytes[row]), limit_bytes),
        sends_ps=sends_ps,
    )


def under_schedule(job: Job, name: str) -> Job:
    """Return a job under another schedule, its layers in as many chunks as that needs."""
    overrides: dict[str, Any] = {SCHEDULE: name}
    chunks = SCHEDULES[name].chunks(job.parallelism.vpp)
    if chunks != job.parallelism.vpp and job.parallelism.pp > 1:
        overrides["parallelism.vpp"] = chunks
    return load_job(job, overrides)


def compare_job_schedules(job: Job, algorithm: str = ALL) -> ScheduleComparison:
    """Run one schedule of a job (a name or ``auto``) or ``all`` of them.

    A schedule that needs another number of chunks has the layers laid out in them.
    """
    split, training = job.parallelism, job.training
    check_placed(job)  # A job that cannot exist is no fault of the schedules.
    compare_all = algorithm == ALL

    def candidate(name: str) -> Candidate:
        def run() -> tuple[PipelineRun, float]:
            if compare_all:
                refuse_on_request(name)
            evaluation = evaluate([under_schedule(job, name)])
            return pipeline_run_of(evaluation, 0), float(evaluation.steps.iteration_s[0])

        chunks = SCHEDULES[name].chunks(split.vpp)
        return attempt(name, chunks, run, excuse=compare_all)

    names = SCHEDULES if compare_all else [resolve(algorithm, split.vpp).name]
    candidates = ranked(map(candidate, names))
    microbatches = training.global_batch_size // (training.micro_batch_size * data_parallel(job))
    return ScheduleComparison(split.pp, split.vpp, microbatches, candidates)
