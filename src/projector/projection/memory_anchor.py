"""What a measured peak says of the memory of a job."""

from dataclasses import dataclass
from typing import Any

from projector.units import to_gib


@dataclass(frozen=True, slots=True)
class MemoryAnchor:
    """What a measured step says of the memory of a job that it is a small part of."""

    analytic_bytes: float
    """Modelled peak of the fullest rank of the job."""
    live_bytes: float
    """What lived at the measured peak that the model does not know of."""
    idle_bytes: float
    """What the allocator had reserved beyond it."""
    measured_bytes: float
    """Allocated peak of the measured step."""
    margin: float
    """Of `RestoredMemory`."""

    @property
    def allocated_bytes(self) -> float:
        """Allocated peak of the job."""
        return self.analytic_bytes + self.live_bytes

    @property
    def peak_bytes(self) -> float:
        """Reserved peak of the job."""
        return self.allocated_bytes + self.idle_bytes

    @property
    def upper_bytes(self) -> float:
        """The same with the margin of what no measured step held."""
        return self.peak_bytes + self.margin * max(0.0, self.allocated_bytes - self.measured_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return ``memory.measured`` of ``--json``."""
        return {
            "peak_gib": to_gib(self.peak_bytes),
            "upper_gib": to_gib(self.upper_bytes),
            "terms_gib": {
                "analytic": to_gib(self.analytic_bytes),
                "live_excess": to_gib(self.live_bytes),
                "allocator": to_gib(self.idle_bytes),
            },
            "terms": {"analytic": "analytic", "live_excess": "scaled", "allocator": "measured"},
            "step_gib": to_gib(self.measured_bytes),
        }
