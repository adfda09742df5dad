"""How tokens are proposed before the model verifies several of them in one step."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator, model_validator

from projector.config._base import Config
from projector.config.model import ModelConfig
from projector.config.model_file import load_model
from projector.errors import ConfigError

MTP = "mtp"
"""Drafts by the model's own module that predicts a further token."""


class SpeculativeConfig(Config):
    """Speculative decoding (Leviathan et al., arXiv 2211.17192)."""

    tokens: PositiveInt = Field(le=64)
    """Tokens that are proposed for a sequence and verified together."""

    acceptance: float = Field(ge=0, le=1)
    """Probability that a proposed token is accepted where those before it were. It belongs to both
    models and the text; nothing is assumed."""

    draft: ModelConfig | Literal["mtp"] | None = None
    """What proposes them: a small model (a shipped name, a file, or a mapping), or ``mtp``."""

    draft_tp: PositiveInt | None = None
    """Tensor-parallel devices of a small model; none given means those of the deployment."""

    draft_share: NonNegativeFloat | None = Field(default=None, le=1024)
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
        """Expected tokens that a sequence gains in a step: those accepted, and one of the model.

        ``(1 - a**(k + 1)) / (1 - a)`` with k proposed tokens and the acceptance a (the same paper,
        equation 1).
        """
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
    if model.moe is not None:
        changes["moe"] = model.moe.model_copy(update={"layer_freq": (int(model.moe_layers[-1]),)})
    return model.model_copy(update=changes)


def is_further_token_module(model: ModelConfig) -> bool:
    """Whether all layers are such modules, which join the model's output and the embedding."""
    return model.mtp_num_layers >= model.num_layers
