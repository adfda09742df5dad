"""What the allocator of a device holds at the peak of a rank, and what it may hold at most.

A freed block serves only requests no larger than itself. Working sets of layers and of the
model's ends, which never live together, therefore have blocks of their own. Where segments do
not grow, a share of activations and working sets lies in blocks that fit nothing, and the
gradient of the embedding is larger than any block that is free when it is made. Weights,
gradients and states are allocated once and leave nothing idle. Where the device is full, idle
blocks are given back, up to what is pinned.

Shape suffixes
    F   families of jobs
    R   pipeline ranks of all replicas
    N   peaks, each of one rank of one family
Units
    bytes, float64.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints

from ._jit import inlined, kernel


class Devices(NamedTuple):
    """The devices of families, ``float64[F]`` each."""

    left_bytes: Floats
    """Memory, without what lies outside the allocator."""
    pinned_share: Floats
    """Of what comes and goes, in blocks that cannot be given back; 0 where segments grow."""
    idle_share: Floats
    """Of what comes and goes, in blocks that fit nothing; 0 where segments grow."""
    embedding_share: Floats
    """Of the gradient of the embedding, for which no block is free: 1, or 0 where segments grow."""
    stated_fragmentation: Floats
    """Share of what is allocated, instead of all these; NaN where a job states none."""


class RankBytes(NamedTuple):
    """What ranks hold besides activations, ``float64[R]`` each."""

    static: Floats
    """All of it."""
    transient: Floats
    """Working sets, which come and go."""
    unplaced: Floats
    """Of these, what finds no block of another."""
    embedding: Floats
    """Gradient of the embedding."""


class AllocatorBytes(NamedTuple):
    """One rank at its peak, or columns of them."""

    pinned: float
    """What cannot be given back."""
    idle: float
    """What is held beside what is allocated; most is given back where the device is full."""
    usable: float
    """What may be allocated, once idle blocks are given back."""


@inlined
def allocator_bytes(
    activations: float, rank: int, ranks: RankBytes, family: int | np.uint64, devices: Devices
) -> AllocatorBytes:
    """Return what the allocator holds for one rank at the peak of its activations."""
    static, transient, unplaced, embedding = ranks
    left_bytes, pinned_share, idle_share, embedding_share, fragmentation = devices
    left, stated = left_bytes[family], fragmentation[family]
    peak = activations + static[rank]
    if not math.isnan(stated):
        # A stated share holds for any allocation, so the limit does not depend on the peak.
        return AllocatorBytes(stated * peak, stated * peak, max(0.0, left / (1.0 + stated)))
    moving = activations + transient[rank]
    pinned = pinned_share[family] * moving
    no_block = idle_share[family] * moving + embedding_share[family] * embedding[rank]
    idle = max(pinned, min(unplaced[rank] + no_block, left - peak))
    return AllocatorBytes(pinned, idle, max(0.0, left - pinned))


@kernel
def allocator_columns(
    activations_N: Floats,
    rank_N: Ints,
    ranks: RankBytes,
    family_N: Ints,
    devices: Devices,
    pinned_N: Floats,
    idle_N: Floats,
    usable_N: Floats,
) -> None:
    """Return what allocators hold at N peaks.

    Parameters
    ----------
    activations_N : float64[N]
        At the peak.
    rank_N, family_N : int64[N]
        Where each is.
    ranks, devices
        Of all ranks and families.
    pinned_N, idle_N, usable_N : float64[N]
        Outputs: see `AllocatorBytes`.
    """
    for n in range(activations_N.shape[0]):
        held = allocator_bytes(activations_N[n], rank_N[n], ranks, family_N[n], devices)
        pinned_N[n], idle_N[n], usable_N[n] = held.pinned, held.idle, held.usable
