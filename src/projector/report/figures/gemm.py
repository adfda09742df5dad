"""The figure of a list of matrix multiplications: their S-curve, and the roofline above them."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.report.figures.figure import (
    FAINT,
    INK,
    PALETTE,
    SOFT,
    WIDE,
    head,
    new_figure,
    number_ticks,
    save_figure,
)
from projector.single.gemm_list import GemmList
from projector.units import MEGA, TB, TERA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "compute": PALETTE[0], "memory": PALETTE[3], "overhead": PALETTE[6], "l2": PALETTE[1],
    "l2_fill": PALETTE[4], "issue": PALETTE[5], "epilogue": PALETTE[2],
}  # fmt: skip


def write_gemm_figure(gemms: GemmList, path: str | Path) -> None:
    """Draw a list of GEMMs; the file appears whole or not at all."""
    save_figure(path, lambda: gemm_figure(gemms))


def gemm_figure(gemms: GemmList) -> "Figure":
    """Draw each GEMM's share of the speed of light in order, and all of them under the roofs."""
    case = gemms.case
    figure = new_figure(WIDE[0], 5.6)
    head(
        figure,
        f"GEMM, {case.dtype}, {case.device.name}",
        f"model {case.model}, library {case.library}, run {case.run}, "
        f"{len(gemms.reports):,} {'shape' if len(gemms.reports) == 1 else 'shapes'}",
    )
    curve, roof = figure.subplots(1, 2, width_ratios=(1.0, 1.1))
    device, code = case.device, MATRIX_TYPES.index(case.dtype)
    per_clk = device.matrix_flop_per_clk_per_cu[case.dtype]
    peak = per_clk * device.compute_units * device.peak_clock_mhz * MEGA
    memory = device.hbm_peak_tb_per_s * TB
    shown = [report for report in gemms.reports if report.time_s > 0.0]
    m, n, k, batch = (
        np.array([getattr(report, name) for report in shown], np.float64)
        for name in ("m", "n", "k", "batch")
    )
    flop = 2.0 * m * n * k * batch
    traffic = batch * ((m + n) * k * OPERAND_BYTES[code] + m * n * 2.0)
    intensity = flop / traffic
    rate = np.array([report.flop_per_s for report in shown])
    bounds = np.array([report.bound for report in shown])
    light = np.minimum(peak, intensity * memory)
    _draw_curve(curve, rate / light, bounds)
    _draw_roof(roof, intensity, rate / TERA, bounds, peak / TERA, memory / TERA)
    return figure


def _draw_curve(axes: "Axes", share: np.ndarray, bounds: np.ndarray) -> None:
    order = np.argsort(share, kind="stable")
    axes.bar(
        np.arange(len(share)),
        100.0 * share[order],
        width=0.9,
        color=[_COLOURS[name] for name in bounds[order]],
    )
    axes.set(ylim=(0.0, 105.0), xlim=(-0.6, len(share) - 0.4))
    axes.set_title("Share of the roofline")
    axes.set_ylabel("share of the roof, %")
    axes.set_xlabel("shapes, from the furthest below the roof to the nearest")
    axes.set_xticks([])
    axes.grid(axis="y", color=FAINT, lw=0.6)


def _draw_roof(
    axes: "Axes", intensity: np.ndarray, rate: np.ndarray, bounds: np.ndarray, peak: float,
    memory: float,
) -> None:  # fmt: skip
    ridge = peak / memory
    low = min([*intensity, ridge]) / 2.0
    high = max([*intensity, ridge]) * 2.0
    floor = min([*rate, low * memory]) / 1.5
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor, peak * 1.6))
    number_ticks(axes.xaxis, low, high)
    number_ticks(axes.yaxis, floor, peak * 1.6)
    axes.plot([low, ridge, high], [low * memory, peak, peak], color=INK, lw=1.6)
    axes.annotate(
        f"{peak:,.0f} TFLOP/s at the peak clock", (high, peak), xytext=(-4, 4), fontsize=8.5,
        textcoords="offset points", ha="right", va="bottom", color=SOFT,
    )  # fmt: skip
    for name in dict.fromkeys(bounds.tolist()):
        rows = bounds == name
        axes.scatter(
            intensity[rows], rate[rows], s=34.0, color=_COLOURS[name], label=name, alpha=0.75,
            linewidths=0.6, edgecolors="white", zorder=4,
        )  # fmt: skip
    if len(bounds):
        axes.legend(title="bound by", loc="lower right", framealpha=0.9, edgecolor="none")
    axes.set_title("Roofline")
    axes.set_xlabel("FLOP per byte of compulsory memory traffic")
    axes.set_ylabel("rate, TFLOP/s")
    axes.grid(color=FAINT, lw=0.6)
