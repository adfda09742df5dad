"""Constants of the first-order model."""

from typing import Annotated

from pydantic import Field

from projector.config._base import AtLeastOne, Config, NotNegative
from projector.errors import ConfigError

TILES, FIRST_ORDER = FIDELITIES = "tiles", "first-order"
"""Tile models and replays, or the closed forms of ``docs/first_order.md``."""


def by_closed_forms(fidelity: str) -> bool:
    """Return whether a fidelity is the first-order one."""
    if fidelity not in FIDELITIES:
        msg = f"fidelity: {fidelity!r} is unknown; legal: {', '.join(FIDELITIES)}"
        raise ConfigError(msg, key="fidelity", value=fidelity, allowed=list(FIDELITIES))
    return fidelity == FIRST_ORDER


Derate = Annotated[float, Field(gt=0, le=1)]
"""A share of the roof that is reached."""


class FirstOrderConfig(Config):
    """What the first-order model assumes (``docs/first_order.md``).

    All defaults are those of the Roofline methodology, v0.2, 2026-04-30; it names what each was
    taken from. None was fitted here.
    """

    training_mfu: Derate = 0.45
    """Share of the peak that training reaches (section 1, after the Ultra-Scale Playbook)."""

    decode_mfu: Derate = 0.35
    """Share of the roof that a decode step reaches, on its slanted part too (section 1)."""

    prefill_mfu: Derate = 0.55
    """Share of the roof that prefill reaches (section 1)."""

    overlap: float = Field(default=0.8, ge=0, le=1)
    """Share of the shorter of compute and communication that hides behind the longer (section 4,
    after the Ultra-Scale Playbook)."""

    tp_crossing: AtLeastOne = 1.40
    """What a step is multiplied by where tensor parallelism leaves the scale-up domain (section
    3.4, after the Ultra-Scale Playbook; empirical)."""

    weight_bytes: NotNegative = 2.0
    """BF16 weight of a parameter (section 2.1)."""

    master_bytes: NotNegative = 4.0
    """Its FP32 master weight (section 2.1)."""

    gradient_bytes: NotNegative = 4.0
    """Its FP32 gradient (section 2.1)."""

    accumulation_bytes: NotNegative = 2.0
    """What FP32 accumulation takes on top (section 2.1: 18 becomes 20); it is the BF16 gradient
    that lies beside the FP32 sum unless a GEMM adds to that in place."""

    momentum_bytes: NotNegative = 4.0
    """FP32 first moment of AdamW (section 2.1)."""

    variance_bytes: NotNegative = 4.0
    """FP32 second moment of AdamW (section 2.1)."""

    checkpointed_share: float = Field(default=0.30, ge=0, le=1)
    """What is left of the activations under checkpointing (section 2.3: 70 % are traded)."""
