"""One training job: model, parallelism, training and cluster."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from projector.config._base import Config
from projector.config.cluster import ClusterConfig
from projector.config.first_order import FirstOrderConfig
from projector.config.framework import SECTIONS as _OF_FRAMEWORKS
from projector.config.framework import fill
from projector.config.model import ModelConfig
from projector.config.model_file import load_model
from projector.config.parallelism import ParallelismConfig
from projector.config.run import RunConfig
from projector.config.training import TrainingConfig
from projector.envelope import flatten
from projector.frames import Frame

SECTIONS = ("model", "parallelism", "training", "cluster", "run", "first_order")
"""Of all but the model a file may state nothing but the name."""


_NUMBERS_OF_MACHINES = {"cluster": {"device", "network"}}


class JobSections(Config, Frame):
    """What a job says on devices of either kind, with compute units or without."""

    name: str = ""
    """Title of reports."""
    model: ModelConfig
    """Architecture: a name from ``models/``, a file, or a mapping."""
    parallelism: ParallelismConfig = ParallelismConfig()
    """How the job is split."""
    training: TrainingConfig
    """What one step does."""
    cluster: Config
    """Where it runs."""
    run: RunConfig = RunConfig()
    """How much is trained, and what a whole run takes beside its steps."""
    first_order: FirstOrderConfig = FirstOrderConfig()
    """Constants of the first-order model, which nothing else reads."""
    notes: tuple[str, ...] = Field(default=(), exclude=True)
    """Warnings of the readers that made this job and its model: what they could not take over."""
    origins: Mapping[str, str] = Field(default_factory=dict, exclude=True)
    """Where settings came from that the job file does not state itself, by dotted field."""
    ignored: tuple[str, ...] = Field(default=(), exclude=True)
    """Settings of the file that made this job which cannot change a projection."""

    @property
    def records(self) -> list[dict[str, Any]]:
        """What the job states, a row each field."""
        stated = self.model_dump(mode="json", exclude_unset=True, exclude=_NUMBERS_OF_MACHINES)
        return [{"field": name, "value": str(value)} for name, value in flatten(stated).items()]

    @field_validator("model", mode="before")
    @classmethod
    def _model_by_name(cls, value: Any) -> Any:
        return value if isinstance(value, ModelConfig) else load_model(value, key="")

    @model_validator(mode="after")
    def _model_adds_its_notes(self) -> Self:
        self.__dict__["notes"] = tuple(dict.fromkeys((*self.notes, *self.model.notes)))
        return self


class Job(JobSections):
    """Everything one projection depends on; nothing else changes its result."""

    cluster: ClusterConfig

    def __repr__(self) -> str:
        split, training = self.parallelism, self.training
        return (
            f"Job({self.model.name} on {self.cluster.gpus} x {self.cluster.device.name}, "
            f"tp={split.tp} pp={split.pp} vpp={split.vpp} cp={split.cp} ep={split.ep}, "
            f"mbs={training.micro_batch_size} gbs={training.global_batch_size} "
            f"seq={training.seq_length} {training.precision})"
        )

    @model_validator(mode="before")
    @classmethod
    def _sections_are_mappings(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            empty = {name for name in SECTIONS[1:] if name in data and data[name] is None}
            return {**data, **{name: {} for name in empty}}
        return data

    @model_validator(mode="after")
    def _framework_sets_defaults(self) -> Self:
        # Fields stay unset: a job that is made of this one derives them anew.
        self.__dict__.update(self.with_framework_defaults().__dict__)
        return self

    @property
    def ranks(self) -> int:
        """Data-parallel ranks; at least one, also where the degrees do not divide the devices."""
        split = self.parallelism
        return max(1, self.cluster.gpus // (split.tp * split.pp * split.cp))

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Notes without those of the model, which another model does not share."""
        return without_notes(self.notes, self.model)

    def with_framework_defaults(self) -> Self:
        """Return the job with the defaults of its framework in all fields that it leaves out."""
        decided = self.training.framework, self.cluster.device.architecture
        filled = {name: fill(name, getattr(self, name), *decided) for name in _OF_FRAMEWORKS}
        changed = {name: new for name, new in filled.items() if new is not getattr(self, name)}
        if not changed:
            return self
        fields_set = set(self.model_fields_set)
        job = self.model_copy(update=changed)
        job.__pydantic_fields_set__.intersection_update(fields_set)
        return job


def without_notes(notes: Iterable[str], model: ModelConfig) -> tuple[str, ...]:
    """Return the notes of a job without those of its model."""
    return tuple(note for note in notes if note not in model.notes)
