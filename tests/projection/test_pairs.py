"""Settings in which two jobs differ."""

import itertools

import pytest

from projector.config.bands import Band
from projector.config.load import load_job
from projector.projection.bands import SETTINGS, SEVERAL, changed_settings, name_of, ratio_band

BASE = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}
MEASURED = Band(0.9, 1.1, 0.8, 1.25, 50, "runs")


CLOUD = {
    "model": "mixtral_8x7b",
    "parallelism": {"ep": 16},
    "training": {
        "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096,
        "moe": {"dispatcher": "deepep"},
    },
    "cluster": {"device": "h100", "nodes": 2, "network": "p5_efa"},
}  # fmt: skip


def settings(**changes):
    return changed_settings(load_job(BASE), load_job(BASE, changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ()),
        ({"name": "another title"}, ()),
        ({"parallelism.tp": 4}, ("tp",)),
        ({"parallelism.tp": 1, "parallelism.sequence_parallel": False}, ("tp",)),
        ({"parallelism.sequence_parallel": False}, ("switches",)),
        ({"parallelism.vpp": 2}, ("vpp",)),
        ({"parallelism.pp": 4, "parallelism.vpp": 2}, ("pp",)),
        ({"training.precision": "fp8"}, ("precision",)),
        ({"training.recompute": "full"}, ("recompute",)),
        ({"training.micro_batch_size": 2}, ("micro_batch",)),
        ({"training.global_batch_size": 128}, ("global_batch",)),
        ({"parallelism.zero_stage": 3}, ("sharding",)),
        ({"parallelism.overlap_grad_reduce": False}, ("switches",)),
        ({"parallelism.tp": 4, "training.precision": "fp8"}, ("tp", "precision")),
    ],
)
def test_settings(changes, expected):
    assert settings(**changes) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"training.moe.dispatcher": "alltoall"}, ("dispatcher",)),
        ({"cluster.network.exchange_proxy": "uccl"}, ("dispatcher",)),
        ({"cluster.network.nic_latency_us": 50.0}, None),
        ({"cluster.network.nic_latency_us": 50.0, "cluster.network.exchange_proxy": "uccl"}, None),
    ],
)
def test_dispatchers_and_their_libraries(changes, expected):
    assert changed_settings(load_job(CLOUD), load_job(CLOUD, changes)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # The batch of a device, the microbatches of a step, or the tokens of a step stay.
        ({"cluster.nodes": 4, "training.global_batch_size": 128}, ("gpus",)),
        ({"cluster.nodes": 4}, ("gpus",)),
        ({"training.micro_batch_size": 2, "training.global_batch_size": 128}, ("micro_batch",)),
        ({"training.seq_length": 8192, "training.global_batch_size": 32}, ("sequence",)),
        ({"parallelism.tp": 4, "training.global_batch_size": 32}, ("tp",)),
        ({"parallelism.tp": 4, "training.global_batch_size": 96}, ("tp", "global_batch")),
        # As long sequences are cut into smaller microbatches.
        (
            {"training.seq_length": 2048, "training.micro_batch_size": 2,
             "training.global_batch_size": 128},
            ("sequence",),
        ),
        (
            {"training.seq_length": 2048, "training.micro_batch_size": 8,
             "training.global_batch_size": 128},
            ("micro_batch", "sequence"),
        ),
    ],
)  # fmt: skip
def test_batch_that_follows(changes, expected):
    assert settings(**changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "llama3.2_1b"},
        {"cluster.device": "h200"},
        {"cluster.network.nic_gbit_per_s": 200},
        {"cluster.software.launch_us": 9},
        {"model.num_layers": 16},
    ],
)
def test_nothing_cancels(changes):
    assert settings(**changes) is None


def test_order_of_jobs_does_not_matter():
    jobs = [
        load_job(BASE, changes)
        for changes in (
            {},
            {"parallelism.tp": 4},
            {"training.precision": "fp8"},
            {"training.seq_length": 8192, "training.global_batch_size": 32},
        )
    ]
    for first, second in itertools.combinations(jobs, 2):
        assert changed_settings(first, second) == changed_settings(second, first)


def test_names():
    assert name_of(()) == ""
    assert name_of(("tp",)) == "tp"
    assert name_of(("tp", "pp")) == SEVERAL
    assert len(set(SETTINGS)) == len(SETTINGS)


@pytest.mark.parametrize("changed", [*((name,) for name in SETTINGS), ("tp", "pp")])
def test_band_of_a_ratio(changed):
    band = ratio_band(changed)
    assert band.low_90 <= band.low_68 < 1.0 < band.high_68 <= band.high_90
    assert band.low_68 * band.high_68 == pytest.approx(1.0, abs=2e-3)
    assert band.runs >= 8


def test_bands_of_both_jobs_add_where_nothing_cancels():
    band = ratio_band(None, MEASURED, MEASURED)
    assert band.low_68 == pytest.approx(0.868, abs=2e-3)
    assert band.high_68 == pytest.approx(1.152, abs=2e-3)
    assert band.high_90 > MEASURED.high_90
    assert ratio_band(None).relative is None


def test_band_of_a_job_and_itself():
    band = ratio_band(())
    assert (band.low_90, band.high_90) == (1.0, 1.0)
