"""The architecture of a transformer language model."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from projector.config._base import MOST, Config, NotNegative, Positive, check_most
from projector.config.modalities import Count, DiffusionConfig, Extent, VisionConfig
from projector.config.resources import SPELLINGS
from projector.errors import ConfigError, UnsupportedError

Mixer = Literal[
    "attention", "mamba1", "mamba2", "gdn", "kda", "linear", "rwkv7", "conv",
    "double_stream", "single_stream", "dit",
]  # fmt: skip
"""What mixes tokens: attention, or a recurrence whose state does not grow. These are Mamba (arXiv
2312.00752), Mamba-2 (2405.21060), gated delta net (2412.06464), Kimi delta attention (2510.26692),
linear attention with a fixed decay (Lightning Attention, 2401.04658), RWKV-7 (2503.14456) and the
gated short convolution of LFM2 (2511.23404). The last three are whole layers of a diffusion
transformer, see `BLOCKS`."""

BLOCKS = frozenset(("double_stream", "single_stream", "dit"))
"""Layers of diffusion transformers, with attention and MLP. Text and latents attend to each other,
with weights of their own (MMDiT, arXiv 2403.03206) or the same ones, beside an MLP that reads what
attention reads (Flux); or latents alone do, and then to text (DiT, arXiv 2212.09748; Wan)."""

CHUNKS: Mapping[Mixer, int] = {"mamba2": 128, "gdn": 64, "kda": 64, "linear": 64, "rwkv7": 16}
"""Tokens that a mixer works on at once where a model states none: mamba_mixer.py of Megatron-LM,
and chunk.py of flash-linear-attention."""

FeedForward = Literal["dense", "moe"]
"""What works on each token: one MLP, or a mixture of experts."""

LayerType = Literal[
    "dense", "moe", "attention", "mlp", "experts",
    "mamba1", "mamba1_dense", "mamba1_moe", "mamba2", "mamba2_dense", "mamba2_moe",
    "gdn", "gdn_dense", "gdn_moe", "kda", "kda_dense", "kda_moe",
    "linear", "linear_dense", "linear_moe", "rwkv7", "rwkv7_dense",
    "conv", "conv_dense", "conv_moe", "attention+mamba2_dense",
    "double_stream", "single_stream", "dit",
]  # fmt: skip
"""Kinds of layers. ``dense`` and ``moe`` have attention; ``attention`` and mixers alone have no
feed-forward, ``mlp`` and ``experts`` no mixer. Mixers with a + between them read the same norm and
are added. The last three are whole layers (`BLOCKS`)."""


PATTERN: dict[str, LayerType] = {
    "M": "mamba2", "G": "gdn", "*": "attention", "+": "attention", "-": "mlp", "E": "experts",
}  # fmt: skip
"""Letters of Megatron's ``--hybrid-layer-pattern`` (hybrid_layer_allocation.py); + is latent
attention."""


@lru_cache(maxsize=256)
def parts_of(layer: LayerType) -> tuple[tuple[Mixer, ...], FeedForward | None]:
    """Return the mixers and the feed-forward of a kind of layer."""
    whole: dict[str, tuple[tuple[Mixer, ...], FeedForward | None]] = {
        "dense": (("attention",), "dense"),
        "moe": (("attention",), "moe"),
        "mlp": ((), "dense"),
        "experts": ((), "moe"),
    }
    if layer in whole:
        return whole[layer]
    if layer in BLOCKS:
        return (cast("Mixer", layer),), None
    mixers, _, behind = layer.partition("_")
    together = cast("tuple[Mixer, ...]", tuple(mixers.split("+")))
    return together, cast("FeedForward", behind) if behind else None


class RopeScaling(Config):
    """How rotations are stretched to sequences longer than those of the first training."""

    kind: Literal["llama3", "yarn", "linear"]
    """Llama 3.1's rule by wavelength, YaRN (arXiv 2309.00071), or all positions divided."""
    factor: Positive
    """How many times longer sequences are."""
    original_max_position_embeddings: Extent | None = None
    """Longest sequence of the first training."""
    low_freq_factor: Positive = 1.0
    """Llama's rule: wavelengths above the original length divided by this are stretched in full."""
    high_freq_factor: Positive = 4.0
    """Llama's rule: wavelengths below the original length divided by this stay."""
    beta_fast: Positive = 32.0
    """YaRN: what turns more often than this within the original length stays."""
    beta_slow: Positive = 1.0
    """YaRN: what turns less often than this is stretched in full."""
    truncate: bool = True
    """YaRN: whether the bounds between the two are rounded to whole pairs of a head."""
    mscale: float = Field(default=1.0, ge=-MOST, le=MOST)
    """YaRN's factor of the attention's temperature, for the rotary part of a head."""
    mscale_all_dim: float = Field(default=0.0, ge=-MOST, le=MOST)
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
    index_heads: Count = 0
    """Heads of the indexer that chooses which keys a query sees (DeepSeek Sparse Attention,
    DeepSeek-V3.2-Exp report); 0 lets it see all."""
    index_head_dim: Count = 128
    """Width of a head of the indexer, whose key is cached beside the latent."""
    index_topk: Count = 2048
    """Keys that it chooses for a query."""
    aliases: ClassVar = SPELLINGS["mla"]

    @property
    def cached_size(self) -> int:
        """Elements that a layer caches of a token: latent, rotary key, key of the indexer."""
        index = self.index_head_dim if self.index_heads else 0
        return self.kv_lora_rank + self.qk_pos_emb_head_dim + index


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
    num_shared_experts: Count = 0
    """Shared experts; only names the split of the shared width."""
    latent_size: Count = 0
    """Width that tokens are projected to before they are sent to routed experts, and back from
    behind (``moe_latent_size`` of Megatron); 0 sends them as wide as they are."""
    shared_expert_gate: bool = False
    """Whether a learned gate scales the shared experts' output."""
    router_bias: bool = False
    """Whether the router has a bias for each expert: of its projection (gpt-oss), or one that
    balances experts and is moved by their load (DeepSeek-V3). Published counts include both.
    Frameworks keep the second, two numbers of FP32 for each expert, outside the optimizer; here it
    is a parameter like others, with at most 10 bytes more for each expert of a layer."""
    layer_freq: Extent | tuple[Count, ...] = 1
    """Which layers are MoE: ``n`` makes layer i MoE when i % n == 0 (Megatron's rule); a list
    of 0 and 1 says it layer by layer, and a model cut to fewer layers uses its beginning."""
    router_score_function: Literal["softmax", "sigmoid"] | None = None
    """What makes scores of the router's logits; none given leaves it to the framework. Like what
    follows of the router it is written to frameworks, and no projection hangs on it."""
    router_pre_softmax: bool | None = None
    """Whether the softmax runs over all experts, before some of them are chosen."""
    router_scaling_factor: Positive | None = None
    """Factor of the weights of the chosen experts (``routed_scaling_factor``)."""
    num_groups: Count = 0
    """Groups of experts for group-limited routing; 0 routes freely."""
    group_topk: Count = 0
    """Groups each token may visit with group-limited routing."""
    aliases: ClassVar = SPELLINGS["moe"]

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


