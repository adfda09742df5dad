"""What a search found; where nothing fits, what comes closest, and the least hosts for one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from projector.config.job import Job
from projector.config.load import load_job
from projector.envelope import told
from projector.errors import ConfigError
from projector.frames import Frame, table_of_rows
from projector.projection.bands import FITS, uncertainty
from projector.projection.performance import PerformanceProjection
from projector.searches import ranking
from projector.searches.candidates import FIELDS
from projector.searches.limits import Limits
from projector.units import to_gib

if TYPE_CHECKING:
    import pyarrow as pa

MOST_TIMES = 1 << 10
"""Hosts are doubled up to this many times those of the job."""

MOST_GPUS = 1 << 16

STEPS = 8
"""Numbers of hosts tried between those of which the larger fits and the smaller does not."""

Find = Callable[[Job], Sequence[ranking.Configuration]]
"""Returns the layouts of a job that are ranked, the best first; it tries those that need least."""


class Least(NamedTuple):
    """The least hosts, among those tried, on which a layout fits."""

    nodes: int
    gpus: int
    configuration: ranking.Configuration
    """The best layout there, of those that need little memory."""


def closest(evaluated: Sequence[ranking.Configuration]) -> ranking.Configuration | None:
    """Return the layout whose peak, with its band, ends lowest; none if no layout is legal."""
    return min(evaluated, key=lambda each: (each.peak_high_bytes, each.value), default=None)


def least_nodes(job: Job, find: Find) -> Least | None:
    """Find the least hosts on which a layout of a job fits that fits on no fewer.

    Hosts are doubled until one fits; then numbers between the last two are tried, the least first.
    More hosts are no guarantee: the batch must divide, and it stays. ``find`` ranks the layouts of
    a job.
    """
    most = min(job.cluster.nodes * MOST_TIMES, MOST_GPUS // job.cluster.gpus_per_node)
    nodes = job.cluster.nodes
    while (nodes := 2 * nodes) <= most:
        found = _on(job, nodes, find)
        if found is None:
            continue
        half = nodes // 2
        step = max(1, half // STEPS)
        between = (_on(job, fewer, find) for fewer in range(half + step, nodes, step))
        return next((each for each in between if each is not None), found)
    return None


def _on(job: Job, nodes: int, find: Find) -> Least | None:
    try:
        larger = load_job(job, {"cluster.nodes": nodes})
    except ConfigError:
        return None
    found = find(larger)
    return Least(nodes, larger.cluster.gpus, found[0]) if found else None


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult(Frame, ranking.Coverage):
    """Configurations of a job within the limits, the best by the objective first."""

    job: Job
    limits: Limits
    best: tuple[PerformanceProjection, ...]
    pareto: tuple[ranking.Configuration, ...]
    """Configurations that no other beats in both the objective and memory, the best first."""
    configurations: tuple[ranking.Configuration, ...]
    """All configurations within the limits, ranked."""
    evaluated: int
    at_risk: int
    """Configurations whose peak leaves enough memory, but not the upper end of its band."""
    too_large: int
    """Configurations that are legal and leave too little memory."""
    illegal: Mapping[str, int]
    """Illegal configurations, counted by the field that refuses them."""
    seconds: float
    objective: str = ranking.TIME
    """What is ranked by: ``time``, ``cost``, ``energy`` or ``co2``."""
    closest: ranking.Configuration | None = None
    """Where nothing is ranked: the configuration that needs least memory."""
    least: Least | None = None
    """Where nothing is ranked: the least hosts on which something is, if any of those tried."""
    cleared: Mapping[str, Any] = field(default_factory=dict)
    """Dotted fields in which every configuration differs from the job that was given: the number
    of nodes that was asked for, and settings of its own layout that would not suit another."""
    estimated_s: float | None = None
    """What the search was expected to take before it planned anything."""

    def overrides(self, configuration: ranking.Configuration) -> dict[str, Any]:
        """Return all fields that turn the job that was given into a configuration."""
        return {**self.cleared, **configuration.overrides}

    @property
    def uncertainty(self) -> dict[str, Any]:
        """Band of the best one's step, or of the job's where nothing is ranked."""
        return self.best[0].uncertainty if self.best else uncertainty(self.job, "time")

    @property
    def fitting(self) -> int:
        """Configurations that fit with the band of their memory."""
        return self.evaluated - self.at_risk - self.too_large

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Group of each ranked configuration, 1 the best: those of one cannot be told apart."""
        values = np.array([each.value for each in self.configurations], np.float64)
        settings = [each.overrides for each in self.configurations]
        return tuple(ranking.noise_groups(values, settings, ranking.pair_noise).tolist())

    @cached_property
    def speed_front(self) -> tuple[ranking.Configuration, ...]:
        """Configurations that no other beats in both speed and memory, the fastest first."""
        if self.objective == ranking.TIME:
            return self.pareto
        by_time = sorted(self.configurations, key=lambda c: (c.iteration_time_s, c.peak_bytes))
        return tuple(ranking.front(by_time))

    @property
    def records(self) -> list[dict[str, Any]]:
        """All configurations within the limits, ranked, with their groups."""
        return [
            {"rank": place + 1, "group": group, **_plain(each, self.job, self.objective)}
            for place, (group, each) in enumerate(
                zip(self.groups, self.configurations, strict=True)
            )
        ]

    def tables(self) -> "Iterator[pa.Table]":
        """Yield the records as a table; it has its columns where nothing is ranked, too."""
        if self.configurations:
            yield from super().tables()
            return
        fields = {name: attrgetter(name)(self.job) for name in FIELDS}
        none = ranking.Configuration(fields, 1.0, 0.0, 0.0, 0.0, 0.0, FITS, 0.0)
        row = {"rank": 0, "group": 0, **_plain(none, self.job, self.objective)}
        yield table_of_rows([row])[:0]

    def __repr__(self) -> str:
        return (
            f"SearchResult({self.fitting:,} of {self.evaluated:,} legal configurations fit, "
            f"{self.at_risk:,} are at risk; the best: {self.best[0] if self.best else None!r})"
        )

    def _ways_out(self) -> dict[str, Any]:
        """Return the keys of JSON that stand where nothing is ranked."""
        closest, least = self.closest, self.least
        return {
            "closest": None if closest is None else _plain(closest, self.job, self.objective),
            "least_nodes": None if least is None else least.nodes,
            "least_gpus": None if least is None else least.gpus,
            "least_overrides": None if least is None else self.least_overrides,
        }

    @property
    def least_overrides(self) -> dict[str, Any]:
        """What turns the job into the one that fits on the least hosts."""
        assert self.least is not None, "nothing fits on any number of hosts that was tried"
        return self.overrides(self.least.configuration) | {"cluster.nodes": self.least.nodes}

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector search --json`` prints, without its envelope."""
        configurations, groups = self.configurations, self.groups
        group_of = {id(each): group for each, group in zip(configurations, groups, strict=True)}
        return {
            **({} if self.objective == ranking.TIME else {"objective": self.objective}),
            **told(self, "evaluated fitting at_risk too_large"),
            "within_noise": groups.count(1),
            **told(self, "ruled_out left_out left_out_ms"),
            "stopped": self.stopped or None,
            "planned": self.planned,
            "infeasible": dict(self.illegal),
            "seconds": self.seconds,
            "estimated_seconds": self.estimated_s,
            **({} if self.configurations else self._ways_out()),
            "best": [
                {
                    "rank": index + 1,
                    "group": groups[index],
                    **_plain(configurations[index], self.job, self.objective),
                    "parallelism": step.degrees,
                    **told(step, "schedule mfu bubble_fraction bound"),
                    **({} if step.run is None else {"run": step.run.to_dict()}),
                }
                for index, step in enumerate(self.best)
            ],
            "pareto": [
                {"group": group_of[id(each)], **_plain(each, self.job, self.objective)}
                for each in self.pareto
            ],
        }


def _plain(configuration: ranking.Configuration, job: Job, objective: str) -> dict[str, Any]:
    key = ranking.KEYS.get(objective)
    tokens = job.training.global_batch_size * job.training.seq_length
    return {
        **told(configuration, "overrides iteration_time_ms"),
        "tokens_per_s_per_gpu": tokens / configuration.iteration_time_s / job.cluster.gpus,
        "peak_gib": to_gib(configuration.peak_bytes),
        "peak_gib_low": to_gib(configuration.peak_low_bytes),
        "peak_gib_high": to_gib(configuration.peak_high_bytes),
        **told(configuration, "headroom_gib verdict"),
        **({} if key is None else {key: configuration.value}),
    }
