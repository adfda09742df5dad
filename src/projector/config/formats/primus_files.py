"""Files of Primus: experiments and presets that extend others, where presets lie, and hardware."""

import difflib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from projector.config import resources
from projector.config._base import Config
from projector.config.device import Device
from projector.config.formats.megatron_settings.fields import MEGATRON_DEFAULTS
from projector.config.model_file import model_data
from projector.config.network import Network
from projector.config.yaml_file import beside, parse_yaml, read_yaml
from projector.errors import ConfigError, shown
from projector.files import is_file

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)(?::-?([^{}]*))?\}")
_MOST_FILES = 256
"""Files that an experiment may lead to; Primus' own lead to a dozen."""

_EXTENDS = ("extends", "bases", "includes")
"""Keys by which a file starts from others: later ones outrank earlier ones, the file them all."""


class Surroundings:
    """What a file is read with: the environment, and what has been noticed."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ = os.environ if environ is None else environ
        self.used: dict[str, str] = {}
        """Setting -> the variable that gave it."""
        self.warnings: list[str] = []
        """What was left out."""
        self.files = 0
        """Files that were read, each as often as it was."""

    def enter(self, file: Path, above: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return the chain of files down to one that is read next."""
        here = file.resolve()
        if here in above:
            circle = " -> ".join(path.name for path in (*above[above.index(here) :], here))
            msg = f"{file}: 'extends' goes in a circle: {circle}"
            raise ConfigError(msg, key="extends", value=str(file), allowed="a chain of files")
        self.files += 1
        if self.files > _MOST_FILES:
            msg = f"{file}: 'extends' leads to more than {_MOST_FILES} files"
            raise ConfigError(msg, key="extends", value=str(file), allowed="fewer files")
        return (*above, here)

    def substitute(self, value: Any, name: str) -> Any:
        """Fill in ``${VAR:default}``; the result has the type that YAML gives its text."""
        if isinstance(value, list):
            return [self.substitute(item, name) for item in value]
        if isinstance(value, Mapping):
            return {key: self.substitute(item, f"{name}.{key}") for key, item in value.items()}
        if not isinstance(value, str) or "${" not in value:
            return value
        text = _PLACEHOLDER.sub(lambda match: self._fill(match, value, name), value)
        if "${" in text:
            msg = f"{name}: {shown(value)} is not of the form ${{VARIABLE:default}}"
            raise ConfigError(msg, key=name, value=value, allowed="${VARIABLE:default}")
        try:
            return parse_yaml(text, name=name)
        except ConfigError:
            return text

    def _fill(self, match: re.Match[str], value: str, name: str) -> str:
        variable, default = match[1], match[2]
        if self.environ.get(variable):
            self.used[name] = variable
            return self.environ[variable]
        if default is None:
            msg = f"{name} needs the environment variable {variable}, which is not set"
            raise ConfigError(msg, key=name, value=value, allowed=f"${{{variable}:default}}")
        return default


