"""Rows that time one matrix multiplication, dense or grouped, some with a quantising pass.

What a row says is taken as it stands: a locked clock replaces the sustained one, and the tile of
a named kernel is the only one it may choose. Grouped rows name the extents of the forward in
every pass. Times are in microseconds.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.config.device import load_device
from projector.kernels.device import MATRIX_TYPES, MAX_TILES, OPERAND_BYTES, TILE_K_BYTES
from projector.kernels.elementwise import elementwise_time_column
from projector.kernels.gemm import gemm_time_columns
from projector.lower.hardware import device_record, native_type
from projector.units import MICROSECOND, TERA
from projector.validate.kind import (
    DeviceFor,
    Kind,
    Outcome,
    Readings,
    Row,
    integer,
    number,
    outcomes,
    read_each,
    readings,
)
from projector.validate.names import device_of, precision_of

MAX_EXTENT = 1 << 40
"""Extents beyond this are no matrix."""

MIN_VALUE, MAX_VALUE = 1e-9, 1e15
"""Times and rates beyond these are no measurement."""

ACTIVATION_BYTES = 2.0
"""A quantising pass starts from 16-bit activations."""

_OUT_BYTES = {"": 2.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}

_Setup = tuple[str, float | None, tuple[float, ...]]
"""Device, locked clock [MHz], and the tile (m, n, cluster) of a named kernel."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One row, read."""

    extents: tuple[int, int, int, int]
    code: int
    out_bytes: float
    grouped_pass: str
    """Field of the device record with the efficiency of this grouped pass, if it is one."""
    setup: _Setup
    quantise_bytes: float
    quantise_launches: float
    measured: float
    """In us."""
    note: str


def project(rows: Sequence[Row]) -> list[Outcome]:
    """Project rows, all GEMMs in one batch."""
    return outcomes(read_each(rows, _read), _times_s, MICROSECOND)


def read(rows: Sequence[Row]) -> Readings:
    """Read rows, to be timed on any devices."""
    return readings(read_each(rows, _read), _times_s, MICROSECOND)


def _times_s(cases: Sequence[_Case], device_for: DeviceFor = load_device) -> NDArray[np.float64]:
    setups = list(dict.fromkeys(case.setup for case in cases))
    records = np.concatenate([_record(device_for, *setup) for setup in setups])
    device = np.array([setups.index(case.setup) for case in cases])
    efficiency = np.array(
        [
            float(records[row][case.grouped_pass]) if case.grouped_pass else 1.0
            for row, case in zip(device, cases, strict=True)
        ]
    )
    gemm_s, _, _ = gemm_time_columns(
        np.array([case.extents for case in cases]), np.array([case.code for case in cases]),
        np.array([case.out_bytes for case in cases]), efficiency, device, records,
    )  # fmt: skip
    nothing = np.zeros(len(cases))
    quantise_s = elementwise_time_column(
        np.array([case.quantise_bytes for case in cases]), nothing, nothing, device, records
    )
    start_s = np.array([device_for(name).kernel_start_us for name, _, _ in setups]) * MICROSECOND
    launches = np.array([case.quantise_launches for case in cases])
    time_s: NDArray[np.float64] = gemm_s + quantise_s + launches * start_s[device]
    return time_s


def _record(
    device_for: DeviceFor, name: str, clock_mhz: float | None, kernel: tuple[float, ...]
) -> NDArray[np.void]:
    """Return the device; a named kernel leaves it one tile, and does not split K."""
    records = device_record(device_for(name), clock_mhz)
    if kernel:
        rows, columns, cluster = kernel
        record = records[0]
        step = record["tiles"][0, TILE_K_BYTES]
        record["tiles"] = np.zeros((MAX_TILES, record["tiles"].shape[1]))
        record["tiles"][0] = (rows, columns, step, 1.0)
        record["num_tiles"] = 1
        record["l2_multicast"] = cluster
        record["gemm_split_k_s"] = math.inf
    return records


