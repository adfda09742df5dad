"""Input of pictures from a sweep: some columns of all rows, chunk by chunk, and names."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.errors import ConfigError
from projector.report.figures.words import words_of
from projector.report.terminal.tables import plain
from projector.sweeps.result import MORE_IS_BETTER, SweepResult

if TYPE_CHECKING:
    import pyarrow as pa


RATE, PEAK, GPUS, USABLE = "tokens_per_s_per_gpu", "peak_gib", "gpus", "usable_gib"
LOW, HIGH, VERDICT = "peak_gib_low", "peak_gib_high", "verdict"

FIRST_RESULT = "iteration_time_ms"
"""First column after those of the axes."""

_SHORT = {
    "micro_batch_size": "MBS",
    "global_batch_size": "GBS",
    "zero_stage": "ZeRO",
    "seq_length": "seq",
    **{name: name.upper() for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")},
}

_FIRST = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero_stage", "micro_batch_size", "recompute")
"""Most telling axes of a configuration, in the order in which it is written."""


def axes_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of the axes, in the order of the space."""
    return tuple(takewhile(lambda name: name != FIRST_RESULT, columns))


def more_is_better(column: str) -> bool:
    """Tell whether the best value of a column is its largest."""
    return column in MORE_IS_BETTER


def resolve(name: str, known: Sequence[str], *, key: str) -> str:
    """Return the column that a name means: its own, or the only one with that last part."""
    name = name.strip()
    if name in known:
        return name
    matches = [column for column in known if column.rpartition(".")[2] == name]
    if len(matches) == 1:
        return matches[0]
    why = f"may be {' or '.join(matches)}" if matches else "is not available"
    msg = f"{key}: {name!r} {why}; there are {', '.join(known)}"
    raise ConfigError(msg, key=key, value=name, allowed=list(known))


def numbers(table: "pa.Table", name: str) -> Floats:
    """Return a column of numbers, NaN where it is missing."""
    import pyarrow as pa

    return np.asarray(table.column(name).cast(pa.float64()).to_numpy(), np.float64)


def codes(table: "pa.Table", name: str) -> tuple[Ints, list[Any]]:
    """Return a column as positions in a list of its distinct values; None is one of them."""
    column = table.column(name).combine_chunks().dictionary_encode("encode")
    return np.asarray(column.indices.to_numpy(), np.int64), column.dictionary.to_pylist()


def rows_at(
    result: SweepResult, columns: Sequence[str], row_numbers: Ints
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield some columns of the rows with these rising numbers, one chunk in memory at a time."""
    begin = 0
    for table in result.tables(columns):
        first, last = np.searchsorted(row_numbers, [begin, begin + len(table)]).tolist()
        if last > first:
            rows = table.take(row_numbers[first:last] - begin).to_pylist()
            yield from zip(row_numbers[first:last].tolist(), rows, strict=True)
        begin += len(table)


def sample(rows: int, most: int) -> Ints:
    """Return the numbers of at most ``most`` rows, rising; the same for equally many rows.

    They are drawn at random: every so manieth row would always have the same value on the axis
    that varies fastest.
    """
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False).astype(np.int64))


def value_text(value: Any) -> str:
    """Write one value of an axis."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_integer else plain(value)


def configuration(fields: Mapping[str, Any]) -> str:
    """Write a configuration in one line: degrees first, then batch and memory, then the rest."""
    names = {field: field.rpartition(".")[2] for field in fields}
    order = sorted(
        fields,
        key=lambda field: _FIRST.index(names[field]) if names[field] in _FIRST else len(_FIRST),
    )
    return ", ".join(_setting(field, fields[field]) for field in order)


@dataclass(frozen=True, slots=True)
class Several:
    """Values of one field among rows that are equal in everything that a picture shows."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        """Name the values where they are few."""
        few = self.values[:MOST_SEVERAL]
        if len(few) < len(self.values):
            return f"any of {len(self.values)}"
        return " or ".join(value_text(value) for value in few)


MOST_SEVERAL = 3
"""Values that are named."""


def merged(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of equal rows as one: fields that differ among them have `Several`."""
    first = settings[0]
    together: dict[str, Any] = {}
    for field, value in first.items():
        values: list[Any] = []
        for each in settings:
            if not any(each.get(field) == known for known in values):
                values.append(each.get(field))
        together[field] = value if len(values) == 1 else Several(tuple(values))
    return together


def short_name(field: str) -> str:
    """Name a field for the head of a column: a code that everyone knows, or words."""
    return _SHORT.get(field.rpartition(".")[2]) or words_of(field).name


def _setting(field: str, value: Any) -> str:
    name = field.rpartition(".")[2]
    if isinstance(value, Several):
        return f"{short_name(field)} {value}"
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if name == "nodes":
        return f"{value_text(value)} {'node' if value == 1 else 'nodes'}"
    if name == "recompute" and isinstance(value, str):
        return f"{'no' if value == 'none' else value_text(value)} recompute"
    short = _SHORT.get(name)
    text = value_text(value)
    if short:
        return f"{short}{'' if len(short) < 4 else ' '}{text}"
    words, unit = words_of(field)
    return f"{words} {text} {unit}".rstrip()


def shared(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that have the same value in all of several configurations."""
    if not settings:
        return {}
    first = settings[0]
    return {
        field: value
        for field, value in first.items()
        if all(other.get(field) == value for other in settings[1:])
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return configurations without the fields that all of them share; a single one stays."""
    same = shared(settings) if len(settings) > 1 else {}
    return [
        {name: value for name, value in setting.items() if name not in same} for setting in settings
    ]
