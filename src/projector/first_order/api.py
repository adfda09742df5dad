"""First-order projections of jobs."""

from collections.abc import Sequence

from projector.config.first_order_job import AnyJob
from projector.first_order.results import FirstOrderMemory, FirstOrderPerformance
from projector.first_order.training import train


def project_memory(job: AnyJob) -> FirstOrderMemory:
    """Project the memory of a job in closed form."""
    return FirstOrderMemory(job, train([job]), 0)


def project_performance(jobs: Sequence[AnyJob]) -> list[FirstOrderPerformance]:
    """Project the steps of jobs in closed form; each equals that of the job alone."""
    if not jobs:
        return []
    results = train(jobs)
    return [FirstOrderPerformance(job, results, row) for row, job in enumerate(jobs)]
