"""Times of replicas against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels.timings import (
    EACH,
    LEAST,
    StageDurations,
    TimingColumns,
    distinct_timings,
    write_timings,
)
from reference import timings as reference

# Without the JIT numpy warns of the wrap that a hash lives on.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")

ticks = st.integers(0, 3)


@st.composite
def replicas(draw):
    """Draw stages of replicas with one placement, and which kind each has."""
    num_ranks, num_chunks = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    held = np.array(draw(st.permutations(range(num_ranks * num_chunks))), np.int64)
    kinds = draw(st.lists(st.lists(ticks, min_size=9, max_size=9), min_size=1, max_size=3))
    # An order of stages says where a replica begins.
    num = draw(st.integers(1, 6))
    size = num * held.size
    kind = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=size, max_size=size))
    first = draw(st.lists(ticks, min_size=size, max_size=size))
    kind_ps = np.array(kinds, np.int64).reshape(-1, 3, 3)
    like = [kinds.index(each) for each in kinds]
    stages = StageDurations(*(np.array(each, np.int64) for each in (kind, first, like)), kind_ps)
    begin = held.size * np.array(draw(st.permutations(range(num))), np.int64)
    return held.reshape(num_ranks, num_chunks), stages, begin


def times_of(held, stages, begin):
    """Return what each stage of a replica takes, by rank and chunk."""
    return [
        [
            reference.stage_times(
                int(stages.first_forward_ps[begin + stage]),
                stages.kind_ps[stages.kind[begin + stage]].tolist(),
            )
            for stage in rank
        ]
        for rank in held.tolist()
    ]


@given(replicas(), st.data())
def test_replicas_share_a_timing_where_all_takes_as_long(case, data):
    held, stages, begin = case
    sends = np.array(data.draw(st.lists(ticks, min_size=len(begin), max_size=len(begin))), np.int64)
    first, timing = distinct_timings(begin, held.size, sends, stages)
    keys = [
        str((number, times_of(held, stages, place)))
        for number, place in zip(sends.tolist(), begin.tolist(), strict=True)
    ]
    known = list(dict.fromkeys(keys))
    assert timing.tolist() == [known.index(key) for key in keys]
    assert first.tolist() == [keys.index(key) for key in known]


@given(replicas(), st.data(), st.integers(1, 4))
def test_durations_and_work_match_reference(case, data, microbatches):
    held, stages, begin = case
    num, shape = len(begin), (*held.shape, 3, 3)
    waits = np.array(data.draw(st.lists(st.booleans(), min_size=num, max_size=num)))
    sent_ps = np.arange(2 * 2 * held.size).reshape(2, 2, *held.shape)
    sends = np.arange(num) % 2
    columns = TimingColumns(
        np.empty((num, *shape), np.int64),
        np.empty((num, *shape), np.int64),
        np.empty((num, 2, len(held)), np.int64),
    )
    write_timings(begin, held, stages, waits, sends, sent_ps, columns)
    for row, place in enumerate(begin.tolist()):
        times = times_of(held, stages, place)
        assert columns.alone_ps[row].tolist() == times
        sent = sent_ps[sends[row]] * waits[row]
        assert columns.duration_ps[row].tolist() == [
            [reference.waiting(each, sent[:, r, c].tolist()) for c, each in enumerate(chunks)]
            for r, chunks in enumerate(times)
        ]
        work = columns.work_ps[row, LEAST] + (microbatches - 1) * columns.work_ps[row, EACH]
        assert work.tolist() == [reference.work(chunks, microbatches) for chunks in times]
