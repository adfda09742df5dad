"""How a sweep is called in figures and pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from projector.config.job import Job
from projector.report.figures.axes import device_name, points_of
from projector.report.figures.rows import axes_of
from projector.report.terminal.job import short_title
from projector.sweeps.result import SweepResult

MOST_NAMED = 3
"""Models or devices that a title names; of more it tells the number."""


def title_of_sweep(result: SweepResult) -> str:
    """Name the models and the devices of a sweep."""
    base, axes = result.plan.space.get("base"), axes_of(result.columns)
    if not isinstance(base, Mapping):
        return "sweep"
    model = base.get("model")
    of_base = str(model.get("name", "")) if isinstance(model, Mapping) else ""
    names = [
        _named(result, axes, "model", of_base, "models"),
        _named(result, axes, "cluster.device", device_name(base), "devices"),
    ]
    return " on ".join(name for name in names if name) or "sweep"


def title_of_jobs(jobs: Sequence[Job]) -> str:
    """Name the models and devices of one or several jobs."""
    if len(jobs) == 1:
        return short_title(jobs[0])
    names = list(dict.fromkeys(job.model.name for job in jobs))
    devices = list(dict.fromkeys(job.cluster.device.name for job in jobs))
    return f"{_listed(names, 'models')} on {_listed(devices, 'devices')}"


def _listed(names: Sequence[str], plural: str) -> str:
    if len(names) > MOST_NAMED:
        return f"{len(names)} {plural}"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _named(
    result: SweepResult, axes: tuple[str, ...], field: str, of_base: str, plural: str
) -> str:
    if field not in axes:
        changed = any(axis.startswith(f"{field}.") for axis in axes)
        return f"variants of {of_base}" if of_base and changed else of_base
    names = [_name(value) for value in points_of(result.plan, field)]
    if not names:
        return plural
    return _listed(names, plural)


def _name(value: Any) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else str(value)
