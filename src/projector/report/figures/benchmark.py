"""The figure of a measured list: rates by size, measured and modelled, and the S-curve of ratios.

An S-curve sorts the ratios of a list: a model that is right is a flat line at one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.resources import hardware_table
from projector.measure.bench.cases import BenchKind, Case
from projector.measure.bench.rows import work_of
from projector.report.figures import figure as fig
from projector.report.terminal.network import size_name
from projector.units import MICROSECOND
from projector.validate.beside import Benchmark, number_of

BAND = 0.1
"""Half width of the band around agreement."""

SWEPT: tuple[BenchKind, ...] = ("collective", "memory")
"""Kinds whose cases differ by size alone, so that a line joins them."""

KINDS: Mapping[str, Mapping[str, Any]] = hardware_table("report_words.yaml")["bench_kinds"]
"""What each kind of list is called, and its rates and sizes."""


@dataclass(frozen=True, slots=True)
class _Points:
    """Measured cases as columns, those without a time left out."""

    size: Floats
    rate: Floats
    low: Floats
    """Rate of the slower quartile."""
    high: Floats
    modelled: Floats
    """NaN where the model has no answer."""
    ratio: Floats
    """Modelled over measured time."""
    time_us: Floats
    series: "np.ndarray[tuple[int, ...], np.dtype[np.str_]]"
    """Type, pass or operation of each."""


def benchmark_figure(benchmark: Benchmark) -> fig.Figure:
    """Draw rates by size on the left, the sorted ratios (else rates) on the right."""
    where = benchmark.machine.environment
    note = f"torch {where.torch}, {benchmark.machine.clock}"
    if benchmark.device:
        note += f"; modelled as {benchmark.device}"
    title = f"{KINDS[benchmark.kind]['title']}, {where.device}"
    figure = fig.new_figure(fig.WIDE[0], 5.4, title, fig.one_line(note, 150))
    points = _points(benchmark)
    if not len(points.rate):
        figure.text(0.5, 0.5, "nothing was measured", ha="center", color=fig.SOFT)
        return figure
    sizes, curve = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    if benchmark.kind == "clock":
        pairs = {"measured": points.rate, "matrix pipe at the modelled clock": points.modelled}
        _bars(sizes, points.series.tolist(), pairs)
        fig.label(sizes, "", "rate, TFLOP/s", "Rate that is sustained")
        here = [number_of(each.row, "clock_mhz") or np.nan for each in benchmark.measured]
        there = [each.clock_mhz or np.nan for each in benchmark.modelled]
        names = [_series(each.case) for each in benchmark.measured]
        pairs = {"measured": np.array(here), "modelled": np.array(there or [np.nan] * len(here))}
        if np.isfinite(pairs["measured"]).any() or np.isfinite(pairs["modelled"]).any():
            _bars(curve, names, pairs)
        else:
            curve.set_axis_off()
            curve.text(0.5, 0.5, "no clock was read", ha="center", color=fig.SOFT)
        fig.label(curve, "", "clock, MHz", "Clock that is sustained")
        return figure
    _draw_sizes(sizes, points, benchmark.kind)
    if np.isfinite(points.ratio).any():
        s_curve(curve, points.ratio, _coloured(points))
    elif benchmark.kind in SWEPT:
        _draw_times(curve, points, benchmark.kind)
    else:
        _draw_rates(curve, points, benchmark.kind)
    return figure


def _points(benchmark: Benchmark) -> _Points:
    unit = KINDS[benchmark.kind]["unit"]
    rows: list[tuple[float, ...]] = []
    series: list[str] = []
    for row, each in enumerate(benchmark.measured):
        rate = each.rate
        if not rate:
            continue
        work = work_of(each.case)
        there = benchmark.modelled[row] if benchmark.modelled else None
        modelled = there.flop_per_s if there else None
        if there and there.time_s:
            modelled = work / there.time_s
        low, high = each.spread.high_s, each.spread.low_s
        series.append(_series(each.case))
        rows.append(
            (
                each.case.key.bytes if each.case.kind == "collective" else work or 1.0,
                rate / unit,
                (work / low if low and work else rate) / unit,
                (work / high if high and work else rate) / unit,
                (modelled or np.nan) / unit, benchmark.ratio(row) or np.nan,
                (each.time_s or np.nan) / MICROSECOND,
            )
        )  # fmt: skip
    size, rates, slower, faster, light, ratio, time_us = np.array(rows, np.float64).reshape(-1, 7).T
    return _Points(size, rates, slower, faster, light, ratio, time_us, np.array(series, dtype=str))


def _series(case: Case) -> str:
    if case.kind == "memory":
        return "copy"
    if case.kind == "clock":
        return case.program.dtype  # type: ignore[union-attr]
    key = case.key
    if case.kind == "collective":
        return f"{key.operation}, {key.ranks} ranks"
    if case.kind == "gemm":
        return f"{key.dtype}, grouped" if key.expert else key.dtype
    return f"{key.dtype}, {'backward' if key.phase == 'backward' else 'forward'}"


def _draw_sizes(axes: fig.Axes, points: _Points, kind: BenchKind) -> None:
    for name, colour, found in _coloured(points):
        rows = found[np.argsort(points.size[found], kind="stable")]
        size, rate = points.size[rows], points.rate[rows]
        axes.errorbar(
            size, rate, yerr=np.abs(np.stack([rate - points.low[rows], points.high[rows] - rate])),
            fmt="o", color=colour, ms=4.5, mec="white", mew=0.5, elinewidth=1.0, capsize=2.0,
            label=f"{name}, measured", zorder=4,
        )  # fmt: skip
        line = 0.9 if kind in SWEPT else 0.0
        axes.plot(size, rate, color=colour, lw=line, alpha=0.6, zorder=2)
        if np.isfinite(points.modelled[rows]).any():
            axes.plot(
                size, points.modelled[rows], color=colour, lw=line, ls="--", marker="_", ms=9.0,
                mew=1.8, label=f"{name}, modelled", zorder=3,
            )  # fmt: skip
    known = points.modelled[np.isfinite(points.modelled)]
    values = np.concatenate([points.low, points.high, known])
    low, high = float(values.min()) / 1.4, float(values.max()) * 1.6
    fig.log_axes(axes, y=(low, high))
    _size_axis(axes, points, kind)
    title = f"{KINDS[kind]['rate']} by size; bars hold half of the runs"
    fig.label(axes, "", KINDS[kind]["rate"], title, grid="both")
    axes.legend(loc="best", framealpha=0.9, edgecolor="none")


def _size_axis(axes: fig.Axes, points: _Points, kind: BenchKind) -> None:
    left, right = float(points.size.min()) / 1.6, float(points.size.max()) * 1.6
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    if kind in SWEPT:
        # Mark powers of two, at most nine of them.
        first, last = int(np.ceil(np.log2(left))), int(np.floor(np.log2(right)))
        step = max(1, -(-(last - first + 1) // 9))
        ticks = [2.0**power for power in range(first, last + 1, step)]
        axes.set_xticks(ticks, [size_name(tick) for tick in ticks])
        axes.minorticks_off()
    else:
        fig.number_ticks(axes.xaxis, left, right)
    axes.set_xlabel(KINDS[kind]["size"])


def _coloured(points: _Points) -> Iterator[tuple[str, str, Ints]]:
    for position, name in enumerate(dict.fromkeys(points.series.tolist())):
        yield name, fig.PALETTE[position % len(fig.PALETTE)], np.flatnonzero(points.series == name)


def s_curve(axes: fig.Axes, ratio: Floats, groups: Iterable[tuple[str, str, Ints]]) -> None:
    """Draw modelled over measured times in order; groups have a name, a colour and their rows."""
    known = np.isfinite(ratio)
    order = np.flatnonzero(known)[np.argsort(ratio[known], kind="stable")]
    place = np.empty(len(ratio))
    place[order] = np.arange(1, len(order) + 1)
    axes.axhspan(1.0 - BAND, 1.0 + BAND, color="#DBE1E7", lw=0.0, zorder=0)
    axes.axhline(1.0, color=fig.INK, lw=1.0)
    axes.plot(place[order], ratio[order], color=fig.SOFT, lw=1.0, zorder=2)
    for name, colour, rows in groups:
        shown = rows[known[rows]]
        axes.scatter(place[shown], ratio[shown], s=18.0, color=colour, label=name, zorder=3)
    low = min(0.8, float(ratio[order[0]]) / 1.1)
    high = max(1.25, float(ratio[order[-1]]) * 1.1)
    fig.log_axes(axes, y=(low, high))
    _whole_ticks(axes)
    title = f"S-curve; the band is ±{BAND:.0%}"
    fig.label(axes, "cases, sorted", "modelled over measured time", title, grid="y")


def _whole_ticks(axes: fig.Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_rates(axes: fig.Axes, points: _Points, kind: BenchKind) -> None:
    for name, colour, rows in _coloured(points):
        rate = np.sort(points.rate[rows])
        place = np.arange(1, len(rate) + 1)
        axes.plot(place, rate, color=colour, lw=1.4, marker="o", ms=3.5, label=name)
    low, high = float(points.rate.min()) / 1.4, float(points.rate.max()) * 1.6
    fig.log_axes(axes, y=(low, high))
    _whole_ticks(axes)
    order, title = "cases, from the slowest to the fastest", "S-curve of what was measured"
    fig.label(axes, order, KINDS[kind]["rate"], title, grid="y")


def _draw_times(axes: fig.Axes, points: _Points, kind: BenchKind) -> None:
    for name, colour, found in _coloured(points):
        rows = found[np.argsort(points.size[found], kind="stable")]
        axes.plot(
            points.size[rows], points.time_us[rows], color=colour, lw=1.4, marker="o", ms=3.5,
            label=name,
        )  # fmt: skip
    low, high = float(points.time_us.min()) / 1.4, float(points.time_us.max()) * 1.6
    fig.log_axes(axes, y=(low, high))
    _size_axis(axes, points, kind)
    fig.label(axes, "", "time, µs", "Time by size", grid="both")


def _bars(axes: fig.Axes, names: Sequence[str], pairs: Mapping[str, Floats]) -> None:
    place = np.arange(len(names))
    for position, (label, values) in enumerate(pairs.items()):
        if np.isfinite(values).any():
            shift = 0.4 * position - 0.2
            axes.bar(place + shift, values, width=0.38, color=fig.PALETTE[position], label=label)
    axes.set_xticks(place, names)
    fig.label(axes, ylim=(0.0, axes.get_ylim()[1] * 1.15), grid="y")
    axes.legend(loc="upper right", framealpha=0.9, edgecolor="none", ncols=2)
