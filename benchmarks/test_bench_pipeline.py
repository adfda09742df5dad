"""Speed of building, compiling and replaying orders of operations."""

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from projector.schedule import registry, replay

SIZES = [
    ("1f1b", 8, 1, 64),
    ("interleaved", 16, 4, 128),
    ("interleaved", 64, 2, 1024),
]
FIRST_CALL = """
from projector.schedule.simulate import simulate_schedule
simulate_schedule("1f1b", 4, 1, 8)
"""


@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_replay_batch(benchmark, name, pp, vpp, microbatches):
    order = registry.build(name, pp, vpp, microbatches)
    n = max(1, 2**16 // len(order.kind))
    durations = np.random.default_rng(0).integers(1, 10**9, (n, pp, vpp, 3, 3))
    latencies = np.full((n, 2, pp * vpp), 10**6)
    replay.replay_batch(order, durations, latencies)  # compile outside the clock

    benchmark.extra_info["operations"] = n * len(order.kind)
    benchmark(replay.replay_batch, order, durations, latencies)
    if benchmark.stats is not None:
        nanoseconds = benchmark.stats.stats.median * 1e9 / (n * len(order.kind))
        benchmark.extra_info["ns_per_operation"] = nanoseconds


@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_peak_bytes(benchmark, name, pp, vpp, microbatches):
    order = registry.build(name, pp, vpp, microbatches)
    sizes = np.random.default_rng(0).random((100, pp, vpp))
    replay.peak_bytes(order, sizes)
    benchmark(replay.peak_bytes, order, sizes)


@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_build_order(benchmark, name, pp, vpp, microbatches):
    benchmark(registry.SCHEDULES[name].order, pp, vpp, microbatches)


@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_compile_line(benchmark, name, pp, vpp, microbatches):
    order = registry.build(name, pp, vpp, microbatches)
    replay.compile_line(order)
    benchmark(replay.compile_line.__wrapped__, order)


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_first_call(benchmark, cache, tmp_path):
    """What a user waits for: a new process, with and without a disk cache."""

    def first_call(cache_dir):
        env = {**os.environ, "PROJECTOR_CACHE_DIR": str(cache_dir)}
        subprocess.run([sys.executable, "-c", FIRST_CALL], env=env, check=True)

    def setup():
        warm = tmp_path / "warm"
        return (warm if cache == "warm" else tempfile.mkdtemp(dir=tmp_path),), {}

    if cache == "warm":
        first_call(tmp_path / "warm")
    benchmark.pedantic(first_call, setup=setup, rounds=3)
