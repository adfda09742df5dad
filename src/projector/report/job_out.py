"""A job as a native file that every command reads."""

import textwrap
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from projector.config import resources
from projector.config.device_file import FIRST_ORDER, load_device
from projector.config.first_order_device import FirstOrderDevice, first_order_device
from projector.config.first_order_job import AnyJob
from projector.config.model_file import load_model
from projector.config.network import load_network
from projector.files import write_whole

WIDTH = 92
"""Columns of the file."""


def write_job(job: AnyJob, path: str | Path, note: str = "") -> None:
    """Write a job as a native job file; it appears whole or not at all.

    Parameters
    ----------
    job : Job
        The job. What it leaves to defaults is left out.
    path : str or Path
        The file.
    note : str
        What stands above it as a comment.
    """
    text = yaml.safe_dump(job_mapping(job), sort_keys=False, width=WIDTH)
    head = "".join(f"# {line}\n" for line in textwrap.wrap(note, WIDTH - 2))
    write_whole(Path(path), (head + text).encode(), key="job_out")


def job_mapping(job: AnyJob) -> dict[str, Any]:
    """Return the mapping of a job file; shipped models, devices and networks go by their names."""
    model_name = _name_of(resources.shipped("models"), load_model, job.model)
    cluster = {**_stated(job.cluster, {"device", "network"}), **_machines(job)}
    sections = {name: _stated(getattr(job, name)) for name in ("parallelism", "training", "run")}
    return {
        **({"name": job.name} if job.name else {}),
        "model": model_name or job.model.model_dump(mode="json", exclude_unset=True),
        **{name: fields for name, fields in sections.items() if fields},
        "cluster": cluster,
    }


def _machines(job: AnyJob) -> dict[str, Any]:
    """Return device and network of a job; the network only where it is not the usual one."""
    device = job.cluster.device
    if isinstance(device, FirstOrderDevice):
        name = _name_of(resources.shipped(FIRST_ORDER), first_order_device, device)
        return {"device": name or device.model_dump(mode="json", exclude_unset=True)}
    name = _name_of(resources.shipped("hardware"), load_device, device)
    machines = {"device": name or device.model_dump(mode="json", exclude_unset=True)}
    network = getattr(job.cluster, "network", None)
    if network is not None and network != load_network(device.network):
        machines["network"] = network.model_dump(mode="json", exclude_unset=True)
    return machines


def _stated(section: BaseModel, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields that were set, without those that were set to a default of none."""
    fields: dict[str, Any] = {}
    data = section.model_dump(mode="json", include=section.model_fields_set - set(exclude))
    for name, field in type(section).model_fields.items():
        if name not in data or (data[name] is None and field.default is None):
            continue
        value = getattr(section, name)
        fields[name] = _stated(value) if isinstance(value, BaseModel) else data[name]
    return fields


def _name_of(names: Iterable[str], load: Callable[[str], Any], wanted: Any) -> str | None:
    """Return the shipped name of something, if it has one."""
    return next((name for name in names if load(name) == wanted), None)
