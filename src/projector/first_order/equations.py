"""The equations of the Roofline methodology: the roof, memory, collectives, steps and runs.

Every function takes numbers or arrays that broadcast, and returns float64. Rates are those of one
device in one direction, in bytes/s. No term has a latency: messages are gigabytes.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Flags, Floats
from projector.config.first_order import FirstOrderConfig
from projector.config.model import (
    Mixer,
    MLAConfig,
    ModelConfig,
    parts_of,
    refuse_diffusion,
)
from projector.config.recurrence import WEIGHTS, Widths, held_bytes

FLOP_OF_TRAINING = 6.0
"""FLOP of a parameter and token: 2 forward, 4 backward."""

FLOP_OF_INFERENCE = 2.0
"""The same forward alone."""

SCORES_PER_HEAD = 5.0
"""Bytes of the formula for each score of a head: the softmax and its input in 16 bits, a mask."""

LINEAR_PER_CHANNEL = 34.0
"""Bytes of the formula for each channel of a token, everything but the scores."""


class Constants(NamedTuple):
    """Fields of `FirstOrderConfig`, where they are explained; float64[jobs] or of no dimension."""

    training_mfu: Floats
    decode_mfu: Floats
    prefill_mfu: Floats
    overlap: Floats
    tp_crossing: Floats
    weight_bytes: Floats
    master_bytes: Floats
    gradient_bytes: Floats
    accumulation_bytes: Floats
    momentum_bytes: Floats
    variance_bytes: Floats
    checkpointed_share: Floats

    @classmethod
    def of(cls, config: FirstOrderConfig | None = None) -> Self:
        """Return those of one configuration, by default the methodology's."""
        one = config or FirstOrderConfig()
        return cls(*(np.asarray(getattr(one, name), np.float64) for name in cls._fields))

    @classmethod
    def of_jobs(cls, configs: Sequence[FirstOrderConfig]) -> Self:
        """Return a column of each, in the order of the jobs."""
        return cls(
            *(
                np.array([getattr(config, name) for config in configs], np.float64)
                for name in cls._fields
            )
        )


def column(values: ArrayLike) -> Floats:
    """Return values as float64."""
    return np.asarray(values, np.float64)


def ridge_point(peak_flop_per_s: ArrayLike, bytes_per_s: ArrayLike) -> Floats:
    """Return the intensity, FLOP/byte, of the ridge: peak / bandwidth (Williams et al. 2009)."""
    return column(peak_flop_per_s) / column(bytes_per_s)


def arithmetic_intensity(flop: ArrayLike, num_bytes: ArrayLike) -> Floats:
    """Return FLOP for each byte that memory moves (Roofline methodology, section 1)."""
    return column(flop) / column(num_bytes)


def achieved_throughput(
    intensity: ArrayLike,
    peak_flop_per_s: ArrayLike,
    bytes_per_s: ArrayLike,
    derate: ArrayLike = 1.0,
) -> Floats:
    """Return FLOP/s under the roof: derate * min(peak, intensity * bandwidth).

    The derate lowers the whole roof, the slanted part too. Only so does a decode step of Llama 3
    70B in FP8 come out within the 12 to 18 tokens/s that the methodology states.

    Source: the Roofline methodology, section 1.
    """
    roof = np.minimum(column(peak_flop_per_s), column(intensity) * column(bytes_per_s))
    return column(derate) * roof


def is_memory_bound(
    intensity: ArrayLike, peak_flop_per_s: ArrayLike, bytes_per_s: ArrayLike
) -> Flags:
    """Return whether the intensity lies left of the ridge (Roofline methodology, section 1)."""
    return np.asarray(column(intensity) < ridge_point(peak_flop_per_s, bytes_per_s))


