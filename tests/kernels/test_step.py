import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.endings import ended, ending, later_runs, run_ends
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


def later(case, ps):
    """Return a case that ends later."""
    ranks = [
        (start, end + ps, [each + ps for each in last], alone, alone_end + ps, busy)
        for start, end, last, alone, alone_end, busy in case[0]
    ]
    return ranks, *case[1:]


@given(ending(), st.lists(st.integers(0, 10**13), min_size=1, max_size=4))
def test_steps_that_end_later_are_what_each_is_alone(case, more_ps):
    # The last one twice: equal steps are ended once.
    more_ps = [*more_ps, more_ps[-1]]
    together = ended(later_runs(case, more_ps))
    for row, ps in enumerate(more_ps):
        for one, many in zip(run_ends(later(case, ps)), together, strict=True):
            assert (many[row] == one[0]).all()
