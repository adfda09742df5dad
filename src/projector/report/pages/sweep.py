"""The page of a sweep."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from projector.envelope import package_version
from projector.projection.verdict import COVERED, VERDICTS, WORDS
from projector.report.figures.best_cells import HeatMap, heat_maps
from projector.report.figures.names import title_of_sweep
from projector.report.figures.pareto import read_front
from projector.report.figures.rows import (
    HIGH,
    PEAK,
    RATE,
    VERDICT,
    axes_of,
    configuration,
    rows_at,
    sample,
    value_text,
)
from projector.report.figures.scaling import read_scaling
from projector.report.pages import figures as page_figures
from projector.report.pages.page import Section, Table, write_page
from projector.report.terminal.sweep import nothing_ranked
from projector.report.terminal.tables import plain
from projector.sweeps.result import SweepResult

BEST = 50
"""Rows of the table."""

SAMPLE = 4_000
"""Rows of the cloud; fewer are all there."""

MOST_AXES = 6
"""Axes that are paired into heat maps."""

MOST_CELLS = 10_000
"""Cells of a heat map of a page."""

MOST_REASONS = 15

_FIRST = ("tp", "pp", "cp", "ep", "micro_batch_size", "nodes")
"""Axes that are shown first if there are many."""

_HIGH = f"{COVERED} %: to"

_DIGITS = {_HIGH: 2, "tokens/s/GPU": 1, "step ms": 1, "peak GiB": 2, "MFU %": 1}


def write_sweep_page(result: SweepResult, path: str | Path, column: str = RATE) -> None:
    """Write a sweep as one interactive page that works offline; it appears whole or not at all.

    However many rows there are, the front and the best rows are there in full, of the others a
    sample, and heat maps and scaling are computed from all. One chunk at a time is in memory.

    Parameters
    ----------
    result : SweepResult
        Rows of a sweep.
    path : str or Path
        File to write.
    column : str
        Column of numbers that the heat maps show.

    Raises
    ------
    ConfigError
        If `check_page` refuses the path, or the file cannot be written.
    """
    from projector.report.pages.page import check_page

    check_page(path)
    title = title_of_sweep(result)
    lead = (
        f"{result.rows:,} jobs of {result.evaluated:,} points: "
        f"{result.fit:,} fit, {result.at_risk:,} are at risk, {result.does_not_fit:,} do not fit."
    )
    sections = [
        *_best(result),
        _pareto(result),
        *_heat_maps(result, column),
        *_scaling(result),
        *_reasons(result),
        _space(result),
    ]
    write_page(path, f"Sweep: {title}", lead, sections)


def _best(result: SweepResult) -> list[Section]:
    fields = axes_of(result.columns)
    rows = result.best(BEST)
    if not rows:
        return [Section("Best that fit", f"{nothing_ranked(result)}.")]
    names = [field.rpartition(".")[2] for field in fields]
    heads = [
        "#",
        "tokens/s/GPU",
        "step ms",
        "MFU %",
        "peak GiB",
        _HIGH,
        "verdict",
        "GPUs",
        *(
            name if names.count(name) == 1 else field
            for name, field in zip(names, fields, strict=True)
        ),
    ]
    cells = [
        [
            index + 1,
            row[RATE],
            row["iteration_time_ms"],
            100.0 * row["mfu"],
            row[PEAK],
            row[HIGH],
            WORDS[row[VERDICT]],
            row["gpus"],
            *(_cell(row[field]) for field in fields),
        ]
        for index, row in enumerate(rows)
    ]
    text = f"The {len(rows)} rows with the most tokens/s/GPU. A click on a head sorts."
    name = "Best, those at risk too" if result.allow_risk else "Best that fit"
    return [Section(name, text, Table(heads, cells, _DIGITS))]


def _cell(value: Any) -> Any:
    """Return integers unchanged, so that they sort, and everything else as text."""
    return value if isinstance(value, int) and not isinstance(value, bool) else plain(value)


def _pareto(result: SweepResult) -> Section:
    front = read_front(result)
    fields = axes_of(result.columns)
    drawn = sample(result.rows, SAMPLE)
    rows = [row for _, row in rows_at(result, [RATE, PEAK, VERDICT, *fields], drawn)]
    rate, peak = (np.array([row[name] for row in rows], np.float64) for name in (RATE, PEAK))
    verdict = np.array([VERDICTS.index(row[VERDICT]) for row in rows], np.int64)
    names = [configuration({field: row[field] for field in fields}) for row in rows]
    # What lies outside of the figure would only make the page larger.
    inside = np.flatnonzero((peak <= front.cloud.shown[1]) & (rate <= front.cloud.shown[3]))
    figure = page_figures.pareto(
        front, rate[inside], peak[inside], verdict[inside], [names[row] for row in inside.tolist()]
    )
    text = f"The front has {len(front.rate):,} rows that no other beats in both, all of them shown."
    if len(drawn) < result.rows:
        text += (
            f" Of all {result.rows:,} rows a sample of {len(drawn):,} is drawn, chosen at random, "
            "the same each time."
        )
    if front.cloud.outside:
        text += f" {front.cloud.outside:,} rows lie outside of the figure."
    return Section("Speed against memory", text, figures=[("", figure)])


def _heat_maps(result: SweepResult, column: str) -> list[Section]:
    axes = _varying(result)
    chosen = sorted(axes, key=lambda name: _axis_order(name, axes))[:MOST_AXES]
    pairs = list(combinations(chosen, 2))
    maps = heat_maps(result, [(*pair, column) for pair in pairs])
    shown = [grid for grid in maps if grid is not None and 0 < grid.best.size <= MOST_CELLS]
    if not shown:
        return []
    text = (
        f"Each cell has the best of all rows with its two values ({shown[0].label}); computed "
        "from all rows. Grey: nothing fits. Empty: no legal job."
    )
    if len(axes) > len(chosen):
        text += f" {len(axes) - len(chosen)} more axes have no heat map here."
    if len(shown) < len(pairs):
        text += f" {len(pairs) - len(shown)} pairs have too many values for a page."
    return [Section("Heat maps", text, figures=[_titled(grid) for grid in shown])]


def _titled(grid: HeatMap) -> tuple[str, Any]:
    names = [field.rpartition(".")[2] for field in grid.fields]
    return f"{names[0]} and {names[1]}", page_figures.heat_map(grid)


def _varying(result: SweepResult) -> list[str]:
    """Return the axes with more than one value among the rows."""
    fields = axes_of(result.columns)
    seen: dict[str, Any] = {}
    varying: set[str] = set()
    for table in result.tables(list(fields)):
        for field in fields:
            if field in varying or not len(table):
                continue
            values = table.column(field).unique().to_pylist()
            first = seen.setdefault(field, values[0])
            if any(value != first for value in values):
                varying.add(field)
        if len(varying) == len(fields):
            break
    return [field for field in fields if field in varying]


def _axis_order(field: str, axes: list[str]) -> tuple[int, int]:
    name = field.rpartition(".")[2]
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), axes.index(field))


def _scaling(result: SweepResult) -> list[Section]:
    curve = read_scaling(result)
    if len(curve.gpus) < 2 or curve.first is None:
        return []
    text = "The fastest configuration that fits at each number of GPUs, of all rows."
    unfit = [value_text(gpus) for gpus in curve.gpus[np.isnan(curve.rate)].tolist()]
    if unfit:
        text += f" Nothing fits on {', '.join(unfit)} GPUs."
    return [Section("Scaling", text, figures=[("", page_figures.scaling(curve))])]


def _reasons(result: SweepResult) -> list[Section]:
    reasons = list(result.infeasible.items())
    if not reasons:
        return []
    rest = len(reasons) - MOST_REASONS
    text = f"{rest} more reasons are not shown." if rest > 0 else ""
    rows = [[count, why] for why, count in reasons[:MOST_REASONS]]
    return [Section("Left out", text, Table(["points", "why"], rows))]


def _space(result: SweepResult) -> Section:
    """Name the sweep and the place of its rows."""
    fields = axes_of(result.columns)
    text = f"Axes: {', '.join(fields)}. Digest of the space: {result.plan.digest[:16]}."
    if result.output is not None:
        text += f" Rows: {result.output}."
    warnings = "".join(f" Warning: {warning}." for warning in result.warnings)
    return Section("This sweep", f"{text} Version {package_version()}.{warnings}")