def whole_experiment(
    given: Mapping[str, Any], path: Path, around: Surroundings, above: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """Return an experiment with the files that it extends; mappings are merged key by key."""
    above, data = around.enter(path, above), dict(given)
    merged: dict[str, Any] = {}
    for parent in _parents(data, path):
        file = path.parent / parent
        inherited = read_yaml(file, key="extends")
        merged = _deep(merged, whole_experiment(inherited, file, around, above))
    return _deep(merged, data)


def _parents(data: dict[str, Any], path: Path) -> list[str]:
    """Take the names of the files that a file starts from out of what it says."""
    parents: list[str] = []
    for key in _EXTENDS:
        given = data.pop(key, None) or []
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            msg = f"{path.name}: {key} should list the names of files (got {shown(given)})"
            raise ConfigError(msg, key=key, value=given, allowed="names of files")
        parents += names
    return parents


def _deep(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        known = merged.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[key] = _deep(known, value) if both else value  # type: ignore[arg-type]
    return merged


def preset_file(name: str, kind: str, experiment: Path, framework: str = "megatron") -> Path | None:
    """Return the file of a preset that an experiment names, None where it is not at hand.

    The name may have a folder; the kind is ``models`` or ``modules``. Presets lie beside the
    experiment, in a folder of that kind beside it, or in a checkout above it.
    """
    own = {experiment.resolve(), *resources.index("models").values()}
    for candidate in _candidates(name, kind, experiment, framework):
        if is_file(candidate) and candidate.resolve() not in own:
            return candidate
    return None


def _candidates(name: str, kind: str, experiment: Path, framework: str) -> Iterator[Path]:
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    folder = experiment.parent
    yield from (folder / file, folder / file.name, folder / kind / file.name)
    for parent in experiment.absolute().parents:
        presets = parent / "primus" / "configs" / kind / framework
        yield from (presets / file, presets / file.name)


def preset_settings(
    file: Path, around: Surroundings, above: tuple[Path, ...] = ()
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return what a preset and what it extends set, over a shipped architecture if not None.

    That architecture stands for a preset which is not at hand. Without one the settings describe
    all of the model.
    """
    above = around.enter(file, above)
    data = read_yaml(file, key="model")
    base: dict[str, Any] | None = None
    settings: dict[str, Any] = {}
    for parent in _parents(data, file):
        beside = file.parent / parent
        stem = Path(parent).name.removesuffix(".yaml")
        if is_file(beside):
            found, inherited = preset_settings(beside, around, above)
            base = found or base
            settings |= inherited
        elif stem in BASES:
            settings |= BASES[stem]
        elif is_shipped(stem):
            base = model_data(stem)
            settings |= {**preset(stem).run, **preset(stem).model}
        elif stem != "module_base":
            around.warnings.append(f"{file.name}: preset {parent} was not found and was left out")
    settings |= {name: around.substitute(value, name) for name, value in data.items()}
    return base, settings


def is_shipped(name: str) -> bool:
    """Whether an architecture of this name is shipped."""
    return resources.normalise(name) in resources.index("models")


# What presets set, by Megatron's settings. Where the files are at hand, they are read instead.

_TABLE = resources.settings_of("primus")


def _settings(parts: Iterable[str | Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings that are listed in parts; a name is one of the groups."""
    found: dict[str, Any] = {}
    for part in parts:
        found |= _settings(_TABLE["groups"][part]) if isinstance(part, str) else part
    return found


PRIMUS_DEFAULTS = {**MEGATRON_DEFAULTS, **_TABLE["defaults"]}
"""What every trainer and model starts from (``trainer_base.yaml``, ``language_model.yaml``)."""

BASES = {name: _settings(parts) for name, parts in _TABLE["bases"].items()}
"""Presets that a model file may start from where their files are not at hand."""


class Preset(NamedTuple):
    """How a preset differs from the shipped architecture of its name."""

    model: Mapping[str, Any] = MappingProxyType({})
    """Settings that make another architecture of it, as it was published."""
    run: Mapping[str, Any] = MappingProxyType({})
    """Settings of the run that come with it."""


@cache
def _presets() -> dict[str, Preset]:
    return {
        resources.normalise(name): Preset(**{part: _settings(row[part]) for part in row})
        for name, row in _TABLE["presets"].items()
    }


def preset(name: str) -> Preset:
    """Return how the preset of a name differs from the shipped architecture of that name."""
    return _presets().get(resources.normalise(name), Preset())


def trainer(config: str) -> dict[str, Any]:
    """Return what a trainer's file sets of a step; that of pre-training for an unknown name."""
    known: Mapping[str, dict[str, Any]] = _TABLE["trainers"]
    return known.get(config.removesuffix(".yaml"), known["pre_trainer"])


# ``--hardware-config`` files, and partial devices and networks of our own.

_SCALED: Mapping[str, Mapping[str, float]] = _TABLE["scaled"]
"""Primus key -> our fields and the factor to their unit."""

_COUNTS: Mapping[str, list[str]] = _TABLE["counts"]
_SPELLED: Mapping[str, Mapping[str, float]] = _TABLE["spelled"]
_REFUSED: Mapping[str, str] = _TABLE["refused"]
_KEYS = [*_SCALED, *_COUNTS, *_SPELLED, *_TABLE["special"].split()]


def read_hardware_config(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """Read a hardware file as dotted overrides of a job, and warnings.

    It has Primus' own keys (top level ``hardware_config``), a partial ``device`` and a partial
    ``network``; the last two outrank the first. An override is such as
    ``cluster.network.nic_gbit_per_s``.
    """
    data = read_yaml(path, key="hardware_config")
    body = data.pop("hardware_config", None)
    if body is None and data.keys() & {*_KEYS, *_REFUSED}:
        body, data = data, {}
    if not isinstance(body, Mapping | None):
        msg = f"hardware_config should be a mapping of keys to numbers (got {body!r})"
        raise ConfigError(msg, key="hardware_config", value=body, allowed="a mapping")
    allowed = ["hardware_config", "device", "network"]
    if (body is None and not data) or data.keys() - {*allowed}:
        msg = f"{path} should have {', '.join(allowed)} at its top level, and nothing else"
        raise ConfigError(msg, key="hardware_config", value=[*map(str, data)], allowed=allowed)
    overrides, warnings = _primus({str(key): item for key, item in (body or {}).items()})
    for section, owner in (("device", Device), ("network", Network)):
        if section in data:
            overrides |= _partial(beside(data[section], Path(path).parent), section, owner)
    return overrides, warnings


def _primus(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    body, overrides, warnings = _as_primus_spells(given), dict[str, Any](), list[str]()
    for key, value in body.items():
        if key in _SCALED:
            number = _number(key, value)
            overrides |= {field: number * factor for field, factor in _SCALED[key].items()}
        elif key in _COUNTS:
            overrides |= dict.fromkeys(_COUNTS[key], _count(key, value))
    _scale_up(body, overrides, warnings)
    _pods(body, overrides, warnings)
    _exchanges(body, overrides)
    for field, parts in _TABLE["sums"].items():
        if body.keys() & {*parts}:
            known = {**_TABLE["hardware_defaults"], **body}
            overrides[field] = sum(_number(key, known[key]) for key in parts if key in known)
    return overrides, warnings


def _as_primus_spells(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stated, by one name each; raises for a key that moves nothing."""
    body = {key: value for key, value in given.items() if value is not None}
    for key in [*body]:
        if key in _REFUSED:
            raise _refusal(body, key, f"{key} is not read: {_REFUSED[key]}", _REFUSED[key])
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise _refusal(body, key, f"unknown hardware key {key!r}{hint}", close or sorted(_KEYS))
        for other, factor in _SPELLED.get(key, {}).items():
            if other in body:
                raise _refusal(body, key, f"{key} and {other} say the same; write one", other)
            body[other] = _number(key, body.pop(key)) * factor
    return body


def _refusal(body: Mapping[str, Any], key: str, message: str, allowed: Any) -> ConfigError:
    return ConfigError(message, key=key, value=body[key], allowed=allowed)


def _scale_up(body: Mapping[str, Any], overrides: dict[str, Any], warnings: list[str]) -> None:
    """Set the fabric of a node: one link for each pair in a mesh, all of it behind a switch."""
    topology = body.get("node_topology")
    if topology not in (None, "mesh", "switch"):
        msg = f"node_topology should be mesh or switch (got {topology!r})"
        raise ConfigError(msg, key="node_topology", value=topology, allowed=["mesh", "switch"])
    if body.get("node_bw") is None:
        if topology is not None:
            raise _refusal(body, "node_topology", "node_topology needs node_bw", "node_bw as well")
        return
    bandwidth = _number("node_bw", body["node_bw"])
    peers = 1
    if topology == "mesh":
        peers = max(1, _count("node_size", body.get("node_size") or 8) - 1)
    elif topology is None:
        warnings.append("node_topology is missing; a switch was assumed, as Primus does")
    overrides["cluster.device.scale_up_gb_per_s"] = bandwidth
    overrides["cluster.device.scale_up_peer_gb_per_s"] = bandwidth / peers


def _stated(body: Mapping[str, Any], key: str) -> float:
    """Return a number that another key is measured by; Primus' default where it is left out."""
    return _number(key, body.get(key, _TABLE["hardware_defaults"][key]))


def _pods(body: Mapping[str, Any], overrides: dict[str, Any], warnings: list[str]) -> None:
    """Set what lies beyond a pod, where Primus takes the cluster's links for a whole group."""
    network = "cluster.network"
    if body.get("pod_size") is None:
        for key in {"cluster_bw", "cluster_lat"} & body.keys():
            message = f"{key} needs pod_size: without it one pod is all"
            raise _refusal(body, key, message, "pod_size as well")
        return
    gpus, node = _count("pod_size", body["pod_size"]), int(_stated(body, "node_size"))
    if gpus % node:
        whole = max(1, gpus // node) * node
        warnings.append(f"pod_size {gpus} is no multiple of {node} GPUs: {whole} were assumed")
    overrides[f"{network}.pod_nodes"] = max(1, gpus // node)
    if body.get("cluster_bw") is not None:
        taper = _stated(body, "pod_bw") / _number("cluster_bw", body["cluster_bw"])
        if taper < 1.0:
            warnings.append("cluster_bw exceeds pod_bw, the rate of an adapter, which binds")
        overrides[f"{network}.pod_oversubscription"] = max(1.0, taper)
    if body.get("cluster_lat") is not None:
        hop = _number("cluster_lat", body["cluster_lat"]) - _stated(body, "pod_lat")
        if hop < 0.0:
            warnings.append("cluster_lat is below pod_lat, which every hop takes")
        overrides[f"{network}.spine_latency_us"] = max(0.0, hop)


def _exchanges(body: Mapping[str, Any], overrides: dict[str, Any]) -> None:
    """Set what an exchange pays for each remote peer, and who uses the adapters of a node.

    Behind a switch all GPUs of a node share its adapters. Otherwise each has the rate of one
    adapter, and an exchange pays ``pod_lat`` for one remote node after the other.
    """
    shared = body.get("switch_topology")
    if not isinstance(shared, bool | None):
        msg = f"switch_topology should be true or false (got {shared!r})"
        raise ConfigError(msg, key="switch_topology", value=shared, allowed=[True, False])
    peer, node = body.get("a2a_peer_lat"), int(_stated(body, "node_size"))
    if peer is not None or shared is False:
        latency_us = 0.0 if peer is None else _number("a2a_peer_lat", peer)
        latency_us += 0.0 if shared is not False else _stated(body, "pod_lat") / node
        overrides["cluster.network.exchange_peer_us"] = latency_us
    if shared is False and body.get("nics_per_node", node) != node:
        message = f"switch_topology false gives each of {node} GPUs an adapter: leave out"
        raise _refusal(body, "nics_per_node", f"{message} nics_per_node, or write {node}", node)
    if not body.keys() & {"a2a_mesh_contention", "alltoall_intra_efficiency"}:
        return
    share = 1.0 - _number("a2a_mesh_contention", body.get("a2a_mesh_contention", 0.0))
    if (key := "alltoall_intra_efficiency") in body:
        # Ours is over the rate of rings, theirs over that of links.
        rings = float(body.get("intra_node_efficiency", body.get("bw_eff", 0.0)))
        share *= _number(key, body[key]) / (rings or math.nan)
        if not share <= 1.0:
            message = f"{key} needs an intra_node_efficiency that is no less"
            raise _refusal(body, key, message, "<= intra_node_efficiency")
    overrides["cluster.device.collective_exchange_efficiency"] = share


def _partial(value: Any, section: str, owner: type[Config]) -> dict[str, Any]:
    if isinstance(value, str):
        return {f"cluster.{section}": value}
    if not isinstance(value, Mapping):
        msg = f"{section} should be a name or a mapping (got {shown(value)})"
        raise ConfigError(msg, key=section, value=value, allowed="a name or a mapping")
    if "extends" in value:
        return {f"cluster.{section}": dict(value)}
    overrides: dict[str, Any] = {}
    for key, item in value.items():
        if key not in owner.model_fields:
            close = difflib.get_close_matches(str(key), owner.model_fields, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            msg = f"{section}.{key}: unknown key {key!r}{hint}"
            raise ConfigError(
                msg, key=f"{section}.{key}", value=item, allowed=close or sorted(owner.model_fields)
            )
        nested = isinstance(item, Mapping) and "value" not in item and key != "sources"
        for inner, entry in item.items() if nested else [("", item)]:
            dotted = f"{section}.{key}.{inner}" if inner else f"{section}.{key}"
            number = entry["value"] if isinstance(entry, Mapping) and "value" in entry else entry
            if isinstance(number, int | float) and not isinstance(number, bool) and not number >= 0:
                msg = f"{dotted} should not be negative (got {number!r})"
                raise ConfigError(msg, key=dotted, value=number, allowed="a number >= 0")
            overrides[f"cluster.{dotted}"] = entry
    return overrides


def _number(key: str, value: Any) -> float:
    strict, share = (key in _TABLE[kind].split() for kind in ("positive", "shares"))
    allowed = "a number between 0 and 1" if share else f"a number {'>' if strict else '>='} 0"
    try:
        # YAML 1.1 reads 163e12 as text.
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    legal = math.isfinite(number) and (number > 0 if strict else number >= 0)
    if not legal or (share and number > 1):
        msg = f"{key} should be {allowed} (got {shown(value)})"
        raise ConfigError(msg, key=key, value=value, allowed=allowed)
    return number


def _count(key: str, value: Any) -> int:
    number = _number(key, value)
    if number < 1 or number != int(number):
        msg = f"{key} should be an integer >= 1 (got {shown(value)})"
        raise ConfigError(msg, key=key, value=value, allowed="an integer >= 1")
    return int(number)
