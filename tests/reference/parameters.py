"""Parameter counts straight from the definition of each module, in plain integers.

H is the width of the residual stream, V the vocabulary, A the query heads, G the key/value
heads, d the width of a head, F the inner width of an MLP and E the number of experts.

The vocabulary is not padded, and multi-token-prediction modules are outside every count.
"""

from projector.config.modalities import DiffusionConfig
from projector.config.model import MLAConfig, ModelConfig, MoEConfig, parts_of


def parameters_total(model: ModelConfig) -> int:
    """Count every parameter of the model once."""
    if model.diffusion is not None:
        return diffusion_parameters(model, model.diffusion)
    layers = sum(sublayers_parameters(model, *parts_of(kind)) for kind in model.layer_kinds)
    return embedding_parameters(model) + layers + norm_parameters(model) + output_parameters(model)


def parameters_active(model: ModelConfig) -> int:
    """Count the parameters that one token uses.

    Everything but the routed experts that the router does not pick. Both embeddings, the
    router, the norms and the shared experts are active; several published figures (gpt-oss,
    DeepSeek-V2-Lite) leave out the input embedding.
    """
    if model.moe is None:
        return parameters_total(model)
    idle = model.moe.num_experts - model.moe.router_topk
    return parameters_total(model) - sum(model.moe_layers) * idle * expert_parameters(model)


def embedding_parameters(model: ModelConfig) -> int:
    """Count token embedding, V H, and the table of learned positions."""
    positions = model.max_position_embeddings if model.position_embedding == "learned" else 0
    return (model.vocab_size + positions) * model.hidden_size


def output_parameters(model: ModelConfig) -> int:
    """Count the output layer, V H, which is the embedding's when they are tied."""
    return 0 if model.tied_embeddings else model.vocab_size * model.hidden_size


def norm_parameters(model: ModelConfig) -> int:
    """Count one norm over the residual stream: a gain, for LayerNorm also a bias."""
    return norm_of_width(model, model.hidden_size)


def norm_of_width(model: ModelConfig, width: int) -> int:
    """Count one norm over ``width`` channels."""
    return width if model.normalization == "rmsnorm" else 2 * width


def sublayers_parameters(model: ModelConfig, mixers: tuple[str, ...], behind: str | None) -> int:
    """Count a layer with mixers, a feed-forward or both; norms are divided among the two."""
    if mixers == ("attention",) and behind is not None:
        return layer_parameters(model, is_moe=behind == "moe")
    norms = model.norms_per_layer // 2 * norm_parameters(model)
    total = 0
    for mixer in mixers:
        total += (
            attention_parameters(model) if mixer == "attention" else mixer_parameters(model, mixer)
        )
    if mixers:
        total += norms
    if behind is not None:
        total += norms
        total += moe_parameters(model) if behind == "moe" else dense_mlp_parameters(model)
    return total


def diffusion_parameters(model: ModelConfig, told: DiffusionConfig) -> int:
    """Count a diffusion transformer; each linear layer has a bias where the model has biases.

    Norms around blocks have no weights, but for the one before attention to text.
    """
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    attention = attention_parameters(model)
    # Attention and MLP of a single stream share the projection to the residual stream.
    mlp, shared_mlp = dense_mlp_parameters(model), mlp_of_width(model, ffn) - hidden
    own = told.modulation == "layer"

    def modulation(vectors: int) -> int:
        return vectors * hidden * (hidden + 1) if own else vectors * hidden

    cross = attention + 2 * hidden if told.text_tokens else 0
    blocks = {
        "double_stream": 2 * (modulation(6) + attention + mlp),
        "single_stream": modulation(3) + attention + shared_mlp,
        "dit": modulation(6) + attention + cross + mlp,
    }

    def linear(n_in: int, n_out: int) -> int:
        return n_in * n_out + n_out

    two = linear(hidden, hidden)
    ends = linear(told.latent_size, hidden) + linear(told.time_size, hidden) + two
    if told.text_tokens:
        ends += linear(told.text_size, hidden) + (two if told.text_layers == 2 else 0)
    if told.pooled_size:
        ends += linear(told.pooled_size, hidden) + two
    if told.guidance:
        ends += linear(told.time_size, hidden) + two
    if not own:
        ends += linear(hidden, 6 * hidden)
    ends += modulation(2) + linear(hidden, told.latent_out or told.latent_size)
    return ends + sum(blocks[kind] for kind in model.layer_kinds)


