"""Durations by phase, type, operation, layer, kernel or any of them together.

As in figure 4 of Chopper (Kurzynski, Aga, Wu): a duration is the sum of kernels, launch overhead
the sum of bubbles before them, and both are medians over samples. A sample is one iteration of one
device of one rank. A median is that of the samples that have the part at all, whose number is told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Array, Flags, Ints
from projector.errors import ConfigError
from projector.trace.activity import CLASSES, COMMUNICATION, PHASES, TYPES, Activities
from projector.trace.measures.devices import in_iterations
from projector.trace.measures.numbers import PS_PER_NS, Band, Groups, bands, group, ratio
from projector.trace.measures.times import KernelTimes, kernel_times


def _name_in(names: Sequence[str]) -> Callable[[int], str]:
    return lambda place: names[place] if place >= 0 else ""


_LABELS: Mapping[str, tuple[str, Callable[[Activities], Callable[[int], Any]]]] = {
    "rank": ("rank", lambda _: int),
    "device": ("device", lambda _: int),
    "iteration": ("iteration", lambda _: int),
    "phase": ("phase", lambda _: _name_in(PHASES)),
    "type": ("type", lambda _: _name_in(TYPES)),
    "class": ("klass", lambda _: _name_in(CLASSES)),
    "layer": ("layer", lambda _: int),
    "operation": ("operation", lambda a: _name_in(a.operations)),
    "recompute": ("recompute", lambda _: bool),
    "kernel": ("name", lambda a: _name_in(a.names)),
    "group": ("group", lambda a: _name_in(a.groups)),
    "stream": ("stream", lambda _: int),
}

GRANULARITIES = tuple(_LABELS)
"""What a breakdown can go by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a breakdown."""

    key: Mapping[str, Any]
    """What it is the part of, such as ``{"phase": "forward", "type": "gemm"}``."""
    activities: int
    """How many, in all samples."""
    share: float
    """Of the durations of all parts, all samples together."""
    duration_ns: Band
    """Kernels, added up."""
    operation_ns: Band
    """Kernels and the bubbles between the kernels of one operation."""
    launch_ns: Band
    """Bubbles before its kernels; 0 for what does not compute."""
    preparation_ns: Band
    call_ns: Band
    """With `preparation_ns` less than `launch_ns` where launches are not in the trace."""
    exposed_ns: Band
    """What of it no kernel that computes covers; all of what computes itself."""
    each_ns: Band
    """Of one activity; the other bands are of their sum in one sample."""
    overlap: float | None
    """Share that communication covers; of communication the share that computing covers."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        spreads = {n: getattr(self, n).to_dict() for n in self.__slots__ if n.endswith("_ns")}
        plain = {"activities": self.activities, "share": self.share, "overlap": self.overlap}
        return dict(self.key) | plain | spreads


def breakdown(
    activities: Activities,
    by: Sequence[str] = ("phase", "type"),
    times: KernelTimes | None = None,
    where: Flags | None = None,
) -> list[Part]:
    """Return the parts of a run, the longest in total first.

    Parameters
    ----------
    activities : Activities
    by : names of `GRANULARITIES`
    times : KernelTimes, optional
        Those of the whole table, where they are at hand.
    where : bool[activities], optional
        What is broken down; by default all iterations, or everything where there are none.
    """
    for name in by:
        if name not in _LABELS:
            msg = f"a breakdown goes by {', '.join(GRANULARITIES)}, and not by {name!r}"
            raise ConfigError(msg, key="by", value=name, allowed=list(GRANULARITIES))
    times = kernel_times(activities) if times is None else times
    rows = np.flatnonzero(in_iterations(activities) if where is None else where)
    parts = group(*(_column(activities, name)[rows] for name in by), np.zeros(len(rows), np.int64))
    sample = group(*(getattr(activities, n)[rows] for n in ("rank", "device", "iteration")))
    both = group(parts.of, sample.of)
    spreads: dict[str, list[Any]] = {
        name: _spreads(values[rows], both, parts.count) for name, values in _values(times).items()
    }
    duration = times.duration_ps[rows]
    spreads["each_ns"] = bands(duration, parts.of, parts.count, PS_PER_NS)
    total, shared = parts.sums(duration), parts.sums(_shared(activities, times)[rows])
    sizes, whole = parts.sizes(), int(total.sum())
    labels = [_LABELS[name][1](activities) for name in by]
    return [
        Part(
            key={n: label(int(k[p])) for n, label, k in zip(by, labels, parts.keys, strict=False)},
            activities=int(sizes[p]),
            share=ratio(total[p], whole) or 0.0,
            overlap=ratio(shared[p], total[p]),
            **{name: spread[p] for name, spread in spreads.items()},
        )
        for p in np.argsort(-total, kind="stable").tolist()
    ]


def _column(activities: Activities, name: str) -> Ints:
    return np.asarray(getattr(activities, _LABELS[name][0]), np.int64)


def _values(times: KernelTimes) -> dict[str, Ints]:
    """Return what is added up in each sample of each part."""
    return {
        "duration_ns": times.duration_ps,
        "operation_ns": times.duration_ps + times.inner_ps,
        "launch_ns": times.bubble_ps,
        "preparation_ns": times.preparation_ps,
        "call_ns": times.call_ps,
        "exposed_ns": times.duration_ps - times.under_compute_ps,
    }


def _shared(activities: Activities, times: KernelTimes) -> Ints:
    communicating = activities.klass == COMMUNICATION
    return np.where(communicating, times.under_compute_ps, times.under_communication_ps)


def _spreads(values: Array, both: Groups, count: int) -> list[Any]:
    return bands(both.sums(values), both.keys[0], count, PS_PER_NS)
