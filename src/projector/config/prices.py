"""Dated prices, grid intensities and the power around devices, as ``hardware/`` has them."""

import datetime as dt
import difflib

from pydantic import Field

from projector.config._base import Config, NotNegative
from projector.config.resources import shipped_table
from projector.errors import ConfigError

OTHER_FAMILY = "other"
"""Entry for architectures that a table does not list."""

WORLD = "world"
"""Region of a job that names none."""


class Number(Config):
    """A number with where it comes from."""

    value: NotNegative
    source: str
    """Key of the file's ``sources``."""
    note: str = ""


class Price(Number):
    """What something cost on a day."""

    date: dt.date
    """Of the page or quote."""


class Intensity(Number):
    """Emissions of a kWh of a grid, averaged over a year."""

    year: int = Field(ge=1990, le=2200)


class OwnedNumbers(Config):
    """What an owner of devices pays, where a job states no numbers of its own."""

    lifetime_years: Number
    usd_per_kwh: Number
    pue: Number
    cooling_usd_per_w: Number
    real_estate_usd_per_mw: Number
    staff_share_per_year: Number
    system_share: Number
    utilisation: Number


class Prices(Config):
    """``hardware/prices.yaml``."""

    rental_usd_per_gpu_hour: dict[str, Price]
    """By the name of a device."""
    capex_usd_per_gpu: dict[str, Price]
    """By the name of a device."""
    grid_g_co2_per_kwh: dict[str, Intensity]
    """By region."""
    owned: OwnedNumbers
    sources: dict[str, str]


class SurroundingPower(Config):
    """``hardware/power.yaml``."""

    other_w_per_gpu: dict[str, Number]
    """The rest of a node for each of its devices, by architecture."""
    network_w_per_gpu: Number
    """Switches beyond the node for each device."""
    busy_share: dict[str, Number]
    """Of the TDP during a step, by architecture, where a device has no power model."""
    idle_share: dict[str, Number]
    """The same outside of steps."""
    sources: dict[str, str]


load_prices = shipped_table(Prices, "prices.yaml")


load_surrounding_power = shipped_table(SurroundingPower, "power.yaml")


def of_family(table: dict[str, Number], architecture: str) -> Number:
    """Return the entry of an architecture, or that of all others."""
    return table.get(architecture, table[OTHER_FAMILY])


def region_named(text: str) -> str:
    """Return the region that a text names; case and separators do not count."""
    known = load_prices().grid_g_co2_per_kwh
    name = "_".join(text.lower().replace("-", " ").replace("_", " ").split())
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=3) or sorted(known)
    msg = f"unknown region {text!r}; known: {', '.join(close)}, or a number of grams for a kWh"
    raise ConfigError(msg, value=text, allowed=close)
