"""What every timeline must keep."""

import numpy as np
import pytest

from projector.projection.terms import BREAKDOWN
from projector.projection.timeline.build import build_timeline
from projector.projection.timeline.columns import TRACKS


def overlapping(rank, track, lane, start, end):
    """Return how many activities begin before another of their rank, track and lane ends."""
    rows = np.lexsort((end, start, lane, track, rank))
    same = np.ones(len(rows) - 1, bool)
    for column in (rank, track, lane):
        same &= column[rows][1:] == column[rows][:-1]
    return int((same & (start[rows][1:] < end[rows][:-1])).sum())


def check_timeline(timeline, breakdown_s):
    want = [round(seconds * 1e12) for seconds in breakdown_s.values()]
    assert timeline.sums_ps().tolist() == want
    assert timeline.step_ps == sum(want)
    start, end = timeline.start_ps, timeline.start_ps + timeline.duration_ps
    assert not overlapping(timeline.rank, timeline.track, timeline.lane, start, end)
    assert timeline.duration_ps.min() >= 0
    assert timeline.exposed_ps.min() >= 0
    ending = timeline.rank == timeline.ending_rank
    begin = timeline.begin_ps[timeline.ending_rank]
    assert end[ending].max() - begin == timeline.step_ps
    # Every rank is told from the begin of the step to its end.
    for rank in range(len(timeline.begin_ps)):
        total = int(timeline.sums_ps(rank).sum())
        assert total == pytest.approx(timeline.step_ps, rel=1e-9, abs=1000)
    # Compute is as long as it adds to the step, and what is beside it slows it down.
    compute = (timeline.track == TRACKS.index("compute")) & (timeline.term < 3) & ending
    own = timeline.duration_ps - timeline.slowed_ps
    assert np.array_equal(own[compute], timeline.exposed_ps[compute])
    assert timeline.slowdown_ps[ending].sum() == timeline.slowed_ps[ending].sum()
    launched = timeline.launch_ps >= 0
    assert np.all(timeline.launch_end_ps[launched] <= start[launched])
    assert np.all(timeline.prepare_ps[launched] >= 0)
    assert "rounding" not in {timeline.labels[label] for label in np.unique(timeline.label)}


def check_memory(timeline, memory):
    for held, stage in zip(timeline.memory, memory.stages, strict=True):
        assert held.activations_bytes.max() == pytest.approx(stage.activations_bytes, rel=1e-9)
        assert held.bytes.max() <= stage.peak_bytes * (1.0 + 1e-9)
        # What a microbatch leaves is gone at the end of the step, but for rounding.
        assert held.activations_bytes[-1] <= 1e-9 * stage.peak_bytes
        assert np.all(np.diff(held.time_ps) > 0)


def timeline_of_result(result, **detail):
    timeline = build_timeline(result, **detail)
    check_timeline(timeline, result.breakdown_s)
    if not result.origins:  # What was measured moves the peak.
        check_memory(timeline, result.memory)
    assert len(BREAKDOWN) == len(timeline.terms_ps)
    return timeline
