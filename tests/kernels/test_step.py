import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from projector.kernels.pipeline import Ends
from projector.kernels.step import (
    BREAKDOWN_TERMS,
    PEAK,
    PEAK_RANK,
    STAGE_TERMS,
    STEP,
    StepFamilies,
    StepJobs,
    StepOutputs,
    StepRanks,
    StepReplicas,
    StepStages,
    end_steps,
    gathered_forwards,
    overlapped_stages,
)
from reference import step as reference

seconds = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
runs = st.tuples(st.integers(0, 5), seconds, seconds, seconds)
stages = st.lists(runs, max_size=4)


def run(*stages, backward=False, ahead=1):
    """Return durations and tails of stages that list runs (count, compute, gather, reduce)."""
    flat = [row for stage in stages for row in stage]
    columns = np.array(flat, np.float64).reshape(-1, 4).T
    duration_s, tail_s = np.full(len(stages), -7.0), np.full(len(stages), -7.0)
    overlapped_stages(
        np.cumsum([0, *map(len, stages)]),
        columns[0].astype(np.int64),
        *(np.ascontiguousarray(column) for column in columns[1:]),
        backward,
        np.full(len(stages), ahead),
        duration_s,
        tail_s,
    )
    return duration_s, tail_s


@given(stage=stages, backward=st.booleans(), ahead=st.integers(0, 4))
@example(stage=[(3, 1.0, 1.0, 1.0)], backward=False, ahead=1)  # all ends at the same moments
@example(stage=[(2, 0.0, 1.0, 1.0), (2, 1.0, 0.0, 2.0)], backward=True, ahead=1)
@example(stage=[(4, 1.0, 1.0, 1.0)], backward=False, ahead=9)  # deeper than there are layers
def test_matches_reference(stage, backward, ahead):
    (duration_s,), (tail_s,) = run(stage, backward=backward, ahead=ahead)
    finish, channel_end = reference.simulate(reference.layers_of(stage, backward), ahead)
    assert duration_s == pytest.approx(finish, rel=1e-9, abs=0)
    assert tail_s == pytest.approx(max(0.0, channel_end - finish), rel=1e-9, abs=1e-12)


@given(stage=stages, backward=st.booleans())
def test_between_the_compute_and_the_sum_of_everything(stage, backward):
    (duration_s,), (tail_s,) = run(stage, backward=backward)
    layers = reference.layers_of(stage, backward)
    compute = sum(layer[0] for layer in layers)
    everything = sum(sum(layer) for layer in layers)
    channel = sum(layer[1] + layer[2] for layer in layers)
    assert duration_s >= compute * (1 - 1e-12)
    assert duration_s + tail_s <= everything * (1 + 1e-12)
    assert duration_s + tail_s >= channel * (1 - 1e-12)
    assert tail_s >= 0.0


@given(
    stage=stages.filter(len),
    backward=st.booleans(),
    where=st.integers(0, 3),
    column=st.integers(1, 3),
    more=seconds,
)
def test_more_of_anything_never_ends_earlier(stage, backward, where, column, more):
    slower = [list(row) for row in stage]
    slower[where % len(stage)][column] += more
    (before, after), (tail, later) = run(stage, slower, backward=backward)
    assert after >= before
    assert after + later >= (before + tail) * (1 - 1e-12)


@given(stage=stages, backward=st.booleans())
def test_without_communication_only_the_compute_counts(stage, backward):
    silent = [(count, compute, 0.0, 0.0) for count, compute, *_ in stage]
    (duration_s,), (tail_s,) = run(silent, backward=backward)
    total = 0.0
    for compute, *_ in reference.layers_of(silent, backward):
        total += compute
    assert (duration_s, tail_s) == (total, 0.0)


@given(several=st.lists(stages, min_size=1, max_size=4), backward=st.booleans())
def test_stages_do_not_depend_on_each_other(several, backward):
    together = run(*several, backward=backward)
    for stage, duration_s, tail_s in zip(several, *together, strict=True):
        (alone,), (tail,) = run(stage, backward=backward)
        assert (alone, tail) == (duration_s, tail_s)


@given(stage=stages)
def test_the_backward_walks_the_other_way(stage):
    forward = run(stage)
    mirrored = run(stage[::-1], backward=True)
    assert [x.tolist() for x in forward] == [x.tolist() for x in mirrored]


def test_gathers_hide_behind_compute_but_for_the_first():
    (duration_s,), (tail_s,) = run([(10, 3.0, 2.0, 0.0)])
    assert (duration_s, tail_s) == (2.0 + 10 * 3.0, 0.0)


def test_slow_gathers_set_the_pace():
    (duration_s,), _ = run([(10, 2.0, 3.0, 0.0)])
    assert duration_s == 10 * 3.0 + 2.0


def test_the_last_reduction_is_what_remains():
    (duration_s,), (tail_s,) = run([(10, 3.0, 0.0, 2.0)], backward=True)
    assert (duration_s, tail_s) == (30.0, 2.0)


def test_a_waiting_gather_goes_before_the_reduction():
    # Layer 0 runs from 4 to 5. The gather for layer 1 takes the channel from 4 to 8; the
    # reduction of layer 0 follows until 10 while layer 1 computes from 8 to 9, and its own
    # reduction ends at 12.
    (duration_s,), (tail_s,) = run([(2, 1.0, 4.0, 2.0)])
    assert (duration_s, tail_s) == (9.0, 3.0)


def test_a_reduction_delays_the_gather_behind_it():
    # From the third layer on, channel time is all there is: gather and reduction each 2.
    (duration_s,), _ = run([(3, 1.0, 2.0, 2.0)])
    # Gathers end at 2, 4 and 8: the third one waits for the reduction from 4 to 6.
    assert duration_s == 9.0


