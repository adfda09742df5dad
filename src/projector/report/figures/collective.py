"""The figure of a collective: bandwidth and time of every algorithm by size, and crossovers."""

import numpy as np

from projector.arrays import Floats
from projector.report.figures import figure as fig
from projector.report.terminal.network import size_name, title
from projector.single.collective import FINE_BYTES, CollectiveProjection
from projector.units import GB, MICROSECOND

_STRIP = 0.022
"""Height of the strip of chosen algorithms, as a share of the axes."""


def collective_figure(projection: CollectiveProjection) -> fig.Figure:
    """Draw a line for each algorithm; those that the library lacks are thin and dashed."""
    local = projection.local
    where = "one scale-up domain" if local == projection.ranks else f"{local} a scale-up domain"
    note = f"{where}, {projection.case.cluster.network.name}; the foot shows what is chosen"
    figure = fig.new_figure(12.5, 5.4, f"Collective: {title(projection)}", note)
    left, right = figure.subplots(1, 2)
    _draw(left, projection, bandwidth=True)
    _draw(right, projection, bandwidth=False)
    left.set_ylim(0.0)
    fig.label(left, "", "bus bandwidth, GB/s", "Bus bandwidth by size")
    right.set_yscale("log")
    fig.number_ticks(right.yaxis, *right.get_ylim())
    fig.label(right, "", "time, µs", "Time by size")
    if projection.fine.each_s:
        left.legend(loc="upper left", framealpha=0.9, edgecolor="none")
    return figure


def _colour(projection: CollectiveProjection, name: str) -> str:
    return fig.PALETTE[list(projection.fine.each_s).index(name) % len(fig.PALETTE)]


def _draw(axes: fig.Axes, projection: CollectiveProjection, *, bandwidth: bool) -> None:
    axes.set_xscale("log", base=2)
    ticks = [2.0**power for power in range(10, 35, 4)]
    axes.set_xticks(ticks, [size_name(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(FINE_BYTES[0], FINE_BYTES[-1])
    fig.label(axes, "size of the buffer", grid="both")
    fine = projection.fine
    for name, seconds in fine.each_s.items():
        has = name in projection.served_by_library
        axes.plot(
            fine.num_bytes, _shown(projection, fine.num_bytes, seconds, bandwidth=bandwidth),
            color=_colour(projection, name), lw=2.2 if has else 1.2, ls="-" if has else (0, (4, 2)),
            label=name.replace("_", "-") + ("" if has else " (not in the library)"), zorder=4,
        )  # fmt: skip
    if projection.time_s > 0.0:
        size = np.array([projection.num_bytes])
        asked = _shown(projection, size, np.array([projection.time_s]), bandwidth=bandwidth)
        axes.scatter(size, asked, color=fig.INK, s=26, zorder=6, label="asked size")
    _mark_crossovers(axes, projection, named=not bandwidth)
    best = projection.fine.best
    start = 0
    for column in range(1, len(best) + 1):
        if column < len(best) and best[column] == best[start]:
            continue
        chosen = best[start]
        if chosen is not None:
            end = FINE_BYTES[min(column, len(best) - 1)]
            colour = _colour(projection, chosen)
            axes.axvspan(FINE_BYTES[start], end, 0.0, _STRIP, color=colour, lw=0, zorder=5)
        start = column


def _shown(
    projection: CollectiveProjection, size: Floats, seconds: Floats, *, bandwidth: bool
) -> Floats:
    if bandwidth:
        shown = projection.bus_bytes_per_s(size, seconds) / GB
        return np.where(np.isfinite(seconds), shown, np.nan)
    return np.where(np.isfinite(seconds) & (seconds > 0.0), seconds, np.nan) / MICROSECOND


def _mark_crossovers(axes: fig.Axes, projection: CollectiveProjection, *, named: bool) -> None:
    if projection.asked is not None:
        return
    for number, point in enumerate(projection.crossovers):
        axes.axvline(point.num_bytes, color=fig.SOFT, lw=0.9, ls=(0, (1, 2)), zorder=3)
        if named:
            # At the top left nothing is drawn: small messages take little time. Neighbours are
            # written at two heights, so that close ones do not overlap.
            axes.annotate(
                size_name(point.num_bytes), (point.num_bytes, 0.95 - 0.06 * (number % 2)),
                xycoords=("data", "axes fraction"), xytext=(-3, 0), textcoords="offset points",
                fontsize=8.5, color=fig.INK, zorder=7, ha="right",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )  # fmt: skip
