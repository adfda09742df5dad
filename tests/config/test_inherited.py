"""What a derived device scales of the one that it extends."""

import pytest

from projector import gemm_time
from projector.config.device_file import load_device


def derived(base, **own):
    return load_device({"extends": base, "name": "derived", **own})


def rates(base, factor):
    return {
        kind: factor * rate for kind, rate in load_device(base).matrix_flop_per_clk_per_cu.items()
    }


@pytest.mark.parametrize(
    ("base", "own", "factor"),
    [
        ("h100", {"matrix_flop_per_clk_per_cu": rates("h100", 2.0)}, 2.0),
        ("h100", {"compute_units": 264}, 2.0),
        ("h100", {"compute_units": 66}, 1.0),
        ("mi300x", {"compute_units": 76, "dies": 4}, 0.5),
        # Dies that are smaller, and as many more of them.
        ("mi300x", {"dies": 16}, 1.0),
    ],
)
def test_l2_keeps_step_with_the_matrix_units(base, own, factor):
    assert derived(base, **own).l2_tb_per_s == pytest.approx(factor * load_device(base).l2_tb_per_s)


@pytest.mark.parametrize("base", ["a100", "h100", "b200", "mi210", "mi300x", "mi355x"])
def test_faster_matrix_units_multiply_faster_within_the_same_watts(base):
    faster = [derived(base, matrix_flop_per_clk_per_cu=rates(base, by)) for by in (1, 1.5, 2, 4)]
    times = [gemm_time(8192, 8192, 8192, device=device) for device in faster]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[2] > 1.15


def test_joules_of_a_flop_fall_slower_than_the_rate_rises():
    base, twice = (
        load_device("h100"),
        derived("h100", matrix_flop_per_clk_per_cu=rates("h100", 2.0)),
    )
    assert base.power is not None
    assert twice.power is not None
    assert twice.power.pj_per_flop["bf16"] == pytest.approx(
        base.power.pj_per_flop["bf16"] * 2.0 ** (-1.0 / 3.0)
    )
    # The same cap then leaves less of the clock.
    assert 0.5 < twice.sustained_clock_mhz["bf16"] / base.sustained_clock_mhz["bf16"] < 0.9


def test_a_type_that_rises_alone_takes_the_same_watts():
    base, rate = load_device("b200"), rates("b200", 1.5)["nvfp4"]
    faster = derived("b200", matrix_flop_per_clk_per_cu={"nvfp4": rate})
    assert base.power is not None
    assert faster.power is not None
    assert faster.sustained_clock_mhz == base.sustained_clock_mhz
    joules = base.power.pj_per_flop["nvfp4"]
    assert faster.power.pj_per_flop["nvfp4"] == pytest.approx(joules / 1.5)


def test_an_efficiency_is_that_of_the_same_kernels_or_of_new_ones():
    own = {"matrix_flop_per_clk_per_cu": rates("mi300x", 2.0)}
    base = load_device("mi300x").gemm_efficiency["fp8"]
    same, new = (derived("mi300x", **own, **each) for each in ({}, {"architecture": "cdna9"}))
    assert same.gemm_efficiency["fp8"] == pytest.approx(base / (2.0 - base))
    assert new.gemm_efficiency["fp8"] == base


def test_scales_wait_for_the_matrix_pipe():
    twice = derived("mi300x", matrix_flop_per_clk_per_cu=rates("mi300x", 2.0))
    assert twice.gemm_scale_instructions == load_device("mi300x").gemm_scale_instructions / 2.0
