"""What ships with the package: models and devices, listed or one in full."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from projector.config.device import Device, Network, load_network
from projector.config.model import ModelConfig
from projector.report.tables import DIM, add_row, flatten, grid, plain, section

CLASSES = ("fp32", "bf16", "fp8")
"""Types whose peak a list of devices shows."""


def model_list(models: Mapping[str, ModelConfig]) -> list[RenderableType]:
    """Return one line for each model."""
    table = grid("=name", "layers", "hidden", "heads", "kv", "ffn", "experts", "top-k", "vocab")
    for name, model in models.items():
        moe = model.moe
        kv = "MLA" if model.mla else str(model.query_groups)
        add_row(
            table,
            name,
            str(model.num_layers),
            f"{model.hidden_size:,}",
            str(model.num_attention_heads),
            kv,
            f"{moe.ffn_hidden_size if moe else model.ffn_hidden_size:,}",
            str(moe.num_experts) if moe else "",
            str(moe.router_topk) if moe else "",
            f"{model.vocab_size:,}",
        )
    return section("Models", "`projector models NAME` shows one in full", table)


def model_report(model: ModelConfig) -> list[RenderableType]:
    """Return every field of a model."""
    table = grid("=field", "<value")
    for key, value in flatten(model.model_dump()).items():
        stated = key.partition(".")[0] in model.model_fields_set
        add_row(table, key, _runs(value), style=None if stated else DIM)
    return section(model.name, "dim: defaults", table)


def device_list(devices: Mapping[str, Device]) -> list[RenderableType]:
    """Return one line for each device."""
    table = grid("=name", "<device", "GiB", "TB/s", *(kind.upper() for kind in CLASSES))
    for name, device in devices.items():
        add_row(
            table,
            name,
            device.name,
            f"{device.hbm_gib:,.1f}",
            f"{device.hbm_peak_tb_per_s:.2f}",
            *(_rate(device, kind) for kind in CLASSES),
        )
    return section("Devices", "dense peaks in TFLOP/s; `projector hardware NAME` shows one", table)


def device_report(device: Device) -> list[RenderableType]:
    """Return every number of a device and of its usual network, with its source."""
    network = load_network(device.network)
    return [
        *_sourced(device.name, f"{device.architecture}, network {device.network}", device),
        *_sourced(f"Network: {network.name}", "", network),
    ]


def _sourced(title: str, note: str, owner: Device | Network) -> list[RenderableType]:
    table = grid("=field", "<value", "<source")
    for key, value in _fields(owner).items():
        source = owner.sources.get(key) or owner.sources.get(key.partition(".")[0], "")
        add_row(table, key, plain(value), Text(source, style=DIM))
    return section(title, note, table)


def _fields(owner: Device | Network) -> dict[str, Any]:
    values = owner.model_dump(exclude={"sources", "name", "network", "architecture", "vendor"})
    tiles = values.pop("gemm_tiles", ())
    algorithms = values.pop("collective_algorithms", ())
    flat = flatten(values)
    flat |= {f"gemm_tiles.{i}": f"{tile['m']}x{tile['n']}" for i, tile in enumerate(tiles)}
    return flat | {f"collective_algorithms.{i}": name for i, name in enumerate(algorithms)}


def _rate(device: Device, kind: str) -> str:
    return f"{rate:,.1f}" if (rate := device.matrix_peak_tflops.get(kind)) else "-"  # type: ignore[call-overload]  # any name may be asked


def _runs(value: Any) -> str:
    """Write a long pattern as repetitions."""
    if isinstance(value, tuple | list) and len(value) > 8:
        return " ".join(f"{len(list(run))}x{item}" for item, run in groupby(value))
    return plain(value)
