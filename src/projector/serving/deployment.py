"""What serves a model: how it is split, in which numbers, on which machines."""

from typing import Literal, Self

from pydantic import NonNegativeFloat, PositiveInt, field_validator, model_validator

from projector.config._base import Config
from projector.config.cluster import ClusterConfig
from projector.config.gemm import SpelledMatrixType
from projector.config.model import ModelConfig
from projector.config.model_file import load_model
from projector.errors import ConfigError


class Deployment(Config):
    """One replica of a model on ``tp * pp`` devices."""

    model: ModelConfig
    """Architecture: a shipped name, a file, or a mapping."""

    cluster: ClusterConfig
    """Machines and host software, as in a job."""

    tp: PositiveInt = 1
    """Tensor-parallel devices; experts are split over them like a dense MLP."""

    pp: PositiveInt = 1
    """Pipeline stages."""

    dtype: SpelledMatrixType = "bf16"
    """Type of the linear layers' operands; attention, router and head stay in 16 bits."""

    weight_bits: Literal[4, 8] | None = None
    """Weight-only quantisation of all linear layers, the head included: bits of a weight that is
    read, while the matrix type stays ``dtype``."""

    kv_cache_bytes: Literal[1, 2] = 2
    """Bytes of a cached element."""

    prefill_graph: bool = False
    """Whether prefill runs as one captured graph; otherwise the host launches each kernel."""

    decode_graph: bool = True
    """The same for decode."""

    step_overhead_us: NonNegativeFloat = 0.0
    """Time between two steps in which the device waits for the host: scheduling, sampling on the
    host, detokenising. It belongs to an engine and its load; nothing is assumed."""

    @field_validator("model", mode="before")
    @classmethod
    def _load_model(cls, value: object) -> object:
        if isinstance(value, ModelConfig):
            return value
        return load_model(value)  # type: ignore[arg-type]

    @model_validator(mode="after")
    def _splits(self) -> Self:
        heads = self.model.num_attention_heads
        if heads % self.tp:
            msg = f"tp ({self.tp}) must divide num_attention_heads ({heads})"
            raise ConfigError(msg, key="tp", value=self.tp)
        if self.pp > self.model.num_layers:
            msg = f"pp ({self.pp}) exceeds num_layers ({self.model.num_layers})"
            raise ConfigError(msg, key="pp", value=self.pp)
        if self.tp * self.pp > self.cluster.gpus:
            msg = f"tp * pp ({self.tp * self.pp}) exceeds the {self.cluster.gpus} GPUs"
            raise ConfigError(msg, key="tp", value=self.tp)
        return self
