"""Times of replicas against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels.pipeline import FIRST, FORWARD
from projector.kernels.timings import (
    COLUMN,
    EACH,
    KIND_TIMES,
    LEAST,
    StageDurations,
    TimingColumns,
    distinct_timings,
    round_times,
    write_timings,
)
from reference import timings as reference

# Without the JIT numpy warns of the wrap that a hash lives on, and of infinite times.
pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow encountered", "ignore:invalid value encountered"
)

ticks = st.integers(0, 3)


@st.composite
def replicas(draw):
    """Draw replicas with one placement, two patterns of their stages, and times of their kinds."""
    num_ranks, num_chunks = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    size = num_ranks * num_chunks
    held = np.array(draw(st.permutations(range(size))), np.int64).reshape(num_ranks, num_chunks)
    patterns = [
        draw(st.lists(st.integers(0, kinds - 1), min_size=size, max_size=size)) for kinds in (1, 2)
    ]
    kind_ps, first_ps, own_ps = [], [], []
    pattern = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
    kind_first, first_row = [0], []
    for kinds in pattern:
        for _ in range(kinds + 1):
            kind_ps.append(draw(st.lists(ticks, min_size=KIND_TIMES, max_size=KIND_TIMES)))
            first_ps.append(draw(ticks))
        kind_first.append(len(kind_ps))
        first_row.append(len(own_ps) if draw(st.booleans()) else None)
        if first_row[-1] is not None:
            own_ps += draw(st.lists(ticks, min_size=size, max_size=size))
    rows = [-1 if row is None else len(kind_ps) + row for row in first_row]
    spans, stage_kind = [0, size, 2 * size], [*patterns[0], *patterns[1]]
    columns = pattern, kind_first, rows, spans, stage_kind, first_ps + own_ps, kind_ps
    stages = StageDurations(*(np.array(each, np.int64) for each in columns))
    return held, stages, np.array(draw(st.permutations(range(len(pattern)))), np.int64)


def times_of(held, stages, replica):
    """Return what each stage of a replica takes, by rank and chunk."""
    begin = stages.pattern_first[stages.pattern[replica]]
    kind_first, first_row = stages.kind_first[replica], stages.first_row[replica]

    def times(stage):
        kind = kind_first + stages.stage_kind[begin + stage]
        first = stages.first_forward_ps[kind if first_row < 0 else first_row + stage]
        return reference.stage_times(int(first), stages.kind_ps[kind].tolist())

    return [[times(stage) for stage in rank] for rank in held.tolist()]


seconds = st.sampled_from([0.0, 1e-13, -1e-13, -1.0, 2.5e-12, 3e3, 2e6, np.inf, np.nan])
seconds |= st.floats(0.0, 2.0)


@given(st.lists(st.tuples(*[seconds] * KIND_TIMES), max_size=4))
def test_times_are_rounded_once(kinds):
    own_s = np.array(kinds, np.float64).reshape(-1, KIND_TIMES).T.copy()
    kind_ps = np.empty((len(kinds), KIND_TIMES), np.int64)
    valid = round_times(*own_s, kind_ps)
    expected = [reference.rounded(*each) for each in kinds]
    assert valid == (None not in expected)
    if valid:
        assert kind_ps.tolist() == expected


@given(replicas(), st.data())
def test_replicas_share_a_timing_where_all_takes_as_long(case, data):
    held, stages, chosen = case
    num = len(chosen)
    sends = np.array(data.draw(st.lists(ticks, min_size=num, max_size=num)), np.int64)
    first, timing = distinct_timings(chosen, held.size, sends, stages)
    keys = []
    for number, replica in zip(sends.tolist(), chosen.tolist(), strict=True):
        kinds = slice(*stages.kind_first[replica : replica + 2])
        row = stages.first_row[replica]
        firsts = kinds if row < 0 else slice(row, row + held.size)
        of_kinds = stages.kind_ps[kinds].tolist(), stages.first_forward_ps[firsts].tolist()
        keys.append(str((number, stages.pattern[replica], row < 0, *of_kinds)))
        assert times_of(held, stages, chosen[first[timing[len(keys) - 1]]]) == times_of(
            held, stages, replica
        )
    known = list(dict.fromkeys(keys))
    assert timing.tolist() == [known.index(key) for key in keys]
    assert first.tolist() == [keys.index(key) for key in known]


@given(replicas(), st.data(), st.integers(1, 4))
def test_durations_and_work_match_reference(case, data, microbatches):
    held, stages, chosen = case
    num = len(chosen)
    waits = np.array(data.draw(st.lists(st.booleans(), min_size=num, max_size=num)))
    sent = data.draw(st.lists(ticks, min_size=4 * held.size, max_size=4 * held.size))
    sent_ps = np.array(sent).reshape(2, 2, *held.shape)
    sends = np.arange(num) % 2
    # Chunks are alike where both patterns have the same kind, and as much is sent.
    kinds = stages.stage_kind.reshape(2, -1)[:, held.ravel()]
    told = np.concatenate([kinds, sent_ps.reshape(4, -1)])
    alike = np.unique(told, axis=1, return_inverse=True)[1].reshape(held.shape)
    column = alike[:, :, None, None] * KIND_TIMES + COLUMN
    firsts = (alike.max() + 1) * KIND_TIMES + np.arange(held.size)
    column[:, :, FORWARD, FIRST] = firsts.reshape(held.shape)
    columns = TimingColumns(
        np.empty((num, firsts[-1] + 1), np.int64),
        np.empty((num, firsts[-1] + 1), np.int64),
        np.empty((num, 2, len(held)), np.int64),
    )
    write_timings(chosen, held, alike, stages, waits, sends, sent_ps, columns)
    for row, replica in enumerate(chosen.tolist()):
        times = times_of(held, stages, replica)
        assert columns.alone_ps[row, column].tolist() == times
        sent = sent_ps[sends[row]] * waits[row]
        assert columns.duration_ps[row, column].tolist() == [
            [reference.waiting(each, sent[:, r, c].tolist()) for c, each in enumerate(chunks)]
            for r, chunks in enumerate(times)
        ]
        work = columns.work_ps[row, LEAST] + (microbatches - 1) * columns.work_ps[row, EACH]
        assert work.tolist() == [reference.work(chunks, microbatches) for chunks in times]
