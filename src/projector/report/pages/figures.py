"""The figures of pages as Plotly objects: the same data as the drawn ones, with names to hover."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.projection.bands import VERDICTS, WORDS
from projector.report.figures import heat_map as heat_maps
from projector.report.figures.figure import INK, PALETTE
from projector.report.figures.pareto import FRONT, KINDS, PEAK_LABEL, RATE_LABEL, Front, speed_band
from projector.report.figures.rows import configuration, more_is_better
from projector.report.figures.scaling import Scaling
from projector.report.figures.words import Ticks, words_of
from projector.report.pages.page import GRID, log_ticks, plain_layout

_SYMBOLS = {"o": "circle", "^": "triangle-up", "s": "square"}
_HOVER = "%{y:,.1f} tokens/s/GPU, %{x:,.2f} GiB<br>%{text}<extra></extra>"


def pareto(front: Front, rate: Floats, peak: Floats, verdict: Ints, names: Sequence[str]) -> Any:
    """Return the front over some of the rows, each with its configuration and verdict."""
    low, high, bottom, top = front.cloud.shown
    data: list[dict[str, Any]] = []
    for kind, colour, marker, _ in KINDS:
        rows = np.flatnonzero(verdict == VERDICTS.index(kind))
        if len(rows):
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": WORDS[kind],
                    "x": peak[rows],
                    "y": rate[rows],
                    "text": [names[row] for row in rows.tolist()],
                    "marker": {
                        "color": colour,
                        "size": 5,
                        "opacity": 0.5,
                        "symbol": _SYMBOLS[marker],
                    },
                    "hovertemplate": _HOVER,
                }
            )
    if len(front.rate):
        order = np.argsort(front.peak, kind="stable")
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "front",
                "x": front.peak[order],
                "y": front.rate[order],
                "text": [configuration(front.settings[row]) for row in order.tolist()],
                "line": {"color": FRONT, "width": 2, "shape": "hv"},
                "marker": {"size": 8, "line": {"color": "white", "width": 1}},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": (front.high - front.peak)[order],
                    "arrayminus": (front.peak - front.low)[order],
                    "thickness": 1,
                    "width": 0,
                },
                "hovertemplate": _HOVER,
            }
        )
        data += _marks(front)
    layout = plain_layout(PEAK_LABEL, RATE_LABEL)
    if (ends := speed_band(front)) is not None:
        top = max(top, 1.03 * ends[1])
    layout["xaxis"]["range"], layout["yaxis"]["range"] = [low, high], [bottom, top]
    return {"data": data, "layout": {**layout, **_usable_memory(front.usable)}}


def _marks(front: Front) -> list[dict[str, Any]]:
    """Return what is said of points of the front: the group of the fastest, the knee, a band."""
    marks: list[dict[str, Any]] = []

    def mark(name: str, rows: Ints, marker: dict[str, Any], **more: Any) -> None:
        points = {"x": front.peak[rows], "y": front.rate[rows]}
        shown = {"type": "scatter", "mode": "markers", "hoverinfo": "skip"}
        marks.append({**shown, "name": name, **points, "marker": marker, **more})

    same = np.flatnonzero(np.array(front.groups) == 1)
    if len(same) > 1:
        halo = {"size": 17, "color": FRONT, "opacity": 0.3}
        mark(f"{len(same)} as fast as the fastest, within noise", same, halo)
    if front.knee is not None and front.knee_text:
        ring = {"size": 15, "symbol": "diamond-open", "color": INK, "line": {"width": 1.5}}
        mark(front.knee_text, np.array([front.knee]), ring)
    if (ends := speed_band(front)) is not None:
        fastest = np.array([int(np.argmax(front.rate))])
        rate = float(front.rate[fastest[0]])
        sides = {"array": [ends[1] - rate], "arrayminus": [rate - ends[0]]}
        bar = {"type": "data", "symmetric": False, "thickness": 1, "width": 4, **sides}
        none = {"size": 1, "color": FRONT}
        mark("68 % band of the speed; all move together", fastest, none, error_y=bar)
    return marks


def _usable_memory(usable: tuple[float, float] | None) -> dict[str, Any]:
    """Return the lines at the least and the most usable memory, and their label."""
    if not usable:
        return {"shapes": [], "annotations": []}
    line = {"color": "#222222", "width": 1, "dash": "dash"}
    shared = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": line}
    label = {"text": "usable", "showarrow": False, "xanchor": "left", "yanchor": "bottom"}
    return {
        "shapes": [{**shared, "x0": peak, "x1": peak} for peak in dict.fromkeys(usable)],
        "annotations": [{**label, "x": usable[0], "yref": "paper", "y": 1.0}],
    }


def heat_map(grid: heat_maps.HeatMap) -> Any:
    """Return a heat map with values in cells; a panel for each workload, in one colour scale."""
    panels = heat_maps.panels_of(grid)
    ticks = heat_maps.axis_ticks(grid, 0), heat_maps.axis_ticks(grid, 1)
    columns = min(heat_maps.MOST_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    finite = np.concatenate([panel.best[np.isfinite(panel.best)] for panel in panels])
    layout = plain_layout(ticks[0].label, ticks[1].label)
    # Upright it would lie on the scale.
    layout["modebar"] = {"orientation": "h"}
    layout["coloraxis"] = {
        "colorscale": heat_maps.SCALE.capitalize(),
        "reversescale": not more_is_better(grid.column),
        "colorbar": {
            "title": {"text": grid.relative_label if grid.workloads else grid.label,
                      "side": "right"},
        },
    }  # fmt: skip
    if len(finite):
        layout["coloraxis"] |= {"cmin": float(finite.min()), "cmax": float(finite.max())}
    data: list[dict[str, Any]] = []
    for place, panel in enumerate(panels):
        suffix = "" if place == 0 else str(place + 1)
        data += _panel(grid, panel, ticks, suffix)
        line, column = divmod(place, columns)
        layout |= _panel_axes(layout, ticks, suffix, (line, column), (lines, columns))
    if grid.workloads:
        layout["annotations"] = [
            {
                "text": escape(panel.name), "showarrow": False, "xref": f"x{suffix} domain",
                "yref": f"y{suffix} domain", "x": 0.0, "y": 1.0, "xanchor": "left",
                "yanchor": "bottom", "font": {"size": 12},
            }
            for panel, suffix in zip(
                panels, ["", *(str(number) for number in range(2, len(panels) + 1))], strict=True
            )
        ]  # fmt: skip
        layout["height"] = 190 + 260 * lines
    return {"data": data, "layout": layout}


def _panel(
    grid: heat_maps.HeatMap, panel: heat_maps.Panel, ticks: tuple[Ticks, Ticks], suffix: str
) -> list[dict[str, Any]]:
    """Return the cells of one panel: those in which nothing fits, and the others."""
    unit = "" if grid.workloads else f"{grid.label}: "
    hover = np.where(
        panel.rows == 0, "no legal job", np.where(np.isnan(panel.best), "nothing fits", "")
    )
    written = [
        ["" if np.isnan(value) else _written(grid, value) for value in row]
        for row in panel.best.tolist()
    ]
    texts = [
        [note or f"{unit}{value}" for note, value in zip(notes, values, strict=True)]
        for notes, values in zip(hover.tolist(), written, strict=True)
    ]
    names = [words_of(field).name for field in grid.fields]
    shared: dict[str, Any] = {
        "type": "heatmap",
        "x": ticks[0].texts,
        "y": ticks[1].texts,
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertext": texts,
        "hovertemplate": f"{names[0]} %{{x}}, {names[1]} %{{y}}<br>%{{hovertext}}<extra></extra>",
    }
    # Jobs that do not fit are drawn below the map, to tell them from illegal ones.
    jobs = np.where((panel.rows > 0) & np.isnan(panel.best), 1.0, np.nan)
    grey = [[0, heat_maps.NOTHING_FITS], [1, heat_maps.NOTHING_FITS]]
    cells: dict[str, Any] = {**shared, "z": panel.best, "coloraxis": "coloraxis"}
    if panel.best.size <= heat_maps.MOST_WRITTEN:
        cells |= {"text": written, "texttemplate": "%{text}"}
    return [{**shared, "z": jobs, "showscale": False, "colorscale": grey}, cells]


def _written(grid: heat_maps.HeatMap, value: float) -> str:
    return f"{value:.2f}" if grid.workloads else heat_maps.cell_text(value)


def _panel_axes(
    layout: dict[str, Any],
    ticks: tuple[Ticks, Ticks],
    suffix: str,
    place: tuple[int, int],
    many: tuple[int, int],
) -> dict[str, Any]:
    """Return both axes of a panel: its place in the figure, labels at the left and below."""
    (line, column), (lines, columns) = place, many
    wide, high = 1.0 / columns, 1.0 / lines
    gap_x, gap_y = (0.04, 0.24 / lines) if lines * columns > 1 else (0.0, 0.0)
    axes: dict[str, Any] = {}
    for name, texts, domain, anchor, shown in (
        ("xaxis", ticks[0], [column * wide, (column + 1) * wide - gap_x], "y", line == lines - 1),
        ("yaxis", ticks[1], [1.0 - (line + 1) * high, 1.0 - line * high - gap_y], "x", column == 0),
    ):
        axes[f"{name}{suffix}"] = {
            **layout[name],
            "title": {"text": texts.label if shown else ""},
            "type": "category",
            "categoryarray": texts.texts,
            "showgrid": False,
            "domain": domain,
            "anchor": f"{anchor}{suffix}",
            "showticklabels": True,
        }
    return axes


def scaling(curve: Scaling) -> Any:
    """Return tokens/s with the ideal line, and tokens/s/GPU beside it."""
    fits = np.flatnonzero(~np.isnan(curve.rate))
    first = curve.first
    if first is None:
        return {"data": [], "layout": plain_layout("GPUs", "tokens/s")}
    gpus = curve.gpus[fits].astype(np.float64)
    names = [configuration(curve.settings[row] or {}) for row in fits.tolist()]
    common: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": gpus,
        "text": names,
        "line": {"color": PALETTE[0], "width": 2},
    }
    ideal = gpus[[0, -1]]
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": ideal,
            "y": ideal * curve.rate[first],
            "name": f"ideal: as on {curve.gpus[first]:,} GPUs",
            "hoverinfo": "skip",
            "line": {"color": "#6E6E6E", "dash": "dash"},
        },
        {
            **common,
            "y": curve.total[fits],
            "name": "tokens/s",
            "hovertemplate": "%{x:,} GPUs: %{y:,.0f} tokens/s<br>%{text}<extra></extra>",
        },
        {
            **common,
            "y": curve.rate[fits],
            "name": "tokens/s/GPU",
            "xaxis": "x2",
            "yaxis": "y2",
            "showlegend": False,
            "customdata": 100.0 * curve.efficiency[fits],
            "hovertemplate": "%{x:,} GPUs: %{y:,.1f} tokens/s/GPU, %{customdata:.1f} %"
            "<br>%{text}<extra></extra>",
        },
    ]
    data += _scaling_band(curve, fits)
    layout = plain_layout("GPUs", "speed of all GPUs, tokens/s")
    ticks = {"type": "log", "tickvals": gpus, "ticktext": [f"{int(number):,}" for number in gpus]}
    side = {**layout["xaxis"], **ticks}
    layout["xaxis"] |= {**ticks, "domain": [0.0, 0.46]}
    ends = np.concatenate([curve.total[fits], ideal * curve.rate[first]])
    layout["yaxis"] |= log_ticks(float(ends.min()), float(ends.max()))
    layout["xaxis2"] = {**side, "domain": [0.56, 1.0], "anchor": "y2"}
    layout["yaxis2"] = {
        "title": {"text": "speed, tokens/s/GPU"},
        "gridcolor": GRID,
        "rangemode": "tozero",
        "anchor": "x2",
        "zerolinecolor": GRID,
    }
    return {"data": data, "layout": layout}


def _scaling_band(curve: Scaling, fits: Ints) -> list[dict[str, Any]]:
    """Return the band of the speed of a GPU as bars; nothing where it is not known."""
    low, high = (ends[fits] for ends in curve.band())
    if not np.isfinite(low).any():
        return []
    rate = curve.rate[fits]
    bar = {"type": "data", "symmetric": False, "array": high - rate, "arrayminus": rate - low}
    return [
        {
            "type": "scatter", "mode": "markers", "x": curve.gpus[fits].astype(np.float64),
            "y": rate, "xaxis": "x2", "yaxis": "y2", "name": "68 % of measured speeds",
            "marker": {"size": 1, "color": PALETTE[0]}, "hoverinfo": "skip",
            "error_y": {**bar, "thickness": 1, "width": 4},
        }
    ]  # fmt: skip
