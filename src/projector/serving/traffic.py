"""The requests that a deployment serves."""

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from projector.config._base import Config
from projector.errors import ConfigError

MAX_LENGTH = 1 << 27
"""Longest sequence, in tokens."""

MAX_BATCH = 1 << 20
"""Most sequences at once."""


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
