"""Transfers in a node as tables: engines, sizes, flows that share links."""

from typing import Any

from rich.console import RenderableType

from projector.report.terminal.collective import size_name
from projector.report.terminal.tables import add_row, bar, grid, section


def transfer_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the engines at one size, and where asked for the sizes and crossovers."""
    both = "both ways, " if shown["both_directions"] else ""
    times = f", read {shown['accesses']} times" if shown["accesses"] > 1 else ""
    note = f"{size_name(shown['bytes'])}, {both}{_path(shown)}{times}"
    table = grid("=engine", "us", "GB/s", "total", "at most", "latency", "CUs", "| ", "<what")
    fastest = shown["time_us"]
    for row in shown["engines"]:
        share = fastest / row["time_us"] if row["time_us"] else 1.0
        add_row(
            table,
            row["engine"],
            _us(row["time_us"]),
            f"{row['gb_per_s']:,.1f}",
            f"{row['total_gb_per_s']:,.1f}",
            _at_most(row),
            f"{row['latency_us']:,.1f}",
            f"{row['compute_units']:,}",
            bar(share),
            row["what"],
        )
    parts = section(f"{shown['node']}: {shown['from']} to {shown['to']}", note, table)
    if "sizes" in shown:
        parts += _sizes(shown)
    return parts


def sharing_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the rates of messages that move at the same time."""
    table = grid("=engine", "=from", "=to", "alone", "together", "total")
    for engine in shown["engines"]:
        for number, flow in enumerate(engine["flows"]):
            add_row(
                table,
                "" if number else engine["engine"],
                flow["from"],
                flow["to"],
                f"{flow['alone_gb_per_s']:,.1f}",
                f"{flow['gb_per_s']:,.1f}",
                "" if number else f"{engine['total_gb_per_s']:,.1f}",
            )
    both = "GB/s per direction; totals of both" if shown["both_directions"] else "GB/s"
    return section(f"{shown['node']}: at the same time", both, table)


def _sizes(shown: dict[str, Any]) -> list[RenderableType]:
    names = [row["engine"] for row in shown["engines"]]
    table = grid("size", "=fastest", *names)
    for row in shown["sizes"]:
        rates = (f"{row['engines'][name]['gb_per_s']:,.3g}" for name in names)
        add_row(table, size_name(row["bytes"]), row["engine"], *rates)
    parts = section("By size", "GB/s per direction", table)
    if shown["crossovers"]:
        points = grid("size", "=before", "=after")
        for point in shown["crossovers"]:
            add_row(points, size_name(point["bytes"]), point["from"], point["to"])
        parts += section("Crossovers", "where the fastest engine changes", points)
    return parts


def _path(shown: dict[str, Any]) -> str:
    if len(shown["path"]) == 1:
        return "within its memory"
    return f"{'-'.join(map(str, shown['path']))} at {shown['link_gb_per_s']:,.4g} GB/s"


def _at_most(row: dict[str, Any]) -> str:
    low, high = row["low_gb_per_s"], row["high_gb_per_s"]
    if low == high:
        return f"{row['peak_gb_per_s']:,.1f}"
    return f"{low:,.1f} to {high:,.1f}"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:,.1f}"
