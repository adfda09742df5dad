"""Report of a probe."""

from rich.console import RenderableType

from projector.calibrate.probed import Probed
from projector.measure.probe import threads_of
from projector.report.terminal.tables import add_row, grid, percent, section

WORST = 8
"""Times that are shown because they differ most."""


def probe_report(probed: Probed) -> list[RenderableType]:
    """Return what was fitted, how well it holds, and where it holds least."""
    environment = probed.probe.environment
    table = grid("=field", "start", "fitted", "error")
    for field in probed.fields:
        error = "at a bound" if field.standard_error is None else f"{field.standard_error:.2g}"
        add_row(table, field.field, f"{field.start:.4g}", f"{field.value:.4g}", error)
    note = f"{environment.backend}{threads_of(environment)}, torch {environment.torch}"
    parts = section(environment.device, note, table)
    table = grid("=times", "n", "median error", "projected / measured")
    for what, (rows, median, mean) in probed.errors().items():
        add_row(table, what, f"{rows}", percent(median), f"{mean:.2f}")
    parts += section("How well it holds", "of what was measured for the fit", table)
    table = grid("=time", "measured us", "projected us", "ratio")
    for row in sorted(probed.rows, key=lambda row: max(row.ratio, 1.0 / row.ratio))[
        : -WORST - 1 : -1
    ]:
        add_row(
            table,
            row.name,
            f"{1e6 * row.measured_s:,.1f}",
            f"{1e6 * row.projected_s:,.1f}",
            f"{row.ratio:.2f}",
        )
    return [*parts, *section("Where it holds least", "", table)]
