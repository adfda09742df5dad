"""The rows of a table that a device is fitted to, and the groups that are held out together."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from projector.config.device import Device
from projector.config.device_file import load_device
from projector.errors import ConfigError, ProjectorError
from projector.lower.hardware import native_type
from projector.validate.attention import default_or_name
from projector.validate.kind import Kind, Readings, Row, integer
from projector.validate.names import PROFILES, device_of, precision_of
from projector.validate.registry import kind_of
from projector.validate.table import Table

ANOTHER_DEVICE = "another device"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of table is calibrated."""

    group: Callable[[Row], str]
    """Rows of one group are held out together, so that no shape is both fitted and judged."""

    fields: Callable[[Device, Sequence[Row]], tuple[str, ...]]
    """What is fitted unless the user says."""

    rule: Callable[[Row], str]
    """Why a row that can be projected says nothing about these fields, or ``""``."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that count."""

    kind: str
    table: str
    digest: str
    """SHA-256 of the file."""
    readings: Readings
    groups: tuple[str, ...]
    """Group of each row."""
    fields: tuple[str, ...]
    """Default fields for these rows."""
    left_out: dict[str, int]
    """Rows that were not used, by reason."""


def read_rows(kind_name: str, path: str | Path, device: str, shipped: Device) -> Rows:
    """Return the rows of a table that measure one device.

    Parameters
    ----------
    kind_name : str
        Kind of table.
    path : str or Path
        CSV file.
    device : str
        Shipped name of the device, or the path of its profile.
    shipped : Device
        That device.
    """
    kind = kind_of(kind_name)
    how = _KINDS.get(kind.name)
    if how is None or kind.read is None:
        msg = f"{kind_name} tables cannot be calibrated to; use one of {', '.join(_KINDS)}"
        raise ConfigError(msg, key="kind", value=kind_name, allowed=list(_KINDS))
    table = Table(path, kind.columns, kind.name)
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    names: dict[str, str] = {}
    for line in table:
        why = line.error or _why_not(kind, how, line.row, (device, shipped), names)
        if why:
            left_out[why] += 1
        else:
            rows.append(line.row)
    readings = kind.read(rows)
    left_out.update(readings.failures)
    if not readings.positions:
        devices = sorted({name for name in names.values() if name})
        has = f"it has {', '.join(devices)}" if devices else "it names no device we know"
        if device in devices:
            has = "; ".join(why for why in left_out if why != ANOTHER_DEVICE)
        msg = f"device: {path} has no row that {device} can be fitted to ({has})"
        raise ConfigError(msg, key="device", value=device, allowed=devices)
    used = [rows[position] for position in readings.positions]
    return Rows(
        kind=kind.name,
        table=Path(path).name,
        digest=_digest(Path(path)),
        readings=readings,
        groups=tuple(how.group(row) for row in used),
        fields=how.fields(shipped, used),
        left_out=dict(left_out.most_common()),
    )


def _why_not(
    kind: Kind, how: _Kind, row: Row, device: tuple[str, Device], names: dict[str, str]
) -> str:
    text = row.get(kind.device) or ""
    if text not in names:
        names[text] = _named(text, *device)
    if names[text] != device[0]:
        return ANOTHER_DEVICE
    try:
        why = kind.why_not_eligible(row) or how.rule(row)
    except ValueError as error:
        return str(error)
    doubt = (row.get("doubt") or "").strip()
    return why or (f"doubtful: {doubt}" if doubt else "")


def _named(text: str, device: str, profile: Device) -> str:
    """Return the device of a text, ``""`` if it names none.

    A path of a profile of the same name is the same device: one that was calibrated before.
    """
    try:
        name = device_of(text)
        same = name.endswith(PROFILES) and load_device(name).name == profile.name
    except (ValueError, ProjectorError):
        return ""
    return device if same else name


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _any_row(row: Row) -> str:
    del row
    return ""


def _gemm_group(row: Row) -> str:
    return f"n={integer(row, 'n')} k={integer(row, 'k')}"


def _gemm_fields(device: Device, rows: Sequence[Row]) -> tuple[str, ...]:
    kinds = sorted({native_type(device, precision_of(row.get("in_dtype") or "")) for row in rows})
    return (
        *(f"sustained_clock_mhz.{kind}" for kind in kinds),
        "gemm_overhead_us",
        "gemm_hbm_efficiency" if device.gemm_hbm_efficiency else "hbm_efficiency",
        "l2_fill_bytes_per_clk_per_cu",
        "gemm_overlap_loss",
        "gemm_epilogue_exposed",
    )


def _attention_group(row: Row) -> str:
    return f"head_dim={integer(row, 'head_dim')} {(row.get('pass') or '').strip().lower()}"


def _attention_fields(device: Device, rows: Sequence[Row]) -> tuple[str, ...]:
    names = ("forward_efficiency", "backward_efficiency", "softmax_exposed", "tile_overhead_us")
    kernels = sorted({default_or_name(row, device) for row in rows})
    parents = [
        "attention" if name == "default" else f"attention_kernels.{name}" for name in kernels
    ]
    return tuple(f"{parent}.{name}" for parent in parents for name in names)


def _collective_group(row: Row) -> str:
    return (row.get("collective") or "").strip()


def _collective_fields(device: Device, rows: Sequence[Row]) -> tuple[str, ...]:
    del device, rows
    return (
        "scale_up_efficiency",
        "collective_start_us",
        "scale_up_latency_us",
        "collective_self_copy_share",
    )


def _one_node_rule(row: Row) -> str:
    if (integer(row, "n_nodes") or 1) > 1:
        return "more than one node, which the network decides"
    if (row.get("collective") or "").startswith("MoE"):
        return "an exchange among experts, another kernel than the collective library's"
    return ""


_KINDS = {
    "gemm_measured": _Kind(_gemm_group, _gemm_fields, _any_row),
    "attention_measured": _Kind(_attention_group, _attention_fields, _any_row),
    "collectives_measured": _Kind(_collective_group, _collective_fields, _one_node_rule),
}
