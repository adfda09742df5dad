"""A validated table as a file and as JSON."""

import csv
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from projector.config.bands import SHARES
from projector.errors import ConfigError
from projector.validate.kind import Outcome
from projector.validate.run import Result, Validation, validate
from projector.validate.table import Line

BAND_COLUMNS = ("low_68", "high_68", "low_90", "high_90")
"""The bands of a row, in its unit."""

LEFT_OUT = "predicted_left_out"
"""Prediction with constants that have not seen the source of the row."""

RESULT_COLUMNS = (
    *("predicted", "measured", "ratio", "status", "mark", "rule", "note", "as_named"),
    *BAND_COLUMNS,
    LEFT_OUT,
)
"""Columns that ``--out`` adds: ``rule`` leaves a row out, ``mark`` is where settings came from,
``as_named`` the prediction for the kernel that a tuner named."""


def write_results(
    kind: str, path: str | Path, out: str | Path | None, by: Sequence[str] = ()
) -> Validation:
    """Validate a table and, with ``out``, write it with the outcome of each row.

    ``by`` names the columns whose text makes the group of a row.

    The file appears whole or not at all: it is written under another name and then renamed.
    """
    if out is None:
        return validate(kind, path, by=by)
    target = Path(out)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise _not_written(target, error) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            validation = _write(kind, path, stream, by)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _not_written(target, error) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return validation


def results_object(validation: Validation, totals: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that ``--json`` prints, without its envelope."""
    return {
        "kind": validation.kind,
        "file": validation.path,
        **totals,
        "results": [_object(result) for result in validation.results],
    }


def _object(result: Result) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "line": result.line,
        "model": result.model,
        "eligible": result.eligible,
        "predicted": outcome.predicted,
        "measured": outcome.measured,
        "ratio": outcome.ratio,
        "status": result.status,
        "mark": outcome.mark if result.projected else None,
        "note": outcome.note,
        "as_named": outcome.as_named,
        **_bands(outcome),
        "left_out": _left_out(outcome),
    }


def _left_out(outcome: Outcome) -> dict[str, Any] | None:
    """Return a row as projected by constants that have not seen its source."""
    other = outcome.left_out
    if other is None:
        return None
    return {"predicted": other.predicted, "ratio": other.ratio, **_bands(other)}


def _bands(outcome: Outcome) -> dict[str, float | None]:
    """Return both bands in the unit of the row; None where there is none."""
    sides: list[float | None] = []
    for share in SHARES:
        sides += outcome.limits(share) or (None, None)
    return dict(zip(BAND_COLUMNS, sides, strict=True))


def _write(kind: str, path: str | Path, stream: TextIO, by: Sequence[str]) -> Validation:
    writer = csv.writer(stream, lineterminator="\n")
    columns: list[str] = []

    def begin(names: tuple[str, ...]) -> None:
        columns.extend(name for name in names if name not in RESULT_COLUMNS)
        writer.writerow([*columns, *RESULT_COLUMNS])

    def sink(line: Line, result: Result) -> None:
        outcome = result.outcome
        writer.writerow(
            [
                *(line.row.get(name, "") for name in columns),
                _text(outcome.predicted),
                _text(outcome.measured),
                _text(outcome.ratio),
                result.status,
                outcome.mark if result.projected else "",
                result.rule,
                outcome.note,
                _text(outcome.as_named),
                *(_text(side) for side in _bands(outcome).values()),
                _text(outcome.left_out.predicted if outcome.left_out else None),
            ]
        )

    return validate(kind, path, sink, begin, by)


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _not_written(target: Path, error: OSError) -> ConfigError:
    msg = f"{target} cannot be written: {error.strerror or error}"
    return ConfigError(msg, key="out", value=str(target))
