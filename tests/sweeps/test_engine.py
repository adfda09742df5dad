"""Sweeping: estimates, workers, and what a result can do."""

import itertools
import multiprocessing
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import projector as pj
from projector.config.space import Space
from projector.errors import ConfigError, ProjectorError, UnsupportedError
from projector.kernels import _interpreted
from projector.sweeps import engine, result, rows, workers
from projector.sweeps.engine import estimate, sweep
from projector.sweeps.journal import Totals
from projector.sweeps.result import SweepResult
from projector.sweeps.store import Part, encode
from projector.sweeps.table import axis_kinds, load_space
from sweeps.grid import AXES, BASE, grid


@pytest.fixture
def swept():
    return sweep(grid())


def test_the_public_name_is_the_function(swept):
    again = pj.sweep(grid(), workers=1)
    assert again.to_arrow().equals(swept.to_arrow())
    assert isinstance(again, pj.SweepResult)


def test_the_object_of_a_sweep(swept):
    found = swept.to_dict()
    assert found.keys() == {
        "schema_version", "version", "warnings", "rows", "does_not_fit", "at_risk",
        "evaluated", "infeasible", "not_best", "rate_per_s", "seconds", "output",
    }  # fmt: skip
    assert found["rows"] + sum(found["infeasible"].values()) == found["evaluated"] == 216
    assert found["rate_per_s"] == found["rows"] / found["seconds"]
    assert found["output"] is None
    assert "153 rows" in repr(swept)
    assert swept.columns == tuple(swept.to_arrow().column_names)


def test_columns_can_be_chosen(swept):
    table = swept.to_arrow(["mfu", "fits"])
    assert table.column_names == ["mfu", "fits"]
    with pytest.raises(ConfigError, match="there is no column 'mfuu'"):
        swept.to_arrow(["mfuu"])


def test_pandas_is_asked_for(swept, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match="pandas is not installed"):
        swept.to_pandas()


def front_of(rows, signs):
    """Return the rows that no other beats, by the definition."""
    values = [[sign * row[name] for name, sign in signs.items()] for row in rows]

    def beats(a, b):
        return all(x <= y for x, y in zip(a, b, strict=True)) and a != b

    kept = [i for i, own in enumerate(values) if not any(beats(other, own) for other in values)]
    return [rows[i] for i in sorted(kept, key=lambda i: (values[i], i))]


@pytest.mark.parametrize(
    ("objectives", "signs"),
    [
        (None, {"tokens_per_s_per_gpu": -1, "peak_gib": 1}),
        (["gpus"], {"gpus": 1}),
        (["mfu", "gpus", "peak_gib"], {"mfu": -1, "gpus": 1, "peak_gib": 1}),
        ({"gpus": "max", "iteration_time_ms": "min"}, {"gpus": -1, "iteration_time_ms": 1}),
    ],
)
def test_the_front_is_what_nothing_beats(objectives, signs, swept):
    found = swept.pareto() if objectives is None else swept.pareto(objectives)
    rows = [row for row in swept.to_arrow().to_pylist() if row["verdict"] == "fits"]
    assert found.to_pylist() == front_of(rows, signs)


def test_a_front_of_random_points(monkeypatch):
    monkeypatch.setattr(result, "SAMPLE", 8)
    rng = np.random.default_rng(5)
    for size, dimensions, most in itertools.product((0, 1, 2, 50), (1, 2, 3), (1, 6, 1000)):
        values = rng.integers(0, most, (size, dimensions)).astype(float)
        front = result._front(values.T)
        rows = [dict(enumerate(row)) | {"row": i} for i, row in enumerate(values.tolist())]
        expected = front_of(rows, dict.fromkeys(range(dimensions), 1))
        assert sorted(row["row"] for row in expected) == front.tolist()


def test_a_part_may_lack_values_where_another_has_all(swept):
    whole, schema = next(swept.tables()), swept.plan.schema()
    lacking = whole.set_column(
        schema.get_field_index("mfu"), "mfu", pa.nulls(len(whole), pa.float64())
    )
    parts = [
        Part(number, bytes(encode(table, schema)), Totals())
        for number, table in enumerate((whole, lacking))
    ]
    found = SweepResult(swept.plan, Totals(rows=2 * len(whole)), 0.0, 0, parts=parts)
    assert [row["mfu"] is None for row in found.best(2)] == [False, True]
    assert 0 < found.pareto()["mfu"].null_count < len(found.pareto())


