"""Every schedule in every size: an order that holds what schedules promise, or a clear refusal."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.pipelines import random_costs
from projector.errors import ScheduleError
from projector.schedule import registry
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT, Order, check_order
from projector.schedule.planning.costs import Costs
from projector.schedule.replay.order_times import peak_bytes, replay
from reference.order_memory import check_memory

JIT = not numba.config.DISABLE_JIT
PLANNED = [entry.name for entry in registry.SCHEDULES.values() if entry.planned]
UNEVEN = (3, 5, 2)
"""F, B and W of a chunk."""

SIZES = [
    *((pp, range(1, 4 * pp + 1)) for pp in range(1, 7)),
    *((pp, (1, 2, pp - 1, pp, 2 * pp - 1, 2 * pp, 2 * pp + 1, 4 * pp)) for pp in (7, 8, 11, 16)),
    *((pp, (1, pp, 2 * pp, 3 * pp + 1)) for pp in (24, 31)),
    (64, (1, 100, 128)),
]


def columns_of(order, costs):
    """Durations and latencies of an order, as the replay takes them."""
    stage = order.stage_of % order.num_stages
    durations = np.array(costs[:3]).T[stage]
    if not order.splits_backward:
        durations[..., BACKWARD] += durations[..., WEIGHT]
        durations[..., WEIGHT] = 0
    latencies = np.array([costs.to_next_ps, costs.to_previous_ps])
    durations = durations[..., np.newaxis].repeat(3, axis=-1)
    return durations, np.tile(latencies, order.directions)


def assert_times_are_possible(order, costs):
    """Each rank does its work, once, and nothing is faster than any bound allows."""
    durations, latencies = columns_of(order, costs)
    timeline = replay(order, durations, latencies)
    summary = timeline.summary
    work = order.microbatches * durations[..., 0].sum(axis=(1, 2))
    assert summary.rank_busy_ps[0].tolist() == work.tolist()
    makespan = int(summary.makespan_ps[0])
    assert makespan == timeline.end_ps.max()
    # A rank cannot start before the first microbatch arrives, nor end before what is left of the
    # last one has run on its way back.
    rank_of = np.empty(order.stage_of.size, np.int64)
    rank_of[order.stage_of] = np.arange(order.pp)[:, np.newaxis]
    forward, backward = (np.empty(order.stage_of.size, np.int64) for _ in range(2))
    for kind, column in ((FORWARD, forward), (BACKWARD, backward)):
        column[order.stage_of] = durations[:, :, kind, 0]
    for first in range(0, order.stage_of.size, order.num_stages):
        stages = np.arange(first, first + order.num_stages)
        moves = rank_of[stages[1:]] != rank_of[stages[:-1]]
        down = np.append(0, np.cumsum(forward[stages[:-1]] + moves * latencies[0, stages[:-1]]))
        up = np.append(0, np.cumsum(backward[stages[:-1]] + moves * latencies[1, stages[1:]]))
        path = down[-1] + forward[stages[-1]] + backward[stages[-1]] + up[-1]
        assert makespan >= path
        if order.directions == 1:
            head = [down[np.isin(stages, order.stage_of[rank])].min() for rank in range(order.pp)]
            assert makespan >= (work + np.array(head)).max()
            assert np.all(summary.rank_start_ps[0] >= head)
    assert makespan >= work.max()


def order_or_refusal(name, pp, vpp, microbatches):
    """Build an order for uneven operations."""
    costs = None
    if registry.SCHEDULES[name].planned:
        same = [(time,) * (pp * vpp) for time in (*UNEVEN, 1, 1)]
        costs = Costs(*same, (1.0,) * (pp * vpp), 1.0, (float("inf"),) * pp)
    try:
        return registry.build(name, pp, vpp, microbatches, costs)
    except ScheduleError as refusal:
        return refusal


@pytest.mark.rotated
@pytest.mark.parametrize(("pp", "every"), SIZES, ids=[f"pp{pp}" for pp, _ in SIZES])
@pytest.mark.parametrize("name", registry.SCHEDULES)
def test_an_order_or_a_rule(name, pp, every):
    entry = registry.SCHEDULES[name]
    for vpp in dict.fromkeys((1, entry.chunks(1), entry.chunks(3))):
        for microbatches in every if JIT or pp < 3 else ():
            order = order_or_refusal(name, pp, vpp, microbatches)
            if isinstance(order, ScheduleError):
                assert order.message.startswith(f"schedule {name} ")
                assert order.key in {"pp", "vpp", "microbatches"}
                assert order.allowed is not None
                continue
            check_order(order)
            assert order.microbatches == microbatches // entry.directions
            rng = np.random.default_rng(microbatches)
            stages = np.arange(order.num_stages).reshape(1, -1)
            assert_times_are_possible(order, random_costs(rng, stages))


@st.composite
def planning_problems(draw, names=PLANNED):
    """A planned schedule with uneven stages and any kind of memory."""
    name = draw(st.sampled_from(names))
    entry = registry.SCHEDULES[name]
    vpp = entry.chunks(1)
    pp, microbatches = draw(st.integers(vpp, 8)), draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    stage_of = entry.stages(pp, vpp)
    costs = random_costs(rng, stage_of, w_share=draw(st.sampled_from([0.0, 0.5, 1.0, 0.3])))
    activation = draw(st.sampled_from(["whole", "fractions", "nothing", "some nothing", "one"]))
    size = {
        "whole": np.array(costs.activation),
        "fractions": rng.random(stage_of.size) * 10.0 ** rng.integers(-9, 9),
        "nothing": np.zeros(stage_of.size),
        "some nothing": np.array(costs.activation) * rng.integers(0, 2, stage_of.size),
        "one": np.ones(stage_of.size),
    }[activation]
    least = size[stage_of].sum(axis=1)
    limit = {
        "least": least,
        "least of all": np.full(pp, least.max()),
        "tight": least * rng.uniform(1.0, 3.0, pp),
        "loose": least * rng.uniform(1.0, 20.0, pp),
        "none": np.full(pp, np.inf),
        "of one rank": np.where(np.arange(pp) == rng.integers(pp), least, np.inf),
    }[draw(st.sampled_from(["least", "least of all", "tight", "loose", "none", "of one rank"]))]
    costs = costs._replace(activation=tuple(size.tolist()), limit=tuple(limit.tolist()))
    return name, pp, vpp, microbatches, costs


@pytest.mark.skipif(not JIT, reason="searches take too long")
@given(problem=planning_problems())
def test_planned_orders_keep_to_their_memory(problem):
    name, pp, vpp, microbatches, costs = problem
    order = registry.build(name, pp, vpp, microbatches, costs)
    check_order(order)
    check_memory(order, costs.activation, costs.w_share, costs.limit)
    assert_times_are_possible(order, costs)
    # What the memory check walks through is what the projection reports as the peak.
    size = np.array(costs.activation)[order.stage_of][np.newaxis]
    peak = peak_bytes(order, size, costs.w_share)[0][0]
    check_memory(order, costs.activation, costs.w_share, peak)
    for rank in np.flatnonzero(peak > 0.0).tolist():
        less = peak.copy()
        less[rank] *= 1.0 - 1e-6
        with pytest.raises(ScheduleError, match=f"rank {rank} holds"):
            check_memory(order, costs.activation, costs.w_share, less)


@pytest.mark.skipif(not JIT, reason="searches take too long")
@given(problem=planning_problems(names=["seaailab"]))
def test_no_order_of_one_chunk_that_fits_is_faster_than_the_plan(problem):
    _, pp, _, microbatches, costs = problem

    def makespan(order):
        return int(replay(order, *columns_of(order, costs)).summary.makespan_ps[0])

    planned = makespan(registry.build("seaailab", pp, 1, microbatches, costs))
    for name in ("gpipe", "1f1b", "zerobubble", "zerobubble-h2"):
        order = registry.build(name, pp, 1, microbatches)
        try:
            check_memory(order, costs.activation, costs.w_share, costs.limit)
        except ScheduleError:
            continue
        assert makespan(order) >= planned


@pytest.mark.skipif(not JIT, reason="searches take too long")
@given(problem=planning_problems(), rank=st.integers(0, 7), share=st.floats(0.0, 0.999))
def test_less_than_one_microbatch_is_refused(problem, rank, share):
    name, pp, vpp, microbatches, costs = problem
    stage_of = registry.SCHEDULES[name].stages(pp, vpp)
    least = np.array(costs.activation)[stage_of].sum(axis=1)
    limit = np.array(costs.limit)
    limit[rank % pp] = least[rank % pp] * share
    costs = costs._replace(limit=tuple(limit.tolist()))
    if least[rank % pp] == 0.0:
        registry.build(name, pp, vpp, microbatches, costs)
        return
    with pytest.raises(ScheduleError, match=f"on rank {rank % pp} ") as caught:
        registry.build(name, pp, vpp, microbatches, costs)
    assert caught.value.key == "memory_limit"


def test_check_memory_walks_through_every_rank():
    # Rank 1 holds two microbatches while it runs the third forward; half of each stays until W.
    order = Order(
        microbatches=2,
        rank_offset=[0, 6, 12],
        kind=[0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 2, 2],
        chunk=[0] * 12,
        microbatch=[0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1],
        stage_of=[[0], [1]],
        splits_backward=True,
    )
    check_memory(order, 1.0, 1.0, [1.0, 2.0])
    check_memory(order, [3.0, 2.0], 0.5, [3.0, 3.0])
    check_memory(order, 1.0, 0.0, 1.0)
    with pytest.raises(ScheduleError, match=r"rank 1 holds 3 after its operation 2, .* of 2.9"):
        check_memory(order, [3.0, 2.0], 0.5, [3.0, 2.9])
    with pytest.raises(ScheduleError, match="rank 0 holds 1 after its operation 0"):
        check_memory(order, 1.0, 1.0, 0.5)


def test_check_memory_counts_both_copies_of_a_model():
    order = registry.build("dualpipe", 4, 1, 8)
    check_memory(order, 1.0, 1.0, 5.0)
    with pytest.raises(ScheduleError, match="holds 5 "):
        check_memory(order, [1.0] * 4, 1.0, 4.0)
    # Without W nothing is kept behind B, whatever the share.
    check_memory(registry.build("1f1b", 4, 1, 8), 1.0, 1.0, [4.0, 3.0, 2.0, 1.0])
