"""What a search tries, how long it may take, and how far it is."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from projector.config.formats.emit import FORMATS
from projector.config.training import schedule_name
from projector.errors import ConfigError, shown
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
    formats: tuple[str, ...] = ()
    """Formats of `emit_job` whose frameworks must be able to run a configuration."""

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
            ("formats", FORMATS),
        ):
            for value in getattr(self, name):
                if value not in known:
                    msg = f"{name} must be among {', '.join(known)}, got {shown(value)}"
                    raise ConfigError(msg, key=name, value=value, allowed=list(known))
        for name in ("recompute", "micro_batch_sizes", "zero_stages", "schedules"):
            if not getattr(self, name):
                msg = f"{name} must have at least one value"
                raise ConfigError(msg, key=name, value=[], allowed="at least one value")
        # NaN compares false, so it is refused as well.
        if not self.headroom_gib >= 0.0:
            msg = f"headroom_gib is at least 0, got {self.headroom_gib!r}"
            raise ConfigError(msg, key="headroom_gib", value=str(self.headroom_gib), allowed=">= 0")


CONFIGURATIONS, ORDERS = "configurations", "orders"
"""What is counted: static orders and bounds first, then orders that are planned one by one."""

OUT_OF_TIME, INTERRUPTED = "out of time", "interrupted"


class Progress(NamedTuple):
    """How far a search is."""

    done: int
    total: int
    unit: str
    """What is counted, ``configurations`` or ``orders``; of orders at most so many are planned, as
    those found so far rule others out."""
    found: int
    left_s: float
    """Seconds that the rest of them should take, by what was measured so far."""


class Watch:
    """Says when a search is to end, and tells how far it is.

    It may take ``most_seconds`` of wall clock from now on; ``progress`` is called now and then.
    """

    def __init__(
        self, most_seconds: float | None = None, progress: Callable[[Progress], None] | None = None
    ) -> None:
        self._begun = time.perf_counter()
        self.most_seconds = math.inf if most_seconds is None else most_seconds
        self.estimated_s: float | None = None
        """What the search was last expected to take at the most, before it planned anything."""
        self._progress = progress

    def quiet(self) -> "Watch":
        """Return one that ends when this one does, and tells nothing."""
        other = Watch(self.most_seconds)
        other._begun = self._begun
        return other

    @property
    def seconds(self) -> float:
        """Seconds passed."""
        return time.perf_counter() - self._begun

    @property
    def left_s(self) -> float:
        """Seconds left; infinite without a limit."""
        return self.most_seconds - self.seconds

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self.most_seconds)

    @property
    def is_over(self) -> bool:
        """Whether the search is to end."""
        return self.left_s <= 0.0

    def expects(self, left_s: float) -> None:
        """Note how long the rest should take."""
        self.estimated_s = self.seconds + left_s

    def told(self, progress: Progress) -> None:
        """Tell how far the search is."""
        if self._progress is not None:
            self._progress(progress)


def check_seconds(most_seconds: Any) -> float | None:
    """Return a limit of time."""
    seconds = unwrapped(most_seconds)
    if seconds is None:
        return None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # NaN compares false, so it is refused as well.
    if not number or not seconds > 0.0:
        msg = f"most_seconds must be a number of seconds above 0, got {seconds!r}"
        raise ConfigError(msg, key="most_seconds", value=str(seconds), allowed="> 0")
    return float(seconds)
