"""The two-pass method: counters of serialised runs given to the kernels of the timed run.

Collecting counters puts one kernel after the other, so that its times say nothing of overlap; the
timed run has no counters. A kernel of the timed run is given the counters of the kernel that stands
at its place in an iteration of the counted run: on the same device, of the same name and, where
both runs tell it, the same grid (Chopper: Kurzynski, Aga, Wu, section III).

Profilers write names mangled (``_ZN2at6native4fillIfEEvPf``), demangled in full, without template
arguments, or as the function alone; with ``.kd`` and ``[clone .kd]`` behind them and more or fewer
spaces in them.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.envelope import told
from projector.trace import events as ev
from projector.trace.activity import Activities
from projector.trace.events import NONE, Counters
from projector.trace.groups import group, parts
from projector.trace.measures.statistics import Measured

MOST_NAMES = 20
"""Names of kernels that a report lists."""

LEAST_GRIDS = 0.5
"""Share of the kernels of a name whose grid the other run must have too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRun(Measured):
    """What became of one run with counters on one device."""

    path: str
    rank: int
    device: int
    names: str
    """What of the names was compared: one of `LEVELS`."""
    kernels: int
    counted: int
    joined: int
    """Of the timed run, those that were given counters."""
    uncertain: int
    """Of the joined, those whose iterations hold another number of kernels like it."""
    iterations: int
    counted_iterations: int
    missing: Mapping[str, int]
    """Kernels of the timed run without counters, by name, the most frequent first."""
    unused: Mapping[str, int]
    """Kernels of the run with counters that went to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCounters:
    """Counters of activities."""

    values: Mapping[str, Floats]
    """float64[activities] of each counter, NaN where there is none."""
    duration_ps: Ints
    """int64[activities]: of the serialised kernel, `NONE` where it is not known."""
    joined: Flags
    """bool[activities]: whether any run gave it counters."""
    kernels: int
    time_share: float
    """Of the time of the kernels, that of joined ones; 0 without kernels."""
    runs: tuple[JoinedRun, ...]

    @property
    def share(self) -> float:
        """Of the kernels, those that were given counters; 0 without kernels."""
        return float(self.joined.sum()) / self.kernels if self.kernels else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "kernels": self.kernels,
            "joined": int(self.joined.sum()),
            **told(self, "share time_share"),
            "counters": sorted(self.values),
            "runs": [run.to_dict() for run in self.runs],
        }


def join_counters(activities: Activities, counters: Sequence[Counters]) -> JoinedCounters:
    """Give the kernels of a timed run the counters of serialised runs of the same program.

    A counter that several runs hold is taken from the first that has it for a kernel.

    Iterations of the counted run are found by the kernels that each iteration of the timed run
    holds equally often, so that kernels before the first (libraries that try out kernels) and
    another number of iterations do no harm; within an iteration the order decides, as the longest
    common subsequence. A rank is known from the name of its file or folder. Otherwise devices are
    taken in the order of their numbers; a run on one device belongs to the first rank.
    """
    count = len(activities)
    values: dict[str, Floats] = {}
    duration_ps = np.full(count, NONE, np.int64)
    joined = np.zeros(count, bool)
    runs = []
    lanes = lanes_of(activities)
    for run, lane, rows in _placed(lanes, counters):
        kernels = lanes[lane]
        found, report = _join(activities, kernels, run, rows, lane)
        runs.append(report)
        given = np.flatnonzero(found != NONE)
        if not len(given):
            continue
        target, source = kernels[given], found[given]
        joined[target] = True
        duration_ps[target] = np.where(
            duration_ps[target] == NONE, run.duration_ps[source], duration_ps[target]
        )
        for name, column in run.values.items():
            mine = values.setdefault(name, np.full(count, np.nan))
            mine[target] = np.where(np.isnan(mine[target]), column[source], mine[target])
    is_kernel = activities.kind == ev.KERNEL
    time = np.where(is_kernel, activities.end_ps - activities.start_ps, 0).astype(np.float64)
    total = float(time.sum())
    return JoinedCounters(
        values=values, duration_ps=duration_ps, joined=joined, kernels=int(is_kernel.sum()),
        time_share=float(time[joined].sum()) / total if total else 0.0, runs=tuple(runs),
    )  # fmt: skip


Lane = tuple[int, int]
"""Rank and device."""


def lanes_of(activities: Activities) -> dict[Lane, Ints]:
    """Return the kernels of each device of each rank in the order of their dispatch."""
    kernels = np.flatnonzero(activities.kind == ev.KERNEL)
    rank, device = activities.rank[kernels], activities.device[kernels]
    given = _given_ps(activities, kernels)
    order = kernels[np.lexsort((activities.start_ps[kernels], given, device, rank))]
    return {
        (int(activities.rank[part[0]]), int(activities.device[part[0]])): part
        for part in parts(order, activities.rank, activities.device)
        if len(part)
    }


def _given_ps(activities: Activities, kernels: Ints) -> Ints:
    """Return when each kernel was given to its device; the run with counters keeps that order.

    Streams overlap, so starts are in another order than launches. A kernel whose launch is not in
    the trace was given before those that follow it on its stream.
    """
    launch, start = activities.launch_ps[kernels], activities.start_ps[kernels]
    known = launch != NONE
    if known.all():
        return launch
    stream = group(*(getattr(activities, n)[kernels] for n in ("rank", "device", "stream"))).of
    order = np.lexsort((start, stream))[::-1]
    follows = np.where(known, launch, np.iinfo(np.int64).max)[order]
    first = np.flatnonzero(np.diff(stream[order], prepend=-1) != 0)
    given = np.empty_like(launch)
    for begin, end in zip(first, (*first[1:], len(order)), strict=True):
        given[order[begin:end]] = np.minimum.accumulate(follows[begin:end])
    return np.where(known, launch, np.minimum(given, start))


def _placed(
    lanes: Mapping[Lane, Ints], counters: Sequence[Counters]
) -> list[tuple[Counters, Lane, Ints]]:
    known = sorted(lanes)
    loose = sorted({int(d) for run in counters if run.rank == NONE for d in np.unique(run.device)})
    pairs: dict[int, Lane] = {}
    if len(loose) > len(known):
        # A process drives the device of its number.
        pairs = {loose[lane[0] % len(loose)]: lane for lane in reversed(known)}
    else:
        pairs = dict(zip(loose, known, strict=False))
    placed = []
    for run in counters:
        mine = pairs
        if run.rank != NONE:
            of_rank = [lane for lane in known if lane[0] == run.rank]
            mine = dict(zip(np.unique(run.device).tolist(), of_rank, strict=False))
        placed += [
            (run, lane, np.flatnonzero(run.device == device)) for device, lane in mine.items()
        ]
    return [each for each in placed if len(each[2])]


class Match(NamedTuple):
    """What the kernels of the timed run are given."""

    row: Ints
    """int64[timed]: place in the counted run, `NONE` for none."""
    uncertain: Flags
    """bool[timed]: whether the two iterations hold another number of such kernels."""
    repeats: Ints
    """Places of the counted run that fit a timed kernel, which was given another iteration's."""
    iterations: int
    counted_iterations: int


