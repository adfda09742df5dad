"""What helpers (`projector.kernels._helpers`) compile, for a step or for a load."""

import gc
import math
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module

import numpy as np

from projector.kernels._helpers import helper, possible_helpers
from projector.kernels._interpreted import (
    Wanted,
    interpret_what_others_compile,
    interpreting,
    wanted_kernels,
)

GC_THRESHOLD = 200_000
"""New objects between two garbage collections: compiling makes many that stay."""

NEEDED_FIRST = (
    "number_distinct", "replay_lanes", "end_steps", "replay_batch", "compile_line", "replay_forks",
    "time_stages",
)  # fmt: skip
"""Kernels that take long as Python where jobs are many: their work grows with the jobs, that of
others with the shapes of operations that the jobs share."""

_NICE = 10
"""Niceness of a helper afterwards, as sweeps do without the others for long."""


def work(module: str, parts: Sequence[str]) -> None:
    """Call some of the ``PARTS`` of a module, as long as whoever asked for it lives."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    gc.set_threshold(GC_THRESHOLD)
    if module == __name__:  # numba asks whether it is there, and these kernels do without
        sys.modules["scipy.linalg.cython_blas"] = None  # type: ignore[assignment]
    interpret_what_others_compile()
    calls = import_module(module).PARTS
    for part in parts:
        calls[part]()


def _end_with_standard_input() -> None:
    """End this process when the other end of its standard input is closed, however that comes."""
    os.read(0, 1)
    os._exit(0)


_AXES = {"training.global_batch_size": [32 * batch for batch in range(1, 33)]}
"""Enough jobs, with short orders and long ones, that all replays are reached."""


def _steps() -> None:
    from projector.config.resources import settings_of
    from projector.schedule.registry import build
    from projector.schedule.replay.order_times import replay_batch
    from projector.sweeps.engine import sweep

    with interpreting(math.inf):
        sweep({"base": settings_of("compiled_jobs")["experts"], "axes": _AXES}, workers=1)
        # Of one order with many times.
        order = build("1f1b", pp=2, vpp=1, microbatches=4)
        replay_batch(order, np.zeros((1, 2, 1, 3, 3), int), np.zeros((1, 2, 2), int), "lanes")
    kernels = wanted_kernels()
    for name in NEEDED_FIRST:
        _compile(each for each in kernels if each.name == name)
    if sys.platform != "win32":
        os.nice(_NICE)
    _compile(kernels)


def _compile(kernels: Iterable[Wanted]) -> None:
    for module, name, signature in kernels:
        getattr(import_module(module), name).compile(signature)


def _load() -> None:
    from projector.kernels import serving_load as kernel

    row, places, grid = np.zeros(0), np.zeros(0, np.int64), np.zeros((0, 0))
    kernel.serve_requests(
        kernel.Requests(row, places, places, places),
        kernel.Limits(*[0] * len(kernel.Limits._fields)),
        kernel.StepTable(
            places, places, grid, grid, places, row, places, places, grid, row, 0.0, 0.0, 0.0, 0.0
        ),
        kernel.Served(row, row, row, places, row, np.zeros(kernel.TOTALS)),
    )


PARTS = {"steps": _steps, "load": _load}
"""What a step needs, and what a load needs beside it, and nothing that they do not need."""


def helper_of_a_load() -> AbstractContextManager[None]:
    """Let a process compile what serves a load, which is one kernel that takes 4 s."""
    return helper(__name__, ["load"]) if possible_helpers() else nullcontext()
