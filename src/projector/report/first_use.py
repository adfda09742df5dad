"""The first projection of a step on a machine: other processes compile some of its kernels."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from projector.report.beside import helper, possible_helpers


def _collectives() -> None:
    from projector.single.times import collective_time

    collective_time("all_reduce", 1e6, 8, device="mi300x")


def _attention() -> None:
    from projector.single.times import attention_time

    attention_time(1, 16, 2048, head_dim=128, device="mi300x")


def _replays() -> None:
    from projector.schedule.registry import build
    from projector.schedule.replay.order_times import peak_in_flight, replay_batch

    order = build("1f1b", pp=2, vpp=1, microbatches=4)
    replay_batch(order, np.zeros((1, 2, 1, 3, 3), int), np.zeros((1, 2, 2), int))
    peak_in_flight(order)


PARTS = {"attention": _attention, "collectives": _collectives, "replays": _replays}
"""What a step needs after its GEMMs, and nothing that it does not need."""


@contextmanager
def helpers_of_a_step() -> Iterator[None]:
    """Let up to one process for each of `PARTS` compile, each beginning with another part."""
    names = [*PARTS]
    with ExitStack() as started:
        for first in range(min(possible_helpers(), len(names))):
            started.enter_context(helper(__name__, names[first:] + names[:first]))
        yield
