"""Sobol indices as a table."""

from rich.console import RenderableType
from rich.text import Text

from projector.report.terminal.sensitivity import short_field
from projector.report.terminal.tables import DIM, add_row, grid, section
from projector.searches.sobol import SobolIndices

MOST_PANELS = 5
"""Columns of the table and panels of the figure: the mean, and workloads while there is room."""


def sobol_report(result: SobolIndices) -> list[RenderableType]:
    """Return the table of indices, below the effects."""
    averaged = len(result.workloads) > 1
    shown = result.by_workload if averaged and len(result.workloads) < MOST_PANELS else ()
    columns = [f"ST #{panel + 1}" for panel in range(len(shown))]
    table = grid("=field", "S1", "±", "ST", "±", *columns)
    for row, index in enumerate(result.indices):
        numbers = (index.s1, index.s1_interval, index.st, index.st_interval)
        totals = [f"{indices[row].st:.3f}" for indices in shown]
        add_row(table, short_field(index.field), *(f"{number:.3f}" for number in numbers), *totals)
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
