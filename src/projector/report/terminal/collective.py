"""Collectives on the terminal: every algorithm at one size, all sizes, and the crossovers."""

import numpy as np
from rich.console import RenderableType

from projector.report.terminal.grid import Grid
from projector.report.terminal.tables import add_row, bar, grid, section
from projector.single.collective import CollectiveProjection, Crossover
from projector.units import GB, GIB, KIB, MIB, MICROSECOND


def collective_report(projection: CollectiveProjection) -> list[RenderableType]:
    """Return the algorithms at the asked size, the sizes of a sweep, and the crossovers."""
    parts = section(title(projection), _note(projection), _algorithms(projection))
    if projection.is_sweep:
        parts += section("By size", "us of each algorithm", _sizes(projection))
    library, every = projection.crossovers, projection.crossovers_of_all
    if library:
        note = f"among what the library has: {', '.join(projection.served_by_library)}"
        parts += section("Crossovers", note, _crossovers(library))
    if every != library:
        parts += section("Crossovers of all", "with any algorithm", _crossovers(every))
    return parts


def title(projection: CollectiveProjection) -> str:
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


def _note(projection: CollectiveProjection) -> str:
    local = projection.local
    where = "one scale-up domain" if local == projection.ranks else f"{local} in a scale-up domain"
    network = projection.case.cluster.network.name
    words = projection.band.words
    band = f"; times {words} for 68 %" if words else ""
    return f"{size_name(projection.num_bytes)}, {where}; {network}{band}"


def _us(seconds: float) -> str:
    if not np.isfinite(seconds):
        return "-"
    value = seconds / MICROSECOND
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:,.1f}"


def _algorithms(projection: CollectiveProjection) -> Grid:
    table = grid("=algorithm", "us", "bus GB/s", "| of the fastest", "=")
    row = projection.row
    timed = [
        (float(column[row]), name)
        for name, column in projection.times.each_s.items()
        if np.isfinite(column[row])
    ]
    if not timed or projection.algorithm is None:
        add_row(table, "nothing moves", _us(projection.time_s), "0.0", bar(0.0), "")
        return table
    fastest = min(timed)[0]
    for seconds, name in sorted(timed):
        rate = float(projection.bus_bytes_per_s(projection.num_bytes, seconds)) / GB
        if name == projection.algorithm:
            remark = "asked for" if projection.asked else "chosen"
        else:
            remark = "" if name in projection.case.library else "not in the library"
        add_row(table, name, _us(seconds), f"{rate:,.1f}", bar(fastest / seconds), remark)
    return table


def _sizes(projection: CollectiveProjection) -> Grid:
    times = projection.times
    table = grid("size", "us", "bus GB/s", "=algorithm", *times.each_s)
    rates = projection.bus_bytes_per_s(times.num_bytes, times.best_s) / GB
    for row, size in enumerate(times.num_bytes):
        add_row(
            table,
            size_name(float(size)),
            _us(float(times.best_s[row])),
            f"{rates[row]:,.1f}",
            times.best[row] or "-",
            *(_us(float(column[row])) for column in times.each_s.values()),
        )
    return table


def _crossovers(points: tuple[Crossover, ...]) -> Grid:
    table = grid("size", "=before", "=after")
    for point in points:
        add_row(table, size_name(point.num_bytes), point.before, point.after)
    return table
