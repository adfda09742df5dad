"""How many cores of the host a run uses (equations 4 and 5 of Chopper, section V-E).

With ``u`` the utilisation of a logical core in percent::

    active cores  = number of logical cores with u > 0
    minimum cores = sum of u / 100

The minimum is what would do if each core were used in full.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from projector.arrays import Array, Floats, Ints
from projector.trace.events import Samples
from projector.trace.measures.numbers import Band, band

CPU_PERCENT = "cpu_percent"


def active_cores(percent: Array) -> Ints:
    """Return how many logical cores do anything (equation 4).

    Parameters
    ----------
    percent : float64[samples, cores]
        Utilisation, 0 to 100; NaN where it was not sampled, which counts as none.

    Returns
    -------
    int64[samples]
    """
    return np.asarray(np.count_nonzero(np.nan_to_num(percent) > 0, axis=1), np.int64)


def minimum_cores(percent: Array) -> Floats:
    """Return how many cores would do if each were used in full (equation 5).

    Returns
    -------
    float64[samples]
    """
    return np.asarray(np.nan_to_num(percent).sum(axis=1) / 100, np.float64)


def active_threads(percent: Array, physical_core: Ints) -> Ints:
    """Return how many logical cores of each physical core are active.

    Parameters
    ----------
    percent : float64[samples, cores]
    physical_core : int64[cores]
        Number of the physical core of each logical one; any numbers.

    Returns
    -------
    int64[samples, physical cores]
        Physical cores in the order of their numbers.
    """
    numbers, place = np.unique(physical_core, return_inverse=True)
    threads = np.zeros((len(percent), len(numbers)), np.int64)
    active = np.nan_to_num(percent) > 0
    for core, physical in enumerate(place.tolist()):
        threads[:, physical] += active[:, core]
    return threads


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalUse:
    """How logical cores share physical ones."""

    cores: int
    active: Band
    """Physical cores with an active logical one, over samples."""
    ever_active: int
    """Physical cores that were active in any sample."""
    shared: float
    """Share of active physical cores with two or more active logical ones, over all samples."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """How many cores of one host a run uses."""

    path: str
    """What was read."""
    cores: int
    """Logical cores."""
    active: Band
    minimum: Band
    physical: PhysicalUse | None
    """None where it is not known which logical cores share a physical one."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self)


def cpu_use(
    samples: Samples, begin_ps: int | None = None, end_ps: int | None = None
) -> CpuUse | None:
    """Return how many cores are used between two times.

    Parameters
    ----------
    samples : Samples
        Of `CPU_PERCENT`.
    begin_ps, end_ps : int, optional
        From the zero of the trace; all samples where they are left out.

    Returns
    -------
    CpuUse or None
        None if nothing was sampled then.
    """
    inside = within(samples, begin_ps, end_ps)
    # A sample of psutil covers the time before it, so a row without any number says nothing.
    percent = np.asarray(samples.values, np.float64)[inside]
    percent = percent[~np.isnan(percent).all(axis=1)] if len(percent) else percent
    active, minimum = band(active_cores(percent)), band(minimum_cores(percent))
    if active is None or minimum is None:
        return None
    return CpuUse(
        path=samples.path,
        cores=percent.shape[1],
        active=active,
        minimum=minimum,
        physical=_physical(percent, samples.physical_core),
    )


def within(samples: Samples, begin_ps: int | None, end_ps: int | None) -> Array:
    """Return which samples lie between two times, both included."""
    inside = np.ones(len(samples.time_ps), bool)
    if begin_ps is not None:
        inside &= samples.time_ps >= begin_ps
    if end_ps is not None:
        inside &= samples.time_ps <= end_ps
    return inside


def _physical(percent: Floats, physical_core: Ints | None) -> PhysicalUse | None:
    if physical_core is None or len(physical_core) != percent.shape[1]:
        return None
    threads = active_threads(percent, physical_core)
    busy = band(np.count_nonzero(threads, axis=1))
    assert busy is not None  # there is a sample
    active = int(np.count_nonzero(threads))
    return PhysicalUse(
        cores=threads.shape[1],
        active=busy,
        ever_active=int(threads.any(axis=0).sum()),
        shared=float(np.count_nonzero(threads > 1) / active) if active else 0.0,
    )
