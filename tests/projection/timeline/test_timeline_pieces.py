"""What lines are made of: rounding, lanes, moments, waits, and data parallelism event by event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.projection.timeline.checks import overlapping
from tests.projection.timeline.test_timeline_sums import BASE, EXPERTS, LAYOUTS

from projector.config.load import load_job
from projector.operations.table import BACKWARD, FORWARD, WEIGHT
from projector.projection.evaluate import evaluate
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline.ending import Ending
from projector.projection.timeline.layers import execution_order
from projector.projection.timeline.ranks import apportioned, lanes, moment_ps
from projector.projection.timeline.traffic import Traffic

WEIGHTS = st.lists(
    st.tuples(st.integers(0, len(BREAKDOWN) - 1), st.floats(0.0, 1e9)), min_size=1, max_size=60
)


@given(WEIGHTS)
def test_rounded_pieces_add_up(pairs):
    term = np.array([number for number, _ in pairs])
    weight = np.array([width for _, width in pairs])
    found = np.bincount(term, weight, len(BREAKDOWN))
    width = apportioned(weight, term, None)
    assert np.all(np.abs(width - weight) <= 2.0)
    sums = np.zeros(len(BREAKDOWN), np.int64)
    np.add.at(sums, term, width)
    assert np.array_equal(sums, np.rint(found).astype(int))
    # Of whatever total, nothing is lost, and nothing is taken.
    total = np.where(found > 0.0, np.rint(found).astype(int) + 3, 0)
    width = apportioned(weight, term, total)
    sums[:] = 0
    np.add.at(sums, term, width)
    assert np.array_equal(sums, total)
    assert width.min() >= 0


def test_whole_pieces_stay_as_they_are():
    weight = np.array([3.0, 0.0, 10.0**15 + 1, 7.0])
    total = np.zeros(len(BREAKDOWN), np.int64)
    total[2] = 10**15 + 11
    width = apportioned(weight, np.full(4, 2), total)
    assert width.tolist() == [3, 0, 10**15 + 1, 7]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 9)), min_size=2, max_size=40
    )
)
def test_lanes_keep_activities_apart(rows):
    track, start, duration = np.array(rows).T
    lane = lanes(track, start, start + duration)
    assert not overlapping(np.zeros_like(track), track, lane, start, start + duration)
    # There are as many as activities run at one time.
    for number in np.unique(track):
        own = track == number
        begin, end = start[own], (start + duration)[own]
        most = max(((begin <= at) & ((end > at) | (begin == at))).sum() for at in begin)
        assert lane[own].max() + 1 <= max(1, most)


def test_moments_lie_in_proportion_between_knots():
    knots = np.array([0.0, 1.0, 1.0, 3.0]), np.array([100, 200, 250, 450])
    seconds = np.array([-1.0, 0.0, 0.5, 2.0, 3.0, 3.0 + 5e-12])
    assert moment_ps(seconds, knots).tolist() == [100, 100, 150, 350, 450, 455]


@pytest.mark.parametrize(
    "name", ["dense", "pipeline", "zero_0", "zero_2", "zero_3", "fsdp_1", "fsdp_2", "interleaved"]
)
@pytest.mark.parametrize("splits", [False, True])
def test_traffic_takes_what_the_kernels_say(name, splits):
    apart = {"parallelism.pp": 4, "parallelism.vpp": 1, "training.schedule": "zerobubble"}
    evaluation = evaluate([load_job(BASE, LAYOUTS[name] | (apart if splits else {}))])
    traffic, times = Traffic(evaluation, 0), evaluation.inputs.times
    replicas, costs = evaluation.inputs.replicas, evaluation.inputs.costs
    for stage in range(len(replicas.stage)):
        kind = int(replicas.stage_kind[stage])
        first = kind if times.first_row[0] < 0 else times.first_row[0] + stage
        runs = slice(int(replicas.run_offset[kind]), int(replicas.run_offset[kind + 1]))
        count = replicas.workloads.run_count[replicas.run[runs]]

        def added(seconds, count=count, runs=runs):
            return (seconds[replicas.run[runs]] * count).sum()

        forward_s, backward_s = added(costs.forward_s), added(costs.backward_s)
        weight_s, sender = 0.0, BACKWARD
        if splits:
            backward_s, weight_s, sender = added(costs.input_s), added(costs.weight_s), WEIGHT
        for found, plain, wanted in (
            (traffic.forward(stage, first=True), forward_s, times.first_forward_s[first]),
            (traffic.forward(stage, first=False), forward_s, times.forward_s[kind]),
            (traffic.backward(stage, BACKWARD, last=False), backward_s, times.backward_s[kind]),
            (traffic.backward(stage, BACKWARD, last=True), backward_s, times.last_backward_s[kind]),
            (traffic.backward(stage, WEIGHT, last=False), weight_s, times.weight_s[kind]),
            (traffic.backward(stage, WEIGHT, last=True), weight_s, times.last_weight_s[kind]),
        ):
            more = (found.waits_s + found.before_s + found.slows_s + found.after_s).sum()
            more += sum(seconds for _, seconds in found.tail_s)
            assert plain + more == pytest.approx(wanted, rel=1e-12)
        left = traffic.backward(stage, sender, last=True).left
        assert sum(each.seconds for each in left) == pytest.approx(times.tail_s[kind], abs=1e-15)
        assert sum(each.seconds for each in traffic.after(stage, gathers=True)) == pytest.approx(
            times.gather_after_s[kind]
        )


def test_one_rank_after_the_other_ends_a_step():
    evaluation = evaluate([load_job(BASE, LAYOUTS["interleaved"])])
    ending, steps = Ending.of(evaluation, 0), evaluation.steps
    assert ending.rank == int(np.argmax(ending.finish_s))
    step_s = ending.finish_s[ending.rank] + ending.after_s + ending.overhead_s + ending.late_s
    assert step_s == pytest.approx(steps.iteration_s[0], rel=1e-12)


def test_experts_run_between_dispatch_and_combine():
    evaluation = evaluate([load_job(EXPERTS)])
    table = evaluation.table
    for workload in range(len(evaluation.workloads.rows)):
        rows = execution_order(table, np.flatnonzero(table.workload == workload))
        assert sorted(rows.tolist()) == np.flatnonzero(table.workload == workload).tolist()
        for phase in (FORWARD, BACKWARD):
            names = [table.labels[table.label[row]] for row in rows if table.phase[row] == phase]
            if "moe.dispatch" not in names:
                continue
            order = [
                "attention.core", "moe.router", "moe.permute", "moe.dispatch", "moe.experts.fc1",
                "moe.experts.fc2", "moe.combine", "moe.unpermute", "mlp.residual",
            ]  # fmt: skip
            places = [names.index(name) for name in order]
            assert places == sorted(places)
