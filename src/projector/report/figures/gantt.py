"""The Gantt chart of a pipeline: who does what when, who waits, who holds how much.

Matplotlib is imported where a figure is drawn, and without pyplot: no window, no global state.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats
from projector.projection.bands import AT_RISK, COVERED
from projector.report.figures import figure as fig
from projector.report.terminal.grid import percent
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT
from projector.schedule.replay.order_times import PS_PER_S
from projector.schedule.replay.run import PipelineRun

LONGEST_TITLE = 90

_PHASES = {"warm-up": "#E4EBF3", "steady state": "#F1F1EC", "cool-down": "#F3E9DE"}

# Inches.
_TOP, _PHASE_BAND, _BOTTOM = 1.46, 0.27, 0.62
_ALL_ROWS, _ROW_MOST, _ROW_LEAST, _HIGHEST = 7.0, 0.8, 0.17, 20.0


class Phases(NamedTuple):
    """When the pipeline fills, runs and drains, in seconds."""

    steady_s: float
    """First start of a backward on any rank; all before is warm-up."""
    drain_s: float
    """End of the last forward on any rank; all behind is cool-down."""


def phases(run: PipelineRun) -> Phases:
    """Divide the step of a pipeline.

    *Warm-up* lasts until the first backward of the whole pipeline starts, *cool-down* begins when
    the last forward of the whole pipeline has ended; between the two, in the *steady state*, both
    directions are under way. Where all forwards precede all backwards, as in GPipe, there is no
    steady state, and the cool-down begins with the first backward.
    """
    kind, timeline = run.order.kind, run.timeline
    first_backward = int(timeline.start_ps[kind == BACKWARD].min())
    last_forward = int(timeline.end_ps[kind == FORWARD].max())
    return Phases(first_backward / PS_PER_S, max(first_backward, last_forward) / PS_PER_S)


def write_gantt(run: PipelineRun, path: str | Path, title: str = "") -> None:
    """Draw a run as PNG, SVG or PDF, whole or not at all, under a title such as the job's name."""
    fig.save_figure(path, lambda: gantt_figure(run, title))


def gantt_figure(run: PipelineRun, title: str = "") -> fig.Figure:
    """Draw a run; axes are the phases, the chart and, where memory is known, the peaks."""
    pp = run.order.pp
    row = min(float(np.clip(_ALL_ROWS / pp, _ROW_LEAST, _ROW_MOST)), _HIGHEST / pp)
    rows = row * pp
    height = _TOP + rows + _BOTTOM
    figure = fig.new_figure(WIDTH, height, laid_out=False)

    def add_axes(left: float, up: float, width: float, tall: float, **options: Any) -> fig.Axes:
        return figure.add_axes((left / WIDTH, up / height, width / WIDTH, tall / height), **options)

    chart = add_axes(LEFT, _BOTTOM, CHART, rows)
    band = add_axes(LEFT, _BOTTOM + rows + 0.04, CHART, _PHASE_BAND, sharex=chart)
    peaks = add_axes(LEFT + CHART + IDLE_COLUMN, _BOTTOM, PEAKS, rows)
    unit, scale = _unit(run.makespan_s)
    _head(figure, run, title, height)
    draw_chart(chart, run, row)
    _draw_phases(band, chart, run, scale, unit)
    _draw_idle(chart, run, row)
    _draw_peaks(peaks, run, row)
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ticks = MaxNLocator(nbins=10, steps=[1, 2, 2.5, 5, 10]).tick_values(0.0, run.makespan_s / scale)
    inside = [tick for tick in ticks if 0.0 <= tick <= run.makespan_s / scale]
    chart.set_xticks([tick * scale for tick in inside])
    chart.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:,.6g}"))
    chart.set_xlabel(f"time, {unit}", labelpad=3)
    _legend(figure, run, chart, height)
    return figure


