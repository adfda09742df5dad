"""Memory of every pipeline rank in its physical form, term by term."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.grouping import segment_maxima, segment_sums
from projector.lower.workload_columns import padded_vocab
from projector.operations.linear import NF4_BYTES
from projector.projection.data_parallel import bucket_parameters
from projector.projection.memory_terms import MemoryTerms
from projector.projection.pipeline_costs import PipelineCosts
from projector.projection.replicas import Replicas


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


_OF_RANKS = tuple(each.name for each in fields(StateMemory) if each.name != "activations_bytes")


@dataclass(frozen=True, slots=True)
class RankMemory(MemoryTerms[Floats, Floats]):
    """Bytes of each pipeline rank of one job, float64[pp]."""

    parameters: Floats
    in_flight: Ints
    """int64[pp]: microbatches, times chunks, held at the peak."""


def state_memory(replicas: Replicas, costs: PipelineCosts) -> StateMemory:
    """Compute everything that does not depend on the schedule's order."""
    alike = replicas.alike(replicas.jobs.cluster.workspace_bytes.view(np.int64))
    state = _state_memory(alike.replicas, costs)
    if alike.replicas is replicas:
        return state
    columns = {name: getattr(state, name).take(alike.of_rank_kind) for name in _OF_RANKS}
    return StateMemory(activations_bytes=None, **columns)


