"""The chart of a Gantt figure: boxes, numbers, shares of time, and memory below each rank."""

from typing import TYPE_CHECKING

import numpy as np

from projector.arrays import Floats
from projector.report.figures.figure import DPI, INK, MANY
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT
from projector.schedule.replay.order_times import PS_PER_S
from projector.schedule.replay.run import PipelineRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Blue, amber and green of one family, apart in hue and in lightness for the colour-blind too.
_COLOURS = {FORWARD: "#3F74A8", BACKWARD: "#E39A3B", WEIGHT: "#6FB59B"}
HELD, ALWAYS, OVER = "#8A7FA6", "#D3CEDF", "#C8553D"
IDLE, HATCH = "#F5F6F8", "#DCE0E6"
_LIGHTEST = 0.58
"""Share of white in the colour of the last of many chunks."""

WIDTH, LEFT, IDLE_COLUMN, PEAKS, RIGHT = 15.0, 0.8, 0.62, 1.5, 0.75
"""Inches of the figure, and of what is beside the chart."""
CHART = WIDTH - LEFT - IDLE_COLUMN - PEAKS - RIGHT

BOX = (0.06, 0.68)
"""Edges of the boxes in the row of a rank, which is 1 high."""
_STRIP = (0.74, 0.97)
"""Where its memory is drawn."""
BOX_ALONE = (0.1, 0.9)
"""Edges of the boxes in rows that are too low for memory."""
STRIP_LEAST = 0.3
"""Inches of a row from which it has room for memory."""

_PX_LEAST = 3.0
"""Width of the median box below which columns show shares of time instead."""
_PX_COLUMN = 6.0
"""Least width of such a column."""
_PX_EDGE = 5.0
"""Width from which boxes have edges."""
_FONT_LEAST, _FONT_MOST = 5.5, 9.5
_DIGIT = 0.64
"""Width of a digit in parts of its height."""
_FILLED = 0.85
"""Share of the width of a box that its number may take."""
_SLACK = 0.01
"""Points: boxes that last alike differ by rounding."""
_NUMBERS_MOST = 1_500
_DARK = 0.3
"""Luminance of a colour below which writing on it is white."""


def corners(run: PipelineRun, top: float = 0.0, bottom: float = 1.0) -> Floats:
    """Return the box of every operation.

    Parameters
    ----------
    run : PipelineRun
        What is drawn.
    top, bottom : float
        Ends of the boxes in their row, which reaches from ``rank`` to ``rank + 1``.

    Returns
    -------
    float64[ops, 4, 2]
        Seconds and row of each corner, in the rows of the order.
    """
    start_s, end_s = run.timeline.start_ps / PS_PER_S, run.timeline.end_ps / PS_PER_S
    rank = run.order.rank.astype(np.float64)
    box = np.empty((len(rank), 4, 2))
    box[:, 0, 0] = box[:, 1, 0] = start_s
    box[:, 2, 0] = box[:, 3, 0] = end_s
    box[:, 0, 1] = box[:, 3, 1] = rank + bottom
    box[:, 1, 1] = box[:, 2, 1] = rank + top
    return box


def draw_chart(axes: "Axes", run: PipelineRun, row: float) -> None:
    """Draw all ranks, each in a row of some inches."""
    from matplotlib.collections import PolyCollection

    pp, makespan_s = run.order.pp, run.makespan_s
    strips = row >= STRIP_LEAST
    top, bottom = BOX if strips else BOX_ALONE
    axes.set(xlim=(0.0, makespan_s or 1.0), ylim=(pp, 0.0))
    idle = [
        [(0.0, low), (0.0, high), (makespan_s, high), (makespan_s, low)]
        for low, high in ((rank + bottom, rank + top) for rank in range(pp))
    ]
    axes.add_collection(
        PolyCollection(
            idle, facecolors=IDLE, edgecolors=HATCH, hatch="////", linewidths=0.0, zorder=1
        ),
        autolim=False,
    )
    box = corners(run, top, bottom)
    px_per_s = CHART * DPI / (makespan_s or 1.0)
    width_px = (box[:, 2, 0] - box[:, 0, 0]) * px_per_s
    if makespan_s and float(np.median(width_px)) < _PX_LEAST:
        _draw_shares(axes, run, top, bottom, row)
    else:
        _draw_boxes(axes, run, box, width_px, (bottom - top) * row * DPI)
    if strips:
        _draw_memory(axes, run)
    step = max(1, int(np.ceil(13.0 / (row * DPI))))
    ranks = np.arange(0, pp, step)
    axes.set_yticks(
        ranks + (top + bottom) / 2,
        [f"rank {rank}" for rank in ranks],
        fontsize=9.5 if step == 1 else 8,
    )
    axes.tick_params(axis="y", length=0)
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)


