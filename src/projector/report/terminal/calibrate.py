"""Report of a calibration."""

from rich.console import RenderableType
from rich.table import Table

from projector.calibrate.result import Calibration, Change, Fitted
from projector.report.terminal.tables import add_row, grid, percent, section


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


def _add(table: Table, name: str, change: Change) -> None:
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
