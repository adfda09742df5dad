"""What a training run is paid with: money and energy."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from projector.config._base import NUMBER, AtLeastOne, Config, NotNegative, Positive
from projector.config.prices import region_named
from projector.errors import ConfigError, shown

MOST_G_CO2_PER_KWH = 5000.0
"""No grid emits more: lignite alone is at about 1,200."""

LEAST_SHARE, LEAST_YEARS = 1e-3, 1.0 / 366.0
"""A fleet is used for less than this by nobody, or for less than a day; prices of it leave a
float."""


def switched(value: Any) -> Any:
    """Read a term that is switched by true and false, or described by a mapping."""
    if isinstance(value, bool):
        return {"enabled": value}
    if value is None:
        return {}
    if not isinstance(value, Mapping | Config):
        allowed = "true, false or a mapping"
        raise ConfigError(f"takes {allowed} (got {shown(value)})", value=value, allowed=allowed)
    return value


class OwnedConfig(Config):
    """A fleet of one's own, by section 5 of the Roofline methodology.

    Of the fields that nothing is given for, ``hardware/prices.yaml`` has the numbers.
    """

    enabled: bool = False
    """Whether the run is paid with devices that are owned."""

    capex_usd_per_gpu: Positive | None = None
    """Purchase of one device; none given means the listed one, where ``prices`` is ``listed``."""

    system_share: NotNegative | None = None
    """Purchase of hosts, network and storage over that of the devices."""

    lifetime_years: Annotated[Positive, Field(ge=LEAST_YEARS)] | None = None
    """Years over which the purchase is written off."""

    utilisation: Annotated[float, Field(ge=LEAST_SHARE, le=1), NUMBER] | None = None
    """Share of these years in which some run pays."""

    cooling_usd_per_w: NotNegative | None = None
    """Of the TDP of devices; every year, unless ``facility`` says otherwise."""

    real_estate_usd_per_mw: NotNegative | None = None
    """Of the TDP of devices; every year, unless ``facility`` says otherwise."""

    facility: Literal["yearly", "once"] = "yearly"
    """Whether cooling and real estate are paid every year, as the equation of the methodology has
    it, or once in the lifetime, as its text could be read."""

    staff_share_per_year: NotNegative | None = None
    """Of the capex of devices."""


class CostConfig(Config):
    """Prices of a run; without any, no money is projected."""

    usd_per_gpu_hour: NotNegative | None = None
    """Rent of one device, paid for every reserved one as long as the run takes."""

    prices: Literal["none", "listed"] = "none"
    """Whether the dated prices of ``hardware/prices.yaml`` stand in for what is not stated."""

    owned: OwnedConfig = OwnedConfig()
    """A fleet of one's own instead of rent: true, false or a mapping."""

    @field_validator("owned", mode="before")
    @classmethod
    def _switched(cls, value: Any) -> Any:
        term = switched(value)
        return {"enabled": True, **term} if isinstance(value, Mapping) else term

    @model_validator(mode="after")
    def _is_paid_once(self) -> Self:
        if not self.owned.enabled:
            return self
        if self.usd_per_gpu_hour is not None:
            msg = "owned and usd_per_gpu_hour both pay for the devices; give one of them"
            raise ConfigError(
                msg, key="usd_per_gpu_hour", value=self.usd_per_gpu_hour, allowed="without owned"
            )
        if self.owned.capex_usd_per_gpu is None and self.prices != "listed":
            msg = "owned needs capex_usd_per_gpu, or prices: listed in cost"
            raise ConfigError(msg, key="owned.capex_usd_per_gpu", allowed="a price > 0")
        return self

    @property
    def is_stated(self) -> bool:
        """Whether a job asks for money."""
        return self.usd_per_gpu_hour is not None or self.prices == "listed" or self.owned.enabled


class EnergyConfig(Config):
    """What a run draws beside its devices, and what its power costs and emits."""

    pue: AtLeastOne | None = None
    """Power of the building over that of its machines; none given means
    ``hardware/prices.yaml``."""

    node_overhead_w_per_gpu: NotNegative | None = None
    """The rest of a node and of the network, for each device; none given means
    ``hardware/power.yaml``."""

    usd_per_kwh: NotNegative | None = None
    """Paid by an owner; in a rent it is included. None given means ``hardware/prices.yaml``."""

    grid: float | str | None = None
    """Grams of CO2 that a kWh emits, or a region of ``hardware/prices.yaml``; none given means the
    average of the world."""

    @field_validator("grid", mode="before")
    @classmethod
    def _is_known(cls, value: Any) -> Any:
        if isinstance(value, str):
            return region_named(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0.0 <= value <= MOST_G_CO2_PER_KWH):
            allowed = f"grams of CO2 for a kWh, 0 to {MOST_G_CO2_PER_KWH:g}, or a region"
            raise ConfigError(f"takes {allowed} (got {value!r})", value=str(value), allowed=allowed)
        return value