def _draw_boxes(
    axes: "Axes", run: PipelineRun, box: Floats, width_px: Floats, height_px: float
) -> None:
    from matplotlib.collections import PolyCollection

    order = run.order
    edge = 0.6 if float(np.median(width_px)) >= _PX_EDGE else 0.0
    for kind, shades in shades_of(run).items():
        of_kind = order.kind == kind
        if not of_kind.any():
            continue
        axes.add_collection(
            PolyCollection(
                box[of_kind],
                facecolors=shades[order.chunk[of_kind]],
                edgecolors="white" if edge else "none",
                linewidths=edge,
                snap=bool(edge),  # whole pixels would make narrow boxes uneven
                zorder=2,
                label="FBW"[kind],
                rasterized=len(box) > MANY,
            ),
            autolim=False,
        )
    _draw_numbers(axes, run, box, width_px, height_px)


def _draw_numbers(
    axes: "Axes", run: PipelineRun, box: Floats, width_px: Floats, height_px: float
) -> None:
    """Write microbatches into the boxes of each kind, in one size, where that can be read."""
    order, shades = run.order, shades_of(run)
    digits = np.char.str_len(order.microbatch.astype(str)).astype(np.float64)
    room_pt = np.minimum(_FILLED * width_px / (digits * _DIGIT), 0.8 * height_px) * 72.0 / DPI
    for kind in shades:
        of_kind = np.flatnonzero(order.kind == kind)
        if not len(of_kind) or len(of_kind) > _NUMBERS_MOST:
            continue
        # Some boxes are narrower than most; what counts is a size that nine in ten can take.
        size = min(float(np.quantile(room_pt[of_kind], 0.1)), _FONT_MOST)
        if size < _FONT_LEAST:
            continue
        for index in of_kind[room_pt[of_kind] >= size - _SLACK].tolist():
            colour = shades[kind][order.chunk[index]]
            axes.text(
                (box[index, 0, 0] + box[index, 2, 0]) / 2,
                (box[index, 0, 1] + box[index, 1, 1]) / 2,
                str(order.microbatch[index]),
                fontsize=size,
                ha="center",
                va="center_baseline",
                color="white" if _luminance(colour) < _DARK else INK,
                zorder=3,
            )


def _draw_shares(axes: "Axes", run: PipelineRun, top: float, bottom: float, row: float) -> None:
    """Fill columns from below with the shares of their time; what is left is idle."""
    order = run.order
    # A column takes whole rounds of F, B and W, or it would show now more of one, now of another.
    round_s = run.busiest_s / (order.microbatches * order.vpp)
    column_s = _PX_COLUMN * run.makespan_s / (CHART * DPI)
    column_s = max(np.ceil(column_s / round_s) * round_s, run.makespan_s / (CHART * DPI))
    edges_s = np.append(np.arange(0.0, run.makespan_s, column_s), run.makespan_s)
    lines = max(6, round((bottom - top) * row * DPI))
    height = (np.arange(lines, 0, -1) - 0.5) / lines
    for rank in range(order.pp):
        share, colour = _shares(run, rank, edges_s)
        level = np.cumsum(share, axis=0)
        # The first colour whose level reaches a height fills it there; none leaves it clear.
        palette_row = (level[:, np.newaxis, :] <= height[np.newaxis, :, np.newaxis]).sum(axis=0)
        palette = np.vstack([colour, [[1.0, 1.0, 1.0, 0.0]]])
        lines_at = np.linspace(rank + top, rank + bottom, lines + 1)
        axes.pcolorfast(edges_s, lines_at, palette[palette_row], zorder=2)
    axes.set(xlim=(0.0, run.makespan_s), ylim=(order.pp, 0.0))


