"""What a training run is paid with: money and energy."""

from projector.config._base import Config


class CostConfig(Config):
    """Prices of a run."""


class EnergyConfig(Config):
    """What a run draws beside its devices, and what its power emits."""
