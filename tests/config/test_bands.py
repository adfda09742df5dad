import pytest

from projector.config.bands import (
    NOTHING,
    Band,
    attention_time_band,
    band_of,
    collective_band,
    gemm_band,
)
from projector.config.device_file import load_device


@pytest.fixture
def band():
    return Band(0.9, 1.05, 0.8, 1.2, 10, "rows")


def test_the_relative_error_is_the_wider_side(band):
    assert band.relative == 0.1
    assert band.words == "-10 to +5 %"
    assert band.limits(90) == (0.8, 1.2)
    assert band.to_dict()["high"] == {"68": 1.05, "90": 1.2}


def test_a_stretched_band_moves_both_sides_outwards(band):
    wide = band.stretched(2.0, 1.0)
    assert (wide.low_68, wide.high_68) == (pytest.approx(0.81), pytest.approx(1.1025, abs=1e-3))
    assert wide.limits(90) == band.limits(90)


def test_independent_errors_add_as_squares(band):
    same = band.with_error(0.0)
    assert same == band
    wide = Band(1.0, 1.0, 1.0, 1.0, 1, "").with_error(0.1)
    assert wide.high_68 == pytest.approx(1.105, abs=1e-3)
    assert wide.high_90 == pytest.approx(1.179, abs=1e-3)


def test_what_is_not_known_has_no_band():
    assert band_of("colour", ("all",)) == NOTHING
    assert NOTHING.relative is None
    assert NOTHING.words == ""
    assert NOTHING.stretched(2.0, 2.0) == NOTHING.with_error(0.1) == NOTHING


def test_a_new_generation_has_a_wider_band_than_a_new_device():
    known, device, generation = (
        gemm_band(load_device({"extends": "b200", **own}), "bf16").limits(68)
        for own in ({}, {"name": "derived"}, {"name": "derived", "architecture": "rubin"})
    )
    every = band_of("gemm", ("all",)).stretched(1.8, 1.5).limits(68)
    assert known[0] > device[0]
    assert known[1] < device[1]
    assert generation == every


def test_a_source_that_has_no_rows_changes_no_band():
    classes = ("hopper.dense.16_bit", "hopper.dense", "dense", "all")
    usual = band_of("time", classes)
    assert band_of("time", classes, without="nobody") == usual
    assert band_of("time", classes, without="mosaicml/llm-foundry") != usual


@pytest.mark.parametrize("device", ["a100", "h100", "b200", "mi300x", "mi355x"])
def test_kernels_have_bands_around_the_projection(device):
    found = load_device(device)
    bands = [gemm_band(found, "bf16"), gemm_band(found, "fp8")]
    bands += [collective_band(found, size) for size in (1e4, 1e8, None)]
    bands += [attention_time_band("width", ""), attention_time_band("none", "")]
    for each in bands:
        assert each.low_90 <= each.low_68 <= 1.0 <= each.high_68 <= each.high_90
    assert bands[-1].relative > bands[-2].relative
