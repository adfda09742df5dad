"""The figure of attention kernels: their rates by length, and under the roofs of the device."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from projector.report.figures.figure import (
    FAINT,
    INK,
    PALETTE,
    check_figure,
    head,
    new_figure,
    number_ticks,
    save_figure,
)
from projector.report.terminal.attention import title
from projector.single.attention import AttentionProjection, project_attention
from projector.units import TB, TERA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTHS = np.unique(np.round(2.0 ** np.arange(7.0, 17.01, 0.125) / 64.0).astype(np.int64) * 64)
"""Lengths of the curves, 128 to 131,072 in steps of an eighth of an octave."""

_COLOURS = {
    "matrix": PALETTE[0],
    "softmax": PALETTE[1],
    "memory": PALETTE[2],
    "atomics": PALETTE[3],
    "overhead": PALETTE[5],
}


def write_attention_figure(
    found: AttentionProjection, arguments: Mapping[str, Any], path: str | Path
) -> None:
    """Draw attentions; ``arguments`` are those of `project_attention` that gave them.

    Raises
    ------
    ProjectorError
        If the file cannot be written.
    """
    check_figure(path)
    curves = _curves(found, arguments)
    save_figure(path, lambda: attention_figure(found, curves))


def _curves(
    found: AttentionProjection, arguments: Mapping[str, Any]
) -> dict[str, NDArray[np.float64]]:
    """Return the rate by length of the first shape, with and without a mask."""
    if not len(found):
        return {}
    batch, heads, kv_heads, _, _, width, v_width = (int(each) for each in found.extents[0])
    same = {
        name: arguments[name]
        for name in ("device", "dtype", "impl", "clock_mhz", "run", "backward")
    }
    return {
        name: project_attention(
            batch, heads, LENGTHS, kv_heads=kv_heads, head_dim=width, v_head_dim=v_width,
            causal=causal, window=int(found.window[0]), **same,
        ).flop_per_s
        for name, causal in (("causal", True), ("full", False))
    }  # fmt: skip


def attention_figure(
    found: AttentionProjection, curves: Mapping[str, NDArray[np.float64]]
) -> "Figure":
    """Draw the curves of the first shape, and all shapes under the roofs."""
    figure = new_figure(12.5, 5.2)
    head(
        figure,
        f"Attention: {title(found)}",
        f"at {found.clock_mhz:,.0f} MHz; curves: the first shape at other lengths",
    )
    left, right = figure.subplots(1, 2)
    _draw_curves(left, found, curves)
    _draw_roofline(right, found)
    return figure


def _draw_curves(
    axes: "Axes", found: AttentionProjection, curves: Mapping[str, NDArray[np.float64]]
) -> None:
    axes.set_xscale("log", base=2)
    # A power of two in words of 1,024, as sequences are named.
    ticks = [1 << power for power in range(7, 18, 2)]
    axes.set_xticks(ticks, [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(color=FAINT, lw=0.6)
    for (name, rates), colour in zip(curves.items(), (PALETTE[0], PALETTE[3]), strict=False):
        axes.plot(LENGTHS, rates / TERA, color=colour, lw=1.8, label=name)
    if len(found):
        axes.scatter(
            found.extents[:, 4], found.flop_per_s / TERA, color=INK, s=22, zorder=5,
            label="given shapes",
        )  # fmt: skip
    axes.axhline(found.peak_flop_per_s / TERA, color=INK, lw=1.0, ls=(0, (4, 3)))
    axes.set_ylim(0.0, found.peak_flop_per_s / TERA * 1.08)
    axes.set_xlabel("keys")
    axes.set_ylabel("TFLOP/s of visible work")
    axes.set_title("Rate by sequence length")
    axes.legend(loc="lower right", framealpha=0.9, edgecolor="none")


def _draw_roofline(axes: "Axes", found: AttentionProjection) -> None:
    peak = found.peak_flop_per_s / TERA
    slope = found.device.hbm_peak_tb_per_s * found.device.hbm_efficiency
    moved = found.terms["bytes"] + found.terms["pass_bytes"]
    drawn = (moved > 0.0) & (found.flop_per_s > 0.0)
    intensity = found.terms["flop"][drawn] / moved[drawn]
    rate = found.flop_per_s[drawn] / TERA
    ridge = peak / slope
    low = float(np.min(intensity, initial=ridge / 8.0)) / 2.0
    high = float(np.max(intensity, initial=ridge * 8.0)) * 2.0
    floor = min(low * slope, float(np.min(rate, initial=peak))) / 1.5
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor, peak * 1.6))
    number_ticks(axes.xaxis, low, high)
    number_ticks(axes.yaxis, floor, peak * 1.6)
    axes.grid(color=FAINT, lw=0.6)
    axes.plot([low, ridge, high], [low * slope, peak, peak], color=INK, lw=1.6)
    axes.annotate(
        f"{found.dtype}  {peak:,.0f}", (high, peak), xytext=(-3, 3), textcoords="offset points",
        ha="right", fontsize=8.5,
    )  # fmt: skip
    axes.annotate(
        f"memory  {slope * TERA / TB:.2f} TB/s", (low, low * slope), xytext=(22, 2),
        textcoords="offset points", ha="left", fontsize=8.5,
    )  # fmt: skip
    bounds = np.array(found.bound)[drawn]
    for name in dict.fromkeys(bounds.tolist()):
        own = bounds == name
        axes.scatter(
            intensity[own], rate[own], color=_COLOURS[name], s=34, alpha=0.75, edgecolors="white",
            linewidths=0.6, zorder=5, label=name,
        )  # fmt: skip
    axes.set_xlabel("FLOP per byte of memory traffic")
    axes.set_ylabel("TFLOP/s of visible work")
    axes.set_title("Roofline, by limit")
    if len(bounds):
        axes.legend(loc="lower right", framealpha=0.9, edgecolor="none")
