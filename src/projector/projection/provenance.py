"""Where a projection's inputs came from: stated, derived, or filled in by default."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel

from projector.config.job import Job
from projector.lower.jobs import data_parallel

SCHEMA_VERSION = 1

UNCERTAINTY = {
    "relative": None,
    "basis": "not yet estimated: no band has been fitted to published measurements",
}


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where settings that the job does not state came from, and what could not be taken over."""

    defaults: dict[str, Any]
    """Dotted field -> the default that was filled in."""
    derived: dict[str, str]
    """Dotted field -> the value and where it came from."""
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the names of the attributes, warnings apart."""
        return {"defaults": self.defaults, "derived": self.derived}


def provenance_of(job: Job) -> Provenance:
    """Collect what was filled in for one job."""
    split = job.parallelism
    derived = dict(job.origins)
    derived.setdefault("parallelism.dp", f"{data_parallel(job)} (cluster / (tp * pp * cp))")
    if split.etp is None and job.model.moe is not None:
        derived.setdefault("parallelism.etp", f"{split.tp} (tp)")
    if split.sequence_parallel is None and split.tp > 1:
        derived.setdefault("parallelism.sequence_parallel", "true (tp > 1)")
    derived.setdefault("cluster.network", job.cluster.network.name)
    defaults: dict[str, Any] = {}
    for section in ("parallelism", "training", "cluster"):
        _collect(getattr(job, section), section, defaults, derived)
    return Provenance(defaults, derived, (*job.notes, *_warnings(job)))


def _warnings(job: Job) -> list[str]:
    """Name what is projected as asked, but that a real framework would refuse or change."""
    split, layers = job.parallelism, job.model.num_layers
    placed = (
        split.pipeline_model_parallel_layout,
        split.decoder_first_pipeline_num_layers,
        split.decoder_last_pipeline_num_layers,
    )
    counted = (
        split.account_for_embedding_in_pipeline_split + split.account_for_loss_in_pipeline_split
    )
    stages = split.pp * split.vpp
    if (layers + counted) % stages and all(value is None for value in placed):
        text = (
            f"{layers} layers do not divide into {stages} pipeline stages; the first ones take one "
            f"more, where Megatron-LM asks for a layout"
        )
        return [text]
    return []


def envelope(provenance: Provenance) -> dict[str, Any]:
    """Return the keys that every JSON object of a projection carries."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": package_version(),
        "warnings": list(provenance.warnings),
        "uncertainty": dict(UNCERTAINTY),
    }


def package_version() -> str:
    """Return the installed version of the package."""
    try:
        return version("projector")
    except PackageNotFoundError:
        return "unknown"


def _collect(
    section: BaseModel, path: str, defaults: dict[str, Any], derived: dict[str, str]
) -> None:
    for name, field in type(section).model_fields.items():
        dotted = f"{path}.{name}"
        value = getattr(section, name)
        if dotted in derived or dotted in {"cluster.device", "cluster.network"}:
            continue
        if isinstance(value, BaseModel) and name in section.model_fields_set:
            _collect(value, dotted, defaults, derived)
        elif name not in section.model_fields_set and value is not None:
            shown = value.model_dump() if isinstance(value, BaseModel) else value
            if value == field.get_default():
                defaults[dotted] = shown
