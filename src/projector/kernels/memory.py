"""What ranks hold besides activations, and what the allocator of a device holds at their peak.

Weights, gradients, states and working sets are the same whatever the order of the schedule.

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
Units: bytes and parameters, float64.
"""

import math
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels._jit import inlined, kernel
from projector.kernels.replicas import Patterns

T = TypeVar("T")


class Sums(NamedTuple, Generic[T]):
    """Columns of stages that the chunks of a rank add up to: parameters."""

    dense_parameters: T
    expert_parameters: T
    trained_dense: T
    trained_experts: T
    narrow_parameters: T
    """Of linear layers that have quantised copies."""
    packed_parameters: T
    """That lie in 4 bits."""
    end_parameters: T
    """Of the ends of the model."""
    trained_ends: T


class Maxima(NamedTuple, Generic[T]):
    """Columns of stages of which a rank has the largest of its chunks."""

    layer_transient_bytes: T
    end_transient_bytes: T
    layer_parameters: T
    layer_expert_parameters: T
    trained_layer: T
    trained_layer_experts: T
    placeholder_bytes: T
    embedding_bytes: T


class State(NamedTuple, Generic[T]):
    """What is found of each kind of rank; `StateMemory` says what each is."""

    parameters: T
    held_parameters: T
    owned_parameters: T
    weights_bytes: T
    gradients_bytes: T
    optimizer_bytes: T
    transient_bytes: T
    buffers_bytes: T
    unplaced_bytes: T
    embedding_bytes: T
    sharding_excess_bytes: T
    gathered_bytes: T
    updating_bytes: T


class Replica(NamedTuple, Generic[T]):
    """What is known of a replica; flags are 0 or 1."""

    zero: T
    """Its ZeRO stage; FSDP is 3."""
    fsdp: T
    """Whether it is FSDP."""
    waits: T
    """Whether nothing is reduced between microbatches: FSDP in a pipeline."""
    again: T
    """Whether weights are gathered again for the backward."""
    frozen: T
    """Whether adapters alone are trained."""
    keeps_quantised: T
    """Whether quantised copies of gathered weights stay."""
    copied: T
    """Parameters of a tied embedding that ranks at both ends hold once."""
    dense_ranks: T
    """Ranks that share one copy of dense parameters."""
    expert_ranks: T
    """The same of experts."""
    gradient_bytes: T
    """Of a parameter, as the next ones."""
    reduce_bytes: T
    """Of a gradient as it is reduced."""
    weight_bytes: T
    held_bytes: T
    """Of a weight as it is stored."""
    quantised_bytes: T
    """Of quantised copies."""
    state_bytes: T
    """Of optimizer states."""
    update_bytes: T
    """What their update works with."""
    on_device: T
    """Share of the states on the device."""
    layers: T
    """Whose weights are held at one time."""
    bucket: T
    """Parameters of a bucket of gradients."""
    staged_bytes: T
    """Of each parameter of a bucket."""
    fixed_bytes: T
    """Messages of the pipeline, and workspaces."""


SUM = Sums(*range(len(Sums._fields)))
"""Row of each column; so are the next ones."""
MOST = Maxima(*range(len(Maxima._fields)))
FOUND = State(*range(len(State._fields)))
OWN = Replica(*range(len(Replica._fields)))


@inlined
def _stored(
    parameters: float,
    trained: float,
    packed_share: float,
    trained_bytes: float,
    frozen_bytes: float,
    nf4: float,
) -> float:
    """Return the bytes of some parameters, of which ``trained`` are."""
    packed = packed_share * parameters
    rest = parameters - trained - packed
    return trained_bytes * trained + frozen_bytes * rest + nf4 * packed


