"""What a trace does not tell is said in one sentence each."""

from dataclasses import replace

import pytest

from projector.trace.analysis import caveats
from projector.trace.events import Events, Problem, RankTrace, Trace
from synthetic import activities, compute

RANK = RankTrace(
    path="a.json", format="kineto", rank=0, world_size=8, zero_ns=0, names=(), events=Events.empty()
)
WHOLE = Trace(ranks=(replace(RANK, world_size=1),))
LAUNCHED = {"launch": 0, "iteration": 3}


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (activities(), "no kernels, no copies and no operators"),
        (activities(compute(0, 1, iteration=1), on_host=True), "operators of the host"),
        (activities(compute(0, 1, launch=0)), "no annotated iterations"),
        (activities(compute(0, 1), compute(2, 3, **LAUNCHED)), "1 of 2 activities lie outside"),
        (
            activities(compute(0, 1, iteration=3), compute(2, 3, **LAUNCHED)),
            "1 of 2 kernels that compute have no launch",
        ),
    ],
)
def test_what_is_missing_is_said(table, text):
    (found,) = caveats(WHOLE, table)
    assert text in found


def test_ranks_and_problems():
    table = activities(compute(2, 3, **LAUNCHED))
    assert caveats(WHOLE, table) == []
    one = Trace(ranks=(RANK,))
    (found,) = caveats(one, table)
    assert "1 of 8 ranks (rank 0)" in found
    assert caveats(one, table, chosen_ranks=True) == []
    many = Trace(ranks=tuple(replace(RANK, rank=n, world_size=64) for n in range(12)))
    (found,) = caveats(many, table)
    assert "12 of 64 ranks (ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 ...)" in found
    problems = (Problem("a.json", "byte 7", "cut short"), Problem("a.json", "", "odd"))
    broken = Trace(ranks=(replace(RANK, world_size=1, problems=problems),))
    assert caveats(broken, table) == ["a.json at byte 7: cut short", "a.json: odd"]