class RecurrentConfig(Config):
    """Mixers with a state of fixed size for each head: ``state_size`` times ``head_dim``."""

    num_heads: Extent
    """Heads of values (of channels for Mamba-1: width over `head_dim`)."""
    head_dim: Extent
    """Width of a value head."""
    num_groups: Extent
    """Heads of keys and queries: groups of B and C of Mamba, key heads of a delta rule."""
    state_size: Extent
    """Width of a key head: N of Mamba."""
    conv_kernel: Count = 4
    """Taps of the causal convolution before the recurrence; 0 has none."""
    chunk_size: Extent | None = None
    """Tokens that are worked on at once; none given is what the kernels take: 128 of Mamba-2,
    64 of delta rules and linear attention (`CHUNKS`)."""
    dt_rank: Count = 0
    """Rank of the step sizes of Mamba-1; of RWKV-7 those of decay, rates and gate together."""
    gated_norm: bool = True
    """Whether Mamba-2 has a norm behind its gate (Falcon-H1 has none)."""
    aliases: ClassVar = SPELLINGS["recurrent"]

    @model_validator(mode="after")
    def _groups_share_heads(self) -> Self:
        if self.num_heads % self.num_groups:
            msg = f"num_groups ({self.num_groups}) must divide num_heads ({self.num_heads})"
            raise ValueError(msg)
        return self


