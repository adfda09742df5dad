"""Reading what serves, and what is served, from wherever users keep it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from projector.config._base import Config
from projector.config.cluster import ClusterConfig
from projector.config.load import resolve_paths, set_field
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError
from projector.serving.deployment import Deployment
from projector.serving.load import Scheduler, Traffic
from projector.units import unwrapped

LOAD = "load"
"""Section of a serving file that describes the requests."""


SCHEDULER = "scheduler"
"""Section that describes how the engine schedules them."""


@dataclass(frozen=True, slots=True)
class ServingCase:
    """A deployment and the requests that it serves."""

    deployment: Deployment
    traffic: Traffic
    derived: dict[str, str] = field(default_factory=dict)
    """Dotted field -> the value that was chosen for it, and why."""
    scheduler: Scheduler = Scheduler()  # noqa: RUF009  # immutable
    """How the engine fills its steps under a load with a rate."""


def read_case(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ServingCase:
    """Read a serving file or mapping: the fields of a deployment, and its ``load``.

    ``device`` is short for ``cluster.device``, and ``load`` is a mapping of `Traffic`. Overrides
    are dotted, e.g. ``{"tp": 4, "load.batch": 8}``, and applied last.
    """
    data = _read(source)
    for key, value in (overrides or {}).items():
        short = str(key).split(".")[0] == "device"
        _set(data, f"cluster.{key}" if short else str(key), value)
    _hint_load(data)
    load, scheduler = data.pop(LOAD, None), data.pop(SCHEDULER, None)
    traffic = (
        load
        if isinstance(load, Traffic)
        else Traffic.parse({} if load is None else load, path=LOAD)
    )
    derived: dict[str, str] = {}
    _require(data)
    data["cluster"] = _cluster(data, derived)
    return ServingCase(
        Deployment.parse(data),
        traffic,
        derived,
        Scheduler.parse({} if scheduler is None else scheduler, path=SCHEDULER),
    )


def _read(source: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    if source is None:
        data: dict[str, Any] = {}
    elif isinstance(source, Mapping):
        data = dict(source)
    elif isinstance(source, str | Path):
        data = resolve_paths(read_yaml(source), Path(source).parent)
    else:
        msg = f"a deployment is a file or a mapping, got {type(source).__name__}"
        raise ConfigError(msg, key="config", value=source, allowed="a file or a mapping")
    if "device" in data:
        device = data.pop("device")
        cluster = dict(data.get("cluster") or {})
        if "device" in cluster:
            msg = "device and cluster.device are both set; leave one out"
            raise ConfigError(msg, key="device", value=device)
        data["cluster"] = {**cluster, "device": device}
    return data


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set one field under the spelling that the data has for it, be it an alias."""
    section, _, name = dotted.partition(".")
    sections: dict[str, type[Config]] = {LOAD: Traffic, SCHEDULER: Scheduler}
    owner = sections.get(section)
    node: Any = data.get(section)
    if owner is None:
        owner, node, name = Deployment, data, section
    field = owner.aliases.get(name.replace("-", "_"), name)
    same = [field, *(alias for alias, own in owner.aliases.items() if own == field)]
    given = [each for each in same if isinstance(node, Mapping) and each in node]
    if given and name not in given:
        dotted = ".".join([*([section] if node is not data else []), given[0]])
    set_field(data, dotted, value)


def _hint_load(data: Mapping[str, Any]) -> None:
    """Refuse a field of the requests that stands beside ``load``, and say where it belongs."""
    for key in data:
        name = Traffic.aliases.get(key, key)
        if name in Traffic.model_fields and key not in Deployment.model_fields:
            msg = f"{key}: belongs to the requests; write {LOAD}.{name}"
            raise ConfigError(msg, key=key, value=data[key], allowed=f"{LOAD}.{name}")


def _require(data: Mapping[str, Any]) -> None:
    """Refuse a deployment without model or device, in words of the command line."""
    if data.get("model") is None:
        msg = "model: is required; name one, for example llama3.1_70b"
        raise ConfigError(msg, key="model", allowed="a model name")
    cluster = data.get("cluster")
    if isinstance(cluster, ClusterConfig):
        return
    if not isinstance(cluster, Mapping) or cluster.get("device") is None:
        msg = "device: is required; name the GPU, for example h100"
        raise ConfigError(msg, key="device", allowed="a GPU name")


def _cluster(data: Mapping[str, Any], derived: dict[str, str]) -> ClusterConfig:
    """Return the cluster, with the nodes that the deployment takes where none are stated."""
    given = data["cluster"]
    if isinstance(given, ClusterConfig):
        return given
    cluster = ClusterConfig.parse(given, path="cluster")
    if "nodes" in cluster.model_fields_set:
        return cluster
    degrees = [unwrapped(data.get(name, 1)) for name in ("tp", "pp", "attention_dp")]
    if not all(isinstance(value, int) and 0 < value <= 1 << 20 for value in degrees):
        return cluster
    gpus = degrees[0] * degrees[1] * degrees[2]
    nodes = -(-gpus // cluster.gpus_per_node)
    if nodes > 1:
        derived["cluster.nodes"] = f"{nodes} ({gpus} devices, {cluster.gpus_per_node} a node)"
        return ClusterConfig.parse({**given, "nodes": nodes}, path="cluster")
    return cluster
