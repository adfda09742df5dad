"""Project new rows of a published table as the tool is, before anybody fits anything to them.

Usage: ``first_projection.py [KIND NEW.csv]``. Rows of NEW.csv that `validation/data/KIND.csv` lacks
are appended to it. Then every row that has no first projection and can be projected gets one in
`first_projection.csv`, with the commit it was made at. An entry is never changed: a row that could
not be read yet enters with the commit that first reads it. Sources, devices and models must be as
committed.
"""

import csv
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from projector.validate.first import COLUMNS, RECORD, entries, entry
from projector.validate.names import is_hybrid
from projector.validate.run import validate
from projector.validate.totals import write_normalised

VALIDATION = Path(__file__).parent
DATA = VALIDATION / "data"
FILE = VALIDATION / RECORD
BEGINS = {"training_throughput": 551, "memory": 146, "serving_measured": 189}
"""First line of each table that is recorded: rows above it were fitted before the record began."""
UNREAD = {"training_throughput": {14, 15, 92, 93, *range(386, 406)}}
"""Lines above that nothing projected until fine-tuning was read."""
PROJECTING = ("src", "hardware", "models")
"""What decides a projection."""
NOT_COMPARED = ("source", "verified", "doubt", "notes")
"""Columns that another edition of the same row may word differently."""


def main() -> None:
    """Append new rows, and record what the tool says of rows without an entry."""
    if len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    commit, date = committed()
    if len(sys.argv) == 3:
        append(sys.argv[1], Path(sys.argv[2]))
    new = [each for kind in BEGINS for each in missing(kind)]
    with FILE.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if stream.tell() == 0:
            writer.writeheader()
        writer.writerows({**each, "commit": commit, "date": date} for each in new)
    print(f"{len(new)} first projections recorded at {commit}")


def missing(kind: str) -> list[dict[str, str]]:
    """Return entries, without a commit, of rows that can be projected and have none."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / f"{kind}.csv"
        rows.write_text(_without_entry(kind), encoding="utf-8")
        return [entry(kind, each) for each in validate(kind, rows).results if each.projected]


def _without_entry(kind: str) -> str:
    """Return the table with blank lines for rows that have an entry or get none."""
    known = entries(FILE, kind) if FILE.exists() else {}
    lines = (DATA / f"{kind}.csv").read_text(encoding="utf-8").split("\n")
    reader, begin = csv.DictReader(lines), 1
    for row in reader:
        line = reader.line_num
        if line in known or (line < BEGINS[kind] and not _was_unread(kind, line, row["model"])):
            lines[begin:line] = [""] * (line - begin)
        begin = line
    return "\n".join(lines)


def _was_unread(kind: str, line: int, model: str) -> bool:
    """Whether a row above the first new one was projected by nothing when these entered.

    Rows of hybrid models were not, until their layers were modelled.
    """
    hybrid = kind != "serving_measured" and is_hybrid(model)
    return hybrid or line in UNREAD.get(kind, ())


def append(kind: str, path: Path) -> None:
    """Append the rows of a file that the table lacks, in their order, with what their words say.

    Two rows are the same by the columns that the file has.
    """
    table = DATA / f"{kind}.csv"
    with path.open(encoding="utf-8-sig", newline="") as stream:
        shared = [name for name in next(csv.reader(stream)) if name not in NOT_COMPARED]
    with table.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        columns = list(reader.fieldnames or ())
        known = Counter(_row(row, shared) for row in reader)
    with tempfile.TemporaryDirectory() as folder:
        normalised = Path(folder) / path.name
        write_normalised(kind, path, normalised)
        with normalised.open(encoding="utf-8", newline="") as stream:
            new = []
            for row in csv.DictReader(stream):
                if known[_row(row, shared)]:
                    known[_row(row, shared)] -= 1
                else:
                    new.append(row)
    with table.open("a", encoding="utf-8", newline="") as stream:
        csv.DictWriter(stream, columns, lineterminator="\n").writerows(new)
    print(f"{len(new)} rows appended to {table.name}")


def _row(row: dict[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.get(name) or "" for name in names)


def committed() -> tuple[str, str]:
    """Return the short commit and its date; leave where what projects is not committed."""
    if _git("status", "--porcelain", "--", *PROJECTING):
        sys.exit(f"commit the changes in {', '.join(PROJECTING)} first")
    commit, date = _git("log", "-1", "--format=%h %as", "--", *PROJECTING).split()
    return commit, date


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(VALIDATION.parent), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


if __name__ == "__main__":
    main()
