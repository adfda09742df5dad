"""Kinds of layers, and which of them lie on which virtual pipeline stage, as counts."""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, NoReturn, Self

import numpy as np

from projector.arrays import Flags, Ints
from projector.config.model import LayerType, ModelConfig, parts_of
from projector.config.parallelism import ParallelismConfig
from projector.config.training import RecomputeConfig, TrainingConfig
from projector.errors import ConfigError
from projector.kernels.device import FIRST_NARROW, MATRIX_TYPES


class Kind(IntEnum):
    """What a workload is. A kind of layer has a mixer, a feed-forward, or both."""

    shown: str
    """Its name among the components of a model."""
    layer: LayerType | None
    """Its name in ``ModelConfig.layer_kinds``; None for what is not a layer."""

    DENSE = "dense_layer", "dense"
    MOE = "moe_layer", "moe"
    EMBEDDING = "embedding", None
    HEAD = "head", None
    MTP = "mtp_projection", None
    ATTENTION = "attention_layer", "attention"
    MLP = "mlp_layer", "mlp"
    EXPERTS = "experts_layer", "experts"
    MAMBA1 = "mamba1_layer", "mamba1"
    MAMBA1_DENSE = "mamba1_dense_layer", "mamba1_dense"
    MAMBA1_MOE = "mamba1_moe_layer", "mamba1_moe"
    MAMBA2 = "mamba2_layer", "mamba2"
    MAMBA2_DENSE = "mamba2_dense_layer", "mamba2_dense"
    MAMBA2_MOE = "mamba2_moe_layer", "mamba2_moe"
    GDN = "gdn_layer", "gdn"
    GDN_DENSE = "gdn_dense_layer", "gdn_dense"
    GDN_MOE = "gdn_moe_layer", "gdn_moe"
    KDA = "kda_layer", "kda"
    KDA_DENSE = "kda_dense_layer", "kda_dense"
    KDA_MOE = "kda_moe_layer", "kda_moe"
    LINEAR = "linear_layer", "linear"
    LINEAR_DENSE = "linear_dense_layer", "linear_dense"
    LINEAR_MOE = "linear_moe_layer", "linear_moe"
    RWKV7 = "rwkv7_layer", "rwkv7"
    RWKV7_DENSE = "rwkv7_dense_layer", "rwkv7_dense"
    CONV = "conv_layer", "conv"
    CONV_DENSE = "conv_dense_layer", "conv_dense"
    CONV_MOE = "conv_moe_layer", "conv_moe"
    ATTENTION_MAMBA2_DENSE = "attention+mamba2_dense_layer", "attention+mamba2_dense"
    DOUBLE_STREAM = "double_stream_layer", "double_stream"
    SINGLE_STREAM = "single_stream_layer", "single_stream"
    DIT = "dit_layer", "dit"
    VISION = "vision_layer", None
    PROJECTOR = "vision_projector", None

    def __new__(cls, shown: str, layer: LayerType | None) -> Self:
        """Give the kind the number of its row."""
        kind = int.__new__(cls, len(cls.__members__))
        kind._value_ = len(cls.__members__)
        kind.shown, kind.layer = shown, layer
        return kind

    # An enumeration hashes its name, in Python; the number does it in C.
    __hash__ = int.__hash__


KINDS = tuple(Kind)
"""By number."""

KIND_OF_LAYER: dict[LayerType, Kind] = {kind.layer: kind for kind in KINDS if kind.layer}
"""The kind of each layer of a model."""

_PARTS: list[tuple[tuple[str, ...], str | None]] = [
    parts_of("dense" if kind is Kind.VISION else kind.layer)
    if kind.layer or kind is Kind.VISION
    else ((), None)
    for kind in KINDS
]
_IS_LAYER = np.array([kind.layer is not None or kind is Kind.VISION for kind in KINDS])


def is_layer(kinds: Ints) -> Flags:
    """Return which of some kinds are layers."""
    return np.asarray(_IS_LAYER[kinds])


def has_part(kinds: Ints, *parts: str) -> Flags:
    """Return which of some kinds have one of some mixers or feed-forwards."""
    has = [not {*mixers, behind}.isdisjoint(parts) for mixers, behind in _PARTS]
    return np.asarray(np.array(has)[kinds])


RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = 0, 1, 2


class LayerKind(NamedTuple):
    """What makes two layers of one job cost differently."""

    kind: Kind
    windowed: bool
    recompute: int
    """`RECOMPUTE_NONE`, `RECOMPUTE_SELECTIVE` or `RECOMPUTE_FULL`."""
    narrow: bool
    """Whether its GEMMs use the job's narrow type (FP8 and below) rather than 16 bits."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One virtual pipeline stage."""

    layers: tuple[tuple[LayerKind, int], ...]
    """Runs of equal layers, in model order."""
    embedding: bool
    """Whether it holds the embedding."""
    head: bool
    """Whether it holds the output layer and the loss."""
    mtp: int
    """Multi-token-prediction modules it holds."""

    @property
    def num_layers(self) -> int:
        """Transformer layers, without MTP modules."""
        return sum(count for _, count in self.layers)


