"""Clusters of published rows, each read once; a network counts where a row states it in words."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

from projector.config.cluster import ClusterConfig
from projector.config.device_file import load_device
from projector.config.network import load_network
from projector.validate.names import load_table_names

_INFINIBAND = {200.0: "infiniband_hdr", 400.0: "infiniband_ndr", 800.0: "infiniband_xdr"}
"""Rate of an adapter [Gbit/s] -> its generation, where a row says InfiniBand alone."""

_SLOWEST = 10.0
"""Rate of the slowest adapter [Gbit/s]; below, a text speaks of something else."""


class Adapters(NamedTuple):
    """Network adapters of a node."""

    number: int
    gbit_per_s: float


def stated_adapters(text: str, usual: Adapters, gpus_per_node: int) -> Adapters | None:
    """Return the adapters that a text states, None where it states none.

    ``8x400G`` counts adapters, ``400 Gb/s per GPU`` and the generation of an adapter hold for each,
    and ``3200 Gbps`` without such a word is the sum of a node, as the sources here print it. Rates
    of links inside a node do not count. The number of the device's ``usual`` ones holds where the
    text has none.
    """
    words = load_table_names().adapter_words
    for match in re.finditer(words["rate"], text, re.VERBOSE):
        around = text[max(0, match.start() - 28) : match.end() + 12]
        unit = match["unit"]
        count = int(match["count"] or 0) * int(match["cards"] or 1)
        # A large B behind G or T is a byte.
        is_byte = unit[0] in "GT" and unit[1:2] == "B"
        scale = 1000.0 if unit[0] in "Tt" else 1.0
        gbit = float(match["rate"]) * (scale * (8.0 if is_byte else 1.0))
        if match["count"] and not (count and gbit):
            raise ValueError(f"{match[0].strip()!r} states no adapters")
        if _speaks(words["scale_up"], around) or (unit in {"G", "Gb", "Gbit"} and not count):
            continue
        if gbit < _SLOWEST:
            continue
        if count:
            return Adapters(count, gbit)
        if re.search(r"GPU", match["per"] or "", re.IGNORECASE):
            return Adapters(gpus_per_node, gbit)
        near = text[max(0, match.start() - 28) : match.end() + 28]
        of_node = _speaks(words["of_node"], near)
        if not of_node and (gbit == _generation(text) or _speaks(words["of_adapter"], near)):
            return Adapters(usual.number, gbit)
        return Adapters(usual.number, gbit / usual.number)
    bare = re.search(r"\b(\d{1,2}) ?[x\u00d7*] ?(100|200|400|800)\b(?! ?\w)", text)
    if bare and int(bare[1]) and re.search(words["network"], text):
        return Adapters(int(bare[1]), float(bare[2]))
    for counted in re.finditer(
        r"\b(\d{1,2}) ?[x\u00d7*] ?(?:NVIDIA |Mellanox |InfiniBand |IB )?", text
    ):
        generation = _generation(text[counted.end() :], at_start=True)
        if generation and int(counted[1]):
            return Adapters(int(counted[1]), generation)
    generation = _generation(text)
    return Adapters(usual.number, generation) if generation else None


def _speaks(words: str, text: str) -> bool:
    return re.search(words, text, re.IGNORECASE) is not None


def _generation(text: str, *, at_start: bool = False) -> float:
    """Return the rate of the adapter that a text names by its generation, 0 without one."""
    find = re.match if at_start else re.search
    for words, gbit in load_table_names().adapters.items():
        if find(words, text, re.IGNORECASE):
            return gbit
    return 0.0


def stated_network(text: str, gbit_per_s: float) -> tuple[str, str]:
    """Return the field of ``cluster.network`` that a text names the network by, and the name.

    Both are empty where the text says nothing; then the device's usual network is taken.
    ``gbit_per_s`` is the rate of an adapter.
    """
    names = load_table_names()
    for field, words in (("extends", names.machines), ("transport", names.transports)):
        for word, name in words.items():
            if re.search(word, text, re.IGNORECASE):
                return field, name
    if re.search(r"InfiniBand|\bIB\b", text) and gbit_per_s in _INFINIBAND:
        return "transport", _INFINIBAND[gbit_per_s]
    return "", ""


class Stated(NamedTuple):
    """What a row says of its network; nothing means the device's usual one."""

    adapters: Adapters | None = None
    network: tuple[str, str] = ("", "")
    """Field of ``cluster.network``, and the name there; both empty where the row has none."""
    exchange_proxy: str = ""
    """Library that a fused exchange ran on, empty where the row names none."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``cluster.network`` that a row says."""
        found: dict[str, Any] = {self.network[0]: self.network[1]} if self.network[1] else {}
        if self.adapters:
            found["nics_per_node"], found["nic_gbit_per_s"] = self.adapters
        if self.exchange_proxy:
            found["exchange_proxy"] = self.exchange_proxy
        return found


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


@lru_cache(maxsize=4096)
def cluster_of(device: str, gpus: int, stated: Stated = USUAL) -> tuple[ClusterConfig, str]:
    """Return a cluster of ``gpus`` devices, and the rule that was needed, if any."""
    loaded = load_device(device)
    network = stated.fields()
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
    return ClusterConfig.parse(data), rule
