"""Serving: a million loads of many deployments at once, and requests one by one."""

from pathlib import Path

import numpy as np
import pytest

from projector.config.cluster import ClusterConfig
from projector.config.model_file import load_model
from projector.serving.deployment import Deployment
from projector.serving.load import Load, Scheduler
from projector.serving.rates import LoadGrid, load_rates
from projector.serving.simulation import longest_of, replica_of, serve_all
from projector.sweeps.rows import Sweeper
from projector.sweeps.store import chunk_points
from projector.sweeps.table import axis_kinds, load_space

EXAMPLES = Path(__file__).parents[1] / "examples"

DEVICES = ("h100", "h200", "mi300x", "b200")


@pytest.fixture(scope="module")
def loads():
    """Return a million loads: 64 deployments, batches to 1,024, prompts to 131,072."""
    model = load_model("llama3.1_70b")
    deployments = [
        Deployment.parse({"model": model, "cluster": cluster, "tp": tp, "pp": pp, "dtype": dtype})
        for cluster in (ClusterConfig.parse({"device": name, "nodes": 2}) for name in DEVICES)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2)
        for dtype in ("bf16", "fp8")
    ]
    owner = np.arange(len(deployments))[:, np.newaxis, np.newaxis]
    batch = np.unique(np.geomspace(1, 1024, 125).round().astype(int))[:, np.newaxis]
    context = np.linspace(256, 131_072, 174).astype(int)
    return LoadGrid.of(deployments, deployment=owner, batch=batch, context=context, output=256)


@pytest.mark.thorough
def test_a_million_loads(benchmark, loads):
    """Time to the first and of each further token, throughput, and the largest batch."""
    assert len(loads) > 1_000_000
    rates = benchmark.pedantic(load_rates, (loads,), rounds=3, warmup_rounds=1)
    assert rates.fits.any()
    if benchmark.stats is None:
        return
    rate = len(loads) / benchmark.stats.stats.min
    benchmark.extra_info["points_per_s"] = rate
    benchmark.extra_info["of_the_sweep"] = rate / _sweep_rate()


def _sweep_rate():
    """Return the jobs a second of a chunk of a sweep, on one core."""
    from time import perf_counter

    space = load_space(EXAMPLES / "space_llama70b.yaml")
    points = chunk_points(space)
    sweeper = Sweeper(space, axis_kinds(space), points)
    middle = space.size // points // 2
    rows, seconds = sweeper.part(middle).totals.rows, []
    for _ in range(3):
        begin = perf_counter()
        sweeper.part(middle)
        seconds.append(perf_counter() - begin)
    return rows / min(seconds)


REQUESTS = 2000


@pytest.mark.parametrize(
    "arrival",
    [
        {"rate_per_s": 5.0},
        {"rate_per_s": 15.0},
        {"arrival": "closed", "concurrency": 64},
        {"arrival": "offline"},
    ],
    ids=["rate_5", "rate_15", "closed_64", "offline"],
)
def test_serve_requests(benchmark, arrival):
    """Requests that one thread serves in a second, with the table of steps at hand."""
    deployment = Deployment.parse({"model": "llama3_8b", "cluster": {"device": "h100"}})
    lengths = {"input_tokens": 1024, "output_tokens": 256, "requests": REQUESTS}
    load = Load.parse(lengths | arrival)
    drawn = load.draw()
    replica = replica_of(deployment, Scheduler(), longest_of(drawn))
    cases = [(replica, load, drawn)]
    serve_all(cases, 1)  # compile outside the clock

    benchmark(serve_all, cases, 1)
    if benchmark.stats is not None:
        benchmark.extra_info["requests_per_s"] = REQUESTS / benchmark.stats.stats.median


def test_table_of_steps(benchmark):
    """What a new deployment costs before its first request."""
    deployment = Deployment.parse({"model": "llama3.1_70b", "cluster": {"device": "h100"}, "tp": 8})
    benchmark(replica_of, deployment, Scheduler(), 8192)
