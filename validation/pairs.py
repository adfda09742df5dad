"""How well the ratio of two step times is known: pairs of published runs that differ in a setting.

Prints the errors by setting, those of the sources, and the worst pairs; --record writes the bands
into hardware/uncertainty.yaml and the table into docs/scoreboard.md.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from run_pairs import (
    ONE,
    Pair,
    Spread,
    bands,
    coverage,
    find_pairs,
    read_runs,
    spread_of,
    spreads,
)

from projector.projection.bands import SETTINGS, SEVERAL

TABLE = Path(__file__).parent / "data" / "training_throughput.csv"
BANDS = Path(__file__).resolve().parents[1] / "hardware" / "uncertainty.yaml"

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scoreboard.md"
BEGIN, END = "<!-- pairs -->\n", "<!-- end of pairs -->\n"
COLUMNS = (
    *("setting", "pairs", "sources", "median", "p90", "68 % band", "90 % band"),
    *("held without it", "direction right"),
)
HEADER = f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"


def main() -> None:
    """Print the table, and record the bands if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--record", action="store_true", help="write uncertainty.yaml and validation.md"
    )
    parser.add_argument("--sources", action="store_true", help="print each source as well")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N worst pairs")
    given = parser.parse_args()
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    pairs = find_pairs(read_runs(rows))
    known, held = spreads(pairs), coverage(pairs)
    names = [name for name in (*SETTINGS, ONE, SEVERAL) if name in known]
    table = [*HEADER, *(_line(name, known[name], held.get(name)) for name in names)]
    print("\n".join(table))
    for name in names if given.sources else ():
        print(name)
        _print_sources(name, pairs)
    for pair in sorted(pairs, key=lambda pair: -abs(pair.log_error))[: given.worst]:
        _print_pair(pair)
    if given.record:
        record(pairs)
        head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        text = "\n".join(["", *table, ""])
        PAGE.write_text(f"{head}{BEGIN}{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def record(pairs: Sequence[Pair]) -> None:
    """Write the bands beside those that the file holds."""
    text = BANDS.read_text(encoding="utf-8")
    head = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    content: dict[str, Any] = yaml.safe_load(text) or {}
    content["pairs"] = {
        name: {
            "relative_68": round(spread.relative_68, 3),
            "relative_90": round(spread.relative_90, 3),
            "pairs": spread.pairs,
            "sources": spread.sources,
        }
        for name, spread in sorted(bands(pairs).items())
    }
    BANDS.write_text(
        head + yaml.safe_dump(content, sort_keys=True, default_flow_style=None, width=100),
        encoding="utf-8",
    )


def _line(name: str, spread: Spread, held: tuple[float, float] | None) -> str:
    errors = (spread.median, spread.p90, spread.relative_68, spread.relative_90)
    cells = [name.replace("_", " "), f"{spread.pairs}", f"{spread.sources}"]
    cells += [f"{100.0 * error:.1f}" for error in errors]
    cells.append(f"{100.0 * held[0]:.0f} / {100.0 * held[1]:.0f} %" if held else "")
    cells.append(f"{spread.right} of {spread.decided}" if spread.decided else "")
    return f"| {' | '.join(cells)} |"


def _print_sources(name: str, pairs: Sequence[Pair]) -> None:
    of_source: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if name == pair.name or (name == ONE and len(pair.settings) == 1):
            of_source[pair.first.source].append(pair)
    for source, some in sorted(of_source.items()):
        spread = spread_of(some)
        bias = 100.0 * float(np.mean([pair.log_error for pair in some]))
        text = f"{spread.pairs} pairs, {100.0 * spread.median:.1f} / {100.0 * spread.p90:.1f}"
        print(f"    {source}: {text}, mean {bias:+.1f}")


def _print_pair(pair: Pair) -> None:
    lines = f"{pair.first.line + 2}, {pair.second.line + 2}"
    names = ", ".join(pair.settings)
    error = 100.0 * float(np.expm1(pair.log_error))
    print(f"{error:+6.1f} % lines {lines}: {' '.join(pair.first.group[::3])}: {names}")
    print(f"         {pair.first.job!r}\n         {pair.second.job!r}")


if __name__ == "__main__":
    main()