@inlined
def _gathered(
    replica: int,
    own: Floats,
    zero: int,
    weight_bytes: float,
    parameters: tuple[float, float, float],
    trained: tuple[float, float, float],
) -> float:
    """Return the bytes of weights and gradients of one group that lie whole beside shards.

    Of the weights these are the ends of the model, which one unit holds through the step; the layer
    that computes and those gathered ahead of it; or all, where nothing is gathered again. Of the
    gradients it is a layer's, as autograd makes them under FSDP and as they are reduced. Between
    the microbatches of a pipeline FSDP reduces nothing: whole gradients add up. ZeRO 2 reduces a
    layer at a time as well. Of all ``parameters``, and of those that are ``trained``, both are told
    altogether, of a layer and of the ends.
    """
    everything, layer, ends = parameters
    trained_all, trained_layer, trained_ends = trained
    fsdp = own[OWN.fsdp, replica] != 0.0
    ends = min(ends, everything)
    body = everything - ends
    layer = min(layer, body)
    whole = ends + (
        min(own[OWN.layers, replica] * layer, body) if own[OWN.again, replica] != 0.0 else body
    )
    trained_ends = min(trained_ends, trained_all)
    trained_layer = min(trained_layer, trained_all - trained_ends)
    largest = max(trained_layer, trained_ends)
    if zero == 2:
        return float(own[OWN.gradient_bytes, replica] * largest)
    if zero < 2:
        return 0.0
    summed = trained_layer if fsdp else largest
    if own[OWN.waits, replica] != 0.0:
        summed = trained_all
    made = 2.0 * trained_layer if fsdp else 0.0
    return float(weight_bytes * whole + made + own[OWN.reduce_bytes, replica] * summed)


@inlined
def _both_gathered(
    replica: int, own: Floats, zero: int, weight_bytes: float, total: Floats, most: Floats
) -> float:
    """Return what is gathered of dense parameters and of experts.

    What one rank has to itself is neither gathered nor reduced.
    """
    found = 0.0
    if own[OWN.dense_ranks, replica] > 1.0:
        parameters = (
            total[SUM.dense_parameters], most[MOST.layer_parameters], total[SUM.end_parameters],
        )  # fmt: skip
        trained = total[SUM.trained_dense], most[MOST.trained_layer], total[SUM.trained_ends]
        found += _gathered(replica, own, zero, weight_bytes, parameters, trained)
    if own[OWN.expert_ranks, replica] > 1.0:
        parameters = total[SUM.expert_parameters], most[MOST.layer_expert_parameters], 0.0
        trained = total[SUM.trained_experts], most[MOST.trained_layer_experts], 0.0
        found += _gathered(replica, own, zero, weight_bytes, parameters, trained)
    return found


@inlined
def _write_rank(
    replica: int, own: Floats, total: Floats, most: Floats, nf4: float,
    place: int, found: Floats,
) -> None:  # fmt: skip
    """Write what one kind of rank holds, whose stages add up to ``total``."""
    zero, frozen = own[OWN.zero, replica], own[OWN.frozen, replica] != 0.0
    gradient, weight = own[OWN.gradient_bytes, replica], own[OWN.weight_bytes, replica]
    dense_ranks, expert_ranks = own[OWN.dense_ranks, replica], own[OWN.expert_ranks, replica]
    everything, trained = (
        total[SUM.dense_parameters] + total[SUM.expert_parameters],
        total[SUM.trained_dense] + total[SUM.trained_experts],
    )
    shard = total[SUM.dense_parameters] / dense_ranks + total[SUM.expert_parameters] / expert_ranks
    owned = total[SUM.trained_dense] / dense_ranks + total[SUM.trained_experts] / expert_ranks
    # Quantised copies of the linear layers' weights live through the step, but not those of
    # gathered weights unless a cache keeps them.
    quantised = own[OWN.quantised_bytes, replica] * total[SUM.narrow_parameters]
    kept = quantised if zero < 3 or own[OWN.keeps_quantised, replica] != 0.0 else 0.0
    packed_share = total[SUM.packed_parameters] / max(everything, 1.0)
    held = own[OWN.held_bytes, replica]
    rest = weight if frozen else held
    whole_bytes = _stored(everything, trained, packed_share, held, rest, nf4)
    weights = whole_bytes
    if zero >= 3:
        weights = _stored(shard, owned, packed_share, held, rest, nf4)
    weights += kept
    sent_bytes = weight * (1.0 - packed_share) + nf4 * packed_share
    gathered = _both_gathered(replica, own, zero, sent_bytes, total, most)
    excess = 0.0
    if zero >= 3:
        at_two = whole_bytes + quantised
        at_two += _both_gathered(replica, own, 2, sent_bytes, total, most)
        excess = weights + gathered - at_two
    updated = owned if zero >= 1 else trained
    updating = own[OWN.update_bytes, replica] * updated
    working = max(most[MOST.layer_transient_bytes], most[MOST.end_transient_bytes]) + gathered
    staged = min(trained, own[OWN.bucket, replica]) * own[OWN.staged_bytes, replica]
    found[FOUND.parameters, place] = everything
    found[FOUND.held_parameters, place] = shard if zero >= 3 else everything
    found[FOUND.owned_parameters, place] = updated
    found[FOUND.weights_bytes, place] = weights
    found[FOUND.gradients_bytes, place] = gradient * (owned if zero >= 2 else trained)
    found[FOUND.optimizer_bytes, place] = (
        own[OWN.state_bytes, replica] * own[OWN.on_device, replica] * updated
    )
    found[FOUND.transient_bytes, place] = max(working, updating)
    found[FOUND.buffers_bytes, place] = (
        staged + own[OWN.fixed_bytes, replica] + most[MOST.placeholder_bytes]
    )
    found[FOUND.unplaced_bytes, place] = min(
        most[MOST.layer_transient_bytes], most[MOST.end_transient_bytes]
    )
    found[FOUND.embedding_bytes, place] = most[MOST.embedding_bytes]
    found[FOUND.sharding_excess_bytes, place] = excess
    found[FOUND.gathered_bytes, place] = gathered
    found[FOUND.updating_bytes, place] = updating


