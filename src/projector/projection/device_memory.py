"""What of a device's memory training may use: drivers, communicators and allocators take part."""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels import device_memory as kernels
from projector.lower.batch import JobBatch
from projector.lower.degrees import JobColumns
from projector.operations.moe import ALLTOALL
from projector.projection.memory_columns import StateMemory


class AllocatorColumns(NamedTuple):
    """Bytes of n ranks at their peaks, float64[n]; see `kernels.device_memory.AllocatorBytes`."""

    pinned: Floats
    idle: Floats
    usable: Floats


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


def devices_of(batch: JobBatch, reserve: Floats) -> kernels.Devices:
    """Return what allocators work with; ``reserve`` is that of `reserve_bytes`."""
    cluster = batch.cluster
    fixed = (cluster.expandable == 0).astype(np.float64)
    return kernels.Devices(
        left_bytes=cluster.memory_bytes - reserve,
        pinned_share=cluster.pinned_share * fixed,
        idle_share=cluster.idle_share * fixed,
        embedding_share=fixed,
        stated_fragmentation=np.ascontiguousarray(cluster.stated_fragmentation),
    )


def rank_bytes(state: StateMemory) -> kernels.RankBytes:
    """Return what ranks hold besides activations."""
    return kernels.RankBytes(
        static=state.static_bytes,
        transient=np.ascontiguousarray(state.transient_bytes),
        unplaced=state.unplaced_bytes,
        embedding=state.embedding_bytes,
    )


def allocator_columns(
    devices: kernels.Devices,
    families: Ints,
    held: kernels.RankBytes,
    ranks: Ints,
    activations: Floats,
) -> AllocatorColumns:
    """Return what allocators hold at the peak of some ranks.

    Parameters
    ----------
    devices : Devices
        Of the families.
    families : int64[n]
        Family of each rank.
    held : RankBytes
        Of the kinds of ranks.
    ranks : int64[n]
        Which of them.
    activations : float64[n]
        Bytes that it holds for backwards.
    """
    columns = AllocatorColumns(*np.empty((3, len(ranks))))
    kernels.allocator_columns(activations, ranks, held, families, devices, *columns)
    return columns


def room_for_activations(
    batch: JobBatch, columns: JobColumns, state: StateMemory, families: Ints, ranks: Ints
) -> Floats:
    """Return how many bytes of activations some ranks have room for, float64[n].

    Parameters
    ----------
    batch, columns
        A job of each family, and its degrees.
    state : StateMemory
        Of the kinds of ranks.
    families, ranks : int64[n]
        As of `allocator_columns`.
    """
    devices, held = devices_of(batch, reserve_bytes(batch, columns)), rank_bytes(state)
    left, static = devices.left_bytes[families], held.static[ranks]
    stated = devices.stated_fragmentation[families]
    pinned = allocator_columns(devices, families, held, ranks, np.zeros(len(ranks))).pinned
    derived = (left - static - pinned) / (1.0 + devices.pinned_share[families])
    return np.where(np.isnan(stated), derived, np.maximum(0.0, left / (1.0 + stated)) - static)
