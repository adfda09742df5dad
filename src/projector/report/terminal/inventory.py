"""Shipped models and devices, listed or one in full."""

from collections.abc import Mapping
from functools import partial
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config._base import Sourced
from projector.config.device import Device
from projector.config.device_file import origins_of
from projector.config.device_kernels import MatrixType
from projector.config.first_order import FirstOrderDevice
from projector.config.model import ModelConfig
from projector.config.network import Network, load_network
from projector.envelope import flatten
from projector.operations.counts import ModelCounts
from projector.report.terminal.grid import DIM, Grid, count, percent, plain, section

CLASSES = ("fp32", "bf16", "fp8")
"""Types whose peak a list of devices shows."""

GROUPS = (
    "gemm_libraries.",
    "attention_kernels.",
    "attention.",
    "expert_layer.",
    "expert_exchange.",
)
"""Fields that have tables of their own."""

ESTIMATED = "(est.)"
"""End of the name of a model that its maker has not published."""

DITTO = "″"
"""Mark for the same source as the row above."""


def model_list(models: Mapping[str, ModelConfig]) -> list[RenderableType]:
    """Return one line for each model."""
    table = Grid.of(
        "models", models.items(), gap=1,
        shown=lambda row: f"{row[0]} {ESTIMATED}" if row[1].name.endswith(ESTIMATED) else row[0],
        kv=lambda row: "MLA" if row[1].mla else str(row[1].query_groups),
        ffn=lambda row: (row[1].moe or row[1]).ffn_hidden_size, stated=lambda value: value or "",
    )  # fmt: skip
    note = f"`projector models NAME` shows one in full; {ESTIMATED}: estimated, not published"
    return section("Models", note, table)


def model_report(model: ModelConfig, counts: ModelCounts) -> list[RenderableType]:
    """Return the size of a model and every field of it."""
    table = Grid("=field", "<value")
    for key, value in flatten(model.model_dump()).items():
        stated = key.partition(".")[0] in model.model_fields_set
        table.add_row(key, _runs(value), style=None if stated else DIM)
    size = f"{counts.parameters_total:,} parameters ({count(counts.parameters_total)})"
    if counts.parameters_active != counts.parameters_total:
        size += f", {count(counts.parameters_active)} active for a token"
    return [Text(size), Text(), *section(model.name, "dim: defaults", table)]


def device_list(devices: Mapping[str, Device]) -> list[RenderableType]:
    """Return one line for each device."""
    rates: dict[str, Any] = {kind: partial(_rate, kind) for kind in CLASSES}
    table = Grid.of("devices", devices.items(), **rates)
    return section("Devices", "dense peaks in TFLOP/s; `projector hardware NAME` shows one", table)


def device_summary(device: Device) -> list[RenderableType]:
    """Return what a datasheet says on its first page, with what kernels reach of it."""
    network = load_network(device.network)
    rates = Grid("=type", "peak TFLOP/s", "sustained MHz", "long GEMMs TFLOP/s")
    for kind, peak in device.matrix_peak_tflops.items():
        clock = device.sustained_clock_mhz[kind]
        reached = peak * clock / device.peak_clock_mhz * device.gemm_efficiency[kind]
        rates.add_row(kind.upper(), f"{peak:,.1f}", f"{clock:,.0f}", f"{reached:,.1f}")
    rest = {
        "memory": f"{device.hbm_gib:,.1f} GiB at {device.hbm_peak_tb_per_s:g} TB/s, of which "
        f"{percent(device.hbm_efficiency, 0)} are reached",
        "caches": f"L2 {device.l2_mib:g} MiB"
        + (f", last level {device.mall_mib:g} MiB" if device.mall_mib else ""),
        "links": f"{device.scale_up_gb_per_s:g} GB/s a direction to {network.scale_up_gpus} GPUs, "
        f"of which {percent(device.scale_up_efficiency, 0)} are reached",
        "network": f"{network.name}; {network.gpus_per_node} GPUs a node, "
        f"{network.nics_per_node} x {network.nic_gbit_per_s:g} Gbit/s",
        "power": f"{device.tdp_w:,.0f} W",
        "numbers": ", ".join(
            f"{len(fields)} {owner}" for owner, fields in origins_of(device).fields.items()
        ),
    }
    table = Grid("=", "<", header=False)
    for name, text in rest.items():
        table.add_row(name, text)
    note = "what long kernels of training sustain; --full: every number with its source"
    return [*section(device.name, note, rates), Padding(table, (0, 0, 0, 2))]


