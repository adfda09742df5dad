"""Reading jobs from wherever users keep them."""

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from projector.config.adapter import adapter_data
from projector.config.formats.detect import ORIGIN, carried_fields, read_job_text
from projector.config.formats.read_job import ReadJob
from projector.config.framework import FrameworkConfig, decides_defaults, fill, names_framework
from projector.config.job import SECTIONS, Job
from projector.config.left_open import decides_chunks, fit_chunks, least_nodes, states_chunks
from projector.config.model import settled
from projector.config.model_file import load_model, model_data
from projector.config.names import aliases_of, in_full, native_names
from projector.config.network import load_network, renamed
from projector.config.run import SWITCHED_TERMS
from projector.config.yaml_file import beside, check_nesting, parse_yaml, read_text
from projector.errors import ConfigError, shown
from projector.units import unwrapped


def load_job(
    source: str | Path | Mapping[str, Any] | Job, overrides: Mapping[str, Any] | None = None
) -> Job:
    """Read a training job.

    Args:
        source (str, Path, mapping or Job): A native job file, a file of another tool
            (docs/formats.md lists them), a mapping with the native layout, or a job.
        overrides (mapping, optional): Dotted field -> value, e.g. ``{"parallelism.pp": 8}``, or its
            last part where that is clear: ``{"pp": 8}``; applied last.

    Raises:
        ConfigError: For anything that does not describe a job; the message names key and remedy.
    """
    return Job.parse(job_data(source, overrides))


