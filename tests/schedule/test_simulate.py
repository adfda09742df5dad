"""Simulation from the times of the chunks."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import ScheduleError
from projector.schedule import registry
from projector.schedule.order import Order, round_robin_stages
from projector.schedule.replay import order_times
from projector.schedule.simulate import pipeline_run, simulate_schedule
from thoroughness import examples


@pytest.mark.parametrize(
    ("name", "vpp", "makespan_s"),
    [
        # Work F = B = W = 1 for each rank and microbatch, 32 microbatches on 8 ranks:
        # (M + PP - 1) * 3, and with virtual stages 3 M + 3 (PP - 1) / VPP
        # (Narayanan et al., 2021, arXiv:2104.04473, section 2.2).
        ("gpipe", 1, 117.0),
        ("1f1b", 1, 117.0),
        ("interleaved", 2, 106.5),
        ("interleaved", 4, 101.25),
    ],
)
def test_published_makespans(name, vpp, makespan_s):
    chunk = 1 / vpp
    result = simulate_schedule(name, pp=8, vpp=vpp, microbatches=32, f=chunk, b=chunk, w=chunk)
    assert result.makespan_s == makespan_s
    assert result.period_s == makespan_s  # Rank 0 works from the start to the end.
    assert result.bubble_fraction == pytest.approx(7 / (vpp * 32), rel=1e-12)


@pytest.mark.parametrize(("name", "period_s"), [("zerobubble", 103.0), ("zerobubble-h2", 96.0)])
def test_zero_bubble_makespans(name, period_s):
    result = simulate_schedule(name, pp=8, microbatches=32)
    assert result.makespan_s == 103.0
    assert result.period_s == period_s


@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 1), (4, 5, 3), (2, 1, 1), (1, 2, 1)])
def test_published_bubbles_of_zero_bubble(times):
    # Section 2 of arXiv:2401.10241, for W no longer than F and B.
    f, b, w = times
    for name, bubble_s in (("zerobubble", f + b - w), ("zerobubble-h2", f + b - 2 * w)):
        result = simulate_schedule(name, 8, 1, 32, f, b, w)
        assert result.period_s == 32 * (f + b + w) + 7 * bubble_s


@pytest.mark.parametrize("pp", range(1, 17))
def test_zero_bubble_takes_the_least_time(pp):
    for microbatches in range(1, 4 * pp + 1):
        one, first, second = (
            simulate_schedule(name, pp, 1, microbatches)
            for name in ("1f1b", "zerobubble", "zerobubble-h2")
        )
        # The last rank starts after pp - 1 forwards and has 3 for each microbatch; the last B
        # leaves it after F and B of every one, then passes pp - 1 ranks and has its W on the first.
        least_s = max(3 * microbatches + pp - 1, 2 * microbatches + 2 * pp - 1)
        assert first.makespan_s == second.makespan_s == least_s <= one.makespan_s
        assert second.period_s <= first.period_s
        assert second.period_s == max(3 * microbatches, 2 * microbatches + 2 * pp - 1)


def test_result():
    result = simulate_schedule("auto", pp=4, microbatches=8)
    assert result.to_dict() == {
        "schedule": "1f1b",
        "pp": 4,
        "vpp": 1,
        "microbatches": 8,
        "makespan_s": 33.0,
        "period_s": 33.0,
        "bubble_fraction": 9 / 24,
        "peak_in_flight": [4, 3, 2, 1],
        "fits": True,
    }
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert repr(result) == (
        "ScheduleResult(1f1b, pp=4, vpp=1, microbatches=8: makespan 33 s, period 33 s, "
        "bubble 37.50% of the work, peak in flight 4)"
    )


def test_one_rank_has_no_bubble():
    result = simulate_schedule("1f1b", pp=1, microbatches=5, f=0.1, b=0.2, w=0.3, p2p=9.0)
    assert result.makespan_s == pytest.approx(5 * 0.6, abs=1e-11)
    assert result.bubble_fraction == 0.0


def test_period_is_the_span_of_one_rank():
    # A long last stage: rank 0 starts earlier than the last one, which never waits again.
    result = simulate_schedule("1f1b", pp=2, microbatches=3, f=[1, 10], b=[1, 10], w=0)
    assert result.makespan_s == 1 + 3 * 20 + 1
    assert result.period_s == 62
    assert result.bubble_fraction == pytest.approx(2 / 60)


def test_arrays_are_in_model_order():
    # Virtual stage 2 is chunk 1 of rank 0; one microbatch each passes through all stages.
    times = np.array([1.0, 2.0, 4.0, 8.0])
    result = simulate_schedule("interleaved", 2, 2, 2, f=times, b=0, w=0)
    # Rank 0: stage 0 twice, stage 2 from 3 on; rank 1: stage 1 twice, stage 3 twice.
    assert result.makespan_s == 7 + 8 + 8
    assert result == simulate_schedule("interleaved", 2, 2, 2, f=times.tolist(), b=0.0, w=[0] * 4)


def test_weight_gradient_runs_with_the_backward():
    together = simulate_schedule("1f1b", 4, 1, 8, f=1, b=3, w=0)
    assert simulate_schedule("1f1b", 4, 1, 8, f=1, b=1, w=2) == together


def test_schedule_that_splits_the_backward(monkeypatch):
    def order(pp, vpp, microbatches):
        # F B W of the first stage behind its neighbour, W of the last stage put off to the end.
        number = np.arange(microbatches)
        twice = np.repeat(number, 2)
        return Order(
            microbatches=microbatches,
            rank_offset=[0, 3 * microbatches, 6 * microbatches],
            kind=np.concatenate(
                [
                    [0] * microbatches,
                    [1, 2] * microbatches,
                    [0, 1] * microbatches,
                    [2] * microbatches,
                ]
            ),
            chunk=np.zeros(6 * microbatches),
            microbatch=np.concatenate([number, twice, twice, number]),
            stage_of=round_robin_stages(pp, vpp),
            splits_backward=True,
        )

    entry = registry.Entry("late", "one line in the registry", lambda *sizes: None, order)
    monkeypatch.setitem(registry.SCHEDULES, "late", entry)
    result = simulate_schedule("late", 2, 1, 3, f=1, b=2, w=[3, 5])
    # Rank 1 works from 1 to 10 on F and B, then 3 * 5 on W; rank 0 needs 1 + 3 + 3 * 5 = 19.
    assert result.makespan_s == 25.0
    assert result.period_s == 24.0
    assert result.peak_in_flight == [3, 3]


def test_latency_delays():
    quick, slow = (simulate_schedule("1f1b", 4, 1, 8, p2p=p2p) for p2p in (0.0, 0.5))
    assert slow.makespan_s > quick.makespan_s
    # One microbatch passes every stage there and back.
    assert simulate_schedule("gpipe", 4, p2p=0.5).makespan_s == 4 * 3 + 6 * 0.5


def test_no_work_has_no_bubble():
    result = simulate_schedule("1f1b", 4, 1, 8, f=0, b=0, w=0)
    assert (result.makespan_s, result.bubble_fraction) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"f": -1.0}, "f"),
        ({"b": math.nan}, "b"),
        ({"w": math.inf}, "w"),
        ({"f": 1e7}, "f"),
        ({"f": [1.0, 2.0, 3.0]}, "f"),
        ({"b": [[1.0] * 4]}, "b"),
        ({"w": "fast"}, "w"),
        ({"p2p": [0.0] * 4}, "p2p"),
        ({"p2p": -1.0}, "p2p"),
        ({"pp": 0}, "pp"),
        ({"microbatches": 10**9}, "microbatches"),
        ({"name": "2f2b"}, "schedule"),
    ],
)
def test_refusals(arguments, key):
    with pytest.raises(ScheduleError) as error:
        simulate_schedule(**{"name": "1f1b", "pp": 4, "microbatches": 8, **arguments})
    assert error.value.key == key
    json.dumps(error.value.to_dict(), allow_nan=True)


def test_step_that_is_too_long():
    with pytest.raises(ScheduleError, match="longer than"):
        simulate_schedule("1f1b", 1, 1, 1000, f=1e5, b=0, w=0)


@pytest.mark.parametrize("pp", [2, 3, 8, 16])
def test_zbv_waits_for_the_ramps_only(pp):
    # Equal chunks of 1/2, so F = B = W = 1 a rank: (pp - 1) / 2 is the least a V allows.
    for microbatches in (2 * pp, 4 * pp):
        for name in ("zbv-formatted", "zbv-greedy-zb"):
            result = simulate_schedule(name, pp, 2, microbatches, 0.5, 0.5, 0.5)
            assert result.makespan_s == 3 * microbatches + (pp - 1) / 2


def test_planned_schedules_keep_to_a_memory_limit():
    times = {"f": 1.0, "b": 1.2, "w": 0.8, "p2p": 0.05}
    spans = []
    for limit in (1, 2, 4, 6, 12):
        result = simulate_schedule("seaailab", 6, 1, 18, **times, memory_limit=limit)
        assert max(result.peak_in_flight) <= limit
        assert result.fits
        spans.append(result.makespan_s)
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] < spans[0]
    with pytest.raises(ScheduleError, match="at least 1") as caught:
        simulate_schedule("seaailab", 6, 1, 18, memory_limit=0.5)
    assert caught.value.key == "memory_limit"
    assert not simulate_schedule("gpipe", 4, 1, 8, memory_limit=4).fits


@pytest.mark.parametrize("limit", [0, -1, "much", True, float("nan")])
def test_memory_limit_is_a_number_above_zero(limit):
    with pytest.raises(ScheduleError, match="memory_limit"):
        simulate_schedule("1f1b", 4, 1, 8, memory_limit=limit)


def test_seaailab_is_never_behind_the_handcrafted_orders():
    rng = np.random.default_rng(0)
    for _ in range(20):
        f, b, w = rng.uniform(0.5, 2.0, (3, 4))
        p2p = float(rng.choice([0.0, 0.05]))
        planned = simulate_schedule("seaailab", 4, 1, 12, f, b, w, p2p)
        for name in ("1f1b", "zerobubble"):
            fixed = simulate_schedule(name, 4, 1, 12, f, b, w, p2p)
            assert planned.makespan_s <= fixed.makespan_s * (1 + 1e-9)


def test_blocking_sends_lengthen_the_operations():
    # Rank 0 sends F, rank 1 sends B: what sends lasts 0.5 longer, nothing else waits.
    result = simulate_schedule("1f1b", 2, 1, 4, 1.0, 1.0, 1.0, 0.5, overlap_p2p=False)
    longer = simulate_schedule("1f1b", 2, 1, 4, [1.5, 1.0], [1.0, 1.5], 1.0)
    assert (result.makespan_s, result.period_s) == (longer.makespan_s, longer.period_s)
    # A send is no work: the bubble is what is not work.
    assert result.bubble_fraction == pytest.approx(result.makespan_s / 12 - 1, rel=1e-12)
    # The turn of a V sends nothing.
    v = simulate_schedule("zbv-formatted", 2, 2, 4, 1.0, 1.0, 1.0, 0.5, overlap_p2p=False)
    longer = simulate_schedule(
        "zbv-formatted", 2, 2, 4, [1.5, 1.0, 1.5, 1.0], [1.0, 1.5, 1.0, 1.5], 1.0
    )
    assert v.makespan_s == longer.makespan_s


def test_groups_of_microbatches_reach_the_interleaved_schedule():
    small = simulate_schedule("interleaved", 4, 2, 16, p2p=0.3)
    large = simulate_schedule("interleaved", 4, 2, 16, p2p=0.3, group_size=8)
    # Longer groups hide the latency and hold more.
    assert large.makespan_s < small.makespan_s
    assert max(large.peak_in_flight) > max(small.peak_in_flight)


FIXED = {"1f1b": 1, "gpipe": 1, "interleaved": 2, "zerobubble": 1, "zerobubble-h2": 1,
         "zbv-formatted": 2}  # fmt: skip
"""Schedules whose orders depend on no times, and their chunks."""


def shortened(name, vpp, pp, rounds, times, which, share):
    """Return the makespan before and after one time got shorter."""
    more = dict(zip("fbw", map(float, times), strict=True), p2p=0.0)
    less = more | {which: more[which] * share}
    return (
        simulate_schedule(name, pp=pp, vpp=vpp, microbatches=pp * rounds, **each).makespan_s
        for each in (more, less)
    )


SHORTER = st.tuples(
    st.integers(2, 6),
    st.integers(1, 4),
    st.tuples(*[st.integers(1, 12)] * 3),
    st.sampled_from("fbw"),
    st.floats(0.0, 1.0),
)


@given(st.sampled_from([*FIXED]), SHORTER)
def test_an_order_without_times_never_ends_later(name, drawn):
    before, after = shortened(name, FIXED[name], *drawn)
    assert after <= before


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(["zbv-greedy-min", "zbv-greedy-half", "zbv-greedy-zb"]), SHORTER)
def test_plans_end_hardly_later(name, drawn):
    # Graham's anomalies of list schedules (1969); docs/schedules.md.
    before, after = shortened(name, 2, *drawn)
    assert after <= 1.1 * before


def test_the_least_anomaly_of_a_plan():
    times = {"pp": 3, "vpp": 2, "microbatches": 2, "f": 6.0, "b": 5.0, "p2p": 0.0}
    assert simulate_schedule("zbv-greedy-zb", w=5.0, **times).makespan_s == 87.0
    assert simulate_schedule("zbv-greedy-zb", w=4.0, **times).makespan_s == 88.0


LONG = [
    ("1f1b", 1, 1), ("1f1b", 3, 1), ("interleaved", 2, 3), ("1f1b-v", 3, 2), ("zerobubble", 3, 1),
    ("zerobubble-h2", 4, 1), ("zbv-formatted", 2, 2), ("dualpipe", 4, 1), ("gpipe", 3, 1),
    ("zbv-greedy-half", 2, 2), ("seaailab", 3, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pp", "vpp"), LONG)
@given(
    data=st.data(),
    turns=st.integers(4, 40),
    unit=st.sampled_from([1.0, 0.5, 1e-3, 1e-12]),
    p2p=st.integers(0, 3),
    overlap=st.booleans(),
)
@settings(max_examples=examples(20))
def test_a_step_is_that_of_all_its_operations(name, pp, vpp, data, turns, unit, p2p, overlap):
    times = st.lists(st.integers(0, 5), min_size=pp * vpp, max_size=pp * vpp)
    f, b, w = (np.multiply(data.draw(times), unit) for _ in range(3))
    limit = order_times.FEW_OPERATIONS
    order_times.FEW_OPERATIONS = 0
    try:
        run = pipeline_run(name, pp, vpp, 2 * pp * turns, f, b, w, p2p * unit, overlap_p2p=overlap)
    finally:
        order_times.FEW_OPERATIONS = limit
    for found, expected in zip(run.summary, run.timeline.summary, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert run.peak_in_flight == order_times.peak_in_flight(run.order).tolist()
    held, _ = order_times.peak_bytes(run.order, run.activation_bytes[np.newaxis], run.w_share)
    np.testing.assert_array_equal(run.peak_bytes, held[0])


@pytest.mark.parametrize(("name", "pp", "vpp"), LONG[:-3])
def test_a_million_microbatches_are_no_list(name, pp, vpp, monkeypatch):
    count = 2**24 // (3 * pp * vpp)
    count -= count % (2 * pp)
    listed = []

    def build(*arguments):
        listed.append(arguments[3])
        return built(*arguments)

    built = registry.build
    registry.series.cache_clear()
    monkeypatch.setattr(registry, "build", build)
    counts = [count - turn * 2 * pp for turn in range(3)]
    results = [simulate_schedule(name, pp, vpp, each, 0.125, 0.125, 0.125) for each in counts]
    assert results[0].makespan_s - results[1].makespan_s == 2 * pp * vpp * 0.375
    assert results[1].makespan_s - results[2].makespan_s == 2 * pp * vpp * 0.375
    assert max(listed) < 200
    # More than all operations of all ranks might take without an overflow.
    longest = simulate_schedule(name, pp, vpp, count, *[round(1e6 / count / vpp, 3)] * 3)
    assert 2.9e6 < longest.period_s < 4.6e6
    with pytest.raises(ScheduleError, match="the step is longer than"):
        simulate_schedule(name, pp, vpp, count, *[2e6 / count / vpp] * 3)


@pytest.mark.parametrize(
    ("arguments", "match", "most"),
    [
        (("gpipe", 5, 1, 10**6), "8,388,608 of them, .* have 15,000,000; 559,240", 559240),
        (("interleaved", 2, 2, 10**6, 500_000), "show the same", 699050),
        (("interleaved", 4, 2, 698_000, 116_508), "; 349,524 microbatches show the same", 349524),
        (("interleaved", 2, 2, 1_390_000, 699_049), "; 699,049 microbatches", 699049),
        (("seaailab", 2, 1, 10**5), "524,288 of them", 87380),
        (("zbv-greedy-zb", 4, 2, 10**5), "524,288 of them", 21844),
    ],
)
def test_what_has_to_be_listed_has_a_limit(arguments, match, most):
    name, pp, vpp, microbatches, *group = arguments
    with pytest.raises(ScheduleError, match=match) as error:
        simulate_schedule(name, pp, vpp, microbatches, group_size=group[0] if group else None)
    assert (error.value.key, error.value.allowed) == ("microbatches", most)
    assert registry.check(name, pp, vpp, most, *group).microbatches == most


def test_what_has_to_be_listed_may_run_no_fewer_microbatches():
    with pytest.raises(ScheduleError, match="have 12,582,912, and it runs no fewer") as error:
        registry.check("interleaved", 256, 64, 256)
    assert error.value.allowed == "fewer ranks or chunks"


def test_a_group_that_no_list_holds_names_the_longest_that_some_list_does():
    words = r"groups of 700,000 is shorter; give .* or fewer"
    with pytest.raises(ScheduleError, match=words) as of:
        registry.check("interleaved", 2, 2, 1_390_000, 700_000)
    assert of.value.key == "group_size"
    longest = int(of.value.allowed.removeprefix("2.."))
    for microbatches in (1_390_000, 20 * longest + longest - 1):
        assert registry.check("interleaved", 2, 2, microbatches, longest)
