"""Validate every shipped table; --record stores the totals in docs/scoreboard.md.

Usage: ``scoreboard.py [--record] [KIND ...]``, by default all tables; lines of other tables stay
as they are. Run ``bands.py --record`` before, whose bands are judged here.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from projector.validate.kind import KINDS
from projector.validate.run import Result, validate
from projector.validate.totals import summary

ROOT = Path(__file__).resolve().parents[1]
TOTALS = Path(__file__).with_name("totals.json")
PAGE = ROOT / "docs" / "scoreboard.md"

SHOWN = ("total_rows", "rows", "projected", "median_ape", "p90_ape", "geomean_ratio")
PARTS = ("without_doubt", "dense", "moe", "tuned", "tuned_as_named")
"""Parts of a table that have totals of their own."""
WHOLE_RUNS = ("training_throughput", "memory")
"""Tables of whole runs, shown with their worst rows."""
WORST = 10
FEWEST = 8
"""Rows below which a group has no line."""


def main() -> None:
    """Print the totals of tables."""
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(KINDS)
    totals = json.loads(TOTALS.read_text(encoding="utf-8"))
    head, lines, worst, tail = _page()
    for kind in chosen:
        validation = validate(kind, Path(__file__).parent / "data" / f"{kind}.csv")
        found = summary(validation)
        totals[kind] = {name: _rounded(found[name]) for name in (*SHOWN, "group_mean_ape")}
        print(kind, totals[kind], found["left_out"])
        lines[kind] = _rows(kind, found)
        if kind in WHOLE_RUNS:
            worst[kind] = _worst(kind, validation.results)
    if "--record" in sys.argv[1:]:
        TOTALS.write_text(json.dumps(totals, indent=2) + "\n", encoding="utf-8")
        rows = [line for kind in KINDS for line in lines.get(kind, [])]
        bad = [line for kind in WHOLE_RUNS for line in worst.get(kind, [])]
        body = "\n".join([*HEADER, *rows, "", *WORST_HEADER, *bad, ""])
        PAGE.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}", encoding="utf-8")


BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
HEADER = (
    "| table | rows | eligible | projected | error | ratio | held | left out | ratio | held |",
    "|---|---|---|---|---|---|---|---|---|---|",
)
WORST_HEADER = (
    "The worst rows of training and memory, with what is known about them:",
    "",
    "| table, line | model | device | precision | ratio | doubt or note |",
    "|---|---|---|---|---|---|",
)


def _page() -> tuple[str, dict[str, list[str]], dict[str, list[str]], str]:
    """Return the page before its figures, the lines of each table, its worst rows, the rest."""
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    body, tail = rest.split(END)
    lines: dict[str, list[str]] = {}
    worst: dict[str, list[str]] = {}
    kind = ""
    for line in body.splitlines():
        titled = re.match(r"\| \*\*(\w+)\*\* \|", line)
        listed = re.match(r"\| (\w+), \d+ \|", line)
        if titled:
            kind = titled[1]
        if listed:
            worst.setdefault(listed[1], []).append(line)
        elif kind and line.startswith("| ") and line not in WORST_HEADER:
            lines.setdefault(kind, []).append(line)
    return head, lines, worst, tail


def _rows(kind: str, found: dict[str, Any]) -> list[str]:
    """Return the lines of one table: whole, its parts, and by group."""
    lines = [_row(f"**{kind}**", found)]
    parts = [part for part in PARTS if part in found]
    lines += [_row(part.replace("_", " "), found[part]) for part in parts]
    lines += _sources(found["over_sources"])
    phases = found["groups"].get("phase", {})
    lines += [_row(f"phase {name}", each) for name, each in phases.items() if each["projected"]]
    for grouping in ("vendor", "device", "model", "precision", "source"):
        groups = found["groups"].get(grouping, {})
        shown = [name for name, each in groups.items() if name and each["projected"] >= FEWEST]
        lines += [_row(f"{grouping} {name}", groups[name]) for name in shown]
    return lines


def _sources(found: dict[str, Any]) -> list[str]:
    """Return a line with the mean over sources of their medians, and one with the worst source."""
    if found["in_sample"] is None:
        return []
    means, names = [], []
    for each in (found["in_sample"], found["left_out"]):
        means.append("" if each is None else f"{100.0 * each['mean_of_medians']:.1f}")
        names.append(
            "" if each is None else f"{each['worst']} {100.0 * each['worst_median_ape']:.1f}"
        )
    count = found["in_sample"]["sources"]
    return [
        f"| mean of the medians of {count} sources | | | | {means[0]} | | | {means[1]} | | |",
        f"| worst source | | | | {names[0]} | | | {names[1]} | | |",
    ]


def _worst(kind: str, results: tuple[Result, ...] | list[Result]) -> list[str]:
    """Return a line for each of the rows furthest from their measurement."""
    projected = [result for result in results if result.projected]
    projected.sort(key=lambda result: -(result.ape or 0.0))
    lines = []
    for result in projected[:WORST]:
        notes = "; ".join(text for text in (result.doubt, result.outcome.note) if text)
        cells = [f"{kind}, {result.line}", result.model, result.device, result.precision]
        cells += [f"{result.outcome.ratio:.3f}", notes]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return lines


def _row(name: str, totals: dict[str, Any]) -> str:
    counts = [f"{totals[count]}" for count in ("total_rows", "rows", "projected")]
    left_out = totals["left_out"]
    cells = [name, *counts, *_errors(totals), *(_errors(left_out) if left_out else [""] * 3)]
    return f"| {' | '.join(cells)} |"


def _errors(totals: dict[str, Any]) -> list[str]:
    """Return median and 90th percentile, mean ratio, and the shares that lie in their bands."""
    ratio, held = totals["geomean_ratio"], (totals["coverage_68"], totals["coverage_90"])
    return [
        f"{100.0 * totals['median_ape']:.1f} / {100.0 * totals['p90_ape']:.1f}",
        f"{ratio:.3f}" if ratio is not None else "",
        "" if held[0] is None else f"{100.0 * held[0]:.0f} / {100.0 * held[1]:.0f}",
    ]


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
