"""What all figures share: files, style, ink, numbered points and the list beside them."""

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from projector.arrays import Floats
from projector.config.resources import hardware_table
from projector.distribution import install_command
from projector.errors import ConfigError
from projector.files import check_place, write_whole

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from matplotlib.axis import Axis

    Axes = matplotlib.axes.Axes
    Figure = matplotlib.figure.Figure
else:
    # Whatever draws names these in annotations; matplotlib is imported where something is drawn.
    Axes = Figure = Any


SUFFIXES = (".png", ".svg", ".pdf")
DPI = 100
WIDE = 12.8, 7.2
"""Inches of a large figure: 1280 x 720 pixels, which fill a projector."""
INK, SOFT, FAINT = "#222222", "#6E6E6E", "#E6E6E6"

# Okabe and Ito's palette, which keeps apart for the colour-blind; its yellow is too faint on white.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#3B3B3B")

MANY = 20_000
"""Points from which a vector figure holds them as a picture."""

METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
}
"""What a file says about itself: nothing that differs between two runs."""

_STYLE: dict[Any, Any] = hardware_table("report_words.yaml")["figure_style"]


def check_figure(path: str | Path) -> None:
    """Refuse a figure that could not be written, before anything is projected for it."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        legal = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        msg = f"{target} is not a figure: its name must end in {legal}"
        raise ConfigError(msg, key="plot", value=str(target), allowed=list(SUFFIXES))
    check_place(target, key="plot")
    try:
        from matplotlib.figure import Figure  # noqa: F401  # whether it is there
    except ImportError:
        msg = f"--plot needs matplotlib: {install_command('plot')}"
        raise ConfigError(msg, key="plot", value=str(target)) from None


@contextmanager
def style() -> Iterator[None]:
    """Draw alike on every machine, whatever its matplotlibrc says, and leave no trace."""
    from matplotlib import style as matplotlib_style

    with warnings.catch_warnings(), matplotlib_style.context(["default", _STYLE]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save_figure(path: str | Path, draw: "Callable[[], Figure]") -> None:
    """Draw in our style and write PNG, SVG or PDF; the file appears whole or not at all."""
    check_figure(path)
    target = Path(path)
    form = target.suffix.lower().removeprefix(".")
    stream = io.BytesIO()
    with style():
        draw().savefig(stream, format=form, metadata=METADATA[form])
    write_whole(target, stream.getvalue(), key="plot")


def new_figure(
    width_in: float,
    height_in: float,
    title: str = "",
    note: str = "",
    *,
    w_pad: float = 0.12,
    wspace: float = 0.03,
    laid_out: bool = True,
) -> "Figure":
    """Return an empty figure, its size in inches, that lays its axes out itself if ``laid_out``.

    Its title stands above, and below that in the note what else must be known. ``w_pad`` are
    inches beside the axes, ``wspace`` is their distance as a share of the width.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = ConstrainedLayoutEngine(w_pad=w_pad, h_pad=0.1, wspace=wspace) if laid_out else None
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout=engine)
    FigureCanvasAgg(figure)
    if title:
        head(figure, title, note)
    return figure


