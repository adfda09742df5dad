"""What stands on a timeline, and where."""

import numpy as np
import pytest
from tests.projection.timeline.checks import timeline_of_result
from tests.projection.timeline.test_timeline_sums import BASE, EXPERTS, LAYOUTS, MOE

import projector as pj
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.timeline.build import Detail, build_timeline
from projector.projection.timeline.columns import BLOCK, LAYER, PHASES, TRACKS

JOBS = {
    **{name: (BASE, LAYOUTS[name]) for name in LAYOUTS if name not in {"full", "full_together"}},
    **{name: (EXPERTS, MOE[name]) for name in MOE},
}


def timeline_of(base, overrides=(), **detail):
    result = pj.project_performance(load_job(base, dict(overrides)))
    return result, timeline_of_result(result, **detail)


def named(timeline, name):
    return np.array([timeline.labels[label] == name for label in timeline.label])


def on(timeline, track):
    return timeline.track == TRACKS.index(track)


@pytest.mark.rotated
@pytest.mark.parametrize("name", JOBS)
def test_collectives_take_and_add_what_the_report_says(name):
    result, timeline = timeline_of(*JOBS[name])
    ending = timeline.rank == timeline.ending_rank
    for key, entry in result.communication.items():
        group, _, label = key.partition(":")
        if group in {"dp", "pp"}:
            continue
        rows = ending & on(timeline, group.upper()) & named(timeline, label)
        assert timeline.alone_ps[rows].sum() == pytest.approx(entry.time_s * 1e12, rel=1e-6)
        assert timeline.exposed_ps[rows].sum() == pytest.approx(
            entry.exposed_s * 1e12, rel=1e-6, abs=1e-6 * timeline.step_ps
        )
        assert timeline.bytes[rows].sum() == pytest.approx(entry.bytes)


@pytest.mark.parametrize("name", ["zero_1_in_sequence", "zero_2", "fsdp_1", "fsdp_2"])
def test_data_parallelism_takes_what_the_report_says(name):
    result, timeline = timeline_of(BASE, LAYOUTS[name])
    for key in ("param_all_gather", "grad_reduce"):
        entry = result.communication[f"dp:{key}"]
        rows = on(timeline, "DP") & named(timeline, f"dp.{key}")
        assert timeline.alone_ps[rows].sum() == pytest.approx(entry.time_s * 1e12, rel=1e-6)
        assert timeline.bytes[rows].sum() == pytest.approx(entry.bytes)


def test_a_layer_begins_when_what_it_waits_for_is_gathered():
    _, timeline = timeline_of(BASE, {"parallelism.fsdp": 2})
    gathers = on(timeline, "DP") & named(timeline, "dp.param_all_gather") & (timeline.layer >= 0)
    waited = gathers & (timeline.exposed_ps - timeline.slowdown_ps > 0)
    assert waited.any()
    ranges = timeline.ranges
    for row in np.flatnonzero(waited):
        layer = (
            (ranges.level == LAYER)
            & (ranges.layer == timeline.layer[row])
            & (ranges.phase == timeline.phase[row])
            & (ranges.microbatch == timeline.microbatch[row])
        )
        begin = ranges.start_ps[layer][0]
        waits = timeline.exposed_ps[row] - timeline.slowdown_ps[row]
        end = timeline.start_ps[row] + timeline.duration_ps[row]
        # The wait is the first piece of the layer, and ends with the gather.
        assert abs(begin + waits - end) <= 1


