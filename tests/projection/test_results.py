"""Terms and scalars follow from their tables, in the order and to the bit."""

import numpy as np
import pytest

from projector import project_performance
from projector.config.load import load_job
from projector.kernels import step as kernels
from projector.operations.table import CATEGORIES
from projector.projection.evaluate import evaluate
from projector.projection.results import (
    BOOL,
    FLOAT,
    INT,
    MEMORY_SCALARS,
    PERFORMANCE_SCALARS,
    SCALARS,
    Coded,
    Results,
    json_object,
)
from projector.projection.terms import BREAKDOWN, LIMITS, MEMORY_TERMS, STATIC_TERMS

JOB = {
    "model": "mixtral_8x7b",
    "parallelism": {"tp": 2, "pp": 2, "ep": 4, "zero_stage": 3},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}
DTYPES = {BOOL: np.bool_, INT: np.int64, FLOAT: np.float64}
TYPES = {BOOL: bool, INT: int, FLOAT: float}


@pytest.fixture(scope="module")
def results():
    jobs = [load_job(JOB), load_job(JOB, {"parallelism.tp": 1})]
    return Results(evaluate(jobs))


@pytest.fixture(scope="module")
def step():
    return project_performance(JOB)


def test_scalars_are_of_their_kind(results):
    columns = results.columns()
    assert list(columns) == [scalar.name for scalar in SCALARS]
    for scalar in SCALARS:
        column = columns[scalar.name]
        values = column.expanded() if isinstance(column, Coded) else column
        assert values.dtype.type is DTYPES.get(scalar.kind, np.str_)
        assert values.shape == (2,)
        for row in range(2):
            assert type(results.row(row)[scalar.name]) is TYPES.get(scalar.kind, str)


def test_a_projection_is_a_batch_of_one(results, step):
    assert step.scalars == results.row(0) != results.row(1)


def test_json_has_every_scalar_in_order(step):
    for result, table in (
        (step.to_dict(), PERFORMANCE_SCALARS),
        (step.memory.to_dict(), MEMORY_SCALARS),
    ):
        expected = json_object(step.scalars, table)
        assert [
            key for key in result if key in expected and key not in ("bound", "documented")
        ] == [key for key in expected if key not in ("bound", "documented")]
        for key, value in expected.items():
            if key == "documented":
                assert {name: result[key][name] for name in value} == value
            else:
                assert result[key] == value


def test_properties_are_the_scalars(step):
    memory = step.memory
    for result, names in (
        (step, "mfu hfu tflops_per_gpu tokens_per_s_per_gpu bubble_fraction bound schedule gpus"),
        (step, "microbatches busiest_stage"),
        (memory, "fits peak_stage schedule"),
    ):
        for name in names.split():
            assert getattr(result, name) == step.scalars[name]
    for name in ("peak", "usable", "headroom", "device_memory"):
        assert getattr(memory, f"{name}_bytes") == step.scalars[f"{name}_gib"] * 2**30
    assert memory.peak_bytes == memory.stages[memory.peak_stage].peak_bytes
    assert step.degrees == step.to_dict()["parallelism"]


def test_memory_terms_are_added_in_order(results, step):
    """Static terms first, as the kernel that looks for the fullest rank adds activations last."""
    assert [term.name for term in MEMORY_TERMS if term.scheduled] == ["activations"]
    heads = {term.name: term.head for term in MEMORY_TERMS}
    assert (heads["weights"], heads["optimizer"]) == ("weights", "optim")
    for stage in step.memory.stages:
        static = 0.0
        for term in STATIC_TERMS:
            static += term.of(stage)
        assert stage.static_bytes == static
        assert stage.peak_bytes == static + stage.activations_bytes
        assert list(stage.to_dict()) == [
            "stage", "parameters", *(term.key for term in MEMORY_TERMS), "peak_gib",
            "in_flight_microbatches",
        ]  # fmt: skip
    ranks = results.evaluation.inputs.replicas.ranks(0)
    static = results.evaluation.inputs.held.static[ranks]
    assert [stage.static_bytes for stage in step.memory.stages] == static.tolist()


def test_terms_of_a_step_are_those_of_the_kernel(results):
    assert BREAKDOWN[: kernels.CATEGORY_TERMS] == CATEGORIES
    assert BREAKDOWN[kernels.CATEGORY_TERMS :] == (
        "pp_bubble", "pp_comm", "dp_comm", "optimizer", "launch", "stragglers",
    )  # fmt: skip
    assert tuple(LIMITS) == BREAKDOWN
    assert results.steps.breakdown_s.shape == (2, len(BREAKDOWN))


def test_jobs_of_a_family_have_what_it_has(results):
    changes = [{"training.global_batch_size": size} for size in (32, 64, 32, 96)]
    loaded = [load_job(JOB, change) for change in changes]
    jobs = [loaded[0].model_copy(update={"training": job.training}) for job in loaded]
    together = Results(evaluate(jobs))
    columns = together.columns()
    assert len(together.family_batch) == 1
    for name in ("parallelism.tp", "nodes", "parameters_total", "reserve_gib", "microbatches"):
        assert isinstance(columns[name], Coded)
    for row, job in enumerate(jobs):
        assert together.row(row) == Results(evaluate([job])).row(0)
    assert together.row(0) == together.row(2) == results.row(0)
