"""Memory of every pipeline rank in its physical form, term by term, and what a device has for it.

Drivers, communicators and allocators take a part of a device's memory.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from projector.arrays import Array, Floats, Ints, bits
from projector.kernels import memory as kernels
from projector.kernels.grouping import concatenated_ranges
from projector.kernels.memory import Maxima, Replica, State, Sums, hold_state
from projector.lower.batch import JobBatch, JobColumns
from projector.lower.workload_columns import padded_vocab
from projector.operations.linear import NF4_BYTES
from projector.operations.moe import ALLTOALL
from projector.projection.data_parallel import bucket_parameters
from projector.projection.pipeline_costs import PipelineCosts
from projector.projection.replicas import Replicas
from projector.projection.terms import MemoryTerms


@dataclass(frozen=True, slots=True)
class StateMemory(MemoryTerms[Floats, None]):
    """What ranks hold besides activations, float64[kinds of ranks]."""

    parameters: Floats
    """Parameters that a rank's layers have, before any sharding over data parallelism."""
    held_parameters: Floats
    """Parameters stored in full (all of them below ZeRO 3)."""
    owned_parameters: Floats
    """Parameters a rank updates (its shard from ZeRO 1 on)."""
    unplaced_bytes: Floats
    """Freed blocks of the smaller of the working sets of layers and of the model's ends, which the
    other has no use for."""
    embedding_bytes: Floats
    """The embedding's gradient, which no freed block is large enough for."""
    sharding_excess_bytes: Floats
    """What sharded weights take more than whole ones under ZeRO 2; below 0 where they save."""
    gathered_bytes: Floats
    """What of the working set is gathered weights, and gradients before they are sharded."""
    updating_bytes: Floats
    """Working set of the update."""


@dataclass(frozen=True, slots=True)
class RankMemory(MemoryTerms[Floats, Floats]):
    """Bytes of each pipeline rank of one job, float64[pp]."""

    parameters: Floats
    in_flight: Ints
    """int64[pp]: microbatches, times chunks, held at the peak."""


def state_memory(replicas: Replicas, costs: PipelineCosts) -> StateMemory:
    """Compute everything that does not depend on the schedule's order."""
    own, like = replicas.alike(bits(replicas.jobs.cluster.workspace_bytes))
    found = np.empty((len(State._fields), int(own.first_rank_kind[-1])))
    hold_state(
        own.pattern,
        own.row_first,
        _of_replicas(own),
        own.patterns,
        np.stack([getattr(costs, name) for name in Sums._fields]),
        np.stack([getattr(costs, name) for name in Maxima._fields]),
        NF4_BYTES,
        found,
    )
    if own is not replicas:
        kinds = np.diff(replicas.first_rank_kind)
        found = found.take(concatenated_ranges(own.first_rank_kind[like], kinds), axis=1)
    return StateMemory(activations_bytes=None, **dict(zip(State._fields, found, strict=True)))


def _of_replicas(replicas: Replicas) -> Floats:
    """Return what ranks of each replica have in common, float64[len(OWN), replicas]."""
    columns, jobs = replicas.columns, replicas.jobs
    training, split = jobs.training, jobs.parallelism
    # Lowering gives the head of a pipeline a copy of a tied embedding; it may lie beside it.
    tied = jobs.model.tied * (columns.pp > 1)
    copied = padded_vocab(jobs, columns) // columns.tp * jobs.model.hidden * tied
    # The copies of a model that runs in several directions share their gradients and shards.
    dense_ranks = columns.dp * columns.cp // columns.copies * replicas.directions
    expert_ranks = columns.edp // columns.copies * replicas.directions
    ranks = columns.dp * columns.cp
    staged = (training.reduce_bytes != training.gradient_bytes) & (ranks > 1)
    tokens = columns.micro_batch * columns.seq // columns.cp
    rows = tokens // np.where(split.splits_sequence == 1, columns.tp, 1)
    # One message each way in both directions.
    messages = 4 * 2.0 * rows * jobs.model.hidden * (columns.pp > 1)
    # PyTorch's workspace and that of a library of fused layers.
    workspaces = 2.0 * jobs.cluster.workspace_bytes
    fsdp = split.fsdp > 0

    own: Replica[Array] = Replica(
        zero=columns.zero_stage,
        fsdp=fsdp,
        waits=fsdp & (columns.pp > 1),
        again=split.regathers == 1,
        frozen=training.adapted == 1,
        keeps_quantised=training.keeps_quantised != 0,
        copied=copied,
        dense_ranks=dense_ranks,
        expert_ranks=expert_ranks,
        gradient_bytes=training.gradient_bytes,
        reduce_bytes=training.reduce_bytes,
        weight_bytes=training.weight_bytes,
        held_bytes=training.held_weight_bytes,
        quantised_bytes=training.quantised_copies,
        state_bytes=training.state_bytes,
        update_bytes=training.update_bytes,
        on_device=1.0 - training.optimizer_offload,
        layers=1.0 + np.maximum(split.forward_ahead, split.backward_ahead),
        bucket=bucket_parameters(split.bucket, ranks),
        staged_bytes=training.reduce_bytes * staged,
        fixed_bytes=messages + workspaces,
    )
    return np.stack(own, dtype=np.float64)


class AllocatorColumns(NamedTuple):
    """Bytes of n ranks at their peaks, float64[n]; see `kernels.memory.AllocatorBytes`."""

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
    """Return what allocators hold at the peak of n ranks, of ``families`` and kinds ``ranks``."""
    columns = AllocatorColumns(*np.empty((3, len(ranks))))
    kernels.allocator_columns(activations, ranks, held, families, devices, *columns)
    return columns


def room_for_activations(
    batch: JobBatch, columns: JobColumns, state: StateMemory, families: Ints, ranks: Ints
) -> Floats:
    """Return bytes that n ranks (of a family and kind, int64[n]) have for activations."""
    devices, held = devices_of(batch, reserve_bytes(batch, columns)), rank_bytes(state)
    left, static = devices.left_bytes[families], held.static[ranks]
    stated = devices.stated_fragmentation[families]
    pinned = allocator_columns(devices, families, held, ranks, np.zeros(len(ranks))).pinned
    derived = (left - static - pinned) / (1.0 + devices.pinned_share[families])
    return np.where(np.isnan(stated), derived, np.maximum(0.0, left / (1.0 + stated)) - static)
