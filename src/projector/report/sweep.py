"""A sweep: counts, reasons, the best rows, and on a page its pictures; an estimate of a space."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from projector.arrays import Floats
from projector.distribution import package_version
from projector.projection.bands import COVERED, VERDICTS, WORDS
from projector.report.document import Column, Document, Media, Section, Table, prose, words
from projector.report.figures import rows as swept
from projector.report.figures.heat_map import HeatMap, heat_maps
from projector.report.figures.pareto import Front, distinct, layout_groups, read_front
from projector.report.figures.scaling import read_scaling
from projector.report.figures.words import TIMES, words_of
from projector.report.pages import figures as page_figures
from projector.report.pages.page import check_page, write_page
from projector.report.speed_front import chart, curve_of_sweep
from projector.report.terminal.grid import Pasted, heading, percent, plain
from projector.sweeps.engine import Estimate
from projector.sweeps.points import SLO
from projector.sweeps.result import LISTED, VERDICT_COLUMNS, SweepResult, standing
from projector.units import to_ms

MOST_COLUMNS = 7
"""Axes that fit beside the results in a terminal; more are written one below the other."""

BEST = 50
"""Rows of the table of a page."""

SAMPLE = 4_000
"""Rows of the cloud; fewer are all there."""

MOST_AXES = 6
"""Axes that are paired into heat maps."""

MOST_CELLS = 10_000
"""Cells of a heat map of a page."""

MOST_REASONS = 10, 15
"""Reasons that a terminal and a page list."""

_FIRST = ("tp", "pp", "cp", "ep", "micro_batch_size", "nodes")
"""Axes that are shown first if there are many, behind those of hardware."""

LEAST_BEST = 8
"""Rows of a workload in the table, where there are many workloads."""

MOST_EQUAL = 8
"""Rows that are read for each row of the table, for those that equal others."""

_SHOWN = (swept.RATE, *swept.FIRST_RESULTS, "tpot_s", swept.PEAK, swept.HIGH, "mfu", "gpus")
"""Columns of the table that must agree for rows to be equal, where there are such."""


def sweep_report(result: SweepResult, fields: Sequence[str]) -> list[Document | RenderableType]:
    """Return counts, reasons and the best rows for a terminal."""
    counts = {
        "fit": result.fit,
        "at risk": result.at_risk,
        "do not fit": result.does_not_fit,
        **({"not the best": result.not_best} if result.not_best else {}),
        "left out": sum(result.infeasible.values()),
        "together": result.evaluated,
    }
    columns = [prose("", list(counts)), Column("points", list(counts.values()), "{:,}".format)]
    note = f"{result.rows:,} rows"
    if result.rate_per_s is not None:
        note += f", {result.seconds:,.1f} s, {result.rate_per_s:,.0f} rows/s"
    elif result.output is not None:
        note += ", complete before"
    best = result.best(LISTED)
    sections = [
        Section("Sweep", table=Table(columns), note=note),
        *_reasons(result.infeasible),
        *_listed(result, fields, best),
    ]
    parts: list[Document | RenderableType] = [Document("", "", sections)]
    if not best:
        parts += [heading(nothing_ranked(result)), Text()]
    if result.output is not None:
        parts += [Pasted(f"Rows: {result.output}", indent=0), Text()]
    return parts


def estimate_report(estimate: Estimate, fields: Sequence[str]) -> Document:
    """Return the size of a space and the estimate from a sample."""
    told = {"points": f"{estimate.points:,}", "axes": ", ".join(fields)}
    counts = (("legal", estimate.legal), ("fit", estimate.fit), ("at risk", estimate.at_risk))
    for name, number in counts:
        share = number / estimate.sampled if estimate.sampled else 0.0
        told[name] = f"{number:,} of {estimate.sampled:,} looked at ({percent(share)})"
        if estimate.sampled < estimate.points:
            told[name] += f", about {share * estimate.points:,.0f} of all"
    told["time"] = f"about {_duration(estimate.seconds)}"
    table = Table([prose("", list(told)), prose("", list(told.values()))])
    dry = Section("Dry run", table=table, note="nothing written")
    return Document("", "", [dry, *_reasons(estimate.infeasible)])


def write_sweep_page(result: SweepResult, path: str | Path) -> None:
    """Write a sweep as one interactive page that works offline; it appears whole or not at all.

    However many rows there are, the front and the best rows are there in full, of the others a
    sample; heat maps, of one ``column`` of numbers, and scaling are computed from all. One chunk at
    a time is in memory.
    """
    check_page(path)
    title = swept.title_of_sweep(result)
    workloads = swept.workloads_of(result)
    shown = workloads[: swept.MOST_WORKLOADS]
    what = "deployments" if swept.serves(result) else "jobs"
    lead = (
        f"{result.rows:,} {what} of {result.evaluated:,} points: {result.fit:,} fit, "
        f"{result.at_risk:,} are at risk, {result.does_not_fit:,} do not fit."
    )
    if len(workloads) > 1:
        lead += f" They are of {len(workloads)} workloads: compare rows of the same one."
        if len(workloads) > len(shown):
            lead += f" The first {len(shown)} have pictures of their own."
    text = f"Axes: {', '.join(swept.axes_of(result.columns))}. "
    text += f"Digest of the space: {result.plan.digest[:16]}."
    if result.output is not None:
        text += f" Rows: {result.output}."
    warnings = "".join(f" Warning: {warning}." for warning in result.warnings)
    sections = [
        *_ranked(result, workloads),
        _speeds(shown) if swept.serves(result) else _pareto(shown),
        *_heat_maps(result),
        *_scaling(shown),
        *_reasons(result.infeasible),
        Section("This sweep", f"{text} Version {package_version()}.{warnings}"),
    ]
    write_page(path, Document(f"Sweep: {title}", lead, sections))


def _reasons(infeasible: Mapping[str, int]) -> list[Section]:
    """Return why points are no jobs, the most frequent reasons first."""
    if not infeasible:
        return []
    few, many = MOST_REASONS
    ranked = sorted(infeasible.items(), key=lambda item: (-item[1], item[0]))
    columns = [
        Column("points", [number for _, number in ranked[:many]], "{:,}".format),
        prose("why", [why for why, _ in ranked[:many]]),
    ]
    rest, more = len(ranked) - few, len(ranked) - many
    note = f"{rest} more reasons in --json" if rest > 0 else ""
    text = f"{more} more reasons are not shown." if more > 0 else ""
    table = Table(columns, brief=range(min(few, len(ranked))))
    return [Section("Left out", text, table, note=note)]


def nothing_ranked(result: SweepResult) -> str:
    """Say why no row is ranked, and what would rank some."""
    if not result.rows:
        return "No point of the space is legal"
    if result.fit and SLO in result.columns:
        return "No row that fits keeps what its load promises"
    if not result.at_risk:
        return "No row fits"
    rows = "1 row is" if result.at_risk == 1 else f"{result.at_risk:,} rows are"
    return f"No row fits with the band of its memory; {rows} at risk, which --allow-risk ranks"


def _reached(rows: Sequence[Mapping[str, Any]], *, all_verdicts: bool) -> list[Column]:
    """Return what rows reach, as columns; a terminal shows verdicts where they may differ."""
    one = "{:,.1f}".format
    if swept.FIRST_RESULTS[1] in rows[0]:
        names = ("ttft_s", "TTFT ms"), ("tpot_s", "TPOT ms")
        times = [Column(head, [to_ms(row[name]) for row in rows], one, 1) for name, head in names]
        user = Column("tokens/s/user", [row["tokens_per_s_per_user"] for row in rows], one, 1)
        peak = Column("peak GiB", [row[swept.PEAK] for row in rows], one, 2)
        counts = [row["replicas"] for row in rows if "replicas" in row]
        needed = [Column("replicas", counts)] if counts else []
        return [Column("tokens/s/GPU", [row[swept.RATE] for row in rows], "{:,.0f}".format, 1),
                *times, user, peak, *needed]  # fmt: skip
    shown = Media.ALL if all_verdicts else Media.PAGE
    return [
        Column("tokens/s/GPU", [row[swept.RATE] for row in rows], "{:,.0f}".format, 1),
        Column("step ms", [row["iteration_time_ms"] for row in rows], one, 1),
        Column("MFU %", [100.0 * row["mfu"] for row in rows], digits=1, media=Media.PAGE),
        Column("peak GiB", [row[swept.PEAK] for row in rows], one, 2),
        Column("to GiB", [row[swept.HIGH] for row in rows], one, 2),
        words("verdict", [WORDS[row[swept.VERDICT]] for row in rows], media=shown),
    ]


def _listed(
    result: SweepResult, fields: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> list[Section]:
    if not rows:
        return []
    short = {field: field.rsplit(".", 1)[-1] for field in fields}
    settings = [{field: plain(row[field]) for field in fields} for row in rows]
    if len(fields) <= MOST_COLUMNS:
        axes = [prose(short[field], [each[field] for each in settings]) for field in fields]
    else:
        told = [", ".join(f"{short[name]}={each[name]}" for name in fields) for each in settings]
        axes = [prose("axes", told)]
    note = "by tokens/s/GPU"
    if swept.HIGH in result.columns:
        note += f"; to GiB: where the {COVERED} % band of the peak ends"
    table = Table([*_reached(rows, all_verdicts=result.allow_risk), *axes])
    return [Section(_best_name(result), table=table, note=note)]


def _best_name(result: SweepResult) -> str:
    if SLO in result.columns:
        return "Best that keep what is promised"
    return "Best, those at risk too" if result.allow_risk else "Best that fit"


def _ranked(result: SweepResult, workloads: Sequence[tuple[str, SweepResult]]) -> list[Section]:
    fields = swept.axes_of(result.columns)
    most = max(LEAST_BEST, BEST // len(workloads))
    # Of each workload as many: the smallest model would fill the table.
    rows = [row for _, each in workloads for row in each.best(MOST_EQUAL * most)[: BEST * 8]]
    if not rows:
        return [Section("Best that fit", f"{nothing_ranked(result)}.")]
    # Rows that differ in nothing that is shown but their settings are one row.
    parts = swept.workload_fields(result.plan, fields)
    numbered = [[str(row[field]) for field in parts] for row in rows]
    known = {text: float(place) for place, text in enumerate(dict.fromkeys(map(str, numbered)))}
    of_workload = np.array([known[str(each)] for each in numbered], np.float64)
    shown_columns = [
        np.array([row[name] for row in rows], np.float64) for name in _SHOWN if name in rows[0]
    ]
    _, equal = distinct(of_workload, *shown_columns)
    equal = _first(equal, of_workload, most)
    settings = [
        swept.merged([{field: rows[index][field] for field in fields} for index in same])
        for same in equal
    ]
    shown = [rows[same[0]] for same in equal]
    groups = _grouped(shown, settings, [of_workload[same[0]] for same in equal])
    is_grouped = len(set(groups)) < len(groups)
    begin = {float(number): int(np.argmax(of_workload == number)) for number in set(of_workload)}
    columns = [
        Column("#", [same[0] - begin[float(of_workload[same[0]])] + 1 for same in equal]),
        *([Column("group", groups)] if is_grouped else []),
        *_reached(shown, all_verdicts=True),
        Column("GPUs", [row["gpus"] for row in shown]),
    ]
    tied = swept.tied_fields(result.plan)
    for field in swept.untied(result.plan, fields):
        names = dict.fromkeys(swept.short_name(each) for each in (field, *tied.get(field, ())))
        head = " = ".join(names)
        head = head if all(head != column.name for column in columns) else field
        columns.append(Column(head, [_cell(setting[field]) for setting in settings]))
    text = f"The {len(shown)} rows with the most tokens/s/GPU. A click on a head sorts."
    if len(workloads) > 1:
        text = f"The {most} rows of each workload with the most tokens/s/GPU. A click sorts."
    if any(len(same) > 1 for same in equal):
        text += " Equal rows stand once; a setting that changes nothing has all of its values."
    if swept.HIGH in result.columns:
        text += f" To GiB: where the {COVERED} % band of the peak ends."
    if is_grouped:
        text += " Layouts of one group differ by less than the noise of a comparison."
    return [Section(_best_name(result), text, Table(columns))]


def _first(equal: list[list[int]], of_workload: Floats, most: int) -> list[list[int]]:
    taken: Counter[float] = Counter()
    kept = []
    for same in equal:
        taken[workload := float(of_workload[same[0]])] += 1
        if taken[workload] <= most:
            kept.append(same)
    return kept


def _grouped(
    rows: list[dict[str, Any]], settings: list[dict[str, Any]], of_workload: list[float]
) -> list[int]:
    """Return the group of each row, numbered within its workload."""
    groups = [0] * len(rows)
    for workload in dict.fromkeys(of_workload):
        own = [place for place, each in enumerate(of_workload) if each == workload]
        rates = np.array([rows[place][swept.RATE] for place in own], np.float64)
        found = layout_groups(rates, [settings[place] for place in own])
        for place, group in zip(own, found, strict=True):
            groups[place] = group
    return groups


def _cell(value: Any) -> Any:
    """Return integers unchanged, so that they sort, and everything else as text."""
    if isinstance(value, swept.Several):
        return str(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else plain(value)


def _speeds(workloads: Sequence[tuple[str, SweepResult]]) -> Section:
    figures: list[Any] = [
        (name, partial(chart, [curve_of_sweep(result)])) for name, result in workloads
    ]
    text = "Of what fits and keeps what is promised, the rows that no other beats in both."
    return Section("Throughput against speed", text, figures=figures)


def _pareto(workloads: Sequence[tuple[str, SweepResult]]) -> Section:
    drawn = [(name, *_front(result, read_front(result))) for name, result in workloads]
    if len(drawn) == 1:
        ((_, figure, text),) = drawn
        return Section("Speed against memory", text, figures=[("", lambda: figure)])
    items = [f"{name}: {text}" for name, _, text in drawn]
    figures: list[Any] = [(name, partial(dict, figure)) for name, figure, _ in drawn]
    return Section("Speed against memory", "Choose a workload.", figures=figures, items=items)


def _front(result: SweepResult, front: Front) -> tuple[Any, str]:
    fields = swept.axes_of(result.columns)
    drawn = swept.sample(result.rows, SAMPLE)
    asked = [swept.RATE, swept.PEAK, *VERDICT_COLUMNS, *fields]
    rows = [row for _, row in swept.rows_at(result, asked, drawn)]
    rate, peak = (
        np.array([row[name] for row in rows], np.float64) for name in (swept.RATE, swept.PEAK)
    )
    verdict = np.array([VERDICTS.index(standing(row)) for row in rows], np.int64)
    told = swept.untied(result.plan, fields)
    names = [swept.configuration({field: row[field] for field in told}) for row in rows]
    # What lies outside of the figure would only make the page larger.
    inside = np.flatnonzero((peak <= front.cloud.shown[1]) & (rate <= front.cloud.shown[3]))
    figure = page_figures.pareto(
        front, rate[inside], peak[inside], verdict[inside], [names[row] for row in inside.tolist()]
    )
    text = f"The front has {len(front.rate):,} rows that no other beats in both, all of them shown."
    if len(front.rate) == 1:
        text = "One row is the best in both."
    if front.knee_text:
        text += f" {front.knee_text[:1].upper()}{front.knee_text[1:]}."
    if len(drawn) < result.rows:
        text += (
            f" Of all {result.rows:,} rows a sample of {len(drawn):,} is drawn, chosen at random, "
            "the same each time."
        )
    if front.cloud.outside:
        text += f" {front.cloud.outside:,} rows lie outside of the figure."
    return figure, text


def _heat_maps(result: SweepResult) -> list[Section]:
    workloads = swept.workload_fields(result.plan, swept.axes_of(result.columns))
    axes = swept.untied(result.plan, [axis for axis in _varying(result) if axis not in workloads])
    chosen = sorted(axes, key=lambda name: _axis_order(name, axes))[:MOST_AXES]
    pairs = list(combinations(chosen, 2))
    maps = heat_maps(result, [(*pair, swept.RATE) for pair in pairs])
    shown = [grid for grid in maps if grid is not None and 0 < grid.best.size <= MOST_CELLS]
    if not shown:
        return []
    text = (
        f"Each cell has the best of all rows with its two values ({shown[0].label}). Grey: none "
        f"{'keeps what is promised' if SLO in result.columns else 'fits'}. Empty: none is legal."
    )
    if shown[0].workloads:
        text += (
            " Each workload has a panel, in multiples of its own "
            f"({shown[0].relative_label}); the first panel is their geometric mean, empty where a "
            "workload does not fit."
        )
    if any(swept.is_hardware(field) for field in chosen):
        text += f" 1{TIMES} is {shown[0].chip}."
    if len(axes) > len(chosen):
        text += f" {len(axes) - len(chosen)} more axes have no heat map here."
    if len(shown) < len(pairs):
        text += f" {len(pairs) - len(shown)} pairs have too many values for a page."
    return [Section("Heat maps", text, figures=[_titled(grid) for grid in shown])]


def _titled(grid: HeatMap) -> tuple[str, Any]:
    names = [name or words_of(field).name
             for name, field in zip(grid.names, grid.fields, strict=True)]  # fmt: skip
    return f"{names[0]} and {names[1]}", lambda: page_figures.heat_map(grid)


def _varying(result: SweepResult) -> list[str]:
    fields = swept.axes_of(result.columns)
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


def _axis_order(field: str, axes: list[str]) -> tuple[bool, int, int]:
    """Sort the axes of hardware first: a sweep that varies a chip asks about the chip."""
    name = field.rpartition(".")[2]
    place = _FIRST.index(name) if name in _FIRST else len(_FIRST)
    return not swept.is_hardware(field), place, axes.index(field)


def _scaling(workloads: Sequence[tuple[str, SweepResult]]) -> list[Section]:
    found = [(name, read_scaling(result)) for name, result in workloads]
    curves = [
        (name, curve) for name, curve in found if len(curve.gpus) > 1 and curve.first is not None
    ]
    if not curves:
        return []
    text = "The fastest configuration that fits at each number of GPUs, of all rows."
    for name, curve in curves:
        unfit = [swept.value_text(gpus) for gpus in curve.gpus[np.isnan(curve.rate)].tolist()]
        if unfit:
            whose = f"{name}: nothing" if name else "Nothing"
            text += f" {whose} fits on {', '.join(unfit)} GPUs."
    figures = [(name, partial(page_figures.scaling, curve)) for name, curve in curves]
    return [Section("Scaling", text, figures=figures)]


def _duration(seconds: float) -> str:
    for length, unit in ((86_400.0 * 365.25, "years"), (86_400.0, "days"), (3600.0, "hours")):
        if seconds >= 2.0 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds / 60.0:,.1f} minutes" if seconds >= 120.0 else f"{seconds:,.1f} s"