class _Slot(NamedTuple):
    layers: int
    embedding: bool
    head: bool
    mtp: int


NARROW = frozenset(MATRIX_TYPES[FIRST_NARROW:])
"""Precisions of fewer than 16 bits."""


def uses_narrow(training: TrainingConfig) -> bool:
    """Whether linear layers compute in fewer than 16 bits."""
    return training.precision in NARROW


def uses_fp8_attention(training: TrainingConfig) -> bool:
    """Whether fused attention computes in FP8."""
    return training.fp8_attention and training.flash_attention and uses_narrow(training)


class LayerSplit(NamedTuple):
    """What of a split decides where layers lie, under the same names."""

    pp: int
    vpp: int
    decoder_first_pipeline_num_layers: int | None
    decoder_last_pipeline_num_layers: int | None
    pipeline_model_parallel_layout: str | None
    account_for_embedding_in_pipeline_split: bool
    account_for_loss_in_pipeline_split: bool
    divide_pipeline_by_work: bool

    @classmethod
    def of(cls, split: ParallelismConfig) -> "LayerSplit":
        """Return the part of a split."""
        return cls(*_split_fields(split))


_split_fields = attrgetter(*LayerSplit._fields)


class LayerSettings(NamedTuple):
    """What of a step decides of which kind layers are."""

    recompute: RecomputeConfig
    narrow: bool
    """Whether the job trains in a type narrower than 16 bits."""
    wide_ends: int
    """Layers at each end that stay in 16 bits nevertheless."""
    mtp_loss: bool
    """Whether multi-token-prediction modules are trained."""

    @classmethod
    def of(cls, training: TrainingConfig) -> "LayerSettings":
        """Return the part of a step."""
        return cls(
            training.recompute,
            uses_narrow(training),
            training.first_last_layers_bf16,
            training.mtp_loss,
        )


@lru_cache(maxsize=4096)
def stage_layout(
    model: ModelConfig, split: LayerSplit, settings: LayerSettings
) -> tuple[Stage, ...]:
    """Place layers on the ``pp * vpp`` virtual stages, in model order; equal layouts once."""
    recompute, narrow, wide_ends, mtp_loss = settings
    slots = _slots(model, split, model.mtp_num_layers if mtp_loss else 0)
    kind_of = [KIND_OF_LAYER[layer] for layer in model.layer_kinds]
    last = model.num_layers
    stages = []
    first = 0
    for slot in slots:
        kinds = [
            LayerKind(
                kind=kind_of[layer],
                windowed=_is_windowed(layer, model),
                recompute=_recompute_mode(layer, layer - first, recompute),
                narrow=narrow and wide_ends <= layer < last - wide_ends,
            )
            for layer in range(first, first + slot.layers)
        ]
        runs = tuple((kind, len(list(group))) for kind, group in groupby(kinds))
        stages.append(Stage(runs, slot.embedding, slot.head, slot.mtp))
        first += slot.layers
    if recompute.layers is not None and any(layer >= last for layer in recompute.layers):
        msg = f"recompute.layers names layer {max(recompute.layers)}; the model has {last}, from 0"
        raise ConfigError(msg, key="training.recompute.layers", value=list(recompute.layers))
    return tuple(stages)


def _is_windowed(layer: int, model: ModelConfig) -> bool:
    """Spread the windowed layers evenly: where exactly they lie changes no stage by much."""
    count, total = model.sliding_window_layers, model.num_layers
    if model.layer_types is not None:
        # Only attention has a window.
        attends = ["attention" in parts_of(kind)[0] for kind in model.layer_kinds]
        if not attends[layer]:
            return False
        layer, total = sum(attends[:layer]), sum(attends)
    return (layer + 1) * count // total > layer * count // total


def _recompute_mode(layer: int, position: int, recompute: RecomputeConfig) -> int:
    if recompute.granularity == "none":
        return RECOMPUTE_NONE
    if recompute.granularity == "selective":
        return RECOMPUTE_SELECTIVE
    if recompute.layers is not None:
        chosen = layer in recompute.layers
    elif recompute.method == "block":
        chosen = position < (recompute.num_layers or 0)
    else:
        chosen = True
    return RECOMPUTE_FULL if chosen else RECOMPUTE_NONE


def _slots(model: ModelConfig, split: LayerSplit, mtp: int) -> list[_Slot]:
    if split.pipeline_model_parallel_layout:
        slots = parse_layout(split.pipeline_model_parallel_layout)
        text = split.pipeline_model_parallel_layout or ""
        stages = split.pp * split.vpp
        if len(slots) != stages:
            _refuse_layout(
                f"has {len(slots)} stages, but pp ({split.pp}) * vpp ({split.vpp}) = {stages}", text
            )
        placed = sum(slot.layers for slot in slots)
        if placed != model.num_layers:
            _refuse_layout(f"places {placed} layers, the model has {model.num_layers}", text)
        for name, where, end_name in (("E", 0, "first"), ("L", -1, "last")):
            flags = [slot.embedding if name == "E" else slot.head for slot in slots]
            if sum(flags) != 1 or not flags[where]:
                _refuse_layout(f"must have exactly one {name}, on the {end_name} stage", text)
        modules = sum(slot.mtp for slot in slots)
        if modules != mtp:
            _refuse_layout(f"places {modules} MTP modules, the model trains {mtp}", text)
        return slots
    counts = _layer_counts(model, split)
    last = len(counts) - 1
    return [
        _Slot(count, embedding=i == 0, head=i == last, mtp=mtp if i == last else 0)
        for i, count in enumerate(counts)
    ]


