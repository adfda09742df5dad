"""Clusters of published rows, each read once."""

from typing import Any

from projector.config.cluster import ClusterConfig
from projector.config.device import load_device, load_network


def cluster_of(device: str, gpus: int, node_gbit: int = 0) -> tuple[ClusterConfig, str]:
    """Return a cluster of ``gpus`` devices, and the rule that was needed, if any.

    Parameters
    ----------
    device : str
        Shipped device.
    gpus : int
        Devices of the whole cluster.
    node_gbit : int
        Stated rate of all network adapters of a node together, 0 if none is stated.
    """
    key = (device, gpus, node_gbit)
    if key not in _clusters:
        if len(_clusters) > 4096:
            _clusters.clear()
        loaded = load_device(device)
        network = load_network(loaded.network)
        width = min(gpus, network.gpus_per_node)
        rule = ""
        if gpus % width:
            width = max(size for size in range(1, width + 1) if gpus % size == 0)
            rule = f"nodes of {width} GPUs"
        data: dict[str, Any] = {"device": loaded, "nodes": gpus // width, "gpus_per_node": width}
        if node_gbit:
            data["network"] = {
                "extends": loaded.network,
                "nic_gbit_per_s": node_gbit / network.nics_per_node,
            }
        _clusters[key] = (ClusterConfig.parse(data), rule)
    return _clusters[key]


_clusters: dict[tuple[str, int, int], tuple[ClusterConfig, str]] = {}
