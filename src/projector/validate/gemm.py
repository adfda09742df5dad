"""Rows that time matrix multiplications: one, the two of a backward, dense or grouped.

What a row says is taken as it stands: a locked clock is the clock, short runs meet the highest
clock and longer ones the power cap, except the operators of a training framework, which meet the
clock of training; a library that the device describes brings its menu. Where a benchmark timed one
kernel, its tile is the only one it may choose. Where a tuner named the fastest kernel of its
library, the projection chooses for itself, and the named one is projected beside. Grouped rows name
the extents of the forward in every pass. Times are in microseconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.config.bands import kernel_classes
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.kernels.gemm import (
    MAX_SPLIT_K,
    gemm_term_columns,
    gemm_time_columns,
    seconds_of_terms,
)
from projector.lower import hardware
from projector.units import MICROSECOND, TB, TERA
from projector.validate import gemm_benchmarks
from projector.validate import kind as kinds
from projector.validate.kind import Kind, missing, whole
from projector.validate.names import Loop, device_of, precision_of
from projector.validate.words import said

MAX_EXTENT = 1 << 40
"""Largest extent of a matrix."""

SIXTEEN_BITS = 2.0
"""Bytes of an element of what is quantised, and of a gradient."""

_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")

_OUT_BYTES = {"": 2.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}

_FORWARD, _BACKWARD = "grouped_forward_efficiency", "grouped_backward_efficiency"


class Setup(NamedTuple):
    """Settings that decide the device record of a row."""

    device: str
    clock_mhz: float | None
    """The clock that is locked, if it is."""
    run: hardware.Run
    library: str
    member: str
    """Library that has the kernel which the row names; ``""`` where it does not say."""
    kind: str
    """Matrix type that runs."""


class Gemm(NamedTuple):
    """One matrix multiplication of a row."""

    m: int
    n: int
    k: int
    groups: int
    out_bytes: float
    """Of an element, a read-modify-write counted twice."""
    grouped_pass: str = ""
    """Field of the device record with the efficiency of this grouped pass, if it is one."""
    kernel: gemm_benchmarks.NamedKernel | None = None
    """The kernel that the library takes by rule."""
    of_weight: bool = False
    """Whether it gives the gradient of the weight."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row, read."""

    gemms: tuple[Gemm, ...]
    """In the order in which they run, one after the other."""
    code: int
    """Place of the type that runs in `MATRIX_TYPES`."""
    setup: Setup
    kernel: gemm_benchmarks.NamedKernel | None
    """The kernel that the row names."""
    quantise: str
    """Quantising kernel of the device, if the row has one."""
    quantised: tuple[int, ...]
    """Elements of each 16-bit matrix that is quantised."""
    accumulated: tuple[int, ...]
    """Elements of each gradient that is added to the one before."""
    loop: Loop
    beside_collective: bool
    """Whether a collective of the same node runs at the same time."""
    measured: float
    """In us."""
    note: str


def project(rows: Sequence[kinds.Row]) -> list[kinds.Outcome]:
    """Project rows, all GEMMs in one batch."""
    parsed = kinds.read_cases(rows, read_case)
    found = kinds.outcomes(parsed, case_times, MICROSECOND)
    tuned = [
        (position, case)
        for position, case in enumerate(parsed)
        if not isinstance(case, str) and case.kernel is not None and case.kernel.tuned
    ]
    if tuned:
        times = case_times([case for _, case in tuned], as_named=True) / MICROSECOND
        for (position, _), time_us in zip(tuned, times.tolist(), strict=True):
            found[position] = replace(found[position], as_named=time_us)
    return found


def read(rows: Sequence[kinds.Row]) -> kinds.Readings:
    """Read rows, to be timed on any devices.

    A profile is made for training, so longer runs are taken to show its sustained clock.
    """
    return kinds.readings(
        kinds.read_cases(rows, partial(read_case, longer="training")), case_times, MICROSECOND
    )


