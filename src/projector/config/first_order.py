"""Constants of the first-order model, and devices as it sees them: no compute units."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from projector.config import resources
from projector.config._base import AtLeastOne, Config, Count, NotNegative, Positive, Sourced, merge
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.device_file import FIRST_ORDER_DEVICES, YAML, is_first_order, load_device
from projector.config.device_kernels import MatrixType
from projector.config.network import Network, load_network
from projector.errors import ConfigError
from projector.units import GBIT, GIB, TB, TERA

TILES, FIRST_ORDER = FIDELITIES = "tiles", "first-order"
"""Tile models and replays, or the closed forms of ``docs/first_order.md``."""


def by_closed_forms(fidelity: str) -> bool:
    """Return whether a fidelity is the first-order one."""
    if fidelity not in FIDELITIES:
        msg = f"fidelity: {fidelity!r} is unknown; legal: {', '.join(FIDELITIES)}"
        raise ConfigError(msg, key="fidelity", value=fidelity, allowed=list(FIDELITIES))
    return fidelity == FIRST_ORDER


Derate = Annotated[float, Field(gt=0, le=1)]
"""A share of the roof that is reached."""


class FirstOrderConfig(Config):
    """What the first-order model assumes (``docs/first_order.md``).

    All defaults are those of the Roofline methodology, v0.2, 2026-04-30; it names what each was
    taken from. None was fitted here.
    """

    training_mfu: Derate = 0.45
    """Share of the peak that training reaches (section 1, after the Ultra-Scale Playbook)."""
    decode_mfu: Derate = 0.35
    """Share of the roof that a decode step reaches, on its slanted part too (section 1)."""
    prefill_mfu: Derate = 0.55
    """Share of the roof that prefill reaches (section 1)."""
    overlap: float = Field(default=0.8, ge=0, le=1)
    """Share of the shorter of compute and communication that hides behind the longer (section 4,
    after the Ultra-Scale Playbook)."""
    tp_crossing: AtLeastOne = 1.40
    """What a step is multiplied by where tensor parallelism leaves the scale-up domain (section
    3.4, after the Ultra-Scale Playbook; empirical)."""
    weight_bytes: NotNegative = 2.0
    """BF16 weight of a parameter (section 2.1)."""
    master_bytes: NotNegative = 4.0
    """Its FP32 master weight (section 2.1)."""
    gradient_bytes: NotNegative = 4.0
    """Its FP32 gradient (section 2.1)."""
    accumulation_bytes: NotNegative = 2.0
    """What FP32 accumulation takes on top (section 2.1: 18 becomes 20); it is the BF16 gradient
    that lies beside the FP32 sum unless a GEMM adds to that in place."""
    momentum_bytes: NotNegative = 4.0
    """FP32 first moment of AdamW (section 2.1)."""
    variance_bytes: NotNegative = 4.0
    """FP32 second moment of AdamW (section 2.1)."""
    checkpointed_share: float = Field(default=0.30, ge=0, le=1)
    """What is left of the activations under checkpointing (section 2.3: 70 % are traded)."""


GB_PER_S = 1e9


class FirstOrderDevice(Sourced):
    """An accelerator by its datasheet alone; rates are decimal, capacities binary."""

    kind: Literal["first_order"] = "first_order"
    """Tells its file from that of a device with compute units."""
    name: str
    vendor: str = "other"
    peak_tflops: dict[MatrixType, Positive] = Field(min_length=1)
    """Dense peak by type."""
    memory_gib: Positive
    memory_tb_per_s: Positive
    devices_per_node: Count = 8
    scale_up_domain: Count
    """Devices that the fast links join."""
    scale_up_gb_per_s: Positive
    """Fast links of one device, one direction."""
    scale_out_gb_per_s: Positive
    """Network of one device, one direction."""
    tdp_w: Positive | None = None
    """Power limit, where it is published."""
    capex_usd: Positive | None = None
    """Price of one device with its share of host and network, where the user states it."""

    def peak_flop_per_s(self, kind: str, *, key: str = "training.precision") -> float:
        """Return the dense peak of a type."""
        known: dict[str, float] = {str(name): rate for name, rate in self.peak_tflops.items()}
        # 16-bit types run alike on all of these devices.
        rate = known.get(kind, known.get("bf16") if kind == "fp16" else None)
        if rate is None:
            names = ", ".join(known)
            msg = f"{key}: {self.name} has no peak of {kind}; it has {names}"
            raise ConfigError(msg, key=key, value=kind, allowed=list(known))
        return rate * TERA

    @property
    def memory_bytes(self) -> float:
        """Memory of one device in bytes."""
        return self.memory_gib * GIB

    @property
    def memory_bytes_per_s(self) -> float:
        """Bandwidth of the memory."""
        return self.memory_tb_per_s * TB

    @property
    def scale_up_bytes_per_s(self) -> float:
        """Fast links of one device, one direction."""
        return self.scale_up_gb_per_s * GB_PER_S

    @property
    def scale_out_bytes_per_s(self) -> float:
        """Network of one device, one direction."""
        return self.scale_out_gb_per_s * GB_PER_S


def first_order_device(
    device: "str | Path | Mapping[str, Any] | Device | FirstOrderDevice",
    network: Network | None = None,
    *,
    key: str = "cluster.device",
) -> FirstOrderDevice:
    """Return a device as the first-order model sees it.

    It is a shipped name of either kind, a file, a mapping, or a device. An ordinary device gives
    its datasheet peaks, its memory and the links of ``network``, by default of its usual one.
    """
    if isinstance(device, FirstOrderDevice):
        return device
    if not isinstance(device, Device):
        if is_first_order(device, key):
            return _read(device, key=key)
        try:
            device = load_device(device, key=key)
        except ConfigError as error:
            raise _with_both_kinds(error, device, key) from None
    return _view(device, network or load_network(device.network))


def _with_both_kinds(error: ConfigError, device: Any, key: str) -> ConfigError:
    if not isinstance(device, str) or not isinstance(error.allowed, list) or error.key != key:
        return error
    names = resources.shipped(FIRST_ORDER_DEVICES)
    msg = f"{error.message}; first-order devices: {', '.join(names)}"
    return ConfigError(msg, key=key, value=device, allowed=[*error.allowed, *names])


def _view(device: Device, network: Network) -> FirstOrderDevice:
    nic_gb_per_s = network.nic_gbit_per_s * GBIT / GB_PER_S
    per_device = nic_gb_per_s * network.nics_per_node / network.gpus_per_node
    return FirstOrderDevice(
        kind="first_order",
        name=device.name,
        vendor=device.vendor,
        peak_tflops={kind: device.peak_tflops(kind) for kind in device.matrix_peak_tflops},
        memory_gib=device.hbm_gib,
        memory_tb_per_s=device.hbm_peak_tb_per_s,
        devices_per_node=network.gpus_per_node,
        scale_up_domain=network.scale_up_gpus,
        scale_up_gb_per_s=device.scale_up_gb_per_s,
        scale_out_gb_per_s=per_device,
        tdp_w=device.tdp_w,
    )


def devices_of_a_node(cluster: Mapping[str, Any]) -> int:
    """Return the devices of one host of a cluster, stated or those that its network says."""
    device = cluster.get("device", cluster.get("gpu"))
    if is_first_order(device, "cluster.device"):
        given = cluster.get("gpus_per_node")
        return given or first_order_device(device, key="cluster.device").devices_per_node
    return ClusterConfig.parse(cluster, path="cluster").gpus_per_node


@resources.once_by_name
def _read(device: str | Path | Mapping[str, Any], *, key: str) -> FirstOrderDevice:
    return FirstOrderDevice.parse(_data(device, key, ()), path=key)


def _data(device: Any, key: str, chain: tuple[str, ...]) -> dict[str, Any]:
    data, base, chain = resources.stated_and_base(
        device, FIRST_ORDER_DEVICES, key=key, chain=chain, suffixes=YAML
    )
    return data if base is None else merge(_data(base, key, chain), data)
