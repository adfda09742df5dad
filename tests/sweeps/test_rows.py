"""Rows are what the projections of the same jobs say."""

import contextlib
import gc
import random

import numpy as np
import pyarrow as pa
import pytest

from projector import project_memory, project_performance
from projector.config.load import load_job
from projector.errors import ConfigError, ProjectorError, ScheduleError
from projector.projection import evaluate as evaluation
from projector.projection.results import RESULTS, Results
from projector.schedule import registry
from projector.sweeps.engine import sweep
from projector.sweeps.result import codes
from projector.sweeps.rows import Projector, reason_of
from projector.sweeps.table import axis_kinds, cell
from sweeps.grid import AXES, every, excluded, grid

WIDE = {
    "parallelism.tp": [1, 2, 8],
    "parallelism.pp": [1, 2, 4],
    "parallelism.vpp": [1, 2],
    "training.schedule": ["auto", "gpipe", "zerobubble"],
    "training.precision": ["bf16", "fp8"],
    "parallelism.ep": [1, 4],
    "parallelism.etp": [None, 1],
    "training.global_batch_size": [64, 4096],
    "training.activation_offload_fraction": [0, 0.5],
}
SECTIONS = ("parallelism", "breakdown_ms", "documented")


def projected(space, points):
    return Projector(space, axis_kinds(space)).project(np.array(points))


def flat(result):
    """Return the scalars of both objects under the names of the columns."""
    found = {}
    for source in (result, result.memory):
        for name, value in source.to_dict().items():
            if name in SECTIONS:
                found |= {f"{name}.{key}": item for key, item in value.items()}
            else:
                found[name] = value
    skipped = ("schema_version", "version")
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, bool | int | float | str) and name not in skipped
    }


def test_rows_equal_projections_bit_for_bit():
    space = grid(WIDE, model="mixtral_8x7b", **{"cluster.nodes": 2})
    chosen = sorted(random.Random(3).sample(range(space.size), 150))
    batch = projected(space, chosen)
    found_rows = batch.table.to_pylist()
    row = 0
    for point in chosen:
        overrides = space.overrides(point)
        try:
            expected = project_performance(load_job(space.base, overrides))
        except ProjectorError:
            continue
        found = found_rows[row]
        assert found.pop("status") == ("ok" if expected.memory.fits else "does_not_fit")
        scalars = flat(expected)
        assert {name: found[name] for name in scalars} == scalars
        assert found["peak_gib"] == project_memory(expected.job).to_dict()["peak_gib"]
        axes = {name: value for name, value in overrides.items() if name not in RESULTS}
        assert {name: found[name] for name in axes} == axes
        assert found.keys() == scalars.keys() | axes.keys()
        row += 1
    assert 20 < row == batch.rows < 150
    assert row + sum(batch.infeasible.values()) == batch.points == 150


def test_a_schedule_brings_its_chunks_along():
    schedules = ["auto", "interleaved", "zerobubble", "zbv-formatted", "no schedule"]
    space = grid({"parallelism.pp": [1, 2, 4], "training.schedule": schedules})
    batch = projected(space, [*range(space.size)])
    expected = []
    for overrides in every(space):
        with contextlib.suppress(ProjectorError):
            expected.append(flat(project_performance(load_job(space.base, overrides))))
    assert {row["parallelism.vpp"] for row in expected} == {1, 2}
    assert [
        {name: row[name] for name in expected[0]} for row in batch.table.to_pylist()
    ] == expected


def test_kinds_of_columns():
    space = grid(
        {
            "training.global_batch_size": [64, 128],
            "training.activation_offload_fraction": [0, 0.5],
            "training.recompute": ["none", {"granularity": "full", "num_layers": 1}],
            "training.cuda_graphs": [True, False],
            "parallelism.etp": [None],
        }
    )
    table = sweep(space).to_arrow()
    types = {name: str(table.schema.field(name).type) for name in space.fields}
    assert list(types.values()) == ["int64", "double", "string", "bool", "int64"]
    assert set(table.column("training.recompute").to_pylist()) == {
        "none",
        '{"granularity": "full", "num_layers": 1}',
    }
    assert table.column_names[: len(space.fields)] == list(space.fields)
    assert str(table.schema.field("fits").type) == "bool"
    assert "string" in str(table.schema.field("verdict").type)
    assert str(table.schema.field("peak_gib_high").type) == "double"
    assert len(set(table.column_names)) == len(table.column_names)


def test_an_axis_without_values_is_null():
    space = grid({"parallelism.etp": [None]})
    assert axis_kinds(space) == {"parallelism.etp": "text"}
    assert cell("x", "text", None) is None
    assert cell("x", "float", 1) == 1.0
    with pytest.raises(ConfigError, match="differs in kind"):
        cell("x", "int", 0.5)


