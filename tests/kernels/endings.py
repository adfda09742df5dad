"""Ends of pipelines, as the kernel that ends steps takes them."""

import numpy as np
from hypothesis import strategies as st

from projector.kernels.memory import RankBytes
from projector.kernels.pipeline import Ends
from projector.kernels.results import RANKED, Rated, ResultColumns, end_steps
from projector.kernels.step import (
    CATEGORY_TERMS,
    REPLAY,
    ROW,
    StepOutputs,
    StepPatterns,
    StepRanks,
    StepReplicas,
    StepRuns,
    StepStages,
)

seconds = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
sizes = st.one_of(st.just(0.0), st.floats(1.0, 2.0**40))

STAGE = ("launch", "first", "last", "each", "tail", "reduce_after", "gather_after")
NOTHING = {"categories": [0.0] * CATEGORY_TERMS, **dict.fromkeys(STAGE, 0.0)}
"""A stage that takes no time."""


@st.composite
def ending(draw):
    """Draw the end of a pipeline and what follows it."""
    num_ranks, num_chunks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    ticks = st.integers(0, 10**13)
    ranks = []
    for _ in range(num_ranks):
        start, busy, idle, alone = (draw(ticks) for _ in range(4))
        busy += 1
        end = start + busy + idle
        last = [draw(st.integers(0, end)) for _ in range(num_chunks)]
        ranks.append((start, end, last, alone, alone + busy + draw(ticks), busy))
    count = num_ranks * num_chunks
    stages = [
        {
            "categories": [draw(seconds) for _ in range(6)],
            **{name: draw(seconds) for name in STAGE},
        }
        for _ in range(count)
    ]
    order = draw(st.permutations(range(count)))
    held = [order[r * num_chunks : (r + 1) * num_chunks] for r in range(num_ranks)]
    optimizer = [draw(seconds) for _ in range(num_ranks)]
    numbers = draw(seconds), draw(seconds), draw(st.integers(1, 9)), draw(st.booleans())
    numbers += (draw(st.floats(0.0, 0.2)),)
    numbers += ([(draw(sizes), draw(sizes)) for _ in range(num_ranks)],)
    return ranks, held, stages, optimizer, *numbers


def runs_of(*cases, rows=None, run=None):
    """Return cases of one shape as the kernel takes them, from replay ``run`` to ``rows``.

    Families stand the other way round, and so do the kinds of stages and ranks of each replica.
    """
    n, num_ranks, num_stages = len(cases), len(cases[0][0]), len(cases[0][2])
    # What no replica has stands first.
    stages = [NOTHING, *(stage for case in cases for stage in case[2])]
    kinds = [NOTHING, *(stage for case in cases for stage in case[2][::-1])]
    stage_first, rank_first = (1 + size * np.arange(n) for size in (num_stages, num_ranks))
    columns = [
        np.array([[rank[place] for rank in case[0]] for case in cases], np.int64)
        for place in range(6)
    ]
    start, end, last, alone_start, alone_end, busy = columns
    microbatches = np.array([case[6] for case in cases])
    each = np.full_like(busy, 7)
    work = np.stack([busy - 7 * (microbatches[:, None] - 1), each], axis=1)
    # Replays are kept the other way round, each but the first earlier than it is.
    turned, later = np.arange(n)[::-1].copy(), np.arange(n)
    # Nobody reads when ranks begin that wait for each other.
    begun = n if any(case[7] for case in cases) else 0
    ends = [
        Ends(
            turned,
            later,
            np.ascontiguousarray(begin[::-1][:begun]),
            *[np.ascontiguousarray(until[::-1])] * 2,
        )
        for begin, until in (
            (start, end - later[:, None]),
            (alone_start, alone_end - later[:, None]),
        )
    ]
    last_ps = np.ascontiguousarray((last - later[:, None, None])[::-1])
    rows, run = (np.arange(n) if each is None else np.array(each) for each in (rows, run))
    families = [[case[place] for case in cases[::-1]] for place in (7, 5, 8)]
    return StepRuns(
        np.arange(n + 1),
        np.stack([rows, run, np.arange(n), np.arange(n)[::-1], microbatches]),
        StepPatterns(
            np.array([0, 1, 1 + num_stages]),
            np.array([7, *range(num_stages)[::-1]]),
            np.array([0, 1, 1 + num_ranks]),
            np.array([7, *range(num_ranks)[::-1]]),
        ),
        StepReplicas(
            np.stack([np.ones(n, np.int64), *[stage_first] * 3, rank_first, np.arange(n)]),
            np.array([case[4] for case in cases]),
            work,
        ),
        np.array(families, np.float64),
        np.array(cases[0][1], np.int64),
        ends[0]._replace(last_backward_end_ps=last_ps),
        ends[1]._replace(last_backward_end_ps=last_ps[:0]),
        StepStages(
            np.array([stage["categories"] for stage in stages]),
            *(np.array([stage[name] for stage in stages]) for name in STAGE[:2]),
            *(np.array([kind[name] for kind in kinds]) for name in STAGE[2:]),
        ),
        StepRanks(
            np.array([0.0, *(update for case in cases for update in case[3][::-1])]),
            np.array([0.0, *(static for case in cases for static, _ in case[9][::-1])]),
            np.array([[kept for _, kept in case[9]] for case in cases]),
        ),
    )


def later_runs(case, later_ps):
    """Return jobs of one replica that share a replay but for how much later it ends."""
    runs, num = runs_of(case), len(later_ps)
    jobs = runs.jobs.repeat(num, axis=1)
    jobs[ROW] = jobs[REPLAY] = np.arange(num)
    late = {"row": np.zeros(num, np.int64), "later_ps": np.array(later_ps)}
    return runs._replace(
        begin=np.array([0, num]),
        jobs=jobs,
        replayed=runs.replayed._replace(**late),
        alone=runs.alone._replace(**late),
    )


def ended(runs):
    """Return what the kernel says of their steps."""
    outputs = StepOutputs.empty(runs.jobs[ROW].max() + 1)
    end_steps(runs, Rated.nothing(), outputs, ResultColumns.empty(0))
    return outputs


def run_ends(*cases, rows=None, run=None):
    """Return what the kernel says of the steps of cases of one shape; see `runs_of`."""
    return ended(runs_of(*cases, rows=rows, run=run))


def run_results(rated, *cases):
    """Return the steps of cases of one shape, and their results; each rank of a case holds as much.

    The ranks of ``rated`` are one for each case.
    """
    runs = runs_of(*cases)
    owner = np.append(0, np.arange(len(cases)).repeat(len(cases[0][0])))
    rated = rated._replace(ranks=RankBytes(*(column.take(owner) for column in rated.ranks)))
    columns = ResultColumns.empty(len(cases))
    ranking = ResultColumns.empty(len(cases), ranking=True)
    for wanted in (columns, ranking):
        end_steps(runs, rated, StepOutputs.empty(0), wanted)
    for number in range(RANKED):
        assert np.array_equal(ranking.column(number), columns.column(number), equal_nan=True)
    return ended(runs), columns
