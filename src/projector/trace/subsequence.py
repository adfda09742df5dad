"""The longest common subsequence of two rows of tokens, and how they pair."""

from collections.abc import Sequence

MOST_CELLS = 1 << 30
"""Of the table of prefixes, a bit each: 128 MiB. Longer rows pair token by token, see `pairs`."""


def pairs(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Return places of equal tokens, rising in both rows, as many as can be.

    Of several ways the one with the latest places of the second row is taken: what is measured
    twice is measured for the first time while libraries still choose among kernels.

    Parameters
    ----------
    first, second : sequence of int
        Tokens.

    Returns
    -------
    list of (int, int)
        Places in the first and second row, in order.

    Notes
    -----
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