class ModelConfig(Config):
    """Everything about the architecture that changes parameters, work or memory."""

    name: str = "custom"
    """Name shown in reports."""
    num_layers: int = Field(gt=0, le=10_000)
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
    vocab_size: Count = 0
    """Rows of the vocabulary as the model has them. Must be given; a diffusion model has none."""
    make_vocab_size_divisible_by: Extent | None = None
    """Pad the vocabulary to a multiple of this times TP, as Megatron does; none pads nothing."""
    max_position_embeddings: Extent = 4096
    """Longest sequence; sizes the table of learned positions."""
    position_embedding: Literal["rope", "learned", "alibi", "none"] = "rope"
    """Kind of position information."""
    rotary_base: Positive | None = None
    """Base of the rotations' wavelengths (``rope_theta``); none given leaves it to the framework.
    It changes what is trained and no projection."""
    rotary_percent: float | None = Field(default=None, gt=0, le=1)
    """Part of a head that is rotated, none given is all of it; it changes no projection."""
    rope_scaling: RopeScaling | None = None
    """How rotations reach longer sequences; it changes no projection."""
    rotary_base_local: Positive | None = None
    """Base in layers with a window, where it is another one or `rope_scaling` leaves them out
    (Gemma 3); it changes no projection."""
    no_rope_freq: Extent | None = None
    """Every so many layers one has no rotations, the last of them (Llama 4); none given rotates in
    all. Projections have the kernel of rotations in every layer."""
    normalization: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    """RMSNorm has H parameters, LayerNorm 2H."""
    norm_epsilon: float | None = Field(default=None, gt=0, lt=1)
    """What norms add to the variance; it changes no projection."""
    zero_centered_norms: bool = False
    """Whether norms scale by 1 + w (Gemma, Nemotron); it changes no projection."""
    norms_per_layer: int = Field(default=2, gt=0, le=64)
    """Norms on the residual path of one layer (4 with sandwich norms)."""
    activation: Literal["swiglu", "geglu", "gelu", "relu", "squared_relu"] = "swiglu"
    """Activation of the MLP; the gated ones have three projections instead of two."""
    attention_bias: Literal["none", "qkv", "qkv+out"] = "none"
    """Which attention projections carry a bias."""
    mlp_bias: bool = False
    """Whether MLP projections (and experts) carry a bias."""
    activation_clamp: NotNegative = 0.0
    """Inputs of the activation are clamped to this (Megatron ``activation_func_clamp_value``);
    0 clamps nothing."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """Learned norm on queries and keys: over one head, or over the full projection width."""
    attention_output_gate: bool = False
    """Whether queries come with a gate of their width for attention's output (Qwen3-Next)."""
    attention_sinks: bool = False
    """One learned sink logit for each head (gpt-oss)."""
    tied_embeddings: bool = False
    """Whether the output layer shares the embedding's weights."""
    sliding_window: Count = 0
    """Keys a windowed layer sees; 0 means full causal attention."""
    sliding_window_layers: Count = 0
    """How many of the layers are windowed."""
    layer_types: tuple[LayerType, ...] | None = None
    """The kinds of the layers of a hybrid model: a list, which repeats where it is shorter, or
    Megatron's pattern (``M*-E``: Mamba-2, attention, MLP and experts, G for gated delta net), whose
    letters are a layer each. None given has attention and a feed-forward in every layer."""
    recurrent: RecurrentConfig | None = None
    """Mixers other than attention, if there are any."""
    diffusion: DiffusionConfig | None = None
    """What makes it a diffusion transformer, whose layers are those of `BLOCKS`."""
    mla: MLAConfig | None = None
    """Multi-head latent attention instead of grouped-query attention."""
    moe: MoEConfig | None = None
    """Mixture-of-experts layers, if there are any."""
    vision: VisionConfig | None = None
    """What turns images into tokens; none given has text alone."""
    mtp_num_layers: int = Field(default=0, ge=0, le=64)
    """Multi-token-prediction modules that are trained along."""
    source: str = ""
    """Where the dimensions were read."""
    notes: tuple[str, ...] = Field(default=(), exclude=True)
    """What the projection does not follow, in sentences that every job of the model warns with. A
    sentence about something that a field can settle names the field as ``model.FIELD=value``."""
    aliases: ClassVar = SPELLINGS["model"]

    @field_validator("layer_types", mode="before")
    @classmethod
    def _pattern_of_letters(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value or None
        # A cut between stages, and modules behind the last layer, are no layers.
        letters = value.partition("/")[0].replace("|", "")
        unknown = sorted(set(letters) - PATTERN.keys())
        if unknown or not letters:
            known = ", ".join(f"{letter} ({kind})" for letter, kind in PATTERN.items())
            raise ValueError(f"a pattern of layers has {known}; got {''.join(unknown)!r}")
        return tuple(PATTERN[letter] for letter in letters)

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        heads, groups = self.num_attention_heads, self.query_groups
        if heads % groups:
            msg = f"num_query_groups ({groups}) must divide num_attention_heads ({heads})"
            divisors = [one for one in range(1, min(heads, 4096) + 1) if heads % one == 0]
            raise ConfigError(msg, key="num_query_groups", value=groups, allowed=divisors)
        if self.kv_channels is None and self.hidden_size % heads and self.mla is None:
            msg = (
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads "
                f"({heads}); give kv_channels, the width of one head"
            )
            raise ConfigError(msg, key="kv_channels", allowed="the width of one head")
        name = "sliding_window_layers"
        check_most(name, self.sliding_window_layers, "num_layers", self.num_layers)
        if self.sliding_window_layers and not self.sliding_window:
            msg = "sliding_window_layers is set but sliding_window, their width, is 0"
            raise ConfigError(msg, key="sliding_window", value=0, allowed="a width in tokens")
        self._check_layer_types()
        pattern = self.moe.layer_freq if self.moe and not self.layer_types else 1
        if isinstance(pattern, tuple) and len(pattern) < self.num_layers:
            msg = f"moe.layer_freq lists only {len(pattern)} of {self.num_layers} layers"
            raise ConfigError(msg, key="moe.layer_freq", value=list(pattern))
        return self

    def _check_layer_types(self) -> None:
        if self.diffusion is None and not self.vocab_size:
            raise ConfigError("vocab_size: is required", key="vocab_size", allowed="a value")
        if {kind in BLOCKS for kind in self.layer_kinds} != {self.diffusion is not None}:
            msg = f"model.diffusion and layers of {', '.join(sorted(BLOCKS))} need each other"
            raise ConfigError(msg, key="layer_types", allowed=sorted(BLOCKS))
        if self.diffusion is not None:
            self._check_blocks(self.diffusion)
        kinds = self.layer_types
        if kinds is None:
            return
        mixers, feed_forwards = zip(*map(parts_of, kinds), strict=True)
        recurrent = {*chain(*mixers)} - {"attention", *BLOCKS}
        for key, wanted in (("moe", "moe" in feed_forwards), ("recurrent", recurrent)):
            if wanted and getattr(self, key) is None:
                msg = f"layer_types has layers that need model.{key}"
                raise ConfigError(msg, key=key, allowed=f"the widths of {key}")

    def _check_blocks(self, diffusion: DiffusionConfig) -> None:
        kinds = set(self.layer_kinds)
        if "dit" in kinds and len(kinds) > 1:
            msg = "layers join text (double_stream, single_stream) or attend to it (dit), not both"
            raise ConfigError(msg, key="layer_types", allowed="layers of one of the two")
        if "double_stream" in kinds and not diffusion.text_tokens:
            msg = "layers of double_stream need text"
            raise ConfigError(msg, key="diffusion.text_tokens", value=0, allowed="an integer >= 1")
        for key, other in (
            ("mla", None), ("moe", None), ("recurrent", None), ("vision", None), ("vocab_size", 0),
            ("mtp_num_layers", 0), ("sliding_window", 0), ("tied_embeddings", False),
            ("attention_output_gate", False), ("attention_sinks", False),
        ):  # fmt: skip
            if getattr(self, key) != other:
                msg = f"a diffusion transformer has no {key}"
                raise ConfigError(msg, key=key, value=getattr(self, key), allowed=other)

    @property
    def joins_text(self) -> bool:
        """Whether text is part of the sequence, as in layers with two streams or one of both."""
        return self.diffusion is not None and "dit" not in self.layer_kinds

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
        return tuple(behind == "moe" for behind in self.feed_forwards)

    @property
    def feed_forwards(self) -> tuple[FeedForward | None, ...]:
        """The feed-forward of each layer."""
        return tuple(parts_of(kind)[1] for kind in self.layer_kinds)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixers of all layers, in order; a layer has one, several or none."""
        return tuple(chain.from_iterable(parts_of(kind)[0] for kind in self.layer_kinds))

    @property
    def layer_kinds(self) -> tuple[LayerType, ...]:
        """The kind of each layer."""
        if self.layer_types is not None:
            whole = -(-self.num_layers // len(self.layer_types))
            return (self.layer_types * whole)[: self.num_layers]
        return _layer_kinds(self.num_layers, self.moe.layer_freq if self.moe else None)

    @property
    def further_layer(self) -> LayerType:
        """The kind of the layer of a multi-token-prediction module: the last one's.

        That of a hybrid model has attention.
        """
        if self.layer_types is not None:
            return "dense" if self.moe is None else "moe"
        return self.layer_kinds[-1]

    @property
    def has_unfamiliar_layers(self) -> bool:
        """Whether hardly any published run has its kinds of layers."""
        sparse = self.mla is not None and self.mla.index_heads > 0
        further = (self.recurrent, self.diffusion, self.vision)
        return sparse or any(part is not None for part in further)

    def layers_by_work(self, stages: int) -> list[int]:
        """Return the layers of stages that take layers until they have more than their share.

        Work is counted as in ``get_block_compute_costs`` of nanotron's Llama.
        """
        work = 4 * self.num_attention_heads * self.head_dim + 3 * self.ffn_hidden_size
        share = (self.num_layers * work + self.vocab_size) / stages
        counts, stage = [0] * stages, 0
        for placed in range(self.num_layers):
            counts[stage] += 1
            stage += (placed + 1) * work > (stage + 1) * share
        return counts

    def padded_vocab_size(self, tp: int) -> int:
        """Return the vocabulary as laid out over ``tp`` ranks, by Megatron's rule."""
        if self.make_vocab_size_divisible_by is None:
            return self.vocab_size
        multiple = self.make_vocab_size_divisible_by * tp
        return -(-self.vocab_size // multiple) * multiple


def refuse_diffusion(model: ModelConfig, what: str) -> None:
    """Refuse a diffusion transformer where only training steps of one are known."""
    if model.diffusion is not None:
        msg = f"{model.name} is a diffusion transformer: {what}; its training is projected"
        raise UnsupportedError(msg, key="model.diffusion", allowed="a language model")
    if model.vision is not None:
        msg = f"{model.name} sees images: {what}; its training is projected"
        raise UnsupportedError(msg, key="model.vision", allowed="a model of text")


def refuse_hybrid(model: ModelConfig, why: str) -> None:
    """Refuse a model with layers of other kinds than a transformer's, where these are not known."""
    latent = model.moe is not None and model.moe.latent_size > 0
    known = model.layer_types is None and not model.has_unfamiliar_layers
    if not known or latent or model.attention_output_gate:
        msg = f"{model.name} has layers of other kinds than a transformer's; {why}"
        raise UnsupportedError(msg, key="model.layer_types", allowed="a transformer")


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
