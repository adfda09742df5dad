"""Write what the tables of ``data/`` say in words into columns; --check only looks for columns.

A column that a table has stays as it is: to read it anew after a rule of
``hardware/table_words.yaml`` has changed, name it with --again.
"""

import argparse
import csv
from pathlib import Path

from projector.validate.kind import KINDS
from projector.validate.totals import write_normalised
from projector.validate.words import columns_of

DATA = Path(__file__).parent / "data"


def main() -> None:
    """Normalise every table, or say what lacks columns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a column is missing")
    parser.add_argument("--again", nargs="*", default=[], metavar="COLUMN", help="read these anew")
    options = parser.parse_args()
    missing = []
    for kind in KINDS:
        path = DATA / f"{kind}.csv"
        drop(path, set(options.again) & set(columns_of(kind)))
        with path.open(encoding="utf-8", newline="") as stream:
            columns = next(csv.reader(stream))
        lacking = [name for name in columns_of(kind) if name not in columns]
        if lacking and not options.check:
            write_normalised(kind, path, path)
        missing += [f"{kind}: {name}" for name in lacking]
    if options.check and missing:
        raise SystemExit("no column " + ", ".join(missing))
    print(f"{len(missing)} columns written")


def drop(path: Path, columns: set[str]) -> None:
    """Take columns out of a table."""
    if not columns:
        return
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    kept = [place for place, name in enumerate(rows[0]) if name not in columns]
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(
            [row[place] for place in kept] for row in rows
        )


if __name__ == "__main__":
    main()