def test_without_prefetch_every_gather_shows_and_reductions_hide():
    (duration_s,), (tail_s,) = run([(4, 3.0, 2.0, 1.0)], ahead=0)
    assert (duration_s, tail_s) == (4 * (2.0 + 3.0), 1.0)


def test_deeper_prefetch_evens_out_unequal_layers():
    # Three short layers before one with a long gather: asked for earlier, it shows less.
    layers = [(3, 1.0, 0.1, 0.0), (1, 1.0, 3.0, 0.0)]
    durations = [run(layers, ahead=ahead)[0][0] for ahead in range(4)]
    assert durations == sorted(durations, reverse=True)
    assert durations[3] < durations[1]


@given(stage=stages, backward=st.booleans())
def test_one_layer_ahead_is_never_slower_than_none(stage, backward):
    forward_only = [(count, compute, gather, 0.0) for count, compute, gather, _ in stage]
    without, one = (run(forward_only, backward=backward, ahead=ahead)[0][0] for ahead in (0, 1))
    assert one <= without * (1 + 1e-12)


def test_an_empty_stage_takes_no_time():
    durations, tails = run([], [(0, 1.0, 1.0, 1.0)], [(1, 1.0, 0.0, 0.0)])
    assert durations.tolist() == [0.0, 0.0, 1.0]
    assert tails.tolist() == [0.0, 0.0, 0.0]


def run_first(jobs, slowdown=0.1):
    """Return the first forward of each stage; a job is the rank of each stage and their runs.

    A run is (count, compute, gather).
    """
    stages = [stage for _, job in jobs for stage in job]
    flat = [row for stage in stages for row in stage]
    columns = np.array(flat, np.float64).reshape(-1, 3).T
    rank_of_stage = np.concatenate([np.array(ranks) for ranks, _ in jobs])
    widest = int(rank_of_stage.max()) + 1
    duration_s = np.full(len(stages), -7.0)
    gathered_forwards(
        np.cumsum([0, *(len(job) for _, job in jobs)]),
        rank_of_stage,
        np.arange(len(stages)),
        np.cumsum([0, *map(len, stages)]),
        columns[0].astype(np.int64),
        *(np.ascontiguousarray(column) for column in columns[1:]),
        np.full(len(jobs), slowdown),
        np.empty(widest),
        np.empty(widest),
        duration_s,
    )
    return duration_s


def test_stages_of_one_kind_share_their_runs():
    alike = [[(2, 1.0, 0.5)], [(1, 1.0, 3.0)], [(2, 1.0, 0.5)]]
    expected = run_first([((0, 1, 2), alike)], slowdown=0.0)
    shared = np.empty(3)
    gathered_forwards(
        np.array([0, 3]),
        np.array([0, 1, 2]),
        np.array([0, 1, 0]),
        np.array([0, 1, 2]),
        np.array([2, 1]),
        np.array([1.0, 1.0]),
        np.array([0.5, 3.0]),
        np.zeros(1),
        np.empty(3),
        np.empty(3),
        shared,
    )
    assert shared.tolist() == expected.tolist()


gathered = st.lists(st.tuples(st.integers(0, 4), seconds, seconds), max_size=3)


@st.composite
def pipelines(draw):
    """Stages dealt to the ranks in turn, or down the ranks and back."""
    stages = draw(st.lists(gathered, min_size=1, max_size=8))
    pp = draw(st.integers(1, 4))
    ranks = [stage % pp for stage in range(len(stages))]
    if draw(st.booleans()):
        ranks = [min(stage, len(stages) - 1 - stage) for stage in range(len(stages))]
    return ranks, stages


@given(pipeline=pipelines(), slowdown=st.floats(0.0, 1.0))
@example(pipeline=([0, 1, 0], [[(2, 1.0, 1.0)], [(2, 1.0, 1.0)], [(1, 1.0, 3.0)]]), slowdown=0.5)
def test_first_forward_matches_reference(pipeline, slowdown):
    ranks, stages = pipeline
    layers = [[tuple(layer) for count, *layer in stage for _ in range(count)] for stage in stages]
    expected = reference.first_forwards(layers, ranks, slowdown)
    assert run_first([pipeline], slowdown) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(pipeline=pipelines(), where=st.integers(0, 30), column=st.integers(1, 2), more=seconds)
def test_slower_layers_never_end_the_first_forward_earlier(pipeline, where, column, more):
    ranks, stages = pipeline
    slower = [[list(row) for row in stage] for stage in stages]
    rows = [row for stage in slower for row in stage]
    if rows:
        rows[where % len(rows)][column] += more
    before, after = (run_first([(ranks, each)]).sum() for each in (stages, slower))
    assert after >= before * (1 - 1e-12)


@given(several=st.lists(pipelines(), min_size=1, max_size=4))
def test_pipelines_do_not_depend_on_each_other(several):
    together = run_first(several)
    alone = np.concatenate([run_first([pipeline]) for pipeline in several])
    np.testing.assert_array_equal(together, alone)


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
    numbers += ([(draw(seconds), draw(seconds)) for _ in range(num_ranks)],)
    return ranks, held, stages, optimizer, *numbers


def run_ends(*cases, rows=None, run=None):
    """Return what the kernel says of cases of one shape, from replay ``run`` to ``rows``."""
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
    end_steps(
        StepJobs(
            np.arange(n + 1),
            rows,
            np.array(range(n) if run is None else run),
            np.arange(n),
            # Replicas and families stand the other way round.
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
        # Kinds of stages stand the other way round.
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
        outputs,
    )
    return outputs


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
