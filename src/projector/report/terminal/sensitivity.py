"""Reports of `sensitivity`: effects, Sobol indices, the map of what bounds a step."""

from collections import Counter
from collections.abc import Sequence
from itertools import count

from rich.console import RenderableType
from rich.text import Text

from projector.report.terminal.grid import DIM, Grid, milliseconds, percent, section, signed
from projector.report.terminal.job import configuration, title
from projector.searches.bottleneck import CLASSES, BottleneckMap, MapAxis
from projector.searches.sensitivity import Effect, Sensitivity, SharedEffect, SharedSensitivity
from projector.searches.sobol import SobolIndices

LONGEST_COLUMNS = 4
"""Workloads with a column of their own."""


def sensitivity_report(result: Sensitivity | SharedSensitivity, top: int) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    if isinstance(result, SharedSensitivity):
        rows = zip(count(1), result.workloads, result.sensitivities, strict=False)
        table = Grid.of("workloads", rows, bound=lambda row: _bound(row[2]).split(",")[0])
        mean = f"geometric mean {milliseconds(result.iteration_time_s)} ms/step"
        return [*section("Workloads", mean, table), *_effects(result, top)]
    step = Text(f"{milliseconds(result.iteration_time_s)} ms/step", style="bold")
    step.append(f"  {_bound(result)}", style="not bold")
    return [
        title(result.job),
        configuration(result.job, result.job.training.schedule),
        step,
        Text(),
        *_effects(result, top),
    ]


def _bound(result: Sensitivity) -> str:
    largest = sorted((result.bound_shares or {}).items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(share, 0)}" for name, share in largest if share >= 0.005)


def _effects(result: Sensitivity | SharedSensitivity, top: int) -> list[RenderableType]:
    if isinstance(result, SharedSensitivity):
        table, step = _shared_table(result, top), result.sensitivities[0].step
    else:
        table, step = _table(result, top), result.step
    change = f"{100.0 * result.change:g} %"
    note = (
        f"percent of the step for one percent of the field; point: changed by {100.0 * step:g} %, "
        f"elasticity: by {change}"
    )
    if isinstance(result, Sensitivity):
        note += f"; last columns: the step with {change} less and more"
    rest = len(result.effects) - top
    shown = result.effects[:top]
    lines = []
    if any(effect.uneven for effect in shown):
        lines.append(
            "* the step jumps or bends here (tiles, waves, algorithms): trust the larger change"
        )
    if rest > 0:
        lines.append(f"{rest} smaller effects; --top shows more")
    lines.append(
        f"{len(result.without_effect)} fields change nothing here, {len(result.illegal)} cannot "
        "change by as much; --json names them"
    )
    return [*section("Effects", note, table), *[Text(line, style=DIM) for line in lines]]


def _table(result: Sensitivity, top: int) -> Grid:
    def change(effect: Effect, seconds: float) -> str:
        return f"{signed(100.0 * (seconds / effect.base_s - 1.0))} %"

    return Grid.of(
        "effects", result.effects[:top], short=short_field, point=_point,
        less=lambda each: change(each, each.low_s), more=lambda each: change(each, each.high_s),
    )  # fmt: skip


def _shared_table(result: SharedSensitivity, top: int) -> Grid:
    numbers = range(1, len(result.sensitivities) + 1)
    columns = [f"#{number}" for number in numbers] if len(numbers) <= LONGEST_COLUMNS else []
    table = Grid("<field", "point", "elasticity", *columns)
    for effect in result.effects[:top]:
        slopes = [f"{slope:+.3f}" for slope in effect.by_workload] if columns else []
        table.add_row(
            short_field(effect.field), _point(effect), f"{effect.elasticity:+.3f}", *slopes
        )
    return table


def _point(effect: Effect | SharedEffect) -> str:
    slope = "" if effect.point_elasticity is None else f"{effect.point_elasticity:+.3f}"
    return f"{slope}{'*' if effect.uneven else ' '}"


def short_field(field: str) -> str:
    """Name a field, and fields that move together once: ``scale_up_{,peer_}gb_per_s``."""
    parts = field.split("+")
    if len(parts) > 1:
        begin = _common_length(parts)
        end = _common_length([part[begin:][::-1] for part in parts])
        inner = ",".join(part[begin : len(part) - end] for part in parts)
        first = parts[0]
        field = f"{first[:begin]}{{{inner}}}{first[len(first) - end :]}"
    return field


def _common_length(texts: Sequence[str]) -> int:
    shortest = min(len(text) for text in texts)
    return next(
        (index for index in range(shortest) if len({text[index] for text in texts}) > 1), shortest
    )


# Sobol indices as a table.
MOST_PANELS = 5
"""Columns of the table and panels of the figure: the mean, and workloads while there is room."""


def sobol_report(result: SobolIndices) -> list[RenderableType]:
    """Return the table of indices, below the effects."""
    averaged = len(result.workloads) > 1
    shown = result.by_workload if averaged and len(result.workloads) < MOST_PANELS else ()
    columns = [f"ST #{panel + 1}" for panel in range(len(shown))]
    table = Grid("=field", "S1", "±", "ST", "±", *columns)
    for row, index in enumerate(result.indices):
        numbers = (index.s1, index.s1_interval, index.st, index.st_interval)
        totals = [f"{indices[row].st:.3f}" for indices in shown]
        table.add_row(short_field(index.field), *(f"{number:.3f}" for number in numbers), *totals)
    step = "mean ln(step)" if averaged else "ln(step)"
    note = (
        f"share of the variance of {step} a field explains alone (S1) and with the others (ST), "
        "± 95 %"
    )
    text = (
        f"each field between 1/{result.factor:g} and {result.factor:g} times its value; "
        f"{result.samples:,} samples, {result.evaluations:,} projections, seed {result.seed}; "
        f"standard deviation of {step} {result.spread:.3f}"
    )
    lines = [text]
    if result.left_out:
        lines.append(f"{len(result.left_out)} other fields were not sampled; --json says why")
    return [Text(), *section("Sobol indices", note, table), *(Text(line, DIM) for line in lines)]


# The map of what bounds a step, as a few lines.
def map_report(found: BottleneckMap) -> list[RenderableType]:
    """Say how much of the map each class bounds, and how long its steps are."""
    cells = [each for row in found.cells for each in row if each is not None]
    counts = Counter(each.bound for each in cells)
    table = Grid("=bound by", "cells", "shortest ms", "longest ms")
    for name in CLASSES:
        times = [each.iteration_time_s for each in cells if each.bound == name]
        if times:
            shortest, longest = milliseconds(min(times)), milliseconds(max(times))
            table.add_row(name, counts[name], shortest, longest)
    illegal = sum(found.infeasible.values())
    if illegal:
        table.add_row("no job", illegal, "", "")
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
