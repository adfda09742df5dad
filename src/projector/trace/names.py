"""What names in traces mean: ``hardware/trace_names.yaml``, applied to each distinct name once."""

import re
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from projector.arrays import Flags, Ints
from projector.config._base import Config
from projector.config.resources import shipped_table
from projector.trace.activity import PHASES, TYPES
from projector.trace.events import RankTrace


class Cited(Config):
    """An entry of a table of ours, with where it comes from."""

    source: str
    note: str = ""


class Word(Cited):
    """What one word of a file stands for."""

    value: str


class Pattern(Cited):
    """Names that mean one thing."""

    pattern: str


class TypePattern(Pattern):
    """Names of one type of operation."""

    type: str


class NamedPattern(Pattern):
    """Names that tell one thing, such as a framework."""

    name: str


class TraceNames(Config):
    """``hardware/trace_names.yaml``."""

    communication_kernels: tuple[Pattern, ...]
    communication_operators: tuple[Pattern, ...]
    ending_together: tuple[Pattern, ...]
    messages: tuple[Pattern, ...]
    kernel_types: tuple[TypePattern, ...]
    operator_types: tuple[TypePattern, ...]
    attention_operators: tuple[Pattern, ...]
    iterations: tuple[Pattern, ...]
    optimizer_steps: tuple[Pattern, ...]
    phases: dict[str, tuple[Pattern, ...]]
    phase_kernels: dict[str, tuple[Pattern, ...]]
    phase_prefixes: dict[str, str]
    frames: tuple[Pattern, ...]
    wrappers: tuple[Pattern, ...]
    layers: tuple[Pattern, ...]
    containers: tuple[Pattern, ...]
    frameworks: tuple[NamedPattern, ...]
    element_bytes: dict[str, int]
    sources: dict[str, str]


load_trace_names = shipped_table(TraceNames, "trace_names.yaml")


@cache
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


def expressions(patterns: Iterable[Pattern]) -> tuple[re.Pattern[str], ...]:
    """Return the compiled expressions of a list of the table."""
    return _compiled(tuple(entry.pattern for entry in patterns))


def fits(names: Sequence[str], patterns: Iterable[Pattern]) -> Flags:
    """Return whether each name fits any of the patterns."""
    searches = [expression.search for expression in expressions(patterns)]
    return np.fromiter(
        (any(search(name) for search in searches) for name in names), np.bool_, len(names)
    )


def fits_used(names: Sequence[str], used: Ints, patterns: Iterable[Pattern]) -> Flags:
    """Return whether each name fits any of the patterns, false for all but the rows used."""
    rows = np.unique(used)
    found = np.zeros(len(names), np.bool_)
    found[rows] = fits([names[row] for row in rows.tolist()], patterns)
    return found


def numbers(names: Sequence[str], patterns: Iterable[Pattern]) -> Ints:
    """Return the number that the first fitting pattern finds in each name, -1 without one."""
    searches = [expression.search for expression in expressions(patterns)]
    found = np.full(len(names), -1, np.int64)
    for row, name in enumerate(names):
        match = next((match for search in searches if (match := search(name))), None)
        if match is not None and len(match.group(1)) <= _DIGITS:
            found[row] = int(match.group(1))
    return found


_DIGITS = 18
"""More digits leave 64 bits; such a name counts nothing."""


def types(names: Sequence[str], patterns: Iterable[TypePattern]) -> Ints:
    """Return the position in ``TYPES`` of each name, -1 where no pattern fits."""
    entries = tuple(patterns)
    pairs = [
        (expression.search, TYPES.index(entry.type))
        for expression, entry in zip(expressions(entries), entries, strict=True)
    ]
    found = np.full(len(names), -1, np.int64)
    for row, name in enumerate(names):
        found[row] = next((code for search, code in pairs if search(name)), -1)
    return found


def phases(names: Sequence[str], table: dict[str, tuple[Pattern, ...]]) -> Ints:
    """Return the position in ``PHASES`` of each name, -1 where no pattern fits."""
    found = np.full(len(names), -1, np.int64)
    for phase, patterns in table.items():
        found[fits(names, patterns) & (found < 0)] = PHASES.index(phase)
    return found


def frameworks_of(trace: RankTrace) -> tuple[str, ...]:
    """Return what splits the model, as the names in a rank's trace tell."""
    return tuple(
        entry.name for entry in load_trace_names().frameworks if fits(trace.names, [entry]).any()
    )
