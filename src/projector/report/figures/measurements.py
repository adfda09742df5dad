"""The figure of one measurement table: agreement, ratios, and errors by group.

Matplotlib is imported where a figure is drawn, and without pyplot: no window, no global state.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.resources import hardware_table
from projector.report.figures import figure as fig
from projector.validate.run import Result, Validation

if TYPE_CHECKING:
    from matplotlib.axis import Axis

COLOURED = 7
"""Groups with a colour of their own; the others share a grey."""

LONGEST_GROUPS = 12
"""Groups with bars of their own; the others share one."""

LONGEST_NAME = 26
"""Characters of a group's name that the figure shows."""

BAND = 0.1
"""Half width of the band around agreement."""

_OTHER_COLOUR = "#A6A6A6"
_UNNAMED = "not stated"
_BAND_COLOUR = "#DBE1E7"

_SIZE_IN = (fig.WIDE[0], 5.0)

_UNITS: Mapping[str, str] = hardware_table("report_words.yaml")["measured_units"]
_RATED = "tokens/s/GPU"
_RATIO_OF = {"memory": "memory", "serving_measured": "in the row's unit", "param_counts": "count"}


@dataclass(frozen=True, slots=True)
class _Points:
    """Projected rows as columns, with the group of each."""

    predicted: Floats
    measured: Floats
    ratio: Floats
    group: Ints
    names: tuple[str, ...]
    """Groups, largest first."""
    grouped_by: str

    def rated(self) -> Flags:
        """Return which rows are rates: their ratio of times is the inverse of that of rates."""
        direct = self.predicted / self.measured
        return np.abs(direct * self.ratio - 1.0) < np.abs(direct / self.ratio - 1.0)


def measurements_figure(validation: Validation) -> fig.Figure:
    """Draw a validated table."""
    points = _points(validation)
    figure = fig.new_figure(*_SIZE_IN)
    figure.suptitle(_title(validation, points), x=0.012, ha="left", fontsize=13.0)
    if len(points.ratio):
        agreement, ratios, groups = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 0.95))
        _draw_agreement(agreement, points, validation.kind)
        _draw_ratios(ratios, points, validation.kind)
        _draw_groups(groups, points)
    else:
        figure.text(0.5, 0.5, "no row could be projected", ha="center", color=fig.SOFT)
    return figure


def _points(validation: Validation) -> _Points:
    """Return the rows that log axes can show, grouped by device, else by model."""
    shown = [
        (*figures, result)
        for result in validation.results
        if result.projected
        for figures in [(result.outcome.predicted, result.outcome.measured, result.outcome.ratio)]
        if all(value is not None and 0.0 < value < float("inf") for value in figures)
    ]
    rows = [result for *_, result in shown]
    grouped_by, key = _grouping(rows)
    texts = [key(row) or _UNNAMED for row in rows]
    names = tuple(sorted(counts := Counter(texts), key=lambda name: (-counts[name], name)))
    index = {name: position for position, name in enumerate(names)}
    predicted, measured, ratio = np.array([entry[:3] for entry in shown], float).reshape(-1, 3).T
    group = np.array([index[text] for text in texts], dtype=np.int64)
    return _Points(predicted, measured, ratio, group, names, grouped_by)


def _grouping(rows: Sequence[Result]) -> tuple[str, Callable[[Result], str]]:
    if any(row.device for row in rows) or not any(row.model for row in rows):
        return "device", lambda row: row.device
    return "model", lambda row: row.model


def _title(validation: Validation, points: _Points) -> str:
    file = Path(validation.path)
    name = validation.kind
    if file.stem != name:
        name = f"{name}: {_plain(file.name, 60)}"
    eligible = sum(result.eligible for result in validation.results)
    rows = f"{len(points.ratio):,} of {eligible:,} eligible rows projected"
    if not len(points.ratio):
        return f"{name}   |   {rows}"
    median, p90 = _errors(points.ratio)
    return f"{name}   |   {rows}   |   error: median {median:.1f} %, p90 {p90:.1f} %"


