"""What ranks hold besides activations: weights, gradients, states and working sets.

Units
    bytes and parameters, float64.
"""

import numpy as np

from projector.arrays import Floats, Ints

from ._jit import inlined, kernel
from .replicas import Patterns

SUMS = (
    "dense_parameters", "expert_parameters", "trained_dense", "trained_experts",
    "narrow_parameters", "packed_parameters", "end_parameters", "trained_ends",
)  # fmt: skip
"""Columns of stages that the chunks of a rank add up to."""

DENSE, EXPERTS, TRAINED, TRAINED_EXPERTS, NARROW, PACKED, ENDS, TRAINED_ENDS = range(len(SUMS))

MAXIMA = (
    "layer_transient_bytes", "end_transient_bytes", "layer_parameters", "layer_expert_parameters",
    "trained_layer", "trained_layer_experts", "placeholder_bytes", "embedding_bytes",
)  # fmt: skip
"""Columns of stages of which a rank has the largest of its chunks."""

IN_LAYERS, AT_ENDS, LAYER, LAYER_EXPERTS, TRAINED_LAYER, TRAINED_LAYER_EXPERTS, PLACEHOLDER = range(
    len(MAXIMA) - 1
)
EMBEDDING = len(MAXIMA) - 1

STATE = (
    "parameters", "held_parameters", "owned_parameters", "weights_bytes", "gradients_bytes",
    "optimizer_bytes", "transient_bytes", "buffers_bytes", "unplaced_bytes", "embedding_bytes",
    "sharding_excess_bytes", "gathered_bytes", "updating_bytes",
)  # fmt: skip
"""What is found of each kind of rank."""

(
    PARAMETERS, HELD, OWNED, WEIGHTS, GRADIENTS, OPTIMIZER, TRANSIENT, BUFFERS, UNPLACED, LOOKED_UP,
    EXCESS, GATHERED, UPDATING,
) = range(len(STATE))  # fmt: skip

REPLICA = (
    "zero", "fsdp", "waits", "again", "frozen", "keeps_quantised", "copied", "dense_ranks",
    "expert_ranks", "gradient_bytes", "reduce_bytes", "weight_bytes", "held_bytes",
    "quantised_bytes", "state_bytes", "update_bytes", "on_device", "layers", "bucket",
    "staged_bytes", "fixed_bytes",
)  # fmt: skip
"""What is known of a replica: its ZeRO stage (FSDP is 3); whether it is FSDP, which reduces nothing
between microbatches of a pipeline, gathers weights again for the backward, trains adapters alone,
keeps quantised copies of gathered weights; parameters of a tied embedding that ranks at both ends
hold once; ranks that share one copy of dense parameters and of experts; bytes of a gradient, as it
is reduced, of a weight, as it is stored, of quantised copies, of states and of their update; the
share of states on the device; layers whose weights are held at one time; parameters of a bucket of
gradients, bytes of each that are staged; messages of the pipeline and workspaces."""

(
    ZERO, FSDP, WAITS, AGAIN, FROZEN, KEEPS_QUANTISED, COPIED, DENSE_RANKS, EXPERT_RANKS,
    GRADIENT_BYTES, REDUCE_BYTES, WEIGHT_BYTES, HELD_BYTES, QUANTISED_BYTES, STATE_BYTES,
    UPDATE_BYTES, ON_DEVICE, LAYERS, BUCKET, STAGED_BYTES, FIXED_BYTES,
) = range(len(REPLICA))  # fmt: skip


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
    everything: float,
    layer: float,
    ends: float,
    trained_all: float,
    trained_layer: float,
    trained_ends: float,
) -> float:
    """Return the bytes of weights and gradients of one group that lie whole beside shards.

    Of the weights these are the ends of the model, which one unit holds through the step; the layer
    that computes and those gathered ahead of it; or all, where nothing is gathered again. Of the
    gradients it is a layer's, as autograd makes them under FSDP and as they are reduced. Between
    the microbatches of a pipeline FSDP reduces nothing: whole gradients add up. ZeRO 2 reduces a
    layer at a time as well.
    """
    fsdp = own[FSDP, replica] != 0.0
    ends = min(ends, everything)
    body = everything - ends
    layer = min(layer, body)
    whole = ends + (min(own[LAYERS, replica] * layer, body) if own[AGAIN, replica] != 0.0 else body)
    trained_ends = min(trained_ends, trained_all)
    trained = min(trained_layer, trained_all - trained_ends)
    largest = max(trained, trained_ends)
    if zero == 2:
        return float(own[GRADIENT_BYTES, replica] * largest)
    if zero < 2:
        return 0.0
    summed = trained if fsdp else largest
    if own[WAITS, replica] != 0.0:
        summed = trained_all
    made = 2.0 * trained if fsdp else 0.0
    return float(weight_bytes * whole + made + own[REDUCE_BYTES, replica] * summed)


