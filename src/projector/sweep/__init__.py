"""Sweeps: a space of jobs becomes a table of results, on disk or in memory.

``projector.sweep`` is this package and the function of the same name: calling it sweeps.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from projector.sweep.engine import Progress
    from projector.sweep.result import SweepResult
    from projector.sweep.space import SpaceLike


class _Callable(ModuleType):
    """A package that can be called; importing it would hide a function of its name."""

    def __call__(
        self,
        space: "SpaceLike",
        out: str | Path | None = None,
        *,
        overwrite: bool = False,
        workers: int | None = None,
        progress: "Progress | None" = None,
    ) -> "SweepResult":
        """Project every point of a space; see `projector.sweep.engine.sweep`."""
        from projector.sweep.engine import sweep

        return sweep(space, out, overwrite=overwrite, workers=workers, progress=progress)


sys.modules[__name__].__class__ = _Callable
