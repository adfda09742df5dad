"""A rank by itself is told by its own clock."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from projector.trace.analysis import on_own_clocks
from projector.trace.clocks import Clock
from projector.trace.measures.iterations import rank_summaries
from synthetic import activities, compute

DAY_NS = 86_400 * 10**9


def clock(rank=1, offset_ps=0, drift=0.0, origin_ps=0):
    return Clock(
        rank=rank, reference=0, start_ps=7_000, offset_ps=offset_ps, drift=drift,
        origin_ps=origin_ps, collectives=20, spread_ps=0,
    )  # fmt: skip


@given(
    st.lists(st.integers(-DAY_NS, DAY_NS), min_size=1, max_size=20),
    st.integers(-(10**15), 10**15),
    st.floats(-1e-3, 1e-3),
    st.integers(0, 10**15),
)
def test_own_times_come_back(times_ns, offset_ps, drift, origin_ps):
    own = np.array(times_ns) * 1000
    moving = clock(offset_ps=offset_ps, drift=drift, origin_ps=origin_ps)
    assert moving.own(moving.moved(own)).tolist() == own.tolist()


def test_summaries_are_those_of_the_file():
    table = activities(
        compute(0, 1_000_001, launch=0),
        compute(0, 1_000_001, rank=1, launch=1),
        compute(3_333_333, 9_999_999, rank=1),
    )
    drifting = clock(offset_ps=-123, drift=5e-5, origin_ps=77)
    second = table.rank == 1

    def moved(values):
        return np.where(second & (values != -1), drifting.moved(values), values)

    times = {n: moved(getattr(table, n)) for n in ("start_ps", "end_ps", "launch_ps")}
    aligned = replace(table, clocks=(clock(0), drifting), **times)
    assert rank_summaries(aligned) != rank_summaries(table)
    assert rank_summaries(on_own_clocks(aligned)) == rank_summaries(table)
    assert on_own_clocks(aligned).launch_ps.tolist() == table.launch_ps.tolist()
    assert on_own_clocks(table) is table
