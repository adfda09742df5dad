"""The architecture of a transformer language model."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from projector.config._base import Config
from projector.errors import ConfigError

Extent = Annotated[int, Field(gt=0, le=1 << 30)]
"""A width or a count of a real architecture; the limit keeps products within exact integers."""

Count = Annotated[int, Field(ge=0, le=1 << 30)]
"""The same, where nothing is legal too."""

LayerType = Literal["dense", "moe"]
"""Kinds of layers; what each is made of is in `projector.operations.emit.LAYERS`."""


class RopeScaling(Config):
    """How rotations are stretched to sequences longer than those of the first training."""

    kind: Literal["llama3", "yarn", "linear"]
    """Llama 3.1's rule by wavelength, YaRN (arXiv 2309.00071), or all positions divided."""

    factor: float = Field(gt=0)
    """How many times longer sequences are."""

    original_max_position_embeddings: Extent | None = None
    """Longest sequence of the first training."""

    low_freq_factor: float = Field(default=1.0, gt=0)
    """Llama's rule: wavelengths above the original length divided by this are stretched in full."""

    high_freq_factor: float = Field(default=4.0, gt=0)
    """Llama's rule: wavelengths below the original length divided by this stay."""

    beta_fast: float = Field(default=32.0, gt=0)
    """YaRN: what turns more often than this within the original length stays."""

    beta_slow: float = Field(default=1.0, gt=0)
    """YaRN: what turns less often than this is stretched in full."""

    truncate: bool = True
    """YaRN: whether the bounds between the two are rounded to whole pairs of a head."""

    mscale: float = 1.0
    """YaRN's factor of the attention's temperature, for the rotary part of a head."""

    mscale_all_dim: float = 0.0
    """The same for the whole head."""

    aliases: ClassVar = {"rope_type": "kind", "type": "kind"}


class MLAConfig(Config):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    q_lora_rank: Count = 0
    """Rank of the compressed query; 0 projects queries directly."""

    kv_lora_rank: Extent
    """Rank of the compressed keys and values (the latent that is cached)."""

    qk_head_dim: Extent
    """Query/key width of one head without the rotary part (``qk_nope_head_dim``)."""

    qk_pos_emb_head_dim: Extent
    """Rotary query/key width of one head, its key part shared by all heads."""

    v_head_dim: Extent
    """Value width of one head."""

    aliases: ClassVar = {
        "qk_nope_head_dim": "qk_head_dim",
        "qk_rope_head_dim": "qk_pos_emb_head_dim",
    }


class MoEConfig(Config):
    """Mixture-of-experts layers."""

    num_experts: Extent
    """Routed experts of one layer."""

    router_topk: Extent
    """Routed experts each token visits."""

    ffn_hidden_size: Extent
    """Inner width of one routed expert (Megatron ``moe_ffn_hidden_size``)."""

    shared_expert_ffn_hidden_size: Count = 0
    """Inner width of all shared experts together, as in Megatron."""

    num_shared_experts: NonNegativeInt = 0
    """Shared experts; only names the split of the shared width."""

    shared_expert_gate: bool = False
    """Whether a learned gate scales the shared experts' output."""

    router_bias: bool = False
    """Whether the router has a bias for each expert: of its projection (gpt-oss), or one that
    balances experts and is moved by their load (DeepSeek-V3). Published counts include both.
    Frameworks keep the second, two numbers of FP32 for each expert, outside the optimizer; here it
    is a parameter like others, with at most 10 bytes more for each expert of a layer."""

    layer_freq: PositiveInt | tuple[int, ...] = 1
    """Which layers are MoE: ``n`` makes layer i MoE when i % n == 0 (Megatron's rule); a list
    of 0 and 1 says it layer by layer, and a model cut to fewer layers uses its beginning."""

    router_score_function: Literal["softmax", "sigmoid"] | None = None
    """What makes scores of the router's logits; none given leaves it to the framework. Like what
    follows of the router it is written to frameworks, and no projection hangs on it."""

    router_pre_softmax: bool | None = None
    """Whether the softmax runs over all experts, before some of them are chosen."""

    router_scaling_factor: float | None = Field(default=None, gt=0)
    """Factor of the weights of the chosen experts (``routed_scaling_factor``)."""

    num_groups: NonNegativeInt = 0
    """Groups of experts for group-limited routing; 0 routes freely."""

    group_topk: NonNegativeInt = 0
    """Groups each token may visit with group-limited routing."""

    aliases: ClassVar = {
        "moe_ffn_hidden_size": "ffn_hidden_size",
        "moe_router_topk": "router_topk",
        "top_k": "router_topk",
        "moe_shared_expert_intermediate_size": "shared_expert_ffn_hidden_size",
        "moe_layer_freq": "layer_freq",
        "moe_router_score_function": "router_score_function",
        "moe_router_pre_softmax": "router_pre_softmax",
        "moe_router_topk_scaling_factor": "router_scaling_factor",
        "routed_scaling_factor": "router_scaling_factor",
    }

    @field_validator("layer_freq", mode="after")
    @classmethod
    def _pattern_is_binary(cls, value: int | tuple[int, ...]) -> int | tuple[int, ...]:
        if isinstance(value, tuple) and set(value) - {0, 1}:
            msg = f"a layer pattern holds only 0 (dense) and 1 (MoE), got {sorted(set(value))}"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _topk_fits(self) -> Self:
        if self.router_topk > self.num_experts:
            msg = f"router_topk ({self.router_topk}) exceeds num_experts ({self.num_experts})"
            raise ValueError(msg)
        if self.num_groups and self.num_experts % self.num_groups:
            msg = f"num_groups ({self.num_groups}) must divide num_experts ({self.num_experts})"
            raise ValueError(msg)
        if self.num_groups and self.group_topk:
            reached = self.group_topk * self.num_experts // self.num_groups
            if self.router_topk > reached:
                raise ValueError(
                    f"router_topk ({self.router_topk}) exceeds the {reached} experts of "
                    f"group_topk ({self.group_topk}) groups"
                )
        return self


