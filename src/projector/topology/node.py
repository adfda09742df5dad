"""One node as its file describes it: devices, domains, adapters, switches, links, and transfers.

A file names a device and a network; their rates are taken from there and stated nowhere twice.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from projector.config import resources
from projector.config._base import Config, Count, CountOrNone, NotNegative, Positive, Sourced, merge
from projector.config.yaml_file import FILE_SUFFIXES, beside
from projector.errors import ConfigError, shown

Place = Literal["devices", "host", "local"]
"""Between two devices, between a device and host memory, or within the memory of one device."""

Share = Annotated[float, Field(gt=0, le=1)]


class Engine(Config):
    """One way to move data. Rates hold for one direction."""

    what: str = ""
    between: tuple[Place, ...] = Field(min_length=1)
    base: str | None = None
    """Engine that does the work; shares below are then shares of its rate. Its other fields hold
    here too, unless they are given."""
    share: Share = 1.0
    """Share of the narrowest link's rate that large messages reach, in one direction."""
    share_of: Literal["scale_up"] | None = None
    """Where the share stands instead: ``scale_up`` is ``scale_up_efficiency`` of the device, which
    collectives reach with copies by kernels."""
    share_both: Share | None = None
    """The same while the other direction is in use as well; left out, as in one direction."""
    most_gb_per_s: Positive | None = None
    """What the engine itself moves at most; left out, only links limit it."""
    most_of: Literal["host_link"] | None = None
    """Where that rate stands instead: ``host_link`` is ``host_link_gb_per_s`` of the device, which
    is measured with pinned memory."""
    start_us: NotNegative | None = None
    """What a message takes beside the latency of its links; left out, that of the node."""
    cached_mib: NotNegative = 0.0
    """First part of a message that the caches of the host serve, at ``cached_share``."""
    cached_share: Share | None = None
    """Share of the link's rate within ``cached_mib``."""
    repeats: Literal["once", "cached", "always"] = "once"
    """What a kernel that reads the data several times moves: ``once`` if the data then lies in
    the memory of the device, ``cached`` once if it fits in the L2, ``always`` if nothing may
    cache it (coherent memory)."""
    page_kib: NotNegative = 0.0
    """Pages, of which whole ones move; 0 moves what is asked for."""
    low_share: Share | None = None
    """Where the rate varies from run to run, the least share to expect."""
    high_share: Share | None = None
    """The most."""
    compute_units: CountOrNone = 0
    """Compute units that a kernel beside it cannot use while it runs."""

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        low, high = self.low_share or self.share, self.high_share or self.share
        if not low <= self.share <= high:
            msg = f"low_share, share and high_share must ascend, got {low}, {self.share}, {high}"
            raise ConfigError(msg, key="share", value=self.share, allowed=f"{low} to {high}")
        if (self.cached_share is None) != (self.cached_mib == 0.0):
            msg = "cached_mib and cached_share must be given together"
            raise ConfigError(msg, key="cached_share", value=self.cached_share)
        return self


class Transfers(Config):
    """What a node file says about moving data."""

    engines: dict[str, Engine] = Field(min_length=1)
    mpi_over_library: dict[str, Positive] = Field(default_factory=dict)
    """By operation, the time of an MPI collective over that of the collective library, where it is
    not made of messages one after another."""

    @model_validator(mode="after")
    def _has_bases(self) -> Self:
        for name, engine in self.engines.items():
            base = None if engine.base is None else self.engines.get(engine.base)
            if engine.base is not None and (base is None or base.base is not None):
                known = [key for key, one in self.engines.items() if one.base is None]
                legal = ", ".join(known) or "none"
                msg = f"{name}: {engine.base!r} is not an engine by itself; known: {legal}"
                key = f"engines.{name}.base"
                raise ConfigError(msg, key=key, value=engine.base, allowed=known)
        return self

    def resolved(self, name: str) -> Engine:
        """Return an engine with what it takes from its base."""
        engine = self.engines.get(name)
        if engine is None:
            known = list(self.engines)
            msg = f"unknown engine {name!r}; known: {', '.join(known)}"
            raise ConfigError(msg, key="engine", value=name, allowed=known)
        if engine.base is None:
            return engine
        base = self.engines[engine.base]
        given = {field: getattr(engine, field) for field in engine.model_fields_set}
        most = None if base.most_gb_per_s is None else base.most_gb_per_s * engine.share
        both = base.share if base.share_both is None else base.share_both
        scaled = {
            "share": base.share * engine.share,
            "share_both": both * (engine.share if engine.share_both is None else engine.share_both),
            "most_gb_per_s": engine.most_gb_per_s or most,
        }
        return base.model_copy(update=given | scaled)


KIND = "hardware/nodes"
"""Folder of the shipped node files."""

MOST_DEVICES = 1024
"""Devices of one node file; a cluster has nodes, which are counted instead."""

End = int | str
"""A vertex: a device by its number, the others by their name (``numa0``, ``nic3``)."""

Members = int | tuple[tuple[int, ...], ...]
"""Devices of each group: how many, in order of their numbers, or which."""


