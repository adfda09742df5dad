"""What was sampled beside a run: cores of the host that it uses, clocks and power of devices.

Cores are those of equations 4 and 5 of Chopper, section V-E. With ``u`` the utilisation of a
logical core in percent::

    active cores  = number of logical cores with u > 0
    minimum cores = sum of u / 100

The minimum is what would do if each core were used in full.

A mean over an interval weighs each sample with the time until the next one: samplers are late when
the host is busy, and then a plain mean would count the busy times too little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Array, Floats, Ints
from projector.trace.events import NS_PS, Samples
from projector.trace.measures.iterations import IterationTimes
from projector.trace.measures.statistics import Band, Measured, band

CPU_PERCENT = "cpu_percent"


def active_cores(percent: Array) -> Ints:
    """Return how many logical cores, in percent a sample, are active (equation 4); NaN is not."""
    return np.asarray(np.count_nonzero(np.nan_to_num(percent) > 0, axis=1), np.int64)


def minimum_cores(percent: Array) -> Floats:
    """Return how many cores would do at each sample if each were used in full (equation 5)."""
    return np.asarray(np.nan_to_num(percent).sum(axis=1) / 100, np.float64)


def active_threads(percent: Array, physical_core: Ints) -> Ints:
    """Return how many logical cores of each physical one are active, int64[samples, physical].

    Physical cores, of which any numbers are given for the logical ones, are in their order.
    """
    numbers, place = np.unique(physical_core, return_inverse=True)
    threads = np.zeros((len(percent), len(numbers)), np.int64)
    active = np.nan_to_num(percent) > 0
    for core, physical in enumerate(place.tolist()):
        threads[:, physical] += active[:, core]
    return threads


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalUse(Measured):
    """How logical cores share physical ones."""

    cores: int
    active: Band
    """Physical cores with an active logical one, over samples."""
    ever_active: int
    """Physical cores that were active in any sample."""
    shared: float
    """Share of active physical cores with two or more active logical ones, over all samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse(Measured):
    """How many cores of one host a run uses."""

    path: str
    cores: int
    """Logical cores."""
    active: Band
    minimum: Band
    physical: PhysicalUse | None
    """None where it is not known which logical cores share a physical one."""


def cpu_use(
    samples: Samples, begin_ps: int | None = None, end_ps: int | None = None
) -> CpuUse | None:
    """Return how many cores are used between two times, None if nothing was sampled then."""
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


POWER = "power_w"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledIteration(Measured):
    """What was sampled in one iteration; an iteration lasts from its first activity to its last."""

    iteration: int
    mean: float | None
    """None where no sample reaches into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Measured):
    """One quantity of one device, such as its clock."""

    path: str
    what: str
    """``clock_mhz``, ``memory_clock_mhz``, ``power_w`` or another name of `Samples`."""
    column: str
    """The device, as the file names it."""
    spread: Band
    """Spread of the samples, in the unit of the name."""
    mean: float
    """Mean over time: a sample holds until the next one."""
    variation: float | None
    """Standard deviation over the mean, over samples; None where the mean is 0."""
    energy_j: float | None
    """For power: from the first sample to the last."""
    iterations: tuple[SampledIteration, ...]


def sampled(
    samples: Sequence[Samples],
    iterations: Sequence[IterationTimes] = (),
    begin_ps: int | None = None,
    end_ps: int | None = None,
) -> list[Sampled]:
    """Return every quantity of every device that was sampled, but cores, which are in `cpu_use`.

    An iteration of several ranks lasts from the first to the last of them.
    """
    spans = _spans(iterations)
    found = []
    for each in samples:
        if each.what == CPU_PERCENT:
            continue
        inside = within(each, begin_ps, end_ps)
        values = np.asarray(each.values, np.float64)[inside]
        for column, name in enumerate(each.columns):
            known = ~np.isnan(values[:, column])
            row = _sampled(each, name, each.time_ps[inside][known], values[known, column], spans)
            found += [] if row is None else [row]
    return found


def _spans(iterations: Sequence[IterationTimes]) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for each in iterations:
        begin = round(each.start_ns * NS_PS)
        end = begin + round(each.span_ns * NS_PS)
        first, last = spans.get(each.iteration, (begin, end))
        spans[each.iteration] = min(begin, first), max(end, last)
    return dict(sorted(spans.items()))


def _sampled(
    samples: Samples, column: str, time: Ints, values: Floats, spans: dict[int, tuple[int, int]]
) -> Sampled | None:
    spread = band(values)
    if spread is None:
        return None
    order = np.argsort(time, kind="stable")
    time, values = time[order], values[order]
    begin, end = int(time[0]), int(time[-1])
    whole = held_mean(time, values, begin, end)
    mean = float(values.mean()) if whole is None else whole
    return Sampled(
        path=samples.path,
        what=samples.what,
        column=column,
        spread=spread,
        mean=mean,
        variation=float(values.std() / values.mean()) if values.mean() else None,
        energy_j=mean * (end - begin) / 1e12 if samples.what == POWER else None,
        iterations=tuple(
            SampledIteration(iteration=number, mean=held_mean(time, values, *span))
            for number, span in spans.items()
        ),
    )


def held_mean(time: Ints, values: Floats, begin: int, end: int) -> float | None:
    """Return the mean between two times of samples that each hold until the next one.

    Times ascend. What lies before the first sample or behind the last one is left out; None where
    the samples do not reach into the interval.
    """
    held = np.clip(time[1:], begin, end) - np.clip(time[:-1], begin, end)
    total = int(held.sum())
    return float((values[:-1] * held).sum() / total) if total > 0 else None
