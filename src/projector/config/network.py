"""The network of a cluster, and the transports of its adapters: fields and shipped tables."""

from collections.abc import Mapping
from typing import Annotated, Any, Self, cast

from pydantic import Field, model_validator

from projector.config import _base
from projector.config.resources import hardware_table, once_by_name
from projector.errors import ConfigError


class Transport(_base.Sourced):
    """How a kind of adapter, with the plug-in that drives it, carries collectives."""

    name: str
    nic_efficiency: float = Field(gt=0, le=1)
    """Share of the adapter rate that large messages reach."""
    nic_latency_us: _base.NotNegative
    """One hop of a collective between nodes, without flags beside its data (NCCL's Simple)."""
    nic_flag_latency_us: _base.NotNegative
    """The same with flags (LL), but never more than without."""
    nic_flag_traffic: _base.AtLeastOne
    """As collective_flag_traffic of a device, of a collective between nodes."""
    collective_start_us: _base.NotNegative
    """Fixed cost that any collective between nodes adds."""
    collective_chunk_us: _base.NotNegative
    """As collective_chunk_us of a device, of a collective between nodes."""
    collective_fill_limit_us: _base.NotNegative
    """As collective_fill_limit_us of a device, of a collective between nodes."""
    nic_measured: bool = False
    """Whether published collectives of this transport were fitted; bands are wider otherwise."""
    nic_flags: bool
    """Whether a collective between nodes may have flags beside its data (NCCL's LL and LL128)."""
    nic_switch_trees: bool
    """Whether a tree between nodes may join reductions in the switches of nodes (NVLSTree)."""
    exchange_proxy: str = ""
    """As exchange_proxy of a network: the usual one of its adapters."""
    exchange_wait_us: _base.NotNegative = 0.0
    """As exchange_wait_us of a network."""


class ExchangeProxy(_base.Sourced):
    """A library whose host threads issue what a fused exchange between experts sends to nodes."""

    name: str
    """Name shown in reports."""
    exchange_write_us: _base.NotNegative
    """As exchange_write_us of a network."""
    exchange_proxy_gb_per_s: _base.NotNegative
    """As exchange_proxy_gb_per_s of a network."""


class Network(_base.Sourced):
    """How nodes of one kind of cluster are built and joined; `Transport` describes some fields."""

    name: Annotated[str, _base.SHOWN]
    node: str | None = None
    """File of ``hardware/nodes`` (or a path) with the links of a node whose devices are not all
    joined alike; rings are then searched in its graph. None: a switch or a full mesh."""
    transport: Annotated[str, _base.SHOWN] = ""
    """Transport (``hardware/transports.yaml``) that gives each of its fields which the network does
    not state; empty where the network states its own."""
    gpus_per_node: _base.Count = 8
    """Devices of one host."""
    scale_up_gpus: _base.Count = 8
    """Devices of one scale-up domain (8 in an HGX node, 72 in an NVL72 rack)."""
    scale_up_segment_gpus: _base.CountOrNone = 0
    """Devices of a scale-up domain that a job takes if one domain is too small for it; 0 means as
    many nodes as are a power of two (64 devices of an NVL72 rack), all where a domain is a node."""
    nics_per_node: _base.Count = 8
    """Network adapters of one host."""
    nic_gbit_per_s: Annotated[_base.Positive, _base.Label("NIC bandwidth")]
    """Rate of one adapter, per direction."""
    nic_efficiency: float = Field(default=0.9, gt=0, le=1)
    nic_latency_us: _base.NotNegative = 5.0
    nic_flag_latency_us: _base.NotNegative | None = None
    nic_flag_traffic: _base.AtLeastOne | None = None
    """As nic_latency_us, and as collective_flag_traffic of a device, where none is given."""
    collective_start_us: _base.NotNegative = 20.0
    collective_chunk_us: _base.NotNegative | None = None
    """As collective_chunk_us of a device, of a collective between nodes; that of the device where
    none is given."""
    collective_fill_limit_us: _base.NotNegative | None = None
    """As collective_fill_limit_us of a device, of a collective between nodes; that of the device
    where none is given."""
    nic_measured: bool = False
    nic_flags: bool = True
    nic_switch_trees: bool = True
    nic_p2p_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the adapter rate that messages between two ranks and exchanges reach; none given
    means nic_efficiency."""
    exchange_peer_us: _base.NotNegative = 0.0
    """What an all-to-all adds for each member beyond the sender's domain."""
    exchange_wait_us: _base.NotNegative = 0.0
    """What each dispatch and combine of a training step waits for hosts and adapters, where experts
    lie in several domains, on top of its own time; it hides where the exchange does."""
    exchange_proxy: Annotated[str, _base.SHOWN] = ""
    """Library (``hardware/exchange_proxies.yaml``) whose host threads issue the writes of a fused
    exchange (DeepEP) between nodes; empty where devices issue their own (IBGDA)."""
    exchange_write_us: _base.NotNegative = 0.0
    """What the host thread of a device needs for a write of a fused exchange and its signal."""
    exchange_proxy_gb_per_s: _base.NotNegative = 0.0
    """Rate of one device through such threads; 0 where adapters bind."""
    rail_optimised: bool = True
    """Whether adapter i of every node of a pod hangs on one leaf switch (rail i). Otherwise all
    adapters of a node hang on one leaf, and other nodes are beyond a spine switch."""
    forwards_in_node: bool = True
    """Whether an exchange first moves what goes to another rail to that rail within the node
    (PXN of NCCL), instead of over a spine switch."""
    pod_nodes: _base.CountOrNone = 0
    """Nodes of one pod, whose adapters reach each other at the full rate; 0 means all nodes."""
    pod_oversubscription: _base.AtLeastOne = 1.0
    """Rate of the adapters of a pod over that of the links that leave it."""
    spine_latency_us: _base.NotNegative = 0.0
    """What a hop between pods takes on top of nic_latency_us, and between nodes of a pod that is
    not rail_optimised."""
    core_pods: _base.CountOrNone = 0
    """Pods of one zone, below one group of core switches; 0 means all pods."""
    core_oversubscription: _base.AtLeastOne = 1.0
    """Rate of the adapters of a zone over that of the links that leave it."""
    core_latency_us: _base.NotNegative = 0.0
    """What a hop between zones takes on top of one between pods."""

    @model_validator(mode="after")
    def _zones_have_pods(self) -> Self:
        if self.core_pods and not self.pod_nodes:
            msg = f"core_pods ({self.core_pods}) counts pods, but pod_nodes is 0: one pod is all"
            raise ConfigError(msg, key="pod_nodes", value=0, allowed="the nodes of a pod")
        if self.scale_up_segment_gpus > self.scale_up_gpus:
            msg = (
                f"scale_up_segment_gpus ({self.scale_up_segment_gpus}) exceeds scale_up_gpus "
                f"({self.scale_up_gpus})"
            )
            key, value = "scale_up_segment_gpus", self.scale_up_segment_gpus
            raise ConfigError(msg, key=key, value=value, allowed=f"<= {self.scale_up_gpus}")
        return self


