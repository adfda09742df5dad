"""What all figures share: their files, their style, their ink."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.errors import ConfigError
from projector.report.files import check_place, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
DPI = 110
INK, SOFT = "#222222", "#6E6E6E"

METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}
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
}


def check_figure(path: str | Path) -> None:
    """Refuse a figure that could not be written, before anything is projected for it.

    Raises
    ------
    ConfigError
        If the suffix is no known one, the folder is not there, or matplotlib is missing.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        msg = f"{target} is no figure: its name must end in {' or '.join(SUFFIXES)}"
        raise ConfigError(msg, key="plot", value=str(target), allowed=list(SUFFIXES))
    check_place(target, key="plot")
    try:
        from matplotlib.figure import Figure  # noqa: F401  # whether it is there
    except ImportError:
        msg = "--plot needs matplotlib: pip install 'projector[plot]'"
        raise ConfigError(msg, key="plot", value=str(target)) from None


@contextmanager
def style() -> Iterator[None]:
    """Draw alike on every machine, whatever its matplotlibrc says, and leave no trace."""
    from matplotlib import style as matplotlib_style

    with warnings.catch_warnings(), matplotlib_style.context(["default", _STYLE]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save_figure(path: str | Path, draw: "Callable[[], Figure]") -> None:
    """Draw in our style and write PNG or SVG; the file appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_figure` refuses the path, or the file cannot be written.
    """
    check_figure(path)
    target = Path(path)
    form = target.suffix.lower().removeprefix(".")
    stream = io.BytesIO()
    with style():
        draw().savefig(stream, format=form, metadata=METADATA[form])
    write_whole(target, stream.getvalue(), key="plot")
