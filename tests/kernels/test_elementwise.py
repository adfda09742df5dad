import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.devices import ROUND, SHIPPED, device_dicts, record, scaled
from projector.kernels.elementwise import elementwise_time_column
from reference import elementwise as reference

amounts = st.one_of(st.just(0.0), st.floats(1.0, 1e15))
rows = st.tuples(amounts, amounts, amounts)
RATES = ("elementwise_bytes_per_s", "vector_flop_per_s", "transcendental_per_s")


def times(rows, *devices, index=None):
    columns = np.array(rows, np.float64).reshape(-1, 3).T
    device = np.zeros(columns.shape[1], np.int64) if index is None else np.array(index)
    return elementwise_time_column(*columns, device, record(*devices))


@given(row=rows, device=device_dicts)
def test_matches_reference(row, device):
    (time_s,) = times([row], device)
    assert time_s == pytest.approx(reference.elementwise_time(*row, device), rel=1e-9, abs=0)


@given(row=rows, device=device_dicts, name=st.sampled_from(RATES), factor=st.floats(1.0, 100.0))
def test_a_faster_device_never_costs_time(row, device, name, factor):
    before, after = times([row, row], device, scaled(device, name, factor), index=[0, 1])
    assert after <= before


@given(row=rows, more=rows, device=device_dicts)
def test_more_work_never_costs_less(row, more, device):
    less, larger = times([row, np.add(row, more)], device)
    assert 0.0 <= less <= larger


@given(
    rows=st.lists(rows, min_size=1, max_size=8),
    devices=st.lists(device_dicts, min_size=1, max_size=3),
)
def test_rows_do_not_depend_on_each_other(rows, devices):
    index = [i % len(devices) for i in range(len(rows))]
    together = times(rows, *devices, index=index)
    for row, i, time_s in zip(rows, index, together, strict=True):
        assert times([row], devices[i])[0] == time_s
    assert times(rows[::-1], *devices, index=index[::-1]).tolist() == together.tolist()[::-1]


def test_the_longest_part_counts():
    traffic, vector, exponentials = (1.5e9, 0, 0), (0, 192e9, 0), (0, 0, 4e9)
    assert times([traffic, vector, exponentials], ROUND) == pytest.approx([1e-3, 3e-3, 2e-3])
    assert times([np.add(np.add(traffic, vector), exponentials)], ROUND) == pytest.approx(3e-3)
    assert times([(0, 0, 0)], ROUND) == 0.0


@pytest.mark.parametrize("name", SHIPPED)
def test_a_copy_runs_at_the_rate_of_the_memory(name):
    (time_s,) = times([(1e9, 0, 0)], SHIPPED[name])
    assert 1e9 / time_s == pytest.approx(SHIPPED[name]["elementwise_bytes_per_s"])


@pytest.mark.parametrize("row", [(np.nan, 0, 0), (0, np.inf, 0), (-1.0, 0, 0), (1.0, np.nan, 0)])
def test_a_row_without_a_time_is_refused(row):
    with pytest.raises(ValueError, match="no finite, non-negative time"):
        times([(1e9, 0, 0), row], ROUND)


@pytest.mark.parametrize("index", [-1, 1])
def test_an_unknown_device_is_refused(index):
    with pytest.raises(ValueError, match="no finite, non-negative time"):
        times([(1e9, 0, 0)], ROUND, index=[index])
