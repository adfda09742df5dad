"""What the degrees of a file and the devices of a job say about each other."""

from collections.abc import Mapping
from typing import Any

from projector.config.least_nodes import devices_of_a_node
from projector.config.parallelism import ParallelismConfig
from projector.errors import ConfigError


def gpus_per_node(data: Mapping[str, Any]) -> int | None:
    """Return the devices of a node of a native layout; None where its cluster cannot be read."""
    try:
        return devices_of_a_node(_section(data, "cluster"))
    except ConfigError:
        return None


def data_parallel(data: Mapping[str, Any]) -> int | None:
    """Return the data-parallel degree of a native layout; None where it does not come out even."""
    try:
        split = ParallelismConfig.parse(_section(data, "parallelism"), path="parallelism")
    except ConfigError:
        return None
    if split.dp is not None:
        return split.dp
    nodes, size = _section(data, "cluster").get("nodes"), gpus_per_node(data)
    if size is None or not isinstance(nodes, int):
        return None
    dp, rest = divmod(nodes * size, split.tp * split.pp * split.cp)
    return None if rest or dp < 1 else dp


def nodes_for(gpus: int, data: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of a cluster that hold this many devices, in whole nodes."""
    size = gpus_per_node(data)
    if size is None:
        return {}
    if gpus < size and _section(data, "cluster").get("gpus_per_node") is None:
        return {"cluster.nodes": 1, "cluster.gpus_per_node": gpus}
    return {"cluster.nodes": -(-gpus // size)}


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    return section if isinstance(section, Mapping) else {}
