"""Where reports meet the terminal: width, colour and the characters it can show."""

import io
import os
import sys
from typing import TextIO

from rich.console import Console, RenderableType

NARROWEST, WIDEST = 40, 120
"""Reports are laid out for widths in between; a narrower terminal wraps the lines itself."""

PIPED_WIDTH = 100
"""Width if the output is not a terminal and ``COLUMNS`` is not set."""


def render(*parts: RenderableType, file: TextIO | None = None, width: int | None = None) -> str:
    """Lay out a report as text, with escape codes only where ``file`` is a terminal.

    Parameters
    ----------
    *parts : renderable
        What to print, one below the other.
    file : text file, optional
        Where the text will go; standard output when left out.
    width : int, optional
        Columns; by default those of the terminal, within reason.
    """
    file = sys.stdout if file is None else file
    target = Console(file=file)
    if width is None:
        width = target.width if target.is_terminal or "COLUMNS" in os.environ else PIPED_WIDTH
    width = max(NARROWEST, min(width, WIDEST))
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=target.is_terminal,
        no_color=target.no_color,
        color_system="auto" if target.is_terminal else None,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=False,
    )
    for part in parts:
        # What is to be copied stays on one line, however long.
        console.print(part, crop=False)
    text = "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
    return text.translate(_TO_ASCII) if _is_ascii(file) else text


def _is_ascii(file: TextIO) -> bool:
    encoding = (getattr(file, "encoding", None) or "utf-8").lower()
    return not encoding.startswith("utf")


_TO_ASCII = str.maketrans({"█": "#", **dict.fromkeys("▉▊▋▌", "#"), **dict.fromkeys("▍▎▏", " ")})