def _state_memory(replicas: Replicas, costs: PipelineCosts) -> StateMemory:
    columns, jobs, rank = replicas.columns, replicas.jobs, replicas.of_rank_kind
    held_offset, pipeline_stage = replicas.held
    training, zero = jobs.training, columns.zero_stage[rank]

    def per_rank(values: Floats) -> Floats:
        return segment_sums(held_offset, values.take(pipeline_stage))

    def largest(values: Floats) -> Floats:
        return segment_maxima(held_offset, values.take(pipeline_stage))

    dense, experts = per_rank(costs.dense_parameters), per_rank(costs.expert_parameters)
    # Lowering gives the head of a pipeline a copy of a tied embedding; it may lie beside it.
    copied = jobs.model.tied * (columns.pp > 1)
    copy = (padded_vocab(jobs, columns) // columns.tp * jobs.model.hidden * copied).astype(
        np.float64
    )
    dense -= replicas.joins_ends * copy[rank]
    # The copies of a model that runs in several directions share their gradients and shards.
    dense_ranks = (columns.dp * columns.cp // columns.copies * replicas.directions)[rank]
    expert_ranks = (columns.edp // columns.copies * replicas.directions)[rank]
    trained, trained_experts = per_rank(costs.trained_dense), per_rank(costs.trained_experts)
    frozen = training.adapted[rank] == 1
    trained -= np.where(frozen, 0.0, replicas.joins_ends * copy[rank])
    shard = dense / dense_ranks + experts / expert_ranks
    owned = trained / dense_ranks + trained_experts / expert_ranks
    everything, everything_trained = dense + experts, trained + trained_experts
    gradient = training.gradient_bytes[rank]
    sharded = zero >= 3
    # Quantised copies of the linear layers' weights live through the step, but not those of
    # gathered weights unless a cache keeps them.
    quantised = training.quantised_copies[rank] * per_rank(costs.narrow_parameters)
    kept = np.where(sharded & (training.keeps_quantised[rank] == 0), 0.0, quantised)
    held = _Held(
        training.held_weight_bytes[rank],
        np.where(frozen, training.weight_bytes[rank], training.held_weight_bytes[rank]),
        per_rank(costs.packed_parameters) / np.maximum(everything, 1.0),
    )
    whole_bytes = held.bytes(everything, everything_trained)
    weights = np.where(sharded, held.bytes(shard, owned), whole_bytes) + kept
    on_device = (1.0 - training.optimizer_offload)[rank]
    updated = np.where(zero >= 1, owned, everything_trained)
    in_layers, at_ends = largest(costs.layer_transient_bytes), largest(costs.end_transient_bytes)
    groups = (
        _Sharded(
            dense, largest(costs.layer_parameters), per_rank(costs.end_parameters), dense_ranks,
            trained, largest(costs.trained_layer), per_rank(costs.trained_ends),
        ),
        _Sharded(
            experts, largest(costs.layer_expert_parameters), np.zeros(len(rank)), expert_ranks,
            trained_experts, largest(costs.trained_layer_experts), np.zeros(len(rank)),
        ),
    )  # fmt: skip
    gathered = _gathered(replicas, zero, groups, held.packed_share)
    at_two = whole_bytes + quantised
    at_two += _gathered(replicas, np.full(len(rank), 2), groups, held.packed_share)
    updating = training.update_bytes[rank] * updated
    transient = np.maximum(np.maximum(in_layers, at_ends) + gathered, updating)
    return StateMemory(
        parameters=everything,
        held_parameters=np.where(sharded, shard, everything),
        owned_parameters=updated,
        weights_bytes=weights,
        gradients_bytes=gradient * np.where(zero >= 2, owned, everything_trained),
        optimizer_bytes=training.state_bytes[rank] * on_device * updated,
        activations_bytes=None,
        transient_bytes=transient,
        buffers_bytes=_buffers(replicas, everything_trained) + largest(costs.placeholder_bytes),
        unplaced_bytes=np.minimum(in_layers, at_ends),
        embedding_bytes=largest(costs.embedding_bytes),
        sharding_excess_bytes=np.where(sharded, weights + gathered - at_two, 0.0),
        gathered_bytes=gathered,
        updating_bytes=updating,
    )


class _Held(NamedTuple):
    """How a rank stores parameters, float64[kinds of ranks] each."""

    trained_bytes: Floats
    """Of a parameter that is trained."""
    frozen_bytes: Floats
    """Of one that is not."""
    packed_share: Floats
    """Of all parameters, those that lie in 4 bits."""

    def bytes(self, parameters: Floats, trained: Floats) -> Floats:
        """Return the bytes of some parameters, of which ``trained`` are."""
        packed = self.packed_share * parameters
        rest = parameters - trained - packed
        return self.trained_bytes * trained + self.frozen_bytes * rest + NF4_BYTES * packed


class _Sharded(NamedTuple):
    """Parameters of each rank of one group of shards, float64[kinds of ranks] each."""

    everything: Floats
    layer: Floats
    """Of the largest layer."""
    ends: Floats
    """Of the embedding, the head and MTP's projections."""
    ranks: Ints
    """That share one copy."""
    trained: Floats
    """Of all of them."""
    trained_layer: Floats
    trained_ends: Floats


def _gathered(
    replicas: Replicas, zero: Ints, groups: Sequence[_Sharded], packed_share: Floats
) -> Floats:
    """Return the bytes of weights and gradients that lie whole beside a rank's shards.

    Of the weights these are the ends of the model, which one unit holds through the step; the layer
    that computes and those gathered ahead of it; or all, where nothing is gathered again. Of the
    gradients it is a layer's, as autograd makes them under FSDP and as they are reduced. Between
    the microbatches of a pipeline FSDP reduces nothing: whole gradients add up. ZeRO 2 reduces a
    layer at a time as well. What one rank has to itself is neither gathered nor reduced.
    """
    split, rank = replicas.jobs.parallelism, replicas.of_rank_kind
    training = replicas.jobs.training
    layers = 1.0 + np.maximum(split.forward_ahead, split.backward_ahead)[rank]
    again, fsdp = split.regathers[rank] == 1, split.fsdp[rank] > 0
    waits = fsdp & (replicas.columns.pp > 1)[rank]
    weight_bytes = training.weight_bytes[rank] * (1.0 - packed_share) + NF4_BYTES * packed_share
    total = np.zeros(len(rank))
    for group in groups:
        ends = np.minimum(group.ends, group.everything)
        body = group.everything - ends
        layer = np.minimum(group.layer, body)
        whole = ends + np.where(again, np.minimum(layers * layer, body), body)
        trained_ends = np.minimum(group.trained_ends, group.trained)
        trained = np.minimum(group.trained_layer, group.trained - trained_ends)
        largest = np.maximum(trained, trained_ends)
        summed = np.where(waits, group.trained, np.where(fsdp, trained, largest))
        sharded = weight_bytes * whole + 2.0 * trained * fsdp + training.reduce_bytes[rank] * summed
        reduced = training.gradient_bytes[rank] * largest
        beside = np.where(zero >= 3, sharded, np.where(zero == 2, reduced, 0.0))
        total += beside * (group.ranks > 1)
    return total


def _buffers(replicas: Replicas, parameters: Floats) -> Floats:
    """Staging of gradients whose wire type differs, and of pipeline messages."""
    columns, jobs, rank = replicas.columns, replicas.jobs, replicas.of_rank_kind
    training = jobs.training
    ranks = columns.dp * columns.cp
    bucket = np.minimum(parameters, bucket_parameters(jobs.parallelism.bucket, ranks)[rank])
    staged = (training.reduce_bytes != training.gradient_bytes) & (ranks > 1)
    tokens = columns.micro_batch * columns.seq // columns.cp
    split = np.where(jobs.parallelism.splits_sequence == 1, columns.tp, 1)
    # One message each way in both directions.
    messages = 4 * 2.0 * (tokens // split) * jobs.model.hidden * (columns.pp > 1)
    # PyTorch's workspace and that of a library of fused layers.
    workspaces = 2.0 * jobs.cluster.workspace_bytes
    return np.asarray(
        bucket * (training.reduce_bytes * staged)[rank] + (messages + workspaces)[rank]
    )
