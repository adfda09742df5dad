"""Numbered points and the list beside them: long names never lie on a figure."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Floats
from projector.report.figures.figure import FAINT, INK, SOFT, figure_of, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FONT = 8.6
LINE_IN = 0.165
"""Height of a line of the list."""

_ROUNDS = 300
_BOX_PX = np.array([21.0, 17.0])
"""Room that a number takes."""


def number_points(
    axes: "Axes", points: Floats, clear_px: Floats, texts: Sequence[str] | None = None
) -> None:
    """Write numbers beside points so that none lies on another number or point.

    Parameters
    ----------
    axes : Axes
        Its limits and scales are final.
    points : float64[points, 2]
        In data coordinates.
    clear_px : float64[points]
        Radius of each marker.
    texts : sequence of str, optional
        Instead of 1, 2, ...
    """
    if not len(points):
        return
    # Where things lie on paper is known only after a layout; numbers keep their distance since.
    figure = figure_of(axes)
    figure.draw_without_rendering()
    anchor = np.asarray(axes.transData.transform(points), np.float64)
    position = _spread(anchor, clear_px, np.asarray(axes.get_window_extent().extents, np.float64))
    shift = (position - anchor) * 72.0 / figure.dpi
    for row, (point, offset) in enumerate(zip(points.tolist(), shift.tolist(), strict=True)):
        far = float(np.hypot(*(position[row] - anchor[row]))) > clear_px[row] + 16.0
        line = {"arrowstyle": "-", "color": SOFT, "lw": 0.6, "shrinkA": 5.0, "shrinkB": 0.0}
        axes.annotate(
            texts[row] if texts else str(row + 1), point, xytext=offset,
            textcoords="offset points", ha="center", va="center", fontsize=8.2,
            fontweight="bold", color=INK, zorder=9,
            arrowprops=line if far else None, in_layout=False,
            bbox={"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.8},
        )  # fmt: skip


def _spread(anchor: Floats, clear_px: Floats, frame: Floats) -> Floats:
    """Return where the centres of numbers go: near their points, off all points and numbers."""
    position = anchor + np.column_stack([-(clear_px + 7.0), clear_px + 7.0])
    # Of equal points the numbers would stay on each other.
    turn = np.arange(len(anchor)) * 2.399963
    position += 0.5 * np.column_stack([np.cos(turn), np.sin(turn)])
    low, high = frame[:2] + _BOX_PX / 2, frame[2:] - _BOX_PX / 2
    for _ in range(_ROUNDS):
        move = 0.02 * (anchor - position)
        apart = position[:, None, :] - position[None, :, :]
        lack = _BOX_PX - np.abs(apart)
        meets = (lack > 0.0).all(axis=2) & ~np.eye(len(position), dtype=bool)
        # Along the direction in which least is lacking.
        along = (lack[:, :, 0] < lack[:, :, 1])[:, :, None] == np.array([True, False])
        sign = np.where(apart >= 0.0, 1.0, -1.0)
        move += (0.3 * lack * along * sign * meets[:, :, None]).sum(axis=1)
        away = position[:, None, :] - anchor[None, :, :]
        distance = np.maximum(np.hypot(away[:, :, 0], away[:, :, 1]), 1e-6)
        inside = np.maximum(0.0, clear_px[None, :] + 9.0 - distance)
        move += ((0.4 * inside / distance)[:, :, None] * away).sum(axis=1)
        position = np.clip(position + move, low, np.maximum(low, high))
    return position


def draw_list(
    axes: "Axes",
    columns: Sequence[tuple[str, float, str]],
    rows: Sequence[Sequence[str]],
    *,
    notes: Sequence[str] = (),
    colours: Sequence[str] | None = None,
    wrap: int = 46,
) -> None:
    """Write a small table into axes that show nothing else.

    Parameters
    ----------
    axes : Axes
        Where; its frame goes.
    columns : sequence of (head, place, side)
        Place is a share of the width, side ``left`` or ``right``; the last column may be wrapped.
    rows : sequence of sequence of str
        Cells; the first column is bold.
    notes : sequence of str
        Paragraphs below the table.
    colours : sequence of str, optional
        Of the first cell of each row.
    wrap : int
        Characters of a line of the last column; notes have half as many again.
    """
    axes.set_axis_off()
    axes.set(xlim=(0.0, 1.0))
    height_in = float(figure_of(axes).get_size_inches()[1]) - 0.9
    step, y = LINE_IN / height_in, 1.0
    style: dict[str, Any] = {"va": "top", "fontsize": FONT, "transform": axes.transAxes}
    style["in_layout"] = False  # a long name must not squeeze the figure beside it
    if rows:
        for text, x, side in columns:
            axes.text(x, y, text, ha=side, color=SOFT, **style)
        y -= 1.15 * step
        axes.plot([0.0, 1.0], [y, y], color=FAINT, lw=0.8, transform=axes.transAxes)
        y -= 0.3 * step
    for number, row in enumerate(rows):
        # Between settings, not within one.
        text = one_line(row[-1]).replace(" ", "\xa0").replace(",\xa0", ", ")
        lines = textwrap.wrap(text, wrap) or [""]
        for column, (cell, (_, x, side)) in enumerate(zip(row, columns, strict=True)):
            text = "\n".join(lines) if column == len(row) - 1 else cell
            bold = column == 0
            axes.text(
                x, y, text, ha=side, fontweight="bold" if bold else "normal",
                color=colours[number] if bold and colours else INK, linespacing=1.25, **style,
            )  # fmt: skip
        y -= (len(lines) + 0.25) * step
    for note in notes:
        lines = textwrap.wrap(one_line(note), round(1.5 * wrap))
        y -= 0.5 * step
        axes.text(0.0, y, "\n".join(lines), ha="left", color=SOFT, linespacing=1.25, **style)
        y -= len(lines) * step