def _head(figure: fig.Figure, run: PipelineRun, title: str, height: float) -> None:
    order = run.order
    unit, scale = _unit(run.makespan_s)
    (held, held_scale), peak = _memory_unit(run), run.peak_bytes
    microbatches = order.microbatches * order.directions
    same = order.pp > 1 and float(peak.min()) == float(peak.max())
    where = "every rank" if same else f"rank {peak.argmax()}"
    facts = [
        f"PP {order.pp}",
        f"VPP {order.num_stages // order.pp}",
        f"{microbatches:,} {'microbatch' if microbatches == 1 else 'microbatches'}",
        f"time {_number(run.makespan_s / scale)} {unit}",
        f"bubble {percent(run.bubble_fraction)} of the work",
        f"peak {_number(float(peak.max()) / held_scale)} {held} on {where}",
    ]
    if run.memory_band is not None:
        ends = (run.memory_band.low_bytes, run.memory_band.high_bytes)
        low, high = (_number(end / held_scale) for end in ends)
        facts[-1] += f" ({COVERED} %: {low} to {high})"
    if run.limit_bytes is not None:
        limit = f"{_number(run.limit_bytes / held_scale)} {held}"
        if run.memory_band is not None and run.memory_band.verdict == AT_RISK:
            facts.append(f"at risk in {limit}")
        else:
            facts.append(f"fits in {limit}" if run.fits else f"does not fit in {limit}")
    if title:
        facts.insert(0, run.schedule)
    name = fig.one_line(title, LONGEST_TITLE) or run.schedule
    for text, down, size, weight in (
        (name, 0.2, 14.5, "bold"), ("  ·  ".join(facts), 0.53, 10.5, "normal")
    ):  # fmt: skip
        figure.text(
            LEFT / WIDTH, 1 - down / height, text, va="top", color=fig.INK, fontsize=size,
            fontweight=weight,
        )  # fmt: skip


def _draw_phases(
    band: fig.Axes, chart: fig.Axes, run: PipelineRun, scale: float, unit: str
) -> None:
    phase_ends = phases(run)
    total = run.makespan_s or 1.0
    bounds = (0.0, phase_ends.steady_s, phase_ends.drain_s, run.makespan_s)
    band.set(ylim=(0.0, 1.0))
    band.axis("off")
    texts = []
    for (name, colour), (begin, end) in zip(_PHASES.items(), pairwise(bounds), strict=True):
        band.axvspan(begin, end, color=colour, lw=0)
        texts.append(f"{name} {_number((end - begin) / scale)} {unit}" if end > begin else "")
    px = CHART * fig.DPI / total
    wide = [len(text) * 6.6 + 14.0 for text in texts]
    middle = (phase_ends.steady_s + phase_ends.drain_s) / 2 * px
    # Names of short phases reach into the steady state, which gives way.
    free = middle - wide[1] / 2 > wide[0] and middle + wide[1] / 2 < CHART * fig.DPI - wide[2]
    for text, at, side, shift in [
        (texts[0], 0.0, "left", 5.0),
        (texts[1] if free else "", middle / px, "center", 0.0),
        (texts[2], total, "right", -5.0),
    ]:
        style = {"ha": side, "va": "center", "fontsize": 9, "color": fig.INK}
        fig.beside(band, text, (at, 0.46), (shift, 0), **style)
    for at in {phase_ends.steady_s, phase_ends.drain_s}:
        if 0.0 < at < run.makespan_s:
            chart.axvline(at, color=fig.SOFT, lw=0.9, ls=(0, (4, 3)), zorder=1.5)


def _draw_idle(chart: fig.Axes, run: PipelineRun, row: float) -> None:
    busy_ps, makespan_ps = run.summary.rank_busy_ps[0], run.makespan_s * PS_PER_S
    idle = 1.0 - busy_ps / makespan_ps if makespan_ps else np.zeros(run.order.pp)
    where: dict[str, Any] = {"transform": chart.get_yaxis_transform(), "clip_on": False}
    top, bottom = BOX if row >= STRIP_LEAST else BOX_ALONE
    step = _step(row)
    for rank in range(0, run.order.pp, step):
        chart.text(
            1.0 + 0.52 / CHART, rank + (top + bottom) / 2, percent(idle[rank]),
            ha="right", va="center", fontsize=9 if step == 1 else 8, color=fig.SOFT, **where,
        )  # fmt: skip
    head = {"xycoords": "axes fraction", "ha": "right", "fontsize": 9, "color": fig.SOFT}
    fig.beside(chart, "idle", (1.0 + 0.52 / CHART, 1.0), (0, 7), **head)


