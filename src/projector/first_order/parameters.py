"""Parameters of a model: the formula for dense ones, and the count from its own widths."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats
from projector.config.model import MLAConfig, ModelConfig, MoEConfig
from projector.first_order.roofline import column


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
    tables = model.vocab_size * (1 if model.tied_embeddings else 2)
    if model.position_embedding == "learned":
        tables += model.max_position_embeddings
    moe_layers = sum(model.moe_layers)
    dense_layers = model.num_layers - moe_layers
    around = _attention(model) + model.norms_per_layer * _norm(model, model.hidden_size)
    total = tables * model.hidden_size + _norm(model, model.hidden_size)
    total += model.num_layers * around + dense_layers * _mlp(model, model.ffn_hidden_size)
    if model.moe is None:
        return ParameterCounts(total, total, 0)
    expert = _mlp(model, model.moe.ffn_hidden_size)
    experts = moe_layers * model.moe.num_experts * expert
    total += experts + moe_layers * _router_and_shared(model, model.moe)
    idle = moe_layers * (model.moe.num_experts - model.moe.router_topk) * expert
    return ParameterCounts(total, total - idle, experts)


def _norm(model: ModelConfig, width: int) -> int:
    return width if model.normalization == "rmsnorm" else 2 * width


def _mlp(model: ModelConfig, width: int) -> int:
    inputs = 2 if model.gated else 1
    biases = inputs * width + model.hidden_size if model.mlp_bias else 0
    return (inputs + 1) * model.hidden_size * width + biases


def _router_and_shared(model: ModelConfig, moe: MoEConfig) -> int:
    router = moe.num_experts * (model.hidden_size + moe.router_bias)
    width = moe.shared_expert_ffn_hidden_size
    gate = model.hidden_size if moe.shared_expert_gate else 0
    return router + (_mlp(model, width) + gate if width else 0)


def _attention(model: ModelConfig) -> int:
    if model.mla is not None:
        return _latent_attention(model, model.mla)
    heads = model.num_attention_heads
    query, keys = heads * model.head_dim, 2 * model.query_groups * model.head_dim
    weights = model.hidden_size * (2 * query + keys)
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
    return queries + latent + keys_and_values + heads * mla.v_head_dim * hidden
