"""Throughput of a device against the speed of one user, drawn and as a Plotly object."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.report.figures import figure as fig
from projector.report.figures import rows as swept
from projector.report.pages.page import band, log_ticks, plain_layout, scatter
from projector.sweeps.points import SLO
from projector.sweeps.result import SweepResult

USER, GPU = "speed of one user, tokens/s", "throughput of one GPU, tokens/s"


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one device, and those that no other beats."""

    name: str
    user: Floats
    """Tokens a second of one user, of each point."""
    gpu: Floats
    """Tokens a second of one device."""
    shown: Ints
    """Points that fit."""
    front: Ints
    mark: int | None
    """The point that is named."""
    mark_name: str
    label: Callable[[int], str]
    """What a point is."""
    hover: Callable[[int], str]
    """What else a page says of it."""
    ends: tuple[Floats, Floats] | None = None
    """Where 68 % of measured speeds of the front lie."""


def draw(title: str, note: str, curves: Sequence[Curve], least: float | None = None) -> fig.Figure:
    """Draw the points that fit, the fronts over them, and what is named of each.

    ``least`` is the speed of a user that is asked for.
    """
    figure = fig.new_figure(9.0, 5.6, f"Throughput against speed: {title}", note)
    axes = figure.subplots()
    fig.label(axes, USER, GPU, xscale="log", yscale="log", grid="both")
    several, drawn = len(curves) > 1, [each for each in curves if len(each.shown)]
    if not drawn:
        fig.nothing(axes, "nothing fits")
        return figure
    for place, each in enumerate(curves):
        colour, rows = fig.PALETTE[place % len(fig.PALETTE)], each.front
        user, gpu, mark = each.user, each.gpu, each.mark
        if not several:
            axes.plot(
                user[each.shown], gpu[each.shown], "o", ms=3.5, color=fig.SOFT, alpha=0.35, mew=0,
                rasterized=len(user) > fig.MANY, label="fits",
            )  # fmt: skip
        best = each.name if mark is None else f"{each.name}: {each.label(mark)}"
        axes.plot(
            user[rows], gpu[rows], "-o", color=colour, lw=1.4, ms=4.0 if several else 5.5,
            label=best if several else "no other is better",
        )  # fmt: skip
        if each.ends is not None:
            axes.hlines(
                gpu[rows], *each.ends, color=colour, lw=1.0, alpha=0.4, zorder=1.5,
                label="_" if several else "68 % of measured speeds",
            )  # fmt: skip
        if mark is not None:
            axes.plot(
                user[mark], gpu[mark], "D", ms=9, zorder=4, mec="white",
                color=colour if several else fig.PALETTE[3],
                label="_" if several else each.mark_name,
            )  # fmt: skip
        named = [(int(rows[0]), (6, 6)), (int(rows[-1]), (4, 14))] if len(rows) else []
        named[1:1] = [] if mark is None else [(mark, (8, 8))]
        for row, offset in [] if several else named:
            axes.annotate(
                each.label(row), (user[row], gpu[row]), offset, textcoords="offset points",
                ha="center" if row == rows[-1] else "left", fontsize=8.5, color=fig.INK,
                bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.0},
            )  # fmt: skip
    if several:
        axes.plot([], [], "D", ms=8, color=fig.SOFT, label=curves[0].mark_name, ls="")
    if least is not None:
        asked = f"{least:,.4g} tokens/s, the TPOT asked for"
        axes.axvline(least, color=fig.INK, lw=1.0, ls=(0, (4, 3)), label=asked)
    for axis, name in ((axes.xaxis, "user"), (axes.yaxis, "gpu")):
        values = _shown(drawn, name)
        fig.number_ticks(axis, float(values.min()), float(values.max()) * 1.001)
    axes.margins(0.14, 0.12)
    axes.legend(loc="lower left", frameon=False)
    return figure


def _shown(curves: Sequence[Curve], name: str) -> Floats:
    """Return what is drawn: of several devices only their fronts."""
    rows = "front" if len(curves) > 1 else "shown"
    return np.concatenate([getattr(each, name)[getattr(each, rows)] for each in curves])


