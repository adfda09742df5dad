"""The columns of power and money: what devices draw, what runs are paid with."""

import math
from functools import partial
from operator import attrgetter

from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.prices import WORLD, load_prices, load_surrounding_power, of_family
from projector.config.run import RunConfig
from projector.kernels.device import MATRIX_TYPES
from projector.lower.columns import Declare, SectionColumns
from projector.lower.hardware import native_type
from projector.units import MEGA, PICO

_cluster = Declare[ClusterConfig, ClusterConfig]()
_device = Declare[ClusterConfig, Device](attrgetter("device"))
_run = Declare[RunConfig, RunConfig]()


def _of_tdp(share: str, device: Device) -> float:
    """Return what a device without a power model draws, by a share of its architecture."""
    shares = getattr(load_surrounding_power(), share)
    return device.tdp_w * of_family(shares, device.architecture).value


def _joule_per_flop(device: Device) -> list[float]:
    """Return the energy of a FLOP by matrix type, NaN where the power model has none."""
    known = {} if device.power is None else device.power.pj_per_flop
    natives = [native_type(device, name) for name in MATRIX_TYPES]
    return [known.get(name, math.nan) * PICO for name in natives]  # type: ignore[call-overload]  # any name may be asked


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
    of_node = of_family(table.other_w_per_gpu, device.architecture).value
    return of_node + table.network_w_per_gpu.value


def _listed(table: str, device: Device) -> float:
    price = getattr(load_prices(), table).get(device.name)
    return math.nan if price is None else float(price.value)


class PowerColumns(SectionColumns[ClusterConfig]):
    """Devices of clusters, as their power models have them; NaN is not known."""

    tdp_w = _device.floats("tdp_w")
    # That a device holds at most over a second. [W]
    held_w = _device.floats(lambda d: d.tdp_w * d.power.loaded_share if d.power else math.nan)
    # Of a device that waits. [W]
    idle_w = _device.floats(lambda d: d.power.idle_w if d.power else _of_tdp("idle_share", d))
    # During a step, for want of a power model. [W]
    flat_w = _device.floats(partial(_of_tdp, "busy_share"))
    joule_per_flop = _device.floats(_joule_per_flop)  # Of each of `MATRIX_TYPES`. [J/FLOP]
    # From memory. [J/byte]
    joule_per_byte = _device.floats(
        lambda d: d.power.pj_per_hbm_byte * PICO if d.power else math.nan
    )
    voltage_squared = _cluster.floats(_voltage_squared)  # At its clock over the highest one. [1]
    other_w = _device.floats(_other_w)  # Of nodes and network, for each device. [W]
    # Of a device in the dated table. [USD/h]
    listed_rent = _device.floats(partial(_listed, "rental_usd_per_gpu_hour"))
    # Of a device in the dated table. [USD]
    listed_capex = _device.floats(partial(_listed, "capex_usd_per_gpu"))


def _owned(name: str) -> float:
    """Return what ``hardware/prices.yaml`` has where a job states nothing."""
    return float(getattr(load_prices().owned, name).value)


def _real_estate_usd_per_w(run: RunConfig) -> float:
    stated = run.cost.owned.real_estate_usd_per_mw
    return (_owned("real_estate_usd_per_mw") if stated is None else stated) / MEGA


def _g_per_kwh(run: RunConfig) -> float:
    grid = WORLD if run.energy.grid is None else run.energy.grid
    return load_prices().grid_g_co2_per_kwh[grid].value if isinstance(grid, str) else grid


class MoneyColumns(SectionColumns[RunConfig]):
    """Prices and emissions of runs; NaN is not stated."""

    rent = _run.floats("cost.usd_per_gpu_hour", none=math.nan)
    # Listed prices stand in for missing ones. [flag]
    takes_listed = _run.ints(lambda r: r.cost.prices == "listed")
    owns = _run.ints("cost.owned.enabled")
    capex = _run.floats("cost.owned.capex_usd_per_gpu", none=math.nan)
    system_share = _run.floats("cost.owned.system_share", none=_owned)
    lifetime_years = _run.floats("cost.owned.lifetime_years", none=_owned)
    utilisation = _run.floats("cost.owned.utilisation", none=_owned)
    cooling_usd_per_w = _run.floats("cost.owned.cooling_usd_per_w", none=_owned)
    real_estate_usd_per_w = _run.floats(_real_estate_usd_per_w)  # Of TDP. [USD/W]
    # Both are paid once in a lifetime. [flag]
    facility_once = _run.ints(lambda r: r.cost.owned.facility == "once")
    staff_share = _run.floats("cost.owned.staff_share_per_year", none=_owned)
    pue = _run.floats("energy.pue", none=_owned)
    usd_per_kwh = _run.floats("energy.usd_per_kwh", none=_owned)
    other_w = _run.floats("energy.node_overhead_w_per_gpu", none=math.nan)
    g_per_kwh = _run.floats(_g_per_kwh)  # CO2 of the grid. [g/kWh]