def mixer_parameters(model: ModelConfig, mixer: str) -> int:
    """Count a recurrent mixer: H heads of width P, G groups of width N, k taps (papers' names)."""
    r, d = model.recurrent, model.hidden_size
    assert r is not None, f"{model.name} has no recurrent layers"
    heads, width, groups, size, taps = (
        r.num_heads, r.head_dim, r.num_groups, r.state_size, r.conv_kernel
    )  # fmt: skip
    v, q = heads * width, groups * size
    if mixer == "mamba1":
        rank = r.dt_rank
        scan = v * (rank + 2 * size) + rank * v + v + v * size + v
        return d * 2 * v + v * (taps + 1) + scan + v * d
    if mixer == "mamba2":
        c = v + 2 * q
        norm = v if r.gated_norm else 0
        return d * (2 * v + 2 * q + heads) + c * (taps + 1) + 3 * heads + norm + v * d
    if mixer == "gdn":
        return d * (2 * q + 3 * v + 2 * heads) + taps * (2 * q + v) + 2 * heads + width
    if mixer == "kda":
        thin = width * (2 * d + heads * size + v) + v
        own = heads + heads * size + width
        return d * (2 * q + 2 * v + heads) + thin + taps * (2 * q + v) + own
    if mixer == "rwkv7":
        # Mixes of six inputs and of the feed-forward's; w0, a0, v0, k_k, k_a, r_k; a group norm.
        return 4 * d * v + r.dt_rank * (d + v) + 7 * d + 6 * v + 2 * v
    if mixer == "conv":
        return d * 3 * v + v * taps + v * d
    assert mixer == "linear"
    return d * (2 * heads * size + 2 * v) + v + v * d


def layer_parameters(model: ModelConfig, *, is_moe: bool) -> int:
    """Count one transformer layer."""
    mlp = moe_parameters(model) if is_moe else dense_mlp_parameters(model)
    return model.norms_per_layer * norm_parameters(model) + attention_parameters(model) + mlp


def attention_parameters(model: ModelConfig) -> int:
    """Count the attention of one layer."""
    if model.mla is not None:
        return mla_parameters(model, model.mla)
    hidden = model.hidden_size
    query = model.num_attention_heads * model.head_dim
    key = value = model.query_groups * model.head_dim

    gate = hidden * query if model.attention_output_gate else 0
    projections = gate + hidden * query + hidden * key + hidden * value + query * hidden
    biases = {"none": 0, "qkv": query + key + value, "qkv+out": query + key + value + hidden}
    norms = {"none": 0, "head": 2 * model.head_dim, "full": query + key}
    sinks = model.num_attention_heads if model.attention_sinks else 0
    return projections + biases[model.attention_bias] + norms[model.qk_norm] + sinks


def mla_parameters(model: ModelConfig, mla: MLAConfig) -> int:
    """Count multi-head latent attention, whose two latents each have a norm and no biases."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    query = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    if mla.q_lora_rank:
        queries = (
            hidden * mla.q_lora_rank
            + norm_of_width(model, mla.q_lora_rank)
            + mla.q_lora_rank * query
        )
    else:
        queries = hidden * query
    # One rotary key is projected beside the latent and shared by all heads.
    latent = hidden * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim)
    latent_norm = norm_of_width(model, mla.kv_lora_rank)
    keys_and_values = mla.kv_lora_rank * heads * (mla.qk_head_dim + mla.v_head_dim)
    output = heads * mla.v_head_dim * hidden
    # The indexer: queries from their latent, one key with a LayerNorm, and a weight of each head.
    inner = mla.index_heads * mla.index_head_dim
    indexer = (mla.q_lora_rank or hidden) * inner + hidden * (mla.index_head_dim + mla.index_heads)
    indexer = indexer + 2 * mla.index_head_dim if mla.index_heads else 0
    return queries + latent + latent_norm + keys_and_values + output + indexer


def dense_mlp_parameters(model: ModelConfig) -> int:
    """Count the MLP of a dense layer."""
    return mlp_of_width(model, model.ffn_hidden_size)


def mlp_of_width(model: ModelConfig, width: int) -> int:
    """Count an MLP of inner width F: up (and gate) H F, down F H, and their biases."""
    inputs = 2 if model.gated else 1
    weights = (inputs + 1) * model.hidden_size * width
    biases = inputs * width + model.hidden_size
    return weights + biases if model.mlp_bias else weights


def moe_parameters(model: ModelConfig) -> int:
    """Count router, routed and shared experts of one layer."""
    moe = _moe(model)
    experts = moe.num_experts * expert_parameters(model)
    experts += 2 * model.hidden_size * moe.latent_size
    return router_parameters(model) + experts + shared_expert_parameters(model)


def router_parameters(model: ModelConfig) -> int:
    """Count the router, H E, and its bias."""
    moe = _moe(model)
    return model.hidden_size * moe.num_experts + (moe.num_experts if moe.router_bias else 0)


def expert_parameters(model: ModelConfig) -> int:
    """Count one routed expert, which may work on narrower tokens."""
    moe = _moe(model)
    hidden = moe.latent_size or model.hidden_size
    return mlp_of_width(model.model_copy(update={"hidden_size": hidden}), moe.ffn_hidden_size)


def shared_expert_parameters(model: ModelConfig) -> int:
    """Count the shared experts of one layer and the gate, H, on their output."""
    moe = _moe(model)
    if not moe.shared_expert_ffn_hidden_size:
        return 0
    gate = model.hidden_size if moe.shared_expert_gate else 0
    return mlp_of_width(model, moe.shared_expert_ffn_hidden_size) + gate


def _moe(model: ModelConfig) -> MoEConfig:
    assert model.moe is not None, f"{model.name} has no experts"
    return model.moe
