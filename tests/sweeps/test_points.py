"""Points read in columns are the jobs that they describe one by one."""

from types import SimpleNamespace

import numpy as np
import pytest

from lower.watched import READ, watched
from projector.config.load import Variants, load_job
from projector.errors import ProjectorError
from projector.sweeps import computed, lookups
from projector.sweeps.jobs import READ_OF_DEVICE, JobReader
from projector.sweeps.rows import reason_of
from projector.sweeps.table import load_space
from sweeps.grid import BASE, excluded

SPACES = {
    "a model and its own fields": {
        "axes": {
            "model": ["llama3.2_1b", "llama3.1_8b", "no_such_model"],
            "model.num_layers": [8, 16],
            "parallelism.pp": [1, 2],
        },
        "constraints": ["num_layers // pp >= 4", "hidden_size > 0"],
    },
    "a device, its fields and its network": {
        "axes": {
            "cluster.device": ["h100", "mi355x"],
            "cluster.device.hbm_gib": [80.0, -1.0],
            "cluster.network.nic_gbit_per_s": [100.0, 400.0],
            "cluster.nodes": [1, 2],
        },
        "constraints": ["hbm_gib * nodes < 170"],
    },
    "fields of a device that must go together": {
        "axes": {
            "cluster.device": ["h100", "mi355x"],
            "cluster.device.scale_up_gb_per_s": [100.0, 900.0],
            "cluster.device.scale_up_peer_gb_per_s": [100.0, 900.0],
            "cluster.device.matrix_flop_per_clk_per_cu.bf16": [1024, 4096],
            "cluster.device.peak_clock_mhz": [100.0, 2400.0],
            "cluster.gpu_clock_mhz": [90.0, 2000.0],
        },
    },
    "a device of another family, and its network": {
        "axes": {
            "cluster.device.architecture": ["cdna3", "nobody's"],
            "cluster.device.gemm_efficiency": [{"bf16": 0.5}, None],
            "cluster.device.compute_units": [{"value": 64, "source": "a guess"}, 128, True],
            "cluster.network.nic_gbit_per_s": [100.0, 400.0, -1.0],
            "cluster.network.transport": ["", "roce", "nothing"],
        },
    },
    "texts where numbers belong, and numbers that nobody reads": {
        "axes": {
            "parallelism.tp": [1, 2, 4],
            "cluster.nodes": [1, 2, 0],
            "training.seq_length": [1024, 2048, 4096],
        },
        "constraints": ["1 or microbatches", "nodes < 2 or precision < 3"],
    },
    "a whole cluster and its device": {
        "axes": {
            "cluster": [{"device": "h100", "nodes": 2}, {"device": "mi300x", "nodes": 4}],
            "cluster.device.hbm_gib": [64.0, 80.0],
            "cluster.network": ["h100", {"nic_gbit_per_s": 100.0}],
            "cluster.network.nic_gbit_per_s": [200.0, 400.0],
        },
    },
    "devices with frameworks": {
        "axes": {
            "training.framework": ["nemo", "torchtitan"],
            "cluster.device": ["h100", "b200"],
            "cluster.device.hbm_gib": [64.0, 80.0],
            "cluster.device.compute_units": [64, 128],
        },
    },
    "fields computed from computed ones": {
        "axes": {
            "parallelism.tp": [1, 2, 4],
            "cluster.nodes": [1, 2],
            "training.micro_batch_size": {"expression": "8 // tp"},
            "training.global_batch_size": {"expression": "16 * dp * micro_batch_size // (tp - 2)"},
        },
        "constraints": ["microbatches == 16 or tp == 4"],
    },
    "whole sections, and numbers that follow from them": {
        "axes": {
            "parallelism": [{"tp": 2}, {"tp": 4, "pp": 2}],
            "cluster": [{"device": "h100", "nodes": 2}, {"device": "mi300x", "nodes": 4}],
            "training.global_batch_size": {"expression": "gpus * 4"},
        },
        "constraints": ["dp >= 4", "microbatches % 1 == 0"],
    },
    "frameworks, which bring defaults along": {
        "axes": {
            "training.framework": [None, "torchtitan", {"name": "llm_foundry", "release": "0.4"}],
            "cluster.device": ["h100", "b200"],
            "parallelism.fsdp": [1, 2],
        },
        "constraints": ["fsdp_backward_prefetch >= 1 or fsdp == 1"],
    },
    "releases that do not exist, and whole sections": {
        "axes": {
            "cluster": [{"device": "h100", "nodes": 2}, {"device": "b200", "nodes": 2}],
            "training.framework": ["nemo", {"name": "nemo", "release": "24.05"}, "nemoo"],
        },
        "constraints": ["gradient_accumulation_fusion"],
    },
    "what follows from nothing": {
        "axes": {"parallelism.tp": [0, 1], "cluster.nodes": ["2", 1], "name": ["a"]},
        "constraints": ["dp >= 1", "microbatches >= 1"],
    },
    "a constraint that nobody can compute": {
        "axes": {"parallelism.tp": [1, 2]},
        "constraints": ["etp > 1"],
    },
    "fields that change together, and one that changes nothing": {
        "axes": {
            "name": ["a", "b"],
            "parallelism.tp, training.seq_length": [[1, 2048], [2, 4096]],
            "training.optimizer.moment_dtype": ["fp32", "bf16", "fp7"],
            "training.recompute": ["none", {"granularity": "selective", "modules": ["mlp"]}],
        },
    },
}


