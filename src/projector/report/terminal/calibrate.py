"""Report of a calibration."""

from rich.console import RenderableType

from projector.calibrate.profile import Calibration, Change, Fitted, OwnCalibration
from projector.report.terminal.grid import Grid
from projector.report.terminal.tables import DIM, add_row, grid, percent, section


def report_of(calibration: Calibration | OwnCalibration) -> list[RenderableType]:
    """Return the report of either kind of calibration."""
    if isinstance(calibration, OwnCalibration):
        return own_report(calibration)
    return calibration_report(calibration)


def own_report(calibration: OwnCalibration) -> list[RenderableType]:
    """Return how far each constant moved, and the runs before and after."""
    table = grid("=constant", "before", "after", "moved", "<still open")
    for field in calibration.fields:
        add_row(
            table,
            field.field,
            f"{field.prior:.4g}",
            f"{field.value:.4g}",
            f"{field.shift:+.2f}" if field.seen else "-",
            f"{100.0 * field.width_left:.0f} %" if field.seen else "no run depends on it",
            style=None if field.seen else DIM,
        )
    note = "moved in widths of the prior; share of the prior's width that the runs leave open"
    parts = section(f"{calibration.base.device}: own runs", note, table)
    table = grid("=run", "measured ms", "before", "%", "after", "%")
    for run in calibration.runs:
        errors = [time_s / run.measured_s - 1.0 for time_s in (run.before_s, run.after_s)]
        add_row(
            table,
            run.name,
            f"{1e3 * run.measured_s:,.1f}",
            f"{1e3 * run.before_s:,.1f}",
            f"{100.0 * errors[0]:+.1f}",
            f"{1e3 * run.after_s:,.1f}",
            f"{100.0 * errors[1]:+.1f}",
        )
    return [*parts, *section("Time of one step", "projected before and after", table)]


def calibration_report(calibration: Calibration) -> list[RenderableType]:
    """Return the fitted fields, and the errors before and after."""
    fitted = calibration.fitted
    table = grid("=field", "shipped", "fitted", "error", "<folds", "<")
    for field in calibration.fields:
        error = "-" if field.standard_error is None else f"{field.standard_error:.2g}"
        add_row(
            table,
            field.field,
            f"{field.prior:g}",
            f"{field.value:g}",
            error,
            _folds(field),
            "not seen" if not field.seen else f"at its {field.bound} bound" if field.bound else "",
        )
    note = f"{fitted.rows:,} rows of {fitted.groups:,} groups of {calibration.table}"
    parts = section(f"{calibration.base.device}: {calibration.kind}", note, table)
    table = grid("=rows", "n", "median", "after", "p90", "after", "ratio", "after")
    _add(table, "fitted", fitted)
    for number, fold in enumerate(calibration.folds, start=1):
        _add(table, f"fold {number}, fitted without it", fold)
    if calibration.cross_validation is not None:
        _add(table, "all folds", calibration.cross_validation)
    if calibration.holdout is not None:
        _add(table, "put aside", calibration.holdout)
    parts += section("Errors of the time", "shipped, then fitted", table)
    if calibration.left_out:
        table = grid("rows", "<why")
        for why, count in calibration.left_out.items():
            add_row(table, f"{count:,}", why)
        parts += section("Left out", "", table)
    return parts


def _folds(field: Fitted) -> str:
    if field.fold_least is None or field.fold_most is None:
        return ""
    return f"{field.fold_least:g} to {field.fold_most:g}"


def _add(table: Grid, name: str, change: Change) -> None:
    before, after = change.before, change.after
    add_row(
        table,
        name,
        f"{change.rows:,}",
        percent(before.median_ape),
        percent(after.median_ape),
        percent(before.p90_ape),
        percent(after.p90_ape),
        f"{before.geomean_ratio:.3f}",
        f"{after.geomean_ratio:.3f}",
    )
