"""Dated numbers that jobs take, and when they are old."""

import datetime as dt

import pytest

from projector.config.listed import OLD, dated_numbers, listed_price, price_warnings
from projector.config.load import load_job
from projector.config.prices import load_prices
from projector.projection.provenance import provenance_of

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
    "cluster": {"device": "h100"},
    "run": {"tokens": 1e9},
}
H100 = load_prices().rental_usd_per_gpu_hour["NVIDIA H100 SXM 80GB"]


def job(**overrides):
    changed = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_job(JOB, changed)


def warnings_of(job, today):
    return price_warnings(dated_numbers(job), today)


def test_no_job_takes_them_by_itself():
    assert dated_numbers(job()) == []


@pytest.mark.parametrize(
    ("days", "warned"), [(0, False), (OLD.days, False), (OLD.days + 1, True), (5000, True)]
)
def test_a_price_is_old_after_a_year(days, warned):
    today = H100.date + dt.timedelta(days=days)
    found = warnings_of(job(run__cost__prices="listed"), today)
    assert bool(found) == warned
    if warned:
        assert str(H100.date) in found[0]
        assert "2.95 USD an hour" in found[0]


def test_purchases_are_dated_too():
    listed = job(run__cost__prices="listed", run__cost__owned=True)
    assert listed_price(listed).unit == "USD"
    assert warnings_of(listed, dt.date(2030, 1, 1))


@pytest.mark.parametrize(
    "overrides",
    [
        {"run__cost__prices": "listed", "run__cost__usd_per_gpu_hour": 2.0},
        {"run__cost__prices": "listed", "cluster__device": "h800"},
        {"run__cost__prices": "listed", "run__tokens": None},
        {"run__cost__usd_per_gpu_hour": 2.0},
        {"run__energy__grid": 56},
    ],
)
def test_own_and_missing_numbers_have_no_age(overrides):
    assert warnings_of(job(**overrides), dt.date(2040, 1, 1)) == []


def test_a_grid_is_as_old_as_the_end_of_its_year():
    france = job(run__energy__grid="france")
    year = load_prices().grid_g_co2_per_kwh["france"].year
    end = dt.date(year, 12, 31)
    assert warnings_of(france, end + OLD) == []
    assert "france" in warnings_of(france, end + OLD + dt.timedelta(days=1))[0]


def test_the_date_is_passed_in():
    listed = job(run__cost__prices="listed")
    assert provenance_of(listed, H100.date).warnings == ()
    assert len(provenance_of(listed, dt.date(2040, 1, 1)).warnings) == 1


def test_the_clock_of_the_machine_otherwise(monkeypatch):
    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2040, 1, 1, tzinfo=tz)

    monkeypatch.setattr("projector.projection.provenance.dt.datetime", Clock)
    assert len(provenance_of(job(run__cost__prices="listed")).warnings) == 1
    assert provenance_of(job()).warnings == ()
