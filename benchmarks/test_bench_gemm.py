import numba
import numpy as np
import pytest

from gemm_selections import measure, menus, mixes
from projector.config import resources
from projector.config.device_file import load_device
from projector.kernels.gemm import gemm_time_columns, sol_time_columns
from projector.kernels.gemm.times import MIN_SPLIT_DEPTH
from projector.lower.hardware import device_record

# Ten thousand rows take a while where the kernels run as Python.
ROWS = [1, 100] if numba.config.DISABLE_JIT else [1, 100, 10_000]
FIRST_CALL = """
import numpy as np
from projector.kernels.device import DEVICE
from projector.kernels.gemm import gemm_time_columns
device = np.ones(1, DEVICE)
one = np.ones(1)
gemm_time_columns(np.ones((1, 4), np.int64), np.array([3]), one, one, np.array([0]), device)
"""


def columns(rows):
    rng = np.random.default_rng(0)
    extents = rng.integers(1, 16384, (rows, 4))
    extents[:, 3] = 1
    return extents, np.full(rows, 3), np.full(rows, 2.0), np.ones(rows), np.zeros(rows, np.int64)


def splits(device, depth):
    """Numbers of parts that a K of each depth may be cut into."""
    parts = device["gemm_splits"][0][: device["num_gemm_splits"][0]]
    return 1 + np.count_nonzero(depth[:, None] >= MIN_SPLIT_DEPTH * parts, axis=1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["h100", "b200", "mi325x"])
def test_gemm_times(benchmark, rows, name):
    table, device = columns(rows), device_record(load_device(name))
    gemm_time_columns(*table, device)  # compile outside the clock

    benchmark(gemm_time_columns, *table, device)
    candidates = int(device["num_tiles"][0]) * int(splits(device, table[0][:, 2]).sum())
    benchmark.extra_info["candidates"] = candidates
    if benchmark.stats is not None:
        seconds = benchmark.stats.stats.median
        benchmark.extra_info["ns_per_candidate"] = seconds / candidates * 1e9
        benchmark.extra_info["gemms_per_s"] = rows / seconds


@pytest.mark.rotated
@pytest.mark.parametrize("name", sorted(resources.shipped("hardware")))
def test_selections_of_every_menu(benchmark, name):
    """What is selected is what the full search selects; `gemm_selections.py` lists the speeds."""
    few = 1 if numba.config.DISABLE_JIT else 100
    rows, rounds = (few, 1) if benchmark.disabled else (1000, 5)
    speeds = {
        f"{menu.library} {menu.kind} {mix}": measure(menu, extents, rounds)
        for menu in menus([name])
        for mix, extents in mixes(rows).items()
    }
    benchmark(lambda: None)
    benchmark.extra_info["selections_per_s"] = {
        each: 1.0 / speed.search_s for each, speed in speeds.items()
    }
    benchmark.extra_info["times_as_fast"] = {
        each: speed.full_s / speed.search_s for each, speed in speeds.items()
    }


@pytest.mark.parametrize("rows", ROWS)
def test_speed_of_light(benchmark, rows):
    extents, dtype, out_bytes, _, index = columns(rows)
    device = device_record(load_device("h100"))
    sol_time_columns(extents, dtype, out_bytes, index, device)

    benchmark(sol_time_columns, extents, dtype, out_bytes, index, device)
    benchmark.extra_info["rows"] = rows


@pytest.mark.thorough
def test_first_call(time_first_call):
    time_first_call(FIRST_CALL)
