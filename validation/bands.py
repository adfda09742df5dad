"""Make the bands of uncertainty from validated tables; --record writes them.

Usage: ``bands.py [--record] [KIND ...]``, by default the tables of whole runs; bands of other
quantities stay as they are. docs/accuracy.md says how bands are made.
"""

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fit_collectives
import fit_networks
import numpy as np
import yaml
from conformal import (
    FRACTIONS,
    Method,
    Residual,
    nested_coverage,
    residuals_of,
    tables_of,
    tables_without,
    unseen_factors,
)

from projector.config.bands import SHARES, UNFAMILIAR
from projector.config.device_file import load_device
from projector.validate.kind import kind_of
from projector.validate.names import device_of
from projector.validate.run import DEVICE, Result, Table, validate, without

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).with_name("data")
BANDS = ROOT / "hardware" / "uncertainty.yaml"
LEFT_OUT = ROOT / "hardware" / "uncertainty_left_out.yaml"
WHOLE_RUNS = ("training_throughput", "memory")
NESTED = (*WHOLE_RUNS, "serving_measured")
"""Tables whose bands are also kept without each source."""
PAGE = ROOT / "docs" / "scoreboard.md"
BEGIN, END = "<!-- coverage -->\n", "<!-- end of coverage -->\n"
FEWEST = 20
"""Rows of a class whose coverage is shown."""
SIDES = ("low", "high")
QUANTITIES = ("time", "memory", "gemm", "attention", "collective", "moe_layer", "serving")
HEADER = (
    "| class | rows | sources | 68 % band | 90 % band | held |",
    "|---|---|---|---|---|---|",
)

HEAD = """\
# Bands of projections by class: the measured value lies between the factors low and high of the
# projected one, for 68 and 90 % of comparable rows. The narrowest class that is listed counts.
# `method` says how they are made and is written by hand, `pairs` is written by validation/pairs.py,
# `anchored` by validation/anchors.py, `rl` by validation/published_rl_steps.py, everything else by
# validation/bands.py, each with --record.
# Every projection reads this file.
"""
LEFT_OUT_HEAD = """\
# The bands of uncertainty.yaml as they are without the rows of one source, by quantity and source:
# `projector validate` judges a source by bands that have not seen it.
# Written by validation/bands.py --record.
"""


def main() -> None:
    """Print bands and their coverage, nested."""
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(WHOLE_RUNS)
    bands = yaml.safe_load(BANDS.read_text(encoding="utf-8"))
    nested = yaml.safe_load(LEFT_OUT.read_text(encoding="utf-8")) if LEFT_OUT.is_file() else {}
    stated = bands["method"]
    lines: dict[str, list[str]] = {}
    for name in chosen:
        kind = kind_of(name)
        results = validate(name, DATA / f"{name}.csv").results
        is_kernel = name not in WHOLE_RUNS
        pull = stated["pull"]["kernels" if is_kernel else kind.quantity]
        method = Method(
            pull=pull["value"],
            centred=None if is_kernel else frozenset(stated["centred"][kind.quantity]["value"]),
            is_symmetric=kind.quantity in stated["symmetric"]["value"],
        )
        own = stated["kernels"].get(kind.quantity, {}) if is_kernel else {}
        if kind.quantity == "collective":
            results = _collectives_out(results)
        found = residuals_of(results, by_device=is_kernel and name not in NESTED)
        residuals, unfamiliar = _by_root(found)
        widening = own["widening"]["value"] if is_kernel else stated["hindsight"][kind.quantity]
        table: dict[str, Any] = dict(tables_of(residuals, method, widening))
        table |= _of_rest(unfamiliar)
        factors = own.get("unseen")
        if kind.quantity == "time":
            factors = unseen_factors(
                _devices_out(results), method, stated["unseen_at_least"]["value"]
            )
        elif is_kernel and factors is not None:
            factors = {f"factor_{share}": factors["value"] for share in (68, 90)}
        if "other_library" in own:
            table["other_library"] = own["other_library"]["value"]
        if factors is not None:
            table["unseen"] = {**factors, "devices": sorted({r.device for r in residuals})}
        if "new_generation" in own:
            devices = {device_of(result.device) for result in results if result.projected}
            known_to_us = sorted({load_device(name).architecture for name in devices})
            generation = {**own["new_generation"]["value"], "architectures": known_to_us}
            table["unseen"]["new_generation"] = generation
        bands[kind.quantity] = table
        if name in NESTED:
            nested[kind.quantity] = tables_without(
                residuals, method, factors, 1.0 if is_kernel else widening
            )
            known = nested[kind.quantity]
            for source in {*known, *(each.source for each in unfamiliar)}:
                left = _of_rest([each for each in unfamiliar if each.source != source])
                known[source] = {**known.get(source, table), **left}
        is_shown = not is_kernel or kind.quantity == "collective"
        lines[kind.quantity] = _lines(
            kind.quantity, table, residuals, method, widening if is_shown else 1.0
        )
        print("\n".join([*lines[kind.quantity], str(table.get("unseen", ""))]))
    if "--record" in sys.argv[1:]:
        _write_page(lines)
        BANDS.write_text(
            HEAD + yaml.safe_dump(bands, sort_keys=True, default_flow_style=None, width=100),
            encoding="utf-8",
        )
        LEFT_OUT.write_text(
            LEFT_OUT_HEAD
            + yaml.safe_dump(nested, sort_keys=True, default_flow_style=None, width=100),
            encoding="utf-8",
        )


