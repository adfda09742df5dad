"""Stages beside their data parallelism: overlap layer by layer, and whole replicas."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from projector.kernels.replicas import Patterns, spread_segments
from projector.kernels.stage_times import (
    EVERY_GATHER,
    EVERY_REDUCE,
    KIND_TIMES,
    OVERLAPS_GATHER,
    OVERLAPS_REDUCE,
    REGATHERS,
    SPLITS,
    PassLayers,
    PassReplicas,
    SentLayers,
    StageTimes,
    first_forwards,
    run_layers,
    time_stages,
)
from reference import stage_times as reference

seconds = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
runs = st.tuples(st.integers(0, 5), seconds, seconds, seconds)
stages = st.lists(runs, max_size=4)


def run(*stages, backward=False, ahead=1):
    """Return durations and tails of stages that list runs (count, compute, gather, reduce)."""
    flat = np.array([row for stage in stages for row in stage], np.float64).reshape(-1, 4)
    count, runs = flat[:, 0].astype(np.int64), np.ascontiguousarray(flat[:, 1:])
    scratch = np.empty(count.sum(), np.int64), np.empty(count.sum())
    found, begin = [], 0
    for stage in stages:
        end = begin + len(stage)
        found.append(run_layers(begin, end, count, runs, backward, ahead, *scratch))
        begin = end
    durations, tails = zip(*found, strict=True)
    return np.array(durations), np.array(tails)


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
    found = []
    for ranks, stages in jobs:
        flat = np.array([row for stage in stages for row in stage], np.float64).reshape(-1, 3)
        runs = np.column_stack([flat[:, 1:], np.zeros(len(flat))])
        duration_s, size = np.full(len(stages), -7.0), max(ranks) + 1
        first_forwards(
            0, len(stages), np.array(ranks), np.arange(len(stages)),
            np.cumsum([0, *map(len, stages)]), flat[:, 0].astype(np.int64), runs, slowdown,
            np.empty(size), np.empty(size), 0, duration_s,
        )  # fmt: skip
        found.append(duration_s)
    return np.concatenate(found)


def test_stages_of_one_kind_share_their_runs():
    alike = [[(2, 1.0, 0.5)], [(1, 1.0, 3.0)], [(2, 1.0, 0.5)]]
    expected = run_first([((0, 1, 2), alike)], slowdown=0.0)
    shared = np.full(5, -7.0)
    first_forwards(
        1, 4, np.array([9, 0, 1, 2]), np.array([9, 0, 1, 0]), np.array([0, 1, 2]),
        np.array([2, 1]), np.array([[1.0, 0.5, 0.0], [1.0, 3.0, 0.0]]), 0.0,
        np.empty(3), np.empty(3), 2, shared,
    )  # fmt: skip
    assert shared[2:].tolist() == expected.tolist()


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


FLAGS = {
    "zero_0": REGATHERS,
    "zero_0_overlaps": REGATHERS | OVERLAPS_REDUCE,
    "zero_1": REGATHERS | OVERLAPS_GATHER,
    "zero_1_overlaps": REGATHERS | OVERLAPS_GATHER | OVERLAPS_REDUCE,
    "zero_2": REGATHERS | OVERLAPS_GATHER | EVERY_REDUCE,
    "zero_3": REGATHERS | OVERLAPS_GATHER | EVERY_REDUCE | EVERY_GATHER,
    "keeps_weights": OVERLAPS_GATHER | EVERY_REDUCE | EVERY_GATHER,
}


@st.composite
def replicas(draw):
    """Draw pipelines of stages, and their replicas; see `reference.time_replicas`."""
    layers, sharings = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    each = st.tuples(st.integers(1, 4), st.integers(0, layers - 1), *[seconds] * 4)
    kinds = st.lists(st.lists(each, min_size=1, max_size=2), min_size=1, max_size=3)
    pipelines = draw(st.lists(kinds, min_size=1, max_size=2))
    found = []
    for own in pipelines:
        stages = [*range(len(own)), *draw(st.lists(st.integers(0, len(own) - 1), max_size=3))]
        ranks = draw(st.lists(st.integers(0, 2), min_size=len(stages), max_size=len(stages)))
        found.append((own, stages, ranks))
    sent = [[[draw(seconds) for _ in range(4)] for _ in range(layers)] for _ in range(sharings)]
    chosen = st.tuples(
        st.integers(0, len(found) - 1), st.integers(0, sharings - 1), st.sampled_from([*FLAGS]),
        st.booleans(), st.integers(0, 2), st.integers(0, 2), st.floats(0.0, 0.5),
        st.floats(1.0, 1.5),
    )  # fmt: skip
    return found, sent, draw(st.lists(chosen, min_size=1, max_size=5))


def time_replicas(pipelines, sent, chosen):
    """Return what the kernel says of replicas: times of kinds, and of stages."""
    stages = [stage for own, kinds, _ in pipelines for stage in (own[kind] for kind in kinds)]
    runs = [run for stage in stages for run in stage]
    columns = [np.array(column) for column in zip(*runs, strict=True)]
    counts = [len(kinds) for _, kinds, _ in pipelines]
    own_kinds = [len(own) for own, *_ in pipelines]
    nothing = np.zeros(1, np.int64)
    patterns = Patterns(*[nothing] * len(Patterns._fields))._replace(
        stage_first=np.cumsum([0, *counts]),
        stage_kind=np.concatenate([kinds for _, kinds, _ in pipelines]),
        stage_rank=np.concatenate([ranks for *_, ranks in pipelines]),
        kind_first=np.cumsum([0, *own_kinds]),
        # Each kind is met first among the first stages.
        kind_stage=np.concatenate([np.arange(kinds) for kinds in own_kinds]),
        joins_ends=np.zeros(1, np.bool_),
    )
    pipeline, share, flags, splits, ahead_f, ahead_b, slowdown, longer = zip(*chosen, strict=True)
    pipeline = np.array(pipeline)
    kinds, places = (np.array(each)[pipeline].sum() for each in (own_kinds, counts))
    kind_s, rows = np.full((KIND_TIMES, kinds), -7.0), np.full((2, kinds + places), -7.0)
    first_row = np.full(len(pipeline), -7)
    table = np.array(sent)
    used = time_stages(
        PassReplicas(
            pipeline, pipeline, patterns.stage_first[pipeline], np.array(share),
            np.array([FLAGS[name] | SPLITS * own for name, own in zip(flags, splits, strict=True)]),
            np.array(ahead_f), np.array(ahead_b),
            np.array(slowdown), np.array(longer),
        ),
        patterns,
        PassLayers(
            np.cumsum([0, *map(len, stages)]), *(column for column in columns)
        ),
        SentLayers(
            np.arange(table.shape[0] * table.shape[1]).reshape(table.shape[:2]),
            *(np.ascontiguousarray(column) for column in table.reshape(-1, 4).T),
        ),
        np.full(len(pipelines), -1),
        kind_s,
        *rows,
        first_row,
    )  # fmt: skip
    assert first_row.max() < used <= rows.shape[1]
    return by_stage(StageTimes(*kind_s, *rows, first_row), patterns, pipeline)


def by_stage(times, patterns, pattern):
    """Return times of kinds and of stages by name, those of stages replica after replica."""
    row, first_kind = [], 0
    for replica, number in enumerate(pattern):
        kinds = patterns.stage_kind[slice(*patterns.stage_first[number : number + 2])]
        first = times.first_row[replica]
        row += (first_kind + kinds if first < 0 else first + np.arange(len(kinds))).tolist()
        first_kind += np.diff(patterns.kind_first)[number]
    found = times._asdict()
    del found["first_row"]
    return found | {name: found[name][row] for name in ("first_forward_s", "exposed_first_s")}


@given(case=replicas())
def test_replicas_match_reference(case):
    pipelines, sent, chosen = case
    times = time_replicas(pipelines, sent, chosen)
    wanted = reference.time_replicas(pipelines, sent, chosen)
    for name, found in times.items():
        assert found == pytest.approx(np.array(wanted[name]), rel=1e-9, abs=1e-9), name


@given(case=replicas())
def test_replicas_beside_others_are_those_alone(case):
    pipelines, sent, chosen = case
    together = time_replicas(pipelines, sent, chosen)
    alone = [time_replicas(pipelines, sent, [each]) for each in chosen]
    for name, found in together.items():
        np.testing.assert_array_equal(found, np.concatenate([each[name] for each in alone]))


@given(
    segments=st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1, max_size=4),
    data=st.data(),
)
def test_segments_are_spread(segments, data):
    number = st.integers(0, len(segments) - 1)
    parts = data.draw(st.lists(st.tuples(number, st.integers(-99, 99)), max_size=6))
    of, more = np.array(parts, np.int64).reshape(-1, 2).T
    first = np.cumsum([0, *map(len, segments)])
    values = np.array([value for segment in segments for value in segment], np.int64)
    expected = [value + shift for number, shift in parts for value in segments[number]]
    assert spread_segments(first, values, of, more).tolist() == expected
