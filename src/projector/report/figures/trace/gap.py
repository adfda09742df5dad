"""The waterfall from the theoretical duration of operations to the actual one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from projector.errors import ConfigError
from projector.report.figures.figure import (
    FAINT,
    PALETTE,
    SOFT,
    check_figure,
    head,
    new_figure,
    one_line,
    save_figure,
)
from projector.trace.measures.gap import FACTORS, REST, OperationGap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 6
"""Operations with a panel of their own."""

COLOURS = dict(zip((*FACTORS, REST), (*PALETTE[1:5], "#BBBBBB"), strict=True))

_COLUMNS = 3
_MOST_NAME = 36
_NS_PER_MS = 1e6


def write_gap(gaps: Sequence[OperationGap], title: str, path: str | Path) -> None:
    """Draw what lengthens operations, those with the largest gap first."""
    check_figure(path)
    known = [gap for gap in gaps if gap.theory_ns]
    if not known:
        msg = "the picture of the gap has nothing to show: no theoretical duration is known"
        raise ConfigError(msg, key="plot", value=str(path), allowed="--config or --device")
    save_figure(path, lambda: gap_figure(known[:MOST], title))


def gap_figure(gaps: Sequence[OperationGap], title: str) -> "Figure":
    """Draw a panel for each operation: the duration after each factor, in the study's order."""
    columns = min(_COLUMNS, len(gaps))
    lines = -(-len(gaps) // columns)
    figure = new_figure(1.0 + 3.5 * columns, 1.2 + 2.6 * lines)
    head(figure, title, "from FLOP at the peak rate to the actual duration of a step, in ms")
    panels = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for empty in panels[len(gaps) :]:
        empty.set_visible(False)
    for axes, gap in zip(panels, gaps, strict=False):
        _panel(axes, gap)
    return figure


def _panel(axes: "Axes", gap: OperationGap) -> None:
    assert gap.theory_ns is not None
    reached = gap.theory_ns / _NS_PER_MS
    labels, places = ["theory"], [0]
    axes.bar(0, reached, color=PALETTE[0], width=0.7)
    for name in (*FACTORS, REST):
        factor = gap.factors.get(name)
        if factor is None:
            continue
        place, after = len(labels), reached * factor
        axes.bar(place, after - reached, bottom=reached, color=COLOURS[name], width=0.7)
        top = max(reached, after)
        axes.text(place, top, f"x {factor:.2f}", ha="center", va="bottom", fontsize=7.5)
        axes.plot([place - 1, place], [reached, reached], color=SOFT, linewidth=0.6)
        labels.append(name)
        places.append(place)
        reached = after
    places.append(len(labels))
    labels.append("actual")
    axes.bar(places[-1], gap.actual_ns / _NS_PER_MS, color=PALETTE[6], width=0.7)
    axes.set_xticks(places, labels, rotation=35, ha="right", fontsize=8)
    axes.set_title(f"{one_line(gap.operation, _MOST_NAME)}\n{gap.phase}", fontsize=9)
    axes.margins(y=0.14)
    axes.grid(axis="y", color=FAINT)
