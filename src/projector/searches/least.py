"""Where nothing fits: the layout that comes closest, and the least hosts on which one fits."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.searches.configuration import Configuration

MOST_TIMES = 1 << 10
"""Hosts are doubled up to this many times those of the job."""

MOST_GPUS = 1 << 16
"""More devices are not tried."""

STEPS = 8
"""Numbers of hosts tried between those of which the larger fits and the smaller does not."""

Find = Callable[[Job], Sequence[Configuration]]
"""Returns the layouts of a job that are ranked, the best first; it tries those that need least."""


class Least(NamedTuple):
    """The least hosts, among those tried, on which a layout fits."""

    nodes: int
    gpus: int
    configuration: Configuration
    """The best layout there, of those that need little memory."""


def closest(evaluated: Sequence[Configuration]) -> Configuration | None:
    """Return the layout whose peak, with its band, ends lowest; none if no layout is legal."""
    return min(evaluated, key=lambda each: (each.peak_high_bytes, each.value), default=None)


def least_nodes(job: Job, find: Find) -> Least | None:
    """Find the least hosts on which a layout of a job fits that fits on no fewer.

    Hosts are doubled until one fits; then numbers between the last two are tried, the least first.
    More hosts are no guarantee: the batch must divide.

    Parameters
    ----------
    job : Job
        A job that does not fit on the hosts it has. Its global batch stays.
    find : callable
        What ranks the layouts of a job.
    """
    for nodes in _doubled(job):
        found = _on(job, nodes, find)
        if found is None:
            continue
        half = nodes // 2
        step = max(1, half // STEPS)
        between = (_on(job, fewer, find) for fewer in range(half + step, nodes, step))
        return next((each for each in between if each is not None), found)
    return None


def _doubled(job: Job) -> Iterator[int]:
    nodes, per_node = job.cluster.nodes, job.cluster.gpus_per_node
    times = 2
    while times <= MOST_TIMES and nodes * times * per_node <= MOST_GPUS:
        yield nodes * times
        times *= 2


def _on(job: Job, nodes: int, find: Find) -> Least | None:
    try:
        larger = load_job(job, {"cluster.nodes": nodes})
    except ConfigError:
        return None
    found = find(larger)
    return Least(nodes, larger.cluster.gpus, found[0]) if found else None
