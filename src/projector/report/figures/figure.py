"""What all figures share: their files, their style, their ink."""

import io
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.distribution import install_command
from projector.errors import ConfigError
from projector.files import check_place, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

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

_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.fontsize": 9.0,
    "text.parse_math": False,
    "svg.hashsalt": "projector",
    "pdf.fonttype": 42,  # letters stay text
}


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
    *,
    w_pad: float = 0.12,
    wspace: float = 0.03,
    laid_out: bool = True,
) -> "Figure":
    """Return an empty figure that lays its axes out itself, unless their places are given.

    Parameters
    ----------
    width_in, height_in : float
        Size in inches.
    w_pad, wspace : float
        Inches beside the axes, and their distance as a share of the width.
    laid_out : bool
        Whether it lays its axes out itself.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = ConstrainedLayoutEngine(w_pad=w_pad, h_pad=0.1, wspace=wspace) if laid_out else None
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout=engine)
    FigureCanvasAgg(figure)
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


def short_number(value: float) -> str:
    """Return a number in three digits, thousands as k, M, G and T."""
    text = f"{value:.3g}"
    rounded = float(text)
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if scale <= rounded < 1e15:
            return f"{rounded / scale:g}{letter}"
    return text