def _join(
    activities: Activities, kernels: Ints, run: Counters, rows: Ints, lane: Lane
) -> tuple[Ints, JoinedRun]:
    """Return the row of the run for each kernel, `NONE` for none, and the report."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(run.kernel))}
    timed, first = np.unique(activities.name[kernels], return_inverse=True)
    counted, second = np.unique([numbers[run.kernel[row]] for row in rows], return_inverse=True)
    named = list(numbers)
    names = [activities.names[row] for row in timed], [named[row] for row in counted]
    level = common_level(*names)
    classes: dict[str, int] = {}
    here, there = (
        np.array([classes.setdefault(spelled(n, level), len(classes)) for n in each], np.int64)
        for each in names
    )
    tokens = _tokens(here[first], _grids(activities, kernels), there[second], run.grid[rows])
    result = match(*tokens, iterations_of(activities.iteration[kernels]))
    given = result.row != NONE
    used = np.zeros(len(rows), bool)
    used[result.row[given]] = True
    used[result.repeats] = True
    return np.where(given, rows[result.row], NONE), JoinedRun(
        path=run.path, rank=lane[0], device=lane[1], names=LEVELS[level], kernels=len(given),
        counted=len(used), joined=int(given.sum()), uncertain=int(result.uncertain.sum()),
        iterations=result.iterations, counted_iterations=result.counted_iterations,
        missing=_most(names[0], first[~given]), unused=_most(names[1], second[~used]),
    )  # fmt: skip


def _most(names: Sequence[str], of: Ints) -> dict[str, int]:
    counts = np.bincount(of, minlength=len(names))
    order = np.argsort(-counts, kind="stable")[:MOST_NAMES]
    return {names[row]: int(counts[row]) for row in order.tolist() if counts[row]}


def _grids(activities: Activities, kernels: Ints) -> Ints:
    """Return int64[kernels, 2]: work items as of groups of work items, and as of work items.

    Kineto gives the extents of a grid in groups, but for kernels that HIP launched through its
    extended call in work items. `NONE` where nothing is known.
    """
    rows = np.array([_extents(detail) for detail in activities.details] or [(NONE, NONE)], np.int64)
    detail = activities.detail[kernels]
    return np.where((detail == NONE)[:, None], NONE, rows[np.maximum(detail, 0)])


def _extents(detail: Mapping[str, Any]) -> tuple[int, int]:
    grid, block = detail.get("grid"), detail.get("block")
    if not grid or not block:
        return NONE, NONE
    items = int(np.prod(np.array(grid, object)))
    return items * int(np.prod(np.array(block, object))), items


def _tokens(timed: Ints, grids: Ints, counted: Ints, grid: Ints) -> tuple[list[int], list[int]]:
    """Return a number for each kernel, the same for those that may be one.

    The grid counts for a name if all kernels of that name have one, and at least half of the timed
    ones have one of the other run: tools differ in what they count a grid in.
    """
    mine, theirs = np.zeros(len(timed), np.int64), np.zeros(len(counted), np.int64)
    here, there = _rows_of(timed), _rows_of(counted)
    for name in here.keys() & there.keys():
        rows, others = here[name], there[name]
        if (grid[others] == NONE).any():
            continue
        for given in grids[rows].T:
            if not (given == NONE).any() and np.isin(given, grid[others]).mean() >= LEAST_GRIDS:
                mine[rows], theirs[others] = given, grid[others]
                break
    token = group(np.concatenate([timed, counted]), np.concatenate([mine, theirs])).of
    return token[: len(timed)].tolist(), token[len(timed) :].tolist()


def _rows_of(names: Ints) -> dict[int, Ints]:
    runs = parts(np.argsort(names, kind="stable"), names)
    return {int(names[run[0]]): run for run in runs if len(run)}


FULL, BARE, FUNCTION = range(3)
"""Ways of comparing names: all of it; without template arguments and parameters; only what stands
behind the last ``::``."""

LEVELS = ("full", "without templates", "function")

_BEHIND = re.compile(r"(\s*\[clone [^\]]*\]|\s*\(\.kd\)|\.kd)+\s*$")
_ANONYMOUS = ("(anonymous namespace)", "<unnamed>", "{anonymous}", "_GLOBAL__N_1")
_LENGTH = re.compile(r"\d+")
_OPENING, _CLOSING = "<([{", ">)]}"


@lru_cache(maxsize=65_536)
def spelled(name: str, level: int) -> str:
    """Return what of a name can be compared at a level: `FULL`, `BARE` or `FUNCTION`."""
    name = _BEHIND.sub("", name.strip())
    if level == FULL:
        plain = name
        for word in _ANONYMOUS:
            plain = plain.replace(word, "anonymous")
        return "".join(plain.split()).removeprefix("void")
    bare = _of_mangled(name) if name.startswith("_Z") else _bare(name)
    return bare.rpartition("::")[2] if level == FUNCTION else bare


def _bare(name: str) -> str:
    for word in _ANONYMOUS:
        name = name.replace(word, "anonymous")
    kept: list[str] = []
    depth = 0
    for char in name:
        if char in _OPENING:
            depth += 1
            if depth == 1 and char == "(" and kept and kept[-1] != ":":
                break
        elif char in _CLOSING:
            depth -= 1
        elif depth <= 0:
            kept.append(char)
    words = "".join(kept).split()
    return words[-1] if words else name


def _of_mangled(name: str) -> str:
    """Return the qualified name in a mangled one, of the Itanium ABI, without its templates."""
    nested = name.startswith("_ZN")
    place = 3 if nested else 2
    while nested and name[place : place + 1] in ("K", "V", "r"):
        place += 1
    parts: list[str] = []
    while place < len(name):
        found = _LENGTH.match(name, place)
        if found is None:
            if nested and name[place] == "I":
                place = _after_arguments(name, place)
                continue
            break
        start, place = found.end(), found.end() + int(found[0])
        part = name[start:place]
        parts.append("anonymous" if part in _ANONYMOUS else part)
        if not nested:
            break
    return "::".join(parts) or name


def _after_arguments(name: str, place: int) -> int:
    """Return the place behind a list of template arguments; its end if it is not understood."""
    depth = 0
    while place < len(name):
        found = _LENGTH.match(name, place)
        if found:
            place = found.end() + int(found[0])
            continue
        depth += {"I": 1, "N": 1, "X": 1, "L": 1, "J": 1, "E": -1}.get(name[place], 0)
        place += 1
        if depth == 0:
            return place
    return place


def common_level(timed: Sequence[str], counted: Sequence[str]) -> int:
    """Return the most exact level at which nearly as many names agree as at any."""
    shares = []
    for level in (FULL, BARE, FUNCTION):
        known = {spelled(name, level) for name in timed}
        shares.append(sum(spelled(name, level) in known for name in counted))
    enough = 0.9 * max(shares)
    return next(level for level, share in enumerate(shares) if share >= enough)


# Tokens stand for kernels: equal ones may be one kernel. The timed run knows its iterations from
# annotations; a run with counters does not.
Tokens = tuple[int, ...]


def iterations_of(iteration: Ints) -> list[Ints]:
    """Return the places of each iteration, and of what lies outside; or the whole as one."""
    numbers = [int(n) for n in np.unique(iteration) if n != NONE]
    if not numbers:
        return [np.arange(len(iteration)), np.zeros(0, np.int64)]
    parts = [np.flatnonzero(iteration == number) for number in numbers]
    return [*parts, np.flatnonzero(iteration == NONE)]


def match(timed: Sequence[int], counted: Sequence[int], iterations: Sequence[Ints]) -> Match:
    """Pair two runs, whose tokens are in the order of dispatch, iteration by iteration.

    `iterations` are the places of each timed iteration, and last those outside.
    """
    row = np.full(len(timed), NONE, np.int64)
    uncertain = np.zeros(len(timed), bool)
    *inside, outside = iterations
    variants = [tuple(timed[i] for i in part.tolist()) for part in inside]
    usual = max(Counter(variants).items(), key=lambda each: (each[1], len(each[0])))[0]
    parts = segments(usual, counted)
    fits: dict[Tokens, list[_Fit]] = {}
    seen: Counter[Tokens] = Counter()
    # What lies between iterations may be a part of one, as at the start of a trace.
    stretches = np.split(outside, np.flatnonzero(np.diff(outside) != 1) + 1)
    for places in (*inside, *(stretches if len(outside) else ())):
        tokens = tuple(timed[i] for i in places.tolist())
        if tokens not in fits:
            fits[tokens] = _fits(tokens, counted, parts)
        _give(fits[tokens], seen[tokens], places, row, uncertain)
        seen[tokens] += 1
    fitting = {place for each in fits.values() for fit in each for place in fit.row} - {NONE}
    repeats = np.array(sorted(fitting), np.int64)
    return Match(row, uncertain, repeats, len(inside), len(parts))


class _Fit(NamedTuple):
    row: list[int]
    """Place in the counted run of each, `NONE` for none."""
    uncertain: list[bool]
    paired: int
    doubts: int


def _fits(tokens: Tokens, counted: Sequence[int], parts: Sequence[range]) -> list[_Fit]:
    """Return the fits of all counted iterations, the best first."""
    fits = []
    here = Counter(tokens)
    for part in parts:
        there = tuple(counted[part.start : part.stop])
        held = Counter(there)
        row = [NONE] * len(tokens)
        for mine, theirs in pairs(tokens, there):
            row[mine] = part.start + theirs
        doubt = [
            row[i] != NONE and here[token] != held[token] for i, token in enumerate(tokens)
        ]  # fmt: skip
        fits.append(_Fit(row, doubt, sum(place != NONE for place in row), sum(doubt)))
    return sorted(fits, key=lambda fit: (-fit.paired, fit.doubts))


def _give(fits: Sequence[_Fit], turn: int, places: Ints, row: Ints, uncertain: Flags) -> None:
    """Give an iteration the counters of one of those that fit best, in turn, gaps from the next."""
    if not fits:
        return
    best = [fit for fit in fits if fit[2:] == fits[0][2:]]
    first = best[turn % len(best)]
    for fit in (first, *(fit for fit in fits if fit is not first)):
        open_places = row[places] == NONE
        given = np.array(fit.row, np.int64)
        row[places] = np.where(open_places, given, row[places])
        uncertain[places] |= open_places & (given != NONE) & np.array(fit.uncertain, bool)
        if (row[places] != NONE).all():
            return


def segments(usual: Tokens, counted: Sequence[int]) -> list[range]:
    """Return the places of each iteration of a counted run, by the most frequent timed one.

    Before the first iteration there may be other tokens, and some may be missing. Tokens that the
    counted run holds a whole multiple of times, the same for most of them, mark the iterations.
    Between the last mark of one and the first of the next, the cut is where the end and the start
    of the usual iteration fit best. One iteration if that finds no order.
    """
    whole = [range(len(counted))]
    often = Counter(usual)
    places: dict[int, list[int]] = {}
    for place, token in enumerate(counted):
        if token in often:
            places.setdefault(token, []).append(place)
    votes = Counter(
        len(found) // often[token]
        for token, found in places.items()
        if len(found) % often[token] == 0
    )
    if not votes:
        return whole
    number = max(votes.items(), key=lambda vote: (vote[1], vote[0]))[0]
    marks = {t: p for t, p in places.items() if len(p) == number * often[t]}
    starts = [min(p[n * often[t]] for t, p in marks.items()) for n in range(number)]
    ends = [max(p[(n + 1) * often[t] - 1] for t, p in marks.items()) for n in range(number)]
    if any(end >= start for end, start in zip(ends, starts[1:], strict=False)):
        return whole
    last = max(i for i, token in enumerate(usual) if token in marks)
    first = min(i for i, token in enumerate(usual) if token in marks)
    tail, head = usual[last + 1 :], usual[:first]
    cuts = [0]
    for end, start in zip(ends, starts[1:], strict=False):
        between = tuple(counted[end + 1 : start])
        of_tail = [theirs for mine, theirs in pairs(tail + head, between) if mine < len(tail)]
        cuts.append(end + 1 + (max(of_tail) + 1 if of_tail else 0))
    cuts.append(len(counted))
    return [range(a, b) for a, b in pairwise(cuts)]


MOST_CELLS = 1 << 30
"""Of the table of prefixes, a bit each: 128 MiB. Longer rows pair token by token, see `pairs`."""


def pairs(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Return places of equal tokens, rising in both rows, as many as can be.

    Of several ways the one with the latest places of the second row is taken: what is measured
    twice is measured for the first time while libraries still choose among kernels.

    Bit-parallel (Allison and Dix 1986; Hyyro 2004): one addition of integers of ``len(first)`` bits
    for each token of the second row. Rows whose table has more than `MOST_CELLS` cells pair the
    occurrences of each token from the end.
    """
    same = 0
    most = min(len(first), len(second))
    while same < most and first[-1 - same] == second[-1 - same]:
        same += 1
    rest, other = first[: len(first) - same], second[: len(second) - same]
    if len(rest) * len(other) <= MOST_CELLS:
        found = _longest(rest, other)
    else:
        found = _by_occurrence(rest, other)
    ends = ((len(first) - same + n, len(second) - same + n) for n in range(same))
    return found + list(ends)


def _longest(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Fill the table from the ends, so that tracing it from the starts meets late places."""
    count = len(first)
    if not count or not second:
        return []
    masks: dict[int, int] = {}
    for place, token in enumerate(reversed(first)):
        masks[token] = masks.get(token, 0) | 1 << place
    full = (1 << count) - 1
    row, table = full, []
    for token in reversed(second):
        met = row & masks.get(token, 0)
        row = ((row + met) | (row - met)) & full
        table.append(row)
    found = []
    i, j = count, len(second)
    while i and j:
        if table[j - 1] >> (i - 1) & 1:
            i -= 1
        elif j > 1 and not table[j - 2] >> (i - 1) & 1:
            j -= 1
        else:
            found.append((count - i, len(second) - j))
            i, j = i - 1, j - 1
    return found


def _by_occurrence(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    places: dict[int, list[int]] = {}
    for place, token in enumerate(second):
        places.setdefault(token, []).append(place)
    found = []
    for place in range(len(first) - 1, -1, -1):
        left = places.get(first[place])
        if left:
            found.append((place, left.pop()))
    return found[::-1]
