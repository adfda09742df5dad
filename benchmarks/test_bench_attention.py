import numba
import numpy as np
import pytest

from projector.config.device_file import load_device
from projector.kernels.attention import attention_time_columns
from projector.lower.hardware import device_record

# Ten thousand rows take a while where the kernels run as Python.
ROWS = [1, 100] if numba.config.DISABLE_JIT else [1, 100, 10_000]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("backward", [0, 1], ids=["forward", "backward"])
def test_attention_times(benchmark, rows, backward):
    rng = np.random.default_rng(0)
    extents = np.empty((rows, 7), np.int64)
    extents[:, 0] = rng.integers(1, 5, rows)
    extents[:, 1], extents[:, 2] = 32, 8
    extents[:, 3] = extents[:, 4] = 2 ** rng.integers(10, 16, rows)
    extents[:, 5:] = 128
    flags = np.ones(rows), np.zeros(rows), np.full(rows, backward), np.full(rows, 3), np.zeros(rows)
    table = extents, *(flag.astype(np.int64) for flag in flags)
    device = device_record(load_device("h100"))
    attention_time_columns(*table, device)  # compile outside the clock

    benchmark(attention_time_columns, *table, device)
    benchmark.extra_info["rows"] = rows
    if benchmark.stats is not None:
        benchmark.extra_info["attentions_per_s"] = rows / benchmark.stats.stats.median


@pytest.mark.parametrize("length", [1 << 12, 1 << 16, 1 << 20, 1 << 24])
def test_long_sequences(benchmark, length):
    """The cost grows with the blocks of a sequence, up to ``MAX_BLOCKS``."""
    flags = (np.array([value]) for value in (1, 0, 0, 3, 0))
    table = np.array([[1, 32, 8, length, length, 128, 128]]), *flags
    device = device_record(load_device("h100"))
    attention_time_columns(*table, device)

    benchmark(attention_time_columns, *table, device)
    benchmark.extra_info["length"] = length
