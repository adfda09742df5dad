import numba
import numpy as np
import pytest

from projector.config.device_file import load_device
from projector.kernels.grouped import grouped_gemm_time_columns
from projector.lower.hardware import expert_kernels, grouped_record

# Ten thousand launches take a while where the kernels run as Python.
LAUNCHES = [1, 100] if numba.config.DISABLE_JIT else [1, 100, 10_000]


@pytest.mark.parametrize("launches", LAUNCHES)
@pytest.mark.parametrize("experts", [8, 256])
def test_grouped_gemm_times(benchmark, launches, experts):
    rng = np.random.default_rng(0)
    loads = rng.integers(0, 1024, launches * experts)
    offsets = np.arange(launches + 1) * experts
    extents = np.full((launches, 2), (4096, 7168))
    device = load_device("h100")
    classes = grouped_record(device, "fp8", expert_kernels(device, "fp8_block"))
    zeros = np.zeros(launches, np.int64)
    table = offsets, loads, np.arange(launches), extents, zeros, zeros, classes
    grouped_gemm_time_columns(*table)  # compile outside the clock

    benchmark(grouped_gemm_time_columns, *table)
    benchmark.extra_info["launches"] = launches
    if benchmark.stats is not None:
        benchmark.extra_info["launches_per_s"] = launches / benchmark.stats.stats.median
