"""Sobol indices as a table."""

from rich.console import RenderableType
from rich.text import Text

from projector.report.terminal.sensitivity import short_field
from projector.report.terminal.tables import DIM, add_row, grid, section
from projector.searches.sobol import SobolIndices

MOST_PANELS = 5
"""Columns of the table and panels of the figure: the mean, and workloads while there is room."""


def sobol_report(found: SobolIndices) -> list[RenderableType]:
    """Return the table of indices, below the effects."""
    several = len(found.workloads) > 1
    shown = found.by_workload if several and len(found.workloads) < MOST_PANELS else ()
    columns = [f"ST #{place + 1}" for place in range(len(shown))]
    table = grid("=field", "S1", "±", "ST", "±", *columns)
    for row, each in enumerate(found.indices):
        numbers = (each.s1, each.s1_interval, each.st, each.st_interval)
        alone = [f"{indices[row].st:.3f}" for indices in shown]
        add_row(table, short_field(each.field), *(f"{number:.3f}" for number in numbers), *alone)
    step = "mean ln(step)" if several else "ln(step)"
    note = (
        f"share of the variance of {step} a field explains alone (S1) and with the others (ST), "
        "± 95 %"
    )
    text = (
        f"each field between 1/{found.factor:g} and {found.factor:g} times its value; "
        f"{found.samples:,} samples, {found.evaluations:,} projections, seed {found.seed}; "
        f"standard deviation of {step} {found.spread:.3f}"
    )
    lines = [text]
    if found.left_out:
        lines.append(f"{len(found.left_out)} other fields were not sampled; --json says why")
    return [Text(), *section("Sobol indices", note, table), *(Text(each, DIM) for each in lines)]
