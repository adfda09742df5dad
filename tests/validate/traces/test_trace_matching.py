"""A run that does what the models expect is matched whole, however its layers are cut."""

import math
from functools import partial

import pytest
from runs_of_jobs import SMALL_LLAMA, apart, run_of

from projector.config.load import load_job
from projector.validate.traces.compare import compare_run
from projector.validate.traces.expected import expect


@pytest.fixture(scope="module")
def job():
    return load_job(SMALL_LLAMA)


@pytest.fixture(scope="module")
def expected(job):
    return expect(job)


@pytest.mark.parametrize("named", [True, False])
def test_a_run_as_expected_is_matched_whole(job, expected, named):
    found = compare_run(run_of(expected, named=named), job)
    assert found.only_first == ()
    assert found.only_second == ()
    assert found.matched_first == found.matched_second == 1.0
    for each in found.operations:
        assert each.slowdown == pytest.approx(1.0, rel=2e-3), each


def test_products_cut_apart_are_one_layer(job, expected):
    found = compare_run(run_of(expected, products=partial(apart, job=job)), job)
    assert found.matched_second == 1.0
    for each in found.operations:
        assert each.slowdown == pytest.approx(1.0, rel=2e-3), each
        for factor in each.factors:
            assert factor.value == pytest.approx(1.0, rel=2e-3), each


def test_a_known_factor_is_found(job, expected):
    slow = {"mlp.fc1": 1.5, "attention.core": 0.5}
    run = run_of(expected, slow=lambda row: slow.get(row.name.label, 1.0), iterations=2)
    found = compare_run(run, job)
    for each in found.operations:
        wanted = slow.get(each.operation, 1.0)
        assert each.slowdown == pytest.approx(wanted, rel=2e-3)
        assert math.prod(f.value for f in each.factors) == pytest.approx(each.slowdown, rel=1e-15)
    assert {each.operation for each in found.operations[:5]} == {"mlp.fc1", "attention.core"}


def test_more_microbatches_are_a_count(job, expected):
    found = compare_run(run_of(expected, microbatches=4), job)
    assert found.matched_second == 1.0
    for each in found.operations:
        if each.kind == "gemm":
            count = {factor.name: factor.value for factor in each.factors}["count"]
            assert count == pytest.approx(each.runs / each.expected_runs)
            assert each.because.name == "count"
