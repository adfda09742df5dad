"""Primus' ``--hardware-config`` files, and partial devices and networks of our own."""

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.config._base import Config
from projector.config.device import Device
from projector.config.network import Network
from projector.config.yaml_file import beside, read_yaml
from projector.errors import ConfigError

_SCALED = {
    "node_lat": (("cluster.device.scale_up_latency_us", 1.0),),
    "pod_bw": (("cluster.network.nic_gbit_per_s", 8.0),),
    "pod_lat": (("cluster.network.nic_latency_us", 1.0),),
    "vector_flops": (("cluster.device.vector_tflops", 1e-12),),
    "bw_eff": (
        ("cluster.device.scale_up_efficiency", 1.0),
        ("cluster.network.nic_efficiency", 1.0),
    ),
    "hbm_latency": (("cluster.device.hbm_latency_us", 1.0),),
    "p2p_bw_eff": (("cluster.network.nic_p2p_efficiency", 1.0),),
}
"""Primus key -> our fields and the factor to their unit."""

_COUNTS = {
    "node_size": (
        "cluster.gpus_per_node",
        "cluster.network.gpus_per_node",
        "cluster.network.scale_up_gpus",
    ),
    "nics_per_node": ("cluster.network.nics_per_node",),
}
_SPECIAL = (
    "node_bw",
    "node_topology",
    "kernel_launch_latency",
    "rccl_overhead_us",
    "cluster_bw",
    "cluster_lat",
    "pod_size",
    "switch_topology",
    "a2a_peer_lat",
)
_POSITIVE = {"node_bw", "pod_bw", "cluster_bw", "vector_flops", "bw_eff", "p2p_bw_eff"}
_SHARES = {"bw_eff", "p2p_bw_eff"}

_DEFAULTS = {"node_size": 8, "pod_bw": 50.0, "pod_lat": 2.0}
"""What Primus takes for a key that is left out (``CollectiveArgs``), where another needs it."""

_UNMODELLED = {
    "write_latency": "it is part of the latency of one hop",
    "write_resp": "it is part of the latency of one hop",
    "ar_overlap_factor": "",
    "ar_warmup_chunk_bytes": "",
    "nic_rdma_setup_us": "",
    "nic_warmup_bytes": "",
    "a2a_intra_sync_overhead": "",
    "a2a_intra_node_peer_lat": "",
    "a2a_mesh_contention": "",
    "a2a_rccl_overhead_us": "",
    "a2a_remote_contention": "",
}