def test_illegal_points_are_counted_by_reason():
    space = grid(most=4)
    result = sweep(space)
    legal, reasons = 0, {}
    for overrides in every(space):
        broken = excluded(space, overrides)
        if broken:
            reason = f"constraint: {broken}"
        else:
            try:
                project_performance(load_job(space.base, overrides))
            except ProjectorError as error:
                reason = reason_of(error)
            else:
                legal += 1
                continue
        reasons[reason] = reasons.get(reason, 0) + 1
    assert result.rows == legal > 0
    assert result.infeasible == reasons
    assert "constraint: parallelism.tp * parallelism.pp <= 4" in reasons
    assert "parallelism.tp: tp (N) does not divide num_attention_heads (N)" in reasons
    assert list(reasons.values()) != sorted(reasons.values())
    counts = list(result.infeasible.values())
    assert counts == sorted(counts, reverse=True)
    assert result.evaluated == space.size == result.rows + sum(counts)


def test_what_a_chunk_took_is_free_at_its_end():
    space = grid(WIDE)
    projector = Projector(space, axis_kinds(space))
    projector.project(np.arange(space.size))
    gc.disable()
    gc.freeze()  # what was there before, such as that of earlier tests
    try:
        batch = projector.project(np.arange(space.size))
        assert any("vpp" in reason for reason in batch.infeasible)
        assert gc.collect() == 0
    finally:
        gc.unfreeze()
        gc.enable()


def test_one_illegal_job_costs_its_batch_little(monkeypatch):
    """What only the projection itself refuses is found by halving."""
    space = grid()
    expected = projected(space, range(48))
    calls = 0
    evaluate = evaluation.evaluate_legal

    def counted(batch, legal, known, threads):
        nonlocal calls
        calls += 1
        nodes = legal.families.batch.cluster.nodes
        if np.any((legal.columns.pp == 2) & (nodes == 2)):
            msg = "cannot be computed"
            raise ProjectorError(msg, key="parallelism.pp")
        return evaluate(batch, legal, known, threads=threads)

    monkeypatch.setattr(evaluation, "evaluate_legal", counted)
    batch = projected(space, range(48))
    refused = batch.infeasible.pop("parallelism.pp: cannot be computed")
    assert batch.infeasible == expected.infeasible
    assert batch.rows == expected.rows - refused
    assert calls < 2 * expected.rows
    times = set(expected.table["iteration_time_ms"].to_pylist())
    assert set(batch.table["iteration_time_ms"].to_pylist()) < times


def test_jobs_without_an_order_leave_the_others(monkeypatch):
    space = grid({"training.schedule": ["1f1b", "seaailab"], "parallelism.pp": [2, 4]})
    build = registry.build

    def refusing(name, *arguments):
        if name == "seaailab" and arguments[0] == 4:
            raise ScheduleError("no room for 1 microbatch", key="schedule")
        return build(name, *arguments)

    monkeypatch.setattr(registry, "build", refusing)
    batch = projected(space, range(4))
    assert batch.infeasible == {"schedule: no room for N microbatch": 1}
    assert batch.table["schedule"].to_pylist() == ["1f1b", "1f1b", "seaailab"]


@pytest.mark.parametrize(
    ("key", "message", "reason"),
    [
        ("a.b", "a.b: 12 is no divisor of 1,024; nearest: 8", "a.b: N is no divisor of N"),
        ("pp", "schedule 1f1b needs 2.5e3 or -4", "pp: schedule 1f1b needs N or N"),
        ("x", "x: 1 of [1, 2, 4, 8]", "x: N of [N, ...]"),
        ("", "llama3.1_8b on 8x mi355x", "llama3.1_8b on 8x mi355x"),
    ],
)
def test_reasons_leave_numbers_out(key, message, reason):
    assert reason_of(ProjectorError(message, key=key)) == reason


def test_a_long_reason_is_cut():
    assert len(reason_of(ProjectorError("x" * 500))) == 200


def test_missing_is_null_and_never_nan(monkeypatch):
    columns = Results.columns

    def without(found):
        return columns(found) | {"hfu": np.full(len(found.evaluation.batch), np.nan)}

    monkeypatch.setattr(Results, "columns", without)
    table = sweep(grid({"parallelism.tp": [1, 2]}), workers=1).to_arrow()
    assert table.column("hfu").null_count == len(table) == 2


def test_a_number_beyond_the_models_costs_only_its_point():
    axes = {"cluster.network.nic_gbit_per_s": [5e-324, 400.0], "cluster.nodes": [2]}
    result = sweep(grid(axes), workers=1)
    assert result.rows == 1
    assert sum(result.infeasible.values()) == 1


def test_axes_of_the_default_grid_are_legal_fields():
    assert set(AXES) == set(grid().fields)


def test_missing_texts_have_a_code_however_they_are_stored():
    texts = ["fits", None, "at_risk", "fits"]
    for column in (pa.array(texts), pa.array(texts).dictionary_encode()):
        numbers, names = codes(pa.table({"verdict": column}), "verdict")
        assert [names[number] for number in numbers] == texts