def _shares(run: PipelineRun, rank: int, edges_s: Floats) -> tuple[Floats, Floats]:
    """Return the share of time of each kind and chunk, ``[kinds * chunks, columns]``; colours."""
    order, timeline = run.order, run.timeline
    on_rank = slice(int(order.rank_offset[rank]), int(order.rank_offset[rank + 1]))
    start_s, end_s = timeline.start_ps[on_rank] / PS_PER_S, timeline.end_ps[on_rank] / PS_PER_S
    shares, colours = [], []
    for kind, shades in shades_of(run).items():
        for chunk in range(order.vpp):
            these = (order.kind[on_rank] == kind) & (order.chunk[on_rank] == chunk)
            if not these.any():
                continue
            # Work done until a time: it grows inside operations and rests between them.
            time_s = np.column_stack([start_s[these], end_s[these]]).ravel()
            work_s = np.cumsum(end_s[these] - start_s[these])
            done_s = np.column_stack([np.concatenate([[0.0], work_s[:-1]]), work_s]).ravel()
            done = np.interp(edges_s, time_s, done_s, left=0.0, right=float(work_s[-1]))
            shares.append(np.diff(done) / np.diff(edges_s))
            colours.append(shades[chunk])
    return np.array(shares), np.array(colours)


def _draw_memory(axes: "Axes", run: PipelineRun) -> None:
    """Draw what each rank holds over time below its boxes, all on one scale."""
    from matplotlib.collections import PolyCollection

    most = float(run.peak_bytes.max()) or 1.0
    upper, lower = _STRIP
    shapes, constant = [], []
    end_ps = run.makespan_s * PS_PER_S
    for rank in range(run.order.pp):
        curve = run.memory_curve(rank)
        time_ps = np.append(curve.time_ps, end_ps)
        held = np.append(curve.bytes, curve.bytes[-1])
        if len(held) > CHART * DPI:
            time_ps, held = _thinned(time_ps, held, int(CHART * DPI / 2))
        x = np.repeat(time_ps / PS_PER_S, 2)[1:]
        y = np.repeat(held, 2)[:-1]
        base = rank + lower
        level = base - (lower - upper) * y / most
        shapes.append(
            np.column_stack([np.concatenate([x, x[[-1, 0]]]), np.append(level, [base, base])])
        )
        always = 0.0 if run.static_bytes is None else float(run.static_bytes[rank])
        floor = base - (lower - upper) * always / most
        right = run.makespan_s
        constant.append([(0.0, base), (0.0, floor), (right, floor), (right, base)])
    axes.add_collection(
        PolyCollection(shapes, facecolors=HELD, linewidths=0.0, zorder=2, label="memory"),
        autolim=False,
    )
    if run.static_bytes is not None:
        axes.add_collection(
            PolyCollection(constant, facecolors=ALWAYS, linewidths=0.0, zorder=2.1),
            autolim=False,
        )
    lines = np.arange(run.order.pp) + lower
    axes.hlines(lines, 0.0, run.makespan_s, color=HELD, lw=0.5, zorder=2.2)


def _thinned(time_ps: Floats, held: Floats, columns: int) -> tuple[Floats, Floats]:
    """Keep the most that is held in each column of pixels."""
    edges = np.linspace(0.0, float(time_ps[-1]), columns + 1)
    column = np.clip(np.searchsorted(edges, time_ps, side="right") - 1, 0, columns - 1)
    most = np.zeros(columns)
    np.maximum.at(most, column, held)
    # What is held when a column begins counts for it as well.
    before = held[np.maximum(np.searchsorted(time_ps, edges[:-1], side="right") - 1, 0)]
    most = np.maximum(most, before)
    return edges, np.append(most, held[-1])


def shades_of(run: PipelineRun) -> dict[int, Floats]:
    """Return the colours of the chunks of each kind, ``float64[vpp, 4]``, the first the darkest."""
    from matplotlib.colors import to_rgba

    vpp = run.order.vpp
    lightest = min(_LIGHTEST, 0.4 + 0.06 * (vpp - 2))
    white = np.linspace(0.0, lightest, vpp)[:, np.newaxis] if vpp > 1 else np.zeros((1, 1))
    return {
        kind: np.array(to_rgba(colour)) * (1.0 - white) + white for kind, colour in _COLOURS.items()
    }


def _luminance(colour: Floats) -> float:
    linear = np.asarray(colour[:3]) ** 2.2
    return float(linear @ [0.2126, 0.7152, 0.0722])
