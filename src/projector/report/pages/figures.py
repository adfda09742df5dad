"""The figures of pages as Plotly objects: the same data as the drawn ones, with names to hover."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.projection.verdict import VERDICTS, WORDS
from projector.report.figures.best_cells import HeatMap
from projector.report.figures.figure import PALETTE
from projector.report.figures.front import Front
from projector.report.figures.heat_map import MOST_WRITTEN, cell_text
from projector.report.figures.pareto import FRONT, KINDS, PEAK_LABEL, RATE_LABEL
from projector.report.figures.rows import configuration, more_is_better, value_text
from projector.report.figures.scaling import Scaling

_GRID = "#E6E6E6"
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
    layout = plain_layout(PEAK_LABEL, RATE_LABEL)
    layout["xaxis"]["range"], layout["yaxis"]["range"] = [low, high], [bottom, top]
    return {"data": data, "layout": {**layout, **_usable_memory(front.usable)}}


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


def heat_map(grid: HeatMap) -> Any:
    """Return a heat map with the value in each cell; cells without a value are empty."""
    x, y = ([value_text(value) for value in values] for values in grid.values)
    hover = np.where(
        grid.rows == 0, "no legal job", np.where(np.isnan(grid.best), "nothing fits", "")
    )
    texts = [
        [
            note or f"{grid.label}: {cell_text(float(value))}"
            for note, value in zip(notes, values, strict=True)
        ]
        for notes, values in zip(hover.tolist(), grid.best.tolist(), strict=True)
    ]
    scale = "Cividis"
    names = [field.rpartition(".")[2] for field in grid.fields]
    shared: dict[str, Any] = {
        "type": "heatmap",
        "x": x,
        "y": y,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertext": texts,
        "hovertemplate": f"{names[0]} %{{x}}, {names[1]} %{{y}}<br>%{{hovertext}}<extra></extra>",
    }
    # Jobs that do not fit are drawn below the map, to tell them from illegal ones.
    jobs = np.where((grid.rows > 0) & np.isnan(grid.best), 1.0, np.nan)
    data = [
        {**shared, "z": jobs, "showscale": False, "colorscale": [[0, "#D9D9D9"], [1, "#D9D9D9"]]},
        {
            **shared,
            "z": grid.best,
            "colorscale": scale,
            "reversescale": not more_is_better(grid.column),
            "colorbar": {"title": {"text": grid.label, "side": "right"}},
        },
    ]
    if grid.best.size <= MOST_WRITTEN:
        data[1]["text"] = [
            ["" if np.isnan(value) else cell_text(value) for value in row]
            for row in grid.best.tolist()
        ]
        data[1]["texttemplate"] = "%{text}"
    layout = plain_layout(*grid.fields)
    for axis, values in (("xaxis", x), ("yaxis", y)):
        layout[axis] |= {"type": "category", "categoryarray": values, "showgrid": False}
    return {"data": data, "layout": layout}


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
    layout = plain_layout("GPUs", "tokens/s of all GPUs")
    ticks = {"type": "log", "tickvals": gpus, "ticktext": [f"{int(number):,}" for number in gpus]}
    side = {**layout["xaxis"], **ticks}
    layout["xaxis"] |= {**ticks, "domain": [0.0, 0.46]}
    layout["yaxis"] |= {"type": "log", "dtick": "D2"}
    layout["xaxis2"] = {**side, "domain": [0.56, 1.0], "anchor": "y2"}
    layout["yaxis2"] = {
        "title": {"text": "tokens/s/GPU"},
        "gridcolor": _GRID,
        "rangemode": "tozero",
        "anchor": "x2",
        "zerolinecolor": _GRID,
    }
    return {"data": data, "layout": layout}


def plain_layout(x: str, y: str) -> dict[str, Any]:
    """Return the layout of a figure with two labelled axes."""
    axis: dict[str, Any] = {"gridcolor": _GRID, "zerolinecolor": _GRID, "automargin": True}
    return {
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "font": {"color": "#222222"},
        "margin": {"t": 40, "r": 30},
        "legend": {"orientation": "h", "y": 1.06, "yanchor": "bottom"},
    }