@pytest.mark.parametrize("rows", [[3], [2, 3]])
def test_a_few_rows_do_not_keep_their_part_in_memory(rows, swept):
    table = next(swept.tables())
    few = next(swept.tables(rows=np.array(rows)))
    assert few.to_pylist() == [table.to_pylist()[row] for row in rows]
    assert few.get_total_buffer_size() <= 2 * len(rows) * table.nbytes / len(table)


def test_objectives_that_are_none(swept):
    for wrong, told in (
        (["nothing"], "no column"),
        (["bound"], "no numbers"),
        ([], "at least one"),
        ({"mfu": "up"}, "max or min"),
    ):
        with pytest.raises(ConfigError, match=told):
            swept.pareto(wrong)


def test_the_best_rows(swept, tmp_path):
    rows = [row for row in swept.to_arrow().to_pylist() if row["verdict"] == "fits"]
    expected = sorted(rows, key=lambda row: -row["tokens_per_s_per_gpu"])[:7]
    assert swept.best(7) == expected
    swept.write(tmp_path / "out")
    assert sweep(grid(), tmp_path / "out").best(7) == expected
    assert swept.best(0) == []


def test_the_best_rows_are_remembered_in_whichever_order_chunks_are_projected():
    # A name changes nothing, so rows are equal.
    space = grid({"parallelism.tp": [1, 2, 4], "name": [*map(str, range(60))]})
    found = sweep(space, workers=3)
    sweeper = rows.Sweeper(space, axis_kinds(space), 48)
    parts = [sweeper.part(chunk) for chunk in reversed(range(found.plan.chunks))]
    leaders = [row for part in reversed(parts) for row in part.leaders]
    assert len(leaders) < 60
    for count in range(result.LISTED + 1):
        read = replace(found, leaders=None).best(count)
        assert found.best(count) == replace(found, leaders=leaders).best(count) == read


def test_some_rows_are_read_alone(swept, tmp_path):
    rows = np.array([0, 47, 48, 150])
    swept.write(tmp_path / "out")
    for found in (swept, sweep(grid(), tmp_path / "out")):
        tables = [*found.tables(["mfu", "verdict"], rows)]
        assert 1 < len(tables) < 4
        wanted = found.to_arrow(["mfu", "verdict"]).take(rows)
        assert pa.concat_tables(tables).to_pylist() == wanted.to_pylist()


def test_what_does_not_fit_is_a_row_and_not_the_best():
    space = grid({"parallelism.tp": [1, 8]}, model="llama3.1_70b")
    found = sweep(space)
    assert (found.rows, found.does_not_fit) == (2, 2)
    assert found.to_arrow().column("status").to_pylist() == ["does_not_fit"] * 2
    assert found.best(3) == []
    assert len(found.pareto()) == 0
    assert len(found.pareto(fits=False)) > 0


def test_an_estimate_looks_at_a_sample():
    found = estimate(grid(), workers=1)
    assert (found.points, found.sampled, found.legal) == (216, 216, 153)
    assert 0.0 < found.seconds < 60.0
    assert sum(found.infeasible.values()) == 63


def test_an_estimate_counts_neither_compiling_nor_kernels_as_python(monkeypatch):
    clock, seen, limits = [0.0], set(), set()

    class Projector(rows.Projector):
        def project(self, points, **options):
            limits.add(_interpreted._limit_s.get())
            clock[0] += 1e-6 if len(points) in seen else 100.0
            seen.add(len(points))
            return super().project(points, **options)

    monkeypatch.setattr(engine, "Projector", Projector)
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    with _interpreted.interpreting():
        found = estimate(grid(), workers=1)
    assert found.sampled == 216
    assert found.seconds < 1e-3
    assert limits == {0.0}


