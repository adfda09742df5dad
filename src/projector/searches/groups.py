"""Configurations that a projection cannot tell apart."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.projection.bands import ratio_band
from projector.projection.pairs import settings_of

Noise = Callable[[Collection[str]], float]
"""Returns by how much the ratio of two steps may be off where these fields differ."""


def pair_noise(fields: Collection[str]) -> float:
    """Return by how much a step may be longer than another one and be as fast in truth.

    It is the upper side of the 68 % band of pairs of runs that differ in these dotted fields.
    """
    return (ratio_band(settings_of(fields)).high_68 or 1.0) - 1.0


def noise_groups(times_s: Floats, settings: Sequence[Mapping[str, Any]], noise: Noise) -> Ints:
    """Return the number of each configuration's group, from 1.

    The fastest configuration leads the first group. A configuration is in it where its step is
    longer by no more than the noise of the fields in which it differs from the leader. Of what is
    left the fastest leads the next group. Groups may therefore overlap in time: many changed
    settings are noisier than one.

    Parameters
    ----------
    times_s : float64[n]
        Seconds of each step, rising.
    settings : sequence of n mappings
        Field -> value; all have the same fields.
    noise : callable
        Called once for each set of fields.

    Returns
    -------
    int64[n]
    """
    group = np.zeros(len(times_s), np.int64)
    if not len(times_s):
        return group
    fields = list(settings[0])
    codes = np.column_stack([_codes([each[field] for each in settings]) for field in fields])
    weight = 1 << np.arange(len(fields))
    known: dict[int, float] = {}
    rest, number = np.arange(len(times_s)), 0
    while len(rest):
        number += 1
        leader = rest[0]
        changed = (codes[rest] != codes[leader]) @ weight
        distinct, of_row = np.unique(changed, return_inverse=True)
        for bits in distinct.tolist():
            if bits not in known:
                known[bits] = noise([name for k, name in enumerate(fields) if bits >> k & 1])
        most = times_s[leader] * (1.0 + np.array([known[bits] for bits in distinct.tolist()]))
        within = times_s[rest] <= most[of_row]
        # The leader differs in nothing.
        within[0] = True
        group[rest[within]] = number
        rest = rest[~within]
    return group


def _codes(values: Sequence[Any]) -> Ints:
    """Return equal numbers for equal values."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(repr(value), len(known)) for value in values], np.int64)
