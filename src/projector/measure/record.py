"""What was measured, kept as JSON: on which device, of which job, and every outcome."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from projector.config._base import Config
from projector.config.job import Job
from projector.envelope import package_version
from projector.errors import ConfigError
from projector.files import check_place, write_whole
from projector.measure.keys import OperationKey
from projector.measure.task import (
    ClockProgram,
    CopyProgram,
    Environment,
    LayerSpec,
    Outcome,
)

RECORD_SCHEMA = 1
"""Version of the layout of a record; another one is refused."""


class MeasuredOperation(Config):
    """One kernel by itself."""

    key: OperationKey
    outcome: Outcome


class MeasuredLayer(Config):
    """Forward and backward of one real layer."""

    layer: LayerSpec
    outcome: Outcome


class MeasuredStep(Config):
    """A whole step of a few layers."""

    layers: list[LayerSpec]
    optimizer: Literal["adam", "sgd"] = "adam"
    outcome: Outcome


class MeasuredOther(Config):
    """A copy, or a clock under load."""

    program: CopyProgram | ClockProgram = Field(discriminator="program")
    outcome: Outcome


class Record(Config):
    """Everything that one benchmark measured.

    A record holds for its device, its matrix type and the shapes of its model alone; `check`
    refuses any other job.
    """

    schema_version: int = RECORD_SCHEMA
    version: str = Field(default_factory=package_version)
    """Version of this package that wrote the record."""
    environment: Environment
    device: str
    """Name of the profile that the job had, which stands for the device measured."""
    precision: str
    """Training precision of the job."""
    reduction: dict[str, Any]
    """Degrees of the target and of the benchmark job, and the steps from one to the other."""
    job: dict[str, Any]
    """``model``, ``parallelism`` and ``training`` of the benchmark job, from which it is lowered
    again."""
    operations: list[MeasuredOperation] = Field(default_factory=list)
    layers: list[MeasuredLayer] = Field(default_factory=list)
    step: MeasuredStep | None = None
    others: list[MeasuredOther] = Field(default_factory=list)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON; the file appears whole or not at all.

        Raises
        ------
        ConfigError
            If the file cannot be written.
        """
        check_place(path, key="save_benchmark")
        text = json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False)
        write_whole(Path(path), f"{text}\n".encode(), key="save_benchmark")

    def check(self, job: Job) -> list[str]:
        """Refuse a job that this record does not hold for.

        Parameters
        ----------
        job : Job
            The job asked for, or its benchmark job.

        Returns
        -------
        list of str
            What differs and does not matter to the shapes: warnings for the report.

        Raises
        ------
        ConfigError
            If device, precision or model do not match.
        """
        for what, here, there in (
            ("device", self.device, job.cluster.device.name),
            ("precision", self.precision, job.training.precision),
        ):
            if here != there:
                msg = f"load_benchmark: the record has {what} {here}, the job has {there}"
                raise ConfigError(msg, key="load_benchmark", value=here, allowed=there)
        return []


def load_record(path: str | Path) -> Record:
    """Read a record.

    Raises
    ------
    ConfigError
        If the file is missing, truncated, no record, or one of another schema.
    """
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    return Record.parse(data, path=str(path))
