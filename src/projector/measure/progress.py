"""What a worker tells its caller while it measures: marked lines on its standard output."""

import sys
import time
from collections.abc import Callable

Progress = Callable[[str], None]
"""Told what is measured now, one line at a time."""

MARK = "\x1e"
"""First character of such a line: ASCII's record separator, which no library prints."""


def tell(text: str) -> None:
    """Say, from a worker, what it does now; a sign of life as well."""
    sys.stdout.write(f"{MARK}{text}\n")
    sys.stdout.flush()


def told(line: str) -> str | None:
    """Return what a line of a worker's output tells, None for any other line."""
    return line[len(MARK) :].strip() if line.startswith(MARK) else None


class OnStandardError:
    """Writes progress to standard error, once something takes longer than ``after_s``."""

    def __init__(self, after_s: float = 1.0) -> None:
        """Start the clock."""
        self._from = time.monotonic() + after_s

    def __call__(self, text: str) -> None:
        """Write one line."""
        if time.monotonic() >= self._from and sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