@inlined
def _both_gathered(
    replica: int,
    own: Floats,
    zero: int,
    weight_bytes: float,
    total: Floats,
    most: Floats,
) -> float:
    """Return what is gathered of dense parameters and of experts.

    What one rank has to itself is neither gathered nor reduced.
    """
    found = 0.0
    if own[DENSE_RANKS, replica] > 1.0:
        found += _gathered(
            replica, own, zero, weight_bytes, total[DENSE], most[LAYER], total[ENDS],
            total[TRAINED], most[TRAINED_LAYER], total[TRAINED_ENDS],
        )  # fmt: skip
    if own[EXPERT_RANKS, replica] > 1.0:
        found += _gathered(
            replica, own, zero, weight_bytes, total[EXPERTS], most[LAYER_EXPERTS], 0.0,
            total[TRAINED_EXPERTS], most[TRAINED_LAYER_EXPERTS], 0.0,
        )  # fmt: skip
    return found


@inlined
def _write_rank(
    replica: int, own: Floats, total: Floats, most: Floats, nf4: float,
    place: int, found: Floats,
) -> None:  # fmt: skip
    """Write what one kind of rank holds, whose stages add up to ``total``."""
    zero, frozen = own[ZERO, replica], own[FROZEN, replica] != 0.0
    gradient, weight = own[GRADIENT_BYTES, replica], own[WEIGHT_BYTES, replica]
    dense_ranks, expert_ranks = own[DENSE_RANKS, replica], own[EXPERT_RANKS, replica]
    everything, trained = total[DENSE] + total[EXPERTS], total[TRAINED] + total[TRAINED_EXPERTS]
    shard = total[DENSE] / dense_ranks + total[EXPERTS] / expert_ranks
    owned = total[TRAINED] / dense_ranks + total[TRAINED_EXPERTS] / expert_ranks
    # Quantised copies of the linear layers' weights live through the step, but not those of
    # gathered weights unless a cache keeps them.
    quantised = own[QUANTISED_BYTES, replica] * total[NARROW]
    kept = quantised if zero < 3 or own[KEEPS_QUANTISED, replica] != 0.0 else 0.0
    packed_share = total[PACKED] / max(everything, 1.0)
    held = own[HELD_BYTES, replica]
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
    updating = own[UPDATE_BYTES, replica] * updated
    working = max(most[IN_LAYERS], most[AT_ENDS]) + gathered
    staged = min(trained, own[BUCKET, replica]) * own[STAGED_BYTES, replica]
    found[PARAMETERS, place] = everything
    found[HELD, place] = shard if zero >= 3 else everything
    found[OWNED, place] = updated
    found[WEIGHTS, place] = weights
    found[GRADIENTS, place] = gradient * (owned if zero >= 2 else trained)
    found[OPTIMIZER, place] = own[STATE_BYTES, replica] * own[ON_DEVICE, replica] * updated
    found[TRANSIENT, place] = max(working, updating)
    found[BUFFERS, place] = staged + own[FIXED_BYTES, replica] + most[PLACEHOLDER]
    found[UNPLACED, place] = min(most[IN_LAYERS], most[AT_ENDS])
    found[LOOKED_UP, place] = most[EMBEDDING]
    found[EXCESS, place] = excess
    found[GATHERED, place] = gathered
    found[UPDATING, place] = updating


@kernel
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

    Parameters
    ----------
    pattern_of : int64[replicas]
    row_first : int64[replicas]
        Row of its first stage.
    own : float64[len(REPLICA), replicas]
    patterns : Patterns
    sums : float64[len(SUMS), rows]
        Of the stages of the pipelines.
    maxima : float64[len(MAXIMA), rows]
    nf4 : float
        Bytes of a parameter that lies in 4 bits.
    found : float64[len(STATE), kinds of ranks]
        Output: replica after replica.
    """
    rank_kind_first, joins_ends = patterns.rank_kind_first, patterns.joins_ends
    held_first, held_stage = patterns.held_first, patterns.held_stage
    total, most = np.empty(len(SUMS)), np.empty(len(MAXIMA))
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
                total[DENSE] -= own[COPIED, replica]
                if own[FROZEN, replica] == 0.0:
                    total[TRAINED] -= own[COPIED, replica]
            _write_rank(replica, own, total, most, nf4, place, found)
            place += 1
