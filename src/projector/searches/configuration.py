"""One configuration that a search evaluated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration that was evaluated."""

    overrides: Mapping[str, Any]
    """Dotted fields that differ from the job, and their values."""
    iteration_time_s: float
    peak_bytes: float
    headroom_bytes: float
    peak_low_bytes: float
    """Lower end of the band of the peak."""
    peak_high_bytes: float
    verdict: str
    """``fits``, ``at_risk`` or ``does_not_fit``, by the band of the peak."""
    value: float
    """Of the objective: seconds of a step, or USD, MWh or tonnes of CO2 of the run."""

    @property
    def fits(self) -> bool:
        """Whether the device has room for its projected peak, limits of the search aside."""
        return self.headroom_bytes >= 0.0
