"""Reports of nodes and clusters: parts, matrices, routes, transfers, collectives."""

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType

from projector.report.terminal.grid import Grid, bar, listing, section
from projector.units import GB, GIB, KIB, MIB, MICROSECOND

if TYPE_CHECKING:
    from projector.single.collective import CollectiveProjection

MANY = 16
"""Devices whose matrix a terminal shows."""

MANY_ROUTES = 120
"""Routes that a terminal shows."""


def node_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the tiers of a node, what hangs on what, and what collectives reach."""

    def between(tier: dict[str, Any]) -> str:
        links = [link for link in shown["links"] if link["tier"] == tier["tier"]]
        names = [f"{link['a']}-{link['b']}" for link in links]
        rest = len(names) - 12
        return " ".join(names[:12]) + (f" and {rest} more" if rest > 0 else "")

    tiers = Grid.of("node_tiers", shown["tiers"], between=between)
    rates = Grid.of("node_rates", shown["rates"])
    return [
        *section(shown["node"], f"{len(shown['devices'])} devices: {shown['device']}", tiers),
        *listing("Among the first devices", "GB/s of one device and direction", rates),
    ]


def cluster_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return what a host of a cluster finds on its way to others."""
    kind = "rail-optimised" if shown["rail_optimised"] else "plain"
    sizes = ", ".join(
        f"{shown[name]:,} {name if shown[name] > 1 else name[:-1]}"
        for name in ("hosts", "pods", "zones")
    )
    note = f"{shown['network']}, {kind}; GB/s of one host"
    parts = section(f"Cluster: {sizes}", note, Grid.of("cluster_reach", shown["reach"]))
    tiers = Grid("=tier", "bundles", "adapters below", "GB/s in all")
    for name in dict.fromkeys(link["tier"] for link in shown["links"]):
        links = [link for link in shown["links"] if link["tier"] == name]
        total = sum(link["gb_per_s"] for link in links)
        tiers.add_row(name, str(len(links)), sum(link["links"] for link in links), f"{total:,.5g}")
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
    table = Grid("", *(str(device) for device in devices))
    for device in devices:
        row = shown[key][device][:MANY]
        known = (None if device == other else row[other] for other in devices)
        table.add_row(str(device), *("-" if each is None else format(each, form) for each in known))
    rest = len(shown["devices"]) - len(devices)
    more = f"; {rest} more devices in --json" if rest else ""
    return section(title, f"{note}{more}", table)


def route_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return routes, one line for each pair where the widest is the shortest, else two."""
    rows: list[dict[str, Any]] = []
    for row in shown["routes"][:MANY_ROUTES]:
        named = {"pair": f"{row['source']}-{row['target']}", "together": row["all_routes_gb_per_s"]}
        widest = {**named, "kind": "widest", "route": row["widest"]}
        if row["widest_is_shortest"]:
            rows.append({**widest, "kind": "shortest, widest"})
        else:
            rows += [
                {**named, "kind": "shortest", "route": row["shortest"], "together": None},
                widest,
            ]
    table = Grid.of("routes", rows, joined=_joined)
    rest = len(shown["routes"]) - MANY_ROUTES
    note = "GB/s per direction of the narrowest link, and of all routes at once"
    return section("Routes", f"{note}; {rest} more in --json" if rest > 0 else note, table)


def flow_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the rates of flows that run at once."""
    table = Grid.of("flows", shown["flows"], joined=_joined)
    return section("Flows", f"GB/s, max-min fair, {shown['route']} routes", table)


def _joined(path: list[Any]) -> str:
    return "-".join(map(str, path))


