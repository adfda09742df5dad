import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.test_collectives import (
    BANDWIDTHS,
    LATENCIES,
    MESH,
    SWITCH,
    fabric_dicts,
    record,
    sizes,
)
from projector.kernels.moe_exchange import moe_exchange_time_column, moe_exchange_times
from reference import collectives as reference


@given(
    near=sizes,
    far=sizes,
    n=st.integers(1, 200),
    local=st.integers(1, 72),
    fabric=fabric_dicts,
)
def test_moe_exchange_matches_reference(near, far, n, local, fabric):
    local = min(local, n)
    near = near if local > 1 else 0.0
    far = far if local < n else 0.0
    (time_s,) = moe_exchange_time_column(near, far, n, local, 0, record(fabric))
    expected = reference.moe_exchange_time(near, far, n, local, fabric)
    assert time_s == pytest.approx(expected, rel=1e-12, abs=0)


@given(
    near=sizes,
    far=sizes,
    more_near=sizes,
    more_far=sizes,
    fabric=fabric_dicts,
    name=st.sampled_from(BANDWIDTHS),
    factor=st.floats(1.0, 100.0),
)
def test_moe_exchange_is_monotone(near, far, more_near, more_far, fabric, name, factor):
    fabrics = record(fabric, fabric | {name: fabric[name] * factor})
    base, more, faster = moe_exchange_time_column(
        [near, near + more_near, near], [far, far + more_far, far], 32, 8, [0, 0, 1], fabrics
    )
    assert faster <= base <= more


def test_moe_exchange_is_bound_by_the_slower_path():
    fabric = SWITCH | dict.fromkeys(LATENCIES, 0.0)
    near, far = moe_exchange_time_column([1e9, 1e6], [1e6, 1e9], 16, 8, 0, record(fabric))
    assert near == pytest.approx(1e9 / (450e9 * 0.81))
    assert far == pytest.approx(1e9 / 47e9)


@pytest.mark.parametrize(
    ("near", "far", "n", "local", "fabric"),
    [
        (-1.0, 0.0, 8, 8, 0),
        (0.0, np.nan, 16, 8, 0),
        (1.0, 1.0, 8, 8, 0),  # remote bytes without another domain
        (1.0, 1.0, 8, 1, 0),  # local bytes without a local peer
        (1.0, 0.0, 8, 0, 0),
        (1.0, 0.0, 8, 8, 9),
        (1e308, 0.0, 8, 8, 1),
        (1.0, 1.0, 16, 8, 2),
    ],
)
def test_invalid_moe_exchange(near, far, n, local, fabric):
    fabrics = record(
        SWITCH,
        SWITCH | {"scale_up_bytes_per_s": 0.001},
        SWITCH | {"nic_bytes_per_s": 0.0},
    )
    with pytest.raises(ValueError, match="exchange 0 has no valid time: local_bytes"):
        moe_exchange_time_column(near, far, n, local, fabric, fabrics)


def test_kernel_and_python_agree_without_jit():
    rng = np.random.default_rng(0)
    size = 2.0 ** rng.uniform(0, 40, 200)
    local = 2 ** rng.integers(0, 4, 200)
    n = local * rng.integers(2, 9, 200)
    fabric = rng.integers(0, 2, 200)
    near = np.where(local > 1, size, 0.0)
    compiled, interpreted = np.empty(200), np.empty(200)
    python = getattr(moe_exchange_times, "py_func", moe_exchange_times)
    fabrics = record(SWITCH, MESH)
    assert moe_exchange_times(near, size, n, local, fabric, fabrics, compiled) == 0
    assert python(near, size, n, local, fabric, fabrics, interpreted) == 0
    np.testing.assert_array_equal(compiled, interpreted)