def _read(row: Row) -> _Case:
    device = device_of(row.get("gpu") or "")
    kind = precision_of(row.get("in_dtype") or "")
    code = MATRIX_TYPES.index(kind)
    op = (row.get("op") or "").lower()
    m, n, k = (_extent(row, column) for column in ("m", "n", "k"))
    groups = _extent(row, "groups") if (row.get("groups") or "").strip() else 0
    rules = []
    native = native_type(load_device(device), kind)
    if native != kind:
        rules.append(f"{kind} runs as {native}")
    out = (row.get("out_dtype") or "").strip().lower()
    if out not in _OUT_BYTES:
        msg = f"unknown out_dtype {out!r}"
        raise ValueError(msg)
    if not out:
        rules.append("output in 16 bits")
    # Adding to what is there reads it first.
    accumulates = "accumulate=true" in (row.get("kernel_config") or "").lower()
    grouped_pass = ""
    if groups:
        backward = "bwd" in op
        grouped_pass = "grouped_backward_efficiency" if backward else "grouped_forward_efficiency"
        if backward:
            m, n, k = (n, k, m) if "grad_w" in op else (m, k, n)
    quantise_bytes, launches = 0.0, 0.0
    if op.startswith("linear"):
        twice = kind == "fp8" and not re.search(r"block|\dx\d", row.get("in_dtype") or "")
        if twice:
            rules.append("one FP8 scale for the whole activation")
        # As a training step quantises, less the transposed copy for the weight gradient.
        per_element = ACTIVATION_BYTES * (1.0 + twice) + float(OPERAND_BYTES[code])
        quantise_bytes, launches = float(m) * float(k) * per_element, 1.0 + twice
    return _Case(
        extents=(m, n, k, max(1, groups)),
        code=code,
        out_bytes=_OUT_BYTES[out] * (1.0 + accumulates),
        grouped_pass=grouped_pass,
        setup=(device, _locked_clock(row), _named_tile(row)),
        quantise_bytes=quantise_bytes,
        quantise_launches=launches,
        measured=_measured_us(row, 2.0 * m * n * k * max(1, groups)),
        note="; ".join(rules),
    )


def _extent(row: Row, column: str) -> int:
    value = integer(row, column)
    if value is None or not 1 <= value <= MAX_EXTENT:
        msg = f"{column} is {row.get(column)!r}, not an extent"
        raise ValueError(msg)
    return value


def _locked_clock(row: Row) -> float | None:
    match = re.search(r"locked (\d+(?:\.\d+)?) *MHz", row.get("clock_note") or "")
    if match is None:
        return None
    clock_mhz = float(match[1])
    if clock_mhz < 1.0:
        msg = f"a clock of {clock_mhz:g} MHz is no clock"
        raise ValueError(msg)
    return clock_mhz


def _named_tile(row: Row) -> tuple[float, ...]:
    """Return (m, n, cluster) of ``cta 128x256 cluster 2x1``, or nothing.

    A cluster of a x b units shares a load of each operand among b or a of them; the model
    multicasts one operand, among the larger number.
    """
    match = re.search(r"cta (\d+)x(\d+)(?: cluster (\d+)x(\d+))?", row.get("kernel_config") or "")
    if match is None:
        return ()
    rows, columns, high, wide = (int(text or 1) for text in match.groups())
    if min(rows, columns, high, wide) < 1 or max(rows, columns) > MAX_EXTENT:
        msg = f"{match[0]!r} is no tile"
        raise ValueError(msg)
    return float(rows), float(columns), float(max(high, wide))


def _measured_us(row: Row, flop: float) -> float:
    time_us, tflops = number(row, "runtime_us"), number(row, "tflops")
    if time_us is None and tflops is None:
        msg = "neither runtime_us nor tflops"
        raise ValueError(msg)
    for value in (time_us, tflops):
        if value is not None and not MIN_VALUE <= value <= MAX_VALUE:
            msg = f"a time or rate of {value:g}"
            raise ValueError(msg)
    return time_us if time_us is not None else flop / (tflops or 1.0) / TERA / MICROSECOND


def _why_not_eligible(row: Row) -> str:
    missing = [name for name in ("m", "n", "k") if not (row.get(name) or "").strip()]
    return f"no {', '.join(missing)}" if missing else ""


KIND = Kind(
    name="gemm_measured",
    columns=("gpu", "op", "in_dtype", "out_dtype", "m", "n", "k", "runtime_us", "tflops"),
    why_not_eligible=_why_not_eligible,
    project=project,
    read=read,
    precision="in_dtype",
)
