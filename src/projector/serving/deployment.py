"""What serves a model: how it is split, in which numbers, on which machines.

Tokens may be proposed before the model verifies several of them in one step.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from projector.config._base import Config, Count, NotNegative
from projector.config.cluster import ClusterConfig
from projector.config.device_kernels import MatrixType, SpelledMatrixType
from projector.config.engine import (
    GENERIC,
    Engine,
    EngineConstant,
    WeightType,
    engine_named,
    engines,
    weight_formats,
)
from projector.config.model import ModelConfig, refuse_diffusion
from projector.config.model_file import load_model
from projector.errors import ConfigError, shown
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.lower.fabrics import domain_gpus
from projector.lower.hardware import native_type

MTP = "mtp"
"""Drafts by the model's own module that predicts a further token."""


class SpeculativeConfig(Config):
    """Speculative decoding (Leviathan et al., arXiv 2211.17192)."""

    tokens: int = Field(gt=0, le=64)
    """Tokens that are proposed for a sequence and verified together."""

    acceptance: float = Field(ge=0, le=1)
    """Probability that a proposed token is accepted where those before it were. It belongs to both
    models and the text; nothing is assumed."""

    draft: ModelConfig | Literal["mtp"] | None = None
    """What proposes them: a small model (a shipped name, a file, or a mapping), or ``mtp``."""

    draft_tp: Count | None = None
    """Tensor-parallel devices of a small model; none given means those of the deployment."""

    draft_share: NotNegative | None = Field(default=None, le=1024)
    """Instead of ``draft``: time to propose all tokens over that of a decode step without
    speculation. 0 where looking them up costs nothing (n-grams)."""

    @field_validator("draft", mode="before")
    @classmethod
    def _load_draft(cls, value: object) -> object:
        if value is None or value == MTP or isinstance(value, ModelConfig):
            return value
        return load_model(value)  # type: ignore[arg-type]

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.draft is None) == (self.draft_share is None):
            msg = "what proposes tokens is either draft (mtp or a model) or draft_share (a time)"
            raise ConfigError(msg, key="draft", value=self.draft, allowed=["mtp", "a model"])
        if self.draft_tp is not None and not isinstance(self.draft, ModelConfig):
            msg = "draft_tp divides a small model; give it as draft"
            raise ConfigError(msg, key="draft_tp", value=self.draft_tp)
        return self

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step yields: ``(1 - a**(k + 1)) / (1 - a)`` (same paper, equation 1)."""
        count = self.tokens + 1
        if self.acceptance == 1.0:
            return float(count)
        gained: float = (1.0 - self.acceptance**count) / (1.0 - self.acceptance)
        return gained


def further_token_module(model: ModelConfig) -> ModelConfig:
    """Return the module that predicts a further token, as a model of one layer.

    Its layer is of the kind of the model's last; embedding and head are the model's own.
    """
    changes: dict[str, object] = {"num_layers": 1, "mtp_num_layers": 1, "sliding_window_layers": 0}
    if model.layer_types is not None:
        changes["layer_types"] = (model.further_layer,)
    elif model.moe is not None:
        changes["moe"] = model.moe.model_copy(update={"layer_freq": (int(model.moe_layers[-1]),)})
    return model.model_copy(update=changes)


def is_further_token_module(model: ModelConfig) -> bool:
    """Whether all layers are such modules, which join the model's output and the embedding."""
    return model.mtp_num_layers >= model.num_layers


DEGREES = ("tp", "pp", "ep", "attention_dp")
"""Fields that say how a replica is split."""

