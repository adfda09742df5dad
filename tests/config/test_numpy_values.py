"""Numbers of NumPy mean what the same numbers of Python mean, wherever a user may give one."""

import numpy as np
import pytest

import projector as pj
from projector.planning.question import positive, read_gpus, read_tokens
from projector.searches.fields import check_factor
from projector.searches.limits import check_top
from projector.searches.sobol import check_samples

BASE = {
    "model": "llama3.1_8b",
    "cluster": {"device": "h100", "nodes": 1},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
}
KINDS = [np.int64, np.int32, np.uint8, np.float32, np.float64, np.array]


@pytest.mark.parametrize("kind", KINDS)
def test_schedules(kind):
    plain = pj.simulate_schedule("1f1b", pp=4, microbatches=8, f=2, b=3, w=1, p2p=1)
    given = pj.simulate_schedule(
        np.str_("1f1b"), pp=4, microbatches=8, f=kind(2), b=kind(3), w=kind(1), p2p=kind(1)
    )
    assert given.makespan_s == plain.makespan_s
    planned = pj.simulate_schedule("seaailab", pp=2, microbatches=4, memory_limit=kind(3))
    assert planned.makespan_s > 0


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.array])
def test_counts(kind):
    plain = pj.simulate_schedule("interleaved", pp=4, vpp=2, microbatches=8, group_size=4)
    given = pj.simulate_schedule(
        "interleaved", pp=kind(4), vpp=kind(2), microbatches=kind(8), group_size=kind(4)
    )
    assert given.makespan_s == plain.makespan_s
    assert check_top(kind(3)) is None
    assert check_samples(kind(64)) == 64
    assert read_gpus(kind(8)) == read_gpus([kind(8)]) == (8,)
    job = pj.load_job(BASE, overrides={"parallelism.pp": kind(2), "cluster.nodes": kind(2)})
    assert job == pj.load_job(BASE, overrides={"parallelism.pp": 2, "cluster.nodes": 2})
    assert pj.collective_time("all_reduce", 1 << 20, 8, device="h100", stride=kind(1)) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_numbers(kind):
    assert read_tokens(kind(100)) == 100.0
    assert positive(kind(3), "deadline_days") == 3.0
    assert check_factor("factor", kind(2), 4.0) == 2.0
    plain = pj.gemm_time(512, 512, 64, device="h100", clock_mhz=200.0)
    given = pj.gemm_time(512, kind(128) * 4 if kind is not np.uint8 else 512, 64, device="h100",
                         clock_mhz=kind(200))  # fmt: skip
    assert given == plain


def test_a_space_of_numpy_is_the_same_space():
    plain = pj.load_space({
        "base": BASE,
        "axes": {
            "parallelism.tp": [1, 2],
            "training.global_batch_size": {"range": [64, 128, 32]},
            "cluster.device.hbm_gib": {"scale": [1.0, 0.5]},
            "parallelism.pp, cluster.nodes": [[1, 1], [2, 2]],
        },
    })  # fmt: skip
    base = {**BASE, "training": {**BASE["training"], "micro_batch_size": np.int64(1)}}
    given = pj.load_space({
        "base": base,
        "axes": {
            "parallelism.tp": np.array([1, 2]),
            "training.global_batch_size": {"range": [np.int64(64), np.int32(128), np.uint8(32)]},
            "cluster.device.hbm_gib": {"scale": np.array([1.0, 0.5], np.float32)},
            "parallelism.pp, cluster.nodes": [np.array([1, 1]), (np.int64(2), np.int16(2))],
        },
    })  # fmt: skip
    assert given.digest == plain.digest
    assert pj.sweep(given, workers=np.int64(1)).to_arrow().equals(pj.sweep(plain).to_arrow())


def test_switches_of_numpy_are_no_numbers():
    for wrong in (np.bool_(True), np.array(True), np.array([2, 3]), np.float64("nan")):
        with pytest.raises(pj.ProjectorError):
            positive(wrong, "deadline_days")
        with pytest.raises(pj.ProjectorError):
            check_top(wrong)