def _draw_peaks(axes: fig.Axes, run: PipelineRun, row: float) -> None:
    pp, (held, scale) = run.order.pp, _memory_unit(run)
    peak = run.peak_bytes / scale
    always = np.zeros(pp) if run.static_bytes is None else run.static_bytes / scale
    limit = None if run.limit_bytes is None else run.limit_bytes / scale
    top, bottom = BOX if row >= STRIP_LEAST else BOX_ALONE
    middle, thick = np.arange(pp) + (top + bottom) / 2, 0.62 * (bottom - top)
    over = np.zeros(pp, bool) if limit is None else peak > limit
    colours = [OVER if too_large else HELD for too_large in over]
    axes.barh(middle, peak - always, left=always, height=thick, color=colours, lw=0)
    axes.barh(middle, always, height=thick, color=ALWAYS, lw=0)
    most = float(peak.max())
    # A limit far away would leave nothing to see of the bars.
    near = limit is not None and limit < 6.0 * most
    right = max(most, limit if limit is not None and near else 0.0) * 1.04 or 1.0
    axes.set(xlim=(0.0, right), ylim=(pp, 0.0))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    step = _step(row)
    for rank in range(0, pp, step):
        fig.beside(
            axes, _number(float(peak[rank])), (1.0, middle[rank]), (6, 0), va="center",
            xycoords=axes.get_yaxis_transform(), fontsize=9 if step == 1 else 8,
            color=OVER if over[rank] else fig.INK,
        )  # fmt: skip
    head = {"xycoords": "axes fraction", "fontsize": 9, "color": fig.SOFT}
    fig.beside(axes, f"peak memory ({held})", (0.0, 1.0), (0, 7), **head)
    if limit is not None and near:
        axes.axvline(limit, color=OVER, lw=1.1, ls=(0, (4, 2)))
        fig.beside(
            axes, f"limit {_number(limit)}", (limit, 0.0), (0, -5), va="top", fontsize=9,
            xycoords=axes.get_xaxis_transform(), ha="right" if limit > 0.6 * right else "center",
            color=OVER,
        )  # fmt: skip


def _step(row: float) -> int:
    """Return of how many ranks in rows of some inches one has room for its name."""
    return max(1, int(np.ceil(13.0 / (row * fig.DPI))))


def _legend(figure: fig.Figure, run: PipelineRun, chart: fig.Axes, height: float) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    order, shades = run.order, shades_of(run)
    names = {
        FORWARD: "F forward",
        BACKWARD: "B input gradient" if order.splits_backward else "B backward",
        WEIGHT: "W weight gradient",
    }
    drawn = [kind for kind in names if kind in order.kind]
    held = (HELD,) if run.static_bytes is None else (HELD, ALWAYS)
    handles: list[Any] = [
        *(tuple(Patch(facecolor=shade, lw=0) for shade in shades[kind]) for kind in drawn),
        Patch(facecolor=IDLE, edgecolor=HATCH, hatch="////", lw=0),
        tuple(Patch(facecolor=colour, lw=0) for colour in held),
    ]
    memory = "memory held" if run.static_bytes is None else "activations, rest of memory"
    texts = [*(names[kind] for kind in drawn), "idle", memory]
    if order.directions > 1:
        texts[0] += "; lighter: the other copy"
    elif order.vpp > 1:
        texts[0] += f"; darkest chunk 0, lightest chunk {order.vpp - 1}"
    if not any(collection.get_label() in ("F", "B", "W") for collection in chart.collections):
        texts[-1] += "   (too many operations to draw each: heights are shares of the time)"
    figure.legend(
        handles, texts, loc="upper left", bbox_to_anchor=(LEFT / WIDTH, 1 - 0.83 / height),
        ncols=len(texts), frameon=False, fontsize=9, borderpad=0.0, borderaxespad=0.0,
        handlelength=2.0, handleheight=0.9, columnspacing=1.8, handletextpad=0.6,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )  # fmt: skip


def _memory_unit(run: PipelineRun) -> tuple[str, float]:
    """Bytes of a job are GiB; plain numbers are microbatches of a whole rank."""
    return ("microbatches", 1.0) if run.static_bytes is None else ("GiB", 2.0**30)


def _unit(seconds: float) -> tuple[str, float]:
    """Return the unit of time in which the step is between 1 and 1,000 of them."""
    for name, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return name, scale
    return ("s", 1.0) if seconds == 0.0 else ("µs", 1e-6)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"


