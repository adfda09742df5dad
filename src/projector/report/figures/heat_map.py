"""The best of a column over two axes of a sweep, and its figure."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError
from projector.projection.results import TEXT
from projector.report.figures import figure as fig
from projector.report.figures import rows as swept
from projector.report.figures import words as naming
from projector.sweeps.points import SLO
from projector.sweeps.result import MORE_IS_BETTER, SweepResult, codes, numbers
from projector.sweeps.store import Plan
from projector.sweeps.table import cell

# The best of a column for each pair of values of two axes, from all rows of a sweep.
KEY = "plot"

MOST_CELLS = 4_000_000
"""Cells of a heat map, more than any screen has; their memory would have no bound."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The best of one column for one workload."""

    name: str
    best: Floats
    """float64[values of the second axis, values of the first]; NaN where nothing fits."""
    rows: Ints


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The best of one column for each pair of values of two axes."""

    fields: tuple[str, str]
    """The axis from left to right and the one from bottom to top."""
    values: tuple[tuple[Any, ...], tuple[Any, ...]]
    column: str
    best: Floats
    """float64[values of the second, values of the first]; NaN where nothing fits."""
    rows: Ints
    """Rows of each cell, whether they fit or not."""
    over: tuple[str, ...]
    """The other axes, of whose values the best is taken; tied ones once, joined by ``=``."""
    base: tuple[float | None, float | None] = (None, None)
    """What the base job has on both axes, None where that is not a number."""
    chip: str = ""
    """Name of the base job's device."""
    names: tuple[str, str] = ("", "")
    """Words for both axes, with those that are tied to them; dotted names where empty."""
    unranked: str = "nothing fits"
    """Why a cell with rows has no best."""
    workloads: tuple[Panel, ...] = ()
    """Where the rows are of several workloads: each of them, in the column's own unit."""

    @property
    def label(self) -> str:
        """Label of the value of a cell."""
        return f"{naming.label_of(self.column)}: {self.extreme} that fits"

    @property
    def extreme(self) -> str:
        """Whether the best value is the largest or the least."""
        return "largest" if self.column in MORE_IS_BETTER else "least"

    @property
    def reference(self) -> tuple[int, int] | None:
        """Cell of the base chip, row and column, where both axes are numbers of hardware."""
        place = []
        for field, values, base in zip(self.fields, self.values, self.base, strict=True):
            found = [
                index
                for index, value in enumerate(values)
                if base is not None
                and isinstance(value, int | float)
                and abs(value - base) <= 1e-9 * abs(base)
            ]
            if not field.startswith(naming.HARDWARE) or not found:
                return None
            place.append(found[0])
        return place[1], place[0]

    @property
    def relative_label(self) -> str:
        """Label of the value of a cell of `relative`."""
        one = f"1 = {self.chip}" if self._is_to_chip else "1 = best cell of the workload"
        return f"{naming.words_of(self.column).name}, {self.extreme} that fits: {one}"

    @property
    def _is_to_chip(self) -> bool:
        reference = self.reference
        return reference is not None and all(
            np.isfinite(panel.best[reference]) or not np.isfinite(panel.best).any()
            for panel in self.workloads
        )

    def relative(self) -> tuple[Panel, ...]:
        """Return the geometric mean over the workloads, and each of them, as multiples.

        A workload's cells are divided by its cell of the base chip where every workload has one,
        else by its best cell. The mean is empty where a workload does not fit; workloads that fit
        nowhere do not take part.
        """
        sign = 1.0 if self.column in MORE_IS_BETTER else -1.0
        panels = []
        for panel in self.workloads:
            finite = panel.best[np.isfinite(panel.best)]
            if not len(finite):
                panels.append(panel)
                continue
            one = sign * float((sign * finite).max())
            if self._is_to_chip and self.reference is not None:
                one = float(panel.best[self.reference])
            panels.append(Panel(panel.name, panel.best / one if one else panel.best, panel.rows))
        taking_part = [panel for panel in panels if np.isfinite(panel.best).any()] or panels
        stacked = np.array([panel.best for panel in taking_part])
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.exp(np.log(stacked).mean(axis=0))
        left_out = len(panels) - len(taking_part)
        name = f"geometric mean of {len(taking_part)} workloads"
        if left_out:
            name += f"; {left_out} fit{'s' if left_out == 1 else ''} nowhere"
        # A cell counts as legal where some workload has a job in it.
        return (Panel(name, mean, np.sum([panel.rows for panel in panels], axis=0)), *panels)


