"""Settling, taking turns and quartiles on a clock that does not exist."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.measure.pace import (
    IN_A_ROW,
    MOST_RUNS,
    Settled,
    groups_within,
    take_turns,
    timing,
    warm_up,
)
from projector.measure.task import Pace


class Made:
    """A runner whose runs take what a list says, on a clock of its own; the last for ever."""

    def __init__(self, *seconds, clock=None):
        self.seconds, self.runs, self.clock = list(seconds), 0, clock or [0.0]
        self.samples = []

    def sample(self, runs):
        each = self.seconds[min(self.runs, len(self.seconds) - 1)]
        self.samples.append(runs)
        self.runs += runs
        self.clock[0] += each * runs
        return {"time": each}

    def now(self):
        return self.clock[0]


def test_it_settles_once_runs_agree():
    runner = Made(9.0, 5.0, 3.0, 2.0, 1.0, 1.01, 1.02)
    settled = warm_up(runner, Pace(warm_up_s=0.0, most_warm_up_s=100.0), runner.now)
    assert settled == Settled(1, settled=True)
    assert runner.runs == 4 + IN_A_ROW


def test_it_warms_up_for_as_long_as_asked():
    runner = Made(1.0)
    assert warm_up(runner, Pace(warm_up_s=7.5, most_warm_up_s=100.0), runner.now).settled
    assert runner.clock[0] >= 7.5


def test_what_never_settles_counts_after_a_while_and_says_so():
    runner = Made(*(1.0 + number % 2 for number in range(100)))
    settled = warm_up(runner, Pace(warm_up_s=0.0, most_warm_up_s=10.0), runner.now)
    assert not settled.settled
    assert 10.0 <= runner.clock[0] <= 13.0


@pytest.mark.parametrize(("seconds", "runs"), [(1.0, 1), (0.001, 2), (1e-4, 20), (1e-9, MOST_RUNS)])
def test_short_runs_are_repeated_within_a_sample(seconds, runs):
    runner = Made(seconds)
    settled = warm_up(runner, Pace(warm_up_s=0.0, most_warm_up_s=1.0), runner.now)
    assert settled.runs == runs


def test_ranks_run_equally_often():
    # The other rank is ten times as slow: what it says decides.
    asked = []

    def agree(value):
        asked.append(value)
        return 10.0 * value

    runner = Made(1e-4)
    settled = warm_up(runner, Pace(warm_up_s=0.0, most_warm_up_s=1.0), runner.now, agree)
    assert settled.runs == 2
    assert asked


def test_runners_take_turns_in_rounds():
    clock = [0.0]
    order = []
    slow, fast = Made(2.0, clock=clock), Made(0.5, clock=clock)
    samples = take_turns(
        [slow, fast], [Settled(1, settled=True), Settled(4, settled=False)], Pace(repeats=3),
        slow.now, lambda turn, number: order.append((turn, number)),
    )  # fmt: skip
    assert order == [(turn, number) for turn in range(3) for number in range(2)]
    # One more run that does not count comes before a sample of several.
    assert slow.samples == [1, 1, 1]
    assert fast.samples == [1, 4] * 3
    assert [len(each.seconds) for each in samples] == [3, 3]
    for (_, end), (start, _) in pairwise(samples[0].spans):
        assert start - end == pytest.approx(2.5)
    found = samples[1].timings(clock_mhz=1500.0)["time"]
    assert (found.median_s, found.repeats, found.settled, found.clock_mhz) == (0.5, 3, False, 1500)


@pytest.mark.parametrize(
    ("seconds", "turns"),
    [
        ([1.0], IN_A_ROW),
        ([0.001], 7),
        ([1.0, 2.0, 1.0, 1.02, 1.03], 5),
        ([1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0], 7),
    ],
)
def test_long_runs_that_agree_have_no_further_turns(seconds, turns):
    pace = Pace(repeats=7, settled=0.25, enough_s=0.1)
    clock = [0.0]
    runners = [Made(*seconds, clock=clock), Made(0.001, clock=clock)]
    samples = take_turns(runners, [Settled(1, settled=True)] * 2, pace, runners[0].now)
    assert [len(each.seconds) for each in samples] == [turns, 7]


@given(st.lists(st.floats(-1.0, 1e3), min_size=1, max_size=30))
def test_quartiles_are_in_order_and_within(seconds):
    found = timing(seconds)
    least, most = (max(0.0, limit(seconds)) for limit in (min, max))
    assert least <= found.low_s <= found.median_s <= found.high_s <= most
    assert found.repeats == len(seconds)


def test_an_outlier_moves_no_median():
    assert timing([1.0, 1.0, 1.0, 1.0, 50.0]).median_s == 1.0


@given(st.lists(st.floats(0.0, 10.0), max_size=20), st.floats(0.1, 20.0))
def test_groups_fit_the_budget_and_keep_the_order(sizes, budget):
    groups = groups_within(sizes, budget)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    for group in groups:
        assert len(group) == 1 or math.fsum(sizes[i] for i in group) <= budget * (1 + 1e-9)
