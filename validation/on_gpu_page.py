"""The page of `on_gpu.py`: what ran, what failed, and how far projections are off."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from projector.report.document import Column, Document, Figure, Section, Table, prose, words
from projector.report.pages.page import GRID
from projector.units import MICROSECOND

State = Mapping[str, Any]

WORST = 40
"""Pairs that are furthest off, so many are listed."""

DIGITS = 3


def document(state: State) -> Document:
    """Return the report of a state, as `on_gpu.py` writes it."""
    device = state["environment"]["device"]
    if state["rehearsal"]:
        title = f"A rehearsal on {device}"
        lead = (
            "This is a rehearsal: the path of a GPU with small shapes on a processor, modelled by "
            "the profile of another one. It shows that every part runs. No number here says "
            "anything about a GPU or about the models."
        )
    else:
        title = f"A morning on {device}"
        lead = "Everything of the measuring path, beside what the models say of this device."
    return Document(title, lead, [*_sections(state)])


def _sections(state: State) -> Iterator[Section]:
    parts = state["parts"]
    yield Section("What ran", table=_parts(parts))
    errors = [
        (part["title"], term, each)
        for part in parts.values()
        for term, each in part.get("errors", {}).items()
    ]
    if errors:
        about = "Median and 90th percentile of |projected / measured - 1|, by term."
        figures = (("Ratios", lambda: _ratios(parts)),)
        yield Section("Errors by term", about, _errors(errors), figures=figures)
    failures = [
        (part["title"], each) for part in parts.values() for each in part.get("failures", ())
    ]
    if failures:
        about = "Single cases that gave no number; the rest of their part went on."
        yield Section("What gave no number", about, _failures(failures))
    yield Section("Machine and versions", table=_pairs({**_machine(state), **state["facts"]}))
    for part in parts.values():
        if part.get("facts"):
            yield Section(part["title"], table=_pairs(part["facts"]))
    rows = [row for part in parts.values() for row in part.get("rows", ())]
    if rows:
        about = f"Up to {WORST} pairs, furthest from a ratio of 1. on_gpu.json has all of them."
        yield Section("Furthest off", about, _worst(rows))


def _machine(state: State) -> dict[str, str]:
    where, runs = state["environment"], state["runs"]
    spent_s = sum(run.get("seconds", 0.0) for run in runs)
    return {
        "device": where["device"],
        "profile": state["device"],
        "backend": f"{where['backend']} {where['runtime']}".strip(),
        "driver": where["driver"],
        "torch": where["torch"],
        **where["libraries"],
        "system": where["system"],
        "projector": state["version"],
        "runs": f"{len(runs)}, the first began {runs[0]['started'] if runs else '-'}",
        "minutes measured": f"{spent_s / 60.0:.1f}",
    }


def _parts(parts: Mapping[str, Any]) -> Table:
    found = list(parts.values())
    return Table(
        (
            words("part", [each["title"] for each in found]),
            words("status", [each["status"] for each in found]),
            Column("seconds", [each.get("seconds") for each in found], digits=1),
            Column("compared", [len(each.get("rows", ())) for each in found]),
            Column("without a number", [len(each.get("failures", ())) for each in found]),
            prose("why", [each["error"] or None for each in found]),
        )
    )


def _errors(errors: list[tuple[str, str, Mapping[str, Any]]]) -> Table:
    return Table(
        (
            words("part", [title for title, _, _ in errors]),
            words("term", [term for _, term, _ in errors]),
            *(
                Column(name, [each[key] for _, _, each in errors], digits=digits)
                for name, key, digits in (
                    ("pairs", "count", 0),
                    ("median error", "median_ape", DIGITS),
                    ("p90 error", "p90_ape", DIGITS),
                    ("mean ratio", "geomean_ratio", DIGITS),
                )
            ),
        )
    )


def _failures(failures: list[tuple[str, Mapping[str, str]]]) -> Table:
    """Return each reason once, with how many cases it has and the first of them."""
    counts = Counter((title, each["status"], each["message"]) for title, each in failures)
    first = {
        (title, each["status"], each["message"]): each["what"] for title, each in failures[::-1]
    }
    reasons = list(counts)
    return Table(
        (
            words("part", [title for title, _, _ in reasons]),
            words("status", [status for _, status, _ in reasons]),
            Column("cases", [counts[each] for each in reasons]),
            prose("why", [message for _, _, message in reasons]),
            prose("such as", [first[each] for each in reasons]),
        )
    )


def _pairs(facts: Mapping[str, str]) -> Table:
    known = {name: text for name, text in facts.items() if text}
    return Table((words("what", list(known)), prose("value", list(known.values()))))


def _worst(rows: list[Mapping[str, Any]]) -> Table:
    shown = sorted(rows, key=lambda row: -abs(math.log(row["ratio"])))[:WORST]
    return Table(
        (
            words("term", [row["term"] for row in shown]),
            prose("what", [row["what"] for row in shown]),
            *(
                words(name, [_quantity(row[name], row["unit"]) for row in shown])
                for name in ("measured", "projected")
            ),
            Column("ratio", [row["ratio"] for row in shown], digits=DIGITS),
        )
    )


def _quantity(value: float, unit: str) -> str:
    return f"{value / MICROSECOND:,.4g} µs" if unit == "s" else f"{value:,.4g} {unit}"


def _ratios(parts: Mapping[str, Any]) -> Figure:
    """Return projected over measured of each pair, sorted within its part."""
    curves = []
    for part in parts.values():
        rows = sorted(part.get("rows", ()), key=lambda row: row["ratio"])
        places = [100.0 * (number + 0.5) / len(rows) for number in range(len(rows))]
        curves.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": part["title"],
                "x": places,
                "y": [row["ratio"] for row in rows],
                "text": [f"{row['term']}: {row['what']}" for row in rows],
            }
        )
    layout = {
        "xaxis": {"title": {"text": "share of the pairs of a part, %"}, "gridcolor": GRID},
        "yaxis": {
            "title": {"text": "projected over measured"}, "type": "log", "gridcolor": GRID
        },
        "plot_bgcolor": "white",
    }  # fmt: skip
    return {"data": [curve for curve in curves if curve["x"]], "layout": layout}
