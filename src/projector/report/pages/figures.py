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
from projector.report.figures.rows import configuration
from projector.report.figures.scaling import Scaling
from projector.report.figures.words import Ticks, words_of
from projector.report.pages.page import GRID, band, log_ticks, plain_layout, scatter
from projector.sweeps.result import MORE_IS_BETTER

_SYMBOLS = {"o": "circle", "^": "triangle-up", "s": "square"}
_HOVER = "%{y:,.1f} tokens/s/GPU, %{x:,.2f} GiB<br>%{text}<extra></extra>"


def pareto(front: Front, rate: Floats, peak: Floats, verdict: Ints, names: Sequence[str]) -> Any:
    """Return the front over some of the rows, each with its configuration and verdict."""
    low, high, bottom, top = front.cloud.shown
    data: list[dict[str, Any]] = []
    for kind, colour, marker, _ in KINDS:
        rows = np.flatnonzero(verdict == VERDICTS.index(kind))
        if len(rows):
            texts = [names[row] for row in rows.tolist()]
            mark = {"color": colour, "size": 5, "opacity": 0.5, "symbol": _SYMBOLS[marker]}
            points = scatter("markers", WORDS[kind], peak[rows], rate[rows], text=texts)
            data.append(points | {"marker": mark, "hovertemplate": _HOVER})
    if len(front.rate):
        order = np.argsort(front.peak, kind="stable")
        peaks = front.peak[order]
        line = scatter("lines+markers", "front", peaks, front.rate[order], hovertemplate=_HOVER)
        line["text"] = [configuration(front.settings[row]) for row in order.tolist()]
        line["line"] = {"color": FRONT, "width": 2, "shape": "hv"}
        line["marker"] = {"size": 8, "line": {"color": "white", "width": 1}}
        low = min(low, 0.97 * float(front.low.min()))
        high = max(high, 1.03 * float(front.high.max()))
        line["error_x"] = band(peaks, front.low[order], front.high[order])
        data.append(line)
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
        shown = {"hoverinfo": "skip", "marker": marker, **more}
        marks.append(scatter("markers", name, front.peak[rows], front.rate[rows], **shown))

    same = np.flatnonzero(np.array(front.groups) == 1)
    if len(same) > 1:
        halo = {"size": 17, "color": FRONT, "opacity": 0.3}
        mark(f"{len(same)} as fast as the fastest, within noise", same, halo)
    if front.knee is not None and front.knee_text:
        ring = {"size": 15, "symbol": "diamond-open", "color": INK, "line": {"width": 1.5}}
        mark(front.knee_text, np.array([front.knee]), ring)
    if (ends := speed_band(front)) is not None:
        fastest = np.array([int(np.argmax(front.rate))])
        bar = band(front.rate[fastest], *ends, 4)
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
        "reversescale": grid.column not in MORE_IS_BETTER,
        "colorbar": {
            "title": {"text": grid.relative_label if grid.workloads else grid.label,
                      "side": "right"},
        },
    }  # fmt: skip
    if len(finite):
        layout["coloraxis"] |= {"cmin": float(finite.min()), "cmax": float(finite.max())}
    data: list[dict[str, Any]] = []
    suffixes = ["", *map(str, range(2, len(panels) + 1))]
    for place, (panel, suffix) in enumerate(zip(panels, suffixes, strict=True)):
        data += _panel(grid, panel, ticks, suffix)
        line, column = divmod(place, columns)
        wide, high = 1.0 / columns, 1.0 / lines
        gap_x, gap_y = (0.04, 0.24 / lines) if lines * columns > 1 else (0.0, 0.0)
        across = [column * wide, (column + 1) * wide - gap_x]
        upwards = [1.0 - (line + 1) * high, 1.0 - line * high - gap_y]
        # Labels stand below, and once at the left: one may be higher than a panel.
        for name, texts, domain, anchor, shown in (
            ("xaxis", ticks[0], across, "y", line == lines - 1),
            ("yaxis", ticks[1], upwards, "x", column == 0 and line == lines // 2),
        ):
            layout[f"{name}{suffix}"] = {
                **layout[name],
                "title": {"text": texts.label if shown else ""},
                "type": "category",
                "categoryarray": texts.texts,
                "showgrid": False,
                "domain": domain,
                "anchor": f"{anchor}{suffix}",
                "showticklabels": True,
            }
    if grid.workloads:
        layout["annotations"] = [
            {
                "text": escape(panel.name), "showarrow": False, "xref": f"x{suffix} domain",
                "yref": f"y{suffix} domain", "x": 0.0, "y": 1.0, "xanchor": "left",
                "yanchor": "bottom", "font": {"size": 12},
            }
            for panel, suffix in zip(panels, suffixes, strict=True)
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
    write = "{:.2f}".format if grid.workloads else heat_maps.cell_text
    written = [
        ["" if np.isnan(value) else write(value) for value in row] for row in panel.best.tolist()
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


def scaling(curve: Scaling) -> Any:
    """Return tokens/s with the ideal line, and tokens/s/GPU beside it."""
    fits = np.flatnonzero(~np.isnan(curve.rate))
    first = curve.first
    if first is None:
        return {"data": [], "layout": plain_layout("GPUs", "tokens/s")}
    gpus, rate = curve.gpus[fits].astype(np.float64), curve.rate[fits]
    names = [configuration(curve.settings[row] or {}) for row in fits.tolist()]
    common = {"text": names, "line": {"color": PALETTE[0], "width": 2}}
    ideal, aside = gpus[[0, -1]], {"xaxis": "x2", "yaxis": "y2"}
    data = [
        scatter(
            "lines", f"ideal: as on {curve.gpus[first]:,} GPUs", ideal, ideal * curve.rate[first],
            hoverinfo="skip", line={"color": "#6E6E6E", "dash": "dash"},
        ),
        scatter(
            "lines+markers", "tokens/s", gpus, curve.total[fits], **common,
            hovertemplate="%{x:,} GPUs: %{y:,.0f} tokens/s<br>%{text}<extra></extra>",
        ),
        scatter(
            "lines+markers", "tokens/s/GPU", gpus, rate, **common, **aside, showlegend=False,
            customdata=100.0 * curve.efficiency[fits],
            hovertemplate="%{x:,} GPUs: %{y:,.1f} tokens/s/GPU, %{customdata:.1f} %"
            "<br>%{text}<extra></extra>",
        ),
    ]  # fmt: skip
    low, high = (ends[fits] for ends in curve.band())
    if np.isfinite(low).any():
        bars = {"marker": {"size": 1, "color": PALETTE[0]}, "error_y": band(rate, low, high, 4)}
        known = scatter("markers", "68 % of measured speeds", gpus, rate, **bars, **aside)
        data.append(known | {"hoverinfo": "skip"})
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
