"""The report of `projector record`: what was measured where, and what no table has."""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.measure.tables import Tables
from projector.report.terminal.tables import add_row, grid, percent, section

_STATUSES = {
    "ok": "measured",
    "out_of_memory": "out of memory",
    "unsupported": "not supported",
    "failed": "failed",
}
_TIMES = ("forward", "backward", "optimizer", "total", "time")


def record_report(summary: Mapping[str, Any]) -> list[RenderableType]:
    """Return the parts of the report on one record.

    Parameters
    ----------
    summary : mapping
        `projector.measure.record.summary_of`.
    """
    return [*_title(summary), *_layers(summary), *_longest(summary)]


def _title(summary: Mapping[str, Any]) -> list[RenderableType]:
    where = summary["environment"]
    ranks = where["ranks"]
    line = Text("Record", style="bold")
    line.append(f"  {summary['model']} {summary['precision']} on ", style="not bold")
    line.append(f"{ranks} x {where['device']}" if ranks > 1 else where["device"])
    runtime = {"cuda": "CUDA", "rocm": "ROCm"}.get(where["backend"], "")
    found = {
        "torch": where["torch"],
        runtime: where["runtime"],
        "driver": where["driver"],
        **where["libraries"],
    }
    versions = ", ".join(f"{name} {text}" for name, text in found.items() if name and text)
    lines = [f"profile {summary['device']}; {versions}", *summary["reduction"]]
    return [line, Padding(Text("\n".join(lines)), (0, 0, 1, 2))]


def _layers(summary: Mapping[str, Any]) -> list[RenderableType]:
    rows = [(each["layer"], each) for each in summary["layers"]]
    if summary["step"] is not None:
        rows.append(("step of one layer each", summary["step"]))
    rows += [(f"clock under {each['dtype']}", each) for each in summary["clocks"]]
    if not rows:
        return []
    table = grid("=layer", "=part", "ms", "spread", "MHz", "W", "peak GiB", "<by")
    for name, outcome in rows:
        times = [(part, outcome["times"].get(part)) for part in _TIMES]
        known = [(part, timing) for part, timing in times if timing is not None]
        for position, (part, timing) in enumerate(known or [("", None)]):
            first = position == 0
            cells = _cells(timing, outcome["numbers"] if first else {})
            why = "" if outcome["status"] == "ok" else _why(outcome)
            by = (why or outcome["backend"]) if first else ""
            add_row(table, name if first else "", part, *cells, by)
    return section("Layers", "median ± half of the distance between the quartiles", table)


def _cells(timing: Mapping[str, Any] | None, numbers: Mapping[str, Any]) -> list[str]:
    peak = numbers.get("peak_allocated_gib")
    clock_mhz, power_w = numbers.get("clock_mhz"), numbers.get("power_w")
    median = spread = ""
    if timing is not None:
        clock_mhz, power_w = timing["clock_mhz"] or clock_mhz, timing["power_w"] or power_w
        median = f"{timing['median_ms']:,.4g}"
        if timing["median_ms"]:
            half_ms = (timing["high_ms"] - timing["low_ms"]) / 2.0
            spread = f"±{percent(half_ms / timing['median_ms'])}"
    return [
        median,
        spread,
        *("" if value is None else f"{value:,.0f}" for value in (clock_mhz, power_w)),
        "" if peak is None else f"{peak:,.4g}",
    ]


def _longest(summary: Mapping[str, Any]) -> list[RenderableType]:
    if not summary["longest"]:
        return []
    table = grid("=operation", "=phase", "<shape", "ms", "spread")
    for each in summary["longest"]:
        (timing,) = list(each["times"].values())[:1] or (None,)
        median, spread, *_ = _cells(timing, {})
        add_row(table, each["label"], each["phase"], each["shape"], median, spread)
    counted = ", ".join(
        f"{count:,} {_STATUSES[status]}" for status, count in summary["operations"].items()
    )
    note = f"the longest of {counted}"
    if summary["unsettled"]:
        note += f"; {summary['unsettled']:,} timings did not settle"
    return section("Operations", note, table)


def tables_report(tables: Tables) -> list[RenderableType]:
    """Return how many rows each table has, and what has no table."""
    table = grid("=table", "rows")
    for name, found in tables.tables.items():
        add_row(table, name, f"{len(found.rows):,}")
    left_out = "; ".join(f"{count:,} {why}" for why, count in tables.left_out.items())
    parts = section("Measurement tables", "for projector validate and calibrate", table)
    if left_out:
        parts.append(Padding(Text(f"In no table: {left_out}"), (0, 0, 1, 2)))
    return parts


def _why(outcome: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (_STATUSES[outcome["status"]], outcome["message"])))
