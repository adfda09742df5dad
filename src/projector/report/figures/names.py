"""How a sweep is called in figures and pages."""

from collections.abc import Mapping
from typing import Any

from projector.report.figures.rows import axes_of
from projector.sweeps.result import SweepResult


def title_of_sweep(result: SweepResult) -> str:
    """Name the model and the device of the base job, unless an axis changes them."""
    base, axes = result.plan.space.get("base"), axes_of(result.columns)
    if not isinstance(base, Mapping):
        return "sweep"
    model, cluster = base.get("model"), base.get("cluster")
    names = [_name(model)]
    if isinstance(cluster, Mapping):
        names.append(_name(cluster.get("device")))
    parts = [
        name
        for name, field in zip(names, ("model", "cluster.device"), strict=False)
        if name and field not in axes
    ]
    return " on ".join(parts) or "sweep"


def _name(part: Any) -> str:
    return str(part.get("name", "")) if isinstance(part, Mapping) else ""