def job_data(
    source: str | Path | Mapping[str, Any] | Job, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what `load_job` parses: the native layout, with overrides, notes and origins."""
    if not isinstance(source, str | Path | Mapping | Job):
        allowed = "a file, a mapping or a job"
        msg = f"a job is {allowed}, got {shown(source)}"
        raise ConfigError(msg, key="config", value=source, allowed=allowed)
    if not isinstance(overrides, Mapping | None):
        msg = f"overrides are a mapping such as {{'parallelism.pp': 8}}, got {overrides!r}"
        raise ConfigError(msg, key="overrides", value=overrides, allowed="a mapping")
    overrides = {key: unwrapped(value) for key, value in (overrides or {}).items()}
    check_nesting(overrides, name="the overrides")
    overrides = in_full(overrides)
    if isinstance(source, Job):
        read = ReadJob(_job_data(source), source.own_notes, source.origins, source.ignored)
        read.data["cluster"] = _cluster_data(source, read.data["cluster"], overrides)
    elif isinstance(source, Mapping):
        check_nesting(source, name="the job")
        read = ReadJob(dict(source))
    else:
        read = _read_file(Path(source))
    data, origins = read.data, dict(read.origins)
    for key, value in _in_turn(overrides):
        set_field(data, str(key), value)
        for field in [each for each in origins if f"{each}.".startswith(f"{key}.")]:
            del origins[field]
    stated = [native_names(str(key)) for key in overrides]
    notes = [*read.notes]
    if read.least_nodes and not _is_given(data, "cluster.nodes"):
        notes += least_nodes(data, origins)
    derived = dict(read.derive(data)) if read.derive is not None else {}
    notes += derived.pop("notes", ((), ""))[0]
    for field, (value, origin) in derived.items():
        # Whether a field is there, also where it is null: nothing is derived then.
        section, _, name = field.rpartition(".")
        owner = _section(data, section)
        if not (owner is None or name in owner):
            set_field(data, field, value)
            origins[field] = origin
    notes += fit_chunks(data, origins, stated)
    _check_nothing_is_missing(data, read.missing)
    return {**data, "notes": tuple(notes), "origins": origins, "ignored": read.ignored}


def _check_nothing_is_missing(data: Mapping[str, Any], missing: Mapping[str, ConfigError]) -> None:
    """Raise the error of the first field that nothing gives; it names the others as well."""
    left = [field for field in missing if not _is_given(data, field)]
    if not left:
        return
    first, others = missing[left[0]], left[1:]
    if not others:
        raise first
    msg = f"{first.message}; also to be given: {', '.join(others)}"
    raise type(first)(msg, key=first.key, value=first.value, allowed=first.allowed)


def _section(data: Mapping[str, Any], dotted: str) -> Mapping[str, Any] | None:
    """Return a section, empty where it is left out, None where it is no mapping."""
    owner: Any = data
    for name in filter(None, dotted.split(".")):
        owner = owner.get(name, {})
        if not isinstance(owner, Mapping):
            return None
    section: Mapping[str, Any] = owner
    return section


def _is_given(data: Mapping[str, Any], dotted: str) -> bool:
    first, _, rest = dotted.partition(".")
    value = data.get(first)
    if not rest:
        return value is not None
    if first == "model" and isinstance(value, str):
        return True  # a name brings all fields along
    return isinstance(value, Mapping) and _is_given(value, rest)


_Decided = tuple[FrameworkConfig | None, str]
"""A framework, and the architecture that it runs on."""


class _Chunks(NamedTuple):
    """What `fit_chunks` changes of a job."""

    fields: dict[str, Any]
    """Dotted field -> value."""
    origins: dict[str, str]
    notes: list[str]


class Variants:
    """Jobs that differ from one base in some fields.

    The same as `load_job` with overrides, for many of them: no rule of the configuration but the
    defaults of frameworks and the chunks of schedules looks at two sections of a job, so each
    section is read once for all jobs that have it in common.
    """

    def __init__(self, base: Job) -> None:
        self._base = base
        self._data = _job_data(base)
        self._sections: dict[tuple[tuple[str, str], ...], Any] = {}
        self._frameworks: dict[tuple[tuple[str, str], ...], tuple[_Decided, tuple[Any, ...]]] = {}

    def job(self, overrides: Mapping[str, Any]) -> Job:
        """Return the base with dotted fields replaced."""
        changes: dict[str, dict[str, Any]] = {}
        chunks = self._chunks(overrides)
        for dotted, value in {**overrides, **chunks.fields}.items():
            changes.setdefault(dotted.partition(".")[0], {})[dotted] = value
        update = {name: self._known(name, fields) for name, fields in changes.items()}
        job = self.put_together(update, overrides)
        if chunks.fields:
            origins = {**job.origins, **chunks.origins}
            job = job.model_copy(update={"origins": origins, "notes": (*job.notes, *chunks.notes)})
        return job.with_framework_defaults() if self.has_framework(overrides) else job

    def has_framework(self, overrides: Iterable[str] = ()) -> bool:
        """Whether the base has a framework, or variants with these dotted fields may have one."""
        return self._base.training.framework is not None or any(map(names_framework, overrides))

    def put_together(self, sections: Mapping[str, Any], overrides: Iterable[str] = ()) -> Job:
        """Return the base with whole sections replaced, of which ``overrides`` were stated."""
        stated = set(overrides)
        origins = {key: value for key, value in self._base.origins.items() if key not in stated}
        notes = (*self._base.own_notes, *sections.get("model", self._base.model).notes)
        return self._base.model_copy(update={**sections, "origins": origins, "notes": notes})

    def section(self, name: str, overrides: Mapping[str, Any]) -> Any:
        """Return one section of the base, by its name, with some of its fields replaced.

        ``overrides`` are dotted from the job on: of the section, those on which the defaults of
        frameworks depend, and of ``parallelism`` the schedule.
        """
        own = {field: value for field, value in overrides.items() if _is_of(field, name)}
        if name == "parallelism":
            own |= self._chunks(overrides).fields
        section = self._read(name, own) if own else getattr(self._base, name)
        if name == "model" or not self.has_framework(overrides):
            return section
        return fill(name, section, *self._decided(overrides))

    def _chunks(self, overrides: Mapping[str, Any]) -> "_Chunks":
        if any(map(states_chunks, overrides)):
            return _Chunks({}, {}, [])
        data: dict[str, Any] = {
            "training": {"schedule": self._base.training.schedule},
            "parallelism": {**(self._data.get("parallelism") or {})},
        }
        for dotted, value in overrides.items():
            if decides_chunks(dotted) or native_names(dotted) == ("parallelism", "pp"):
                set_field(data, dotted, value)
        origins: dict[str, str] = {}
        notes = fit_chunks(data, origins, map(native_names, overrides))
        fields = {field: data["parallelism"][field.partition(".")[2]] for field in origins}
        return _Chunks(fields, origins, notes)

    def _decided(self, overrides: Mapping[str, Any]) -> _Decided:
        """Return the framework of a variant, and the architecture that it runs on."""
        decisive = {field: value for field, value in overrides.items() if decides_defaults(field)}
        key = tuple((field, _identity(value)) for field, value in decisive.items())
        if key not in self._frameworks:
            found = []
            for name in ("training", "cluster"):
                own = {field: value for field, value in decisive.items() if _is_of(field, name)}
                found.append(self._read(name, own) if own else getattr(self._base, name))
            # Devices are kept: their identity must not pass to others.
            decided = found[0].framework, found[1].device.architecture
            self._frameworks[key] = decided, tuple(decisive.values())
        return self._frameworks[key][0]

    def _read(self, name: str, overrides: Mapping[str, Any]) -> Any:
        kind = _SECTION_TYPES.get(name)
        if kind is None:
            return getattr(load_job(self._base, overrides), name)
        named = {native_names(dotted): value for dotted, value in overrides.items()}
        if name in _PLAIN and all(len(parts) == 2 for parts in named):
            # What setting one after another comes to.
            fields = {parts[1]: value for parts, value in named.items()}
            return kind.parse({**(self._data.get(name) or {}), **fields}, path=name)
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


def _identity(value: Any) -> str:
    """Return a text that equal values share; of a section, which is long, its identity."""
    return f"at {id(value)}" if isinstance(value, BaseModel) else repr(value)


def _is_of(field: str, section: str) -> bool:
    return field.partition(".")[0] == section


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``key=value`` of the command line; the value is read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        msg = f"{text!r} is not an override; write key=value, for example parallelism.tp=4"
        raise ConfigError(msg, key=text, allowed="key=value")
    return key.strip(), parse_yaml(value, name=key) if value.strip() else value


def _read_file(path: Path) -> ReadJob:
    # Once: a pipe has nothing left for a second reader.
    text = read_text(path)
    read = read_job_text(text, path)
    if not isinstance(read, ReadJob):
        return ReadJob(resolve_paths(read, path.parent))
    carried = carried_fields(text, path)
    for key, value in _in_turn(carried):
        set_field(read.data, key, value)
    return read._replace(origins={**read.origins, **dict.fromkeys(carried, ORIGIN)})


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
    training = data.get("training")
    if isinstance(training, Mapping) and "adapter" in training:
        resolved["training"] = {**training, "adapter": beside(training["adapter"], folder)}
    return resolved


def _job_data(job: Job) -> dict[str, Any]:
    """Return what a job states, so that values derived from others are derived anew."""
    data: dict[str, Any] = job.model_dump(exclude_unset=True, exclude={"cluster", "model"})
    data["model"] = model_data(job.model)
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
        parts = native_names(str(item[0]))
        if parts[:2] != _NETWORK or len(parts) == 2:
            return 0
        return 1 + (_BRINGING.index(parts) if parts in _BRINGING else len(_BRINGING))

    return sorted(overrides.items(), key=place)


_NETWORK = ("cluster", "network")
_BRINGING = ((*_NETWORK, "transport"), (*_NETWORK, "exchange_proxy"))
"""Fields that bring numbers of their own along, the outer one first."""


def set_field(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set one dotted field, expanding what is given by name."""
    parts = native_names(dotted)
    node = data
    for depth, part in enumerate(parts[:-1]):
        path = ".".join(parts[: depth + 1])
        child = expanded(path, node.get(part))
        if not isinstance(child, Mapping):
            msg = f"{dotted}: {path} is {child!r}, which has no field {parts[depth + 1]!r}"
            raise ConfigError(msg, key=dotted, value=value)
        aliases = aliases_of(path)
        node[part] = {aliases.get(str(name), name): field for name, field in child.items()}
        if tuple(parts) in _BRINGING and path == "cluster.network":
            node[part] = renamed(node[part], {parts[-1]: value})
        node = node[part]
    node[parts[-1]] = value
    model = data.get("model")
    if parts[0] == "model" and isinstance(model, dict) and "notes" in model:
        model["notes"] = settled(model["notes"], ".".join(parts[1:]))


_SECTION_TYPES: dict[str, Any] = {
    name: field.annotation for name, field in Job.model_fields.items() if name in SECTIONS
}

_PLAIN = ("parallelism", "training")
"""Sections whose own fields are set as they are given."""

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


def expanded(path: str, child: Any) -> Any:
    """Return a section as a mapping in which ``child`` can be set; ``path`` is its dotted field."""
    if child is None:
        return {}
    if path == "model":
        return model_data(child)
    if path == "training.adapter":
        child = adapter_data(child)
    if isinstance(child, BaseModel):
        return child.model_dump(exclude_unset=True)
    if isinstance(child, bool) and path in _SWITCHED:
        return {_SWITCHED[path]: child}
    if isinstance(child, str) and path in _SHORT_FORMS:
        # A field that is set changes nothing but itself.
        alone = {"scales": False} if path == "cluster.device" else {}
        return {_SHORT_FORMS[path]: child, **alone}
    return child