def check_fields(
    fields: Sequence[str], column: str, kinds: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return the full names of two axes and a column."""
    known = [*swept.axes_of(kinds), *(name for name in ("gpus", "parallelism.dp") if name in kinds)]
    if len(fields) != 2:
        msg = f"{KEY}: a heat map has two axes, got {', '.join(fields) or 'none'}"
        raise ConfigError(msg, key=KEY, value=list(fields), allowed="two axes of the space")
    first, second = (swept.resolve(name, known, key=KEY) for name in fields)
    if first == second:
        msg = f"{KEY}: a heat map has two different axes, got {first} twice"
        raise ConfigError(msg, key=KEY, value=first, allowed=known)
    plottable = [
        name for name, kind in kinds.items() if kind != TEXT and name not in swept.axes_of(kinds)
    ]
    return first, second, swept.resolve(column, plottable, key=KEY)


def heat_maps(
    result: SweepResult, requests: Sequence[tuple[str, str, str]]
) -> list[HeatMap | None]:
    """Read (axis, axis, column) maps at once, a chunk in memory; None above `MOST_CELLS`."""
    axes = swept.axes_of(result.columns)
    workloads = swept.workload_fields(result.plan, axes)
    grids = [
        _Grid(
            *request,
            [values_of(result.plan, field) for field in request[:2]],
            [field for field in workloads if field not in request[:2]],
        )
        for request in requests
    ]
    if grids:
        of_axes = [*workloads, *(name for request in requests for name in request[:2])]
        columns = [*result.ranking_columns, *of_axes, *(request[2] for request in requests)]
        for table in result.tables(list(dict.fromkeys(columns))):
            fits = result.is_ranked(table)
            coded = {name: codes(table, name) for name in dict.fromkeys(of_axes)}
            for grid in grids:
                grid.add(coded, numbers(table, grid.column), fits)
    return [grid.finish(result.plan, axes) for grid in grids]


class _Grid:
    """A heat map that grows with the values and workloads it meets."""

    def __init__(
        self, first: str, second: str, column: str, values: list[list[Any]], workloads: list[str]
    ) -> None:
        self.fields, self.column, self._workloads = (first, second), column, workloads
        self._sign = 1.0 if column in MORE_IS_BETTER else -1.0
        x, y = ({value: index for index, value in enumerate(axis_values)} for axis_values in values)
        self._known: tuple[dict[Any, int], ...] = ({}, y, x)
        """Workloads and values of both axes -> their places."""
        self._cells: dict[tuple[int, ...], tuple[float, int]] = {}
        """Best and rows of each cell."""

    def _is_too_large(self) -> bool:
        workloads, *sides = map(len, self._known)
        return math.prod([max(1, workloads), *sides]) > MOST_CELLS

    def add(self, coded: dict[str, tuple[Ints, list[Any]]], value: Floats, fits: Flags) -> None:
        """Take in a chunk; workloads and values are numbered in the order of its rows."""
        if not len(value):
            return
        fields = [*self._workloads, *self.fields[::-1]]
        stacked = np.column_stack([coded[field][0] for field in fields])
        distinct, first, cell = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
        cell, valid = cell.reshape(-1), fits & ~np.isnan(value)
        best, rows = np.full(len(distinct), -np.inf), np.bincount(cell)
        np.maximum.at(best, cell[valid], self._sign * value[valid])
        for place in np.argsort(first).tolist():
            codes = zip(fields, distinct[place].tolist(), strict=True)
            *workload, second, one = (coded[field][1][code] for field, code in codes)
            named = zip(self._known, (tuple(workload), second, one), strict=True)
            key = tuple(known.setdefault(item, len(known)) for known, item in named)
            before, count = self._cells.get(key, (-np.inf, 0))
            self._cells[key] = max(before, float(best[place])), count + int(rows[place])
        if self._is_too_large():
            self._cells.clear()

    def finish(self, plan: Plan, axes: Sequence[str]) -> HeatMap | None:
        """Sort the values of both axes; None if there are too many."""
        if self._is_too_large():
            return None
        shape = tuple(map(len, self._known))
        best, rows = np.full(shape, np.nan), np.zeros(shape, np.int64)
        for key, (most, count) in self._cells.items():
            best[key], rows[key] = np.nan if np.isinf(most) else self._sign * most, count
        orders = [_order(list(known)) for known in self._known[1:]]
        cells = np.ix_(range(len(best)), *orders)
        best, rows = best[cells], rows[cells]
        second, first = (
            tuple(list(known)[index] for index in order)
            for known, order in zip(self._known[1:], orders, strict=True)
        )
        several = len(best) > 1
        panels = tuple(
            Panel(
                swept.workload_name(dict(zip(self._workloads, key, strict=True))),
                best[row],
                rows[row],
            )
            for key, row in self._known[0].items()
        )
        job, tied = plan.space.get("base"), swept.tied_fields(plan)
        return HeatMap(
            self.fields,
            (first, second),
            self.column,
            # Over the workloads; NaN where all of them are missing.
            self._sign * np.fmax.reduce(self._sign * best, axis=0)
            if len(best)
            else np.zeros(shape[1:]),
            rows.sum(axis=0),
            _others(axes, [*self.fields, *(self._workloads if several else [])], tied),
            (naming.base_value(job, self.fields[0]), naming.base_value(job, self.fields[1])),
            swept.device_name(job),
            (swept.axis_name(self.fields[0], tied), swept.axis_name(self.fields[1], tied)),
            "nothing keeps what is promised" if SLO in plan.kinds else "nothing fits",
            panels if several else (),
        )


def _others(
    axes: Sequence[str], used: Sequence[str], tied: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the axes that a map does not show, tied ones once."""
    seen = {fellow for field in used for fellow in (field, *tied.get(field, ()))}
    others = []
    for field in axes:
        if field not in seen:
            fellows = (field, *tied.get(field, ()))
            others.append(" = ".join(fellows))
            seen.update(fellows)
    return tuple(others)


def values_of(plan: Plan, field: str) -> list[Any]:
    """Return the values that a space lists for an axis, not those computed or left open."""
    kind, values = plan.kinds.get(field), []
    for axis in swept.plan_axes(plan):
        if field in axis["fields"]:
            column = axis["fields"].index(field)
            for point in axis["points"]:
                # A value that the column cannot hold has no row either.
                with suppress(ConfigError):
                    values.append(cell(field, str(kind), point[column]))
    return list(dict.fromkeys(value for value in values if value is not None))


def _order(values: list[Any]) -> list[int]:
    """Sort numbers by size and leave words in their order; missing values come last."""
    words = any(isinstance(value, str) for value in values)
    ranked = [(value is None, 0 if words or value is None else value) for value in values]
    return sorted(range(len(values)), key=ranked.__getitem__)


# The figure.

MOST_WRITTEN = 240
"""Cells up to which their values are written."""

NOTHING_FITS, _HATCH, _BEST = "#D9D9D9", "#C4C4C4", fig.PALETTE[3]
SCALE = "viridis"
"""A scale that the colour-blind read like everyone else, and that prints in grey. None of its
colours is grey itself, as the middle of cividis is: grey means that nothing fits."""

MOST_PANELS, MOST_COLUMNS = 9, 3
"""Panels of several workloads, the mean among them, and how many stand in a line."""

_CELL_IN = 0.62, 0.36
_LETTER_IN = 0.085
_BESIDE_IN, _ABOVE_IN = 2.2, 2.0
"""Inches of a figure around the map: beside it, and above and below it."""
_LONGEST = 28
"""Characters of a value that an axis shows."""
_UPRIGHT = 4
"""Characters up to which values of a full axis lie flat."""


def write_heat_map(
    result: SweepResult, fields: Sequence[str], path: str | Path, column: str = swept.RATE
) -> None:
    """Draw the best of a column over two axes; the file appears whole or not at all.

    Rows of several workloads (models, sequence lengths) are never compared with each other: each
    workload has a panel of its own, in multiples, beside the geometric mean of them. Fields are two
    axes of the space or whole-number results such as ``gpus``; the last part of a dotted name is
    enough where it is clear.
    """
    fig.check_figure(path)
    chosen = check_fields(fields, column, result.plan.kinds)
    swept.check_apart(result.plan, *chosen[:2], KEY)
    (heat_map,) = heat_maps(result, [chosen])
    if heat_map is None:
        msg = f"{KEY}: {chosen[0]} and {chosen[1]} have more than {MOST_CELLS:,} pairs of values"
        raise ConfigError(msg, key=KEY, value=list(fields), allowed=f"<= {MOST_CELLS:,} pairs")
    fig.save_figure(path, lambda: heat_map_figure(heat_map, swept.title_of_sweep(result)))


def heat_map_figure(heat_map: HeatMap, title: str) -> fig.Figure:
    """Draw one heat map, or one for each workload, with the values where they are few."""
    panels = panels_of(heat_map)
    columns = min(MOST_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    height, width = heat_map.best.shape
    one = _CELL_IN if lines * columns == 1 else (_CELL_IN[0] * 0.92, _CELL_IN[1])
    wide = float(np.clip(_BESIDE_IN + (1.2 + one[0] * width) * columns, 7.5, fig.WIDE[0]))
    label_in = 0.0 if lines == columns == 1 else 0.45
    tall = float(np.clip(_ABOVE_IN + (0.6 + label_in + one[1] * height) * lines, 4.6, 11.0))
    upright, _ = _labels(heat_map, (wide - _BESIDE_IN) / columns)
    size = wide, tall + (_LETTER_IN * _longest(heat_map) if upright else 0.0)
    figure = fig.new_figure(*size, *_heading(heat_map, title, round(size[0] * 9.5)))
    every = fig.panels(figure, len(panels), MOST_COLUMNS)
    if not heat_map.rows.size:
        fig.nothing(every[0], "no row")
        every[0].set_axis_off()
        return figure
    from matplotlib.colors import Normalize

    finite = np.concatenate([panel.best[np.isfinite(panel.best)] for panel in panels])
    norm = Normalize(float(finite.min()), float(finite.max())) if len(finite) else None
    width_in = (size[0] - _BESIDE_IN) / columns
    for place, (panel, axes) in enumerate(zip(panels, every, strict=True)):
        drawn = _draw_panel(axes, heat_map, panel, norm)
        _draw_axes(axes, heat_map, (width_in, (size[1] - _ABOVE_IN) / lines),
                   (place + columns >= len(panels), place % columns == 0))  # fmt: skip
        if heat_map.workloads:
            axes.set_title(textwrap.fill(panel.name, 44, max_lines=2), fontsize=9.5, pad=5.0)
    if norm is not None:
        bar = figure.colorbar(drawn, ax=every, pad=0.02, fraction=0.05)
        bar.set_label(heat_map.relative_label if heat_map.workloads else heat_map.label, fontsize=9)
    _draw_legend(figure, heat_map, panels)
    return figure


def panels_of(heat_map: HeatMap) -> tuple[Panel, ...]:
    """Return what is drawn: one map, or the geometric mean and the first of several workloads."""
    if not heat_map.workloads:
        return (Panel("", heat_map.best, heat_map.rows),)
    return heat_map.relative()[:MOST_PANELS]


def _draw_panel(axes: fig.Axes, heat_map: HeatMap, panel: Panel, norm: Any) -> Any:
    """Draw the cells of one panel; return them for the colour bar."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    height, width = panel.best.shape
    edges = np.arange(width + 1) - 0.5, np.arange(height + 1) - 0.5
    # Below everything: an uncovered cell has no job, and what stays grey does not fit.
    axes.patch.set(facecolor="white", edgecolor=_HATCH, hatch="////", linewidth=0.0)
    jobs = np.where(panel.rows > 0, 1.0, np.nan)
    axes.pcolormesh(*edges, jobs, cmap=ListedColormap([NOTHING_FITS]), rasterized=True)
    few = width * height <= MOST_WRITTEN
    # The best is bright.
    scale = SCALE if heat_map.column in MORE_IS_BETTER else f"{SCALE}_r"
    if not np.isfinite(panel.best).any():
        return ScalarMappable(norm, scale)
    drawn = axes.pcolormesh(
        *edges,
        np.ma.masked_invalid(panel.best),
        cmap=scale,
        norm=norm,
        rasterized=True,
        edgecolors="white" if few else "none",
        linewidth=0.8 if few else 0.0,
    )
    _draw_best(axes, heat_map, panel.best)
    if few:
        _write_values(axes, panel.best, drawn, multiples=bool(heat_map.workloads))
    if heat_map.reference is not None:
        y, x = heat_map.reference
        axes.plot(x + 0.36, y + 0.3, "o", ms=4.5, mfc="white", mec=fig.INK, mew=0.9, zorder=5)
    return drawn


def _labels(heat_map: HeatMap, wide_in: float) -> tuple[bool, float]:
    """Tell whether values of the lower axis are upright, and the inches that each takes."""
    flat_in = _LETTER_IN * _longest(heat_map) + 0.1
    upright = flat_in * heat_map.best.shape[1] > wide_in and _longest(heat_map) > _UPRIGHT
    return upright, 0.2 if upright else flat_in


def _longest(heat_map: HeatMap) -> int:
    texts = axis_ticks(heat_map, 0).texts
    return max((len(fig.one_line(text, _LONGEST)) for text in texts), default=0)


def axis_ticks(heat_map: HeatMap, axis: int) -> naming.Ticks:
    """Return the values and the label of an axis: hardware as multiples of the base chip's."""
    field, values = heat_map.fields[axis], heat_map.values[axis]
    relative = naming.relative_ticks(field, values, heat_map.base[axis])
    name = heat_map.names[axis] or naming.words_of(field).name
    words, unit = naming.words_of(field)
    if relative is not None:
        return naming.Ticks(relative.texts, relative.label.replace(words, name, 1))
    return naming.Ticks(
        [swept.value_text(value) for value in values], f"{name}, {unit}" if unit else name
    )


def _heading(heat_map: HeatMap, title: str, characters: int) -> tuple[str, str]:
    others = ", ".join(
        " = ".join(dict.fromkeys(naming.words_of(field).name for field in name.split(" = ")))
        for name in heat_map.over
    )
    over = f"In each cell the best over {others}." if others else "One configuration in each cell."
    if heat_map.workloads:
        over += f" {len(heat_map.workloads)} workloads, each in multiples of its own."
        more = len(heat_map.workloads) + 1 - len(panels_of(heat_map))
        if more > 0:
            over += f" {more} of them are only in the mean."
    if any(
        naming.relative_ticks(heat_map.fields[axis], heat_map.values[axis], heat_map.base[axis])
        for axis in (0, 1)
    ):
        over += f" 1{naming.TIMES} is {heat_map.chip}."
    name = naming.words_of(heat_map.column).name
    return f"{name[:1].upper()}{name[1:]}: {title}", "\n".join(textwrap.wrap(over, characters))


def _draw_best(axes: fig.Axes, heat_map: HeatMap, best: Floats) -> None:
    from matplotlib.patches import Rectangle

    sign = 1.0 if heat_map.column in MORE_IS_BETTER else -1.0
    y, x = np.unravel_index(int(np.nanargmax(sign * best)), best.shape)
    axes.add_patch(
        Rectangle(
            (x - 0.5, y - 0.5), 1.0, 1.0, fill=False, ec=_BEST, lw=2.4, zorder=4, clip_on=False
        )
    )


def _write_values(axes: fig.Axes, best: Floats, drawn: Any, *, multiples: bool) -> None:
    colours = drawn.get_cmap()(drawn.norm(best))
    light = colours[..., :3] @ np.array([0.2126, 0.7152, 0.0722]) > 0.45
    for (y, x), value in np.ndenumerate(best):
        if not np.isnan(value):
            axes.text(
                x, y, f"{float(value):.2f}" if multiples else cell_text(float(value)), ha="center",
                va="center", fontsize=8.5, color=fig.INK if light[y, x] else "white",
            )  # fmt: skip


def cell_text(value: float) -> str:
    """Write the value of a cell: cells that differ by a percent are to differ here too."""
    return f"{value:,.0f}" if 100.0 <= abs(value) < 99_999.5 else fig.short_number(value)


def _draw_axes(
    axes: fig.Axes, heat_map: HeatMap, size_in: tuple[float, float], labelled: tuple[bool, bool]
) -> None:
    """Write the values of both axes, each so many that none meets the next."""
    ticks_of = [axis_ticks(heat_map, 0), axis_ticks(heat_map, 1)]
    upright, room_in = _labels(heat_map, size_in[0])
    for axis, ticks, wide, least, rotation, shown in (
        (axes.xaxis, ticks_of[0], size_in[0], room_in, 90 if upright else 0, labelled[0]),
        (axes.yaxis, ticks_of[1], size_in[1], 0.2, 0, labelled[1]),
    ):
        places = range(0, len(ticks.texts), max(1, int(np.ceil(least * len(ticks.texts) / wide))))
        texts = [fig.one_line(ticks.texts[at], _LONGEST) if shown else "" for at in places]
        axis.set_ticks(places, texts, rotation=rotation)
        if shown:
            lines = textwrap.wrap(ticks.label, max(16, round(11.0 * wide)))
            axis.set_label_text("\n".join(lines))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_legend(figure: fig.Figure, heat_map: HeatMap, panels: Sequence[Panel]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    legal = np.array([panel.rows > 0 for panel in panels])
    fits = np.isfinite([panel.best for panel in panels])
    handles: list[Any] = []
    if fits.any():
        handles.append(Patch(fc="none", ec=_BEST, lw=2.0, label="best of all"))
    if (legal & ~fits).any():
        mean = "; in the mean: not every workload" if len(panels) > 1 else ""
        handles.append(Patch(fc=NOTHING_FITS, label=heat_map.unranked + mean))
    if not legal.all():
        handles.append(Patch(fc="white", ec=_HATCH, hatch="////", lw=0.0, label="no legal job"))
    if fits.any() and heat_map.reference is not None:
        handles.append(
            Line2D([], [], marker="o", ls="", ms=5, mfc="white", mec=fig.INK, label=heat_map.chip)
        )
    figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False)
