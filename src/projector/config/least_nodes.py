"""The nodes of a job whose file leaves them open."""

from collections.abc import Mapping
from typing import Any

from projector.config.cluster import ClusterConfig
from projector.config.device_file import is_first_order
from projector.config.first_order_device import first_order_device
from projector.config.model import ModelConfig
from projector.config.model_file import model_data
from projector.config.parallelism import ParallelismConfig
from projector.errors import ConfigError

ORIGIN = "the least that the layout needs"


def least_nodes(data: dict[str, Any], origins: dict[str, str]) -> list[str]:
    """Set the least number of nodes that the degrees of a job divide.

    Parameters
    ----------
    data : dict
        The native layout with all overrides; ``cluster.nodes`` is set.
    origins : dict
        Dotted field -> where its value came from; gains the nodes.

    Returns
    -------
    list of str
        A warning where the layout needs more than one node.
    """
    cluster = data.setdefault("cluster", {})
    if not isinstance(cluster, Mapping):
        return []
    try:
        split = ParallelismConfig.parse(data.get("parallelism") or {}, path="parallelism")
        each = devices_of_a_node(cluster)
        nodes = split.least_nodes(each, experts=_has_experts(data.get("model")))
    except ConfigError:
        # Whoever parses the job meets the same error and names its place.
        return []
    data["cluster"] = {**cluster, "nodes": nodes}
    origins["cluster.nodes"] = ORIGIN
    if nodes == 1:
        return []
    return [f"{nodes} nodes of {each} were taken, {ORIGIN}; cluster.nodes sets another number"]


def devices_of_a_node(cluster: Mapping[str, Any]) -> int:
    """Return the devices of one host of a cluster, stated or those that its network says."""
    device = cluster.get("device", cluster.get("gpu"))
    if is_first_order(device, "cluster.device"):
        given = cluster.get("gpus_per_node")
        return given or first_order_device(device, key="cluster.device").devices_per_node
    return ClusterConfig.parse(cluster, path="cluster").gpus_per_node


def _has_experts(model: Any) -> bool:
    if isinstance(model, ModelConfig):
        return model.moe is not None
    return model_data(model).get("moe") is not None
