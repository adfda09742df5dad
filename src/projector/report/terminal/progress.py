"""Progress of what takes long on standard error, for those who wait for it."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

SILENT_S = 1.0
"""Shorter runs show nothing."""


class SweepProgress:
    """A bar with rate and remaining time, after a second and where standard error is a terminal.

    Call it with the points done, the points to do and the rows found.

    Parameters
    ----------
    quiet : bool
        Whether nothing is shown.
    unit, found : str
        What the points and the rows are called.
    """

    def __init__(self, *, quiet: bool, unit: str = "points", found: str = "rows") -> None:
        self._unit, self._found = unit, found
        self._shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._begun = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int, rows: int) -> None:
        """Show how far the sweep is."""
        passed = time.perf_counter() - self._begun
        if not self._shown or passed < SILENT_S:
            return
        if self._bar is None:
            self._start(total)
        self._bar.update(
            self._task,
            completed=done,
            total=total,
            rows=f"{rows:,} {self._found}, {rows / passed:,.0f}/s",
        )

    def _start(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            BarColumn(),
            *self._columns(),
            TextColumn("{task.fields[rows]}"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._unit, total=total, rows="")

    def _columns(self) -> "list[ProgressColumn]":
        """Return what stands between the bar and the rows."""
        from rich.progress import MofNCompleteColumn, TextColumn

        return [MofNCompleteColumn(), TextColumn(self._unit)]

    def __enter__(self) -> Self:
        """Begin to count the time."""
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


class ReadingProgress(SweepProgress):
    """The same for files: call it with the bytes read, the bytes to read and the events found."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet, found="events")

    def _columns(self) -> "list[ProgressColumn]":
        from rich.progress import DownloadColumn

        return [DownloadColumn()]