def case_times(
    cases: Sequence[Case], device_for: kinds.DeviceFor = load_device, *, as_named: bool = False
) -> Floats:
    """Return the seconds of rows, float64[cases].

    ``as_named`` projects a kernel that a tuner named, rather than the model's own choice.
    """
    first = np.cumsum([0, *(len(case.gemms) for case in cases)])[:-1]
    total_s = np.add.reduceat(_gemm_times(cases, device_for, as_named=as_named), first)
    for position, case in enumerate(cases):
        device = device_for(case.setup.device)
        if case.beside_collective:
            total_s[position] *= 1.0 + hardware.slowdowns(device)[0]
        # Two gradients are read and one is written.
        moved = 3.0 * SIXTEEN_BITS * sum(case.accumulated)
        rate = device.hbm_peak_tb_per_s * (device.elementwise_efficiency or device.hbm_efficiency)
        start_s = len(case.accumulated) * device.kernel_start_us * MICROSECOND
        total_s[position] += _quantise_s(device, case) + (start_s + moved / (rate * TB))
        total_s[position] += case.loop.added_us * MICROSECOND
    least_s = [case.loop.least_us * MICROSECOND for case in cases]
    time_s: Floats = np.maximum(total_s, least_s)
    return time_s


def _gemm_times(cases: Sequence[Case], device_for: kinds.DeviceFor, *, as_named: bool) -> Floats:
    """Return the seconds of every GEMM of the cases, one after the other."""
    work = [
        (case, gemm, _kernel(case, gemm, as_named=as_named))
        for case in cases
        for gemm in case.gemms
    ]
    keys = [(case.setup, kernel, gemm.of_weight) for case, gemm, kernel in work]
    position = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    records = np.concatenate([_record(device_for(key[0].device), *key) for key in position])
    device = np.array([position[key] for key in keys])
    extents = np.array([gemm[:4] for _, gemm, _ in work])
    code = np.array([case.code for case, _, _ in work])
    out_bytes = np.array([gemm.out_bytes for _, gemm, _ in work])
    efficiency = np.array(
        [
            float(records[row][gemm.grouped_pass]) if gemm.grouped_pass else 1.0
            for row, (_, gemm, _) in zip(device, work, strict=True)
        ]
    )

    def columns(rows: Ints) -> tuple[Ints, Ints, Floats, Floats, Ints, Records]:
        return extents[rows], code[rows], out_bytes[rows], efficiency[rows], device[rows], records

    time_s = np.full(len(work), np.inf)
    free = np.array([row for row, (_, _, kernel) in enumerate(work) if kernel is None], np.int64)
    time_s[free] = gemm_time_columns(*columns(free))[0]
    given = [
        (row, parts) for row, (_, _, kernel) in enumerate(work) if kernel for parts in kernel.splits
    ]
    rows, parts = np.array(given, np.int64).reshape(-1, 2).T
    # The record of a named kernel has one tile, so that only the parts of K make the choice.
    choice = np.minimum(parts, MAX_SPLIT_K) - 1
    np.minimum.at(time_s, rows, seconds_of_terms(gemm_term_columns(*columns(rows), choice)))
    return time_s


def _kernel(case: Case, gemm: Gemm, *, as_named: bool) -> gemm_benchmarks.NamedKernel | None:
    """Return the only kernel that may be chosen, None where a whole menu may."""
    if gemm.kernel is not None or case.kernel is None:
        return gemm.kernel
    return case.kernel if as_named or not case.kernel.tuned else None


