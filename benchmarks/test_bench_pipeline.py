"""Speed of building, compiling and replaying orders of operations."""

import time
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from projector.schedule import registry
from projector.schedule.planning.costs import uniform_costs
from projector.schedule.replay import order_times as replay
from projector.schedule.replay import programs

SIZES = [
    ("1f1b", 8, 1, 64),
    ("interleaved", 16, 4, 128),
    ("interleaved", 64, 2, 1024),
]
FIRST_CALL = """
from projector.schedule.simulate import simulate_schedule
simulate_schedule("1f1b", 4, 1, 8)
"""


def stage_times(order, n, spread):
    """Durations and latencies of n configurations; stages differ by up to ``spread``."""
    rng = np.random.default_rng(0)
    uniform = np.array([10**8, 2 * 10**8, 10**8])[:, np.newaxis]
    factor = rng.uniform(1.0 - spread, 1.0 + spread, (n, order.pp, order.vpp, 3, 1))
    durations = np.rint(factor * uniform).astype(np.int64)
    return np.repeat(durations, 3, axis=-1), np.full((n, 2, order.pp * order.vpp), 10**6)


def record_simulations(benchmark, n):
    benchmark.extra_info["simulations"] = n
    if benchmark.stats is not None:
        median = benchmark.stats.stats.median
        benchmark.extra_info["us_per_simulation"] = median * 1e6 / n
        benchmark.extra_info["simulations_per_s"] = n / median


@pytest.mark.parametrize("method", ["direct", "lanes", "jump"])
@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_replay_batch(benchmark, name, pp, vpp, microbatches, method):
    order = registry.build(name, pp, vpp, microbatches)
    n = batch_of(order)
    times = stage_times(order, n, 0.01)
    replay.replay_batch(order, *times, method)  # compile outside the clock

    benchmark.extra_info["operations"] = n * len(order.kind)
    benchmark(replay.replay_batch, order, *times, method)
    record_simulations(benchmark, n)
    if benchmark.stats is not None:
        nanoseconds = benchmark.stats.stats.median * 1e9 / (n * len(order.kind))
        benchmark.extra_info["ns_per_operation"] = nanoseconds


def batch_of(order):
    """Whole blocks of lanes, about half a million operations or more."""
    blocks = max(1, 2**19 // (64 * len(order.kind)))
    return 1 if numba.config.DISABLE_JIT else 64 * blocks


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.5], ids=["equal", "jitter", "random"])
@pytest.mark.parametrize("microbatches", [32, 256, 1024, 4096])
def test_1f1b_of_any_length(benchmark, microbatches, spread):
    order = registry.build("1f1b", 8, 1, microbatches)
    n = 1 if numba.config.DISABLE_JIT else 2048
    times = stage_times(order, n, spread)
    replay.replay_batch(order, *times)
    benchmark.extra_info["method"] = replay.fastest_method(order, n)
    benchmark(replay.replay_batch, order, *times)
    record_simulations(benchmark, n)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zerobubble", 1), ("zbv-formatted", 2)]
)
def test_batch_of_jobs(benchmark, name, vpp, threads):
    """Jobs as rows, eight parts to a thread; kernels do not hold the lock of Python."""
    order = registry.build(name, 8, vpp, 64)
    n = 2 if numba.config.DISABLE_JIT else 16 * 1024
    durations, latencies = stage_times(order, n, 0.01)
    replay.replay_batch(order, durations, latencies)
    parts = [slice(i * n // 16, (i + 1) * n // 16) for i in range(16)]

    def run(pool):
        return list(
            pool.map(
                lambda part: replay.replay_batch(order, durations[part], latencies[part]), parts
            )
        )

    with ThreadPoolExecutor(threads) as pool:
        benchmark(run, pool)
    record_simulations(benchmark, n)


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "microbatches"), [*SIZES, ("1f1b", 8, 1, 1024), ("zerobubble", 8, 1, 64)]
)
def test_ratio_of_methods(benchmark, name, pp, vpp, microbatches):
    """Direct, lanes and jump in turn, so that whatever else runs slows all of them."""
    order = registry.build(name, pp, vpp, microbatches)
    n = batch_of(order)
    times = stage_times(order, n, 0.01)
    spent = {"direct": [], "lanes": [], "jump": []}

    def run():
        for method, seconds in spent.items():
            begin = time.perf_counter()
            replay.replay_batch(order, *times, method)
            seconds.append(time.perf_counter() - begin)

    run()
    benchmark(run)
    direct = np.median(spent["direct"])
    for method in ("lanes", "jump"):
        benchmark.extra_info[f"direct_over_{method}"] = direct / np.median(spent[method])


@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_peak_bytes(benchmark, name, pp, vpp, microbatches):
    order = registry.build(name, pp, vpp, microbatches)
    sizes = np.random.default_rng(0).random((100, pp, vpp))
    replay.peak_bytes(order, sizes)
    benchmark(replay.peak_bytes, order, sizes)


@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_build_order(benchmark, name, pp, vpp, microbatches):
    benchmark(registry.SCHEDULES[name].order, pp, vpp, microbatches)


@pytest.mark.parametrize(("pp", "microbatches"), [(8, 64), (16, 256)])
@pytest.mark.parametrize(("name", "vpp"), [("seaailab", 1), ("zbv-greedy-half", 2)])
def test_plan_order(benchmark, name, vpp, pp, microbatches):
    """What a planned schedule takes with times of its own, its building blocks known."""
    costs = uniform_costs(pp, pp * vpp, ps=10**8)._replace(
        backward_ps=tuple(12 * 10**7 + stage for stage in range(pp * vpp))
    )
    plan = registry.SCHEDULES[name].plan
    plan(pp, vpp, microbatches, costs)
    benchmark(plan, pp, vpp, microbatches, costs)


@pytest.mark.parametrize(("pp", "microbatches"), [(16, 64), (64, 128)])
def test_search_for_an_order(benchmark, pp, microbatches):
    """What `seaailab-ilp` takes with stages that differ, in memory for three quarters of 1F1B."""
    times = np.random.default_rng(0).integers(9 * 10**8, 11 * 10**8, (3, pp)).tolist()
    forward, backward, weight = map(tuple, times)
    costs = uniform_costs(pp, pp, limit=0.75 * pp)._replace(
        forward_ps=forward, backward_ps=backward, weight_ps=weight
    )
    plan = registry.SCHEDULES["seaailab-ilp"].plan
    # Kernels are compiled outside the clock.
    plan(4, 1, 6, uniform_costs(4, 4, limit=2.0)._replace(solver_work=0))
    benchmark.pedantic(plan, args=(pp, 1, microbatches, costs), rounds=1)


@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_compile_line(benchmark, name, pp, vpp, microbatches):
    order = registry.build(name, pp, vpp, microbatches)
    programs.compile_line(order)
    benchmark(programs.compile_line.__wrapped__, order)


@pytest.mark.parametrize("compiler", [programs.compile_lanes, programs.compile_forks])
@pytest.mark.parametrize(("name", "pp", "vpp", "microbatches"), SIZES)
def test_compile_program(benchmark, name, pp, vpp, microbatches, compiler):
    """What a batch pays once for an order, beside its line."""
    order = registry.build(name, pp, vpp, microbatches)
    compiler(order)
    benchmark(compiler.__wrapped__, order)


@pytest.mark.thorough
def test_first_call(time_first_call):
    time_first_call(FIRST_CALL)
