"""Operations under the roofs of their device: of a job, a list of GEMMs, attention kernels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.config.job import Job
from projector.config.resources import hardware_table
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.lower.hardware import native_type
from projector.operations import table as ops
from projector.operations.table import FORWARD
from projector.operations.work import repeated_rows
from projector.projection.evaluate import evaluate
from projector.report.figures import figure as fig
from projector.report.terminal.job import short_title
from projector.report.terminal.single import title
from projector.single.attention import AttentionProjection, project_attention
from projector.single.gemm import GemmList
from projector.single.gemm_words import GemmReport
from projector.units import MEGA, MICROSECOND, TB, TERA

# FLOP and compulsory memory traffic of rows of the operation table. *Compulsory* is what any
# kernel must move: every operand once, whatever its tiles read again and whatever a cache keeps.
# FLOP per compulsory byte therefore bounds what a row can reach.
NOMINAL_FLOP_PER_BYTE = 0.5
"""Memory-bound operators have no matrix FLOP. To have a place in a roofline they count one FLOP
for each 16-bit element that they move; nothing but the place depends on it."""

_OUTPUT_BYTES, _STATISTIC_BYTES = 2.0, 4.0
"""Of an element of O or of a gradient, and of a log-sum, in fused attention."""


def row_flop(table: ops.OperationTable) -> Floats:
    """Return the FLOP that the model needs for every row, nominal ones for memory-bound rows."""
    nominal = NOMINAL_FLOP_PER_BYTE * table.bytes * table.repeats
    return np.where(table.kind == ops.MEMORY, nominal, table.flop)


def row_bytes(table: ops.OperationTable) -> Floats:
    """Return the compulsory device-memory traffic of every row; 0 for collectives.

    GEMM: ``batch * ((m + n) * k * w + m * n * out_bytes)`` with operands of ``w`` bytes.
    Attention forward: Q, K and V in, O and the log-sums out; backward: these, dO and a second
    statistic in, dQ, dK and dV out. Memory-bound rows state their traffic.
    """
    operand = OPERAND_BYTES[table.dtype]
    m, n, k, batch = (
        column.astype(np.float64) for column in (table.m, table.n, table.k, table.batch)
    )
    gemm = batch * ((m + n) * k * operand + m * n * table.out_bytes)
    traffic = np.where(table.kind == ops.GEMM, gemm, 0.0)
    query_rows = batch * table.heads * m
    # A window reaches back from the first query; with as many keys as queries it reaches all.
    visible_keys = np.where(table.window > 0, np.minimum(n, m + table.window - 1.0), n)
    key_rows = batch * table.key_heads * visible_keys
    inputs = query_rows * k * operand + key_rows * (k + table.d_v) * operand
    output = query_rows * table.d_v * _OUTPUT_BYTES
    forward = inputs + output + query_rows * _STATISTIC_BYTES
    gradients = (query_rows * k + key_rows * (k + table.d_v)) * _OUTPUT_BYTES
    backward = inputs + 2.0 * output + 2.0 * query_rows * _STATISTIC_BYTES + gradients
    traffic = np.where(
        table.kind == ops.ATTENTION,
        np.asarray(np.where(table.phase == ops.BACKWARD, backward, forward), np.float64),
        traffic,
    )
    return np.where(table.kind == ops.MEMORY, table.bytes, traffic) * table.repeats


# The operations of a job: FLOP, traffic, time, and the roofs of its device.
PHASES = ("forward", "input gradient", "weight gradient")
BOTH_GRADIENTS = "backward"
"""Name of the second phase of an operation without a separate weight gradient."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a job in one phase, over all layers and microbatches of a step."""

    name: str
    phase: str
    category: int
    """One of the compute categories of the operation table."""
    dtype: str
    """Type of the operands of its matrix instructions; empty where it has none."""
    flop: float
    bytes: float
    """Compulsory traffic, see `projector.report.figures.roofline`."""
    time_s: float
    """Together on all pipeline ranks."""
    share: float
    """Of the time of a step that a device spends with it, in the mean over pipeline ranks."""
    roof: float
    """FLOP/s that its intensity allows."""

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flop / self.bytes

    @property
    def rate(self) -> float:
        """FLOP/s that it reaches."""
        return self.flop / self.time_s


