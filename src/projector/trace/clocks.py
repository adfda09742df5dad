"""Clocks of ranks, aligned on collectives: a collective of a group ends on all its ranks together.

The time of another rank is ``t + offset + drift * (t - origin)``. Both are fitted to the ends of
collectives that two ranks share; ranks without a common group are joined through others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints

FEWEST_FOR_DRIFT = 16
"""Collectives below which a slope would be that of their noise."""

MOST_DRIFT = 1e-3
"""Clocks of computers drift by less than 100 ppm; more is a mismatch of collectives."""

GAIN = 0.7
"""A drift is taken where it shrinks the spread of the ends to this share or less."""

_GRID_PS = 1_000

LONGEST_NS = 3_600 * 10**9
"""Starts of traces further apart than this are of clocks that have nothing in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What was added to the times of a rank."""

    rank: int
    reference: int
    """Rank whose clock it was aligned to; its own number where there was nothing to align."""
    start_ps: int
    """Distance of the starts of the traces, by the clocks of the hosts; 0 where unknown."""
    offset_ps: int = 0
    """Found from collectives, beyond that of the starts."""
    drift: float = 0.0
    """Seconds that a second of the rank's clock is off."""
    origin_ps: int = 0
    """Time from which the drift counts."""
    collectives: int = 0
    """Collectives that it was found from."""
    spread_ps: int = 0
    """Median distance of their ends after the alignment."""

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON shows of it."""
        return {
            "rank": self.rank,
            "reference": self.reference,
            "start_ns": self.start_ps / 1000,
            "offset_ns": self.offset_ps / 1000,
            "drift_ppm": self.drift * 1e6,
            "collectives": self.collectives,
            "spread_ns": self.spread_ps / 1000,
        }

    def moved(self, times_ps: Ints) -> Ints:
        """Return times of the rank on the common clock."""
        moved = times_ps + (self.start_ps + self.offset_ps)
        if self.drift:
            moved = moved + np.rint(self.drift * (times_ps - self.origin_ps)).astype(np.int64)
        return moved

    def own(self, moved_ps: Ints) -> Ints:
        """Return the rank's own times of those that `moved` returns, exactly.

        A drift is undone to the nearest nanosecond, on whose grid the stamps of a profiler lie.
        """
        own = moved_ps - (self.start_ps + self.offset_ps)
        if self.drift:
            since = np.rint((own - self.origin_ps) / (1.0 + self.drift)).astype(np.int64)
            own = (since + self.origin_ps + _GRID_PS // 2) // _GRID_PS * _GRID_PS
        return own


@dataclass(frozen=True, slots=True)
class Meetings:
    """Collectives of one rank that ranks end together."""

    rank: int
    zero_ns: int
    key: Sequence[tuple[Any, ...]]
    """What the same collective has on all ranks: group, kind, bytes, iteration."""
    end_ps: Ints


def align_clocks(ranks: Sequence[Meetings]) -> tuple[Clock, ...]:
    """Find what to add to the times of each rank, so that collectives end together."""
    starts = _starts(ranks)
    ends = [_numbered(rank) for rank in ranks]
    clocks: dict[int, Clock] = {}
    waiting = list(range(len(ranks)))
    while waiting:
        best = max(
            ((len(ends[i].keys() & ends[j].keys()), -i, -j) for i in waiting for j in clocks),
            default=(0, 0, 0),
        )
        if not best[0]:
            i = waiting.pop(0)
            rank = ranks[i].rank
            clocks[i] = Clock(rank=rank, reference=rank, start_ps=starts[i])
            continue
        i, j = -best[1], -best[2]
        waiting.remove(i)
        clocks[i] = _fitted(ranks[i].rank, starts[i], ends[i], clocks[j], ends[j])
    return tuple(clocks[i] for i in range(len(ranks)))


def _starts(ranks: Sequence[Meetings]) -> list[int]:
    zeros = [rank.zero_ns for rank in ranks]
    if not zeros or min(zeros) <= 0 or max(zeros) - min(zeros) > LONGEST_NS:
        return [0] * len(zeros)
    return [(zero - min(zeros)) * 1000 for zero in zeros]


def _numbered(rank: Meetings) -> Mapping[tuple[Any, ...], int]:
    """Return when each collective ended; those with one key are told apart by their number."""
    seen: dict[tuple[Any, ...], int] = {}
    ends: dict[tuple[Any, ...], int] = {}
    for key, end in zip(rank.key, rank.end_ps.tolist(), strict=True):
        count = seen.get(key, 0)
        seen[key] = count + 1
        ends[*key, count] = end
    # A trace that begins amid an iteration has fewer of a kind: then their numbers mean nothing.
    return ends | {(*key, "count"): count for key, count in seen.items()}


def _fitted(
    rank: int, start_ps: int, own: Mapping[tuple[Any, ...], int], clock: Clock,
    other: Mapping[tuple[Any, ...], int],
) -> Clock:  # fmt: skip
    """Fit offset and drift of a rank to one that is aligned."""
    common = [
        key for key in own.keys() & other.keys()
        if key[-1] != "count" and own[*key[:-1], "count"] == other[*key[:-1], "count"]
    ]  # fmt: skip
    if not common:
        return Clock(rank=rank, reference=rank, start_ps=start_ps)
    common.sort(key=lambda key: own[key])
    mine = np.array([own[key] for key in common], np.int64)
    theirs = clock.moved(np.array([other[key] for key in common], np.int64))
    away = theirs - (mine + start_ps)
    middle = int(np.median(away))
    rest = (away - middle).astype(np.float64)
    origin = int(mine[0])
    drift, shift = _slope((mine - origin).astype(np.float64), rest)
    spread = float(np.median(np.abs(rest)))
    if drift:
        left = rest - shift - drift * (mine - origin)
        after = float(np.median(np.abs(left)))
        if after <= GAIN * spread:
            middle, spread = middle + round(shift), after
        else:
            drift = 0.0
    return Clock(
        rank=rank, reference=clock.rank, start_ps=start_ps, offset_ps=middle, drift=drift,
        origin_ps=origin, collectives=len(common), spread_ps=round(spread),
    )  # fmt: skip


def _slope(time: Floats, rest: Floats) -> tuple[float, float]:
    """Return slope and value at zero of a line through most points; 0, 0 without a credible one.

    Straggling ends lie far off, so points beyond five medians from the line are left out, twice.
    """
    if len(time) < FEWEST_FOR_DRIFT or time[-1] <= time[0]:
        return 0.0, 0.0
    half = len(time) // 2
    run = float(np.median(time[half:]) - np.median(time[:half]))
    if run <= 0:
        return 0.0, 0.0
    slope = float(np.median(rest[half:]) - np.median(rest[:half])) / run
    value = float(np.median(rest - slope * time))
    for _ in range(2):
        off = np.abs(rest - value - slope * time)
        near = off <= 5 * max(float(np.median(off)), 1.0)
        centre = time[near] - time[near].mean()
        square = float(centre @ centre)
        if square <= 0:
            return 0.0, 0.0
        slope = float(centre @ rest[near]) / square
        value = float(np.mean(rest[near]) - slope * time[near].mean())
    return (slope, value) if abs(slope) < MOST_DRIFT else (0.0, 0.0)