def test_an_endless_space_is_refused(tmp_path, monkeypatch):
    many = {"range": [1, 10_000]}
    axes = {
        "training.global_batch_size": many,
        "training.seq_length": many,
        "cluster.nodes": many,
    }
    endless = load_space({"base": BASE, "axes": axes})
    monkeypatch.setattr(engine, "_SMALL_SAMPLE", 16)
    with pytest.raises(ConfigError, match=r"1,000,000,000,000 points, about .* with 2 workers"):
        sweep(endless, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()
    further = ("training.micro_batch_size", "cluster.gpus_per_node", "parallelism.tp")
    with pytest.raises(ConfigError, match="more than can be numbered"):
        load_space({"base": BASE, "axes": axes | dict.fromkeys(further, many)})


@pytest.mark.parametrize("number", [0, -1, 2.0, True, "2", 10_000])
def test_numbers_of_workers(number):
    with pytest.raises(ConfigError, match="workers"):
        sweep(grid(), workers=number)


def test_a_place_that_is_no_path():
    with pytest.raises(ConfigError, match="out is a folder"):
        sweep(grid(), 3)


@pytest.mark.thorough
@pytest.mark.usefixtures("at_once", "new_workers")
def test_a_worker_that_dies_is_one_error(tmp_path, monkeypatch):
    start, started = workers._Worker.start, []

    def watched(process):
        start(process)
        started.append(process)

    monkeypatch.setattr(workers._Worker, "start", watched)

    def murder(done, total, rows):
        if done > 50:
            for process in started:
                # What is on its way already arrives all the same.
                process.kill()

    space = grid({**AXES, "training.global_batch_size": list(range(64, 1024, 64))})
    for out in (tmp_path / "out", None):
        with pytest.raises(ProjectorError, match="was ended by signal 9") as caught:
            sweep(space, out, workers=2, progress=murder)
        assert caught.value.key == "workers"
        assert not any(process.is_alive() for process in started)


class Broken(Space):
    """A space with a mistake of our own, in processes that work beside this one."""

    def overrides_at(self, places, derived):
        if multiprocessing.parent_process() is not None:
            raise ZeroDivisionError
        return super().overrides_at(places, derived)


@pytest.mark.thorough
@pytest.mark.usefixtures("at_once")
def test_a_mistake_of_a_worker_is_told_with_its_place():
    space = Broken(grid().base, grid().axes, {}, [])
    with pytest.raises(RuntimeError, match="failed at chunk 0") as caught:
        sweep(space, workers=2)
    assert "ZeroDivisionError" in caught.value.__notes__[0]


def test_progress_counts_points(monkeypatch):
    seen = []
    found = sweep(grid(), progress=lambda *now: seen.append(now))
    done = [now[0] for now in seen]
    assert done == sorted(done)
    assert seen[-1] == (216, 216, found.rows)


def test_samples_are_the_same_every_time():
    from projector.sweeps.table import sample

    random.seed(1)
    first = sample(grid(), 10)
    random.seed(2)
    assert sample(grid(), 10) == first
    assert all(0 <= point < 216 for point in first)


@pytest.mark.thorough
def test_a_sweep_loads_no_more_than_it_uses(tmp_path):
    # Arrow would load pandas to ask whether a column is one of its; numba SciPy's algebra, which it
    # loads to compile: here, so that the process below finds its kernels compiled.
    sweep(grid(), workers=1)
    code = """
import sys
from projector.sweeps import store
from projector.sweeps.engine import sweep
from sweeps.grid import grid
store.CHUNK_POINTS = 4  # some have no rows
sweep(grid(), sys.argv[1], workers=1)
print(*sys.modules.keys() & {"pandas", "pyarrow.compute", "scipy.linalg"})
"""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert found.stdout.split() == []


def test_what_is_at_risk_is_ranked_on_request():
    sizes = [10.0 + 0.5 * number for number in range(60)]
    space = grid({"cluster.device.hbm_gib": sizes, "training.micro_batch_size": [1, 2, 4]})
    swept = sweep(space)
    rows = swept.to_arrow().to_pylist()
    risky = [row for row in rows if row["fits"] and row["verdict"] == "at_risk"]
    assert len(risky) == swept.at_risk > 0
    assert 0 < swept.does_not_fit < len(rows)
    assert swept.fit == sum(row["verdict"] == "fits" for row in rows)
    assert swept.rows == swept.fit + swept.at_risk + swept.does_not_fit
    allowed = sweep(space, allow_risk=True)
    assert allowed.to_arrow().to_pylist() == rows
    fitting = [row for row in rows if row["fits"]]
    assert allowed.best(7) == sorted(fitting, key=lambda row: -row["tokens_per_s_per_gpu"])[:7]
    signs = {"tokens_per_s_per_gpu": -1, "peak_gib": 1}
    assert allowed.pareto().to_pylist() == front_of(fitting, signs)
    for row in rows:
        low, peak, high = (row[name] for name in ("peak_gib_low", "peak_gib", "peak_gib_high"))
        assert low <= peak <= high
        usable = row["usable_gib"]
        expected = "fits" if high <= usable else "does_not_fit" if low > usable else "at_risk"
        assert row["verdict"] == expected
