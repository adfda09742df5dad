"""The requests that a deployment serves."""

from typing import ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from projector.config._base import Config, NotNegative, Positive
from projector.errors import ConfigError
from projector.serving.load import MAX_REQUESTS

MAX_LENGTH = 1 << 27
"""Longest sequence, in tokens."""

MAX_BATCH = 1 << 20
"""Most sequences at once."""


_OF_RATE = ("ttft_ms", "tpot_ms", "percentile", "requests")


class Traffic(Config):
    """Requests of equal length, as many at once as the batch says."""

    batch: PositiveInt | None = Field(default=None, le=MAX_BATCH)
    """Sequences that the replica generates tokens for at once. None given: the knee of
    throughput against speed among the batches that fit."""

    context: PositiveInt = Field(default=2048, le=MAX_LENGTH)
    """Tokens of a prompt, which are cached when the first token is generated."""

    output: PositiveInt | None = Field(default=None, le=MAX_LENGTH)
    """Tokens that are generated for a prompt. None given: a step is timed at ``context`` cached
    tokens, and prompts take no part of the throughput."""

    prompts: PositiveInt | None = Field(default=None, le=MAX_BATCH)
    """Prompts that go through the model together. None given: one in each attention group."""

    rate_per_s: Positive | None = None
    """Requests that arrive a second, independently of each other. With it the load is simulated
    request by request."""

    requests: PositiveInt = Field(default=1000, le=MAX_REQUESTS)
    """Requests that are simulated."""

    ttft_ms: Positive | None = None
    """What users are promised: time to the first token."""

    tpot_ms: Positive | None = None
    """The same for the mean time of each further token of a request."""

    percentile: float = Field(default=99.0, gt=0, le=100)
    """Percent of the requests that the promises hold for."""

    usd_per_gpu_hour: NotNegative | None = None
    """Rent of a device. Nothing is assumed; without it no cost is projected."""

    aliases: ClassVar = {"rate": "rate_per_s", "input": "context"}

    @model_validator(mode="after")
    def _rate_is_complete(self) -> Self:
        if self.rate_per_s is None:
            stated = [name for name in _OF_RATE if name in self.model_fields_set]
            if any(getattr(self, name) is not None for name in stated):
                msg = f"{stated[0]} belongs to a load with a rate; give rate_per_s (--rate)"
                raise ConfigError(msg, key=stated[0], value=getattr(self, stated[0]))
        elif self.output is None:
            msg = "a load with a rate needs the tokens that are generated; give output"
            raise ConfigError(msg, key="output", allowed="tokens of an answer")
        return self

    @model_validator(mode="after")
    def _prompts_within_batch(self) -> Self:
        if self.batch is not None and (self.prompts or 1) > self.batch:
            msg = f"prompts ({self.prompts}) exceeds batch ({self.batch})"
            raise ConfigError(msg, key="prompts", value=self.prompts, allowed=f"<= {self.batch}")
        return self

    @property
    def longest(self) -> int:
        """Tokens of a sequence when its last token is generated."""
        return self.context + (self.output or 0)