@once_by_name
def load_network(name: str | Mapping[str, Any], *, key: str = "cluster.network") -> Network:
    """Return a network, by name or from a mapping, with what it leaves out of its transport."""
    data = name
    if not isinstance(name, Mapping):
        data = {"name": name, **_named("networks", "network", name, key)}
    stated = _with_transport(cast("Mapping[str, Any]", data), key)
    return Network.parse(_with_proxy(stated, key), path=key)


@once_by_name
def load_transport(name: Any, *, key: str = "cluster.network.transport") -> Transport:
    """Return a transport by the name it has in ``hardware/transports.yaml``."""
    return Transport.parse({"name": name, **_named("transports", "transport", name, key)}, path=key)


_GIVEN = {
    "exchange_proxy": ExchangeProxy.model_fields.keys() - {"name", "sources"},
    "transport": (Transport.model_fields.keys() | ExchangeProxy.model_fields.keys())
    - {"name", "sources"},
}
"""Field of a network that names an entry of a table -> the fields that the entry gives."""


def renamed(network: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a network without what the transport or proxy gave that ``stated`` replaces."""
    kept = dict(network)
    for field, given in _GIVEN.items():
        if stated.get(field, network.get(field)) != network.get(field):
            kept = {name: value for name, value in kept.items() if name not in given}
    return kept


def _with_transport(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a network's data over the fields of its transport, with their sources."""
    name = data.get("transport") or ""
    if name == "":
        return dict(data)
    return {**_given(f"transport {name}", load_transport(name, key=f"{key}.transport")), **data}


def _with_proxy(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a network's data over the fields of the proxy of its exchanges."""
    named = data.get("exchange_proxy") or ""
    name = named["value"] if isinstance(named, Mapping) else named
    if name == "":
        return dict(data)
    key = f"{key}.exchange_proxy"
    entry = _named("exchange_proxies", "proxy", name, key)
    proxy = ExchangeProxy.parse({"name": name, **entry}, path=key)
    return {**_given(f"proxy {name}", proxy), **data}


def _given(origin: str, entry: _base.Sourced) -> dict[str, Any]:
    """Return what an entry of a table gives to a network, with its sources."""
    fields = entry.model_dump(exclude={"name", "sources"}, exclude_unset=True)
    return {
        field: {"value": value, "source": f"{origin}: {entry.sources[field]}"}
        for field, value in fields.items()
    }


def _named(table: str, what: str, name: Any, key: str) -> Mapping[str, Any]:
    entries = hardware_table(f"{table}.yaml")
    if not isinstance(name, str) or name not in entries:
        msg = f"{key}: unknown {what} {name!r}; known: {', '.join(sorted(entries))}"
        raise ConfigError(msg, key=key, value=name, allowed=sorted(entries))
    entry: Mapping[str, Any] = entries[name]
    return entry
