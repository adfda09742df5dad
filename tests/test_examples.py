"""Every example job loads and projects, and those with published figures reproduce them."""

import math
from pathlib import Path

import pytest

import projector

EXAMPLES = Path(__file__).parents[1] / "examples"
JOBS = [
    path
    for path in sorted(EXAMPLES.glob("*.yaml")) + sorted(EXAMPLES.glob("primus/**/*.yaml"))
    if not path.name.startswith("space_")
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
    assert not result.provenance.warnings or "primus" in path.parts


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_only_the_memory_sample_does_not_fit(path):
    if not path.name.startswith("space_"):
        fits = projector.project_memory(path).fits
        assert fits == (path.stem != "mixtral_8x22b_seed_sample")


def test_documented_figures_of_the_memory_sample():
    documented = projector.project_memory(EXAMPLES / "mixtral_8x22b_seed_sample.yaml").documented
    assert documented.parameters_total == 140_845_350_912
    assert documented.parameters_per_rank == 6_078_750_720
    assert round(documented.param_optimizer_gib, 2) == 79.26
    assert round(documented.activation_gib, 2) == 503.56
    assert round(documented.total_gib, 2) == 582.82
