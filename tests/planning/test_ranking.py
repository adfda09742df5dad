"""The order of choices, on choices made by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.arrays import front_rows
from projector.config.bands import Band
from projector.config.job import Job
from projector.planning.choice import MEETS, MISSES, UNCERTAIN, Choice, RunFigures
from projector.planning.ranking import excess, knee_of, rank, status_of

BAND = Band(0.9, 1.1, 0.85, 1.2, 20, "for a test")


def choice(gpus=64, days=10.0, cost=None, *, label="h100", verdict="fits", tp=1):
    run = RunFigures(
        tokens=1e12, days=days, days_low=0.8 * days, days_high=1.2 * days,
        gpu_hours=24.0 * days * gpus, energy_mwh=None, co2_t=None, cost_usd=cost, goodput=0.95,
        failures=1.0, checkpoint_interval_s=600.0, terms_days={}, assumptions=(),
    )  # fmt: skip
    cluster = SimpleNamespace(gpus=gpus, nodes=gpus // 8)
    job = Job.model_construct(cluster=cluster)
    return Choice(
        label=label, job=job, overrides={"parallelism.tp": tp}, run=run, iteration_time_s=1.0,
        tokens_per_s_per_gpu=1.0, mfu=0.4, peak_bytes=1.0, peak_low_bytes=1.0, peak_high_bytes=1.0,
        usable_bytes=2.0, verdict=verdict, degrees={}, schedule="1f1b", bound="x", band=BAND,
    )  # fmt: skip


def question(deadline=None, budget=None):
    return SimpleNamespace(deadline_days=deadline, budget_usd=budget)


@pytest.mark.parametrize(
    ("days", "status"), [(24.0, MEETS), (25.0, MEETS), (25.1, UNCERTAIN), (30.1, MISSES)]
)
def test_a_deadline_counts_with_the_band(days, status):
    assert status_of(question(deadline=30.0), choice(days=days)) == status


@pytest.mark.parametrize(("cost", "status"), [(80.0, MEETS), (90.0, UNCERTAIN), (101.0, MISSES)])
def test_a_budget_counts_with_the_band(cost, status):
    assert status_of(question(budget=100.0), choice(cost=cost)) == status


def test_what_has_no_price_keeps_no_budget():
    assert status_of(question(budget=100.0), choice(cost=None)) == MISSES


def test_the_cheapest_within_the_deadline_comes_first():
    found = rank(
        question(deadline=30.0),
        [choice(128, 10.0, 300.0), choice(64, 20.0, 200.0), choice(32, 40.0, 100.0)],
    )
    assert [each.gpus for each in found] == [64, 128, 32]
    assert [each.status for each in found] == [MEETS, MEETS, MISSES]
    assert found[0].remark == "first"
    assert "cost +50 %" in found[1].remark
    assert "10.0 days late" in found[2].remark


def test_without_prices_gpu_hours_decide():
    found = rank(question(deadline=30.0), [choice(128, 12.0), choice(64, 20.0, label="b200")])
    assert [each.gpus for each in found] == [64, 128]


def test_the_fastest_within_the_budget_comes_first():
    found = rank(
        question(budget=300.0),
        [choice(32, 40.0, 100.0), choice(64, 20.0, 200.0), choice(128, 10.0, 400.0)],
    )
    assert [each.gpus for each in found] == [64, 32, 128]
    assert "33 % over the budget" in found[2].remark


def test_the_cheapest_within_both():
    found = rank(
        question(deadline=30.0, budget=300.0),
        [choice(32, 40.0, 100.0), choice(64, 20.0, 200.0), choice(96, 12.0, 180.0)],
    )
    assert [each.gpus for each in found] == [96, 64, 32]


def test_what_is_at_risk_comes_after_what_fits():
    found = rank(
        question(deadline=30.0),
        [choice(64, 20.0, 50.0, verdict="at_risk"), choice(64, 24.0, 60.0), choice(64, 29.0, 55.0)],
    )
    assert [(each.verdict, each.status) for each in found] == [
        ("fits", MEETS), ("fits", UNCERTAIN), ("at_risk", MEETS),
    ]  # fmt: skip
    assert "memory at risk" in found[-1].remark


def test_what_misses_is_ordered_by_how_far_off_it_is():
    ask = question(deadline=10.0, budget=100.0)
    far, near = choice(8, 40.0, 90.0), choice(64, 12.0, 110.0)
    assert excess(ask, near) == pytest.approx(0.3)
    assert [each.gpus for each in rank(ask, [far, near])] == [64, 8]


def test_the_knee_comes_first_without_limits():
    found = rank(
        question(), [choice(8, 100.0, 100.0), choice(64, 12.0, 110.0), choice(128, 11.0, 200.0)]
    )
    assert found[0].is_knee
    assert found[0].gpus == 64
    assert all(each.on_front for each in found)


def test_groups_hold_what_noise_explains_and_are_numbered_in_order():
    found = rank(
        question(deadline=300.0),
        [choice(64, 10.0, 100.0), choice(64, 10.1, 101.0, label="b200"), choice(64, 90.0, 900.0)],
    )
    assert [each.group for each in found] == [1, 1, 2]
    assert "within noise of the first" in found[1].remark


def test_what_another_beats_names_it():
    found = rank(
        question(deadline=30.0),
        [
            choice(64, 10.0, 100.0),
            choice(128, 11.0, 110.0),
            choice(256, 9.0, 120.0),
            choice(512, 8.0, 90.0, verdict="at_risk"),
        ],
    )
    beaten = {each.gpus: each.beaten_by for each in found}
    # What is at risk beats nothing that fits.
    assert beaten == {64: "", 256: "", 128: "64 x h100", 512: ""}


def test_nothing_is_ranked_as_nothing():
    assert rank(question(deadline=1.0), []) == ()


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=30))
def test_the_front_has_what_no_other_beats(points):
    days, spent = np.array(points).T
    front = front_rows(days, spent).tolist()
    for row in range(len(points)):
        beaten = any(
            (days[other] <= days[row] and spent[other] <= spent[row])
            and (days[other] < days[row] or spent[other] < spent[row])
            for other in range(len(points))
        )
        same = any(days[i] == days[row] and spent[i] == spent[row] for i in front)
        assert same != beaten
    assert list(days[front]) == sorted(days[front])


@given(st.floats(1.5, 50.0), st.floats(1.5, 50.0))
def test_the_knee_does_not_depend_on_units(days_unit, money_unit):
    days, spent = np.array([1.0, 2.0, 4.0, 8.0]), np.array([9.0, 3.0, 2.5, 2.4])
    assert knee_of(days, spent) == knee_of(days * days_unit, spent * money_unit) == 1


def test_a_front_without_a_bend_has_no_knee():
    days = np.array([1.0, 2.0, 4.0])
    assert knee_of(days[:2], days[:2][::-1]) is None
    # Below a straight line there is nothing, above it nothing either.
    assert knee_of(days, np.array([4.0, 3.9, 1.0])) is None


def test_a_choice_says_what_json_promises():
    known = replace(choice(cost=3.0), status=MEETS)
    keys = replace(known.run, energy_mwh=40.0).to_dict().keys()
    assert {"days", "days_low", "days_high", "gpu_hours", "energy_mwh", "cost_usd"} <= keys
