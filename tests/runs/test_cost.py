"""What runs cost, by hand and against the multiplier of the Roofline methodology."""

import numpy as np
import pytest

from projector.config.prices import load_prices
from projector.runs.cost import (
    HOURS_PER_YEAR,
    Ownership,
    cost_usd,
    owned_shares,
    owned_usd_per_gpu_hour,
    usd_per_mfu_point,
    usd_per_million_tokens,
)


def one(value):
    return np.array([value], np.float64)


def ownership(**changes):
    owned = load_prices().owned
    fields = {
        "capex_usd": 30_000.0,
        "system_share": owned.system_share.value,
        "lifetime_years": owned.lifetime_years.value,
        "utilisation": owned.utilisation.value,
        "tdp_w": 700.0,
        "cooling_usd_per_w": owned.cooling_usd_per_w.value,
        "real_estate_usd_per_w": owned.real_estate_usd_per_mw.value / 1e6,
        "facility_once": False,
        "staff_share": owned.staff_share_per_year.value,
    }
    return Ownership(**{name: one(value) for name, value in (fields | changes).items()})


def shares(average_w=700.0 * 1.45, **changes):
    usd_per_kwh = load_prices().owned.usd_per_kwh.value
    return owned_shares(ownership(**changes), one(average_w), one(usd_per_kwh))


def test_multiplier_of_h100_comes_out():
    """1.35: a device of 30,000 USD and 700 W that always draws its TDP."""
    assert shares().multiplier[0] == pytest.approx(1.357, abs=0.001)


def test_terms_of_the_multiplier():
    terms = {name: float(value[0]) for name, value in shares()._asdict().items()}
    assert terms == pytest.approx(
        {
            "purchase": 1.0,
            "power": 3 * 8.760 * 700 * 1.45 * 0.07 / 30_000,
            "cooling": 3 * 1.5 * 700 / 30_000,
            "real_estate": 3 * 700 / 30_000,
            "staff": 0.12,
        }
    )


@pytest.mark.parametrize(("capex_usd", "multiplier"), [(25_000, 1.405), (40_000, 1.298)])
def test_multiplier_rests_on_the_price(capex_usd, multiplier):
    assert shares(capex_usd=float(capex_usd)).multiplier[0] == pytest.approx(multiplier, abs=0.001)


def test_multiplier_falls_short_where_buildings_are_paid_once():
    assert shares(facility_once=True).multiplier[0] == pytest.approx(1.241, abs=0.001)


def test_hours_of_a_lifetime_cost_what_ownership_costs():
    owned = ownership(utilisation=0.8)
    hourly = owned_usd_per_gpu_hour(owned, one(1000.0), one(0.07))
    hours = 3 * HOURS_PER_YEAR * 0.8
    multiplier = owned_shares(owned, one(1000.0), one(0.07)).multiplier
    assert hourly[0] * hours == pytest.approx(multiplier[0] * 30_000)


def test_idle_years_make_an_hour_dearer():
    busy, idle = (
        owned_usd_per_gpu_hour(ownership(utilisation=u), one(1000.0), one(0.07)) for u in (1, 0.5)
    )
    # Power is paid by use.
    assert busy[0] < idle[0] < 2.0 * busy[0]


def test_no_price_is_no_cost():
    assert np.isnan(cost_usd(one(100.0), one(np.nan)))[0]
    assert np.isnan(owned_usd_per_gpu_hour(ownership(capex_usd=np.nan), one(1.0), one(1.0)))[0]


def test_ratios():
    assert usd_per_million_tokens(one(500.0), one(1e9))[0] == pytest.approx(0.5)
    assert usd_per_mfu_point(one(500.0), one(0.4))[0] == pytest.approx(12.5)
