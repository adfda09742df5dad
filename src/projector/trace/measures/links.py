"""Links: what the transfers of a group take beside those of groups like it, what a late one costs.

Groups are peers if their ranks lie at the same distances from each other and they run the same
collective on as many bytes. Their transfers take other links of the same kind. A transfer is the
shortest kernel of a collective, as in `projector.trace.measures.collectives`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags
from projector.trace.activity import Activities
from projector.trace.events import NS_PS
from projector.trace.groups import group
from projector.trace.measures.collectives import Matches, matches
from projector.trace.measures.statistics import Band, Measured, band, ratio
from projector.trace.measures.times import KernelTimes, kernel_times
from projector.trace.rank import rank_distances


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes(Measured):
    """How the links of one group stand to those of its peers."""

    group: str
    peers: int
    """Other groups that are compared with it."""
    transfer_ns: Band
    """Its transfers that peers have too, of an iteration, added up."""
    peers_ns: float
    """What they would take if each were at the median of its peers; the median over iterations."""
    relative: float | None
    """The median of its transfers over `peers_ns`."""
    cost_ns: float
    """By how much an iteration would be shorter, the median, if its transfers had been at the
    median of its peers: what nothing hides of the time that they take longer than those of the next
    slowest group, which the iteration then waits for. An upper bound where communication is not on
    the critical path."""


class _Cell(NamedTuple):
    number: int
    transfer_ps: int
    exposed_ps: int
    """What of the transfers no rank hides, at most."""

    @property
    def each_ps(self) -> float:
        return self.transfer_ps / self.number


def link_times(
    activities: Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> list[LinkTimes]:
    """Return how groups stand to their peers, the most expensive first; lone ranks are left out."""
    times = kernel_times(activities) if times is None else times
    mine: dict[int, dict[int, list[tuple[float, float, float]]]] = defaultdict(dict)
    peers: dict[int, set[int]] = defaultdict(set)
    for (*_, iteration), cells in _kinds(activities, times, matches(activities, where)).items():
        for place, cell in cells.items() if len(cells) > 1 else ():
            others = [each.each_ps for other, each in cells.items() if other != place]
            longer_ps = max(cell.each_ps - max(others), 0.0) * cell.number
            mine[place].setdefault(iteration, []).append((
                cell.transfer_ps,
                float(np.median(others)) * cell.number,
                min(longer_ps, cell.exposed_ps),
            ))  # fmt: skip
            peers[place] |= cells.keys() - {place}
    found = [
        _link(activities.groups[place], len(peers[place]), iterations)
        for place, iterations in mine.items()
    ]
    return sorted(found, key=lambda row: (-row.cost_ns, -(row.relative or 0.0)))


def _link(
    name: str, peers: int, iterations: Mapping[int, list[tuple[float, float, float]]]
) -> LinkTimes:
    columns = np.array([np.sum(each, axis=0) for each in iterations.values()])
    transfer = band(columns[:, 0], NS_PS)
    assert transfer is not None  # the group has an iteration
    other_ns, cost_ns = (float(np.median(columns[:, i])) / NS_PS for i in (1, 2))
    return LinkTimes(
        group=name,
        peers=peers,
        transfer_ns=transfer,
        peers_ns=other_ns,
        relative=ratio(transfer.median, other_ns),
        cost_ns=cost_ns,
    )


def _kinds(
    activities: Activities, times: KernelTimes, found: Matches
) -> dict[tuple[int, int, int, int], dict[int, _Cell]]:
    """Return, by collective, bytes, distances of ranks and iteration, the cell of each group."""
    texts = [rank_distances(name) for name in activities.groups]
    shapes = [texts.index(text) if text else -1 for text in texts]
    shape = np.array([*shapes, -1], np.int64)[activities.group[found.row]]
    kept = np.flatnonzero((found.ranks > 1) & (shape >= 0))
    row = found.row[kept]
    one = group(found.collective.of[kept])
    transfer = found.transfer_ps[kept]
    bare = times.duration_ps[row] - times.under_compute_ps[row]
    exposed = one.most(np.minimum(bare, transfer)) if len(row) else transfer
    first = one.first
    keys = (
        found.label[kept][first], activities.bytes[row][first], shape[kept][first],
        activities.iteration[row][first], activities.group[row][first],
    )  # fmt: skip
    cells = group(*keys)
    sums = (cells.sizes(), cells.sums(transfer[first]), cells.sums(exposed))
    kinds: dict[tuple[int, int, int, int], dict[int, _Cell]] = defaultdict(dict)
    for label, moved, steps, iteration, place, *cell in zip(
        *(column.tolist() for column in (*cells.keys, *sums)), strict=True
    ):
        kinds[label, moved, steps, iteration][place] = _Cell(*cell)
    return kinds