# Transfers in a node as tables: engines, sizes, flows that share links.
def transfer_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the engines at one size, and where asked for the sizes and crossovers."""
    both = "both ways, " if shown["both_directions"] else ""
    times = f", read {shown['accesses']} times" if shown["accesses"] > 1 else ""
    note = f"{size_name(shown['bytes'])}, {both}{_path(shown)}{times}"
    fastest = shown["time_us"]

    def most(row: dict[str, Any]) -> str:
        low, high = row["low_gb_per_s"], row["high_gb_per_s"]
        return f"{row['peak_gb_per_s']:,.1f}" if low == high else f"{low:,.1f} to {high:,.1f}"

    def share(row: dict[str, Any]) -> float:
        return fastest / row["time_us"] if row["time_us"] else 1.0

    table = Grid.of("engines", shown["engines"], us=_us, most=most, share=share)
    parts = section(f"{shown['node']}: {shown['from']} to {shown['to']}", note, table)
    if "sizes" in shown:
        parts += _sizes(shown)
    return parts


def sharing_report(shown: dict[str, Any]) -> list[RenderableType]:
    """Return the rates of messages that move at the same time."""
    rows = [
        {"engine": "" if number else engine["engine"], "flow": flow,
         "total": None if number else engine["total_gb_per_s"]}
        for engine in shown["engines"] for number, flow in enumerate(engine["flows"])
    ]  # fmt: skip
    table = Grid.of("shared_flows", rows)
    both = "GB/s per direction; totals of both" if shown["both_directions"] else "GB/s"
    return section(f"{shown['node']}: at the same time", both, table)


def _sizes(shown: dict[str, Any]) -> list[RenderableType]:
    names = [row["engine"] for row in shown["engines"]]
    table = Grid("size", "=fastest", *names)
    for row in shown["sizes"]:
        rates = (f"{row['engines'][name]['gb_per_s']:,.3g}" for name in names)
        table.add_row(size_name(row["bytes"]), row["engine"], *rates)
    parts = section("By size", "GB/s per direction", table)
    points = Grid.of("engine_crossovers", shown["crossovers"], size=size_name)
    return parts + listing("Crossovers", "where the fastest engine changes", points)


def _path(shown: dict[str, Any]) -> str:
    if len(shown["path"]) == 1:
        return "within its memory"
    return f"{_joined(shown['path'])} at {shown['link_gb_per_s']:,.4g} GB/s"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:,.1f}"


# Collectives on the terminal: every algorithm at one size, all sizes, and the crossovers.
def collective_report(
    projection: "CollectiveProjection", mpi_us: float | None = None
) -> list[RenderableType]:
    """Return the algorithms at the asked size, the sizes of a sweep, and the crossovers."""
    note = _note(projection) + ("" if mpi_us is None else f"; by MPI {mpi_us:,.1f} us")
    parts = section(title(projection), note, _algorithms(projection))
    if projection.is_sweep:
        times = projection.times
        table = Grid("size", "us", "bus GB/s", "=algorithm", *times.each_s)
        rates = projection.bus_bytes_per_s(times.num_bytes, times.best_s) / GB
        for row, size in enumerate(times.num_bytes):
            table.add_row(
                size_name(float(size)),
                _microseconds(float(times.best_s[row])),
                f"{rates[row]:,.1f}",
                times.best[row] or "-",
                *(_microseconds(float(column[row])) for column in times.each_s.values()),
            )
        parts += section("By size", "us of each algorithm", table)
    library, every = projection.crossovers, projection.crossovers_of_all
    if library:
        note = f"among what the library has: {', '.join(projection.served_by_library)}"
        parts += section("Crossovers", note, Grid.of(_CROSSOVERS, library, size=size_name))
    if every != library:
        table = Grid.of(_CROSSOVERS, every, size=size_name)
        parts += section("Crossovers of all", "with any algorithm", table)
    return parts


_CROSSOVERS = "collective_crossovers"


def title(projection: "CollectiveProjection") -> str:
    """Return a title that names the projection in one line."""
    case = projection.case
    far = f", {case.stride} apart" if case.stride > 1 else ""
    return f"{case.operation}, {projection.ranks:,} x {case.cluster.device.name}{far}"


def size_name(num_bytes: float) -> str:
    """Return a size in the largest binary unit that leaves it at least 1, with three digits."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.3g} {name}"
    return f"{num_bytes:,.0f} B"


def _note(projection: "CollectiveProjection") -> str:
    local = projection.local
    where = "one scale-up domain" if local == projection.ranks else f"{local} in a scale-up domain"
    network = projection.case.cluster.network.name
    words = projection.band.words
    band = f"; times {words} for 68 %" if words else ""
    return f"{size_name(projection.num_bytes)}, {where}; {network}{band}"


def _microseconds(seconds: float) -> str:
    if not np.isfinite(seconds):
        return "-"
    return _us(seconds / MICROSECOND)


def _algorithms(projection: "CollectiveProjection") -> Grid:
    table = Grid("=algorithm", "us", "bus GB/s", "| of the fastest", "=")
    row = projection.row
    timed = [
        (float(column[row]), name)
        for name, column in projection.times.each_s.items()
        if np.isfinite(column[row])
    ]
    if not timed or projection.algorithm is None:
        table.add_row("nothing moves", _microseconds(projection.time_s), "0.0", bar(0.0), "")
        return table
    fastest = min(timed)[0]
    for seconds, name in sorted(timed):
        rate = float(projection.bus_bytes_per_s(projection.num_bytes, seconds)) / GB
        if name == projection.algorithm:
            remark = "asked for" if projection.asked else "chosen"
        else:
            remark = "" if name in projection.served_by_library else "not in the library"
        table.add_row(name, _microseconds(seconds), f"{rate:,.1f}", bar(fastest / seconds), remark)
    return table
