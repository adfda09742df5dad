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


class Sparing:
    """Passes progress on once something takes longer than a while, and then a line each while."""

    def __init__(self, tell: Progress, every_s: float = 1.0) -> None:
        """Start the clock."""
        self._tell, self._every_s = tell, every_s
        self._next = time.monotonic() + every_s

    def __call__(self, text: str) -> None:
        """Pass a line on, unless it comes too soon after the last one."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            self._tell(text)
