"""Serving: a million loads of many deployments at once, and requests one by one."""

from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import yaml

from projector import project_serving
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
    space = load_space(EXAMPLES / "space_llama70b.yaml")
    points = chunk_points(space)
    sweeper = Sweeper(space, axis_kinds(space), points)
    middle = space.size // points // 2
    return sweeper.part(middle).totals.rows / _seconds(lambda: sweeper.part(middle))


OPEN = {
    "device": list(DEVICES),
    "dtype": ["bf16", "fp8"],
    "load.context": {"range": [512, 32_768, 512]},
    "load.batch": [None],
}
RATED = {"device": list(DEVICES), "load.rate_per_s": [1.0, 2.0, 4.0, 8.0]}
MANY = {
    "device": list(DEVICES),
    "tp": [1, 2, 4, 8],
    "pp": [1, 2],
    "dtype": ["bf16", "fp8"],
    "load.output": [64, 128, 256, 512],
    "load.context": {"range": [256, 65_536, 2176]},
    "load.batch": {"powers_of_two": [1, 1024]},
}


@pytest.mark.parametrize("axes", [MANY, OPEN, RATED], ids=["many", "open_batch", "rate"])
def test_rows_of_a_space(benchmark, axes):
    """A chunk of a space of deployments, to the bytes of Parquet, on one core."""
    base = yaml.safe_load((EXAMPLES / "space_serve_llama70b.yaml").read_text())["base"]
    space = load_space({"base": base, "axes": axes})
    sweeper = Sweeper(space, axis_kinds(space), chunk_points(space))
    part = benchmark.pedantic(sweeper.part, (0,), rounds=3, warmup_rounds=1)
    assert part.totals.rows
    if benchmark.stats is None:
        return
    rate = part.totals.rows / benchmark.stats.stats.min
    one = {name: value for name, value in space.overrides(0).items() if value is not None}
    promises = {} if axes is RATED else {"load.ttft_ms": None, "load.tpot_ms": None}
    benchmark.extra_info["rows_per_s"] = rate
    seconds = _seconds(lambda: project_serving(deployment=base, overrides={**one, **promises}))
    benchmark.extra_info["times_project_serving"] = rate * seconds


def _seconds(call):
    """Return the least time of three calls, after one that warms up."""
    call()
    found = []
    for _ in range(3):
        begin = perf_counter()
        call()
        found.append(perf_counter() - begin)
    return min(found)


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