def roofline_time_s(
    flop: ArrayLike,
    num_bytes: ArrayLike,
    peak_flop_per_s: ArrayLike,
    bytes_per_s: ArrayLike,
    derate: ArrayLike = 1.0,
) -> Floats:
    """Return the seconds of some work at a throughput (Roofline methodology, section 1)."""
    intensity = arithmetic_intensity(flop, num_bytes)
    return column(flop) / achieved_throughput(intensity, peak_flop_per_s, bytes_per_s, derate)


class ParameterCounts(NamedTuple):
    """Parameters of one model, multi-token-prediction modules left out."""

    total: int
    active: int
    """What a token meets: of routed experts, topk / experts."""
    experts: int
    """Of the total, those of routed experts, which expert parallelism divides."""


def dense_parameters(hidden: ArrayLike, vocab: ArrayLike, layers: ArrayLike) -> Floats:
    """Return h v + L (12 h^2 + 13 h) + 2 h.

    It assumes an MLP of two matrices with 4 h channels, as many key heads as query heads, biases
    everywhere, LayerNorm, and an output layer that shares the weights of the embedding.

    Source: The Ultra-Scale Playbook; the Roofline methodology, section 2.
    """
    hidden = column(hidden)
    per_layer = 12.0 * hidden**2 + 13.0 * hidden
    return np.asarray(hidden * column(vocab) + column(layers) * per_layer + 2.0 * hidden)


def count_parameters(model: ModelConfig) -> ParameterCounts:
    """Count a model from its own widths; where a count is published, this is that count.

    The methodology takes the published count, and the formula as a check alone.
    """
    refuse_diffusion(model, "the closed forms have none of its layers")
    tables = model.vocab_size * (1 if model.tied_embeddings else 2)
    if model.position_embedding == "learned":
        tables += model.max_position_embeddings
    hidden, norm = model.hidden_size, _norm(model, model.hidden_size)
    before, after = (model.norms_per_layer + 1) // 2 * norm, model.norms_per_layer // 2 * norm
    mixers, behind = layer_parts(model)
    total = tables * hidden + norm + (model.num_layers - behind[None]) * after
    total += sum(count * _mixer(model, one) for one, count in mixers.items())
    total += sum(bool(parts_of(kind)[0]) for kind in model.layer_kinds) * before
    total += behind["dense"] * _mlp(model, hidden, model.ffn_hidden_size)
    if model.moe is None:
        return ParameterCounts(total, total, 0)
    moe_layers = behind["moe"]
    expert = _mlp(model, model.moe.latent_size or hidden, model.moe.ffn_hidden_size)
    total += moe_layers * 2 * hidden * model.moe.latent_size
    experts = moe_layers * model.moe.num_experts * expert
    router = model.moe.num_experts * (model.hidden_size + model.moe.router_bias)
    width = model.moe.shared_expert_ffn_hidden_size
    gate = model.hidden_size if model.moe.shared_expert_gate else 0
    total += experts + moe_layers * (
        router + (_mlp(model, model.hidden_size, width) + gate if width else 0)
    )
    idle = moe_layers * (model.moe.num_experts - model.moe.router_topk) * expert
    return ParameterCounts(total, total - idle, experts)


def layer_parts(model: ModelConfig) -> tuple[Counter[Mixer], Counter[Any]]:
    """Return how many layers have each mixer and each feed-forward."""
    return Counter(model.mixers), Counter(model.feed_forwards)


def _norm(model: ModelConfig, width: int) -> int:
    return width if model.normalization == "rmsnorm" else 2 * width


def _mlp(model: ModelConfig, hidden: int, width: int) -> int:
    inputs = 2 if model.gated else 1
    return (inputs + 1) * hidden * width + (inputs * width + hidden if model.mlp_bias else 0)


def _mixer(model: ModelConfig, mixer: Mixer) -> int:
    if mixer == "attention":
        return _attention(model)
    widths, taps = recurrent_widths(model)
    own = WEIGHTS[mixer](widths)
    further = sum((rows + bias) * columns for _, rows, columns, bias in own.further)
    products = model.hidden_size * (own.inputs + widths.value) + further
    normed = model.recurrent is not None and model.recurrent.gated_norm
    return int(products + taps * own.convolved + own.own + own.norm * normed)


