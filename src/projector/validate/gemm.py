"""Rows that time one matrix multiplication, dense or grouped, some with a quantising pass.

What a row says is taken as it stands: a locked clock is the clock, short runs meet the highest
clock and longer ones the power cap, except the operators of a training framework, which meet the
clock of training; the tile of a named kernel is the only one it may choose, and a library that the
device describes brings its menu. Grouped rows name the extents of the forward in every pass. Times
are in microseconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Records
from projector.config.device import Device, load_device
from projector.config.gemm import MOST_ROWS, MOST_UNITS, GemmTile
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.kernels.gemm import gemm_time_columns
from projector.lower.hardware import Run, device_record, native_type, tile_row
from projector.units import MICROSECOND, TB, TERA
from projector.validate.kind import (
    DeviceFor,
    Kind,
    Outcome,
    Readings,
    Row,
    integer,
    number,
    outcomes,
    read_cases,
    readings,
)
from projector.validate.names import device_of, precision_of

MAX_EXTENT = 1 << 40
"""Largest extent of a matrix."""

MIN_VALUE, MAX_VALUE = 1e-9, 1e15
"""Range of measured times and rates."""

ACTIVATION_BYTES = 2.0
"""A quantising pass reads 16-bit activations."""

_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")

_OUT_BYTES = {"": 2.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}

_LIBRARIES = (
    ("CUTLASS CuTeDSL", "cutedsl"),
    ("DeepGEMM", "deepgemm"),
    ("hipBLASLt", "hipblaslt"),
    ("HipKittens", "hipkittens"),
    ("PyTorch", "pytorch"),
)
"""Beginning of a library's name -> name of a GEMM library in device files."""

_LAUNCH_US = {
    ("nvidia", "cuBLASLt"): 3.0,
    ("nvidia", "CUTLASS"): 3.0,
    ("nvidia", "PyTorch"): 11.0,
    ("amd", "hipBLASLt"): 4.0,
    ("amd", "HipKittens"): 4.0,
    ("amd", "PyTorch"): 25.0,
    ("amd", "AITER"): 25.0,
    ("amd", "Triton"): 25.0,
}
"""What benchmarks that launch every call themselves, rather than in a graph, add to a kernel: a
reading of several of their tables, and no property of a device."""

_LEAST_US = {("CUTLASS CuTeDSL", "nvfp4"): 24.0}
"""What a benchmark's host takes to launch one call, so that shorter kernels wait: all sixteen rows
of its two smallest shapes lie at 23 to 26 us, whatever the tile. No property of a device either."""

_INFERENCE_LIBRARIES = {"fp8_block": "deepgemm", "nvfp4": "trtllm_nvfp4"}
"""Library that TensorRT-LLM uses for a type, if the device describes it."""


class _Setup(NamedTuple):
    """Settings that decide the device record of a row."""

    device: str
    clock_mhz: float | None
    """Locked."""
    run: Run
    library: str
    tile: tuple[int, ...]
    """(m, n, cluster_m, cluster_n, whether two units make a pair) of a named kernel."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One row, read."""

    extents: tuple[int, int, int, int]
    code: int
    out_bytes: float
    grouped_pass: str
    """Field of the device record with the efficiency of this grouped pass, if it is one."""
    setup: _Setup
    quantise: str
    """Quantising kernel of the device, if the row has one."""
    launched_by: str
    """Library whose benchmark launches every call itself."""
    least_us: float
    """Time between two calls of that benchmark at the least."""
    measured: float
    """In us."""
    note: str


def project(rows: Sequence[Row]) -> list[Outcome]:
    """Project rows, all GEMMs in one batch."""
    return outcomes(read_cases(rows, _read), _times_s, MICROSECOND)


def read(rows: Sequence[Row]) -> Readings:
    """Read rows, to be timed on any devices.

    A profile is made for training, so longer runs are taken to show its sustained clock.
    """
    return readings(read_cases(rows, partial(_read, longer="training")), _times_s, MICROSECOND)


def _times_s(cases: Sequence[_Case], device_for: DeviceFor = load_device) -> Floats:
    setups = list(dict.fromkeys(case.setup for case in cases))
    records = np.concatenate([_record(device_for(setup.device), setup) for setup in setups])
    device = np.array([setups.index(case.setup) for case in cases])
    efficiency = np.array(
        [
            float(records[row][case.grouped_pass]) if case.grouped_pass else 1.0
            for row, case in zip(device, cases, strict=True)
        ]
    )
    gemm_s, _, _ = gemm_time_columns(
        np.array([case.extents for case in cases]),
        np.array([case.code for case in cases]),
        np.array([case.out_bytes for case in cases]),
        efficiency,
        device,
        records,
    )
    around_s = [_around_s(device_for(case.setup.device), case) for case in cases]
    least_s = [case.least_us * MICROSECOND for case in cases]
    time_s: Floats = np.maximum(gemm_s + np.array(around_s), least_s)
    return time_s


def _around_s(device: Device, case: _Case) -> float:
    """Seconds of the work that is timed with the GEMM."""
    launch_us = _LAUNCH_US.get((device.vendor, case.launched_by), 0.0)
    return _quantise_s(device, case) + launch_us * MICROSECOND


def _quantise_s(device: Device, case: _Case) -> float:
    if not case.quantise:
        return 0.0
    kernel = device.quantising.get(case.quantise)
    m, _, k, _ = case.extents
    if kernel is None:
        # No kernel of its own is described: one pass over the activation.
        passes = ACTIVATION_BYTES + float(OPERAND_BYTES[case.code])
        rate = device.hbm_peak_tb_per_s * device.hbm_efficiency * TB
        return float(m) * k * passes / rate + device.kernel_start_us * MICROSECOND
    moved = float(m) * k * kernel.bytes_per_element
    return kernel.start_us * MICROSECOND + moved / (kernel.tb_per_s * TB)