def _quantise_s(device: Device, case: Case) -> float:
    """Seconds of the kernels that quantise 16-bit matrices before the GEMM."""
    if not case.quantise:
        return 0.0
    kernel = device.quantising.get(case.quantise)
    count, elements = len(case.quantised), float(sum(case.quantised))
    if kernel is None:
        # No kernel of its own is described: one pass over the matrix.
        passes = SIXTEEN_BITS + float(OPERAND_BYTES[case.code])
        rate = device.hbm_peak_tb_per_s * device.hbm_efficiency * TB
        return elements * passes / rate + count * device.kernel_start_us * MICROSECOND
    moved = elements * kernel.bytes_per_element
    return count * kernel.start_us * MICROSECOND + moved / (kernel.tb_per_s * TB)


def _record(
    device: Device, setup: Setup, kernel: gemm_benchmarks.NamedKernel | None, of_weight: bool
) -> Records:
    """Return the device; a named kernel leaves it one tile.

    In the gradient of a weight both operands have a scale for every 128 elements of a row, so that
    an accumulator takes two of them one after the other. Elsewhere the weight has one for a whole
    block of 128 x 128, and the two are multiplied once for a row of the tile.
    """
    records = hardware.device_record(
        device,
        setup.clock_mhz,
        gemm_library=setup.library,
        gemm_type=setup.kind,
        rows_along_k=True,
        run=setup.run,
    )
    if kernel is not None:
        menu = hardware.gemm_menu(device, setup.library, setup.kind)
        own = [offer for offer in menu if offer.library == setup.member]
        offer = gemm_benchmarks.offer_of(own or menu, kernel)
        records[0]["tiles"][0] = hardware.tile_row(device, offer.tile, offer)
        records[0]["num_tiles"] = 1
    if of_weight:
        records[0]["gemm_scale_clk"] *= 2.0
    return records


def read_case(row: kinds.Row, longer: hardware.Run = "loaded") -> Case:
    """Read one row.

    Runs that are neither short nor of a training framework have the clock ``longer``.
    """
    device = device_of(row.get("gpu") or "")
    profile = load_device(device)
    kind = precision_of(row.get("in_dtype") or "")
    if kind == "fp8" and re.search(r"block|\dx\d", (row.get("in_dtype") or "").lower()):
        kind = "fp8_block"
    native = hardware.native_type(profile, kind)
    # A library of a device without a rate for block scales has them in its own efficiency.
    same = native == kind or (kind, native) == ("fp8_block", "fp8")
    rules = [] if same else [f"{kind} runs as {native}"]
    out = kinds.plain(row, "out_dtype")
    if out not in _OUT_BYTES:
        raise ValueError(f"unknown out_dtype {out!r}")
    if not out:
        rules.append("output in 16 bits")
    op = (row.get("op") or "").lower()
    gemms = _gemms(row, op, _OUT_BYTES[out])
    library = _library(row, kind, profile)
    kernel = gemm_benchmarks.named_kernel(row.get("kernel_config") or "")
    if kernel is not None and native in profile.gemm_library(library).whole_k:
        # What a name leaves open is then one part.
        kernel = kernel._replace(splits=kernel.splits[:1])
    loop = gemm_benchmarks.loop_of(row)
    run: hardware.Run = "short" if "short run" in (row.get("clock_note") or "") else longer
    time_us, tflops = kinds.time_or_rate(row, "runtime_us")
    flop = sum(2.0 * gemm.m * gemm.n * gemm.k * gemm.groups for gemm in gemms)
    return Case(
        gemms=gemms,
        code=MATRIX_TYPES.index(native),
        setup=Setup(
            device,
            _locked_clock(row, profile),
            loop.run or run,
            library,
            said(row, "tuned_library"),
            native,
        ),
        kernel=kernel,
        quantise=kind if "linear" in op else "",
        quantised=_quantised(row, gemms),
        accumulated=_accumulated(row, gemms),
        loop=loop,
        beside_collective="during" in op,
        measured=time_us if time_us is not None else flop / (tflops or 1.0) / TERA / MICROSECOND,
        note="; ".join(rules),
    )


