"""The columns of power and money: what devices draw, what runs are paid with."""

import math

from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.prices import (
    WORLD,
    load_prices,
    load_surrounding_power,
    of_family,
)
from projector.config.run import RunConfig
from projector.kernels.device import MATRIX_TYPES
from projector.lower.columns import Declare, SectionColumns
from projector.lower.hardware import native_type
from projector.units import MEGA, PICO

_cluster = Declare[ClusterConfig]()
_run = Declare[RunConfig]()


def _held_w(device: Device) -> float:
    """Return what a device draws at most over a second; NaN without a power model."""
    return math.nan if device.power is None else device.tdp_w * device.power.loaded_share


def _idle_w(device: Device) -> float:
    if device.power is not None:
        return device.power.idle_w
    share = of_family(load_surrounding_power().idle_share, device.architecture)
    return device.tdp_w * share.value


def _flat_w(device: Device) -> float:
    """Return what a device without a power model draws during a step."""
    share = of_family(load_surrounding_power().busy_share, device.architecture)
    return device.tdp_w * share.value


def _joule_per_flop(cluster: ClusterConfig) -> list[float]:
    """Return the energy of a FLOP by matrix type, NaN where the power model has none."""
    power = cluster.device.power
    known = {} if power is None else power.pj_per_flop
    natives = [native_type(cluster.device, name) for name in MATRIX_TYPES]
    return [known.get(name, math.nan) * PICO for name in natives]  # type: ignore[call-overload]  # any name may be asked


def _joule_per_byte(device: Device) -> float:
    return math.nan if device.power is None else device.power.pj_per_hbm_byte * PICO


def _voltage_squared(cluster: ClusterConfig) -> float:
    """Return the square of the voltage at the clock of a cluster, over that at the highest clock.

    A device runs at the highest clock that its cap allows, unless a job locks one.
    """
    power = cluster.device.power
    if power is None or cluster.gpu_clock_mhz is None:
        return 1.0
    clock = min(cluster.gpu_clock_mhz / power.max_clock_mhz, 1.0)
    return (power.voltage_floor + (1.0 - power.voltage_floor) * clock) ** 2


def _other_w(device: Device) -> float:
    table = load_surrounding_power()
    return of_family(table.other_w_per_gpu, device.architecture).value + (
        table.network_w_per_gpu.value
    )


def _listed_rent(device: Device) -> float:
    price = load_prices().rental_usd_per_gpu_hour.get(device.name)
    return math.nan if price is None else price.value


def _listed_capex(device: Device) -> float:
    price = load_prices().capex_usd_per_gpu.get(device.name)
    return math.nan if price is None else price.value


class PowerColumns(SectionColumns[ClusterConfig]):
    """Devices of clusters, as their power models have them; NaN is not known."""

    tdp_w = _cluster.floats(lambda c: c.device.tdp_w, "W", "Of a device.")
    held_w = _cluster.floats(lambda c: _held_w(c.device), "W", "That a device holds under load.")
    idle_w = _cluster.floats(lambda c: _idle_w(c.device), "W", "Of a device that waits.")
    flat_w = _cluster.floats(
        lambda c: _flat_w(c.device), "W", "During a step, for want of a power model."
    )
    joule_per_flop = _cluster.floats(_joule_per_flop, "J/FLOP", "Of each of `MATRIX_TYPES`.")
    joule_per_byte = _cluster.floats(lambda c: _joule_per_byte(c.device), "J/byte", "From memory.")
    voltage_squared = _cluster.floats(_voltage_squared, "1", "At its clock over the highest one.")
    other_w = _cluster.floats(
        lambda c: _other_w(c.device), "W", "Of nodes and network, for each device."
    )
    listed_rent = _cluster.floats(
        lambda c: _listed_rent(c.device), "USD/h", "Of a device in the dated table."
    )
    listed_capex = _cluster.floats(
        lambda c: _listed_capex(c.device), "USD", "Of a device in the dated table."
    )


def _or_owned(value: float | None, name: str) -> float:
    """Return what a job states, or what ``hardware/prices.yaml`` has."""
    return float(getattr(load_prices().owned, name).value) if value is None else value


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _g_per_kwh(run: RunConfig) -> float:
    grid = WORLD if run.energy.grid is None else run.energy.grid
    return load_prices().grid_g_co2_per_kwh[grid].value if isinstance(grid, str) else grid


class MoneyColumns(SectionColumns[RunConfig]):
    """Prices and emissions of runs; NaN is not stated."""

    rent = _run.floats(lambda r: _or_nan(r.cost.usd_per_gpu_hour), "USD/h", "Of a device.")
    takes_listed = _run.ints(
        lambda r: r.cost.prices == "listed", "flag", "Listed prices stand in for missing ones."
    )
    owns = _run.ints(lambda r: r.cost.owned.enabled, "flag", "The devices are owned.")
    capex = _run.floats(lambda r: _or_nan(r.cost.owned.capex_usd_per_gpu), "USD", "Of a device.")
    system_share = _run.floats(
        lambda r: _or_owned(r.cost.owned.system_share, "system_share"),
        "share",
        "Capex of all else over that of devices.",
    )
    lifetime_years = _run.floats(
        lambda r: _or_owned(r.cost.owned.lifetime_years, "lifetime_years"), "years", "Of a fleet."
    )
    utilisation = _run.floats(
        lambda r: _or_owned(r.cost.owned.utilisation, "utilisation"), "share", "Of these years."
    )
    cooling_usd_per_w = _run.floats(
        lambda r: _or_owned(r.cost.owned.cooling_usd_per_w, "cooling_usd_per_w"),
        "USD/W",
        "Of TDP.",
    )
    real_estate_usd_per_w = _run.floats(
        lambda r: _or_owned(r.cost.owned.real_estate_usd_per_mw, "real_estate_usd_per_mw") / MEGA,
        "USD/W",
        "Of TDP.",
    )
    facility_once = _run.ints(
        lambda r: r.cost.owned.facility == "once", "flag", "Both are paid once in a lifetime."
    )
    staff_share = _run.floats(
        lambda r: _or_owned(r.cost.owned.staff_share_per_year, "staff_share_per_year"),
        "share",
        "Of the capex of devices, every year.",
    )
    pue = _run.floats(lambda r: _or_owned(r.energy.pue, "pue"), "1", "Building over machines.")
    usd_per_kwh = _run.floats(
        lambda r: _or_owned(r.energy.usd_per_kwh, "usd_per_kwh"), "USD/kWh", "Of an owner."
    )
    other_w = _run.floats(
        lambda r: _or_nan(r.energy.node_overhead_w_per_gpu), "W", "Of nodes, for each device."
    )
    g_per_kwh = _run.floats(_g_per_kwh, "g/kWh", "CO2 of the grid.")
