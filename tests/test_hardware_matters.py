"""Every bandwidth and latency of a hardware file matters where it is used, and only there.

Fields are found by the ends of their names. A new one fails until `CASES` says what it changes and
what it does not.
"""

from contextlib import suppress
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import projector as pj
from projector.config import resources
from projector.config._base import merge
from projector.config.cluster import ClusterConfig
from projector.config.device_file import load_device
from projector.config.load import load_job
from projector.config.network import load_network
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError
from projector.kernels.collective_algorithms import ALGORITHMS, OPERATIONS
from projector.kernels.collectives import algorithm_mask, collective_time_columns
from projector.kernels.moe_exchange import (
    LOW_LATENCY,
    moe_exchange_time_column,
)
from projector.lower.fabrics import exchange_record, fabric_record
from projector.projection.evaluate import evaluate
from projector.serving.deployment import Deployment
from projector.single.collective import collective_case
from projector.topology.build import load_topology, node_net
from projector.topology.node import KIND
from projector.topology.routes import EVERYTHING, find_matrices, find_routes
from projector.topology.transfers import find_way, serving_engines
from serving.steps import decode_time_s

RATES = ("_gb_per_s", "_gbit_per_s", "_tb_per_s")
TIMES = ("_us",)

KERNELS = {"attention", "attention_kernels", "expert_layer", "gemm_libraries", "quantising",
           "power", "ws_persistent"}  # fmt: skip
"""Sections about single kernels on one device, which tests of those kernels vary."""

MOST_IN_MATRIX = 16
"""Devices of a node whose matrices are compared as well."""

SIZES = 2.0 ** np.arange(3, 34, 3)


def is_measured(name):
    return name.endswith((*RATES, *TIMES))


