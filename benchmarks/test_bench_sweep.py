"""Sweeps and searches: full projections with memory, collectives, replay and Parquet, one core."""

import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from projector import search
from projector.sweeps.rows import Projector, Sweeper
from projector.sweeps.store import chunk_points, writer_options
from projector.sweeps.table import axis_kinds, load_space

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.rotated
@pytest.mark.parametrize("name", ["llama70b", "schedules", "hardware_matrix"])
def test_sweep_a_chunk(benchmark, name):
    """A chunk in the middle of an example space, its operations costed before."""
    space = load_space(EXAMPLES / f"space_{name}.yaml")
    points = chunk_points(space)
    sweeper = Sweeper(space, axis_kinds(space), points)
    middle = space.size // points // 2
    rows = sweeper.part(middle).totals.rows
    part = benchmark.pedantic(sweeper.part, (middle,), rounds=5)
    assert part.totals.rows == rows > 0
    if benchmark.stats is not None:
        benchmark.extra_info["rows_per_s"] = rows / benchmark.stats.stats.min


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["llama70b", "schedules", "hardware_matrix"])
def test_sweep_over_writing(benchmark, name, tmp_path):
    """A chunk, from its points to its bytes, against pyarrow writing its finished rows.

    Both in processor time, by turns; rows are written as sweeps write them, and as pyarrow does
    when nobody asks for anything.
    """
    space = load_space(EXAMPLES / f"space_{name}.yaml")
    points = chunk_points(space)
    sweeper = Sweeper(space, axis_kinds(space), points)
    middle = space.size // points // 2
    part = sweeper.part(middle)
    chunk = np.arange(middle * points, min((middle + 1) * points, space.size))
    table = Projector(space, axis_kinds(space)).project(chunk).table
    path = tmp_path / "rows.parquet"
    tasks = {
        "sweep": lambda: sweeper.part(middle),
        "write": lambda: pq.write_table(table, path, **writer_options(table.schema)),
        "write_by_default": lambda: pq.write_table(table, path),
    }
    cpu_s: dict[str, list[float]] = {name: [] for name in tasks}

    def by_turns():
        for task, run in tasks.items():
            begun = time.process_time()
            run()
            cpu_s[task].append(time.process_time() - begun)

    benchmark.pedantic(by_turns, rounds=7, warmup_rounds=1)
    assert part.totals.rows == len(table) > 0
    least_s = {task: min(seconds) for task, seconds in cpu_s.items()}
    for task, seconds in least_s.items():
        benchmark.extra_info[f"{task}_us_per_row"] = seconds / len(table) * 1e6
    benchmark.extra_info["sweep_over_write"] = least_s["sweep"] / least_s["write"]


@pytest.mark.parametrize(
    ("name", "nodes"), [("llama3.1_405b_h100", 256), ("deepseek_v3_h800", 256)]
)
def test_search(benchmark, name, nodes):
    """Every legal configuration on 2,048 devices."""
    job = EXAMPLES / f"{name}.yaml"
    found = benchmark.pedantic(search, (job,), {"nodes": nodes}, rounds=2, warmup_rounds=1)
    benchmark.extra_info["configurations"] = found.evaluated
    assert found.evaluated > 1000
