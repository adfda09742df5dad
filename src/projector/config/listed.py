"""Which dated numbers of ``hardware/prices.yaml`` a job takes, and which of them are old."""

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from projector.config.job import Job
from projector.config.prices import Price, load_prices

OLD = dt.timedelta(days=365)
"""Prices older than this have a warning."""


class DatedNumber(NamedTuple):
    """A number of the dated tables that a job takes."""

    what: str
    value: float
    unit: str
    day: dt.date
    """Of the page or quote; the last one of a year for the average of a year."""
    source: str


def listed_price(job: Job) -> DatedNumber | None:
    """Return the listed price that a job takes, rent or capex; None without one or a need of it."""
    cost, prices, name = job.run.cost, load_prices(), job.cluster.device.name
    if cost.prices != "listed":
        return None
    price: Price | None
    if cost.owned.enabled:
        stated, price = cost.owned.capex_usd_per_gpu, prices.capex_usd_per_gpu.get(name)
        what, unit = f"the purchase of a {name}", "USD"
    else:
        stated, price = cost.usd_per_gpu_hour, prices.rental_usd_per_gpu_hour.get(name)
        what, unit = f"the rent of a {name}", "USD an hour"
    if stated is not None or price is None:
        return None
    return DatedNumber(what, price.value, unit, price.date, prices.sources[price.source])


def dated_numbers(job: Job) -> list[DatedNumber]:
    """Return what a job that states a run asks for in the dated tables, but the world's average."""
    if not job.run.is_stated:
        return []
    found = []
    price = listed_price(job)
    if price is not None:
        found.append(price)
    grid = job.run.energy.grid
    if isinstance(grid, str):
        entry = load_prices().grid_g_co2_per_kwh[grid]
        day, source = dt.date(entry.year, 12, 31), load_prices().sources[entry.source]
        found.append(DatedNumber(f"the grid of {grid}", entry.value, "g of CO2 a kWh", day, source))
    return found


def price_warnings(dated: Sequence[DatedNumber], today: dt.date) -> list[str]:
    """Return a warning for every number that is older than a year."""
    return [
        f"{each.what} is {each.value:g} {each.unit} of {each.day}, more than a year before "
        f"{today}; state your own ({each.source})"
        for each in dated
        if today - each.day > OLD
    ]
