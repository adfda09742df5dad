"""What one training step does: batch, precision, recomputation, optimizer, switches."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from projector.config import _base
from projector.config.adapter import AdapterConfig, adapter_data
from projector.config.device_kernels import matrix_type_named
from projector.config.framework import FrameworkConfig
from projector.config.resources import SPELLINGS, normalise, settings_of
from projector.errors import ConfigError, shown

AUTO, ALL = "auto", "all"

_TABLE = settings_of("steps")
_CHUNKS: Mapping[str, int] = _TABLE["chunks"]
"""Schedule -> chunks a rank; interleaved may have more."""

_SPELLINGS: Mapping[str, str] = SPELLINGS["schedules"]
"""What papers and other tools call a schedule."""


def _folded(name: str) -> str:
    return normalise(name).replace(".", "")


_BY_NAME = {_folded(name): name for name in (AUTO, ALL, *_CHUNKS)} | {
    _folded(spelling): name for name, all_of in _SPELLINGS.items() for spelling in all_of.split()
}


def schedule_name(given: str) -> str:
    """Return the name of a schedule for any spelling of it; an unknown one stays as it is."""
    return _BY_NAME.get(_folded(given), given)


def spellings() -> dict[str, str]:
    """Return every spelling of a name, as an error may suggest it, with the name."""
    written = {spelling: name for name, text in _SPELLINGS.items() for spelling in text.split()}
    return {name: name for name in (AUTO, *_CHUNKS)} | written


def chunks_of(name: str, vpp: int) -> int:
    """Return the chunks a rank that a schedule needs where another one uses ``vpp``."""
    return max(2, vpp) if name == "interleaved" else _CHUNKS.get(name, vpp)


Precision = Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp6", "mxfp4"]

SOLVER_WORK = 30_000_000
"""What an integer program may be worth where nobody says otherwise."""

RECOMPUTE_MODULES: tuple[str, ...] = tuple(_TABLE["recompute_modules"].split())
"""Modules that selective recomputation can drop."""

FUSED_UNITS = {"deepep": 20, "hybridep": 16}
"""Fused exchanges of experts, and the compute units that Megatron gives them by default."""


class RecomputeConfig(_base.Config):
    """Which activations are dropped in the forward and computed again in the backward."""

    granularity: Literal["none", "selective", "full"] = "none"
    """Nothing, named modules, or whole layers."""
    method: Literal["uniform", "block"] = "uniform"
    """Full recomputation of all layers in units of num_layers, or of the first num_layers of
    each pipeline chunk."""
    num_layers: _base.CountOrNone | None = None
    """Unit length (uniform; default 1) or number of layers a chunk recomputes (block)."""
    layers: tuple[_base.CountOrNone, ...] | None = None
    """Full recomputation of exactly these layers, counted from 0 over the whole model."""
    modules: tuple[str, ...] = ("core_attn",)
    """Modules that selective recomputation drops."""
    aliases: ClassVar = SPELLINGS["recompute"]

    @field_validator("modules", mode="after")
    @classmethod
    def _modules_are_known(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in modules if name not in RECOMPUTE_MODULES]
        if unknown:
            msg = f"unknown module {unknown[0]!r}; known: {', '.join(RECOMPUTE_MODULES)}"
            raise ConfigError(msg, value=unknown[0], allowed=list(RECOMPUTE_MODULES))
        return modules

    @model_validator(mode="after")
    def _method_is_complete(self) -> Self:
        full = self.granularity == "full"
        if full and self.layers is None and self.method == "block" and self.num_layers is None:
            msg = "method 'block' needs num_layers, the number of layers each chunk recomputes"
            raise ConfigError(msg, key="num_layers", allowed="an integer >= 0")
        if full and self.method == "uniform" and self.num_layers == 0:
            msg = "num_layers is the length of a recomputed unit with method 'uniform': at least 1"
            raise ConfigError(msg, key="num_layers", value=0, allowed="an integer >= 1")
        if self.layers is not None and not full:
            msg = f"layers lists fully recomputed layers, but granularity is {self.granularity!r}"
            raise ConfigError(msg, key="layers", allowed="granularity: full")
        return self


class OptimizerConfig(_base.Config):
    """Optimizer and the type of each of its states."""

    name: Annotated[Literal["adam", "sgd", "muon"], _base.UPDATES] = "adam"
    """Update rule: Adam keeps two moments, SGD with momentum and Muon one."""
    master_weights: Annotated[Literal["fp32", "split", "shared", "none"], _base.UPDATES] = "fp32"
    """FP32 copy of the weights, only the 16 bits that BF16 weights lack, the weights themselves
    (``shared``: they are kept in FP32 and cast where they are gathered or used, as PyTorch's FSDP
    2 does with mixed precision), or nothing."""
    moment_dtype: Annotated[Literal["fp32", "bf16", "fp16", "fp8"], _base.UPDATES] = "fp32"
    """Type of the moments (precision-aware optimizer when narrower than FP32)."""
    offload_fraction: Annotated[float, _base.UPDATES] = Field(default=0.0, ge=0, le=1)
    """Share of the optimizer states kept in host memory and updated there."""
    update_bytes: Annotated[float, _base.UPDATES] = Field(default=0.0, ge=0, le=64)
    """What an update makes beside its states, bytes for each parameter that a rank updates: none
    where one kernel updates all in place, 4 for the intermediate of PyTorch's ``foreach`` Adam."""