@dataclass(frozen=True, slots=True)
class Roofline:
    """Contents of the figure."""

    title: str
    operations: tuple[Operation, ...]
    """The longest first."""
    roofs: dict[str, float]
    """Matrix type that the device has -> FLOP/s at its sustained clock."""
    bytes_per_s: float
    """Achievable rate of the device's memory."""


def read_roofline(job: Job) -> Roofline:
    """Return FLOP, traffic and time of every operation of one training step."""
    evaluation = evaluate([job])
    table, workloads = evaluation.table, evaluation.workloads
    step_s = float(evaluation.steps.iteration_s[0]) * job.parallelism.pp
    layers = np.bincount(workloads.run_workload, workloads.run_count, len(workloads.rows))
    times = layers[table.workload] * float(int(evaluation.microbatches[0]))
    weight = np.asarray(np.where(repeated_rows(table, workloads), 2.0, 1.0) * times, np.float64)
    flop, traffic = row_flop(table), row_bytes(table)
    keep = (table.category < ops.TP_COMM) & (flop > 0.0) & (traffic > 0.0) & (weight > 0.0)
    sums: dict[tuple[int, ...], np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for row in np.flatnonzero(keep & (evaluation.rows.time_s > 0.0)).tolist():
        names = (table.label, table.phase, table.category, table.dtype, table.kind)
        key = tuple(int(column[row]) for column in names)
        amounts = weight[row] * np.array([flop[row], traffic[row], evaluation.rows.time_s[row]])
        sums[key] = sums.get(key, np.zeros(3)) + amounts
    device = workloads.devices[workloads.device[0]]
    memory = float(device["hbm_bytes_per_s"])
    split_backward = {key[0] for key in sums if key[1] > 1}
    operations = []
    for (label, phase, category, dtype, kind), (flops, moved, seconds) in sums.items():
        matrix = np.inf if kind == ops.MEMORY else float(device["matrix_flop_per_s"][dtype])
        operations.append(
            Operation(
                name=table.labels[label],
                phase=PHASES[phase]
                if phase == FORWARD or label in split_backward
                else BOTH_GRADIENTS,
                category=category,
                dtype="" if kind == ops.MEMORY else MATRIX_TYPES[dtype],
                flop=float(flops),
                bytes=float(moved),
                time_s=float(seconds),
                share=float(seconds) / step_s,
                roof=min(matrix, memory * float(flops / moved)),
            )
        )
    operations.sort(key=lambda operation: (-operation.time_s, operation.name, operation.phase))
    profile = job.cluster.device
    roofs = {
        name: float(device["matrix_flop_per_s"][code])
        for code, name in enumerate(MATRIX_TYPES)
        if native_type(profile, name) == name
    }
    return Roofline(short_title(job), tuple(operations), roofs, memory)


# The figure of a job.

NAMED = 16
"""Operations that are named, the longest ones."""

_KINDS = {
    ops.COMPUTE_GEMM: ("GEMM", fig.PALETTE[0], "o"),
    ops.COMPUTE_ATTENTION: ("attention", fig.PALETTE[3], "s"),
    ops.COMPUTE_OTHER: ("memory-bound", fig.PALETTE[2], "^"),
}
"""Name, colour and marker of each category of compute."""

_TENTH_PT2, _LEAST_PT2, _MOST_PT2 = 380.0, 14.0, 760.0
"""Area of a marker at a tenth of the step, of the smallest and of the largest."""

_APART = 0.045
"""Share of the height between two roofs from which both have room for their names."""

_AREAS = (
    "Areas: share of the step, in the mean over pipeline ranks; forwards with their recomputation. "
    "Compulsory traffic: every operand once."
)
_NOMINAL = (
    "Memory-bound operators have no matrix FLOP; they stand where one FLOP for each 16-bit element "
    "that they move would put them."
)

Limits = tuple[tuple[float, float], tuple[float, float]]
"""Ends of the intensities, in FLOP per byte, and of the rates, in FLOP/s."""


def write_roofline(job: Job, path: str | Path) -> None:
    """Draw the operations of a job under its roofs; the file appears whole or not at all."""
    fig.check_figure(path)
    roofline = read_roofline(job)
    fig.save_figure(path, lambda: roofline_figure(roofline))


def roofline_figure(roofline: Roofline) -> fig.Figure:
    """Draw all operations, those with matrix FLOP once more from near, and the longest as a list.

    Near the roofs matrix operations lie so close together that one figure cannot show both them
    and the memory-bound ones.
    """
    share = sum(operation.share for operation in roofline.operations)
    note = f"operations of a training step; together they take {100.0 * share:.0f} % of it"
    figure = fig.new_figure(*fig.WIDE, f"Roofline: {roofline.title}", note)
    whole, near, side = figure.subplots(1, 3, width_ratios=(0.8, 1.0, 1.0))
    named = roofline.operations[:NAMED]
    numbers = {id(operation): str(number + 1) for number, operation in enumerate(named)}
    _draw(whole, roofline, roofline.operations, _limits(roofline, roofline.operations, whole=True))
    fig.label(whole, "", "rate of a GPU, TFLOP/s", "All operations")
    _draw_legend(whole, roofline)
    matrix = [operation for operation in roofline.operations if operation.dtype]
    if matrix:
        # Of those that matter: one router may lie far from everything else.
        shown = [operation for operation in named if operation.dtype]
        limits = _limits(roofline, shown or matrix, whole=False)
        _draw(near, roofline, matrix, limits)
        near.set_title("GEMMs and attention")
        _frame(whole, limits)
        _number(near, shown, [numbers[id(operation)] for operation in shown])
    else:
        near.set_axis_off()
    _write_memory(whole, roofline)
    _number_together(
        whole, [(operation, numbers[id(operation)]) for operation in named if not operation.dtype]
    )
    _list(side, roofline, named)
    return figure


def _limits(roofline: Roofline, operations: Iterable[Operation], *, whole: bool) -> Limits:
    intensity = [operation.intensity for operation in operations]
    rate = [operation.rate for operation in operations]
    top = max(roofline.roofs.values())
    if whole:
        ridge = top / roofline.bytes_per_s
        low = min([*intensity, ridge / 30.0]) / 2.5
        # Behind the points the roofs have room for their names.
        high = max([*intensity, ridge * 4.0]) * 14.0
        return (low, high), (min([*rate, low * roofline.bytes_per_s]) / 2.0, top * 2.5)
    roofs = [roofline.roofs.get(operation.dtype, operation.roof) for operation in operations]
    return (min(intensity) / 1.7, max(intensity) * 1.7), (min(rate) / 1.25, max(roofs) * 1.15)


def _draw(
    axes: fig.Axes, roofline: Roofline, operations: Sequence[Operation], limits: Limits
) -> None:
    (low, high), (floor, ceiling) = limits
    floor, ceiling = floor / TERA, ceiling / TERA
    fig.log_axes(axes, (low, high), (floor, ceiling))
    fig.label(axes, "FLOP per byte of compulsory memory traffic", grid="both")
    slope = roofline.bytes_per_s / TERA
    end = max(roofline.roofs.values()) / TERA
    axes.plot([low, end / slope], [low * slope, end], color=fig.INK, lw=1.6, zorder=3)
    levels: dict[float, list[str]] = {}
    for name, rate in roofline.roofs.items():
        levels.setdefault(rate / TERA, []).append(name)
    used = {operation.dtype for operation in roofline.operations}
    # Types that the job uses first; another roof so near to one that is named has no name.
    order = sorted(levels, key=lambda rate: (not used.intersection(levels[rate]), -rate))
    room = float((ceiling / floor) ** _APART)
    labelled: list[float] = []
    for rate in order:
        bold = bool(used.intersection(levels[rate]))
        colour = fig.INK if bold else "#A6A6A6"
        axes.plot(
            [rate / slope, max(high, rate / slope)],
            [rate] * 2,
            color=colour,
            lw=1.6 if bold else 0.9,
            zorder=3,
        )
        clear = all(max(rate / other, other / rate) > room for other in labelled)
        if clear and floor < rate < ceiling and rate / slope < high:
            labelled.append(rate)
            name = f"{', '.join(levels[rate])}  {rate:,.0f}"
            style = {"ha": "right", "va": "bottom", "fontsize": 8.5, "color": colour, "zorder": 8}
            fig.beside(axes, name, (high, rate), (-3, 3), **style)
    # The longest first, so that smaller ones lie over them.
    for operation in operations:
        _, colour, marker = _KINDS[operation.category]
        axes.scatter(
            [operation.intensity], [operation.rate / TERA], s=_area(operation), c=colour,
            marker=marker, alpha=0.6, linewidths=0.7, edgecolors="white", zorder=5,
        )  # fmt: skip


def _area(operation: Operation) -> float:
    return float(np.clip(_TENTH_PT2 * operation.share / 0.1, _LEAST_PT2, _MOST_PT2))


def _points(operations: Sequence[Operation]) -> Floats:
    points = [(operation.intensity, operation.rate / TERA) for operation in operations]
    return np.array(points, np.float64).reshape(-1, 2)


def _number(axes: fig.Axes, operations: Sequence[Operation], texts: Sequence[str]) -> None:
    dpi = fig.figure_of(axes).dpi
    corner = [1.0 if _KINDS[operation.category][2] == "o" else 2.0 for operation in operations]
    area_pt2 = np.multiply([_area(operation) for operation in operations], corner)
    fig.number_points(axes, _points(operations), np.sqrt(area_pt2) / 2.0 * dpi / 72.0, texts)


def _number_together(axes: fig.Axes, pairs: Sequence[tuple[Operation, str]]) -> None:
    """Write the numbers of memory-bound operators beside them, which lie on each other."""
    if not pairs:
        return
    x, y = _points([pairs[0][0]])[0].tolist()
    fig.beside(
        axes, ", ".join(number for _, number in pairs), (x, y), (13, -4), ha="left", va="top",
        fontsize=8.2, fontweight="bold", zorder=9, in_layout=False,
    )  # fmt: skip


def _frame(axes: fig.Axes, limits: Limits) -> None:
    """Show which part the other figure shows."""
    from matplotlib.patches import Rectangle

    (low, high), (floor, ceiling) = limits
    axes.add_patch(
        Rectangle(
            (low, floor / TERA), high - low, (ceiling - floor) / TERA, fill=False, ec=fig.SOFT,
            lw=0.9, ls=(0, (3, 2)), zorder=4,
        )
    )  # fmt: skip


def _write_memory(axes: fig.Axes, roofline: Roofline) -> None:
    slope = roofline.bytes_per_s / TERA
    low, ridge = axes.get_xlim()[0], max(roofline.roofs.values()) / roofline.bytes_per_s
    middle = float(low**0.4 * ridge**0.6)
    fig.figure_of(axes).draw_without_rendering()
    line_px = axes.transData.transform([(low, low * slope), (ridge, ridge * slope)])
    run, rise = (line_px[1] - line_px[0]).tolist()
    fig.beside(
        axes, f"memory  {roofline.bytes_per_s / TB:.2f} TB/s", (middle, middle * slope), (-4, 4),
        ha="center", va="bottom", fontsize=8.5, rotation=float(np.degrees(np.arctan2(rise, run))),
        rotation_mode="anchor",
    )  # fmt: skip


def _draw_legend(axes: fig.Axes, roofline: Roofline) -> None:
    from matplotlib.lines import Line2D

    shares = dict.fromkeys(_KINDS, 0.0)
    for operation in roofline.operations:
        shares[operation.category] += operation.share
    handles = [
        Line2D([], [], ls="", marker=marker, color=colour, ms=8, alpha=0.8,
               label=f"{name}, {100.0 * shares[category]:.1f} %")
        for category, (name, colour, marker) in _KINDS.items() if shares[category]
    ]  # fmt: skip
    if handles:
        axes.legend(
            handles=handles, loc="lower right", framealpha=0.9, edgecolor="none",
            title="of the step", title_fontsize=8.5, alignment="left",
        )  # fmt: skip


def _list(side: fig.Axes, roofline: Roofline, named: Sequence[Operation]) -> None:
    rows = [
        (str(number + 1), f"{100.0 * operation.share:.1f} %",
         f"{100.0 * operation.rate / operation.roof:.0f} %", f"{operation.name} {operation.phase}")
        for number, operation in enumerate(named)
    ]  # fmt: skip
    rest = roofline.operations[NAMED:]
    notes = []
    if rest:
        other = 100.0 * sum(operation.share for operation in rest)
        notes.append(f"{len(rest)} more operations take {other:.1f} % of the step.")
    notes += [_AREAS, _NOMINAL]
    columns = (("", 0.0, "left"), ("of the step", 0.24, "right"), ("of roof", 0.41, "right"),
               ("operation", 0.45, "left"))  # fmt: skip
    colours = [_KINDS[operation.category][1] for operation in named]
    fig.draw_list(side, columns, rows, notes=notes, colours=colours, wrap=44)


# The figure of a list of matrix multiplications: their S-curve, and the roofline above them.
_COLOURS = {
    "compute": fig.PALETTE[0], "memory": fig.PALETTE[3], "overhead": fig.PALETTE[6],
    "l2": fig.PALETTE[1], "l2_fill": fig.PALETTE[4], "issue": fig.PALETTE[5],
    "epilogue": fig.PALETTE[2],
}  # fmt: skip


def gemm_figure(gemms: GemmList) -> fig.Figure:
    """Draw each GEMM's share of the speed of light in order, and all of them under the roofs."""
    case = gemms.case
    figure = fig.new_figure(
        fig.WIDE[0],
        5.6,
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
    intensity = flop / (batch * ((m + n) * k * OPERAND_BYTES[code] + m * n * 2.0))
    rate = np.array([report.flop_per_s for report in shown])
    bounds = np.array([report.bound for report in shown])
    ratios = gemms.ratios
    if len(ratios):
        from projector.report.figures.benchmark import s_curve

        s_curve(curve, ratios, [("shapes", fig.PALETTE[0], np.arange(len(ratios)))])
    elif len(shown) == 1:
        _draw_terms(curve, shown[0])
    else:
        share = rate / np.minimum(peak, intensity * memory)
        order = np.argsort(share, kind="stable")
        colours = [_COLOURS[name] for name in bounds[order]]
        curve.bar(np.arange(len(share)), 100.0 * share[order], width=0.9, color=colours)
        curve.set(ylim=(0.0, 105.0), xlim=(-0.6, len(share) - 0.4), xticks=[])
        shapes = "shapes, from the furthest below the roof to the nearest"
        fig.label(curve, shapes, "share of the roof, %", "Share of the roofline", grid="y")
    _draw_roof(roof, intensity, rate / TERA, bounds, peak / TERA, memory / TERA)
    return figure


def _draw_terms(axes: fig.Axes, report: GemmReport) -> None:
    """Draw what a single GEMM is made of, and its whole time."""
    times_us = {
        name: report.terms[key] / MICROSECOND
        for key, name in reversed(hardware_table("report_words.yaml")["gemm_terms"].items())
        if report.terms.get(key)
    }
    axes.barh([*times_us], [*times_us.values()], color=_COLOURS[report.bound])
    axes.axvline(report.time_s / MICROSECOND, color=fig.INK, lw=1.0, ls=(0, (4, 3)))
    fig.label(axes, "time, µs; dashed: the whole", "", "Terms, side by side or in turn", grid="x")


def _draw_roof(
    axes: fig.Axes, intensity: Floats, rate: Floats, bounds: np.ndarray, peak: float, slope: float
) -> None:
    low = min([*intensity, peak / slope]) / 2.0
    high = max([*intensity, peak / slope]) * 2.0
    _draw_bounded(axes, intensity, rate, bounds, _COLOURS, (low, high), peak, slope)
    style = {"fontsize": 8.5, "ha": "right", "va": "bottom", "color": fig.SOFT}
    fig.beside(axes, f"{peak:,.0f} TFLOP/s at the peak clock", (high, peak), (-4, 4), **style)
    fig.label(axes, "FLOP per byte of compulsory memory traffic", "rate, TFLOP/s", "Roofline")


def _draw_bounded(
    axes: fig.Axes, intensity: Floats, rate: Floats, bounds: np.ndarray, colours: Mapping[str, str],
    ends: tuple[float, float], peak: float, slope: float,
) -> None:  # fmt: skip
    """Draw one roof between two intensities, and below it points by what bounds them."""
    low, high = ends
    floor = float(np.min(rate, initial=min(low * slope, peak))) / 1.5
    fig.log_axes(axes, ends, (floor, peak * 1.6))
    axes.grid(color=fig.FAINT, lw=0.6)
    axes.plot([low, peak / slope, high], [low * slope, peak, peak], color=fig.INK, lw=1.6)
    for name in dict.fromkeys(bounds.tolist()):
        rows = bounds == name
        axes.scatter(
            intensity[rows], rate[rows], s=34.0, color=colours[name], label=name, alpha=0.75,
            linewidths=0.6, edgecolors="white", zorder=4,
        )  # fmt: skip
    if len(bounds):
        axes.legend(title="bound by", loc="lower right", framealpha=0.9, edgecolor="none")


# The figure of attention kernels: their rates by length, and under the roofs of the device.
LENGTHS = np.unique(np.round(2.0 ** np.arange(7.0, 17.01, 0.125) / 64.0).astype(np.int64) * 64)
"""Lengths of the curves, 128 to 131,072 in steps of an eighth of an octave."""

_LIMITS = ("matrix", "softmax", "memory", "atomics", "", "overhead")
_LIMIT_COLOURS = dict(zip(_LIMITS, fig.PALETTE, strict=False))

_VISIBLE = "rate of visible work, TFLOP/s"


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


def attention_figure(projection: AttentionProjection, arguments: Mapping[str, Any]) -> fig.Figure:
    """Draw the curves of the first shape, and all shapes under the roofs.

    The arguments are those of `project_attention` that gave the projection.
    """
    curves = _curves(projection, arguments)
    note = f"at {projection.clock_mhz:,.0f} MHz; curves: the first shape at other lengths"
    figure = fig.new_figure(12.5, 5.2, f"Attention: {title(projection)}", note)
    left, right = figure.subplots(1, 2)
    left.set_xscale("log", base=2)
    # A power of two in words of 1,024, as sequences are named.
    ticks = [1 << power for power in range(7, 18, 2)]
    left.set_xticks(ticks, [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks])
    left.minorticks_off()
    for colour, (name, rates) in zip(fig.PALETTE[::3], curves.items(), strict=False):
        left.plot(LENGTHS, rates / TERA, color=colour, lw=1.8, label=name)
    if len(projection):
        left.scatter(
            projection.extents[:, 4], projection.flop_per_s / TERA, color=fig.INK, s=22, zorder=5,
            label="given shapes",
        )  # fmt: skip
    left.axhline(projection.peak_flop_per_s / TERA, color=fig.INK, lw=1.0, ls=(0, (4, 3)))
    left.set_ylim(0.0, projection.peak_flop_per_s / TERA * 1.08)
    fig.label(left, "length of the keys, tokens", _VISIBLE, "Rate by sequence length", grid="both")
    left.legend(loc="lower right", framealpha=0.9, edgecolor="none")
    _draw_roofline(right, projection)
    return figure


def _draw_roofline(axes: fig.Axes, projection: AttentionProjection) -> None:
    peak = projection.peak_flop_per_s / TERA
    slope = projection.device.hbm_peak_tb_per_s * projection.device.hbm_efficiency
    moved = projection.terms["bytes"] + projection.terms["pass_bytes"]
    drawn = (moved > 0.0) & (projection.flop_per_s > 0.0)
    intensity = projection.terms["flop"][drawn] / moved[drawn]
    rate = projection.flop_per_s[drawn] / TERA
    ridge = peak / slope
    low = float(np.min(intensity, initial=ridge / 8.0)) / 2.0
    high = float(np.max(intensity, initial=ridge * 8.0)) * 2.0
    bounds = np.array(projection.bound)[drawn]
    _draw_bounded(axes, intensity, rate, bounds, _LIMIT_COLOURS, (low, high), peak, slope)
    for text, at, shift, side in (
        (f"{projection.dtype}  {peak:,.0f}", (high, peak), (-3, 3), "right"),
        (f"memory  {slope * TERA / TB:.2f} TB/s", (low, low * slope), (22, 2), "left"),
    ):
        fig.beside(axes, text, at, shift, ha=side, fontsize=8.5)
    fig.label(axes, "FLOP per byte of memory traffic", _VISIBLE, "Roofline, by limit")
