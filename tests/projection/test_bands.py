from itertools import pairwise

import pytest

from projector.config.framework import profiles
from projector.config.load import load_job
from projector.projection.api import project_jobs
from projector.projection.bands import (
    classes_of,
    memory_band,
    time_band,
    uncertainty,
    unfamiliar,
)


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


def experts_on(network, nodes=2, **overrides):
    job = {
        "model": "mixtral_8x7b",
        "parallelism": {"ep": 8, "tp": 2},
        "training": {"mbs": 1, "gbs": 64, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": nodes, "network": network},
    }
    return load_job(job, overrides)


@pytest.mark.parametrize("framework", ["trl", "nanotron", "maxtext", "huggingface", "megatron_lm"])
def test_frameworks_that_hardly_any_run_is_of_are_unfamiliar(framework):
    job = job_on("h100", framework=framework)
    # A dense job: of those with experts alone, `experts` says so.
    assert bool(unfamiliar(job)) == (profiles().by_key[framework].few_runs == "all")
    assert (classes_of(job) == ("unfamiliar",)) == bool(unfamiliar(job))
    known, band = time_band(job_on("h100")), time_band(job)
    if unfamiliar(job):
        assert band.high_90 - band.low_90 > known.high_90 - known.low_90
        assert band.unknown == framework
    else:
        assert band == known


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (experts_on("p5_efa"), True),
        (experts_on("hgx_h100"), False),
        (experts_on("p5_efa", **{"parallelism.tp": 1, "parallelism.etp": 1}), False),
        (experts_on("p5_efa", **{"parallelism.ep": 1}), False),
        (experts_on("p5_efa", **{"model": "llama3.1_8b", "parallelism.ep": 1}), False),
        (experts_on("p5_efa", **{"cluster.network.exchange_wait_us": 0}), False),
        (experts_on("hgx_h100", **{"cluster.network.exchange_wait_us": 100}), True),
    ],
)
def test_experts_on_a_network_whose_exchanges_wait_are_unfamiliar(job, expected):
    assert bool(unfamiliar(job)) is expected
    assert (classes_of(job)[0] == "unfamiliar") is expected


def test_bands_of_a_batch_are_those_of_its_jobs():
    jobs = [
        job_on("h100"), job_on("h100", framework="trl"), experts_on("p5_efa"),
        experts_on("hgx_h100"), experts_on("p5_efa", **{"cluster.network.exchange_wait_us": 0}),
    ]  # fmt: skip
    for step, job in zip(project_jobs(jobs), jobs, strict=True):
        assert step.uncertainty == uncertainty(job, "time")


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
