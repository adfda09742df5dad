"""The memory forms as Primus documents them, kept for comparison.

They are known to be coarse: every norm counts 2H parameters and there are three a layer, the
total has no output layer and no final norm, the sharding degree is world / (EP * PP) for all
parameters, and the schedule factor multiplies the embedding too. The physical form is in
`projector.projection.memory`.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.lower.stages import (
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    Kind,
    LayerSettings,
    LayerSplit,
    stage_layout,
)
from projector.units import to_gib

ELEMENT_BYTES = 2


Whole = TypeVar("Whole")
Real = TypeVar("Real")


@dataclass(frozen=True, slots=True)
class DocumentedTotals(Generic[Whole, Real]):
    """What the documented closed forms give for rank 0 of one job, or of each of many."""

    parameters_total: Whole
    parameters_per_rank: Whole
    param_optimizer_gib: Real
    activation_gib: Real
    total_gib: Real


@dataclass(frozen=True, slots=True)
class DocumentedMemory(DocumentedTotals[int, float]):
    """What the documented closed forms give for rank 0."""

    components: dict[str, dict[str, float]]
    """Parameters of one rank and activation GiB of one microbatch, by module."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the names of the attributes."""
        return asdict(self)


def documented_components(job: Job) -> dict[str, dict[str, float]]:
    """List modules as the documented report prints them, for rank 0 and one microbatch."""
    split, training = job.parallelism, job.training
    tokens = training.micro_batch_size * training.seq_length // split.tp // split.cp
    return _Forms(job.model, split.tp).components(split.ep, tokens)


class DocumentedForms(NamedTuple):
    """What the forms multiply, for rank 0."""

    parameters_total: int
    parameters_per_rank: int
    bytes_per_token: int
    """Activations of one microbatch, for each token of the rank."""


@lru_cache(maxsize=4096)
def documented_forms(
    model: ModelConfig, tp: int, ep: int, split: LayerSplit, settings: LayerSettings
) -> DocumentedForms:
    """Count parameters and activations by the documented forms."""
    forms = _Forms(model, tp)
    parameters, activation = forms.embedding_parameters, forms.token_bytes
    for stage in stage_layout(model, split, settings)[:: split.pp]:
        for kind, count in stage.layers:
            parameters += count * forms.layer_parameters(kind.kind is Kind.MOE, ep)
            activation += count * forms.kept_bytes(kind.kind is Kind.MOE, kind.recompute)
    mixtures = sum(model.moe_layers)
    layers = mixtures * forms.layer_parameters(moe=True, ep=1)
    layers += (len(model.moe_layers) - mixtures) * forms.layer_parameters(moe=False, ep=1)
    return DocumentedForms(forms.embedding_parameters + layers, parameters, activation)