def _draw_agreement(axes: fig.Axes, points: _Points, kind: str) -> None:
    from matplotlib.patches import Patch

    rated = points.rated() if kind == "training_throughput" else np.zeros(len(points.ratio), bool)
    mixed = bool(rated.any()) and not bool(rated.all())
    low, high = _limits(np.concatenate([points.predicted, points.measured]), least=4.0)
    limits = np.array([low, high])
    axes.fill_between(limits, limits * (1 - BAND), limits * (1 + BAND), color=_BAND_COLOUR, lw=0)
    axes.plot(limits, limits, color=fig.SOFT, lw=1.0, zorder=7)
    size = float(np.clip(9_000 / len(points.ratio), 5.0, 34.0))
    colours = np.array([_colour(position) for position in range(len(points.names))])
    # Smaller groups are drawn over larger ones.
    order = np.argsort(points.group, kind="stable")
    for marker, these in (("o", ~rated), ("^", rated)):
        chosen = order[these[order]]
        if len(chosen):
            # Over the legends: no point is hidden.
            axes.scatter(
                points.measured[chosen], points.predicted[chosen], s=size, marker=marker,
                c=colours[points.group[chosen]], alpha=0.75, linewidths=0.4, edgecolors="white",
                zorder=6, rasterized=len(points.ratio) > fig.MANY,
            )  # fmt: skip
    unit = _RATED if rated.all() else "row's unit" if mixed else _UNITS[kind]
    fig.log_axes(axes, (low, high), (low, high))
    fig.label(axes, f"measured, {unit}", f"predicted, {unit}", "Predicted against measured")
    axes.grid(color="#EEEEEE", lw=0.8)
    names = [_plain(name, LONGEST_NAME) for name in points.names[:COLOURED]]
    if len(points.names) > COLOURED:
        names.append(f"{len(points.names) - COLOURED} more")
    handles = [_dot(_colour(position)) for position in range(len(names))]
    style = hardware_table("report_words.yaml")["measured_legend"]
    axes.add_artist(axes.legend(handles, names, loc="upper left", **style))
    notes: dict[str, Any] = {
        f"±{BAND:.0%} of measured".replace("%", " %"): Patch(facecolor=_BAND_COLOUR)
    }
    if mixed:
        notes |= {"s": _dot(fig.SOFT), _RATED: _dot(fig.SOFT, "^")}
    axes.legend([*notes.values()], [*notes], loc="lower right", **style)


def _dot(colour: str, marker: str = "o") -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="", marker=marker, color=colour, ms=6)


def _draw_ratios(axes: fig.Axes, points: _Points, kind: str) -> None:
    ratio = np.sort(points.ratio)
    count = len(ratio)
    low, high = _limits(np.concatenate([ratio, [0.8, 1.25]]), least=1.0)
    marks = [
        (name, at, float(np.percentile(ratio, at)))
        for name, at in (("p10", 10.0), ("median", 50.0), ("p90", 90.0))
    ]
    # Room for the names of marks near the ends.
    room = float(high / low) ** 0.1
    low = min(low, marks[0][2] / room)
    high = max(high, marks[-1][2] * room)
    axes.axhspan(1 - BAND, 1 + BAND, color=_BAND_COLOUR, lw=0)
    axes.axhline(1.0, color=fig.SOFT, lw=1.0)
    share = (np.arange(count) + 0.5) / count * 100.0
    marker = "o" if count <= 100 else ""
    axes.plot(share, ratio, color=fig.PALETTE[0], lw=2.2, marker=marker, ms=3.5)
    for name, at, value in marks:
        # The curve rises: below it on the right and above it on the left there is room.
        across, up, shift = (
            ("left", "top", (9, -10)) if at < 90.0 else ("right", "bottom", (-9, 10))
        )
        axes.plot([at], [value], "o", color=fig.PALETTE[3], ms=7.5, mec="white", mew=1.0, zorder=4)
        number = f"{value:.3f}" if 0.1 <= value < 100.0 else fig.short_number(value)
        box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.2}
        style = {"ha": across, "va": up, "bbox": box, "zorder": 5}
        fig.beside(axes, f"{name} {number}", (at, value), shift, **style)
    axes.set(yscale="log", xlim=(0.0, 100.0), ylim=(low, high))
    _ratio_ticks(axes.yaxis, low, high)
    axes.grid(axis="y", color="#EEEEEE", lw=0.8)
    ratio_label = f"predicted / measured {_RATIO_OF.get(kind, 'time')}"
    fig.label(axes, "rows, sorted by ratio, %", ratio_label, "Ratios: 1 is agreement")