class MoETrainingConfig(_base.Config):
    """How tokens reach their experts."""

    dispatcher: Literal["alltoall", "allgather", "deepep", "hybridep"] = "alltoall"
    """Token dispatcher: all-to-all, gather everything, or a fused exchange that sends a token once
    to each node (``hybridep`` copies by bulk transfers and needs fewer compute units)."""
    dispatcher_sms: _base.Count | None = Field(default=None, le=1 << 20)
    """Compute units that a fused exchange takes; what hides it loses them. None given means
    Megatron's defaults, 20 for ``deepep`` and 16 for ``hybridep``."""
    load: Literal["balanced", "zipf"] = "balanced"
    """Distribution of tokens over experts."""
    zipf_exponent: float = Field(default=1.0, ge=0, le=8)
    """Exponent of the Zipf load."""
    capacity_factor: _base.Positive | None = None
    """Tokens kept for each expert over the balanced share; none drops nothing. Without
    ``host_sync`` every expert is padded to it, so that it computes and exchanges as many."""
    dispatch_precision: Literal["bf16", "fp8"] = "bf16"
    """Type of the tokens on their way to the experts; they come back in BF16."""
    permute_fusion: bool = True
    """Permutation as one kernel instead of sort, gather and scatter."""
    fused_experts: bool = False
    """Kernels of grouped GEMMs add biases, clamp and activate (Megatron
    ``use_transformer_engine_op_fuser``); otherwise biases and clamps of experts are operators of
    their own (``cluster.software.expert_passes``)."""
    padding_fusion: bool = False
    """Rows of experts are padded for narrow GEMMs as they are routed or permuted (Megatron
    ``moe_router_padding_for_quantization``), not by passes of their own."""
    host_sync: bool = True
    """Whether the host waits for token counts once in each layer (dropless, not sync-free)."""

    @property
    def dispatcher_units(self) -> int:
        """Compute units that the dispatcher takes, 0 unless it is a fused exchange."""
        if self.dispatcher not in FUSED_UNITS:
            return 0
        return self.dispatcher_sms or FUSED_UNITS[self.dispatcher]


