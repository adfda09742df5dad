"""Dividing groups of rows, the same way whatever the order of the table."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from projector.arrays import Flags

FOLDS = 5
"""Parts of a cross-validation, where there are as many groups."""


def folds(groups: Sequence[str], count: int = FOLDS) -> list[Flags]:
    """Return which rows each fold holds out: whole groups, and about as many rows in each.

    Fewer than two groups have no folds.
    """
    sizes = Counter(groups)
    count = min(count, len(sizes))
    if count < 2:
        return []
    members: list[set[str]] = [set() for _ in range(count)]
    rows = [0] * count
    for group in sorted(sizes, key=lambda name: (-sizes[name], _hash(name))):
        smallest = rows.index(min(rows))
        members[smallest].add(group)
        rows[smallest] += sizes[group]
    return [np.array([group in chosen for group in groups]) for chosen in members]


def held_out(groups: Sequence[str], fraction: float) -> Flags:
    """Return which rows are put aside: whole groups, up to ``fraction`` of all rows."""
    sizes = Counter(groups)
    limit = fraction * len(groups)
    chosen: set[str] = set()
    rows = 0
    for group in sorted(sizes, key=_hash):
        if rows + sizes[group] <= limit:
            chosen.add(group)
            rows += sizes[group]
    return np.array([group in chosen for group in groups])


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