def _layer_counts(model: ModelConfig, split: LayerSplit) -> list[int]:
    """Return the layers of each virtual stage in model order."""
    num_layers, pp, vpp = model.num_layers, split.pp, split.vpp
    first = split.decoder_first_pipeline_num_layers
    last = split.decoder_last_pipeline_num_layers
    if first is not None or last is not None:
        return _ends_given(num_layers, pp, vpp, first, last)
    stages = pp * vpp
    if split.divide_pipeline_by_work and stages <= num_layers:
        return model.layers_by_work(stages)
    extra_first = int(split.account_for_embedding_in_pipeline_split)
    extra_last = int(split.account_for_loss_in_pipeline_split)
    counts = _even(num_layers + extra_first + extra_last, stages)
    counts[0] -= extra_first
    counts[-1] -= extra_last
    if min(counts) < 0 or num_layers + extra_first + extra_last < stages:
        msg = (
            f"{num_layers} layers cannot be laid out over pp ({pp}) * vpp ({vpp}) = {stages} "
            f"stages; at most {num_layers} stages get a layer each"
        )
        raise ConfigError(msg, key="parallelism.pp", value=pp, allowed=f"pp * vpp <= {num_layers}")
    return counts


def _ends_given(
    num_layers: int, pp: int, vpp: int, first: int | None, last: int | None
) -> list[int]:
    middle_ranks = pp - (first is not None) - (last is not None)
    middle = num_layers - (first or 0) - (last or 0)
    stated, end = (last, "last") if first is None else (first, "first")
    key = f"parallelism.decoder_{end}_pipeline_num_layers"
    if middle < 0 or (middle_ranks <= 0) != (middle == 0) or middle_ranks < 0:
        msg = (
            f"{first or 0} layers on the first and {last or 0} on the last stage leave {middle} of "
            f"{num_layers} for {max(middle_ranks, 0)} other stages"
        )
        raise ConfigError(msg, key=key, value=stated)
    per_rank = _even(middle, middle_ranks) if middle_ranks else []
    per_rank = ([first] if first is not None else []) + per_rank
    per_rank += [last] if last is not None else []
    for count in per_rank:
        if count % vpp:
            msg = f"a pipeline rank with {count} layers cannot split them into vpp ({vpp}) chunks"
            raise ConfigError(msg, key=key, value=count, allowed=f"multiples of {vpp}")
    return [count // vpp for _ in range(vpp) for count in per_rank]


def _even(total: int, parts: int) -> list[int]:
    """Divide evenly, the remainder to the first parts (61 over 4 is 16, 15, 15, 15)."""
    share, rest = divmod(total, parts)
    return [share + (part < rest) for part in range(parts)]


def parse_layout(text: str) -> list[_Slot]:
    """Parse a Megatron pipeline layout string such as ``Et*3|(tt|)*29,m|L``."""
    expanded = _expand(text.replace(" ", "").replace(",", ""), text)
    return [
        _Slot(part.count("t"), embedding="E" in part, head="L" in part, mtp=part.count("m"))
        for part in expanded.split("|")
    ]


def _expand(text: str, whole: str) -> str:
    """Expand ``x*3`` and ``(xy|)*2``; nesting is allowed."""
    out: list[str] = []
    stack: list[list[str]] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "(":
            stack.append(out)
            out = []
            continue
        if char == ")":
            if not stack:
                _refuse_layout("has ')' without '('", whole)
            unit, out = "".join(out), stack.pop()
        elif char in "EtmL|":
            unit = char
        else:
            _refuse_layout(f"has {char!r}; known are E t m L | ( ) * and digits", whole)
        repeat = 1
        if position < len(text) and text[position] == "*":
            end = position + 1
            while end < len(text) and text[end].isdigit():
                end += 1
            if end == position + 1 or end - position > 5:
                _refuse_layout("has '*' without a count of at most four digits", whole)
            repeat, position = int(text[position + 1 : end]), end
        out.append(unit * repeat)
        if sum(map(len, out)) > 100_000:
            _refuse_layout("expands beyond 100,000 entries", whole)
    if stack:
        _refuse_layout("has '(' without ')'", whole)
    return "".join(out)


def _refuse_layout(problem: str, text: str) -> NoReturn:
    raise ConfigError(
        f"pipeline_model_parallel_layout {text!r} {problem}",
        key="parallelism.pipeline_model_parallel_layout",
        value=text,
        allowed="for example Et*3|(tt|)*29L with pp * vpp stages",
    )
