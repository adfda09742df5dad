"""The figure of attention kernels: their rates by length, and under the roofs of the device."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Floats
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
    projection: AttentionProjection, arguments: Mapping[str, Any], path: str | Path
) -> None:
    """Draw attentions; ``arguments`` are those of `project_attention` that gave them."""
    check_figure(path)
    curves = _curves(projection, arguments)
    save_figure(path, lambda: attention_figure(projection, curves))


def _curves(projection: AttentionProjection, arguments: Mapping[str, Any]) -> dict[str, Floats]:
    """Return the rate by length of the first shape, with and without a mask."""
    if not len(projection):
        return {}
    batch, heads, kv_heads, _, _, width, v_width = (int(extent) for extent in projection.extents[0])
    same = {
        name: arguments[name]
        for name in ("device", "dtype", "impl", "clock_mhz", "run", "backward")
    }
    return {
        name: project_attention(
            batch, heads, LENGTHS, kv_heads=kv_heads, head_dim=width, v_head_dim=v_width,
            causal=causal, window=int(projection.window[0]), **same,
        ).flop_per_s
        for name, causal in (("causal", True), ("full", False))
    }  # fmt: skip


def attention_figure(projection: AttentionProjection, curves: Mapping[str, Floats]) -> "Figure":
    """Draw the curves of the first shape, and all shapes under the roofs."""
    figure = new_figure(12.5, 5.2)
    head(
        figure,
        f"Attention: {title(projection)}",
        f"at {projection.clock_mhz:,.0f} MHz; curves: the first shape at other lengths",
    )
    left, right = figure.subplots(1, 2)
    _draw_curves(left, projection, curves)
    _draw_roofline(right, projection)
    return figure


def _draw_curves(
    axes: "Axes", projection: AttentionProjection, curves: Mapping[str, Floats]
) -> None:
    axes.set_xscale("log", base=2)
    # A power of two in words of 1,024, as sequences are named.
    ticks = [1 << power for power in range(7, 18, 2)]
    axes.set_xticks(ticks, [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(color=FAINT, lw=0.6)
    for (name, rates), colour in zip(curves.items(), (PALETTE[0], PALETTE[3]), strict=False):
        axes.plot(LENGTHS, rates / TERA, color=colour, lw=1.8, label=name)
    if len(projection):
        axes.scatter(
            projection.extents[:, 4], projection.flop_per_s / TERA, color=INK, s=22, zorder=5,
            label="given shapes",
        )  # fmt: skip
    axes.axhline(projection.peak_flop_per_s / TERA, color=INK, lw=1.0, ls=(0, (4, 3)))
    axes.set_ylim(0.0, projection.peak_flop_per_s / TERA * 1.08)
    axes.set_xlabel("length of the keys, tokens")
    axes.set_ylabel("rate of visible work, TFLOP/s")
    axes.set_title("Rate by sequence length")
    axes.legend(loc="lower right", framealpha=0.9, edgecolor="none")


def _draw_roofline(axes: "Axes", projection: AttentionProjection) -> None:
    peak = projection.peak_flop_per_s / TERA
    slope = projection.device.hbm_peak_tb_per_s * projection.device.hbm_efficiency
    moved = projection.terms["bytes"] + projection.terms["pass_bytes"]
    drawn = (moved > 0.0) & (projection.flop_per_s > 0.0)
    intensity = projection.terms["flop"][drawn] / moved[drawn]
    rate = projection.flop_per_s[drawn] / TERA
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
        f"{projection.dtype}  {peak:,.0f}", (high, peak), xytext=(-3, 3),
        textcoords="offset points", ha="right", fontsize=8.5,
    )  # fmt: skip
    axes.annotate(
        f"memory  {slope * TERA / TB:.2f} TB/s", (low, low * slope), xytext=(22, 2),
        textcoords="offset points", ha="left", fontsize=8.5,
    )  # fmt: skip
    bounds = np.array(projection.bound)[drawn]
    for name in dict.fromkeys(bounds.tolist()):
        bounded_so = bounds == name
        axes.scatter(
            intensity[bounded_so], rate[bounded_so], color=_COLOURS[name], s=34,
            alpha=0.75, edgecolors="white", linewidths=0.6, zorder=5, label=name,
        )  # fmt: skip
    axes.set_xlabel("FLOP per byte of memory traffic")
    axes.set_ylabel("rate of visible work, TFLOP/s")
    axes.set_title("Roofline, by limit")
    if len(bounds):
        axes.legend(title="bound by", loc="lower right", framealpha=0.9, edgecolor="none")
