"""The map of what bounds a step, as a few lines."""

from collections import Counter

from rich.console import RenderableType
from rich.text import Text

from projector.report.terminal.sensitivity import short_field
from projector.report.terminal.tables import add_row, grid, milliseconds, section
from projector.searches.bottleneck import CLASSES, BottleneckMap, MapAxis


def map_report(found: BottleneckMap) -> list[RenderableType]:
    """Say how much of the map each class bounds, and how long its steps are."""
    cells = [each for row in found.cells for each in row if each is not None]
    counts = Counter(each.bound for each in cells)
    table = grid("=bound by", "cells", "shortest ms", "longest ms")
    for name in CLASSES:
        times = [each.iteration_time_s for each in cells if each.bound == name]
        if times:
            shortest, longest = milliseconds(min(times)), milliseconds(max(times))
            add_row(table, name, f"{counts[name]:,}", shortest, longest)
    illegal = sum(found.infeasible.values())
    if illegal:
        add_row(table, "no job", f"{illegal:,}", "", "")
    note = f"{_span(found.x)}, {_span(found.y)}; --plot map=FILE draws it"
    return [Text(), *section(f"Bottleneck map of {found.job.model.name}", note, table)]


def _span(axis: MapAxis) -> str:
    first, last = three_digits(axis.values[0]), three_digits(axis.values[-1])
    return f"{short_field(axis.field)} {first} to {last}"


def three_digits(value: float) -> str:
    """Write whole numbers in full and others with three digits, never as powers of ten."""
    if value.is_integer() and value < 1e7:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):,.10g}"