def _record(device: Device, setup: _Setup) -> Records:
    """Return the device; a named kernel leaves it one tile, and does not split K."""
    records = device_record(device, setup.clock_mhz, gemm_library=setup.library, run=setup.run)
    if setup.tile:
        rows, columns, high, wide, pair = setup.tile
        tile = GemmTile(
            m=rows,
            n=columns,
            k_bytes=device.gemm_tiles[0].k_bytes,
            cluster_m=high,
            cluster_n=wide,
            pair="m" if pair else None,
        )
        records[0]["tiles"][0] = tile_row(device, tile)
        records[0]["num_tiles"] = 1
        records[0]["gemm_max_split"] = 0
    return records


def _read(row: Row, longer: Run = "loaded") -> _Case:
    device = device_of(row.get("gpu") or "")
    kind = precision_of(row.get("in_dtype") or "")
    code = MATRIX_TYPES.index(kind)
    op = (row.get("op") or "").lower()
    m, n, k = (_extent(row, column) for column in ("m", "n", "k"))
    groups = _extent(row, "groups") if (row.get("groups") or "").strip() else 0
    rules = []
    profile = load_device(device)
    native = native_type(profile, kind)
    if native != kind:
        rules.append(f"{kind} runs as {native}")
    out = (row.get("out_dtype") or "").strip().lower()
    if out not in _OUT_BYTES:
        msg = f"unknown out_dtype {out!r}"
        raise ValueError(msg)
    if not out:
        rules.append("output in 16 bits")
    # Accumulating reads the output first.
    accumulates = "accumulate=true" in (row.get("kernel_config") or "").lower()
    grouped_pass = ""
    if groups:
        backward = "bwd" in op
        grouped_pass = "grouped_backward_efficiency" if backward else "grouped_forward_efficiency"
        if backward:
            m, n, k = (n, k, m) if "grad_w" in op else (m, k, n)
    in_dtype = (row.get("in_dtype") or "").lower()
    block_scaled = kind == "fp8" and re.search(r"block|\dx\d", in_dtype) is not None
    scaling = "fp8_block" if block_scaled else kind
    return _Case(
        extents=(m, n, k, max(1, groups)),
        code=code,
        out_bytes=_OUT_BYTES[out] * (1.0 + accumulates),
        grouped_pass=grouped_pass,
        setup=_Setup(
            device,
            _locked_clock(row, profile),
            _run(row, longer),
            _library(row, scaling),
            _named_tile(row),
        ),
        launched_by=(row.get("library") or "").strip(),
        least_us=_least_us(row, kind),
        quantise=scaling if op.startswith("linear") else "",
        measured=_measured_us(row, 2.0 * m * n * k * max(1, groups)),
        note="; ".join(rules),
    )


def _extent(row: Row, column: str) -> int:
    value = integer(row, column)
    if value is None or not 1 <= value <= MAX_EXTENT:
        msg = f"{column} is {row.get(column)!r}, not an extent"
        raise ValueError(msg)
    return value


def _locked_clock(row: Row, device: Device) -> float | None:
    """Return the MHz of ``locked 1300 MHz``, None where the clock is free."""
    match = re.search(r"\blocked (\S+?) *MHz", row.get("clock_note") or "")
    if match is None:
        return None
    peak = device.highest_clock_mhz
    clock_mhz = float(match[1]) if _NUMBER.fullmatch(match[1]) else 0.0
    if not 1.0 <= clock_mhz <= peak:
        msg = f"clock_note: {match[0]!r} must be from 1 to {peak:g} MHz on {device.name}"
        raise ValueError(msg)
    return clock_mhz


def _run(row: Row, longer: Run) -> Run:
    if (row.get("library") or "").startswith("TransformerEngine"):
        return "training"
    return "short" if "short run" in (row.get("clock_note") or "") else longer


def _least_us(row: Row, kind: str) -> float:
    name = row.get("library") or ""
    limits_us = [
        us
        for (start, precision), us in _LEAST_US.items()
        if name.startswith(start) and precision == kind
    ]
    return max(limits_us, default=0.0)


def _library(row: Row, scaling: str) -> str:
    name = row.get("library") or ""
    if name.startswith("TensorRT-LLM"):
        return _INFERENCE_LIBRARIES.get(scaling, "default")
    return next((known for start, known in _LIBRARIES if name.startswith(start)), "default")


def _named_tile(row: Row) -> tuple[int, ...]:
    """Return (m, n, cluster_m, cluster_n, pair) of ``mma 256x128 cta 128x128 cluster 2x1``.

    An instruction of twice the rows of its unit's tile is one of two units.
    """
    config = row.get("kernel_config") or ""
    match = re.search(r"\bcta (\S+)(?: cluster (\S+))?", config)
    if match is None:
        return ()
    tile, cluster = _pair(match[1]), _pair(match[2] or "1x1")
    if not (1 <= min(tile) <= max(tile) <= MOST_ROWS):
        msg = f"kernel_config: tile {match[0]!r} must be from 1x1 to {MOST_ROWS}x{MOST_ROWS}"
        raise ValueError(msg)
    if not (1 <= min(cluster) <= max(cluster) <= MOST_UNITS):
        msg = f"kernel_config: cluster {match[0]!r} must be from 1x1 to {MOST_UNITS}x{MOST_UNITS}"
        raise ValueError(msg)
    instruction = re.search(r"\bmma (\d{1,6})x", config)
    pair = instruction is not None and int(instruction[1]) == 2 * tile[0]
    return *tile, *cluster, int(pair)


def _pair(text: str) -> tuple[int, int]:
    """Return the numbers of ``128x256``, zeros if it has none."""
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


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
