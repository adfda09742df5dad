"""The pipeline of an evaluated job, operation by operation, and its schedules compared."""

import numpy as np

from projector.config.job import Job
from projector.config.load import load_job
from projector.lower.jobs import data_parallel
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.memory import usable_bytes
from projector.schedule.compare import ALL, Candidate, ScheduleComparison, attempt, ranked
from projector.schedule.registry import SCHEDULES, resolve
from projector.schedule.run import PipelineRun


def pipeline_run_of(evaluation: Evaluation, row: int) -> PipelineRun:
    """Return what the ranks of one evaluated job do, and what they hold.

    It fits where `MemoryProjection` says so: the limit is the usable memory of the device, and
    everything but activations counts for the whole step.
    """
    memory, order = evaluation.memory, evaluation.orders[row]
    # Both copies of a model that runs in two directions are the stages of the one job.
    stage = int(evaluation.workloads.stage_offset[row]) + order.stage_of % order.num_stages
    static = (
        memory.weights_bytes[row]
        + memory.gradients_bytes[row]
        + memory.optimizer_bytes[row]
        + memory.transient_bytes[row]
        + memory.buffers_bytes[row]
    )
    return PipelineRun(
        schedule=evaluation.schedules[row],
        order=order,
        duration_ps=evaluation.duration_ps[row],
        p2p_ps=evaluation.latency_ps[row],
        activation_bytes=memory.saved_bytes[stage],
        w_share=float(memory.weight_share[row]),
        static_bytes=np.asarray(static, np.float64),
        limit_bytes=usable_bytes(evaluation.jobs[row]),
    )


def compare_job_schedules(job: Job, algorithm: str = ALL) -> ScheduleComparison:
    """Run one schedule of a job or all of them, in the layout of the job.

    Parameters
    ----------
    job : Job
        Gives everything but the schedule; its layers lie in the chunks it says.
    algorithm : str
        Name of a schedule, ``auto`` or ``all``.

    Raises
    ------
    ProjectorError
        If the job cannot exist, or the one schedule that is named cannot run.
    """
    split, training = job.parallelism, job.training

    def candidate(name: str) -> Candidate:
        def run() -> tuple[PipelineRun, float]:
            evaluation = evaluate([load_job(job, {"training.schedule": name})])
            return pipeline_run_of(evaluation, 0), float(evaluation.iteration_s[0])

        return attempt(name, split.vpp, run, excuse=algorithm == ALL)

    names = SCHEDULES if algorithm == ALL else [resolve(algorithm, split.vpp).name]
    candidates = ranked(map(candidate, names))
    # Only now is it known that the batch divides.
    microbatches = training.global_batch_size // (training.micro_batch_size * data_parallel(job))
    return ScheduleComparison(split.pp, split.vpp, microbatches, candidates)