# The chart of a Gantt figure: boxes, numbers, shares of time, and memory below each rank.
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
    """Return the corners of every operation's box, float64[ops, 4, 2]: seconds and row.

    Top and bottom are ends of the boxes in their row, which reaches from ``rank`` to ``rank + 1``.
    """
    start_s, end_s = run.timeline.start_ps / PS_PER_S, run.timeline.end_ps / PS_PER_S
    rank = run.order.rank.astype(np.float64)
    box = np.empty((len(rank), 4, 2))
    box[:, 0, 0] = box[:, 1, 0] = start_s
    box[:, 2, 0] = box[:, 3, 0] = end_s
    box[:, 0, 1] = box[:, 3, 1] = rank + bottom
    box[:, 1, 1] = box[:, 2, 1] = rank + top
    return box


def draw_chart(axes: fig.Axes, run: PipelineRun, row: float) -> None:
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
    style: dict[str, Any] = {"facecolors": IDLE, "edgecolors": HATCH, "hatch": "////"}
    style |= {"linewidths": 0.0, "zorder": 1}
    axes.add_collection(PolyCollection(idle, **style), autolim=False)
    box = corners(run, top, bottom)
    px_per_s = CHART * fig.DPI / (makespan_s or 1.0)
    width_px = (box[:, 2, 0] - box[:, 0, 0]) * px_per_s
    if makespan_s and float(np.median(width_px)) < _PX_LEAST:
        _draw_shares(axes, run, top, bottom, row)
    else:
        _draw_boxes(axes, run, box, width_px, (bottom - top) * row * fig.DPI)
    if strips:
        _draw_memory(axes, run)
    ranks, size = np.arange(0, pp, _step(row)), 9.5 if _step(row) == 1 else 8
    names = [f"rank {rank}" for rank in ranks]
    axes.set_yticks(ranks + (top + bottom) / 2, names, fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "top", "right"]].set_visible(False)


def _draw_boxes(
    axes: fig.Axes, run: PipelineRun, box: Floats, width_px: Floats, height_px: float
) -> None:
    from matplotlib.collections import PolyCollection

    order = run.order
    edge = 0.6 if float(np.median(width_px)) >= _PX_EDGE else 0.0
    shades = shades_of(run)
    for kind in shades:
        of_kind = order.kind == kind
        if not of_kind.any():
            continue
        axes.add_collection(
            PolyCollection(
                box[of_kind],
                facecolors=shades[kind][order.chunk[of_kind]],
                edgecolors="white" if edge else "none",
                linewidths=edge,
                snap=bool(edge),  # whole pixels would make narrow boxes uneven
                zorder=2,
                label="FBW"[kind],
                rasterized=len(box) > fig.MANY,
            ),
            autolim=False,
        )
    digits = np.char.str_len(order.microbatch.astype(str)).astype(np.float64)
    room_pt = np.minimum(_FILLED * width_px / (digits * _DIGIT), 0.8 * height_px) * 72.0 / fig.DPI
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
            linear = np.asarray(colour[:3]) ** 2.2
            dark = float(linear @ [0.2126, 0.7152, 0.0722]) < _DARK
            x, y = (box[index, 0] + box[index, [2, 1], [0, 1]]) / 2
            axes.text(
                x, y, str(order.microbatch[index]), fontsize=size, ha="center",
                va="center_baseline", color="white" if dark else fig.INK, zorder=3,
            )  # fmt: skip


def _draw_shares(axes: fig.Axes, run: PipelineRun, top: float, bottom: float, row: float) -> None:
    """Fill columns from below with the shares of their time; what is left is idle."""
    order = run.order
    # A column takes whole rounds of F, B and W, or it would show now more of one, now of another.
    round_s = run.busiest_s / (order.microbatches * order.vpp)
    column_s = _PX_COLUMN * run.makespan_s / (CHART * fig.DPI)
    column_s = max(np.ceil(column_s / round_s) * round_s, run.makespan_s / (CHART * fig.DPI))
    edges_s = np.append(np.arange(0.0, run.makespan_s, column_s), run.makespan_s)
    lines = max(6, round((bottom - top) * row * fig.DPI))
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


def _draw_memory(axes: fig.Axes, run: PipelineRun) -> None:
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
        if len(held) > CHART * fig.DPI:
            time_ps, held = _thinned(time_ps, held, int(CHART * fig.DPI / 2))
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
            PolyCollection(constant, facecolors=ALWAYS, linewidths=0.0, zorder=2.1), autolim=False
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