class TrainingConfig(_base.Config):
    """One training step."""

    micro_batch_size: Annotated[int, _base.Label("micro-batch", "sequences")] = Field(
        gt=0, le=1 << 24
    )
    """Sequences of one microbatch on one data-parallel rank."""
    global_batch_size: Annotated[
        int,
        _base.Label("global batch", "sequences"),
        _base.Shares("family", "decides the number of microbatches, each of which costs the same"),
    ] = Field(gt=0, le=1 << 40)
    """Sequences of one optimizer step over all ranks."""
    seq_length: Annotated[int, _base.Label("sequence", "tokens")] = Field(gt=0, le=1 << 28)
    """Tokens of one sequence."""
    packed_tokens: _base.Count | None = Field(default=None, le=1 << 28)
    """Mean length of the sequences that are packed into one of ``seq_length``, each of which
    attends to itself alone; none given, or one of at least ``seq_length``, means that one fills
    it."""
    framework: Annotated[
        FrameworkConfig | None,
        _base.Shares("replica", "sets the defaults of other fields, which are compared"),
    ] = None
    """Training framework, a name or a mapping of name and release: it sets the defaults of fields
    that the job leaves out (docs/frameworks.md). None given means the defaults shown here, those of
    Megatron Core on current libraries."""
    precision: Precision = "bf16"
    """Type of the linear layers' GEMMs; attention, output layer and router stay in 16 bits.
    ``fp8-blockwise`` is short for ``fp8`` with the recipe ``blockwise``."""
    fp8_recipe: Literal["delayed", "tensorwise", "rowwise", "blockwise"] = "delayed"
    """How FP8 scales are found: current scaling by tensor or row reads a tensor once more than
    delayed or blockwise scaling. Blockwise scaling runs on the kernels of ``fp8_block`` where a
    device describes them."""
    fp8_param_gather: Annotated[bool, _base.GATHERS] = False
    """Keep and gather the primary weights in FP8."""
    fp8_weight_transpose_cache: bool = True
    """Keep an FP8 transpose of each weight for the backward."""
    fp8_weight_cache: bool = False
    """Quantised copies of weights that FSDP gathers stay whole on every rank until the next step,
    as in the cache of Transformer Engine under Megatron-LM; torchao keeps none."""
    fp8_attention: bool = False
    """Fused attention computes in FP8 beside narrow linear layers (``fp8_dpa`` of Transformer
    Engine): Q, K, V and the gradient of the output are quantised, and kept so."""
    first_last_layers_bf16: _base.CountOrNone = 0
    """Layers at each end that stay in BF16 with a narrow precision."""
    gradient_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of the main gradients that microbatches accumulate in."""
    gradient_accumulation_fusion: bool = True
    """Weight-gradient GEMMs add to the main gradients in place. Otherwise each writes a gradient in
    16 bits, which a kernel of its own adds. Nothing accumulates under FSDP, which reduces the
    gradients of each microbatch."""
    grad_reduce_dtype: Annotated[Literal["fp32", "bf16"] | None, _base.REDUCES] = None
    """Type of gradients on the wire; none given means gradient_dtype."""
    recompute: RecomputeConfig = RecomputeConfig()
    """Activation recomputation: none, selective, full, or a mapping."""
    recompute_early_stop: bool = False
    """Recomputation of a layer ends with the last tensor that its backward needs, so the last GEMM
    of a dense MLP and the collective behind it are not repeated. The checkpoints of PyTorch do so
    unless they are reentrant (since release 2.1, pytorch/pytorch#96866), Megatron's do not."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer: a name or a mapping."""
    adapter: Annotated[AdapterConfig | None, BeforeValidator(adapter_data)] = None
    """Adapters that are trained while the weights stay as they are: ``lora``, a mapping, or the
    ``adapter_config.json`` of PEFT. None given trains all weights (docs/adapters.md)."""
    moe: MoETrainingConfig = MoETrainingConfig()
    """Token dispatch of mixture-of-experts layers."""
    schedule: Annotated[
        str,
        AfterValidator(schedule_name),
        _base.Label("pipeline schedule"),
        _base.Shares("replica", "compared under the name it resolves to"),
    ] = "auto"
    """Pipeline schedule, by the name here, in a paper or in Primus; auto is 1F1B, interleaved when
    vpp > 1. One that needs one chunk or two gets them, unless vpp is stated where it is."""
    zero_bubble_max_pending_backward: Annotated[_base.Count | None, _base.ORDER] = None
    """Microbatches whose activations a planned schedule lets a rank hold; by default
    as many as the device has room for."""
    optimizer_post_validation: Annotated[
        bool, _base.Shares("replica", "decides the order, and how the step of each job ends")
    ] = False
    """Ranks begin the next step without waiting for the others, as the gradient norm is checked
    afterwards (zero bubble); the step is then the longest span of one rank."""
    schedule_solver_work: Annotated[_base.CountOrNone, _base.ORDER] = SOLVER_WORK
    """What the integer program of ``seaailab-ilp`` is worth, in units that do not depend on the
    machine. A node of its search over n undecided pairs of operations costs n squared. The default
    is about ten seconds of one core."""
    flash_attention: bool = True
    """Fused attention; without it scores are written to memory."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of scores that unfused attention drops, by default Megatron's; 0 keeps less of them."""
    attention_kernel: Annotated[
        str, _base.Shares("replica", "chooses the record of a device, which is compared beside it")
    ] = "default"
    """Fused attention by the device's name for it; default is the best its stack offers."""
    elementwise: Literal["fused", "eager"] = "fused"
    """Norms, gated activations and rotations run as one kernel each, or operator by operator as
    eager PyTorch does. Code that ``torch_compile`` has compiled is fused."""
    cross_entropy_fusion: bool = True
    """Loss from 16-bit logits in one kernel, without an FP32 copy."""
    loss_chunk_tokens: int | None = Field(default=None, gt=0, le=1 << 40)
    """Tokens whose logits exist at a time: the loss and its gradient are made chunk by chunk (TRL's
    ``chunked_nll``, torchtitan's loss chunks); none given means all of a microbatch."""
    cuda_graphs: bool = False
    """Replay layers as CUDA or HIP graphs."""
    torch_compile: bool = False
    """Fuse memory-bound operators by a compiler."""
    activation_offload_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the saved activations moved to host memory until their backward."""
    mtp_loss: bool = True
    """Train multi-token-prediction modules where the model has them."""
    aliases: ClassVar = SPELLINGS["training"]

    @model_validator(mode="before")
    @classmethod
    def _blockwise_by_name(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if matrix_type_named(data.get("precision")) != "fp8_block":
            return data
        recipe = data.get("fp8_recipe", "blockwise")
        if recipe != "blockwise":
            msg = f"precision {data['precision']} has blockwise scales, fp8_recipe is {recipe!r}"
            raise ConfigError(msg, key="fp8_recipe", value=recipe, allowed="blockwise")
        return {**data, "precision": "fp8", "fp8_recipe": "blockwise"}

    @field_validator("framework", mode="before")
    @classmethod
    def _framework_by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if value is None or isinstance(value, Mapping | FrameworkConfig):
            return value
        allowed = "a name, or a mapping of name and release"
        raise ConfigError(f"is {allowed} (got {shown(value)})", value=value, allowed=allowed)

    @field_validator("recompute", mode="before")
    @classmethod
    def _recompute_by_name(cls, value: Any) -> Any:
        if value is None or value is False:
            return {"granularity": "none"}
        if isinstance(value, str | bool | int | float):
            if value not in {"none", "selective", "full"}:
                msg = f"should be none, selective, full or a mapping, not {str(value).lower()}"
                raise ConfigError(msg, value=value, allowed=["none", "selective", "full"])
            return {"granularity": value}
        if (
            isinstance(value, Mapping)
            and "granularity" not in value
            and "recompute_granularity" not in value
        ):
            full = value.keys() & {"method", "num_layers", "layers"}
            return {"granularity": "full" if full else "selective", **value}
        return value

    @field_validator("optimizer", mode="before")
    @classmethod
    def _optimizer_by_name(cls, value: Any) -> Any:
        if isinstance(value, bool | int | float):
            allowed = "a name or a mapping"
            msg = f"should be {allowed}, not {str(value).lower()}"
            raise ConfigError(msg, value=value, allowed=allowed)
        return {"name": value.removesuffix("w")} if isinstance(value, str) else value

    @property
    def reduce_dtype(self) -> str:
        """Type of gradients on the wire."""
        return self.grad_reduce_dtype or self.gradient_dtype
