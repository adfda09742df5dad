"""What a search tries: the fields it sets, and limits of their values."""

from dataclasses import dataclass
from typing import Any

from projector.config.training import schedule_name
from projector.errors import ConfigError
from projector.schedule import registry
from projector.units import unwrapped


def check_top(top: Any) -> None:
    """Refuse a number of results that is no count."""
    top = unwrapped(top)
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        msg = f"top must be an integer of at least 1, got {top!r}"
        raise ConfigError(msg, key="top", value=top, allowed=">= 1")


PLACED = (
    "parallelism.dp",
    "parallelism.decoder_first_pipeline_num_layers",
    "parallelism.decoder_last_pipeline_num_layers",
    "parallelism.pipeline_model_parallel_layout",
)
"""Fields that belong to one configuration; the search starts without them."""

SEARCHED = (
    *(f"parallelism.{name}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp")),
    "parallelism.zero_stage",
    "parallelism.fsdp",
    "training.micro_batch_size",
    "training.recompute",
    "training.schedule",
)
"""Fields that a search sets."""

RECOMPUTE = ("none", "selective", "full")
MICRO_BATCHES = (1, 2, 4, 8, 16)
ZERO_STAGES = (1, 3)
MOST_CHUNKS = 8
LEAST_TOKENS_OF_A_CP_RANK = 2048
"""Sequences are not cut into shorter pieces; below, context parallelism only adds traffic."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a search."""

    headroom_gib: float = 0.0
    """Memory that must stay free on every rank, by the projected peak."""
    allow_risk: bool = False
    """Whether configurations are ranked whose peak fits, but not the upper end of its band."""
    tp_inside_node: bool = True
    """Keep tensor parallelism within one scale-up domain."""
    recompute: tuple[str, ...] = RECOMPUTE
    micro_batch_sizes: tuple[int, ...] = MICRO_BATCHES
    zero_stages: tuple[int, ...] = ZERO_STAGES
    schedules: tuple[str, ...] = ("auto",)
    fixed: tuple[str, ...] = ()
    """Fields of `SEARCHED` that keep the value of the job."""

    def __post_init__(self) -> None:
        """Name schedules as they are called here."""
        names = tuple(schedule_name(str(name)) for name in self.schedules)
        object.__setattr__(self, "schedules", names)

    def check(self) -> None:
        """Raise `ConfigError` if a limit leaves nothing to try or has an unknown value."""
        known_schedules = ("auto", *registry.SCHEDULES)
        for name, known in (
            ("recompute", RECOMPUTE),
            ("schedules", known_schedules),
            ("fixed", SEARCHED),
        ):
            for value in getattr(self, name):
                if value not in known:
                    msg = f"{name} must be among {', '.join(known)}, got {value!r}"
                    raise ConfigError(msg, key=name, value=value, allowed=list(known))
        for name in ("recompute", "micro_batch_sizes", "zero_stages", "schedules"):
            if not getattr(self, name):
                msg = f"{name} must have at least one value"
                raise ConfigError(msg, key=name, value=[], allowed="at least one value")
        # NaN compares false, so it is refused as well.
        if not self.headroom_gib >= 0.0:
            msg = f"headroom_gib is at least 0, got {self.headroom_gib!r}"
            raise ConfigError(msg, key="headroom_gib", value=str(self.headroom_gib), allowed=">= 0")