@pytest.mark.parametrize("overrides", [LAYOUTS["tensor_overlapped"], LAYOUTS["context"]])
def test_what_is_hidden_lies_beside_compute(overrides):
    _, timeline = timeline_of(BASE, overrides)
    start, end = timeline.start_ps, timeline.start_ps + timeline.duration_ps
    compute = on(timeline, "compute")
    order = np.argsort(start[compute], kind="stable")
    edges = np.stack([start[compute][order], end[compute][order]], axis=1).ravel()
    # Compute of one track never overlaps: its time before each moment is a polygon.
    until = np.concatenate([[0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])
    rows = (on(timeline, "TP") | on(timeline, "CP")) & (timeline.microbatch == 1)
    beside = np.interp(end[rows], edges, until) - np.interp(start[rows], edges, until)
    waited = timeline.exposed_ps[rows] - timeline.slowdown_ps[rows]
    # What of a collective nothing hides has nothing beside it.
    assert np.all(beside + waited <= timeline.duration_ps[rows] + 2 * len(TRACKS))
    hidden = timeline.alone_ps[rows] - waited
    assert hidden.max() > 0
    assert np.all(beside >= 0.999 * hidden)


def test_recomputation_stands_before_the_gradients_that_need_it():
    for granularity in ("selective", "full"):
        _, timeline = timeline_of(BASE, {"training.recompute": granularity})
        layer = (timeline.layer == 3) & (timeline.microbatch == 0) & on(timeline, "compute")
        again = layer & timeline.recompute
        core = named(timeline, "attention.core")
        backward = layer & core & ~timeline.recompute & (timeline.phase == PHASES.index("backward"))
        assert np.all(timeline.phase[again] == PHASES.index("backward"))
        assert (again & core).sum() == 1
        assert timeline.start_ps[again & core][0] < timeline.start_ps[backward][0]
        if granularity == "full":
            gradients = layer & ~timeline.recompute & (timeline.phase != PHASES.index("forward"))
            assert timeline.start_ps[again].max() < timeline.start_ps[gradients].min()
        else:
            assert np.all(core[again])


@pytest.mark.parametrize("name", ["interleaved", "pipeline_without_blocking", "zero_bubble"])
def test_blocks_begin_when_what_they_need_has_arrived(name):
    _, timeline = timeline_of(BASE, LAYOUTS[name], detail=Detail(microbatches=(0,)))
    ranges = timeline.ranges
    blocks = np.flatnonzero(ranges.level == BLOCK)
    end = ranges.start_ps + ranges.duration_ps
    key = {
        (int(ranges.phase[row]), int(ranges.stage[row]), int(ranges.microbatch[row])): row
        for row in blocks
    }
    sends = on(timeline, "PP")
    assert sends.any()
    for row in np.flatnonzero(sends):
        phase, stage = int(timeline.phase[row]), int(timeline.stage[row])
        own = key[phase, stage, int(timeline.microbatch[row])]
        other = key[phase, stage + (1 if phase == 0 else -1), int(timeline.microbatch[row])]
        assert timeline.start_ps[row] == end[own]
        # Ranks are rounded apart: half a picosecond for each of their operations.
        arrived = timeline.start_ps[row] + timeline.duration_ps[row]
        assert ranges.start_ps[other] >= arrived - len(blocks)


def test_detail_says_what_is_told_operation_by_operation():
    result, timeline = timeline_of(
        BASE, LAYOUTS["interleaved"], detail=Detail(ranks=(1,), microbatches=(0, 2))
    )
    told = timeline.row >= 0
    assert set(timeline.rank[told].tolist()) == {1}
    assert set(timeline.microbatch[told].tolist()) == {0, 2}
    for wrong in (Detail(ranks=(4,)), Detail(microbatches=(-1,))):
        with pytest.raises(ConfigError, match="there are"):
            build_timeline(result, wrong)


def test_closed_forms_have_no_timeline():
    result = pj.project_performance(load_job(BASE), fidelity="first-order")
    with pytest.raises(ConfigError, match="PerformanceProjection of tiles"):
        build_timeline(result)


def test_large_jobs_tell_some_microbatches_alone():
    overrides = {"training.global_batch_size": 2048, "parallelism.pp": 4}
    _, timeline = timeline_of(BASE, overrides, detail=Detail(most=50_000))
    told = timeline.row >= 0
    count = timeline.microbatch.max() + 1
    assert set(timeline.microbatch[told].tolist()) == {0, (count - 1) // 2, count - 1}


def test_launches_of_a_host_that_is_behind_hold_the_device_up():
    _, slow = timeline_of(BASE, LAYOUTS["host_bound"])
    layer = (slow.layer == 3) & (slow.microbatch == 0) & (slow.phase == PHASES.index("forward"))
    kernels = np.flatnonzero(layer & (slow.launch_ps >= 0))
    kernels = kernels[np.argsort(slow.prepare_ps[kernels], kind="stable")]
    # One thread prepares and launches, one kernel after the other.
    assert np.all(slow.prepare_ps[kernels][1:] >= slow.launch_end_ps[kernels][:-1] - 1)
    gaps = layer & named(slow, "launch")
    assert slow.exposed_ps[gaps].sum() > slow.exposed_ps[layer & on(slow, "compute")].sum()
