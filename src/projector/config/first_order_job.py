"""Jobs on devices that only the first-order model knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from projector.config._base import Config
from projector.config.device_file import is_first_order
from projector.config.first_order import FirstOrderDevice, first_order_device
from projector.config.job import Job, JobSections, without_notes
from projector.config.load import job_data, load_job
from projector.config.model_file import model_data


class FirstOrderCluster(Config):
    """First-order devices and their number."""

    device: FirstOrderDevice
    """Accelerator: a name of ``hardware/first_order``, a file, or a mapping."""
    nodes: int = Field(default=1, gt=0, le=1 << 20)
    gpus_per_node: int = Field(default=8, gt=0, le=1024)
    """Devices of one host; left out, the device's."""
    aliases: ClassVar = {"gpu": "device", "nnodes": "nodes", "num_nodes": "nodes"}

    @model_validator(mode="before")
    @classmethod
    def _fill_from_device(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "device" not in data:
            return data
        device = first_order_device(data["device"], key="device")
        filled = {**data, "device": device}
        filled.setdefault("gpus_per_node", device.devices_per_node)
        return filled

    @property
    def gpus(self) -> int:
        """Devices of the whole cluster."""
        return self.nodes * self.gpus_per_node


class FirstOrderJob(JobSections):
    """A job without compute units, in which a framework fills in nothing.

    Only the first-order model can project it.
    """

    cluster: FirstOrderCluster

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Read a job from the native layout; fields of an ordinary cluster have no meaning here."""
        cluster = dict(data["cluster"])
        cluster.setdefault("device", cluster.pop("gpu", None))
        ignored = sorted(cluster.keys() - FirstOrderCluster.model_fields.keys() - _SPELLINGS)
        kept = {name: value for name, value in cluster.items() if name not in ignored}
        notes = [
            f"cluster.{name} has no meaning for a first-order device and is not used"
            for name in ignored
        ]
        return cls.parse({**data, "cluster": kept, "notes": (*data.get("notes", ()), *notes)})


_SPELLINGS = FirstOrderCluster.aliases.keys()

AnyJob = Job | FirstOrderJob
"""What the first-order model projects."""


def load_first_order_job(
    source: str | Path | Mapping[str, Any] | AnyJob, overrides: Mapping[str, Any] | None = None
) -> AnyJob:
    """Read a job on a device of either kind; arguments are those of `load_job`."""
    notes: tuple[str, ...] = ()
    if isinstance(source, FirstOrderJob):
        if not overrides:
            return source
        notes = without_notes(source.notes, source.model)
        data = source.model_dump(exclude_unset=True, exclude={"cluster", "model"})
        data["model"] = model_data(source.model)
        machines = source.cluster.model_dump(exclude_unset=True, exclude={"device"})
        source = {**data, "cluster": {**machines, "device": source.cluster.device}}
    elif isinstance(source, Job) and not overrides:
        return source
    data = job_data(source, overrides)
    data["notes"] = (*notes, *data["notes"])
    cluster = data.get("cluster")
    if not isinstance(cluster, Mapping):
        return load_job(source, overrides)
    device = cluster.get("device", cluster.get("gpu"))
    if isinstance(device, FirstOrderDevice) or is_first_order(device, "cluster.device"):
        return FirstOrderJob.of(data)
    return Job.parse(data)