def _draw_groups(axes: fig.Axes, points: _Points) -> None:
    shown = len(points.names)
    if shown > LONGEST_GROUPS:
        shown = LONGEST_GROUPS - 1
    bars = [
        (_plain(name, LONGEST_NAME), _colour(position), points.ratio[points.group == position])
        for position, name in enumerate(points.names[:shown])
    ]
    if rest := len(points.names) - shown:
        bars.append((f"{rest} more", _OTHER_COLOUR, points.ratio[points.group >= shown]))
    errors = np.array([_errors(ratio) for _, _, ratio in bars])
    # An error beyond the axis has its number all the same.
    longest = min(float(errors.max()), max(100.0, 4.0 * float(np.median(errors[:, 1]))))
    longest = max(longest, 1.0)
    height = 0.74 if len(bars) > 2 else 0.4
    for position, ((_, colour, ratio), (median, p90)) in enumerate(zip(bars, errors, strict=True)):
        axes.barh(position, p90, height=height, color=colour, alpha=0.3, lw=0)
        axes.barh(position, median, height=height, color=colour, lw=0)
        text, end = f"{median:.1f} / {p90:.1f}   n = {len(ratio):,}", min(p90, longest)
        fig.beside(axes, text, (end, position), (5, 0), va="center", fontsize=9.0)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=9.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(len(bars), 4) - 0.5, -0.5)
    # Room for the numbers behind the longest bar.
    axes.set_xlim(0.0, longest * 1.7)
    axes.grid(axis="x", color="#EEEEEE", lw=0.8)
    axes.spines["left"].set_visible(False)
    title = f"Median / p90 error by {points.grouped_by}"
    fig.label(axes, "error, %: median solid, p90 pale", "", title)


def _errors(ratio: Floats) -> tuple[float, float]:
    """Return median and 90th percentile of the error, in percent."""
    error = np.abs(ratio - 1.0) * 100.0
    return float(np.median(error)), float(np.percentile(error, 90.0))


def _colour(position: int) -> str:
    return fig.PALETTE[position] if position < COLOURED else _OTHER_COLOUR


def _limits(values: Floats, *, least: float) -> tuple[float, float]:
    """Return ends of a log axis with some room, at least a factor ``least`` apart."""
    low, high = float(values.min()), float(values.max())
    room = max((high / low) ** 0.06, (least * low / high) ** 0.5, 1.03)
    return low / room, high * room


_NICE_RATIOS = (
    *(1.0, 0.5, 2.0, 0.1, 10.0, 0.8, 1.25, 0.2, 5.0, 0.9, 1.1, 0.7, 1.5, 0.6, 0.3, 3.0, 0.4),
    *(0.05, 20.0, 0.02, 50.0),
    *(10.0**power for sign in (-1, 1) for power in range(sign * 2, sign * 13, sign)),
)
"""Marks of an axis of ratios, the most wanted first."""


def _ratio_ticks(axis: "Axis", low: float, high: float) -> None:
    """Mark round ratios, those about 1 first, none closer than labels allow."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    apart = 0.055 * np.log(high / low)
    marks: list[float] = []
    for mark in _NICE_RATIOS:
        if low <= mark <= high and all(abs(np.log(mark / other)) > apart for other in marks):
            marks.append(mark)
    axis.set_major_locator(FixedLocator(sorted(marks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _plain(text: str, longest: int) -> str:
    """Return text on one line; a legend leaves out names that begin with an underscore."""
    line = fig.one_line(text, longest)
    return f" {line}" if line.startswith("_") else line