def recurrent_widths(model: ModelConfig) -> tuple[Widths, int]:
    """Return the widths and the taps of a model's recurrent mixers, 0 where it has none."""
    own = model.recurrent
    if own is None:
        return Widths.of(model.hidden_size, 0, 0, 0, 0, 0), 0
    heads = (own.num_heads, own.num_groups, own.head_dim, own.state_size)
    return Widths.of(model.hidden_size, *heads, own.dt_rank), own.conv_kernel


def _attention(model: ModelConfig) -> int:
    if model.mla is not None:
        return _latent_attention(model, model.mla)
    heads = model.num_attention_heads
    query, keys = heads * model.head_dim, 2 * model.query_groups * model.head_dim
    weights = model.hidden_size * ((2 + model.attention_output_gate) * query + keys)
    biases = {"none": 0, "qkv": query + keys, "qkv+out": query + keys + model.hidden_size}
    norms = {"none": 0, "head": 2 * model.head_dim, "full": query + keys // 2}
    sinks = heads if model.attention_sinks else 0
    return weights + biases[model.attention_bias] + norms[model.qk_norm] + sinks


def _latent_attention(model: ModelConfig, mla: MLAConfig) -> int:
    hidden, heads = model.hidden_size, model.num_attention_heads
    query = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    rank = mla.q_lora_rank
    queries = rank * (hidden + query) + _norm(model, rank) if rank else hidden * query
    latent = hidden * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim)
    latent += _norm(model, mla.kv_lora_rank)
    keys_and_values = mla.kv_lora_rank * heads * (mla.qk_head_dim + mla.v_head_dim)
    if mla.index_heads:
        inner = mla.index_heads * mla.index_head_dim
        latent += (rank or hidden) * inner + 2 * mla.index_head_dim
        latent += hidden * (mla.index_head_dim + mla.index_heads)
    return queries + latent + keys_and_values + heads * mla.v_head_dim * hidden


class StateBytes(NamedTuple):
    """Bytes of each parameter that mixed-precision AdamW keeps, or of a rank."""

    weights: Floats
    gradients: Floats
    optimizer: Floats

    @property
    def total(self) -> Floats:
        """All of them."""
        return np.asarray(self.weights + self.gradients + self.optimizer)


def bytes_per_parameter(
    constants: Constants, *, accumulates_beside: bool | Flags = False
) -> StateBytes:
    """Return what each parameter takes: 18 bytes, or 20 where gradients accumulate in a copy.

    2 (BF16 weight) + 4 (FP32 master) + 4 (FP32 gradient) + 4 (momentum) + 4 (variance) = 18. With
    ``accumulates_beside`` the 16-bit gradient lies beside its FP32 sum: +2.

    Source: the Roofline methodology, section 2.1; Loshchilov and Hutter, arXiv:1711.05101.
    """
    beside = np.where(accumulates_beside, constants.accumulation_bytes, 0.0)
    optimizer = constants.master_bytes + constants.momentum_bytes + constants.variance_bytes
    gradients = np.asarray(constants.gradient_bytes + beside)
    return StateBytes(constants.weight_bytes, gradients, np.asarray(optimizer))


def sharded_states(whole: StateBytes, ranks: ArrayLike, stage: ArrayLike) -> StateBytes:
    """Return the states of one of ``ranks`` data-parallel ranks.

    Stage 1 divides the optimizer's states by the ranks, stage 2 also the gradients, stage 3 (FSDP)
    also the weights; stage 0 nothing.

    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054; the Roofline methodology, section 2.2.
    """
    stage, ranks = column(stage), column(ranks)

    def share(first_stage: int) -> Floats:
        return np.where(stage >= first_stage, 1.0 / ranks, 1.0)

    return StateBytes(
        whole.weights * share(3), whole.gradients * share(2), whole.optimizer * share(1)
    )


