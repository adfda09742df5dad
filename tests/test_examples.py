"""Every example job loads and projects, and those with published figures reproduce them."""

import math
from pathlib import Path

import numpy as np
import pytest

import projector
from projector.config.load import load_job
from projector.sweeps.serving import ServingSpace
from projector.sweeps.table import load_space
from sweeps.grid import excluded

EXAMPLES = Path(__file__).parents[1] / "examples"
JOBS = [
    path
    for path in sorted(EXAMPLES.glob("*.yaml")) + sorted(EXAMPLES.glob("megatron/**/*.yaml"))
    if not path.name.startswith(("space_", "serve_", "rl_"))
]

NODES = {"mixtral_8x22B_v0.1-BF16-pretrain.yaml": 4}
"""Nodes of files that leave them to their environment and need more than one."""


def test_the_examples_are_found():
    assert len(JOBS) >= 9


@pytest.mark.parametrize("path", JOBS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_example(path):
    result = projector.project_performance(path, target_nodes=NODES.get(path.name))
    memory = result.memory
    numbers = [
        result.iteration_time_s,
        result.tokens_per_s_per_gpu,
        result.mfu,
        memory.peak_bytes,
        memory.counts.parameters_total,
        *(stage.peak_bytes for stage in memory.stages),
    ]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert all(value >= 0 for value in result.breakdown_s.values())
    assert math.fsum(result.breakdown_s.values()) == pytest.approx(
        result.iteration_time_s, rel=1e-9
    )
    assert 0 < result.mfu <= result.hfu < 1
    assert result.job.parallelism.dp is None
    assert not result.provenance.warnings or "megatron" in path.parts


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_only_the_memory_sample_does_not_fit(path):
    if not path.name.startswith(("space_", "serve_", "rl_")):
        fits = projector.project_memory(path).fits
        assert fits == (path.stem != "mixtral_8x22b_seed_sample")


def test_the_serving_example():
    found = projector.project_serving(deployment=EXAMPLES / "serve_llama70b.yaml")
    assert found.fits
    assert found.capacity is not None
    assert found.capacity.replicas


def test_documented_figures_of_the_memory_sample():
    documented = projector.project_memory(EXAMPLES / "mixtral_8x22b_seed_sample.yaml").documented
    assert documented.parameters_total == 140_845_350_912
    assert documented.parameters_per_rank == 6_078_750_720
    assert round(documented.param_optimizer_gib, 2) == 79.26
    assert round(documented.activation_gib, 2) == 503.56
    assert round(documented.total_gib, 2) == 582.82


WITHOUT_PROMISES = {"load.ttft_ms": None, "load.tpot_ms": None}
SPACES = sorted(EXAMPLES.glob("space_*.yaml"))


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_points_of_an_example_space(path):
    space = load_space(path)
    points = np.random.default_rng(0).integers(0, space.size, 200).tolist()
    legal = [space.overrides(p) for p in points if excluded(space, space.overrides(p)) is None]
    assert len(legal) >= 60
    for overrides in legal[:3]:
        if isinstance(space, ServingSpace):
            assert projector.project_serving(
                deployment=space.base.data(overrides), overrides=WITHOUT_PROMISES
            ).gpus
        else:
            assert projector.project_performance(load_job(space.base, overrides)).mfu > 0


def test_the_large_space_has_millions_of_different_points():
    space = load_space(EXAMPLES / "space_llama70b.yaml")
    points = np.random.default_rng(1).integers(0, space.size, 3000).tolist()
    legal = sum(excluded(space, space.overrides(point)) is None for point in points)
    assert space.size * legal / len(points) > 5.4e6
    assert len({str(space.overrides(point)) for point in points}) == len(set(points))


def test_the_small_space_is_swept():
    result = projector.sweep(EXAMPLES / "space_llama8b_hardware.yaml", workers=1)
    assert (result.rows, result.evaluated) == (72, 81)