class ModelConfig(Config):
    """Everything about the architecture that changes parameters, work or memory."""

    name: str = "custom"
    """Name shown in reports."""

    num_layers: PositiveInt = Field(le=10_000)
    """Transformer layers, without multi-token-prediction modules."""

    hidden_size: Extent
    """Width of the residual stream."""

    ffn_hidden_size: Extent
    """Inner width of a dense MLP."""

    num_attention_heads: Extent
    """Query heads."""

    num_query_groups: Extent | None = None
    """Key/value heads; none given means one for each query head."""

    kv_channels: Extent | None = None
    """Width of one head; none given means hidden_size / num_attention_heads."""

    vocab_size: Extent
    """Rows of the vocabulary as the model has them; without a default."""

    make_vocab_size_divisible_by: Extent | None = None
    """Pad the vocabulary to a multiple of this times TP, as Megatron does; none pads nothing."""

    max_position_embeddings: Extent = 4096
    """Longest sequence; sizes the table of learned positions."""

    position_embedding: Literal["rope", "learned", "alibi", "none"] = "rope"
    """Kind of position information."""

    rotary_base: float | None = Field(default=None, gt=0)
    """Base of the rotations' wavelengths (``rope_theta``); none given leaves it to the framework.
    It changes what is trained and no projection."""

    rotary_percent: float | None = Field(default=None, gt=0, le=1)
    """Part of a head that is rotated, none given is all of it; it changes no projection."""

    rope_scaling: RopeScaling | None = None
    """How rotations reach longer sequences; it changes no projection."""

    rotary_base_local: float | None = Field(default=None, gt=0)
    """Base in layers with a window, where it is another one or `rope_scaling` leaves them out
    (Gemma 3); it changes no projection."""

    no_rope_freq: PositiveInt | None = None
    """Every so many layers one has no rotations, the last of them (Llama 4); none given rotates in
    all. Projections have the kernel of rotations in every layer."""

    normalization: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    """RMSNorm has H parameters, LayerNorm 2H."""

    norm_epsilon: float | None = Field(default=None, gt=0, lt=1)
    """What norms add to the variance; it changes no projection."""

    zero_centered_norms: bool = False
    """Whether norms scale by 1 + w (Gemma, Nemotron); it changes no projection."""

    norms_per_layer: PositiveInt = 2
    """Norms on the residual path of one layer (4 with sandwich norms)."""

    activation: Literal["swiglu", "geglu", "gelu", "relu", "squared_relu"] = "swiglu"
    """Activation of the MLP; the gated ones have three projections instead of two."""

    attention_bias: Literal["none", "qkv", "qkv+out"] = "none"
    """Which attention projections carry a bias."""

    mlp_bias: bool = False
    """Whether MLP projections (and experts) carry a bias."""

    activation_clamp: float = Field(default=0.0, ge=0)
    """Inputs of the activation are clamped to this (Megatron ``activation_func_clamp_value``);
    0 clamps nothing."""

    qk_norm: Literal["none", "head", "full"] = "none"
    """Learned norm on queries and keys: over one head, or over the full projection width."""

    attention_sinks: bool = False
    """One learned sink logit for each head (gpt-oss)."""

    tied_embeddings: bool = False
    """Whether the output layer shares the embedding's weights."""

    sliding_window: Count = 0
    """Keys a windowed layer sees; 0 means full causal attention."""

    sliding_window_layers: NonNegativeInt = 0
    """How many of the layers are windowed."""

    mla: MLAConfig | None = None
    """Multi-head latent attention instead of grouped-query attention."""

    moe: MoEConfig | None = None
    """Mixture-of-experts layers, if there are any."""

    mtp_num_layers: int = Field(default=0, ge=0, le=64)
    """Multi-token-prediction modules that are trained along."""

    source: str = ""
    """Where the dimensions were read."""

    notes: tuple[str, ...] = Field(default=(), exclude=True)
    """What the projection does not follow, in sentences that every job of the model warns with. A
    sentence about something that a field can settle names the field as ``model.FIELD=value``."""

    aliases: ClassVar = {
        "head_dim": "kv_channels",
        "kv_heads": "num_query_groups",
        "rope_theta": "rotary_base",
        "partial_rotary_factor": "rotary_percent",
        "rms_norm_eps": "norm_epsilon",
        "layernorm_epsilon": "norm_epsilon",
        "rope_local_base_freq": "rotary_base_local",
        "no_rope_layer_interval": "no_rope_freq",
        "apply_layernorm_1p": "zero_centered_norms",
    }

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        heads, groups = self.num_attention_heads, self.query_groups
        if heads % groups:
            msg = f"num_query_groups ({groups}) must divide num_attention_heads ({heads})"
            raise ConfigError(msg, key="num_query_groups", value=groups, allowed=_divisors(heads))
        if self.kv_channels is None and self.hidden_size % heads and self.mla is None:
            msg = (
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads "
                f"({heads}); give kv_channels, the width of one head"
            )
            raise ConfigError(msg, key="kv_channels", allowed="the width of one head")
        if self.sliding_window_layers > self.num_layers:
            msg = (
                f"sliding_window_layers ({self.sliding_window_layers}) exceeds num_layers "
                f"({self.num_layers})"
            )
            raise ConfigError(msg, key="sliding_window_layers", value=self.sliding_window_layers)
        if self.sliding_window_layers and not self.sliding_window:
            msg = "sliding_window_layers is set but sliding_window, their width, is 0"
            raise ConfigError(msg, key="sliding_window", value=0, allowed="a width in tokens")
        pattern = self.moe.layer_freq if self.moe else 1
        if isinstance(pattern, tuple) and len(pattern) < self.num_layers:
            msg = f"moe.layer_freq lists only {len(pattern)} of {self.num_layers} layers"
            raise ConfigError(msg, key="moe.layer_freq", value=list(pattern))
        return self

    @property
    def query_groups(self) -> int:
        """Key/value heads."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Width of one head (of the value head with MLA)."""
        if self.mla is not None:
            return self.mla.v_head_dim
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate projection."""
        return self.activation in {"swiglu", "geglu"}

    @property
    def moe_layers(self) -> tuple[bool, ...]:
        """For each layer, whether it is a mixture of experts."""
        return tuple(kind == "moe" for kind in self.layer_kinds)

    @property
    def layer_kinds(self) -> tuple[LayerType, ...]:
        """The kind of each layer."""
        return _layer_kinds(self.num_layers, self.moe.layer_freq if self.moe else None)

    def padded_vocab_size(self, tp: int) -> int:
        """Return the vocabulary as laid out over ``tp`` ranks, by Megatron's rule."""
        if self.make_vocab_size_divisible_by is None:
            return self.vocab_size
        multiple = self.make_vocab_size_divisible_by * tp
        return -(-self.vocab_size // multiple) * multiple


def _divisors(number: int) -> list[int]:
    return [value for value in range(1, min(number, 4096) + 1) if number % value == 0]


def settled(notes: Iterable[str], field: str) -> tuple[str, ...]:
    """Return the notes of a model that still hold once a field of it is given."""
    return tuple(note for note in notes if f"model.{field}=" not in note)


@lru_cache(maxsize=256)
def _layer_kinds(num_layers: int, moe_freq: int | tuple[int, ...] | None) -> tuple[LayerType, ...]:
    if moe_freq is None:
        moe_freq = (0,) * num_layers
    if isinstance(moe_freq, int):
        moe_freq = tuple(layer % moe_freq == 0 for layer in range(num_layers))
    kinds: list[LayerType] = ["moe" if flag else "dense" for flag in moe_freq[:num_layers]]
    return tuple(kinds)