def _collectives_out(results: Sequence[Result]) -> list[Result]:
    """Return results with residuals of constants that have not seen the source of a row.

    Rows of several nodes occur once more, with their transport
    left out: they stand for networks without rows.
    """
    rows = {line.number: line.row for line in Table(DATA / "collectives_measured.csv", (), "")}
    near, far = (
        fit_collectives.left_out(("source",)),
        fit_networks.left_out(("source", "transport")),
    )
    sources = _ratios(near, "source") | _ratios(far, "source")
    transports = _ratios(far, "transport")
    found = []
    for result in results:
        outcome = result.outcome
        if outcome.ratio is None:
            continue
        key = tuple(rows[result.line].values())
        ratio = sources.get(key, outcome.ratio)
        found.append(replace(result, outcome=replace(outcome, ratio=ratio)))
        if key in transports:
            size = outcome.classes[0].rpartition(".")[2]
            classes = f"nodes.without_rows.{size}", "nodes.without_rows"
            unseen = replace(outcome, ratio=transports[key], classes=classes)
            found.append(replace(result, outcome=unseen))
    return found


def _ratios(found: fit_networks.LeftOut, key: str) -> dict[tuple[str | None, ...], float]:
    """Return the ratio of projected and measured time of each fitted row."""
    ratios = found.times_s[key] / found.measured_s
    return {
        tuple(row.values()): float(ratio)
        for row, ratio, is_fitted in zip(found.rows, ratios, found.fitted, strict=True)
        if is_fitted
    }


def _by_root(residuals: Sequence[Residual]) -> tuple[list[Residual], list[Residual]]:
    """Return residuals of usual runs, and those of the rest."""
    usual = [each for each in residuals if each.classes[-1] != UNFAMILIAR]
    return usual, [each for each in residuals if each.classes[-1] == UNFAMILIAR]


def _of_rest(residuals: Sequence[Residual]) -> dict[str, Any]:
    """Return the band of the rest: both sides as wide as its errors are, sources weighing the same.

    They have too few sources for anything finer.
    """
    if not residuals:
        return {}
    counts = Counter(each.source for each in residuals)
    ordered = sorted(residuals, key=lambda each: abs(each.error))
    reached = np.cumsum([1.0 / counts[each.source] for each in ordered]) / len(counts)
    entry: dict[str, Any] = {"runs": len(residuals), "sources": len(counts)}
    for share, fraction in zip(SHARES, FRACTIONS, strict=True):
        width = abs(ordered[min(int(np.searchsorted(reached, fraction)), len(ordered) - 1)].error)
        entry[f"low_{share}"] = round(math.exp(-width), 3)
        entry[f"high_{share}"] = round(math.exp(width), 3)
    return {UNFAMILIAR: entry}


def _devices_out(results: Sequence[Result]) -> list[Residual]:
    """Return residuals of rows projected by constants that have not seen their device."""
    kind = kind_of("training_throughput")
    assert kind.project_without is not None
    rows = {line.number: line.row for line in Table(DATA / f"{kind.name}.csv", (), kind.name)}
    known = []
    for result in results:
        if result.projected and not result.doubt:
            device = device_of(result.device)
            constants = without(kind.quantity, device, DEVICE) or without(
                kind.quantity, load_device(device).name, DEVICE
            )
            known.append((result, constants))
    again = [(result, constants) for result, constants in known if constants is not None]
    others = kind.project_without(
        [rows[result.line] for result, _ in again], [constants for _, constants in again]
    )
    changed = {result.line: other for (result, _), other in zip(again, others, strict=True)}
    found = [
        replace(result, outcome=replace(result.outcome, left_out=changed.get(result.line)))
        for result, _ in known
    ]
    return [replace(each, source=each.device) for each in _by_root(residuals_of(found))[0]]


def _lines(
    quantity: str,
    table: Mapping[str, Any],
    residuals: Sequence[Residual],
    method: Method,
    widening: float,
) -> list[str]:
    """Return a line for each class: its rows, its bands, and what they hold if made without it."""
    lines = []
    for name, (rows, held) in nested_coverage(residuals, FRACTIONS, method, widening).items():
        if rows < FEWEST:
            continue
        entry = table[name]
        sides = [
            " to ".join(f"{100.0 * (entry[f'{side}_{share}'] - 1.0):+.0f}" for side in SIDES)
            for share in SHARES
        ]
        shares = " / ".join(f"{100.0 * share:.0f}" for share in held)
        words = name.replace(".", ", ").replace("_bit", " bits")
        cells = [f"{quantity.replace('_', ' ')}: {words}", f"{rows}", f"{entry['sources']}"]
        lines.append(f"| {' | '.join([*cells, *sides, shares])} |")
    return lines


def _write_page(lines: Mapping[str, Sequence[str]]) -> None:
    """Replace the lines of these quantities in docs/scoreboard.md."""
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    body, tail = rest.split(END)
    kept: dict[str, list[str]] = {}
    for line in body.splitlines():
        if line.startswith("| ") and ": " in line:
            quantity = line[2:].partition(":")[0].replace(" ", "_")
            kept.setdefault(quantity, []).append(line)
    shown = {**kept, **lines}
    table = [line for quantity in QUANTITIES for line in shown.get(quantity, [])]
    text = "\n".join([*HEADER, *table])
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
