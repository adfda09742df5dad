"""What a run draws, emits and costs, rented or owned: arrays in, arrays out; see docs/cost.md."""

from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats
from projector.units import HOUR

JOULES_PER_KWH = 3.6e6
GRAMS_PER_KG = 1000.0


class RunPower(NamedTuple):
    """Power of runs, float64[runs], in watts for each device."""

    step_w: Floats
    """Of a device while steps run."""
    idle_w: Floats
    """Of a device that waits: for a checkpoint, a restart, a straggler, or as a spare."""
    other_w: Floats
    """Of the rest of nodes and network, whatever the devices do."""
    pue: Floats
    """Power of the building over that of its machines."""


class RunEnergy(NamedTuple):
    """What runs draw, float64[runs]."""

    gpu_hours: Floats
    """Of all reserved devices, hot spares included, from the first to the last second."""
    energy_kwh: Floats
    """At the meter of the building."""
    average_w: Floats
    """Of one reserved device with its share of node and building."""


def run_energy(
    power: RunPower, gpus: Floats, spare_gpus: Floats, busy_s: Floats, total_s: Floats
) -> RunEnergy:
    """Return what runs draw.

    Devices draw ``step_w`` while steps run and ``idle_w`` for the rest of the time; spares idle. Of
    ``total_s`` of wall clock, steps run in ``busy_s``, those that a failure undoes included.
    """
    reserved = gpus + spare_gpus
    device_j = gpus * (power.step_w * busy_s + power.idle_w * (total_s - busy_s))
    device_j = device_j + spare_gpus * power.idle_w * total_s
    all_j = power.pue * (device_j + reserved * power.other_w * total_s)
    return RunEnergy(
        gpu_hours=np.asarray(reserved * total_s / HOUR),
        energy_kwh=np.asarray(all_j / JOULES_PER_KWH),
        average_w=np.asarray(all_j / (reserved * total_s)),
    )


def emitted_kg(energy_kwh: Floats, g_per_kwh: Floats) -> Floats:
    """Return the CO2 that a grid emits for some energy, in kg."""
    return np.asarray(energy_kwh * g_per_kwh / GRAMS_PER_KG)


HOURS_PER_YEAR = 8760.0
MILLION = 1e6
PERCENT = 100.0
WATTS_PER_KW = 1000.0


class Ownership(NamedTuple):
    """A fleet of one's own, float64[runs]; section 5 of the Roofline methodology."""

    capex_usd: Floats
    """Of one device; NaN is not known."""
    system_share: Floats
    """Capex of hosts, network and storage over that of the devices."""
    lifetime_years: Floats
    utilisation: Floats
    """Share of the lifetime in which some run pays."""
    tdp_w: Floats
    """Of one device: buildings are made for it, whatever a run draws."""
    cooling_usd_per_w: Floats
    real_estate_usd_per_w: Floats
    facility_once: Flags
    """Whether these two are paid once in the lifetime instead of every year."""
    staff_share: Floats
    """Of the capex of devices, every year."""


class OwnedShares(NamedTuple):
    """What one device costs over its lifetime, as shares of its capex, float64[runs]."""

    purchase: Floats
    power: Floats
    cooling: Floats
    real_estate: Floats
    staff: Floats

    @property
    def multiplier(self) -> Floats:
        """Cost of ownership over the capex of the device."""
        return self.purchase + self.power + self.cooling + self.real_estate + self.staff


def owned_shares(owned: Ownership, average_w: Floats, usd_per_kwh: Floats) -> OwnedShares:
    """Return what ownership comes to over a lifetime, term by term.

    ``1 + L (power + cooling + real estate + staff) / capex`` with all of them by year (the Roofline
    methodology, section 5). ``average_w`` is what a device draws in use, node and building
    included.
    """
    years = owned.lifetime_years
    paid_years = np.where(owned.facility_once, 1.0, years)
    hours = years * HOURS_PER_YEAR * owned.utilisation
    of_capex = owned.tdp_w * paid_years / owned.capex_usd
    return OwnedShares(
        purchase=np.asarray(1.0 + owned.system_share),
        power=np.asarray(average_w / WATTS_PER_KW * hours * usd_per_kwh / owned.capex_usd),
        cooling=np.asarray(owned.cooling_usd_per_w * of_capex),
        real_estate=np.asarray(owned.real_estate_usd_per_w * of_capex),
        staff=np.asarray(owned.staff_share * years),
    )


def owned_usd_per_gpu_hour(owned: Ownership, average_w: Floats, usd_per_kwh: Floats) -> Floats:
    """Return what an owned device costs in an hour of use, its power included."""
    multiplier = owned_shares(owned, average_w, usd_per_kwh).multiplier
    hours = owned.lifetime_years * HOURS_PER_YEAR * owned.utilisation
    return np.asarray(multiplier * owned.capex_usd / hours)


def cost_usd(gpu_hours: Floats, usd_per_gpu_hour: Floats) -> Floats:
    """Return what runs cost; NaN where there is no price."""
    return np.asarray(gpu_hours * usd_per_gpu_hour)


def usd_per_million_tokens(cost: Floats, tokens: Floats) -> Floats:
    """Return the cost of a million tokens, trained in a run or served in the same time."""
    return np.asarray(cost / tokens * MILLION)


def usd_per_mfu_point(cost: Floats, mfu: Floats) -> Floats:
    """Return the cost of a run over its MFU in points of a per cent."""
    return np.asarray(cost / (mfu * PERCENT))
