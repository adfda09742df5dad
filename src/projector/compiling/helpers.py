"""Processes that compile kernels beside the one that waits for them.

The first search or sweep on a machine has some for the kernels of a step.
"""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module

import numpy as np

from projector.kernels._cache import cache_is_writable
from projector.kernels._interpreted import interpret_what_others_compile

GC_THRESHOLD = 200_000
"""New objects between two garbage collections: compiling makes many that stay."""


def possible_helpers() -> int:
    """Return how many processes can compile beside this one, on a core each."""
    if not sys.executable or not cache_is_writable():
        return 0
    known = getattr(os, "sched_getaffinity", None)
    return (len(known(0)) if known is not None else os.cpu_count() or 1) - 1


@contextmanager
def helper(module: str, parts: Sequence[str]) -> Iterator[None]:
    """Let another process call some of the ``PARTS`` of a module; it ends with the block.

    It prints nothing and compiles nothing twice: this one waits for what the other compiles, and
    the other goes on to what nobody compiles. Where no process can be started, there is none.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from projector.compiling.helpers import work; work({module!r}, {[*parts]!r})"
    )
    try:
        process = subprocess.Popen(  # noqa: S603  # this Python, our own code
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        yield
        return
    with process:
        try:
            yield
        finally:
            process.kill()


def work(module: str, parts: Sequence[str]) -> None:
    """Call some of the ``PARTS`` of a module, as long as whoever asked for it lives."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    gc.set_threshold(GC_THRESHOLD)
    interpret_what_others_compile()
    calls = import_module(module).PARTS
    for part in parts:
        calls[part]()


def _end_with_standard_input() -> None:
    """End this process when the other end of its standard input is closed, however that comes."""
    os.read(0, 1)
    os._exit(0)


_JOB = {
    "model": {
        "num_layers": 4,
        "hidden_size": 1024,
        "ffn_hidden_size": 4096,
        "num_attention_heads": 16,
        "num_query_groups": 8,
        "vocab_size": 32000,
        "moe": {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 4096},
    },
    "parallelism": {"pp": 2, "ep": 4},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 2048},
    "cluster": {"device": "mi300x", "nodes": 2},
}
"""A small one, with experts and a pipeline."""


def _collectives() -> None:
    from projector.single.collective import collective_time

    collective_time("all_reduce", 1e6, 8, device="mi300x")


def _attention() -> None:
    from projector.single.attention import attention_time

    attention_time(1, 16, 2048, head_dim=128, device="mi300x")


def _replays() -> None:
    from projector.schedule.registry import build
    from projector.schedule.replay.order_times import peak_in_flight, replay_batch

    order = build("1f1b", pp=2, vpp=1, microbatches=4)
    replay_batch(order, np.zeros((1, 2, 1, 3, 3), int), np.zeros((1, 2, 2), int))
    peak_in_flight(order)


def _steps() -> None:
    from projector.projection.api import project_jobs

    project_jobs([_JOB])


PARTS = {"attention": _attention, "collectives": _collectives, "replays": _replays, "steps": _steps}
"""What a step needs, and nothing that it does not need; the dearest kernels after the GEMMs first.

The last one has the other kernels of a step, of which it compiles what is still free.
"""


@contextmanager
def helpers_of_a_step() -> Iterator[None]:
    """Let up to one process for each of `PARTS` compile, each beginning with another part."""
    names = [*PARTS]
    with ExitStack() as started:
        for first in range(min(possible_helpers(), len(names))):
            started.enter_context(helper(__name__, names[first:] + names[:first]))
        yield