def chart(curves: Sequence[Curve], least: float | None = None) -> dict[str, Any]:
    """Return the same as a Plotly object."""
    data, several = [], len(curves) > 1
    for place, each in enumerate(curves):
        colour = fig.PALETTE[place % len(fig.PALETTE)]

        def points(
            mode: str, name: str, rows: Ints, each: Curve = each, **style: Any
        ) -> dict[str, Any]:
            texts = [f"{each.label(row)}<br>{each.hover(row)}" for row in rows.tolist()]
            hover = "%{x:,.1f} tokens/s/user, %{y:,.0f} tokens/s/GPU<br>%{text}<extra></extra>"
            told = {"text": texts, "hovertemplate": hover}
            return scatter(mode, name, each.user[rows], each.gpu[rows], **told, **style)

        cloud = {"color": fig.SOFT, "size": 4, "opacity": 0.4}
        style: dict[str, Any] = {"line": {"color": colour}, "marker": {"size": 8}}
        if each.ends is not None:
            style["error_x"] = band(each.user[each.front], *each.ends)
        if several:
            style["marker"]["color"] = colour
        else:
            shown = each.shown[:: 1 + len(each.shown) // MOST_DRAWN]
            data.append(points("markers", "fits", shown, marker=cloud))
        name = each.name if several else "no other is better"
        data.append(points("lines+markers", name, each.front, **style))
        if each.mark is not None:
            rhomb = {
                "color": colour if several else fig.PALETTE[3],
                "size": 13,
                "symbol": "diamond",
            }
            named = f"{each.name}: {each.mark_name}" if several else each.mark_name
            data.append(points("markers", named, np.array([each.mark]), marker=rhomb))
    layout = plain_layout(USER, GPU)
    drawn = [each for each in curves if len(each.shown)]
    if drawn:
        ends = [end for each in drawn for end in each.ends or ()]
        user, gpu = np.concatenate([_shown(drawn, "user"), *ends]), _shown(drawn, "gpu")
        layout["xaxis"] |= log_ticks(float(user.min()), float(user.max()))
        layout["yaxis"] |= log_ticks(float(gpu.min()), float(gpu.max()))
    if least is not None:
        line = {"color": fig.INK, "width": 1, "dash": "dash"}
        ends_of = {"x0": least, "x1": least, "yref": "paper", "y0": 0, "y1": 1}
        layout["shapes"] = [{"type": "line", "line": line, **ends_of}]
    return {"data": data, "layout": layout}


def curve_of_sweep(result: SweepResult) -> Curve:
    """Return the rows of deployments that are ranked, and those that no other beats."""
    fields, speeds = swept.axes_of(result.columns), ("tokens_per_s_per_user", swept.RATE)
    front = result.pareto([swept.RATE, speeds[0]])
    drawn = swept.sample(result.rows, MOST_DRAWN)
    rows = [row for _, row in swept.rows_at(result, [*speeds, *result.ranking_columns], drawn)]
    rows = [row for row in rows if row["fits"] and row.get(SLO, True)]
    settings = front.select(swept.untied(result.plan, fields)).to_pylist()
    names = [swept.configuration(each) for each in swept.differing(settings)] if settings else []
    both = [*front.select(list(speeds)).to_pylist(), *rows]
    user, gpu = (np.array([row[name] for row in both], np.float64) for name in speeds)
    every, best = np.arange(len(both)), np.arange(len(front))

    def label(row: int) -> str:
        return names[row] if row < len(names) else ""

    return Curve(swept.RATE, user, gpu, every, best, None, "", label, lambda _: "")


def write_front_of_sweep(result: SweepResult, path: str) -> None:
    """Draw throughput against speed of a sweep of deployments."""
    title = swept.title_of_sweep(result)
    fig.save_figure(path, lambda: draw(title, "", [curve_of_sweep(result)]))


MOST_DRAWN = 1500
"""Points of a cloud that a page has; every so many-th where there are more."""
