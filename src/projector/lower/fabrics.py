"""Links of clusters as the records kernels read, in SI units, and how far a domain reaches."""

import numpy as np

from projector.arrays import Records
from projector.config.cluster import ClusterConfig
from projector.config.device_kernels import ExchangeKernel
from projector.errors import ConfigError
from projector.kernels.collectives import FABRIC, algorithm_mask
from projector.kernels.moe_exchange import EXCHANGE
from projector.lower.hardware import copy_fields, given
from projector.topology.build import load_topology
from projector.topology.rates import local_rates
from projector.units import GB, GBIT, MICROSECOND, in_si


def domain_gpus(cluster: ClusterConfig) -> int:
    """Devices of one scale-up domain: the node, unless the fabric reaches further."""
    network = cluster.network
    if network.scale_up_gpus == network.gpus_per_node:
        return cluster.gpus_per_node
    return network.scale_up_gpus


def job_domain_gpus(cluster: ClusterConfig, gpus: int) -> int:
    """Devices of one domain that a job on ``gpus`` devices takes.

    A job that needs several domains takes equal parts of them, or its groups would straddle them:
    SLURM's block topology gives segments of 16 nodes of the 18 of an NVL72 rack. Whole domains
    are taken where only they divide the job.
    """
    domain, network = domain_gpus(cluster), cluster.network
    nodes = domain // cluster.gpus_per_node
    if gpus <= domain or nodes <= 1:
        return domain
    if network.scale_up_segment_gpus:
        return min(domain, network.scale_up_segment_gpus)
    segment = cluster.gpus_per_node << (nodes.bit_length() - 1)
    return domain if gpus % segment and gpus % domain == 0 else segment


def tier_gpus(cluster: ClusterConfig, gpus: int) -> tuple[int, int]:
    """Devices of one pod and of one zone that a job takes, whole domains; 0 means all."""
    network = cluster.network
    pod_domains = network.pod_nodes * cluster.gpus_per_node // domain_gpus(cluster)
    pod = max(1, pod_domains) * job_domain_gpus(cluster, gpus) if network.pod_nodes else 0
    zone = pod * network.core_pods
    # What holds more devices than there are holds all, and its size could exceed 64 bits.
    return pod if pod < gpus else 0, zone if zone < gpus else 0


def fabric_record(cluster: ClusterConfig) -> Records:
    """Return the links of one cluster as FABRIC[1]."""
    device, network = cluster.device, cluster.network
    record = np.zeros(1, FABRIC)
    row = record[0]
    otherwise = {
        "collective_exchange_step_us": device.scale_up_latency_us,
        "collective_exchange_issue_us": device.scale_up_latency_us,
        "collective_exchange_simple_start_us": device.collective_simple_start_us,
    }
    copy_fields(row, device, otherwise, without="collective_")
    copy_fields(row, network, {"nic_flag_latency_us": network.nic_latency_us})
    row["peer_bytes_per_s"] = device.scale_up_peer_gb_per_s * GB
    row["in_network_bytes_per_s"] = device.in_network_all_reduce_gb_per_s * GB
    row["in_network_min_gpus"] = device.in_network_all_reduce_min_gpus
    row["nic_bytes_per_s"] = (
        network.nic_gbit_per_s
        * GBIT
        * network.nic_efficiency
        * network.nics_per_node
        / network.gpus_per_node
    )
    if network.nic_p2p_efficiency is not None:
        share = network.nic_p2p_efficiency / network.nic_efficiency
        row["nic_p2p_bytes_per_s"] = row["nic_bytes_per_s"] * share
    row["zone_oversubscription"] = network.core_oversubscription
    row["plain_tree"] = not network.rail_optimised
    row["forwards"] = network.forwards_in_node
    row["network_start_s"] = network.collective_start_us * MICROSECOND
    row["network_flags"] = network.nic_flags
    row["network_flag_traffic"] = given(network.nic_flag_traffic, device.collective_flag_traffic)
    row["network_in_network"] = network.nic_switch_trees
    row["domain_gpus"] = domain_gpus(cluster)
    row["algorithms"] = algorithm_mask(*device.collective_algorithms)
    row["network_algorithms"] = algorithm_mask(*device.collective_network_algorithms)
    row["flagged_algorithms"] = algorithm_mask(*device.collective_flagged_algorithms)
    if rings := device.collective_ring_gpus:
        row["single_ring_groups"] = sum(1 << n for n in range(3, max(rings)) if n not in rings)
    chunk_us = given(network.collective_chunk_us, device.collective_chunk_us)
    row["network_chunk_s"] = chunk_us * MICROSECOND
    limit_us = given(network.collective_fill_limit_us, device.collective_fill_limit_us)
    row["network_fill_limit_s"] = limit_us * MICROSECOND
    _add_local_rates(row, cluster)
    return record


def _add_local_rates(row: np.void, cluster: ClusterConfig) -> None:
    """List what rings, exchanges and pairs reach where devices are not all joined alike."""
    name, device = cluster.network.node, cluster.device
    if name is None:
        return
    key = "cluster.network.node"
    topology = load_topology(name, device=device, key=key)
    if topology.num_devices < domain_gpus(cluster):
        msg = (
            f"{key}: {name} has {topology.num_devices} devices, but a scale-up domain of the "
            f"network has {domain_gpus(cluster)}"
        )
        allowed = f"a node of at least {domain_gpus(cluster)} devices"
        raise ConfigError(msg, key=key, value=name, allowed=allowed)
    rates = local_rates(topology)
    # A device sends no more than it gets into its fabric, whatever its links could carry.
    most = device.scale_up_gb_per_s
    row["local_ring_bytes_per_s"] = np.minimum(rates.ring_gb_per_s, most) * GB
    row["local_exchange_bytes_per_s"] = np.minimum(rates.exchange_gb_per_s, most) * GB
    row["local_pair_bytes_per_s"] = np.minimum(rates.pair_gb_per_s, most) * GB


_EXCHANGED = [(name, *in_si(name)) for name in ExchangeKernel.model_fields]


def exchange_record(cluster: ClusterConfig) -> Records:
    """Return what exchanges between experts cost on a cluster as EXCHANGE[1]."""
    record = np.zeros(1, EXCHANGE)
    row, costs = record[0], cluster.device.expert_exchange
    copy_fields(row, cluster.network)
    for op, kernel in enumerate(
        (costs.dispatch, costs.combine, costs.bulk_dispatch, costs.bulk_combine)
    ):
        for name, field, unit in _EXCHANGED:
            row[field.replace("copy_", "channel_")][op] = getattr(kernel, name) * unit
    copy_fields(row, costs.low_latency, before="low_latency_")
    return record
