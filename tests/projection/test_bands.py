from itertools import pairwise

import pytest

from projector.config.load import load_job
from projector.projection.bands import classes_of, memory_band, time_band, uncertainty


def job_on(device, **training):
    return load_job(
        {
            "model": "llama3.1_8b",
            "training": {"mbs": 1, "gbs": 64, "seq_length": 4096, **training},
            "cluster": {"device": device, "nodes": 1},
        }
    )


@pytest.mark.parametrize(("measured", "unseen"), [("h100", "h800"), ("b200", "b300")])
def test_a_device_that_nobody_measured_has_a_wider_band(measured, unseen):
    known, other = uncertainty(job_on(measured), "time"), uncertainty(job_on(unseen), "time")
    assert other["relative"] > known["relative"]
    assert "without rows" in other["basis"]
    # The device adds nothing but its capacity to the memory that a job needs.
    assert uncertainty(job_on(measured), "memory") == uncertainty(job_on(unseen), "memory")


def test_the_classes_of_a_job_go_from_the_narrowest_to_all():
    assert classes_of(job_on("b200", precision="fp8"))[0] == "blackwell.dense.8_bit"
    assert classes_of(job_on("mi355x")) == ("cdna.dense.16_bit", "cdna.dense", "dense", "all")


@pytest.mark.parametrize("device", ["a100", "h100", "b200", "mi300x", "mi355x", "b300"])
def test_the_wider_band_holds_the_narrower_and_both_hold_the_projection(device):
    for band in (time_band(job_on(device)), memory_band(job_on(device))):
        assert band.low_90 <= band.low_68 <= 1.0 <= band.high_68 <= band.high_90


def test_json_has_both_sides_of_both_bands():
    found = uncertainty(job_on("h100"), "time")
    assert found.keys() == {"relative", "low", "high", "basis"}
    assert found["low"].keys() == found["high"].keys() == {"68", "90"}
    assert found["relative"] == pytest.approx(
        max(1.0 - found["low"]["68"], found["high"]["68"] - 1.0), abs=1e-3
    )


def test_attention_that_nobody_measured_widens_the_band_by_its_share_of_the_step():
    job = job_on("b300")
    bands = [time_band(job, share) for share in (0.0, 0.1, 0.5)]
    assert all(
        wide.low_90 <= narrow.low_90 and narrow.high_90 <= wide.high_90
        for narrow, wide in pairwise(bands)
    )
