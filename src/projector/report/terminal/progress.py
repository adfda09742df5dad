"""Progress of what takes long on standard error, for those who wait for it."""

import sys
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from projector.searches.limits import Progress

SILENT_S = 1.0
"""Shorter runs show nothing."""

LONG_S = 5.0
"""Searches that take longer are said to, before they begin."""


class SweepProgress:
    """A bar with rate and remaining time, after a second and where standard error is a terminal.

    Call it with the points done, the points to do and the rows found, which are called ``found``.
    """

    _between, _behind = "TaskProgressColumn", "TimeRemainingColumn"
    """Columns of rich between the bar and the rows, and behind these; empty for none."""

    def __init__(self, *, quiet: bool, found: str = "rows") -> None:
        self._found = found
        self._shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._begun = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int, rows: int) -> None:
        """Show how far the sweep is."""
        passed = time.perf_counter() - self._begun
        self._show(done, total, f"{rows:,} {self._found}, {rows / passed:,.0f}/s")

    def _show(self, done: int, total: int, rows: str) -> None:
        if not self._shown or time.perf_counter() - self._begun < SILENT_S:
            return
        if self._bar is None:
            self._start(total)
        self._bar.update(self._task, completed=done, total=total, rows=rows)

    def _start(self, total: int) -> None:
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.BarColumn(bar_width=None),
            getattr(progress, self._between)(),
            progress.TextColumn("{task.fields[rows]}"),
            *([getattr(progress, self._behind)()] if self._behind else []),
            console=Console(file=sys.stderr),
            transient=True,
            expand=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=total, rows="")

    def __enter__(self) -> Self:
        """Begin to count the time."""
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


class SearchProgress(SweepProgress):
    """The same for searches: call it with what `search` tells.

    ``say`` takes a line that says beforehand how long a search takes, where it takes long; also
    where standard error is no terminal.
    """

    _behind = ""

    def __init__(self, *, quiet: bool, say: "Callable[[str], None]") -> None:
        super().__init__(quiet=quiet)
        self._say = None if quiet else say
        self._told = ""

    def see(self, progress: "Progress") -> None:
        """Show how far the search is."""
        if self._say is not None and progress.left_s >= LONG_S and progress.unit != self._told:
            self._told = progress.unit
            self._say(
                f"search: {progress.total - progress.done:,} {progress.unit} to go, at most "
                f"{progress.left_s:,.0f} s"
            )
        rows = f"{progress.unit}, {progress.found:,} evaluated, {progress.left_s:,.0f} s left"
        self._show(progress.done, progress.total, rows)


class ReadingProgress(SweepProgress):
    """The same for files: call it with the bytes read, the bytes to read and the events found."""

    _between = "DownloadColumn"

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet, found="events")
