"""Validate every shipped table; --record stores the totals and the bands of uncertainty."""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from projector.config.device import load_device
from projector.validate.names import device_of
from projector.validate.registry import KINDS
from projector.validate.run import Result, validate
from projector.validate.totals import summary

ROOT = Path(__file__).resolve().parents[1]
TOTALS = Path(__file__).with_name("totals.json")
PAGE = ROOT / "docs" / "validation.md"
BANDS = ROOT / "hardware" / "uncertainty.yaml"

SHOWN = ("total_rows", "rows", "projected", "median_ape", "p90_ape", "geomean_ratio")
COVERED = 0.68
"""Share of published runs that a band covers, one standard deviation of a normal error."""
PARTS = ("without_doubt", "dense", "moe", "tuned", "tuned_as_named")
"""Parts of a table that have totals of their own."""
WHOLE_RUNS = ("training_throughput", "memory")
"""Tables of whole runs, shown with their worst rows."""
WORST = 10
FEWEST = 8
"""Rows below which a group has no line, and no band of its own."""


def main() -> None:
    """Print the totals of every table."""
    totals, lines, worst = {}, [], []
    for kind in KINDS:
        validation = validate(kind, Path(__file__).parent / "data" / f"{kind}.csv")
        found = summary(validation)
        totals[kind] = {name: _rounded(found[name]) for name in (*SHOWN, "group_mean_ape")}
        print(kind, totals[kind])
        lines += _rows(kind, found)
        if kind in WHOLE_RUNS:
            worst += _worst(kind, validation.results)
        if kind == "training_throughput":
            bands = {"time": _bands(validation.results) | _unseen(validation.results)}
        if kind == "memory":
            bands["memory"] = _bands(validation.results)
    if "--record" in sys.argv[1:]:
        TOTALS.write_text(json.dumps(totals, indent=2) + "\n", encoding="utf-8")
        # Bands of ratios are written by pairs.py.
        kept = {"pairs": yaml.safe_load(BANDS.read_text(encoding="utf-8")).get("pairs", {})}
        BANDS.write_text(_document(bands | kept), encoding="utf-8")
        head, rest = PAGE.read_text(encoding="utf-8").split("<!-- figures -->\n")
        _, tail = rest.split("<!-- end of figures -->\n")
        body = "\n".join([*HEADER, *lines, "", *WORST_HEADER, *worst, ""])
        PAGE.write_text(
            f"{head}<!-- figures -->\n\n{body}\n<!-- end of figures -->\n{tail}", encoding="utf-8"
        )


HEADER = (
    "| table | rows | eligible | projected | median | p90 | ratio |",
    "|---|---|---|---|---|---|---|",
)
WORST_HEADER = (
    "The worst rows of training and memory, with what is known about them:",
    "",
    "| table, line | model | device | precision | ratio | doubt or note |",
    "|---|---|---|---|---|---|",
)


def _rows(kind: str, found: dict[str, Any]) -> list[str]:
    """Return the lines of one table: whole, its parts, and by group."""
    lines = [_row(f"**{kind}**", found)]
    parts = [part for part in PARTS if part in found]
    lines += [_row(part.replace("_", " "), found[part]) for part in parts]
    for grouping in ("device", "model", "precision", "source"):
        groups = found["groups"].get(grouping, {})
        shown = [name for name, each in groups.items() if name and each["projected"] >= FEWEST]
        lines += [_row(f"{grouping} {name}", groups[name]) for name in shown]
    return lines


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
    errors = (100.0 * totals[error] for error in ("median_ape", "p90_ape"))
    ratio = totals["geomean_ratio"]
    cells = [
        name,
        *(f"{totals[count]}" for count in ("total_rows", "rows", "projected")),
        *(f"{error:.1f}" for error in errors),
        f"{ratio:.3f}" if ratio is not None else "",
    ]
    return f"| {' | '.join(cells)} |"


def _bands(results: tuple[Result, ...] | list[Result]) -> dict[str, dict[str, Any]]:
    """Return the band of each family of devices and kind of model, and of everything."""
    errors: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.projected and result.ape is not None:
            family = load_device(device_of(result.device)).architecture
            errors["all"].append(result.ape)
            errors[f"{family}.{result.family}"].append(result.ape)
    return {
        name: {"relative": round(float(np.quantile(group, COVERED)), 3), "runs": len(group)}
        for name, group in sorted(errors.items())
        if len(group) >= FEWEST
    }


def _unseen(results: tuple[Result, ...] | list[Result]) -> dict[str, dict[str, Any]]:
    """Return the band of a device that nobody measured: every measured one counts the same.

    The new device is one of n + 1, and nothing is known of its errors: the share that the n others
    must cover is (n + 1) / n times as large (conformal prediction for groups).
    """
    of_device: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.projected and result.ape is not None:
            of_device[load_device(device_of(result.device)).name].append(result.ape)
    errors = np.concatenate([np.array(group) for group in of_device.values()])
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in of_device.values()])
    order = np.argsort(errors)
    share = np.cumsum(weights[order]) / weights.sum()
    covered = min(1.0, COVERED * (len(of_device) + 1) / len(of_device))
    relative = round(float(errors[order][np.searchsorted(share, covered)]), 3)
    return {"unseen": {"relative": relative, "devices": sorted(of_device)}}


def _document(bands: dict[str, dict[str, dict[str, Any]]]) -> str:
    head = (
        "# Relative error that covers 68 % of the published runs of a device family and kind of\n"
        "# model; written by validation/scoreboard.py --record, read by every projection.\n"
        "# A device that `unseen` does not list has no run, and at least the band of `unseen`.\n"
    )
    return head + str(yaml.safe_dump(bands, sort_keys=True))


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
