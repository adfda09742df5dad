"""Who communicates with whom, and how much."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from projector.arrays import Ints
from projector.trace.names import load_trace_names

MOST = 2**50
"""Bytes and elements beyond this are of no buffer: the file is spoilt there."""


def collective_bytes(detail: Mapping[str, Any]) -> int:
    """Return the buffer of a collective as collectives count it, -1 where it is not known.

    It is the larger side: what an all-gather ends with, what a reduce-scatter begins with, what
    each rank holds in an all-reduce, broadcast or all-to-all, and a message of two ranks.
    """
    elements = [detail.get("in_elements"), detail.get("out_elements")]
    known = [value for value in elements if isinstance(value, int) and 0 <= value < MOST]
    width = load_trace_names().element_bytes.get(str(detail.get("dtype", "")).rpartition("::")[2])
    if not known or width is None:
        return -1
    return max(known) * width


def tensor_bytes(detail: Mapping[str, Any]) -> int:
    """Return the largest tensor that an operator was given, -1 where that is not known.

    It stands for the buffer of collectives on symmetric memory, of which nothing else is recorded.
    """
    width = load_trace_names().element_bytes
    dims, types = detail.get("dims"), detail.get("types")
    if not isinstance(dims, tuple) or not isinstance(types, tuple):
        return -1
    found = -1
    for shape, kind in zip(dims, types, strict=False):
        each = width.get(str(kind).rpartition("::")[2])
        if each is None or not isinstance(shape, tuple) or not shape:
            continue
        if all(isinstance(size, int) and 0 <= size < MOST for size in shape):
            found = max(found, math.prod(shape) * each)
    return found if found < MOST else -1


def group_name(detail: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return a group's name and ranks, such as ``0: ranks 0-7``; None where it is not known."""
    name = detail.get("group")
    ranks = detail.get("group_ranks") or groups.get(str(name), ())
    if name is None and not ranks:
        return None
    if not ranks:
        return str(name)
    return f"{name if name is not None else 'group'}: ranks {rank_ranges(ranks)}"


def rank_ranges(ranks: Sequence[int]) -> str:
    """Return ranks as ranges: ``0-3,8``, and ``0-56 by 8`` for those at equal distances."""
    numbers = sorted({int(rank) for rank in ranks})
    steps = set(np.diff(numbers).tolist())
    if len(numbers) > 2 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}-{numbers[-1]} by {steps.pop()}"
    runs: list[list[int]] = []
    for rank in numbers:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in runs)


def of_details(
    details: Sequence[Mapping[str, Any]], groups: Mapping[str, tuple[int, ...]]
) -> tuple[Ints, list[str | None], Ints]:
    """Return what details tell of communication: whether it is any, its group, its bytes."""
    is_collective = np.array(["collective" in detail for detail in details], np.int64)
    named = [group_name(detail, groups) if "collective" in detail else None for detail in details]
    moved = np.array(
        [
            collective_bytes(detail) if "collective" in detail else _copied(detail)
            for detail in details
        ],
        np.int64,
    )
    return is_collective, named, moved


def _copied(detail: Mapping[str, Any]) -> int:
    value = detail.get("bytes")
    return value if isinstance(value, int) and 0 <= value < MOST else -1