def activation_bytes(
    layers: ArrayLike,
    seq: ArrayLike,
    batch: ArrayLike,
    hidden: ArrayLike,
    heads: ArrayLike,
    *,
    keeps_scores: bool | Flags = True,
) -> Floats:
    """Return the activations of a microbatch: L s b h (34 + 5 a s / h), in 16 bits.

    The second term is the scores of attention, which a fused kernel does not keep.

    Source: Korthikanti et al., arXiv:2205.05198, equation 1; the Roofline methodology, section 2.3.
    """
    tokens = column(layers) * column(seq) * column(batch)
    scores = SCORES_PER_HEAD * column(heads) * column(seq)
    return tokens * (LINEAR_PER_CHANNEL * column(hidden) + np.where(keeps_scores, scores, 0.0))


ATTENTION_PER_CHANNEL, MLP_PER_CHANNEL = 13.0, 21.0
"""The two parts of 34: 11 and 19, with a norm of 2 bytes each (arXiv:2205.05198, section 4.1)."""


def layer_channels(model: ModelConfig) -> float:
    """Return the channels that the 34 bytes of `activation_bytes` are of, in an average layer.

    A recurrent mixer keeps, in 16 bits, the residual, its norm, and what its entry of the table
    says. This is our own; the formula has attention and an MLP in each layer.
    """
    widths, _ = recurrent_widths(model)
    mixers, behind = layer_parts(model)
    kept = MLP_PER_CHANNEL * model.hidden_size * (model.num_layers - behind[None])
    for mixer, count in mixers.items():
        if mixer == "attention":
            kept += ATTENTION_PER_CHANNEL * model.hidden_size * count
        else:
            kept += 2.0 * (2 * model.hidden_size + WEIGHTS[mixer](widths).kept) * count
    return kept / LINEAR_PER_CHANNEL / model.num_layers


def state_bytes(model: ModelConfig) -> float:
    """Return what the recurrent layers keep of a sequence, however long it is."""
    mixers, _ = layer_parts(model)
    widths = recurrent_widths(model)
    return float(sum(mixers[mixer] * held_bytes(mixer, *widths) for mixer in WEIGHTS))


def checkpointed_bytes(activations: ArrayLike, constants: Constants) -> Floats:
    """Return activations under checkpointing: 30 % of them, for one more forward pass.

    Source: the Roofline methodology, section 2.3; ``docs/first_order.md`` says what it leaves out.
    """
    return column(activations) * constants.checkpointed_share


def kv_cache_bytes(
    layers: ArrayLike,
    batch: ArrayLike,
    seq: ArrayLike,
    key_heads: ArrayLike,
    head_dim: ArrayLike,
    element_bytes: ArrayLike = 2.0,
) -> Floats:
    """Return the cache of keys and values: 2 L b s g d e (Roofline methodology, section 2.4)."""
    tokens = column(layers) * column(batch) * column(seq)
    return 2.0 * tokens * column(key_heads) * column(head_dim) * column(element_bytes)


def ring_all_reduce_s(ranks: ArrayLike, message_bytes: ArrayLike, bytes_per_s: ArrayLike) -> Floats:
    """Seconds of a ring: 2 (N - 1) / N * message / bandwidth (Patarasuk and Yuan, 2009)."""
    ranks = column(ranks)
    return 2.0 * (ranks - 1.0) / ranks * column(message_bytes) / column(bytes_per_s)


def hierarchical_all_reduce_s(
    nodes: ArrayLike,
    ranks_per_node: ArrayLike,
    message_bytes: ArrayLike,
    node_bytes_per_s: ArrayLike,
    network_bytes_per_s: ArrayLike,
) -> Floats:
    """Return the seconds of a reduce-scatter in each node, a ring of nodes, and an all-gather.

    Each device rings its own part, message / ranks of a node, over its own network link. Both
    collectives within a node together move as much as a ring there.

    Source: the Roofline methodology, section 3.2.
    """
    part_bytes = column(message_bytes) / column(ranks_per_node)
    within_s = ring_all_reduce_s(ranks_per_node, message_bytes, node_bytes_per_s)
    return within_s + ring_all_reduce_s(nodes, part_bytes, network_bytes_per_s)


