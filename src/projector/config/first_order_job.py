"""Jobs on devices that only the first-order model knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from projector.config._base import Config
from projector.config.device_file import is_first_order
from projector.config.first_order import FirstOrderConfig, FirstOrderDevice, first_order_device
from projector.config.job import Job, joined_notes, without_notes
from projector.config.load import job_data, load_job
from projector.config.model import ModelConfig
from projector.config.model_file import load_model, model_data
from projector.config.parallelism import ParallelismConfig
from projector.config.run import RunConfig
from projector.config.training import TrainingConfig


class FirstOrderCluster(Config):
    """First-order devices and their number."""

    device: FirstOrderDevice
    """Accelerator: a name of ``hardware/first_order``, a file, or a mapping."""

    nodes: PositiveInt = Field(default=1, le=1 << 20)
    """Hosts."""

    gpus_per_node: PositiveInt = Field(default=8, le=1024)
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


class FirstOrderJob(Config):
    """A job without compute units: only the first-order model can project it."""

    name: str = ""
    """Title of reports."""

    model: ModelConfig
    """Architecture."""

    parallelism: ParallelismConfig = ParallelismConfig()
    """How the job is split."""

    training: TrainingConfig
    """What one step does; a framework fills in nothing here."""

    cluster: FirstOrderCluster
    """Where it runs."""

    run: RunConfig = RunConfig()
    """How much is trained."""

    first_order: FirstOrderConfig = FirstOrderConfig()
    """Constants of the model."""

    notes: tuple[str, ...] = Field(default=(), exclude=True)
    """Warnings of the reader that made this job."""

    origins: Mapping[str, str] = Field(default_factory=dict, exclude=True)
    """Where settings came from that the job file does not state itself."""

    ignored: tuple[str, ...] = Field(default=(), exclude=True)
    """Settings of the file that made this job which cannot change a projection."""

    @model_validator(mode="before")
    @classmethod
    def _model_by_name(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or isinstance(data.get("model"), ModelConfig):
            return data
        return (
            {**data, "model": load_model(data["model"], key="model")} if "model" in data else data
        )

    @model_validator(mode="after")
    def _model_adds_its_notes(self) -> Self:
        self.__dict__["notes"] = joined_notes(self.notes, self.model)
        return self

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
    source: str | Path | Mapping[str, Any] | AnyJob,
    overrides: Mapping[str, Any] | None = None,
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
