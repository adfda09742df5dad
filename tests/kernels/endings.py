"""Ends of pipelines, as the kernel that ends steps takes them."""

import numpy as np
from hypothesis import strategies as st

from projector.kernels.pipeline import Ends
from projector.kernels.results import RANKING, Rated, ResultColumns, end_steps
from projector.kernels.step import (
    STAGE_TERMS,
    StepFamilies,
    StepJobs,
    StepOutputs,
    StepRanks,
    StepReplicas,
    StepRuns,
    StepStages,
)

seconds = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
sizes = st.one_of(st.just(0.0), st.floats(1.0, 2.0**40))

TERMS = ("launch", "last", "each")
AFTER = ("tail", "reduce_after", "gather_after")


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
            **{name: draw(seconds) for name in (*TERMS, *AFTER, "first")},
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


def run_ends(*cases, rows=None, run=None, rated=None):
    """Return what the kernel says of cases of one shape, from replay ``run`` to ``rows``.

    Replicas, families and kinds of stages stand the other way round. Where steps are ``rated``,
    results too; the kind of a rank is then the number of its case, from 0 on.
    """
    stage_rows, optimizer, firsts, exposed = [[0.0] * STAGE_TERMS], [0.0], [], [0.0]
    tails, reduces, gathers = [0.0], [0.0], [0.0]
    for _, held, stages, updates, *_ in cases:
        firsts.append((len(stage_rows), len(optimizer), len(tails)))
        chunks = [[stages[stage] for stage in mine] for mine in held]
        tails += [stage["tail"] for mine in chunks for stage in mine]
        reduces += [sum(stage["reduce_after"] for stage in mine) for mine in chunks]
        gathers += [sum(stage["gather_after"] for stage in mine) for mine in chunks]
        exposed += [stage["first"] for stage in stages]
        stage_rows += [[*stage["categories"], *(stage[name] for name in TERMS)] for stage in stages]
        optimizer += updates
    columns = [
        np.array([[rank[place] for rank in case[0]] for case in cases], np.int64)
        for place in range(6)
    ]
    start, end, last, alone_start, alone_end, busy = columns
    n = len(cases)
    microbatches = np.array([case[6] for case in cases])
    each = np.full_like(busy, 7)
    work = np.stack([busy - 7 * (microbatches[:, None] - 1), each], axis=1)
    # Replays are kept the other way round, each but the first earlier than it is.
    turned, later = np.arange(n)[::-1].copy(), np.arange(n)
    ends = [
        Ends(
            turned, later, *(np.ascontiguousarray(values[::-1]) for values in (begin, until, until))
        )
        for begin, until in (
            (start, end - later[:, None]),
            (alone_start, alone_end - later[:, None]),
        )
    ]
    last_ps = np.ascontiguousarray((last - later[:, None, None])[::-1])
    rows = np.array(range(n) if rows is None else rows)
    outputs = StepOutputs.empty(rows.max() + 1)
    runs = StepRuns(
        StepJobs(
            np.arange(n + 1),
            rows,
            np.array(range(n) if run is None else run),
            np.arange(n),
            np.arange(n)[::-1].copy(),
            microbatches,
        ),
        StepReplicas(
            np.arange(n)[::-1].copy(),
            *(np.array(column) for column in zip(*firsts[::-1], strict=True)),
            np.array([case[4] for case in cases[::-1]]),
            np.arange(n)[::-1].copy(),
            work,
        ),
        StepFamilies(
            np.array([case[7] for case in cases[::-1]], np.int64),
            np.array([case[5] for case in cases[::-1]]),
            np.array([case[8] for case in cases[::-1]]),
        ),
        np.array(cases[0][1], np.int64),
        ends[0]._replace(last_backward_end_ps=last_ps),
        ends[1]._replace(last_backward_end_ps=last_ps[:0]),
        StepStages(
            np.arange(len(stage_rows))[::-1].copy(),
            np.array(stage_rows[::-1]),
            np.array(exposed),
            np.array(tails),
        ),
        StepRanks(
            *map(np.array, (reduces, gathers, optimizer)),
            np.array([0.0, *(static for case in cases for static, _ in case[9])]),
            np.array([[kept for _, kept in case[9]] for case in cases]),
        ),
    )
    end_steps(runs, Rated.nothing(), outputs, ResultColumns.empty(0))
    if rated is None:
        return outputs
    kinds = np.repeat(np.arange(-1, n), [1, *(len(case[0]) for case in cases)])
    columns = ResultColumns.empty(len(outputs.number))
    ranking = ResultColumns.ranking(len(outputs.number))
    for wanted in (columns, ranking):
        end_steps(runs, rated._replace(rank_kind=kinds), StepOutputs.empty(0), wanted)
    for name in RANKING:
        assert np.array_equal(getattr(ranking, name), getattr(columns, name), equal_nan=True)
    return outputs, columns
