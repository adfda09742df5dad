"""Sweeps and searches: full projections with memory, collectives, replay and Parquet, one core."""

from pathlib import Path

import pytest

from projector import search
from projector.sweeps.rows import Sweeper
from projector.sweeps.space import axis_kinds, read_space
from projector.sweeps.store import chunk_points

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["llama70b", "schedules", "hardware_matrix"])
def test_sweep_a_chunk(benchmark, name):
    """A chunk in the middle of an example space, its operations costed before."""
    space = read_space(EXAMPLES / f"space_{name}.yaml")
    points = chunk_points(space)
    sweeper = Sweeper(space, axis_kinds(space), points)
    middle = space.size // points // 2
    rows = sweeper.part(middle).totals.rows
    part = benchmark.pedantic(sweeper.part, (middle,), rounds=5)
    assert part.totals.rows == rows > 0
    if benchmark.stats is not None:
        benchmark.extra_info["rows_per_s"] = rows / benchmark.stats.stats.min


@pytest.mark.parametrize(
    ("name", "nodes"), [("llama3.1_405b_h100", 256), ("deepseek_v3_h800", 256)]
)
def test_search(benchmark, name, nodes):
    """Every legal configuration on 2,048 devices."""
    job = EXAMPLES / f"{name}.yaml"
    found = benchmark.pedantic(search, (job,), {"nodes": nodes}, rounds=2, warmup_rounds=1)
    benchmark.extra_info["configurations"] = found.evaluated
    assert found.evaluated > 1000