def _library(row: kinds.Row, kind: str, device: Device) -> str:
    """Return the library of a row; one for shuffled weights has kernels of its own."""
    name = gemm_benchmarks.library_of(row, kind)
    shuffled = f"{name}_preshuffled"
    return (
        shuffled
        if "shuffled" in (row.get("layout") or "") and shuffled in device.gemm_libraries
        else name
    )


def _gemms(row: kinds.Row, op: str, out_bytes: float) -> tuple[Gemm, ...]:
    """Return what a row multiplies: C[m, n] forward, and of a backward the gradients it names.

    The gradient of the input is ``dA[m, k] = dC[m, n] @ B[n, k]``, that of the weight
    ``dB[n, k] = dC[m, n].T @ A[m, k]``.
    """
    extent = partial(whole, row, most=MAX_EXTENT, what="an extent")
    m, n, k = (extent(column) for column in ("m", "n", "k"))
    groups = extent("groups") if (row.get("groups") or "").strip() else 0
    # Accumulating reads the output first.
    accumulates = "accumulate=true" in (row.get("kernel_config") or "").lower()
    out_bytes *= 1.0 + accumulates
    backward = re.search(r"\bbwd|\bbackward", op) is not None
    # One group is one GEMM, and equal problems of a batch are no groups of a router.
    grouped = groups > 1 and "batched" not in op
    grouped_pass = (_BACKWARD if backward else _FORWARD) if grouped else ""
    forward, of_input, of_weight = (
        Gemm(*extents, max(1, groups), out_bytes, grouped_pass)
        for extents in ((m, n, k), (m, k, n), (n, k, m))
    )
    if groups:
        forward, of_input, of_weight = (
            gemm._replace(kernel=gemm_benchmarks.grouped_kernel(row, gemm.n, groups))
            for gemm in (forward, of_input, of_weight)
        )
    of_weight = of_weight._replace(of_weight=True)
    if not backward:
        return (forward,)
    if "dgrad+wgrad" in op:
        return of_input, of_weight
    return (of_weight,) if "grad_w" in op else (of_input,)


def _quantised(row: kinds.Row, gemms: tuple[Gemm, ...]) -> tuple[int, ...]:
    """Return the elements of each matrix that is quantised before the first GEMM.

    An inference library keeps its weights quantised. Primus-Turbo's operators
    (``primus_turbo/pytorch/ops/gemm_fp8.py``) quantise activation and weight forward, and backward
    the gradient of the output, which with one scale for the tensor serves both GEMMs. With a scale
    for each block it is quantised along its rows and along its columns, and the activation along
    its columns.
    """
    first = gemms[0]
    a, b = first.m * first.k * first.groups, first.k * first.n * first.groups
    if not (row.get("library") or "").startswith("Primus-Turbo"):
        return (first.m * first.k,)
    if len(gemms) == 1:
        return a, b
    # Of a backward, the first multiplies the gradient of the output.
    activation = first.m * first.n * first.groups
    return (a, a, activation) if "blockwise" in (row.get("library") or "") else (a,)


def _accumulated(row: kinds.Row, gemms: tuple[Gemm, ...]) -> tuple[int, ...]:
    """Return the elements of each gradient that a row adds to the one before.

    Primus-Turbo's benchmark calls ``out.backward`` again and again and never clears the gradients.
    """
    if len(gemms) == 1 or not (row.get("library") or "").startswith("Primus-Turbo"):
        return ()
    return tuple(gemm.m * gemm.n * gemm.groups for gemm in gemms)


def _locked_clock(row: kinds.Row, device: Device) -> float | None:
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


KIND = Kind(
    name="gemm_measured",
    columns=("gpu", "op", "in_dtype", "out_dtype", "m", "n", "k", "runtime_us", "tflops"),
    why_not_eligible=lambda row: missing(row, ("m", "n", "k")) or kinds.why_not_measured(row),
    project=project,
    quantity="gemm",
    classes=lambda row, device: kernel_classes(device, precision_of(row.get("in_dtype") or "")),
    read=read,
    precision="in_dtype",
)