@kernel(python_us=0.7)
def hold_state(
    pattern_of: Ints,
    row_first: Ints,
    own: Floats,
    patterns: Patterns,
    sums: Floats,
    maxima: Floats,
    nf4: float,
    found: Floats,
) -> None:
    """Find what each kind of rank of each replica holds, whatever the order of the schedule.

    pattern_of : int64[replicas]
    row_first : int64[replicas]. Row of its first stage.
    own : float64[len(OWN), replicas]
    patterns : Patterns
    sums : float64[len(SUM), rows]. Of the stages of the pipelines.
    maxima : float64[len(MOST), rows]
    nf4 : float. Bytes of a parameter that lies in 4 bits.
    found : float64[len(FOUND), kinds of ranks]. Output: replica after replica.
    """
    rank_kind_first, joins_ends = patterns.rank_kind_first, patterns.joins_ends
    held_first, held_stage = patterns.held_first, patterns.held_stage
    total, most = np.empty(len(SUM)), np.empty(len(MOST))
    place = 0
    for replica in range(pattern_of.shape[0]):
        pattern, first = pattern_of[replica], row_first[replica]
        for kind in range(rank_kind_first[pattern], rank_kind_first[pattern + 1]):
            for column in range(total.shape[0]):
                total[column] = 0.0
            for column in range(most.shape[0]):
                most[column] = 0.0
            for chunk in range(held_first[kind], held_first[kind + 1]):
                row = first + held_stage[chunk]
                for column in range(total.shape[0]):
                    total[column] += sums[column, row]
                for column in range(most.shape[0]):
                    most[column] = max(most[column], maxima[column, row])
            if joins_ends[kind]:
                total[SUM.dense_parameters] -= own[OWN.copied, replica]
                if own[OWN.frozen, replica] == 0.0:
                    total[SUM.trained_dense] -= own[OWN.copied, replica]
            _write_rank(replica, own, total, most, nf4, place, found)
            place += 1


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

    activations_N : float64[N]. At the peak.
    rank_N, family_N : int64[N]. Where each is.
    ranks, devices. Of all ranks and families.
    pinned_N, idle_N, usable_N : float64[N]. Outputs: see `AllocatorBytes`.
    """
    for n in range(activations_N.shape[0]):
        held = allocator_bytes(activations_N[n], rank_N[n], ranks, family_N[n], devices)
        pinned_N[n], idle_N[n], usable_N[n] = held.pinned, held.idle, held.usable
