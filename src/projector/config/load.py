"""Reading jobs from wherever users keep them."""

import copy
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from projector.config._base import Config
from projector.config.cluster import ClusterConfig
from projector.config.device import load_network, without_transport
from projector.config.first_order import FirstOrderConfig
from projector.config.framework import FrameworkConfig, decides_defaults, fill, names_framework
from projector.config.job import Job
from projector.config.model import MLAConfig, ModelConfig, MoEConfig
from projector.config.model_file import load_model, model_data, read_json
from projector.config.parallelism import ParallelismConfig
from projector.config.run import SWITCHED_TERMS, CheckpointConfig, EvaluationConfig, RunConfig
from projector.config.training import RecomputeConfig, TrainingConfig
from projector.config.yaml_file import beside, parse_yaml, read_text, read_yaml
from projector.errors import ConfigError

_ARGUMENT_SUFFIXES = {".sh", ".args", ".txt"}


def load_job(
    source: str | Path | Mapping[str, Any] | Job,
    overrides: Mapping[str, Any] | None = None,
) -> Job:
    """Read a training job.

    Parameters
    ----------
    source : str, Path, mapping or Job
        A native job file, a Primus experiment file, a file of Megatron-LM arguments
        (``.sh``, ``.args``, ``.txt``), a mapping with the native layout, or a job.
    overrides : mapping, optional
        Dotted field -> value, e.g. ``{"parallelism.pp": 8}``; applied last.

    Raises
    ------
    ConfigError
        For anything that does not describe a job; the message names key and remedy.
    """
    return Job.parse(job_data(source, overrides))


