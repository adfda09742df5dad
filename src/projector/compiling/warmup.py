"""Compiling every kernel, by calling what reaches each of them."""

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from projector.config.resources import settings_of
from projector.kernels._helpers import helper, possible_helpers
from projector.projection.api import project_jobs
from projector.schedule.order import Series
from projector.schedule.planning.costs import uniform_costs
from projector.schedule.planning.optimise import improve
from projector.schedule.registry import build
from projector.schedule.replay.order_times import METHODS, replay_batch
from projector.schedule.simulate import simulate_schedule
from projector.serving.api import project_serving
from projector.single.attention import project_attention
from projector.single.collective import collective_time
from projector.single.gemm import MODELS, list_gemms
from projector.sweeps.engine import sweep
from projector.trace.intervals import cover, difference, intersection, union

_EXPERTS, _DENSE = (settings_of("compiled_jobs")[name] for name in ("experts", "dense"))


def _jobs() -> None:
    split = {**_EXPERTS["parallelism"], "vpp": 2}
    project_jobs([{**_EXPERTS, "parallelism": split}, _DENSE])


def _gemms() -> None:
    for model in MODELS:
        list_gemms(("1024", "1024", "1024"), None, gpu="mi300x", model=model)


def _sweep() -> None:
    best_of = {"training.recompute": ["none", "full"]}
    axes = {"training.micro_batch_size": [1, 2]}
    sweep({"base": _DENSE, "axes": axes, "best_of": best_of}, workers=1)


def _serving() -> None:
    served = {"model": _EXPERTS["model"], "cluster": {"device": "h100"}}
    load = {"batch": 2, "context": 128, "output": 8, "rate_per_s": 1.0}
    project_serving(deployment={**served, "load": {**load, "requests": 20}})


def _schedules() -> None:
    simulate_schedule("1f1b", pp=2, microbatches=4, f=1.0, b=1.0, w=1.0)
    order = build("1f1b", pp=2, vpp=1, microbatches=2 * Series.MIN_PERIODS)
    for method in METHODS:
        replay_batch(order, np.zeros((1, 2, 1, 3, 3), int), np.zeros((1, 2, 2), int), method)
    simulate_schedule("seaailab", pp=2, microbatches=4)
    build("1f1b-v", pp=2, vpp=2, microbatches=4)


def _planning() -> None:
    # Stages that differ are what ZB-H1 does not suit, so that there is something to search for.
    costs = uniform_costs(4, 4, limit=4.0)
    costs = costs._replace(forward_ps=(5, 1, 1, 1), weight_ps=(1, 1, 1, 5))
    improve(costs, 8, build("zerobubble", 4, 1, 8), moves=1)


def _intervals() -> None:
    busy = union(np.array([0, 5]), np.array([9, 7]))
    cover(busy.start, busy.end, difference(busy, intersection(busy, busy)))


PARTS: dict[str, Callable[[], object]] = {
    "jobs": _jobs,
    "sweeps": _sweep,
    "GEMMs": _gemms,
    "serving": _serving,
    "intervals": _intervals,
    "planning": _planning,
    "schedules": _schedules,
    "attention": lambda: project_attention(1, 16, 2048, head_dim=128, device="mi300x"),
    "collectives": lambda: collective_time("all_reduce", 1e6, 8, device="mi300x"),
}
"""What is called for its kernels. Those who help begin at the end, where other kernels are."""


def compile_kernels(tell: Callable[[str], None] | None = None) -> None:
    """Call all that runs a kernel, on all cores, to fill the disk; ``tell`` hears of `PARTS`."""
    with ExitStack() as started:
        for first in range(min(possible_helpers(), len(PARTS) - 1)):
            started.enter_context(helper(__name__, [*reversed(PARTS)][first:]))
        for name, call in PARTS.items():
            if tell is not None:
                tell(name)
            call()