def read_hardware_config(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """Read a hardware file as dotted overrides of a job, and warnings.

    It is Primus' own (top level ``hardware_config``), or has a partial ``device`` and a partial
    ``network``. An override is such as ``cluster.network.nic_gbit_per_s``.
    """
    data = read_yaml(path, key="hardware_config")
    if "hardware_config" in data:
        body = _mapping(data, "hardware_config")
        warnings = [
            f"{key}: unknown key of a hardware file was ignored"
            for key in data
            if key != "hardware_config"
        ]
        return _primus(body, warnings)
    if data.keys() <= {"device", "network"}:
        overrides: dict[str, Any] = {}
        for section, owner in (("device", Device), ("network", Network)):
            if section in data:
                value = beside(data[section], Path(path).parent)
                overrides |= _partial(value, section, owner)
        return overrides, []
    if data.keys() & ({*_SCALED, *_COUNTS, *_SPECIAL, *_UNMODELLED}):
        return _primus(data, [])
    raise ConfigError(
        f"{path} has neither hardware_config nor device or network at its top level",
        key="hardware_config",
        value=sorted(data),
        allowed=["hardware_config", "device", "network"],
    )


def _primus(body: Mapping[str, Any], warnings: list[str]) -> tuple[dict[str, Any], list[str]]:
    overrides: dict[str, Any] = {}
    known = [*_SCALED, *_COUNTS, *_SPECIAL, *_UNMODELLED]
    for key, value in body.items():
        if value is None:
            continue
        if key in _SCALED:
            number = _number(key, value)
            overrides |= {field: number * factor for field, factor in _SCALED[key]}
        elif key in _COUNTS:
            overrides |= dict.fromkeys(_COUNTS[key], _count(key, value))
        elif key in _UNMODELLED:
            note = f": {_UNMODELLED[key]}" if _UNMODELLED[key] else ""
            warnings.append(f"{key} is not modelled and was ignored{note}")
        elif key not in _SPECIAL:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            warnings.append(f"unknown hardware key {key!r} was ignored{hint}")
    _scale_up(body, overrides, warnings)
    _pods(body, overrides, warnings)
    _exchanges(body, overrides, warnings)
    starts = [
        key for key in ("kernel_launch_latency", "rccl_overhead_us") if body.get(key) is not None
    ]
    if starts:
        total = sum(_number(key, body[key]) for key in starts)
        overrides["cluster.device.collective_start_us"] = total
    return overrides, warnings


def _scale_up(body: Mapping[str, Any], overrides: dict[str, Any], warnings: list[str]) -> None:
    """Set the fabric of a node: one link for each pair in a mesh, all of it behind a switch."""
    topology = body.get("node_topology")
    if topology not in (None, "mesh", "switch"):
        msg = f"node_topology should be mesh or switch (got {topology!r})"
        raise ConfigError(msg, key="node_topology", value=topology, allowed=["mesh", "switch"])
    if body.get("node_bw") is None:
        if topology is not None:
            warnings.append("node_topology was ignored: it needs node_bw")
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
    value = body.get(key)
    return _number(key, _DEFAULTS[key] if value is None else value)


def _pods(body: Mapping[str, Any], overrides: dict[str, Any], warnings: list[str]) -> None:
    """Set what lies beyond a pod, where Primus takes the cluster's links for a whole group."""
    network = "cluster.network"
    if body.get("pod_size") is None:
        ignored = [key for key in ("cluster_bw", "cluster_lat") if body.get(key) is not None]
        warnings.extend(f"{key} was ignored: without pod_size one pod is all" for key in ignored)
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


def _exchanges(body: Mapping[str, Any], overrides: dict[str, Any], warnings: list[str]) -> None:
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
    if shared is False and body.get("nics_per_node") not in (None, node):
        warnings.append(
            f"switch_topology false gives each of {node} GPUs an adapter: nics_per_node "
            f"{body['nics_per_node']} was ignored"
        )
        overrides["cluster.network.nics_per_node"] = node


def _partial(value: Any, section: str, owner: type[Config]) -> dict[str, Any]:
    if isinstance(value, str):
        return {f"cluster.{section}": value}
    if not isinstance(value, Mapping):
        msg = f"{section} should be a name or a mapping (got {value!r})"
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


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data[key]
    if not isinstance(value, Mapping):
        msg = f"{key} should be a mapping of keys to numbers (got {value!r})"
        raise ConfigError(msg, key=key, value=value, allowed="a mapping")
    return {str(name): item for name, item in value.items()}


def _number(key: str, value: Any) -> float:
    strict = key in _POSITIVE
    allowed = (
        "a number between 0 and 1" if key in _SHARES else f"a number {'>' if strict else '>='} 0"
    )
    try:
        # YAML 1.1 reads 163e12 as text.
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    legal = math.isfinite(number) and (number > 0 if strict else number >= 0)
    if not legal or (key in _SHARES and number > 1):
        msg = f"{key} should be {allowed} (got {value!r})"
        raise ConfigError(msg, key=key, value=value, allowed=allowed)
    return number


def _count(key: str, value: Any) -> int:
    number = _number(key, value)
    if number < 1 or number != int(number):
        msg = f"{key} should be an integer >= 1 (got {value!r})"
        raise ConfigError(msg, key=key, value=value, allowed="an integer >= 1")
    return int(number)