@pytest.fixture(params=SPACES)
def space(request):
    return load_space({"base": BASE, **SPACES[request.param]})


def expected(space):
    """Return the jobs of all points, and how many are left out for each reason."""
    jobs, reasons = {}, {}
    for point in range(space.size):
        try:
            overrides = space.overrides(point)
            broken = excluded(space, overrides)
            if broken is None:
                jobs[point] = (load_job(space.base, overrides), overrides)
                continue
            reason = f"constraint: {broken}"
        except ProjectorError as error:
            reason = reason_of(error)
        reasons[reason] = reasons.get(reason, 0) + 1
    return jobs, reasons


def read(reader, points):
    batch = reader.read(np.array(points))
    found = SimpleNamespace(**batch._asdict(), jobs=reader.jobs(batch))
    reasons = {}
    for why, count in found.left_out:
        reason = why if isinstance(why, str) else reason_of(why)
        reasons[reason] = reasons.get(reason, 0) + count
    return found, reasons


def sections(job):
    return job.model, job.parallelism, job.training, job.cluster


def test_points_are_jobs(space):
    jobs, reasons = expected(space)
    found, left_out = read(JobReader(space), range(space.size))
    assert found.rows.tolist() == list(jobs)
    assert left_out == reasons
    for row, (job, overrides) in enumerate(jobs.values()):
        assert sections(found.jobs.job(row)) == sections(job)
        for field, (place, values) in found.columns.items():
            assert values[place[row]] == overrides[field]


@pytest.mark.rotated
def test_a_point_does_not_depend_on_the_others(space):
    jobs, _ = expected(space)
    reader, mixed = JobReader(space), np.random.default_rng(1).permutation(space.size)
    for some in np.array_split(mixed, 5):
        found, _ = read(reader, some)
        assert [int(some[row]) for row in found.rows] == [p for p in some.tolist() if p in jobs]
        for row, place in enumerate(found.rows.tolist()):
            assert sections(found.jobs.job(row)) == sections(jobs[int(some[place])][0])


LIMITS = {
    "DENSE_TABLE": lookups,
    "MOST_VALUES": lookups,
    "MOST_INNER": lookups,
    "LONGEST_INNER": lookups,
    "MOST_AT_ONCE": lookups,
    "FEW": computed,
}


@pytest.mark.rotated
@pytest.mark.parametrize("limit", LIMITS)
def test_large_spaces_are_read_the_same(limit, space, monkeypatch):
    jobs, reasons = expected(space)
    monkeypatch.setattr(LIMITS[limit], limit, 1)
    reader = JobReader(space)
    for _ in range(2):
        found, left_out = read(reader, range(space.size))
        assert found.rows.tolist() == list(jobs)
        assert left_out == reasons
        for row, (job, _overrides) in enumerate(jobs.values()):
            assert sections(found.jobs.job(row)) == sections(job)


def test_clusters_of_one_device_share_it():
    space = load_space({"base": BASE, **SPACES["a device, its fields and its network"]})
    found, _ = read(JobReader(space), range(space.size))
    clusters = [found.jobs.job(row).cluster for row in range(len(found.rows))]
    assert len({id(cluster.device) for cluster in clusters}) < len({*map(id, clusters)})


@pytest.mark.parametrize("name", ["h100", "mi355x"])
def test_a_cluster_is_read_from_those_fields_of_its_device_that_it_is_shared_by(name):
    training = {**BASE["training"], "framework": "megatron_lm"}
    variants = Variants(load_job({**BASE, "training": training}))
    stated = {"cluster.device": watched(name), "cluster.gpu_clock_mhz": 900.0}
    for more in ({}, {"cluster.nodes": 2, "cluster.network.nic_gbit_per_s": 100.0}):
        variants.section("cluster", {**stated, **more})
    assert {*READ_OF_DEVICE} == READ


def test_another_device_brings_its_network_along():
    mapping = {**BASE, "cluster": {"device": "h100", "nodes": 2}}
    space = load_space({"base": mapping, "axes": {"cluster.device": ["gb200", "mi300x"]}})
    found, _ = read(JobReader(space), range(space.size))
    for row, device in enumerate(("gb200", "mi300x")):
        alone = load_job(mapping, {"cluster.device": device})
        assert found.jobs.job(row).cluster == alone.cluster
        assert load_job(load_job(mapping), {"cluster.device": device}).cluster == alone.cluster
    # What was stated stays.
    stated = {**BASE, "cluster": {"device": "h100", "network": {"nic_gbit_per_s": 100.0}}}
    job = load_job(load_job(stated), {"cluster.device": "mi300x"})
    assert job.cluster.network.nic_gbit_per_s == 100.0