def leaves(values, prefix=""):
    """Yield (dotted field, value) of every bandwidth and latency below."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        elif is_measured(name):
            yield f"{prefix}{name}", value


def nested(field, value):
    """Return a mapping that has a value at a dotted field."""
    for name in reversed(field.split(".")):
        value = {name: value}
    return value


def varied(field, value):
    """Return other values; a rate or time of nothing becomes one."""
    # Threads of the host change nothing where the adapters are slower.
    if field.endswith("exchange_proxy_gb_per_s"):
        return (0.1,)
    if field.endswith("exchange_write_us"):
        return (1000.0,)
    if value is None or value == 0.0:
        return (100.0,) if field.endswith(RATES) else (7.0,)
    if field.endswith(".copy_gb_per_s"):
        # Of cards on PCIe the links bind, unless copies are very slow.
        return (value * 0.01, value * 1.4)
    return (value * 0.7, value * 1.4)


# What is projected: a step, single kernels, single collectives. Each returns numbers to compare.

TRAINING = {"micro_batch_size": 1, "seq_length": 2048}


def job_on(device, network, *, gpus=1, nodes=1, model="llama3.2_1b", training=None, **parallelism):
    return load_job(
        {
            "model": model,
            "parallelism": parallelism,
            "training": {**TRAINING, "global_batch_size": 1, **(training or {})},
            "cluster": {
                "device": device, "network": network, "nodes": nodes, "gpus_per_node": gpus,
            },
        }
    )  # fmt: skip


def step_s(device, network, **more):
    return evaluate([job_on(device, network, **more)]).steps.iteration_s[0]


def local(network):
    """Devices of a group that stays in a scale-up domain."""
    return min(8, network.scale_up_gpus)


def alone(device, network):
    return step_s(device, network)


def alone_in_graphs(device, network):
    return step_s(device, network, training={"cuda_graphs": True})


def offloaded(device, network):
    return step_s(device, network, training={"optimizer": {"offload_fraction": 0.5}})


def tensor_parallel(device, network):
    tp = local(network)
    gpus = min(tp, network.gpus_per_node)
    jobs = [
        job_on(device, network, gpus=gpus, nodes=tp // gpus, tp=tp, sequence_parallel=split)
        for split in (False, True)
    ]
    return evaluate(jobs).steps.iteration_s


def data_parallel(device, network):
    gpus, nodes = spanning(network)
    return step_s(
        device, network, gpus=gpus, nodes=nodes, training={"global_batch_size": gpus * nodes}
    )


def spanning(network):
    """Devices of a node, and nodes that two domains have."""
    gpus = network.gpus_per_node
    return gpus, 2 * max(1, network.scale_up_gpus // gpus)


def every_algorithm(device, network, ranks, local_ranks):
    """Return the times of every operation with every algorithm, in one call of the kernel."""
    cluster = ClusterConfig.parse({"device": device, "network": network}, path="cluster")
    fabrics = np.concatenate([fabric_record(cluster)] * (1 + len(ALGORITHMS)))
    for row, name in enumerate(ALGORITHMS):
        fabrics[1 + row]["algorithms"] = algorithm_mask(name)
    legal = [code for code, name in enumerate(OPERATIONS) if name != "send_recv" or ranks == 2]
    grid = np.meshgrid(legal, SIZES, np.arange(len(fabrics)), indexing="ij")
    codes, sizes, rows = (axis.reshape(-1) for axis in grid)
    return collective_time_columns(codes, sizes, ranks, local_ranks, rows, fabrics)[0]


def near_collectives(device, network):
    groups = sorted({2, local(network)})
    return np.concatenate([every_algorithm(device, network, ranks, ranks) for ranks in groups])


def across_nodes(device, network):
    step = data_parallel(device, network)
    return np.concatenate([[step], far_collectives(device, network)])


def far_collectives(device, network):
    """Groups over two domains, of which the network decides how they lie."""
    ranks = 2 * network.scale_up_gpus
    cases = [
        collective_case(operation, device=device, network=network)
        for operation in OPERATIONS
        if operation != "send_recv"
    ]
    return np.concatenate([case.times_s(SIZES, ranks) for case in cases])


def exchanges(device, network, ranks, local_ranks):
    """Return the times of every exchange between experts, of few and of many tokens."""
    cluster = ClusterConfig.parse({"device": device, "network": network}, path="cluster")
    grid = np.meshgrid(np.arange(LOW_LATENCY + 1), [16.0, 65536.0], [0.5, 1e6], indexing="ij")
    codes, tokens, channels = (axis.reshape(-1) for axis in grid)
    return moe_exchange_time_column(
        codes, tokens, 14336.0, 5.3, 2.0, ranks, local_ranks, channels, 0, fabric_record(cluster),
        exchange_record(cluster),
    )  # fmt: skip


def near_exchanges(device, network):
    return exchanges(device, network, local(network), local(network))


def far_exchanges(device, network):
    return exchanges(device, network, 2 * network.scale_up_gpus, network.scale_up_gpus)


def experts_in_two_domains(device, network):
    gpus, ep = network.gpus_per_node, 2 ** network.scale_up_gpus.bit_length()
    training = {"global_batch_size": ep}
    return step_s(
        device, network, gpus=gpus, nodes=ep // gpus, model="deepseek_v3", training=training, ep=ep
    )


def decoding(device, network):
    deployment = {"model": "llama3.2_1b", "cluster": {"device": device, "network": network}}
    return decode_time_s(Deployment.parse(deployment, path="deployment"), 1, 128)


def gemms(device, network):
    del network
    # Large, small, deep (split K), and one whose operands stay in the L2 or the cache behind it.
    shapes = np.array([(8192, 8192, 8192), (64, 64, 64), (128, 128, 65536), (2048, 2048, 256),
                       (4096, 512, 4096), (16384, 1024, 128)])  # fmt: skip
    return pj.gemm_time(*shapes.T, device=device)


CASES = {
    # field: (what it changes, what it does not)
    "hbm_peak_tb_per_s": (alone, near_collectives),
    "hbm_latency_us": (decoding, near_collectives),
    "l2_tb_per_s": (gemms, near_collectives),
    "mall_tb_per_s": (gemms, near_collectives),
    "kernel_start_us": (alone, near_collectives),
    "kernel_start_graph_us": (alone_in_graphs, alone),
    "gemm_overhead_us": (gemms, near_collectives),
    "gemm_split_k_us": (gemms, near_collectives),
    "host_link_gb_per_s": (offloaded, tensor_parallel),
    "scale_up_gb_per_s": (tensor_parallel, alone),
    "scale_up_peer_gb_per_s": (near_collectives, alone),
    "scale_up_latency_us": (near_collectives, alone),
    "collective_start_us": (tensor_parallel, alone),
    "collective_simple_start_us": (tensor_parallel, alone),
    "collective_chunk_us": (near_collectives, alone),
    "collective_fill_limit_us": (near_collectives, alone),
    "collective_exchange_step_us": (near_collectives, alone),
    "collective_exchange_issue_us": (near_collectives, alone),
    "collective_exchange_simple_start_us": (near_collectives, alone),
    "in_network_all_reduce_gb_per_s": (near_collectives, alone),
    "in_network_chunk_us": (near_collectives, alone),
    **{
        f"expert_exchange.{kernel}.{field}": (near_exchanges, near_collectives)
        for kernel in ("dispatch", "combine", "bulk_dispatch", "bulk_combine")
        for field in ("start_us", "copy_gb_per_s", "first_gb_per_s")
    },
    **{
        f"expert_exchange.{kernel}.{field}": (far_exchanges, near_exchanges)
        for kernel in ("dispatch", "combine", "bulk_dispatch", "bulk_combine")
        for field in ("network_start_us", "doubling_us")
    },
    "expert_exchange.low_latency.start_us": (near_exchanges, near_collectives),
    "expert_exchange.low_latency.doubling_us": (far_exchanges, near_exchanges),
    "network.nic_gbit_per_s": (across_nodes, tensor_parallel),
    "network.nic_latency_us": (across_nodes, tensor_parallel),
    "network.nic_flag_latency_us": (across_nodes, tensor_parallel),
    "network.collective_start_us": (across_nodes, tensor_parallel),
    "network.collective_chunk_us": (across_nodes, tensor_parallel),
    "network.collective_fill_limit_us": (across_nodes, tensor_parallel),
    "network.exchange_peer_us": (across_nodes, tensor_parallel),
    "network.exchange_wait_us": (experts_in_two_domains, far_exchanges),
    "network.exchange_write_us": (far_exchanges, near_exchanges),
    "network.exchange_proxy_gb_per_s": (far_exchanges, near_exchanges),
    "network.spine_latency_us": (across_nodes, tensor_parallel),
    "network.core_latency_us": (across_nodes, tensor_parallel),
}

ABSENT = {
    "mall_tb_per_s": "mall_mib",
    "in_network_chunk_us": "in_network_all_reduce_gb_per_s",
}
"""Rates and times of parts that a device may lack, and the field that is then 0."""

BETWEEN_PODS = {"network.spine_latency_us": 0, "network.core_latency_us": 1}
"""Fields of a network with pods of one domain each, and the pods of its zones."""

DEVICES = resources.shipped("hardware")
TABLES = {
    name: sorted(read_yaml(resources.data_dir("hardware") / f"{name}.yaml", key=name))
    for name in ("networks", "transports")
}


@cache
def network_named(name, field=""):
    """Return a network, or 400 Gbit/s over a transport, so that a field may matter."""
    stated = {"name": name, "transport": name, "nic_gbit_per_s": 400}
    network = load_network(name if name in TABLES["networks"] else stated)
    if field not in BETWEEN_PODS:
        return network
    nodes = max(1, network.scale_up_gpus // network.gpus_per_node)
    pods = {"pod_nodes": nodes, "core_pods": BETWEEN_PODS[field]}
    return load_network({**network.model_dump(exclude={"sources"}), **pods})


@cache
def device_of(network):
    """Return the device that usually comes with a network, else one that any network takes."""
    return next((name for name in DEVICES if load_device(name).network == network), "h100")


@cache
def before(device, network, field, probe):
    return np.asarray(probe(load_device(device), network_named(network, field)))


def compare(device, network, field, changed):
    """Return what is wrong with a field, for (device, network) with other values of it."""
    if field not in CASES:
        return [f"{field}: no case says what it changes"]
    if not changed:
        return [f"{field}: no other value is legal"]
    changes, keeps = CASES[field]
    base = field if field in BETWEEN_PODS else ""
    differs = {
        probe: any(
            not np.array_equal(before(device, network, base, probe), probe(*each))
            for each in changed
        )
        for probe in (changes, keeps)
    }
    wrong = [f"{field}: {keeps.__name__} responds"] * differs[keeps]
    if not differs[changes]:
        wrong.append(f"{field}: {changes.__name__} does not respond")
    return wrong


@pytest.mark.rotated
@pytest.mark.parametrize("name", DEVICES)
def test_numbers_of_a_device(name):
    device = load_device(name)
    network = network_named(device.network)
    wrong = []
    for field, value in leaves(device.model_dump(exclude={*KERNELS, "sources"})):
        if field in ABSENT and not getattr(device, ABSENT[field]):
            continue
        changed = []
        for other in varied(field, value):
            with suppress(ConfigError):
                other_device = load_device({"extends": name, **nested(field, other)})
                changed.append((other_device, network))
        wrong += compare(name, device.network, field, changed)
    assert not wrong


@pytest.mark.rotated
@pytest.mark.parametrize("name", [*TABLES["networks"], *TABLES["transports"]])
def test_numbers_of_a_network(name):
    device = device_of(name)
    wrong = []
    for field, value in leaves(network_named(name).model_dump(exclude={"sources"})):
        if field == "nic_flag_latency_us" and not network_named(name).nic_flags:
            continue
        key = f"network.{field}"
        data = network_named(name, key).model_dump(exclude={"sources"})
        changed = [
            (load_device(device), load_network(merge(data, nested(field, other))))
            for other in varied(field, value)
        ]
        wrong += compare(device, name, key, changed)
    assert not wrong


def test_every_case_is_of_a_field():
    fields = {field for name in DEVICES for field, _ in leaves(load_device(name).model_dump())}
    fields |= {
        f"network.{field}"
        for name in TABLES["networks"]
        for field, _ in leaves(network_named(name).model_dump())
    }
    assert CASES.keys() <= fields


def node_values(topology):
    """Return rates and latencies by what they are of, each with the parts that it passes."""
    net, last = node_net(topology), topology.num_devices - 1
    ends = [0, last, *(end for end in ("numa0", "nic0") if end in net.kinds)]
    found = {}
    for source in ends:
        for target, route in find_routes(net, source, "widest", EVERYTHING).items():
            tiers = {net.near[a][b].tier for a, b in pairwise(route.path)}
            found["route", source, target] = (route.gb_per_s, route.latency_us), tiers
    if topology.num_devices <= MOST_IN_MATRIX:
        found["matrix", 0, 0] = find_matrices(topology).latency_us, {"start", *topology.node.tiers}
    if topology.node.transfers is None:
        return found
    pairs = [(0, target) for target in range(topology.num_devices)] + [("numa0", 0)]
    for source, target in pairs:
        for name in serving_engines(topology, source, target):
            way = find_way(topology, source, target, name)
            stated = topology.node.transfers.engines[name]
            parts = {net.near[a][b].tier for a, b in pairwise(way.route.path)}
            parts |= {f"engine {name}", f"engine {stated.base}"}
            parts |= {"start"} if way.numbers.start_us is None else set()
            times = tuple(way.seconds([1.0, 1e9]))
            found[name, source, target] = (*times, way.gb_per_s, way.latency_us), parts
    return found


def part_of(field):
    """Return the part of a node that a field speaks of."""
    names = field.split(".")
    if names[0] == "tiers":
        return names[1]
    return f"engine {names[2]}" if names[0] == "transfers" else "start"


@pytest.mark.rotated
@pytest.mark.parametrize("name", resources.shipped(KIND))
def test_numbers_of_a_node(name):
    before = node_values(load_topology(name))
    data = load_topology(name).node.model_dump(exclude={"sources"})
    for field, value in leaves(data):
        if value is None or (field == "start_us" and ("matrix", 0, 0) not in before):
            continue
        changes = set()
        for other in varied(field, value):
            after = node_values(load_topology(merge(data, nested(field, other))))
            for key, (numbers, parts) in after.items():
                if numbers != before[key][0]:
                    changes.add(key)
                    # A route may change, so that it passes the part before or after.
                    assert part_of(field) in parts | before[key][1], (field, key)
        assert changes, field