CACHE_TYPES: dict[str, float] = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""Types of a cached element, and its bytes without scales."""

FP4_TYPES = ("nvfp4", "mxfp4")
"""Matrix types of devices whose libraries read a cache of FP4."""

_WEIGHTS_OF_BITS: dict[int, WeightType] = {8: "int8", 4: "int4"}

_WEIGHTS_OF_TYPE: dict[MatrixType, WeightType] = {
    "fp8": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "int8": "int8",
    "nvfp4": "fp4",
    "mxfp4": "mxfp4",
}
"""Matrix type -> how its weights are stored, where a device has no units for it."""


class DisaggregatedConfig(Config):
    """What prefills beside a deployment that decodes, and how the cache gets there."""

    prefill: dict[str, Any] = Field(default_factory=dict)
    """Fields of `Deployment` in which what prefills differs; with ``cluster`` on machines of its
    own, otherwise on as many of the same kind as it needs. Model and cache are the same."""

    batch: Count | None = None
    """Prompts of a prefill step; none given means one in each attention group."""

    layerwise: bool = True
    """Whether the cache of a layer is sent as soon as it is computed, beside the layers after it;
    otherwise all of it behind the prefill."""

    same_domain: bool = False
    """Whether both lie in one scale-up domain, whose links then carry the cache."""


class Deployment(Config):
    """One replica of a model on ``tp * attention_dp * pp`` devices."""

    model: ModelConfig
    """Architecture: a shipped name, a file, or a mapping."""

    cluster: ClusterConfig
    """Machines and host software, as in a job."""

    tp: Count = 1
    """Tensor-parallel devices of attention, dense layers, embedding and head."""

    pp: Count = 1
    """Pipeline stages."""

    attention_dp: Count = 1
    """Groups of ``tp`` devices in a stage, each with its own sequences and their cache. All but
    the routed experts is replicated on them."""

    ep: Count = 1
    """Parts that the routed experts of a layer are divided into. The ``tp * attention_dp`` devices
    of a stage hold them, and each expert is split over ``tp * attention_dp / ep`` of these."""

    dispatcher: Literal["auto", "allgather", "deepep", "low_latency"] = "auto"
    """What brings the tokens of several attention groups to routed experts: a gather of all tokens
    and a scatter of sums; DeepEP's kernels for many tokens; or those for few. ``auto`` takes the
    last for decode and the second for steps with prompts, and the gather where an expert is split
    over several devices."""

    dispatcher_sms: int = Field(default=20, gt=0, le=1 << 20)
    """Compute units of DeepEP's kernels for many tokens; its default."""

    expert_load: float | None = Field(default=None, ge=1, le=1024)
    """Pairs of token and expert of the fullest part over those that uniform routing gives it; 1
    where experts are balanced. None given means that of ``engine``; with one part 1."""

    dtype: SpelledMatrixType = "bf16"
    """Type of the linear layers' operands; attention, router and head stay in 16 bits."""

    weights: WeightType | None = None
    """How the weights of all linear layers, the head included, are stored, where that is narrower
    than ``dtype``, in which they are multiplied; none given means as ``dtype``. ``weight_bits`` 8
    and 4 mean ``int8`` and ``int4``."""

    narrow_layers: Literal["all", "feed_forward", "experts"] = "all"
    """Linear layers that ``dtype`` and ``weights`` hold for: all, those of feed-forward parts, or
    routed experts alone, as in checkpoints of NVFP4 and MXFP4; the others are in 16 bits."""

    weight_group: Count | None = None
    """Weights that share a scale; none given means what is usual for ``weights``."""

    widening_share: float | None = Field(default=None, ge=0, le=10)
    """Instructions that widen narrow weights and that loads do not hide, as a share of all of them;
    none given means that of ``hardware/engines.yaml``."""

    engine: Annotated[str, AfterValidator(engine_named)] = GENERIC
    """Inference engine, as ``hardware/engines.yaml`` names it: what it runs beside the model."""

    kv_cache_bytes: float = 2.0
    """Bytes of a cached element without scales: 2, 1 (FP8, INT8) or 0.5 (FP4, on devices that
    multiply in it); or the name of its type."""

    page_tokens: int = Field(default=16, gt=0, le=1 << 20)
    """Tokens of a page of the cache: a sequence holds whole pages. 16 is vLLM's default on GPUs
    (``block_size`` of its engine arguments)."""

    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of the device's memory that an engine takes: weights, activations, cache, and what
    driver and libraries take. 0.9 is vLLM's default (its engine arguments)."""

    max_step_tokens: int = Field(default=8192, gt=0, le=1 << 24)
    """New tokens of the largest step of one attention group, for which an engine keeps room beside
    its cache (vLLM ``max_num_batched_tokens``, whose default on large devices this is; recalled,
    not verified)."""

    max_sequences: int = Field(default=256, gt=0, le=1 << 20)
    """Sequences whose logits lie in memory together in such a step (vLLM ``max_num_seqs``; the
    default is recalled, not verified). It limits no batch."""

    exchange_buffer_gib: NotNegative = 2.0
    """Buffers of the kernels that send tokens to experts of other devices. Assumed: the order of
    DeepEP's buffers for 128 tokens a rank and 256 experts of DeepSeek-V3; not measured."""

    prefix_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of each prompt that is cached from requests before it. Prefill computes the rest, and
    attends to all. It belongs to the load; nothing is assumed."""

    speculative: SpeculativeConfig | None = None
    """Proposed tokens that a decode step verifies together; none given means one token a step."""

    disaggregated: DisaggregatedConfig | None = None
    """Devices of their own that prefill, beside this deployment, which then only decodes; none
    given means that both run here."""

    prefill_graph: bool | None = None
    """Whether prefill runs as one captured graph; otherwise the host launches each kernel. None
    given means as ``engine`` does."""

    decode_graph: bool | None = None
    """The same for decode."""

    step_overhead_us: NotNegative | None = None
    """Time between two steps in which the device waits for the host: scheduling, sampling on the
    host, detokenising; none given means that of ``engine``."""

    sequence_overhead_us: NotNegative | None = None
    """The same for each sequence of the step."""

    engine_constants: dict[EngineConstant, NotNegative] = Field(default_factory=dict)
    """Constants of ``engine`` in place of those in ``hardware/engines.yaml``, by their names."""

    aliases: ClassVar = {
        "kv_cache_dtype": "kv_cache_bytes",
        "block_size": "page_tokens",
        "max_num_batched_tokens": "max_step_tokens",
        "max_num_seqs": "max_sequences",
    }

    @field_validator("kv_cache_bytes", mode="before")
    @classmethod
    def _cache_type(cls, value: Any) -> float:
        found = CACHE_TYPES.get(value.lower()) if isinstance(value, str) else value
        if isinstance(found, bool) or found not in CACHE_TYPES.values():
            names = ", ".join(CACHE_TYPES)
            msg = f"a cached element has 2, 1 or 0.5 bytes or is one of {names}, got {shown(value)}"
            raise ConfigError(msg, value=value, allowed=[2, 1, 0.5, *CACHE_TYPES])
        return float(found)  # type: ignore[arg-type]  # one of the values

    @model_validator(mode="before")
    @classmethod
    def _read_weight_bits(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "weight_bits" not in data:
            return data
        bits = data["weight_bits"]
        if data.get("weights") is not None or bits not in (None, *_WEIGHTS_OF_BITS):
            msg = f"weight_bits is 4 or 8, and stands without weights, got {bits!r}"
            raise ConfigError(msg, key="weight_bits", value=bits, allowed=[*_WEIGHTS_OF_BITS])
        rest = {key: value for key, value in data.items() if key != "weight_bits"}
        return {**rest, "weights": _WEIGHTS_OF_BITS.get(bits)}

    @field_validator("weights", mode="before")
    @classmethod
    def _weights_by_any_name(cls, value: Any) -> Any:
        plain = value.strip().lower() if isinstance(value, str) else value
        return "fp4" if plain == "nvfp4" else plain

    @field_validator("model", mode="before")
    @classmethod
    def _load_model(cls, value: object) -> object:
        if isinstance(value, ModelConfig):
            return value
        try:
            return load_model(value)  # type: ignore[arg-type]
        except ConfigError as error:
            # The field's own name is put before the key again.
            key = (error.key or "").removeprefix("model").lstrip(".")
            text = error.message.removeprefix(f"{error.key}: ")
            raise ConfigError(text, key=key, value=error.value, allowed=error.allowed) from None

    @model_validator(mode="after")
    def _weights_are_no_wider(self) -> Self:
        refuse_diffusion(self.model, "it has no tokens to decode one by one")
        operand = OPERAND_BYTES[MATRIX_TYPES.index(self.dtype)]
        if self.weights is not None and weight_formats()[self.weights].bits / 8.0 > operand:
            msg = f"weights ({self.weights}) are wider than dtype ({self.dtype})"
            raise ConfigError(msg, key="weights", value=self.weights)
        return self

    @model_validator(mode="after")
    def _splits(self) -> Self:
        heads = self.model.num_attention_heads
        if heads % self.tp:
            msg = f"tp ({self.tp}) must divide num_attention_heads ({heads})"
            legal = [parts for parts in range(1, heads + 1) if heads % parts == 0]
            raise ConfigError(msg, key="tp", value=self.tp, allowed=legal)
        layers = self.model.num_layers
        if self.pp > layers:
            msg = f"pp ({self.pp}) exceeds num_layers ({layers})"
            raise ConfigError(msg, key="pp", value=self.pp, allowed=f"<= {layers}")
        if self.gpus > self.cluster.gpus:
            factors = "tp * pp" if self.attention_dp == 1 else "tp * attention_dp * pp"
            most = self.cluster.gpus
            msg = f"{factors} ({self.gpus}) exceeds the {most} GPUs"
            raise ConfigError(msg, key="tp", value=self.tp, allowed=f"{factors} <= {most}")
        return self

    @model_validator(mode="after")
    def _experts_divide(self) -> Self:
        moe = self.model.moe
        if self.ep == 1:
            return self
        if moe is None:
            msg = f"ep ({self.ep}): {self.model.name} has no routed experts to divide"
            raise ConfigError(msg, key="ep", value=self.ep, allowed=[1])
        legal = [
            parts for parts in range(1, self.stage_gpus + 1)
            if self.stage_gpus % parts == 0 and moe.num_experts % parts == 0
        ]  # fmt: skip
        if self.ep not in legal:
            msg = (
                f"ep ({self.ep}) must divide tp * attention_dp ({self.stage_gpus}) and the "
                f"{moe.num_experts} experts"
            )
            raise ConfigError(msg, key="ep", value=self.ep, allowed=legal)
        return self

    @model_validator(mode="after")
    def _dispatcher_is_legal(self) -> Self:
        fused = self.dispatcher in {"deepep", "low_latency"}
        if fused and (self.expert_tp > 1 or self.attention_dp == 1):
            msg = (
                f"dispatcher {self.dispatcher} sends whole experts' tokens between attention "
                f"groups: it needs attention_dp above 1 and ep = tp * attention_dp "
                f"({self.stage_gpus})"
            )
            raise ConfigError(
                msg, key="dispatcher", value=self.dispatcher, allowed=["auto", "allgather"]
            )
        return self

    @model_validator(mode="after")
    def _draft_is_legal(self) -> Self:
        draft = self.speculative.draft if self.speculative else None
        if draft == MTP and not self.model.mtp_num_layers:
            msg = (
                f"{self.model.name} has no module that predicts a further token; if its checkpoint "
                f"does, set model.mtp_num_layers to 1"
            )
            raise ConfigError(msg, key="speculative.draft", value=MTP, allowed="a model")
        if self.speculative is None or not isinstance(draft, ModelConfig):
            return self
        tp = self.speculative.draft_tp or self.tp
        if tp > self.tp or draft.num_attention_heads % tp:
            msg = (
                f"speculative.draft_tp ({tp}) must divide the {draft.num_attention_heads} heads of "
                f"{draft.name} and may not exceed tp ({self.tp})"
            )
            raise ConfigError(msg, key="speculative.draft_tp", value=tp)
        return self

    @model_validator(mode="after")
    def _prefill_side_is_legal(self) -> Self:
        if self.disaggregated is None:
            return self
        shared = {"model", "kv_cache_bytes", "kv_cache_dtype", "page_tokens", "disaggregated"}
        for key in sorted(shared & set(self.disaggregated.prefill)):
            msg = f"{key} of what prefills is that of what decodes; leave it out"
            raise ConfigError(msg, key=f"disaggregated.prefill.{key}")
        try:
            side = self.prefill_side
        except ConfigError as error:
            key = f"disaggregated.prefill.{error.key}"
            msg = f"{key}: {error.message}"
            raise ConfigError(msg, key=key, value=error.value, allowed=error.allowed) from None
        if self.disaggregated.same_domain:
            together, most = side.gpus + self.gpus, domain_gpus(self.cluster)
            if together > most:
                msg = f"{together} devices do not lie in one scale-up domain of {most}"
                raise ConfigError(msg, key="disaggregated.same_domain", value=True, allowed=[False])
        return self

    @model_validator(mode="after")
    def _cache_is_legal(self) -> Self:
        device = self.cluster.device
        if self.kv_cache_bytes < 1 and not set(FP4_TYPES) & set(device.matrix_flop_per_clk_per_cu):
            msg = f"a cache of FP4 needs a device that multiplies in FP4; {device.name} does not"
            raise ConfigError(
                msg, key="kv_cache_bytes", value=self.kv_cache_bytes, allowed=[2.0, 1.0]
            )
        return self

    @property
    def prefill_side(self) -> "Deployment":
        """What prefills; the deployment itself where it is not disaggregated."""
        if self.disaggregated is None:
            return self
        names = Deployment.model_fields.keys() - {"model", "cluster", "disaggregated"}
        own = self.model_dump(exclude_unset=True, include=set(names))
        own |= {"speculative": None, "model": self.model, "cluster": self.cluster}
        given = dict(self.disaggregated.prefill)
        degrees = {"tp": self.tp, "pp": self.pp, "attention_dp": self.attention_dp, **given}
        if "cluster" not in given and all(
            isinstance(degrees[name], int) for name in ("tp", "pp", "attention_dp")
        ):
            gpus = degrees["tp"] * degrees["pp"] * degrees["attention_dp"]
            nodes = max(self.cluster.nodes, -(-gpus // self.cluster.gpus_per_node))
            own["cluster"] = self.cluster.model_copy(update={"nodes": nodes})
        return Deployment.parse({**own, **given})

    @property
    def prefill_prompts(self) -> int:
        """Prompts of a prefill step where nothing else is said."""
        stated = self.disaggregated.batch if self.disaggregated else None
        return stated or self.prefill_side.attention_dp

    @property
    def stage_gpus(self) -> int:
        """Devices of one pipeline stage."""
        return self.tp * self.attention_dp

    @property
    def gpus(self) -> int:
        """Devices of the replica."""
        return self.stage_gpus * self.pp

    @property
    def expert_tp(self) -> int:
        """Devices that one routed expert is split over."""
        return self.stage_gpus // self.ep

    @property
    def exchanges(self) -> bool:
        """Whether a fused kernel brings tokens to their experts."""
        several = self.attention_dp > 1 and self.model.moe is not None
        return several and self.expert_tp == 1 and self.dispatcher != "allgather"

    @property
    def cached_element_bytes(self) -> float:
        """Bytes of a cached element with its scales; one of FP8 and wider types has none."""
        if self.kv_cache_bytes >= 1:
            return self.kv_cache_bytes
        return float(OPERAND_BYTES[MATRIX_TYPES.index("nvfp4")])

    @property
    def narrow_weights(self) -> WeightType | None:
        """How the weights are stored where kernels must widen them; None where they need not."""
        if self.weights is not None:
            operand = OPERAND_BYTES[MATRIX_TYPES.index(self.native_dtype)]
            return self.weights if weight_formats()[self.weights].bits / 8.0 < operand else None
        return None if self.native_dtype == self.dtype else _WEIGHTS_OF_TYPE.get(self.dtype)

    @property
    def native_dtype(self) -> str:
        """Type that the device computes ``dtype`` in."""
        return native_type(self.cluster.device, self.dtype)

    @property
    def runs(self) -> Engine:
        """What the engine runs, with what the deployment states itself."""
        stated = {
            "prefill_graph": self.prefill_graph,
            "decode_graph": self.decode_graph,
            "step_us": self.step_overhead_us,
            "sequence_us": self.sequence_overhead_us,
            "expert_load": self.expert_load or (1.0 if self.ep == 1 else None),
        }
        given: dict[str, float] = {str(name): each for name, each in self.engine_constants.items()}
        given |= {name: value for name, value in stated.items() if value is not None}
        return engines()[self.engine].model_copy(update=given)


def degrees(deployment: Deployment) -> dict[str, int]:
    """Return how a replica is split."""
    return {name: getattr(deployment, name) for name in DEGREES}