def device_report(device: Device) -> list[RenderableType]:
    """Return every number of a device and of its usual network, with its source."""
    network = load_network(device.network)
    parts = _sourced(device.name, f"{device.architecture}, network {device.network}", device)
    return [*_owners(device), *parts, *_sourced(f"Network: {network.name}", "", network)]


def first_order_list(devices: Mapping[str, FirstOrderDevice]) -> list[RenderableType]:
    """Return one line for each device that only the first-order model knows."""

    def peak(row: tuple[str, FirstOrderDevice], *kinds: MatrixType) -> str:
        known = (row[1].peak_tflops.get(kind) for kind in kinds)
        return next((f"{rate:,.1f}" for rate in known if rate), "-")

    table = Grid.of(
        "first_order_devices", devices.items(), wide=lambda row: peak(row, "bf16"),
        narrow=lambda row: peak(row, "fp8", "int8"),
    )  # fmt: skip
    note = "for --fidelity first-order alone; FP8, or INT8 without it"
    return section("First-order devices", note, table)


def first_order_report(device: FirstOrderDevice) -> list[RenderableType]:
    """Return every number of a first-order device, with its source."""
    values = device.model_dump(exclude={"sources", "kind", "name", "vendor"}, exclude_none=True)
    rows = flatten(values).items()
    table = Grid.of("values", rows, source=lambda row: Text(_source(device, row[0]), DIM))
    return section(device.name, "first-order device: --fidelity first-order alone", table)


def _owners(device: Device) -> list[RenderableType]:
    """Return a line for each device or family whose numbers a device has."""
    rows = [
        (
            owner,
            str(len(fields)),
            ", ".join(dict.fromkeys(each.partition(".")[0] for each in fields)),
        )
        for owner, fields in origins_of(device).fields.items()
    ]
    table = Grid.of("owners", rows)
    return section("Whose numbers these are", "counted with their parts", table)


def _sourced(title: str, note: str, owner: Device | Network) -> list[RenderableType]:
    """Return a table of an owner's own fields, and one for each group that it nests."""
    groups: dict[str, dict[str, Any]] = {title: {}}
    for key, value in _fields(owner).items():
        group = next((name for name in GROUPS if key.startswith(name)), "")
        groups.setdefault(group.rstrip(".") or title, {})[key.removeprefix(group)] = value
    parts = []
    for name, fields in groups.items():
        prefix = "" if name == title else f"{name}."
        parts += section(name, note if name == title else "", _table(owner, prefix, fields))
    return parts


def _table(owner: Device | Network, prefix: str, fields: Mapping[str, Any]) -> Grid:
    sources = [_source(owner, f"{prefix}{key}") for key in fields]
    told = [
        DITTO if source and source == above else source
        for source, above in zip(sources, ["", *sources], strict=False)
    ]
    return Grid.of("sourced", zip(fields, fields.values(), told, strict=True))


def _source(owner: Sourced, key: str) -> str:
    """Return the source of a field, or of the nearest mapping that has one for all of it."""
    while key not in owner.sources and "." in key:
        key = key.rpartition(".")[0]
    return owner.sources.get(key, "")


def _fields(owner: Device | Network) -> dict[str, Any]:
    named = {"sources", "name", "network", "architecture", "vendor"}
    values = owner.model_dump(exclude=named, exclude_none=True)
    algorithms = values.pop("collective_algorithms", ())
    menus = {"gemm_tiles": values.pop("gemm_tiles", ())}
    for name, library in values.get("gemm_libraries", {}).items():
        menus[f"gemm_libraries.{name}.tiles"] = library.pop("tiles")
        for kind, menu in library.pop("tiles_of").items():
            menus[f"gemm_libraries.{name}.tiles_of.{kind}"] = menu
    flat = flatten(values)
    flat |= {name: ", ".join(_tile(tile) for tile in menu) for name, menu in menus.items() if menu}
    return flat | {f"collective_algorithms.{i}": name for i, name in enumerate(algorithms)}


def _tile(tile: Mapping[str, Any]) -> str:
    """Write a tile as ``projector gemm --tile`` reads it."""
    cluster = tile["cluster_m"], tile["cluster_n"]
    text = f"{tile['m']}x{tile['n']}"
    return f"{text}:{cluster[0]}x{cluster[1]}" if max(cluster) > 1 else text


def _rate(kind: str, row: tuple[str, Device]) -> str:
    return f"{rate:,.1f}" if (rate := row[1].matrix_peak_tflops.get(kind)) else "-"  # type: ignore[call-overload]  # any name may be asked


def _runs(value: Any) -> str:
    """Write a long pattern as repetitions."""
    if isinstance(value, tuple | list) and len(value) > 8:
        return " ".join(f"{len(list(run))}x{item}" for item, run in groupby(value))
    return plain(value)