def job_data(
    source: str | Path | Mapping[str, Any] | Job,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what `load_job` parses: the native layout, with overrides, notes and origins.

    Raises
    ------
    ConfigError
        For anything that is no job, or a file that cannot be read.
    """
    _check_arguments(source, overrides)
    overrides = dict(overrides or {})
    if isinstance(source, Job):
        data, notes, origins = _job_data(source), source.notes, dict(source.origins)
        data["cluster"] = _cluster_data(source, data["cluster"], overrides)
    elif isinstance(source, Mapping):
        data, notes, origins = dict(source), (), {}
    else:
        data, notes, origins = _read_file(Path(source))
    for key, value in _in_turn(overrides):
        set_field(data, str(key), value)
        origins.pop(str(key), None)
    return {**data, "notes": notes, "origins": origins}


class Variants:
    """Jobs that differ from one base in some fields.

    The same as `load_job` with overrides, for many of them: no rule of the configuration but the
    defaults of frameworks looks at two sections of a job, so each section is read once for all jobs
    that have it in common.
    """

    def __init__(self, base: Job) -> None:
        """Keep the job that variants start from."""
        self._base = base
        self._data = _job_data(base)
        self._sections: dict[tuple[tuple[str, str], ...], Any] = {}
        self._frameworks: dict[tuple[tuple[str, str], ...], tuple[FrameworkConfig | None, str]] = {}

    def job(self, overrides: Mapping[str, Any]) -> Job:
        """Return the base with dotted fields replaced.

        Raises
        ------
        ConfigError
            As `load_job`.
        """
        changes: dict[str, dict[str, Any]] = {}
        for dotted, value in overrides.items():
            changes.setdefault(dotted.partition(".")[0], {})[dotted] = value
        update = {name: self._known(name, fields) for name, fields in changes.items()}
        job = self.put_together(update, overrides)
        return job.with_framework_defaults() if self.has_framework(overrides) else job

    def has_framework(self, overrides: Iterable[str] = ()) -> bool:
        """Whether the base has a framework, or variants with these dotted fields may have one."""
        return self._base.training.framework is not None or any(map(names_framework, overrides))

    def put_together(self, sections: Mapping[str, Any], overrides: Iterable[str] = ()) -> Job:
        """Return the base with whole sections replaced, of which ``overrides`` were stated."""
        stated = set(overrides)
        origins = {key: value for key, value in self._base.origins.items() if key not in stated}
        return self._base.model_copy(update={**sections, "origins": origins})

    def section(self, name: str, overrides: Mapping[str, Any]) -> Any:
        """Return one section of the base with some of its fields replaced.

        Parameters
        ----------
        name : str
            ``model``, ``parallelism``, ``training``, ``cluster``, ``run`` or ``first_order``.
        overrides : mapping
            Dotted field, from the job on -> value: of the section, and those on which the defaults
            of frameworks depend.

        Raises
        ------
        ConfigError
            As `load_job`.
        """
        own = {field: value for field, value in overrides.items() if _is_of(field, name)}
        section = self._read(name, own) if own else getattr(self._base, name)
        if name == "model" or not self.has_framework(overrides):
            return section
        return fill(name, section, *self._decided(overrides))

    def _decided(self, overrides: Mapping[str, Any]) -> tuple[FrameworkConfig | None, str]:
        """Return the framework of a variant, and the architecture that it runs on."""
        decisive = {field: value for field, value in overrides.items() if decides_defaults(field)}
        key = tuple((field, repr(value)) for field, value in decisive.items())
        if key not in self._frameworks:
            found = []
            for name in ("training", "cluster"):
                own = {field: value for field, value in decisive.items() if _is_of(field, name)}
                found.append(self._read(name, own) if own else getattr(self._base, name))
            self._frameworks[key] = found[0].framework, found[1].device.architecture
        return self._frameworks[key]

    def _read(self, name: str, overrides: Mapping[str, Any]) -> Any:
        kind = _SECTION_TYPES.get(name)
        if kind is None:
            return getattr(load_job(self._base, overrides), name)
        data: dict[str, Any] = {name: copy.copy(self._data.get(name))}
        if name == "cluster":
            data[name] = _cluster_data(self._base, data[name], overrides)
        for dotted, value in _in_turn(overrides):
            set_field(data, dotted, value)
        if name == "model":
            return load_model(data[name], key=name)
        return kind.parse(data[name] or {}, path=name)

    def _known(self, name: str, fields: dict[str, Any]) -> Any:
        key = tuple((dotted, repr(value)) for dotted, value in fields.items())
        if key not in self._sections:
            try:
                self._sections[key] = self._read(name, fields)
            except ConfigError as error:
                self._sections[key] = error
        section = self._sections[key]
        if isinstance(section, ConfigError):
            raise section
        return section


def _is_of(field: str, section: str) -> bool:
    return field.partition(".")[0] == section


def _check_arguments(source: Any, overrides: Any) -> None:
    if not isinstance(source, str | Path | Mapping | Job):
        allowed = "a file, a mapping or a job"
        msg = f"a job is {allowed}, got {source!r}"
        raise ConfigError(msg, key="config", value=source, allowed=allowed)
    if not isinstance(overrides, Mapping | None):
        msg = f"overrides are a mapping such as {{'parallelism.pp': 8}}, got {overrides!r}"
        raise ConfigError(msg, key="overrides", value=overrides, allowed="a mapping")


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``key=value`` of the command line; the value is read as YAML.

    Raises
    ------
    ConfigError
        If there is no ``=`` or no key.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        msg = f"{text!r} is not an override; write key=value, for example parallelism.tp=4"
        raise ConfigError(msg, key=text, allowed="key=value")
    return key.strip(), parse_yaml(value, name=key) if value.strip() else value


def _read_file(path: Path) -> tuple[dict[str, Any], tuple[str, ...], dict[str, str]]:
    if path.suffix in _ARGUMENT_SUFFIXES:
        from projector.config.formats.megatron import read_megatron

        return read_megatron(read_text(path), name=path.stem)
    data = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if "modules" in data:
        from projector.config.formats.primus import read_primus

        return read_primus(data, path=path)
    if "model_type" in data or "architectures" in data:
        msg = (
            f"{path} describes an architecture, not a job; name it as the model of a job: "
            f"model: {path}"
        )
        raise ConfigError(msg, key="config", value=str(path), allowed="a job file")
    return resolve_paths(data, path.parent), (), {}


def resolve_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Let a job name model and device files relative to itself."""
    resolved = dict(data)
    cluster = data.get("cluster")
    if isinstance(cluster, Mapping):
        resolved["cluster"] = {**cluster, "device": beside(cluster.get("device"), folder)}
        if cluster.get("device") is None:
            resolved["cluster"].pop("device")
    if "model" in data:
        resolved["model"] = beside(data["model"], folder)
    return resolved


def _job_data(job: Job) -> dict[str, Any]:
    """Return what a job states, so that values derived from others are derived anew."""
    data: dict[str, Any] = job.model_dump(exclude_unset=True, exclude={"cluster"})
    cluster = job.cluster.model_dump(exclude_unset=True, exclude={"device", "network"})
    data["cluster"] = {**cluster, "device": job.cluster.device, "network": job.cluster.network}
    return data


def _cluster_data(job: Job, stated: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job states of its cluster, where another device brings its own network along.

    The usual network of the device and its devices of a node are not taken for stated.
    """
    device, network = job.cluster.device, job.cluster.network
    data = dict(stated)
    other = overrides.get("cluster.device", overrides.get("cluster.gpu", device))
    if other is not device and network == load_network(device.network):
        del data["network"]
        if job.cluster.gpus_per_node == network.gpus_per_node:
            data.pop("gpus_per_node", None)
    return data


def _in_turn(overrides: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return overrides so that fields of a network follow what gives it all of them."""

    def place(item: tuple[str, Any]) -> int:
        parts = _native_names(str(item[0]))
        if parts[:2] != _NETWORK or len(parts) == 2:
            return 0
        return 1 if parts == _TRANSPORT else 2

    return sorted(overrides.items(), key=place)


_NETWORK = ("cluster", "network")
_TRANSPORT = (*_NETWORK, "transport")


def set_field(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set one dotted field, expanding what is given by name."""
    parts = _native_names(dotted)
    node = data
    for depth, part in enumerate(parts[:-1]):
        path = ".".join(parts[: depth + 1])
        child = _expand(path, node.get(part))
        if not isinstance(child, Mapping):
            msg = f"{dotted}: {path} is {child!r}, which has no field {parts[depth + 1]!r}"
            raise ConfigError(msg, key=dotted, value=value)
        aliases = _ALIASES.get(path, {})
        node[part] = {aliases.get(str(name), name): field for name, field in child.items()}
        if tuple(parts) == _TRANSPORT and path == "cluster.network":
            # It brings its own numbers along.
            node[part] = without_transport(node[part])
        node = node[part]
    node[parts[-1]] = value


@lru_cache(maxsize=1024)
def _native_names(dotted: str) -> tuple[str, ...]:
    """Split a dotted field, replacing Megatron's spellings by the names of the fields."""
    parts: list[str] = []
    for part in dotted.split("."):
        parts.append(_ALIASES.get(".".join(parts), {}).get(part.replace("-", "_"), part))
    return tuple(parts)


_ALIASES = {
    "model": ModelConfig.aliases,
    "model.mla": MLAConfig.aliases,
    "model.moe": MoEConfig.aliases,
    "parallelism": ParallelismConfig.aliases,
    "training": TrainingConfig.aliases,
    "training.recompute": RecomputeConfig.aliases,
    "cluster": ClusterConfig.aliases,
    "run": RunConfig.aliases,
    "run.evaluation": EvaluationConfig.aliases,
    "run.checkpoint": CheckpointConfig.aliases,
}
"""Other spellings of the fields of each section."""


_SECTION_TYPES: dict[str, type[Config]] = {
    "model": ModelConfig,
    "parallelism": ParallelismConfig,
    "training": TrainingConfig,
    "cluster": ClusterConfig,
    "run": RunConfig,
    "first_order": FirstOrderConfig,
}

_SHORT_FORMS = {
    "training.recompute": "granularity",
    "training.framework": "name",
    "training.optimizer": "name",
    "cluster.device": "extends",
    "cluster.network": "extends",
}
"""Sections that may be given by one word, and the field that the word sets."""

_SWITCHED = {f"run.{name}": "enabled" for name in (*SWITCHED_TERMS, "cost.owned")}
"""Sections that may be given by true or false, and the field that it sets."""


def _expand(path: str, child: Any) -> Any:
    """Return a section as a mapping, so that one of its fields can be set."""
    if child is None:
        return {}
    if path == "model":
        return model_data(child)
    if isinstance(child, BaseModel):
        return child.model_dump(exclude_unset=True)
    if isinstance(child, bool) and path in _SWITCHED:
        return {_SWITCHED[path]: child}
    if isinstance(child, str) and path in _SHORT_FORMS:
        return {_SHORT_FORMS[path]: child}
    return child
