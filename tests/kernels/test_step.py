import pytest
from hypothesis import given

from kernels.endings import ending, run_ends
from projector.kernels.step import (
    BREAKDOWN_TERMS,
    PEAK,
    PEAK_RANK,
    STEP,
)
from reference import step as reference


@given(ending())
def test_the_end_of_a_step_matches_reference(case):
    outputs = run_ends(case)
    (number,), (rank,) = outputs
    times_s, breakdown_s, ends = reference.end_step(*case[:9])
    assert number[:BREAKDOWN_TERMS] == pytest.approx(breakdown_s, rel=1e-9, abs=1e-12)
    assert number[STEP:PEAK] == pytest.approx(times_s, rel=1e-9, abs=1e-12)
    if len({*number[STEP:PEAK].tolist()}) > 1:
        assert rank[:PEAK_RANK].tolist() == list(ends)


@given(ending())
def test_the_fullest_rank_is_the_first_with_the_most(case):
    (number,), (rank,) = run_ends(case)
    expected = [static + kept for static, kept in case[9]]
    assert number[PEAK] == max(expected)
    assert rank[PEAK_RANK] == expected.index(max(expected))


@given(ending())
def test_ends_of_several_steps_are_what_each_is_alone(case):
    alone, together = run_ends(case), run_ends(case, case, case)
    for one, many in zip(alone, together, strict=True):
        assert (many == one).all()


@given(ending())
def test_replays_are_shared_and_rows_written_where_they_belong(case):
    alone = run_ends(case)
    together = run_ends(case, case, rows=(2, 0), run=(1, 1))
    for one, many in zip(alone, together, strict=True):
        assert (many[[2, 0]] == one).all()