def documented_states_gib(parameters: Any, gpus: Any, ep: Any, pp: Any) -> Any:
    """Return GiB of parameters with their states, of one job or of columns."""
    sharding = np.maximum(1, gpus // (ep * pp))
    bytes_per_parameter = 2 + 2 + 10 / sharding
    return to_gib(parameters * bytes_per_parameter)


def documented_microbatches(pp: Any, vpp: Any, microbatches: Any) -> Any:
    """Return by how much the activations of one microbatch count, of one job or of columns."""
    return pp * (1 + (pp - 1) / (pp * vpp)) * np.minimum(1.0, microbatches / pp)


class _Forms:
    """The closed forms of a model; parameters of one rank, bytes of one token of a microbatch."""

    def __init__(self, model: ModelConfig, tp: int) -> None:
        self.model = model
        self.vocab = model.padded_vocab_size(tp)
        self.token_bytes = ELEMENT_BYTES * model.hidden_size

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.model.hidden_size

    @property
    def norm_parameters(self) -> int:
        return 2 * self.model.hidden_size

    @property
    def attention_parameters(self) -> int:
        model = self.model
        heads, hidden = model.num_attention_heads, model.hidden_size
        mla = model.mla
        if mla is None:
            width = heads * model.head_dim
            return 2 * hidden * width + 2 * hidden * model.query_groups * model.head_dim
        query = mla.qk_head_dim + mla.qk_pos_emb_head_dim
        rank = mla.q_lora_rank
        queries = rank * (hidden + heads * query + 1) if rank else hidden * heads * query
        keys = mla.kv_lora_rank * (hidden + heads * (mla.qk_head_dim + mla.v_head_dim) + 1)
        return queries + keys + hidden * mla.qk_pos_emb_head_dim + heads * mla.v_head_dim * hidden

    @property
    def _projections(self) -> int:
        return 3 if self.model.gated else 2

    def mlp_parameters(self, moe: bool, ep: int) -> int:
        model = self.model
        if not moe or model.moe is None:
            return self._projections * model.hidden_size * model.ffn_hidden_size
        routed = model.moe.num_experts // ep * model.moe.ffn_hidden_size
        width = routed + model.moe.shared_expert_ffn_hidden_size
        return self._projections * model.hidden_size * width

    @property
    def router_parameters(self) -> int:
        return self.model.hidden_size * self.model.moe.num_experts if self.model.moe else 0

    def layer_parameters(self, moe: bool, ep: int) -> int:
        router = self.router_parameters if moe else 0
        return (
            3 * self.norm_parameters
            + self.attention_parameters
            + router
            + self.mlp_parameters(moe, ep)
        )

    @property
    def attention_bytes(self) -> int:
        model = self.model
        query = model.num_attention_heads * model.head_dim
        if model.mla is not None:
            wide = model.num_attention_heads * (
                model.mla.qk_head_dim + model.mla.qk_pos_emb_head_dim
            )
            return ELEMENT_BYTES * (3 * wide + 2 * query)
        keys = model.query_groups * model.head_dim
        return ELEMENT_BYTES * (query + 2 * keys + model.hidden_size + query)

    def mlp_bytes(self, moe: bool) -> int:
        model = self.model
        if not moe or model.moe is None:
            return ELEMENT_BYTES * (3 * model.ffn_hidden_size + model.hidden_size)
        width = model.moe.ffn_hidden_size
        shared = model.moe.num_shared_experts or -(
            -model.moe.shared_expert_ffn_hidden_size // width
        )
        visits = model.moe.router_topk + shared
        return ELEMENT_BYTES * visits * (model.hidden_size + 3 * width)

    def layer_bytes(self, moe: bool) -> int:
        # Three norms, two residual additions and, in an MoE layer, the router.
        around = (6 if moe else 5) * self.token_bytes
        return around + self.attention_bytes + self.mlp_bytes(moe)

    def kept_bytes(self, moe: bool, recompute: int) -> int:
        if recompute == RECOMPUTE_FULL:
            return self.token_bytes
        dropped = self.attention_bytes if recompute == RECOMPUTE_SELECTIVE else 0
        return self.layer_bytes(moe) - dropped

    def components(self, ep: int, tokens: int) -> dict[str, dict[str, float]]:
        """List modules as the documented report prints them, with ``tokens`` of a microbatch."""
        entries: dict[str, tuple[int, int]] = {
            "embedding": (self.embedding_parameters, self.token_bytes),
            "dense_transformer_layer": (self.layer_parameters(False, ep), self.layer_bytes(False)),
            "layer_norm": (self.norm_parameters, self.token_bytes),
            "self_attention": (self.attention_parameters, self.attention_bytes),
            "residual_add": (0, self.token_bytes),
            "mlp": (self.mlp_parameters(False, ep), self.mlp_bytes(False)),
        }
        if self.model.moe is not None:
            entries |= {
                "moe_transformer_layer": (self.layer_parameters(True, ep), self.layer_bytes(True)),
                "router": (self.router_parameters, self.token_bytes),
                "moe_mlp": (self.mlp_parameters(True, ep), self.mlp_bytes(True)),
            }
        entries |= {
            "final_layernorm": (self.norm_parameters, self.token_bytes),
            "output_layer": (self.embedding_parameters, ELEMENT_BYTES * self.vocab),
        }
        return {
            name: {"parameters": parameters, "activation_gib": to_gib(tokens * num_bytes)}
            for name, (parameters, num_bytes) in entries.items()
        }
