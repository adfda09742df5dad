"""Clusters of published rows, each read once."""

from typing import Any, NamedTuple

from projector.config.cluster import ClusterConfig
from projector.config.device_file import load_device
from projector.config.network import load_network
from projector.validate.networks import Adapters, stated_adapters, stated_network


class Stated(NamedTuple):
    """What a row says of its network; nothing means the device's usual one."""

    adapters: Adapters | None = None
    network: tuple[str, str] = ("", "")
    """Field of ``cluster.network``, and the name there; both empty where the row has none."""


USUAL = Stated()


def network_of(device: str, text: str) -> Stated:
    """Return what remarks say of the network between the nodes of a device."""
    usual = load_network(load_device(device).network)
    adapters = stated_adapters(
        text, Adapters(usual.nics_per_node, usual.nic_gbit_per_s), usual.gpus_per_node
    )
    return Stated(
        adapters, stated_network(text, adapters.gbit_per_s if adapters else usual.nic_gbit_per_s)
    )


def cluster_of(device: str, gpus: int, stated: Stated = USUAL) -> tuple[ClusterConfig, str]:
    """Return a cluster of ``gpus`` devices, and the rule that was needed, if any.

    Parameters
    ----------
    device : str
        Shipped device.
    gpus : int
        Devices of the whole cluster.
    stated : Stated
        What the row says of the network.
    """
    key = (device, gpus, stated)
    if key not in _clusters:
        if len(_clusters) > 4096:
            _clusters.clear()
        loaded = load_device(device)
        network: dict[str, Any] = {}
        if stated.network[1]:
            network[stated.network[0]] = stated.network[1]
        if stated.adapters:
            network["nics_per_node"], network["nic_gbit_per_s"] = stated.adapters
        if network:
            network = {"extends": loaded.network, **network}
        usual = load_network(network.get("extends", loaded.network))
        width = min(gpus, usual.gpus_per_node)
        rule = ""
        if gpus % width:
            width = max(size for size in range(1, width + 1) if gpus % size == 0)
            rule = f"nodes of {width} GPUs"
        data: dict[str, Any] = {"device": loaded, "nodes": gpus // width, "gpus_per_node": width}
        if network:
            data["network"] = network
        _clusters[key] = (ClusterConfig.parse(data), rule)
    return _clusters[key]


_clusters: dict[tuple[str, int, Stated], tuple[ClusterConfig, str]] = {}
