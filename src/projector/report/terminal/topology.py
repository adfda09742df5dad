"""Nodes as tables: parts, tiers, matrices, routes."""

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from projector.report.terminal.tables import add_row, grid, section

MANY = 16
"""Devices whose matrix a terminal shows."""

MANY_ROUTES = 120
"""Routes that a terminal shows."""


def node_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the tiers of a node, what hangs on what, and what collectives reach."""
    tiers = grid("=tier", "links", "GB/s", "latency us", "bundles", "<between")
    for tier in shown["tiers"]:
        links = [link for link in shown["links"] if link["tier"] == tier["tier"]]
        add_row(
            tiers,
            tier["tier"],
            str(tier["links"]),
            f"{tier['gb_per_s']:,.4g}",
            f"{tier['latency_us']:,.3g}",
            str(tier["bundles"]),
            _some([f"{link['a']}-{link['b']}" for link in links]),
        )
    note = f"{len(shown['devices'])} devices: {shown['device']}"
    parts = section(shown["node"], note, tiers)
    if shown["rates"]:
        rates = grid("devices", "ring", "exchange", "slowest pair")
        for row in shown["rates"]:
            add_row(
                rates,
                str(row["devices"]),
                *(f"{row[f'{name}_gb_per_s']:,.4g}" for name in ("ring", "exchange", "pair")),
            )
        parts += section("Among the first devices", "GB/s of one device and direction", rates)
    return parts


def cluster_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return what a host of a cluster finds on its way to others."""
    table = grid("=to hosts in", "hosts", "switches", "latency us", "alone", "all at once")
    for row in shown["reach"]:
        add_row(
            table,
            row["where"],
            f"{row['hosts']:,}",
            str(row["switches"]),
            f"{row['latency_us']:,.3g}",
            f"{row['alone_gb_per_s']:,.4g}",
            f"{row['shared_gb_per_s']:,.4g}",
        )
    kind = "rail-optimised" if shown["rail_optimised"] else "plain"
    sizes = ", ".join(
        f"{shown[name]:,} {name if shown[name] > 1 else name[:-1]}"
        for name in ("hosts", "pods", "zones")
    )
    parts = section(f"Cluster: {sizes}", f"{shown['network']}, {kind}; GB/s of one host", table)
    tiers = grid("=tier", "bundles", "adapters below", "GB/s in all")
    for name in dict.fromkeys(link["tier"] for link in shown["links"]):
        links = [link for link in shown["links"] if link["tier"] == name]
        total = sum(link["gb_per_s"] for link in links)
        width = sum(link["links"] for link in links)
        add_row(tiers, name, str(len(links)), f"{width:,}", f"{total:,.5g}")
    note = "a vertex stands for all hosts that look alike" if shown["folded"] else ""
    return [*parts, *section("Graph", note, tiers)]


def matrix_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the three matrices of a node."""
    route = f"along the {shown['route']} route"
    if shown["engine"]:
        route += f" by the engine {shown['engine']}"
    return [
        *_matrix("Hops", "along the shortest route", shown, "hops", "d"),
        *_matrix("Bandwidth", f"GB/s per direction, {route}", shown, "bandwidth_gb_per_s", ".4g"),
        *_matrix("Latency", f"us, {route}", shown, "latency_us", ".3g"),
    ]


def _matrix(
    title: str, note: str, shown: dict[str, Any], key: str, form: str
) -> list[RenderableType]:
    devices = shown["devices"][:MANY]
    table = grid("", *(str(device) for device in devices))
    for device in devices:
        row = shown[key][device][:MANY]
        add_row(
            table, str(device), *(_cell(row[other], device == other, form) for other in devices)
        )
    rest = len(shown["devices"]) - len(devices)
    more = f"; {rest} more devices in --json" if rest else ""
    return section(title, f"{note}{more}", table)


def _cell(value: float | None, same: bool, form: str) -> str:
    return "-" if same or value is None else format(value, form)


def route_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return routes, one line for each pair where the widest is the shortest, else two."""
    table = grid("=pair", "=route", "=path", "hops", "GB/s", "us", "all routes")
    for row in shown["routes"][:MANY_ROUTES]:
        pair = f"{row['source']}-{row['target']}"
        together = row["all_routes_gb_per_s"]
        names = ("widest",) if row["widest_is_shortest"] else ("shortest", "widest")
        for name in names:
            route = row[name]
            kind = "shortest, widest" if row["widest_is_shortest"] else name
            add_row(
                table,
                pair,
                kind,
                "-".join(map(str, route["path"])),
                str(route["hops"]),
                f"{route['gb_per_s']:,.4g}",
                f"{route['latency_us']:,.3g}",
                "" if together is None or name == "shortest" else f"{together:,.4g}",
            )
    rest = len(shown["routes"]) - MANY_ROUTES
    note = "GB/s per direction of the narrowest link, and of all routes at once"
    return section("Routes", f"{note}; {rest} more in --json" if rest > 0 else note, table)


def flow_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the rates of flows that run at once."""
    table = grid("=flow", "=path", "alone", "together")
    for row in shown["flows"]:
        add_row(
            table,
            row["flow"],
            "-".join(map(str, row["path"])),
            f"{row['alone_gb_per_s']:,.4g}",
            f"{row['gb_per_s']:,.4g}",
        )
    return section("Flows", f"GB/s, max-min fair, {shown['route']} routes", table)


def _some(names: Sequence[str], most: int = 12) -> str:
    rest = len(names) - most
    return " ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
