"""How far more devices help: the best configuration at each number of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.bands import Band
from projector.report.figures import figure as fig
from projector.report.figures import rows as swept
from projector.report.figures.pareto import band_of_sweep
from projector.sweeps.result import SweepResult, numbers

_SIZES = frozenset({"cluster.nodes", "cluster.gpus_per_node"})
"""Fields that set the number of devices, which every line already shows."""

MOST_LISTED = 16


@dataclass(frozen=True, slots=True)
class Scaling:
    """The fastest row that fits at each number of devices."""

    title: str
    gpus: Ints
    """Rising."""
    rate: Floats
    """tokens/s/GPU; NaN if nothing fits."""
    settings: tuple[Mapping[str, Any] | None, ...]
    """Field -> value of each, without the number of devices; None if nothing fits."""
    bands: tuple[Band | None, ...] = ()
    """Factors of the time of each."""
    mixed: bool = False
    """Whether the rows are of several workloads, of which the fastest one is shown."""

    def band(self) -> tuple[Floats, Floats]:
        """tokens/s/GPU between which 68 % of measured speeds lie; NaN where nothing is known."""
        ends = np.full((2, len(self.gpus)), np.nan)
        for place, band in enumerate(self.bands):
            if band is not None and band.low_68 is not None and band.high_68 is not None:
                ends[:, place] = self.rate[place] / np.array([band.high_68, band.low_68])
        return ends[0], ends[1]

    @property
    def total(self) -> Floats:
        """tokens/s of all devices."""
        return self.gpus * self.rate

    @property
    def first(self) -> int | None:
        """The fewest devices on which something fits; the others are compared with it."""
        fits = np.flatnonzero(~np.isnan(self.rate))
        return int(fits[0]) if len(fits) else None

    @property
    def efficiency(self) -> Floats:
        """tokens/s/GPU relative to the fewest devices."""
        return self.rate / self.rate[self.first] if self.first is not None else self.rate


def write_scaling(result: SweepResult, path: str | Path) -> None:
    """Draw the best configuration over devices; the file appears whole or not at all."""
    fig.check_figure(path)
    scaling = read_scaling(result)
    fig.save_figure(path, lambda: scaling_figure(scaling))


def read_scaling(result: SweepResult) -> Scaling:
    """Find the fastest row at each number of devices, one chunk in memory at a time."""
    every = swept.axes_of(result.columns)
    fields = [name for name in swept.untied(result.plan, every) if name not in _SIZES]
    best: dict[int, tuple[float, Mapping[str, Any] | None]] = {}
    for table in result.tables([swept.GPUS, swept.RATE, *result.ranking_columns, *every]):
        gpus = numbers(table, swept.GPUS).astype(np.int64)
        rate = np.where(result.is_ranked(table), numbers(table, swept.RATE), np.nan)
        rate = np.where(np.isnan(rate), -np.inf, rate)
        # By devices, the fastest of each first, earlier rows before equal ones.
        order = np.lexsort((-rate, gpus))
        for row in order[np.unique(gpus[order], return_index=True)[1]].tolist():
            number, value = int(gpus[row]), float(rate[row])
            if value > best.get(number, (-np.inf, None))[0]:
                best[number] = value, table.select(list(every)).slice(row, 1).to_pylist()[0]
            else:
                best.setdefault(number, (-np.inf, None))
    sizes = sorted(best)
    rates = np.array([best[number][0] for number in sizes], np.float64)
    settings = [best[number][1] for number in sizes]
    return Scaling(
        swept.title_of_sweep(result),
        np.array(sizes, np.int64),
        np.where(np.isinf(rates), np.nan, rates),
        tuple(None if each is None else {name: each[name] for name in fields} for each in settings),
        tuple(None if each is None else band_of_sweep(result, [each]) for each in settings),
        bool(swept.workload_fields(result.plan, every)),
    )


def scaling_figure(scaling: Scaling) -> fig.Figure:
    """Draw tokens/s with the ideal line, tokens/s/GPU, and the list of configurations."""
    note = "the fastest configuration that fits at each number of GPUs, of all other axes"
    if scaling.mixed:
        note += "; several workloads: the fastest of them"
    figure = fig.new_figure(fig.WIDE[0], 5.6, f"Scaling: {scaling.title}", note)
    total, per_gpu, side = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 1.15))
    fits = ~np.isnan(scaling.rate)
    if not fits.any():
        for axes in (total, per_gpu):
            axes.set_axis_off()
        fig.nothing(total, "nothing fits" if len(scaling.gpus) else "no row")
        side.set_axis_off()
        return figure
    _draw_total(total, scaling, fits)
    _draw_per_gpu(per_gpu, scaling, fits)
    _draw_configurations(side, scaling, fits)
    return figure


_CURVE: dict[str, Any] = {"color": fig.PALETTE[0], "lw": 2.0, "ms": 6, "mec": "white"}


def _draw_total(axes: fig.Axes, scaling: Scaling, fits: Any) -> None:
    gpus = scaling.gpus[fits].astype(np.float64)
    first = scaling.first
    assert first is not None
    span = np.array([gpus[0], gpus[-1]])
    ideal = f"ideal: as on {scaling.gpus[first]:,} GPUs"
    dashes: dict[str, Any] = {"color": fig.SOFT, "lw": 1.2, "ls": (0, (4, 3)), "zorder": 2}
    axes.plot(span, span * scaling.rate[first], label=ideal, **dashes)
    axes.plot(gpus, scaling.total[fits], "-o", zorder=3, label="best configuration", **_CURVE)
    axes.set_xscale("log")
    drawn = np.concatenate([scaling.total[fits], span * scaling.rate[first]])
    ends = np.concatenate([end[fits] * gpus for end in scaling.band()])
    drawn = np.concatenate([drawn, ends[np.isfinite(ends)]])
    low, high = float(drawn.min()) / 1.3, float(drawn.max()) * 1.3
    fig.log_axes(axes, y=(low, high))
    axes.set_ylabel("speed of all GPUs, tokens/s")
    _draw_band(axes, scaling, fits, total=True)
    axes.legend(loc="upper left", frameon=False)
    _gpu_axis(axes, scaling)


def _draw_band(axes: fig.Axes, scaling: Scaling, fits: Any, *, total: bool) -> None:
    """Shade where measured speeds lie; nothing where that is not known."""
    low, high = (ends[fits] for ends in scaling.band())
    gpus = scaling.gpus[fits]
    if np.isfinite(low).any():
        times = gpus if total else 1.0
        axes.fill_between(
            gpus, low * times, high * times, color=fig.PALETTE[0], alpha=0.14, lw=0, zorder=1,
            label="68 % of measured speeds",
        )  # fmt: skip


def _draw_per_gpu(axes: fig.Axes, scaling: Scaling, fits: Any) -> None:
    axes.plot(scaling.gpus[fits], scaling.rate[fits], "-o", **_CURVE)
    axes.set(xscale="log", ylim=(0.0, float(np.nanmax([scaling.rate, scaling.band()[1]])) * 1.16))
    axes.set_ylabel("speed, tokens/s/GPU")
    _draw_band(axes, scaling, fits, total=False)
    if int(fits.sum()) <= MOST_LISTED:
        for gpus, rate, share in zip(
            scaling.gpus[fits], scaling.rate[fits], scaling.efficiency[fits], strict=True
        ):
            text = f"{100.0 * share:.0f} %"
            fig.beside(axes, text, (gpus, rate), (0, 9), fontsize=8.8, ha="center", color=fig.SOFT)
        title = f"percent: of the rate on {scaling.gpus[scaling.first]:,} GPUs"
        axes.set_title(title, fontsize=9.5, fontweight="normal")
    _gpu_axis(axes, scaling)


def _gpu_axis(axes: fig.Axes, scaling: Scaling) -> None:
    """Mark the numbers of devices that have room, and those on which nothing fits."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = float(scaling.gpus[0]) / 1.25, float(scaling.gpus[-1]) * 1.25
    axes.set_xlim(low, high)
    marks: list[float] = []
    for gpus in scaling.gpus.tolist():
        if not marks or np.log(gpus / marks[-1]) > 0.095 * np.log(high / low):
            marks.append(float(gpus))
    axes.xaxis.set_major_locator(FixedLocator(marks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(
            lambda value, _: f"{value:,.0f}" if value < 10_000 else fig.short_number(value)
        )
    )
    for gpus, rate in zip(scaling.gpus.tolist(), scaling.rate.tolist(), strict=True):
        if np.isnan(rate):
            axes.axvline(gpus, color=fig.FAINT, lw=5.0, zorder=1)
    fig.label(axes, "GPUs", grid="y")


def _draw_configurations(side: fig.Axes, scaling: Scaling, fits: Any) -> None:
    chosen = np.flatnonzero(fits)
    if len(chosen) > MOST_LISTED:
        # Both ends and an even choice between them.
        chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, MOST_LISTED).astype(int))]
    settings = [scaling.settings[row] or {} for row in chosen.tolist()]
    same = swept.shared(settings) if any(swept.differing(settings)) and len(settings) > 1 else {}
    rows = [
        (f"{scaling.gpus[row]:,}", f"{scaling.rate[row]:,.0f}", swept.configuration(setting))
        for row, setting in zip(
            chosen.tolist(), swept.differing(settings) if same else settings, strict=True
        )
    ]
    notes = [f"All of these: {swept.configuration(same)}"] if same else []
    if unfit := [f"{gpus:,}" for gpus in scaling.gpus[~fits]]:
        shown = ", ".join(unfit[:MOST_LISTED]) + (", ..." if len(unfit) > MOST_LISTED else "")
        notes.append(f"Nothing fits on {shown} GPUs (grey).")
    columns = (
        ("GPUs", 0.0, "left"),
        ("tokens/s/GPU", 0.33, "right"),
        ("configuration", 0.37, "left"),
    )
    fig.draw_list(side, columns, rows, notes=notes, wrap=40)
