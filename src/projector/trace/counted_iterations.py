"""Where the iterations of a run with counters lie, and what of them each timed kernel is given.

Tokens stand for kernels: equal ones may be one kernel. The timed run knows its iterations from
annotations; a run with counters does not.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace.events import NONE

Tokens = tuple[int, ...]


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


def iterations_of(iteration: Ints) -> list[Ints]:
    """Return the places of each iteration, in order, and those outside all of them at the end.

    The whole is one iteration if all are outside.
    """
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
    """How one counted iteration fits the kernels of a timed one."""

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