class Tier(Config):
    """Links of one kind. Rates hold for one direction; links carry both at once."""

    links: Count = 1
    """Physical links side by side between two ends."""
    gb_per_s: Positive | None = None
    """Rate of one of them."""
    rate_of: Literal["peer", "scale_up", "nic"] | None = None
    """Where the rate stands instead: ``peer`` is ``scale_up_peer_gb_per_s`` of the device, for each
    link; ``scale_up`` is its ``scale_up_gb_per_s``, for all links side by side; ``nic`` is
    ``nic_gbit_per_s`` of the network, for each link."""
    latency_us: NotNegative | None = None
    """What one of these links adds to the latency of a message."""
    latency_of: Literal["scale_up"] | None = None
    """Where the latency stands instead: ``scale_up_latency_us`` of the device. A message through
    a switch takes two links, so that each counts half."""

    @model_validator(mode="after")
    def _has_one_rate(self) -> Self:
        if (self.gb_per_s is None) == (self.rate_of is None):
            what = "has no bandwidth" if self.gb_per_s is None else "has two bandwidths"
            msg = f"{what}: give either gb_per_s or rate_of"
            raise ConfigError(msg, key="gb_per_s", value=self.gb_per_s, allowed="> 0")
        if (self.latency_us is None) == (self.latency_of is None):
            what = "has no latency" if self.latency_us is None else "has two latencies"
            msg = f"{what}: give either latency_us or latency_of"
            raise ConfigError(msg, key="latency_us", value=self.latency_us, allowed=">= 0")
        return self


class Switch(Config):
    """A switch that every device of the node is linked to."""

    name: str = "switch"
    chips: Count = 1
    """Chips that form it. Traffic is spread over all of them evenly, so that they are one
    vertex without a limit of its own."""
    tier: str
    """Tier of each device's links to it."""

    @field_validator("name", mode="after")
    @classmethod
    def _name_is_free(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z]\w*", value) or re.fullmatch(r"(numa|port|nic)\d+", value):
            msg = f"a name of letters and digits that no other part has, not {shown(value)}"
            raise ConfigError(msg, key="", value=value, allowed="a name such as nvswitch")
        return value


class Host(Config):
    """Host memory and the links to it."""

    numa: Members
    tier: str
    """Tier of each device's link."""
    port: str | None = None
    """Tier of the port of a domain that its devices share; none means a port for each."""
    between: str | None = None
    """Tier of the links that join the domains of one host."""


class Adapters(Config):
    """Network adapters."""

    devices: Members
    """Devices next to each adapter; a number gives way to the adapters that the network has."""
    tier: str
    """Tier of the link between a device and its adapter."""


class Node(Sourced):
    """A node file."""

    name: str
    device: str
    """Device: a shipped name or a file."""
    network: str | None = None
    """Network of ``hardware/networks.yaml``; left out, the device's usual one."""
    devices: Count | None = Field(default=None, le=MOST_DEVICES)
    """Devices; left out, those of the network's scale-up domain."""
    unit: str = "GPU"
    """What a device is called in reports."""
    package: str = "package"
    """What a group of ``packages`` is called."""
    packages: Members = 1
    start_us: NotNegative = 0.0
    """Latency of a message beside that of its links: what the engine takes that sends it."""
    tiers: dict[str, Tier] = Field(min_length=1)
    links: dict[str, Literal["all"] | tuple[tuple[End, End], ...]] = Field(default_factory=dict)
    """Links between devices by tier: pairs of numbers, or ``all`` pairs."""

    @field_validator("links", mode="before")
    @classmethod
    def _links_are_pairs(cls, value: Any) -> Any:
        """Name the place of what is no pair; a union of types would name neither."""
        for tier, pairs in value.items() if isinstance(value, Mapping) else ():
            if pairs == "all":
                continue
            if not isinstance(pairs, list | tuple):
                msg = f"{tier}: must be a list of pairs or all, got {shown(pairs)}"
                raise ConfigError(msg, key=str(tier), value=pairs, allowed="[[0, 1], ...] or all")
            for place, pair in enumerate(pairs):
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    key = f"{tier}.{place}"
                    msg = f"{key}: must be a pair of devices, got {shown(pair)}"
                    raise ConfigError(msg, key=key, value=pair, allowed="[0, 1]")
        return value

    matrix: tuple[tuple[str, ...], ...] | None = None
    """The same as a square table: the tier of each pair of devices, ``.`` where there is none."""
    switch: Switch | None = None
    host: Host | None = None
    """Host memory; left out, the graph has none."""
    adapters: Adapters | None = None
    """Network adapters; left out, the graph has none."""
    transfers: Transfers | None = None
    """What moves data; left out, nothing is known of it."""


def is_file(name: str | Path) -> bool:
    """Whether a name is that of a file."""
    return isinstance(name, Path) or name.endswith(FILE_SUFFIXES)


@resources.once_by_name
def read_node(name: str | Path | Mapping[str, Any], key: str) -> Node:
    """Return a node by shipped name, by path of a YAML file, or from a mapping.

    With ``extends: NAME`` it starts from that node and overrides it field by field, as a device
    does. Files that a file names are found from its folder.
    """
    return Node.parse(_node_data(name, key, ()), path=key)


def _node_data(
    name: str | Path | Mapping[str, Any], key: str, chain: tuple[str, ...]
) -> dict[str, Any]:
    if not isinstance(name, str | Path | Mapping):
        msg = f"{key}: a node is a name, a file or a mapping, got {shown(name)}"
        raise ConfigError(msg, key=key, value=name, allowed="a name, a file or a mapping")
    data, base, chain = resources.stated_and_base(
        name, KIND, key=key, chain=chain, suffixes=FILE_SUFFIXES
    )
    if not isinstance(name, Mapping) and is_file(name) and "device" in data:
        data["device"] = beside(data["device"], Path(name).parent)
    return data if base is None else merge(_node_data(base, key, chain), data)
