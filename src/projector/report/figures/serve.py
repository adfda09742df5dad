"""The figure of throughput against speed of serving."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from projector.arrays import Floats
from projector.config.bands import DECODE
from projector.errors import ConfigError
from projector.report.figures.figure import (
    FAINT,
    INK,
    PALETTE,
    SOFT,
    check_figure,
    head,
    new_figure,
    number_ticks,
    save_figure,
)
from projector.serving.front import ServingFront
from projector.serving.projection import ServingProjection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USER, GPU = "speed of one user, tokens/s", "throughput of one GPU, tokens/s"


def write_front(result: ServingProjection, path: str | Path) -> None:
    """Draw throughput against speed; the file appears whole or not at all."""
    check_figure(path)
    front = front_of(result)
    save_figure(path, lambda: front_figure(result, front))


def front_of(result: ServingProjection) -> ServingFront:
    """Return the front of a load."""
    if result.front is None:
        msg = "there is no front to draw: batch and split are stated; leave out batch"
        raise ConfigError(msg, key="plot", allowed="a load without batch")
    return result.front


def split_name(front: ServingFront, row: int, *, batch: bool = True) -> str:
    """Name the split of a point, and its batch."""
    found = front.overrides(row)
    many = found.pop("load.batch")
    words = [f"{name.upper().replace('_', ' ')} {value}" for name, value in found.items()]
    return "  ".join([*words, f"batch {many:,}"] if batch else words)


def titles(result: ServingProjection) -> tuple[str, str]:
    """Return the title of a figure of the front, and a note."""
    deployment, traffic = result.deployment, result.traffic
    front = front_of(result)
    sizes = {each.gpus for each in front.grid.deployments}
    devices = f"{max(sizes):,}" if len(sizes) == 1 else f"up to {max(sizes):,}"
    title = f"{deployment.model.name} on {devices} x {deployment.cluster.device.name}"
    output = f", {traffic.output:,} generated" if traffic.output else ""
    note = (
        f"prompts of {traffic.context:,} tokens{output}, {deployment.dtype.upper()}; "
        f"{front.fitting:,} of {len(front.grid):,} points fit"
    )
    return title, note


def speed_band(result: ServingProjection, user: Floats) -> tuple[Floats, Floats] | None:
    """Return where 68 % of measured speeds of one user lie; None where nothing is known."""
    band = result.band_of(DECODE)
    if band.low_68 is None or band.high_68 is None:
        return None
    return user / band.high_68, user / band.low_68


def front_figure(result: ServingProjection, front: ServingFront) -> "Figure":
    """Draw the points that fit, the front over them, and its knee."""
    figure = new_figure(9.0, 5.6)
    head(figure, f"Throughput against speed: {titles(result)[0]}", titles(result)[1])
    axes = figure.subplots()
    axes.set_xlabel(USER)
    axes.set_ylabel(GPU)
    axes.set(xscale="log", yscale="log")
    axes.grid(color=FAINT, lw=0.6)
    rates = front.rates
    fits = np.flatnonzero(rates.fits)
    if not len(fits):
        axes.text(0.5, 0.5, "nothing fits", ha="center", color=SOFT, transform=axes.transAxes)
        return figure
    user, device = rates.tokens_per_s_per_user, rates.tokens_per_s_per_gpu
    axes.plot(user[fits], device[fits], "o", ms=3.5, color=SOFT, alpha=0.35, mew=0, label="fits")
    rows = front.rows
    axes.plot(
        user[rows], device[rows], "-o", color=PALETTE[0], lw=1.4, ms=5.5, label="no other is better"
    )
    if (ends := speed_band(result, user[rows])) is not None:
        axes.hlines(
            device[rows], *ends, color=PALETTE[0], lw=1.0, alpha=0.4, zorder=1.5,
            label="68 % of measured speeds",
        )  # fmt: skip
    knee = int(rows[front.knee])
    axes.plot(user[knee], device[knee], "D", color=PALETTE[3], ms=9, label="knee")
    for row, place in ((int(rows[0]), (6, 6)), (knee, (8, 8)), (int(rows[-1]), (4, 14))):
        side = "center" if row == rows[-1] else "left"
        axes.annotate(
            split_name(front, row), (user[row], device[row]), place, textcoords="offset points",
            ha=side, fontsize=8.5, color=INK,
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip
    for axis, values in ((axes.xaxis, user[fits]), (axes.yaxis, device[fits])):
        number_ticks(axis, float(values.min()), float(values.max()) * 1.001)
    axes.margins(0.14, 0.12)
    axes.legend(loc="lower left", frameon=False)
    return figure
