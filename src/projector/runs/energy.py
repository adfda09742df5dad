"""What a run draws and emits: arrays in, arrays out; see docs/cost.md."""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats
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
    device_kwh: Floats
    """The part that devices draw, spares included, without the building's."""
    average_w: Floats
    """Of one reserved device with its share of node and building."""


def run_energy(
    power: RunPower, gpus: Floats, spare_gpus: Floats, busy_s: Floats, total_s: Floats
) -> RunEnergy:
    """Return what runs draw.

    Devices draw ``step_w`` while steps run and ``idle_w`` for the rest of the time; spares idle.

    Parameters
    ----------
    gpus, spare_gpus : float64[runs]
        Devices that compute, and reserved ones that wait.
    busy_s : float64[runs]
        Of ``total_s``, the time in which steps run, those that a failure undoes included.
    total_s : float64[runs]
        Wall-clock time.
    """
    reserved = gpus + spare_gpus
    device_j = gpus * (power.step_w * busy_s + power.idle_w * (total_s - busy_s))
    device_j = device_j + spare_gpus * power.idle_w * total_s
    all_j = power.pue * (device_j + reserved * power.other_w * total_s)
    return RunEnergy(
        gpu_hours=np.asarray(reserved * total_s / HOUR),
        energy_kwh=np.asarray(all_j / JOULES_PER_KWH),
        device_kwh=np.asarray(device_j / JOULES_PER_KWH),
        average_w=np.asarray(all_j / (reserved * total_s)),
    )


def emitted_kg(energy_kwh: Floats, g_per_kwh: Floats) -> Floats:
    """Return the CO2 that a grid emits for some energy, in kg."""
    return np.asarray(energy_kwh * g_per_kwh / GRAMS_PER_KG)