def all_reduce_s(
    ranks: ArrayLike,
    ranks_per_domain: ArrayLike,
    message_bytes: ArrayLike,
    scale_up_bytes_per_s: ArrayLike,
    scale_out_bytes_per_s: ArrayLike,
) -> Floats:
    """Return the seconds of a ring where one domain holds all ranks, else those of the hierarchy.

    ``ranks_per_domain`` is how many ranks of the group lie in one domain (a node, or all of an
    NVL72); the last domain may be part-filled.

    Source: the Roofline methodology, sections 3.1, 3.2 and 3.5.
    """
    ranks = column(ranks)
    near = np.minimum(ranks, np.maximum(1.0, column(ranks_per_domain)))
    domains = np.ceil(ranks / near)
    return hierarchical_all_reduce_s(
        domains, near, message_bytes, scale_up_bytes_per_s, scale_out_bytes_per_s
    )


def bubble_fraction(stages: ArrayLike, microbatches: ArrayLike, chunks: ArrayLike = 1) -> Floats:
    """Return idle over work of a pipeline: (P - 1) / (v m), with v = 1 for 1F1B and AFAB.

    Source: Narayanan et al., arXiv:2104.04473, section 2.2; the Roofline methodology, section 3.3.
    """
    return (column(stages) - 1.0) / (column(chunks) * column(microbatches))


def crossing_factor(tp: ArrayLike, domain: ArrayLike, constants: Constants) -> Floats:
    """Return 1.40 where TP leaves its domain, else 1 (Roofline methodology, 3.4 and 3.5)."""
    return np.where(column(tp) > column(domain), constants.tp_crossing, 1.0)


def training_flop(tokens: ArrayLike, active_parameters: ArrayLike) -> Floats:
    """Return FLOP: 6 N a token, of experts those it meets (Roofline methodology, section 4)."""
    return FLOP_OF_TRAINING * column(tokens) * column(active_parameters)


def compute_s(
    flop: ArrayLike, devices: ArrayLike, derate: ArrayLike, peak_flop_per_s: ArrayLike
) -> Floats:
    """Return FLOP / (devices * derate * peak), in seconds (Roofline methodology, section 4)."""
    return column(flop) / (column(devices) * column(derate) * column(peak_flop_per_s))


def step_s(compute: ArrayLike, communication: ArrayLike, overlap: ArrayLike) -> Floats:
    """Return seconds of a step: max + (1 - overlap) * min of both.

    The communication includes the bubble: all-reduce + bubble * compute.

    Source: the Roofline methodology, section 4.
    """
    longer = np.maximum(column(compute), column(communication))
    return longer + (1.0 - column(overlap)) * np.minimum(column(compute), column(communication))


def time_to_train_s(tokens: ArrayLike, tokens_per_step: ArrayLike, step: ArrayLike) -> Floats:
    """Return seconds of a run: its steps, each as long as one.

    Source: the Roofline methodology, section 4. It leaves out warm-up, restarts and stragglers.
    """
    return column(tokens) / column(tokens_per_step) * column(step)


def forward_flop(tokens: ArrayLike, active_parameters: ArrayLike) -> Floats:
    """Return FLOP of a prefill or decode step: 2 N a token (Roofline methodology, 1 and 4)."""
    return FLOP_OF_INFERENCE * column(tokens) * column(active_parameters)


def weights_read(parameters: ArrayLike, active_parameters: ArrayLike, tokens: ArrayLike) -> Floats:
    """Return the parameters that a forward pass reads: all, or the experts that its tokens meet.

    A token meets the active ones; of many tokens none share an expert until all are met. An upper
    bound of our own: the methodology states nothing for experts in decode.
    """
    met = column(active_parameters) * np.maximum(1.0, column(tokens))
    return np.minimum(column(parameters), met)
