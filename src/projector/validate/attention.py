"""Rows that time fused attention: forward, backward or both in turn.

A rate is turned into a time by the count of FLOP that the row's convention names. Times are in
milliseconds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints, Records
from projector.config.bands import attention_classes
from projector.config.device import Device
from projector.config.device_file import attention_band, load_device
from projector.kernels.attention import attention_time_columns
from projector.kernels.device import MATRIX_TYPES
from projector.lower.hardware import Run, device_record, native_type
from projector.units import MILLISECOND, TERA
from projector.validate import kind as kinds
from projector.validate.kind import Kind, missing, whole
from projector.validate.names import device_of, load_table_names, precision_of
from projector.validate.words import number_said, said

MAX_EXTENT = 1 << 26
"""Largest extent of an attention."""

SLOWS_AFTER_S = 0.02
"""Benchmarks run at the boost clock while their kernels are short. Of the way down to the clock of
training a kernel of t seconds has gone t / (t + this): published rows of 10 ms and more fall 4 to
14 % behind shorter ones on H200 and Blackwell, and 10 to 60 ms fit them equally well."""

RUNS: tuple[Run, Run] = ("short", "training")
"""Clocks between which the clock of a row lies."""

_EXTENTS = ("batch", "q_heads", "kv_heads", "seq_len", "head_dim", "v_head_dim")

_SCRIPT = "4*b*s^2*h*d, halved if causal; fwd+bwd x3.5"
"""How flash-attention's benchmark script counts."""


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One row, read."""

    extents: tuple[int, ...]
    causal: bool
    window: int
    forward: bool
    backward: bool
    code: int
    device: str
    kernel: str
    """Name that the device has for the implementation."""
    measured: float
    """In ms."""
    note: str


def project(rows: Sequence[kinds.Row]) -> list[kinds.Outcome]:
    """Project rows, all passes in two batches."""
    return kinds.outcomes(kinds.read_cases(rows, read_case), _times_s, MILLISECOND)


def read(rows: Sequence[kinds.Row]) -> kinds.Readings:
    """Read rows, to be timed on any devices."""
    return kinds.readings(kinds.read_cases(rows, read_case), _times_s, MILLISECOND)


def _times_s(cases: Sequence[AttentionCase], device_for: kinds.DeviceFor = load_device) -> Floats:
    kernels = list(dict.fromkeys((case.device, case.kernel) for case in cases))
    records = {
        run: np.concatenate(
            [device_record(device_for(name), None, kernel, run=run) for name, kernel in kernels]
        )
        for run in RUNS
    }
    device = [kernels.index((case.device, case.kernel)) for case in cases]
    return case_times_s(case_columns(cases, device), records)


class CaseColumns(NamedTuple):
    """Rows as columns."""

    extents: Ints
    causal: Ints
    window: Ints
    forward: Flags
    backward: Flags
    code: Ints
    device: Ints
    """Position of the record of the device with the kernel."""


def case_columns(cases: Sequence[AttentionCase], device: Sequence[int]) -> CaseColumns:
    """Return rows as columns, each with the position of its record."""
    return CaseColumns(
        np.array([case.extents for case in cases]),
        np.array([case.causal for case in cases], np.int64),
        np.array([case.window for case in cases]),
        np.array([case.forward for case in cases]),
        np.array([case.backward for case in cases]),
        np.array([case.code for case in cases]),
        np.array(device),
    )


def case_times_s(columns: CaseColumns, records: Mapping[Run, Records]) -> Floats:
    """Return the seconds of rows whose clock moves with their length, float64[rows].

    ``records`` has DEVICE[kernels on devices] by each of `RUNS`.
    """
    short_s, long_s = (_passes_s(columns, records[run]) for run in RUNS)
    return short_s + (long_s - short_s) * short_s / (short_s + SLOWS_AFTER_S)


def _passes_s(columns: CaseColumns, records: Records) -> Floats:
    total_s = np.zeros(len(columns.device))
    for backward, selected in enumerate((columns.forward, columns.backward)):
        time_s, _ = attention_time_columns(
            columns.extents[selected],
            columns.causal[selected],
            columns.window[selected],
            np.full(int(selected.sum()), backward),
            columns.code[selected],
            columns.device[selected],
            records,
        )
        total_s[selected] += time_s
    return total_s


def read_case(row: kinds.Row) -> AttentionCase:
    """Read a row."""
    device = device_of(row.get("gpu") or "")
    kind = precision_of(row.get("dtype") or "")
    name = re.sub(r"\(.*?\)", "", row.get("pass") or "").strip().lower()
    forward, backward = kinds.chosen("pass", name, load_table_names().passes)
    mask = kinds.plain(row, "causal")
    masks = load_table_names().masks
    if mask not in masks:
        raise ValueError(f"unknown mask {mask!r}")
    causal, rule = masks[mask]
    profile = load_device(device)
    native = native_type(profile, kind)
    described = _kernel(row, profile)
    rules = [
        rule,
        f"{kind} runs as {native}" if native != kind else "",
        "" if described else f"{profile.name} does not describe it: its default kernel",
    ]
    batch, heads, kv_heads, length, d_qk, d_v = (
        whole(row, column, MAX_EXTENT, what="an extent") for column in _EXTENTS
    )
    if heads % kv_heads:
        raise ValueError(f"{heads} heads do not share {kv_heads} key heads evenly")
    flop = 2.0 * batch * heads * float(length) ** 2 * (d_qk + d_v)
    return AttentionCase(
        extents=(batch, heads, kv_heads, length, length, d_qk, d_v),
        causal=causal,
        window=min(number_said(row, "window"), MAX_EXTENT),
        forward=forward,
        backward=backward,
        code=MATRIX_TYPES.index(kind),
        device=device,
        kernel=default_or_name(row, profile),
        measured=_measured_ms(row, flop, name, causal=causal),
        note="; ".join(filter(None, rules)),
    )


def default_or_name(row: kinds.Row, device: Device) -> str:
    """Return the device's name for a row's implementation, ``default`` where it is that one."""
    name = _kernel(row, device)
    is_default = not name or device.attention_kernels[name] == device.attention
    return "default" if is_default else name


def _kernel(row: kinds.Row, device: Device) -> str:
    """Return the device's name for a row's implementation, ``""`` where it has none."""
    kind = native_type(device, precision_of(row.get("dtype") or ""))
    names = said(row, "attention_kernels").split()
    # Kernels for 8-bit operands are others.
    candidates = [f"{name}_{kind}" for name in names] + names
    return next((name for name in candidates if name in device.attention_kernels), "")


def _measured_ms(row: kinds.Row, forward_flop: float, name: str, *, causal: bool) -> float:
    time_ms, tflops = kinds.time_or_rate(row, "time_ms")
    if time_ms is not None:
        return time_ms
    assert tflops is not None
    factor = _flop_factor(row.get("flops_convention") or "", name, causal=causal)
    return forward_flop * factor / tflops / TERA / MILLISECOND


def _flop_factor(convention: str, name: str, *, causal: bool) -> float:
    """Return the FLOP that a convention counts, relative to a forward without a mask."""
    if convention.strip() == "flash-attention benchmark script":
        convention = _SCRIPT
    if "4*b*s^2*h*d" not in convention:
        raise ValueError(f"a rate without a known count of FLOP: {convention!r}")
    half = 0.5 if causal and re.search(r"halved|/2 causal", convention) else 1.0
    forward, backward = load_table_names().passes[name]
    if not backward:
        return half
    both = re.search(r"fwd\+bwd x(\d+(?:\.\d+)?)", convention)
    backward_only = re.search(r"(?<!\+)bwd x(\d+(?:\.\d+)?)", convention)
    if both is None and backward_only is None:
        raise ValueError(f"a backward rate without a known count of FLOP: {convention!r}")
    times = float(backward_only[1]) if backward_only else float(both[1]) - 1.0  # type: ignore[index]
    if times <= 0.0:
        raise ValueError(f"a backward of {times:g} forwards: {convention!r}")
    return half * (times + forward)


def _why_not_eligible(row: kinds.Row) -> str:
    if empty := missing(row, _EXTENTS):
        return empty
    if not (row.get("impl") or "").startswith(load_table_names().attention_kernels):
        return "no mature implementation"
    return kinds.why_not_measured(row)


def _classes(row: kinds.Row, device: Device) -> tuple[str, ...]:
    """Return the classes of a row that bands are kept for: its pass known the least counts."""
    case = read_case(row)
    kernel = device.attention_kernels.get(case.kernel, device.attention)
    width = case.extents[-2]
    passes = [backward for backward, runs in enumerate((case.forward, case.backward)) if runs]
    known = [kernel.evidence(device.name, width, backward=bool(each)) for each in passes]
    return attention_classes(max(known, key=attention_band))


KIND = Kind(
    name="attention_measured",
    columns=("gpu", "impl", "dtype", "pass", *_EXTENTS, "causal", "tflops", "time_ms"),
    why_not_eligible=_why_not_eligible,
    project=project,
    quantity="attention",
    classes=_classes,
    read=read,
    precision="dtype",
)
