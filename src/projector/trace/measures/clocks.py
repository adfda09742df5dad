"""Clocks and power of devices where they were sampled, over a run and in each iteration.

A mean over an interval weighs each sample with the time until the next one: samplers are late when
the host is busy, and then a plain mean would count the busy times too little.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.trace.events import Samples
from projector.trace.measures.cpu import CPU_PERCENT, within
from projector.trace.measures.iterations import IterationTimes
from projector.trace.measures.numbers import PS_PER_NS, Band, band

POWER = "power_w"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledIteration:
    """What was sampled in one iteration; an iteration lasts from its first activity to its last."""

    iteration: int
    mean: float | None
    """None where no sample reaches into it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One quantity of one device, such as its clock."""

    path: str
    what: str
    """``clock_mhz``, ``memory_clock_mhz``, ``power_w`` or another name of `Samples`."""
    column: str
    """The device, as the file names it."""
    spread: Band
    """Over samples, in the unit of the name."""
    mean: float
    """Over time."""
    variation: float | None
    """Standard deviation over the mean, over samples; None where the mean is 0."""
    energy_j: float | None
    """For power: from the first sample to the last."""
    iterations: tuple[SampledIteration, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return asdict(self) | {"iterations": [each.to_dict() for each in self.iterations]}


def sampled(
    samples: Sequence[Samples],
    iterations: Sequence[IterationTimes] = (),
    begin_ps: int | None = None,
    end_ps: int | None = None,
) -> list[Sampled]:
    """Return every quantity of every device that was sampled; the utilisation of cores is in `cpu`.

    Parameters
    ----------
    samples : sequence of Samples
    iterations : sequence of IterationTimes
        Of any ranks. An iteration of several ranks lasts from the first to the last of them.
    begin_ps, end_ps : int, optional
        What is looked at; all samples where they are left out.
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
    """Return when each iteration begins and ends."""
    spans: dict[int, tuple[int, int]] = {}
    for each in iterations:
        begin = round(each.start_ns * PS_PER_NS)
        end = begin + round(each.span_ns * PS_PER_NS)
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

    Parameters
    ----------
    time : int64[samples]
        Ascending.
    values : float64[samples]
    begin, end : int
        What lies before the first sample or behind the last one is left out.

    Returns
    -------
    float or None
        None where the samples do not reach into the interval.
    """
    starts = np.clip(time[:-1], begin, end)
    held = np.clip(time[1:], begin, end) - starts
    total = int(held.sum())
    return float((values[:-1] * held).sum() / total) if total > 0 else None
