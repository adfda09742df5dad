"""Plain-Python memory of one rank besides activations, from the definitions."""


def rank_state(own, stages, joins_ends, nf4):
    """Return what a rank holds by name.

    Parameters
    ----------
    own : mapping
        What is known of the replica, as `kernels.memory.Replica` names it.
    stages : list of mappings
        Columns of the stages that the rank holds.
    """
    total = {name: sum(stage[name] for stage in stages) for name in stages[0]}
    most = {name: max(0.0, *(stage[name] for stage in stages)) for name in stages[0]}
    if joins_ends:
        total["dense_parameters"] -= own["copied"]
        total["trained_dense"] -= 0.0 if own["frozen"] else own["copied"]
    everything = total["dense_parameters"] + total["expert_parameters"]
    trained = total["trained_dense"] + total["trained_experts"]
    shard = total["dense_parameters"] / own["dense_ranks"]
    shard += total["expert_parameters"] / own["expert_ranks"]
    owned = total["trained_dense"] / own["dense_ranks"]
    owned += total["trained_experts"] / own["expert_ranks"]
    share = total["packed_parameters"] / max(everything, 1.0)

    def stored(parameters, updated):
        idle = own["weight_bytes"] if own["frozen"] else own["held_bytes"]
        packed = share * parameters
        return own["held_bytes"] * updated + idle * (parameters - updated - packed) + nf4 * packed

    def gathered(zero):
        dense = group(
            own, zero, total["dense_parameters"], total["end_parameters"],
            most["layer_parameters"], total["trained_dense"], total["trained_ends"],
            most["trained_layer"], share, nf4,
        )  # fmt: skip
        experts = group(
            own, zero, total["expert_parameters"], 0.0, most["layer_expert_parameters"],
            total["trained_experts"], 0.0, most["trained_layer_experts"], share, nf4,
        )  # fmt: skip
        return dense * (own["dense_ranks"] > 1) + experts * (own["expert_ranks"] > 1)

    zero = own["zero"]
    quantised = own["quantised_bytes"] * total["narrow_parameters"]
    weights = stored(shard, owned) if zero == 3 else stored(everything, trained)
    weights += quantised if zero < 3 or own["keeps_quantised"] else 0.0
    at_two = stored(everything, trained) + quantised + gathered(2)
    updated = owned if zero else trained
    ends = most["layer_transient_bytes"], most["end_transient_bytes"]
    staged = min(trained, own["bucket"]) * own["staged_bytes"]
    return {
        "parameters": everything,
        "held_parameters": shard if zero == 3 else everything,
        "owned_parameters": updated,
        "weights_bytes": weights,
        "gradients_bytes": own["gradient_bytes"] * (owned if zero >= 2 else trained),
        "optimizer_bytes": own["state_bytes"] * own["on_device"] * updated,
        "transient_bytes": max(max(ends) + gathered(zero), own["update_bytes"] * updated),
        "buffers_bytes": staged + own["fixed_bytes"] + most["placeholder_bytes"],
        "unplaced_bytes": min(ends),
        "embedding_bytes": most["embedding_bytes"],
        "sharding_excess_bytes": weights + gathered(3) - at_two if zero == 3 else 0.0,
        "gathered_bytes": gathered(zero),
        "updating_bytes": own["update_bytes"] * updated,
    }


def group(own, zero, everything, ends, layer, trained, trained_ends, trained_layer, share, nf4):
    """Return what lies whole of one group of shards beside them."""
    if zero < 2:
        return 0.0
    ends, trained_ends = min(ends, everything), min(trained_ends, trained)
    body = everything - ends
    own_layer = min(trained_layer, trained - trained_ends)
    largest = max(own_layer, trained_ends)
    if zero == 2:
        return own["gradient_bytes"] * largest
    whole = ends + (min(own["layers"] * min(layer, body), body) if own["again"] else body)
    weight = own["weight_bytes"] * (1.0 - share) + nf4 * share
    made = 2.0 * own_layer if own["fsdp"] else 0.0
    summed = trained if own["waits"] else own_layer if own["fsdp"] else largest
    return weight * whole + made + own["reduce_bytes"] * summed
