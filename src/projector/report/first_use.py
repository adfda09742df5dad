"""The first search or sweep on a machine: other processes compile some of the kernels of a step."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from projector.report.beside import helper, possible_helpers

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


def _steps() -> None:
    from projector.projection.api import project_jobs

    project_jobs([_JOB])


PARTS = {
    "attention": _attention,
    "collectives": _collectives,
    "replays": _replays,
    "steps": _steps,
}
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
