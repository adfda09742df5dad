"""First projections: what the tool said of rows before anybody had looked at them.

They stand in `RECORD`, beside the tables or one folder above. Structure is chosen with rows in
sight, and no test on those rows shows what that is worth. A record older than the look does.
"""

import csv
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from projector.config.bands import SHARES, Band
from projector.errors import ConfigError
from projector.validate.kind import OK, Outcome
from projector.validate.run import Result

RECORD = "first_projection.csv"

COLUMNS = (
    *("table", "line", "commit", "date", "source", "model", "gpu"),
    *("projected", "measured", "ratio", "low_68", "high_68", "low_90", "high_90"),
)
"""``line`` is that of the table. ``ratio`` is projected over measured time or GiB; the bands are
factors of the projected one."""


def entry(table: str, result: Result) -> dict[str, str]:
    """Return the cells of a projected row, all but ``commit`` and ``date``."""
    outcome = result.outcome
    bands = (side for share in SHARES for side in outcome.band.limits(share) or (None, None))
    numbers = (outcome.predicted, outcome.measured, outcome.time_ratio, *bands)
    named = (table, str(result.line), "", "", result.origin, result.model, result.device)
    cells = (*named, *("" if number is None else f"{number:.6g}" for number in numbers))
    return dict(zip(COLUMNS, cells, strict=True))


def entries(path: Path, table: str) -> dict[int, Outcome]:
    """Return the first projection of each line of a table that has one."""
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ConfigError(
                f"{path} is no record of first projections",
                key="columns",
                value=reader.fieldnames,
                allowed=list(COLUMNS),
            )
        return {int(row["line"]): _outcome(row) for row in reader if row["table"] == table}


def _outcome(row: dict[str, str]) -> Outcome:
    cells = (float(row[name]) if row[name] else None for name in COLUMNS[-7:])
    projected, measured, ratio, low_68, high_68, low_90, high_90 = cells
    band = Band(low_68, high_68, low_90, high_90, runs=0, basis="")
    return Outcome(OK, projected, measured, ratio, band=band)


def first_results(table: str, file: str, results: Iterable[Result]) -> list[Result]:
    """Return the rows of a file that have a first projection, with it for their outcome."""
    folders = (Path(file).parent, Path(file).resolve().parent.parent)
    record = next((each / RECORD for each in folders if (each / RECORD).is_file()), None)
    if record is None:
        return []
    known = entries(record, table)
    # A file of the same name elsewhere may have other rows.
    return [
        replace(result, outcome=first)
        for result in results
        if (first := known.get(result.line)) is not None
        and (measured := result.outcome.measured) is not None
        and f"{measured:.6g}" == f"{first.measured:.6g}"
    ]
