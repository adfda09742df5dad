"""What of a device's memory training may use: drivers, communicators and allocators take part."""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.lower.batch import JobBatch
from projector.lower.jobs import JobColumns
from projector.operations.moe import ALLTOALL
from projector.projection.memory_columns import StateMemory


class DeviceMemory(NamedTuple):
    """Bytes of each job's fullest rank, float64[jobs]."""

    reserve_bytes: Floats
    """Driver context and communicators, which lie outside the allocator."""
    idle_bytes: Floats
    """What the allocator holds in blocks that serve nothing at the peak; most is given back where
    the device is full."""
    usable_bytes: Floats
    """What is left for allocations, once idle blocks are given back."""


def reserve_bytes(batch: JobBatch, columns: JobColumns) -> Floats:
    """Return what lies outside the allocator, float64[jobs]; stated or by groups of ranks.

    A rank has one communicator for every group of more than one rank that it belongs to. An
    all-to-all of tokens opens channels to each of its peers in the scale-up domain.
    """
    cluster, training = batch.cluster, batch.training
    groups = (columns.tp, columns.cp, columns.pp, columns.dp * columns.cp, columns.etp)
    communicators = sum(
        (np.asarray(ranks > 1, np.float64) for ranks in groups), np.zeros(len(batch))
    )
    experts = (columns.ep > 1) & (batch.model.is_moe == 1)
    communicators += experts * (1.0 + (columns.edp > 1))
    peers = np.where(experts & (training.dispatcher == ALLTOALL), columns.ep_local - 1, 0)
    derived = (
        cluster.context_bytes
        + communicators * cluster.communicator_bytes
        + peers * cluster.exchange_peer_bytes
    )
    stated = cluster.stated_reserve_bytes
    return np.where(np.isnan(stated), derived, stated)


def pinned_bytes(
    batch: JobBatch, state: StateMemory, families: Ints, ranks: Ints, activations: Floats
) -> Floats:
    """Return what the allocator cannot give back at the peak of some ranks, float64[n].

    Parameters
    ----------
    batch : JobBatch
        A job of each family.
    families, ranks : int64[n]
        Family of each rank, and the rank among all replicas.
    activations : float64[n]
        Bytes that it holds for backwards.
    """
    cluster = batch.cluster
    share = np.where(cluster.expandable == 1, 0.0, cluster.pinned_share)[families]
    derived = share * (activations + state.transient_bytes[ranks])
    stated = cluster.stated_fragmentation[families]
    peak = activations + state.static_bytes[ranks]
    return np.where(np.isnan(stated), derived, stated * peak)


def idle_bytes(
    batch: JobBatch, columns: JobColumns, state: StateMemory, families: Ints, ranks: Ints,
    activations: Floats,
) -> Floats:  # fmt: skip
    """Return what the allocator holds beside what is allocated at the peak of some ranks.

    A freed block serves only requests no larger than itself. Working sets of layers and of the
    model's ends, which never live together, therefore have blocks of their own. Where segments do
    not grow, a share of activations and working sets lies in blocks that fit nothing, and the
    gradient of the embedding is larger than any block that is free when it is made. Weights,
    gradients and states are allocated once and leave nothing idle. Where the device is full, idle
    blocks are given back, up to what is pinned.

    Parameters and shape are those of `pinned_bytes`.
    """
    cluster = batch.cluster
    pinned = pinned_bytes(batch, state, families, ranks, activations)
    moving = activations + state.transient_bytes[ranks]
    fixed = (cluster.expandable == 0)[families]
    derived = state.unplaced_bytes[ranks] + fixed * (
        cluster.idle_share[families] * moving + state.embedding_bytes[ranks]
    )
    peak = activations + state.static_bytes[ranks]
    left = (cluster.memory_bytes - reserve_bytes(batch, columns))[families]
    kept = np.maximum(pinned, np.minimum(derived, left - peak))
    return np.where(np.isnan(cluster.stated_fragmentation)[families], kept, pinned)


def device_memory(
    batch: JobBatch,
    columns: JobColumns,
    families: Ints,
    state: StateMemory,
    rank: Ints,
    peak_bytes: Floats,
) -> DeviceMemory:
    """Return what a batch of jobs may use.

    Parameters
    ----------
    batch, columns
        A job of each family, and its degrees.
    families : int64[jobs]
        Family of each job.
    rank : int64[jobs]
        The fullest rank of each job, among those of all replicas.
    peak_bytes : float64[jobs]
        Its allocated peak.
    """
    reserve = reserve_bytes(batch, columns)
    activations = peak_bytes - state.static_bytes[rank]
    idle = idle_bytes(batch, columns, state, families, rank, activations)
    left = (batch.cluster.memory_bytes - reserve)[families]
    stated = batch.cluster.stated_fragmentation[families]
    pinned = pinned_bytes(batch, state, families, rank, activations)
    # A stated share holds for any allocation, so the limit does not depend on the peak.
    usable = np.where(np.isnan(stated), left - pinned, left / (1.0 + stated))
    return DeviceMemory(reserve[families], idle, np.maximum(0.0, usable))


def room_for_activations(
    batch: JobBatch, columns: JobColumns, state: StateMemory, family: int, ranks: slice
) -> Floats:
    """Return how many bytes of activations each rank of a family has room for, float64[pp]."""
    cluster = batch.cluster
    left = cluster.memory_bytes[family] - reserve_bytes(batch, columns)[family]
    held = state.static_bytes[ranks]
    stated = cluster.stated_fragmentation[family]
    if not np.isnan(stated):
        return np.asarray(max(0.0, left / (1.0 + stated)) - held)
    every = np.arange(ranks.start, ranks.stop)
    pinned = pinned_bytes(batch, state, np.full(len(every), family), every, np.zeros(len(every)))
    share = cluster.pinned_share[family] * (cluster.expandable[family] == 0)
    return np.asarray((left - held - pinned) / (1.0 + share))