def figure_of(axes: "Axes") -> "Figure":
    """Return the figure that axes belong to."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def head(figure: "Figure", title: str, note: str = "") -> None:
    """Write the title of a figure, and below it what else must be known."""
    text = f"{one_line(title)}\n{note}" if note else one_line(title)
    figure.suptitle(text, x=0.012, ha="left", fontsize=11.5, linespacing=1.5)


def panels(figure: "Figure", count: int, most: int) -> list["Axes"]:
    """Return axes for panels, so many in a line at most; what is left over shows nothing."""
    columns = min(most, count)
    every = figure.subplots(-(-count // columns), columns, squeeze=False).ravel().tolist()
    for axes in every[count:]:
        axes.set_visible(False)
    return every[:count]


def label(
    axes: "Axes",
    x: str = "",
    y: str = "",
    title: str = "",
    *,
    grid: Literal["x", "y", "both"] | None = None,
    **more: Any,
) -> None:
    """Write the labels and the title of axes, and draw a grid along some of them."""
    given = {"xlabel": x, "ylabel": y, "title": title}
    axes.set(**{name: text for name, text in given.items() if text}, **more)
    if grid:
        axes.grid(axis=grid, color=FAINT, lw=0.6)


def beside(
    axes: "Axes", text: str, at: tuple[float, float], shift: tuple[float, float], **style: Any
) -> None:
    """Write a text some points beside a place."""
    axes.annotate(text, at, xytext=shift, textcoords="offset points", **style)


def nothing(axes: "Axes", text: str) -> None:
    """Say that axes have nothing to show."""
    axes.text(0.5, 0.5, text, ha="center", color=SOFT, transform=axes.transAxes)


def one_line(text: str, longest: int | None = None) -> str:
    """Return text on one line, without what a font cannot draw, cut where it is too long."""
    line = " ".join(
        "".join(character if character.isprintable() else " " for character in text).split()
    )
    return line if longest is None or len(line) <= longest else f"{line[: longest - 1]}…"


def number_ticks(axis: "Axis", low: float, high: float) -> None:
    """Mark powers of ten of a log axis, and twos and fives where these are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    decades = math.log10(high / low)
    subs = (1.0,) if decades > 3.0 else (1.0, 2.0, 5.0) if decades > 0.9 else _FINE
    axis.set_major_locator(LogLocator(10.0, subs=subs, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


_FINE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)


def log_axes(
    axes: "Axes", x: tuple[float, float] | None = None, y: tuple[float, float] | None = None
) -> None:
    """Make the axes whose ends are given logarithmic, with numbers at round values."""
    for name, axis, ends in (("x", axes.xaxis, x), ("y", axes.yaxis, y)):
        if ends is not None:
            axes.set(**{f"{name}scale": "log", f"{name}lim": ends})
            number_ticks(axis, *ends)


def short_number(value: float) -> str:
    """Return a number in three digits, thousands as k, M, G and T."""
    text = f"{value:.3g}"
    rounded = float(text)
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if scale <= rounded < 1e15:
            return f"{rounded / scale:g}{letter}"
    return text


# Numbered points and the list beside them: long names never lie on a figure.
FONT = 9.0
LINE_IN = 0.172
"""Height of a line of the list."""

LETTER_IN = 0.068
"""Width of a letter of the list, as settings have them: digits and capitals are wide."""
_LEAST_LETTERS = 12

_ROUNDS = 300
_BOX_PX = np.array([21.0, 17.0])
"""Room that a number takes."""


def number_points(
    axes: "Axes", points: Floats, clear_px: Floats, texts: Sequence[str] | None = None
) -> None:
    """Write 1, 2, ... or texts beside points so that none lies on another number or point.

    The limits and scales of the axes are final. Points are float64[points, 2] in data coordinates,
    ``clear_px`` float64[points] the radii of their markers.
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
    """Write a small table into axes that show nothing else, and paragraphs of notes below it.

    A column is its head, its place as a share of the width and its side, ``left`` or ``right``. The
    first is bold, in ``colours`` of the rows where these are given; the last may be wrapped after
    ``wrap`` characters, notes after half as many again.
    """
    axes.set_axis_off()
    axes.set(xlim=(0.0, 1.0))
    # How high the axes are is known only after a layout.
    figure = figure_of(axes)
    figure.draw_without_rendering()
    frame = axes.get_window_extent()
    step, y = LINE_IN * figure.dpi / float(frame.height), 1.0
    # The list may go on below the axes, to the edge of the figure.
    foot = (0.1 * figure.dpi - float(frame.y0)) / float(frame.height)
    letters = float(frame.width) / figure.dpi / LETTER_IN
    longest = round(1.5 * wrap), max(_LEAST_LETTERS, int(letters))
    below = [textwrap.wrap(one_line(note), min(longest)) for note in notes]
    wrap = min(wrap, max(_LEAST_LETTERS, int(letters * (1.0 - columns[-1][1])))) if rows else wrap
    style: dict[str, Any] = {"va": "top", "fontsize": FONT, "transform": axes.transAxes}
    style["in_layout"] = False  # a long name must not squeeze the figure beside it
    if rows:
        for text, x, side in columns:
            axes.text(x, y, text, ha=side, color=SOFT, **style)
        y -= 1.15 * step
        axes.plot([0.0, 1.0], [y, y], color=FAINT, lw=0.8, transform=axes.transAxes)
        y -= 0.3 * step
    written, left = _that_fit(rows, below, wrap, (y - foot) / step)
    if left:
        below.insert(0, [f"{left} more {'has' if left == 1 else 'have'} no room here."])
    for number, (row, lines) in enumerate(written):
        for column, (cell, (_, x, side)) in enumerate(zip(row, columns, strict=True)):
            text = "\n".join(lines) if column == len(row) - 1 else cell
            bold = column == 0
            axes.text(
                x, y, text, ha=side, fontweight="bold" if bold else "normal",
                color=colours[number] if bold and colours else INK, linespacing=1.25, **style,
            )  # fmt: skip
        y -= (len(lines) + 0.25) * step
    for lines in below:
        y -= 0.5 * step
        axes.text(0.0, y, "\n".join(lines), ha="left", color=SOFT, linespacing=1.25, **style)
        y -= len(lines) * step


def _that_fit(
    rows: Sequence[Sequence[str]], notes: Sequence[Sequence[str]], wrap: int, room: float
) -> tuple[list[tuple[Sequence[str], list[str]]], int]:
    """Return the first rows that leave the notes room, of ``room`` lines, and how many are left."""
    below = sum(len(lines) + 0.5 for lines in notes)
    written: list[tuple[Sequence[str], list[str]]] = []
    used = 0.0
    for row in rows:
        lines = _broken(row[-1], wrap)
        used += len(lines) + 0.25
        written.append((row, lines))
        if used + below > room:
            break
    if used + below <= room:
        return written, 0
    while written and used + below + 1.5 > room:
        used -= len(written.pop()[1]) + 0.25
    return written, len(rows) - len(written)


def _broken(text: str, wrap: int) -> list[str]:
    """Break a text between settings, and within one only where it is longer than a line."""
    joined = one_line(text).replace(" ", "\xa0").replace(",\xa0", ", ")
    lines: list[str] = []
    for line in textwrap.wrap(joined, wrap, break_long_words=False):
        lines += [line] if len(line) <= wrap else textwrap.wrap(line.replace("\xa0", " "), wrap)
    return lines or [""]
