"""What inference engines run beside a model's arithmetic, and formats of weights alone.

Both stand in ``hardware/engines.yaml``, each number with its source. Constants that belong to no
device and no engine stand in ``hardware/inference.yaml``.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import Field

from projector.config import resources
from projector.config._base import Config, NotNegative, Positive
from projector.errors import ConfigError

FILE = "engines.yaml"

GENERIC = "generic"
"""Engine of a deployment that names none."""

WeightType = Literal["bf16", "fp16", "fp8", "int8", "int4", "fp4", "mxfp4"]
"""How weights are stored."""

WeightKernels = Literal["tuned", "generated"]
"""Kernels that multiply by narrow weights: written by hand, or made by a compiler."""


EngineConstant = Literal[
    "step_us", "sequence_us", "request_ms", "handoff_ms", "expert_load", "latent_layer_us"
]
"""Numbers of an engine that are fitted to published rows."""


class Engine(Config):
    """An inference engine."""

    title: str
    also: tuple[str, ...] = ()
    collectives: tuple[str, ...]
    """Algorithms that its all-reduce chooses among."""
    is_eager: bool
    """Whether operators run one by one, as in eager PyTorch."""
    prefill_graph: bool
    """Whether prefill runs as one captured graph."""
    decode_graph: bool
    overlaps: bool
    """Whether a step is scheduled while the one before it runs, so that a request that arrives
    meanwhile waits for one step more."""
    weight_kernels: WeightKernels
    """Kernels for weights that are narrower than the operands."""
    step_us: NotNegative
    """Host time of a step while the device waits: scheduling, input, sampling."""
    sequence_us: NotNegative
    """The same for each sequence of the step."""
    request_ms: NotNegative
    """From a request's arrival at the server until it is queued, and back: HTTP, tokenising."""
    handoff_ms: NotNegative
    """The same between a prefill and a decode replica: routing, messages."""
    expert_load: float = Field(ge=1, le=1024)
    """Pairs of token and expert of the fullest of several parts over those of uniform routing."""
    latent_layer_us: NotNegative
    """What a layer of latent attention takes more on AMD devices than its kernels are counted."""
    layer_kernels: NotNegative
    """Kernels of a layer beside those that training launches eagerly."""
    layer_calls: NotNegative
    """Operators of a layer that launch nothing."""


class WeightFormat(Config):
    """A format of weights."""

    bits: int = Field(gt=0, le=16)
    group: int = Field(default=0, ge=0)
    """Weights that share a scale; 0 is a whole column, whose scales cost nothing."""
    scale_bytes: NotNegative = 0.0
    """Bytes of a group's scale, and of its zero."""
    instructions: Mapping[WeightKernels, NotNegative] = {"tuned": 0.0, "generated": 0.0}
    """Of a vector lane, to turn one weight into an operand."""

    def bytes_per_weight(self, group: int | None = None) -> float:
        """Return what one weight takes, its share of the scales included."""
        members = self.group if group is None else group
        return self.bits / 8.0 + (self.scale_bytes / members if members else 0.0)


class Dequantising(Config):
    """What turning weights into operands costs whatever the format."""

    exposed_share: NotNegative
    """Share of the instructions that loads of weights do not hide."""
    rows_a_pass: Positive
    """Rows of a GEMM that use a converted weight before it is converted again."""


def engine_named(name: str) -> str:
    """Return the name under which ``hardware/engines.yaml`` lists an engine."""
    plain = resources.normalise(name)
    for key, engine in engines().items():
        if plain in {resources.normalise(each) for each in (key, *engine.also)}:
            return key
    msg = f"unknown engine {name!r}; known: {', '.join(engines())}"
    raise ConfigError(msg, value=name, allowed=list(engines()))


@cache
def engines() -> dict[str, Engine]:
    """Return every engine by its name."""
    listed = _table(FILE, "engines")
    shared = {key: value for key, value in listed[GENERIC].items() if key != "also"}
    return {name: Engine.model_validate({**shared, **entry}) for name, entry in listed.items()}


@cache
def weight_formats() -> dict[str, WeightFormat]:
    """Return every format of weights by its name."""
    return {
        name: WeightFormat.model_validate(entry) for name, entry in _table(FILE, "weights").items()
    }


@cache
def dequantising() -> Dequantising:
    """Return what all formats have in common."""
    return Dequantising.model_validate(_table(FILE, "dequantising"))


@cache
def _table(file: str, part: str) -> dict[str, Any]:
    """Return a part of a file of ``hardware/`` without the sources of its values."""
    table: dict[str, Any] = _plain(resources.hardware_table(file)[part])
    return table


def _plain(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    if "value" in entry:
        return entry["value"]
    return {key: _plain(value) for key, value in entry.items()}


INFERENCE_FILE = "inference.yaml"


class InferenceOperators(Config):
    """What operators around the matrix products move and launch."""

    router_score_bytes: NotNegative
    """Traffic for each pair of a token and an expert: its score is read to pick from."""
    router_pick_bytes: NotNegative
    """Traffic for each expert that a token picks."""
    router_kernels: NotNegative
    """Kernels that pick experts and find the places of tokens."""
    sample_logit_bytes: NotNegative
    """Traffic for each logit, to pick a token."""
    sample_kernels: NotNegative
    decode_attention_kernels: NotNegative
    """Kernels of attention to the cache in a decode step."""


class InferenceMemory(Config):
    """What an engine holds beside weights and cache."""

    gemm_workspaces: NotNegative
    stream_bytes: NotNegative
    """Held for each element of the residual stream."""
    logit_bytes: NotNegative


class BenchmarkRouting(Config):
    """How benchmarks of layers of experts draw their loads."""

    power_law_share: Positive
    """Share of the tokens up to which a power-law draw reaches, from 1."""
    sparse_low: Positive
    """Least draw with at most one pair of token and expert for each expert."""
    sparse_high: Positive
    """Largest such draw."""
    groups: int = Field(gt=0)
    kept_groups: int = Field(gt=0)
    few_experts: int = Field(ge=0)
    """Fewer experts on a rank get half of the work-groups each, where their number is fixed."""


@cache
def inference_operators() -> InferenceOperators:
    """Return what operators move and launch."""
    return InferenceOperators.parse(_table(INFERENCE_FILE, "operators"))


@cache
def inference_memory() -> InferenceMemory:
    """Return what an engine holds."""
    return InferenceMemory.parse(_table(INFERENCE_FILE, "memory"))


@cache
def benchmark_routing() -> BenchmarkRouting:
    """Return how benchmarks draw loads."""
    return BenchmarkRouting.parse(_table(INFERENCE_FILE, "routing"))
