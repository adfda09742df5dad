"""Devices as the records kernels read, in SI units."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from projector.arrays import Ints, Records
from projector.config._base import Config
from projector.config.cluster import ClusterConfig
from projector.config.device import Device, TrainingClass
from projector.config.device_kernels import (
    K_PARTS,
    AttentionKernel,
    ExpertKernels,
    GemmTile,
    MatrixType,
)
from projector.config.training import TrainingConfig
from projector.errors import ConfigError
from projector.kernels.device import (
    DEVICE,
    FIRST_NARROW,
    MATRIX_TYPES,
    MAX_HEAD_DIMS,
    OPERAND_BYTES,
)
from projector.kernels.grouped import GROUPED
from projector.lower.stages import uses_fp8_attention
from projector.units import MEGA, MICROSECOND, PICO, TB, TERA, in_si

Run = Literal["training", "loaded", "short"]
RUNS: tuple[Run, ...] = ("training", "loaded", "short")
"""Clocks that single kernels may run at."""

SIXTEEN_BIT_BYTES = 2.0
"""Bytes of an output element, whatever the operands are."""

_STAND_INS = {
    "mxfp4": "nvfp4",
    "nvfp4": "mxfp8",
    "mxfp6": "mxfp8",
    "mxfp8": "fp8",
    "fp8_block": "fp8",
    "fp8": "bf16",
    "int8": "bf16",
    "tf32": "fp32",
    "bf16": "fp16",
    "fp16": "bf16",
}
"""What runs in place of a matrix type the device lacks: the next wider one that can hold its
values. Two kinds of FP4 stand in for each other in one direction, as MXFP4 runs on units of NVFP4
and not the other way round; integers are computed in 16 bits."""


SCALE_BLOCK = 128
"""Elements of K with one scale in ``fp8_block``."""

SLOWDOWNS = ("within", "network", "collective")
"""What runs beside something: compute beside a collective of one domain, and beside one that
leaves it; a collective beside compute."""


def gemm_shares(cluster: ClusterConfig) -> tuple[float, ...]:
    """Rate of a GEMM in a training step over that alone, for each of `MATRIX_TYPES`."""
    given = cluster.software.gemm_share
    wide, narrow = (
        cluster.device.training_gemm_share.get(name, 1.0) if given is None else given
        for name in get_args(TrainingClass)
    )
    return (*[wide] * FIRST_NARROW, *[narrow] * (len(MATRIX_TYPES) - FIRST_NARROW))


def slowdowns(device: Device) -> tuple[float, float, float]:
    """Return by which share each of `SLOWDOWNS` takes longer."""
    within, beyond = device.comm_compute_slowdown, device.comm_compute_slowdown_network
    return within, given(beyond, within), device.compute_comm_slowdown


def under_fsdp1(device: Device) -> Device:
    """Return the device at the clocks that it sustains under FSDP 1."""
    clock, memory = device.fsdp1_clock_share, device.fsdp1_memory_clock_share
    if clock == memory == 1.0:
        return device
    sustained, attention = device.sustained_clock_mhz, device.attention_clock_mhz
    return device.model_copy(
        update={
            "sustained_clock_mhz": {kind: clock * each for kind, each in sustained.items()},
            "attention_clock_mhz": None if attention is None else clock * attention,
            "hbm_peak_tb_per_s": memory * device.hbm_peak_tb_per_s,
        }
    )


def within_a_step(record: Records, device: Device) -> Records:
    """Slow attention and memory-bound operators of a record as a training step does, in place."""
    for field in ("attention_flop_per_s", "attention_exp_per_s", "attention_vector_per_s"):
        record[field] *= device.training_attention_share
    record["elementwise_bytes_per_s"] *= device.training_memory_share
    return record


def device_records(clusters: Sequence[ClusterConfig]) -> tuple[Records, Ints]:
    """Return one record for each distinct device and clock, and each row's index."""
    keys: dict[tuple[int, float | None], int] = {}
    records: list[Records] = []
    index = np.empty(len(clusters), np.int64)
    for row, cluster in enumerate(clusters):
        key = (id(cluster.device), cluster.gpu_clock_mhz)
        if key not in keys:
            keys[key] = len(records)
            records.append(device_record(cluster.device, cluster.gpu_clock_mhz))
        index[row] = keys[key]
    return np.concatenate(records), index


def device_record(
    device: Device,
    clock_mhz: float | None = None,
    attention_kernel: str = "default",
    *,
    gemm_library: str = "default",
    gemm_type: str | None = None,
    rows_along_k: bool = False,
    run: Run = "training",
) -> Records:
    """Return one device as DEVICE[1].

    A stated clock locks that of every type. ``attention_kernel`` and ``gemm_library`` are
    implementations that the device describes; its default ones for any other name. ``gemm_type``
    chooses the menu of a library whose menus differ by type; without one the record serves all
    types, with the menu and the ``step_clk`` of bf16.

    ``rows_along_k`` says that A and B of GEMMs lie along K in memory, so that an odd K makes their
    rows unaligned. In a job they do not where K is a number of tokens, the only K that may be odd.

    ``run`` is the clock of single kernels: ``training`` the sustained one; ``loaded`` (a second of
    the same kernel) and ``short`` (a few launches) the highest that the power cap allows, where the
    device has a power model. Attention has a clock of its own for short runs.
    """
    record = np.zeros(1, DEVICE)
    row = record[0]
    copy_fields(row, device)
    for code, name in enumerate(MATRIX_TYPES):
        native = native_type(device, name)
        clock = (clock_mhz or _clock_mhz(device, native, run)) * MEGA
        rate = device.matrix_flop_per_clk_per_cu[native] * device.gemm_efficiency[native]  # type: ignore[index]
        row["matrix_flop_per_s"][code] = rate * device.compute_units * clock
        row["clock_hz"][code] = clock
    row["vector_flop_per_s"] = device.vector_tflops * TERA
    sixteen_bit_clock = row["clock_hz"][MATRIX_TYPES.index("bf16")]
    row["transcendental_per_s"] = (
        device.transcendental_per_clk_per_cu * device.compute_units * sixteen_bit_clock
    )
    row["l2_fill_bytes_per_clk_per_cu"] = given(
        device.gemm_fill_bytes_per_clk_per_cu, device.l2_fill_bytes_per_clk_per_cu
    )
    l2_clock = _l2_clock_mhz(device, clock_mhz, run) / device.peak_clock_mhz
    row["l2_bytes_per_s"] = device.l2_tb_per_s * l2_clock * TB
    row["mall_bytes_per_s"] = device.mall_tb_per_s * TB
    row["hbm_bytes_per_s"] = device.hbm_peak_tb_per_s * device.hbm_efficiency * TB
    elementwise = device.elementwise_efficiency or device.hbm_efficiency
    row["elementwise_bytes_per_s"] = device.hbm_peak_tb_per_s * elementwise * TB
    row["grouped_forward_efficiency"] = device.grouped_gemm_efficiency_forward
    row["grouped_backward_efficiency"] = device.grouped_gemm_efficiency_backward
    _add_gemm(row, device, gemm_library, gemm_type or "bf16")
    row["gemm_unaligned_loads"] = device.gemm_unaligned_loads if rows_along_k else 1.0
    if run != "training" and clock_mhz is None:
        _add_power(row, device, run)
    _attention(row, device, clock_mhz, attention_kernel, run)
    return record


def _clock_mhz(device: Device, kind: str, run: Run) -> float:
    power, sustained = device.power, device.sustained_clock_mhz[kind]  # type: ignore[index]  # any name may be asked
    if run == "training" or power is None or kind not in power.pj_per_flop:
        return sustained
    if power.max_clock_mhz < sustained:
        # Only here: training does not ask, and who varies a sustained clock need not know of it.
        msg = (
            f"power.max_clock_mhz ({power.max_clock_mhz:g}) of {device.name} is below the "
            f"sustained {kind} clock ({sustained:g}); raise it, or take run training"
        )
        raise ConfigError(
            msg, key="power.max_clock_mhz", value=power.max_clock_mhz, allowed=f">= {sustained:g}"
        )
    return power.max_clock_mhz


def _l2_clock_mhz(device: Device, clock_mhz: float | None, run: Run) -> float:
    """Return the clock that L2 starts from; a power cap lowers it with that of the units.

    That it follows shows on a B200 locked at 1,300 MHz and on Hopper under its cap. The clock of
    training is fitted to whole steps and says nothing of L2, which then keeps the peak one.
    """
    if clock_mhz is not None:
        return clock_mhz
    if run == "training" or device.power is None:
        return device.peak_clock_mhz
    return device.power.max_clock_mhz


def _add_gemm(row: np.void, device: Device, library: str, kind: str) -> None:
    chosen = device.gemm_library(library)
    start_us = device.gemm_overhead_us if chosen.overhead_us is None else chosen.overhead_us
    row["gemm_overhead_s"] = start_us * MICROSECOND
    split_k = kind not in chosen.whole_k and chosen.split_k
    parts = K_PARTS if split_k is True else sorted(set(split_k or ()))
    row["num_gemm_splits"] = len(parts)
    row["gemm_splits"][: len(parts)] = parts
    efficiency = device.gemm_hbm_efficiency or device.hbm_efficiency
    row["gemm_hbm_bytes_per_s"] = device.hbm_peak_tb_per_s * efficiency * TB
    row["gemm_die_stride"] = 1 if device.gemm_die_aware else device.dies
    row["gemm_group_m"] = chosen.group_m or 0
    clocks = device.gemm_clk_per_k | chosen.clk_per_k
    # Of a unit's vector pipes for the scales of one element of C and of K.
    scale_clk = device.gemm_scale_instructions / (SCALE_BLOCK * device.gemm_scale_lanes_per_cu)
    for code, name in enumerate(MATRIX_TYPES):
        native = native_type(device, name)
        named = library in device.gemm_libraries
        row["gemm_scale_clk"][code] = named * (native == "fp8_block") * scale_clk
        row["gemm_clk_per_k"][code] = clocks.get(native, 0.0)  # type: ignore[call-overload]  # any name may be asked
        # Of a library with members each tile has its own share.
        share: float = 1.0 if chosen.members else chosen.efficiency.get(native, 0.0)  # type: ignore[call-overload]  # any name may be asked
        if share:
            row["matrix_flop_per_s"][code] *= share / device.gemm_efficiency[native]  # type: ignore[index]
    offers = gemm_menu(device, library, kind)
    row["num_tiles"] = len(offers)
    for position, offer in enumerate(offers):
        row["tiles"][position] = tile_row(device, offer.tile, offer)


class Offer(NamedTuple):
    """A tile of a library."""

    library: str
    """The one that has its kernel."""
    tile: GemmTile
    efficiency: float
    """Share of the rate of the device record that its main loop keeps busy."""
    step_clk: float
    """Clocks that each of its steps adds."""


def gemm_menu(device: Device, library: str, kind: str) -> list[Offer]:
    """Return the tiles that a library offers for a matrix type.

    A tile of a library with members reaches the share of the pipe that its own library reaches.
    Members that name the types of their kernels offer none for others, if any member has some. A
    type of 8 bits or fewer that none of them names has the menu of fp8, with as many bytes a step.
    """
    native: MatrixType = native_type(device, kind)  # type: ignore[assignment]  # a key of the tables
    chosen = device.gemm_library(library)
    names = chosen.members or (library,)
    members = [device.gemm_library(name) for name in names]
    code = MATRIX_TYPES.index(native)
    known = code < FIRST_NARROW or any(native in member.tiles_of for member in members)
    menu_of = native if known else "fp8"
    # k_bytes counts elements; a step is as long as local memory holds.
    longer = 1 if known else round(1.0 / OPERAND_BYTES[code])
    offers: list[Offer] = []
    others: list[Offer] = []
    for name, member in zip(names, members, strict=True):
        share = member.efficiency.get(native, device.gemm_efficiency[native])
        share = share if chosen.members else 1.0
        tiles = member.tiles_of.get(menu_of, member.tiles) or device.gemm_tiles
        step_clk = given(member.step_clk, device.gemm_step_clk)
        absent = chosen.members and member.tiles_of and menu_of not in member.tiles_of
        found = others if absent else offers
        if longer > 1 and menu_of in member.tiles_of:
            tiles = tuple(
                tile.model_copy(update={"k_bytes": tile.k_bytes * longer}) for tile in tiles
            )
        found += [
            Offer(name, tile, share * tile.efficiency, given(tile.step_clk, step_clk))
            for tile in tiles
        ]
    return offers or others


def tile_row(device: Device, tile: GemmTile, offer: Offer | None = None) -> tuple[float, ...]:
    """Return one row of a device record's ``tiles``; of an offer what its library reaches."""
    cluster, units = tile.cluster_m * tile.cluster_n, device.compute_units
    if cluster > 1:
        total, unit_ends = sum(device.gpc_units) or units, accumulate(device.gpc_units or (units,))
        bounds = [0, *(end * units // total for end in unit_ends)]
        filled = sum((end - begin) // cluster for begin, end in pairwise(bounds)) * cluster
        # A device smaller than one cluster runs it all the same, unit after unit.
        units = max(filled, 1)
    share = tile.efficiency if offer is None else offer.efficiency
    step_clk = given(tile.step_clk, device.gemm_step_clk) if offer is None else offer.step_clk
    return (
        tile.m, tile.n, tile.k_bytes, share, tile.cluster_m, tile.cluster_n,
        0.5 if tile.pair == "n" else 1.0, 0.5 if tile.pair == "m" else 1.0, units,
        step_clk,
    )  # fmt: skip


def _add_power(row: np.void, device: Device, run: Run) -> None:
    """Let the power cap decide the clock of each kernel."""
    power = device.power
    if power is None:
        return
    share = power.short_share if run == "short" else power.loaded_share
    row["power_cap_w"] = device.tdp_w * share
    row["power_idle_w"] = power.idle_w
    row["power_voltage_floor"] = power.voltage_floor
    row["joule_per_hbm_byte"] = power.pj_per_hbm_byte * PICO
    for code, name in enumerate(MATRIX_TYPES):
        native = native_type(device, name)
        row["power_clock_share"][code] = row["clock_hz"][code] / (power.max_clock_mhz * MEGA)
        row["joule_per_flop"][code] = power.pj_per_flop.get(native, 0.0) * PICO  # type: ignore[call-overload]  # any name may be asked


def expert_kernels(device: Device, name: str, release: str = "") -> ExpertKernels:
    """Return the entry of ``expert_layer.kernels`` for a kind, its release's if there is one.

    A kind without an entry runs as its matrix type, and that as what stands in for it.
    """
    table = device.expert_layer.kernels
    keys = [f"{name}@{release}", name]
    dtype = name.split("_", maxsplit=1)[0]
    while dtype not in keys[2:]:
        keys.append(dtype)
        dtype = _STAND_INS.get(dtype, "bf16")
    for key in keys:
        if key in table:
            return table[key]
    return next(iter(table.values()))


def grouped_record(
    device: Device,
    dtype: str,
    kernels: ExpertKernels,
    clock_mhz: float | None = None,
    weights: str = "",
    kind: str = "",
) -> Records:
    """Return what grouped GEMMs of one kind need of a device as GROUPED[1].

    Their ``dtype`` is native to it. Without a clock they run at the peak one: a launch alone is too
    short to meet the power cap; ``gemm_share`` is of GEMMs of a ``kind``. Weights are stored in
    ``dtype`` unless their type is named; they are widened on their way.
    """
    record = np.zeros(1, GROUPED)
    row, layer = record[0], device.expert_layer
    clock_hz = (clock_mhz or device.peak_clock_mhz) * MEGA
    reached_hz = clock_hz * kernels.matrix_efficiency
    if kernels.gemm_share is not None:
        kind = native_type(device, kind or dtype)
        gemm_mhz = clock_mhz or device.sustained_clock_mhz[kind]  # type: ignore[index]
        reached_hz = gemm_mhz * MEGA * device.gemm_efficiency[kind] * kernels.gemm_share  # type: ignore[index]
    rate = device.matrix_flop_per_clk_per_cu[dtype] * reached_hz  # type: ignore[index]
    row["compute_units"] = device.compute_units
    row["unit_flop_per_s"] = rate / kernels.slowdown
    row["operand_bytes"] = OPERAND_BYTES[MATRIX_TYPES.index(dtype)]
    row["weight_bytes"] = OPERAND_BYTES[MATRIX_TYPES.index(weights or dtype)]
    row["output_bytes"], row["row_share"] = SIXTEEN_BIT_BYTES, 1.0
    row["fill_bytes_per_s"] = device.l2_fill_bytes_per_clk_per_cu * clock_hz / kernels.slowdown
    row["l2_bytes_per_s"] = layer.l2_efficiency * device.l2_tb_per_s * TB or np.inf
    memory = (layer.memory_efficiency or device.hbm_efficiency) / kernels.slowdown
    row["hbm_bytes_per_s"] = device.hbm_peak_tb_per_s * memory * TB
    row["group_s"] = kernels.expert_clk / clock_hz
    row["wave_s"] = kernels.wave_clk / clock_hz
    row["overlap_loss"] = layer.overlap_loss
    heights = kernels.row_tiles or layer.row_tiles
    row["num_row_tiles"] = len(heights)
    row["row_tiles"][: len(heights)] = heights
    row["num_column_tiles"] = len(layer.column_tiles)
    row["column_tiles"][: len(layer.column_tiles)] = layer.column_tiles
    return record


def _attention(row: np.void, device: Device, clock_mhz: float | None, name: str, run: Run) -> None:
    boost_mhz = device.attention_boost_clock_mhz or device.peak_clock_mhz
    sixteen_bit = device.sustained_clock_mhz[native_type(device, "bf16")]  # type: ignore[index]
    training_mhz = device.attention_clock_mhz or sixteen_bit
    clock = (clock_mhz or (boost_mhz if run == "short" else training_mhz)) * MEGA
    for code, kind in enumerate(MATRIX_TYPES):
        rate = device.matrix_flop_per_clk_per_cu[native_type(device, kind)]  # type: ignore[index]
        row["attention_flop_per_s"][code] = rate * device.compute_units * clock
    row["attention_exp_per_s"] = device.transcendental_per_clk_per_cu * device.compute_units * clock
    # A fused multiply-add counts as two FLOP; the vector peak is quoted at the boost clock.
    row["attention_vector_per_s"] = 0.5 * device.vector_tflops * TERA * (clock / (boost_mhz * MEGA))
    set_attention_kernel(row, device, device.attention_kernels.get(name, device.attention))


def attention_name(training: TrainingConfig) -> str:
    """Return the attention kernel of a job, by the device's name for it.

    FP8 attention runs on the variant of a kernel that has ``_fp8`` behind its name; that of
    Transformer Engine unless the job names another.
    """
    name = training.attention_kernel
    if not uses_fp8_attention(training) or name.endswith("_fp8"):
        return name
    return "te_fp8" if name == "default" else f"{name}_fp8"


def set_attention_kernel(row: np.void, device: Device, kernel: AttentionKernel) -> None:
    """Write what a record says about an implementation of attention, beside the device's rates."""
    start_us = given(kernel.start_us, device.gemm_overhead_us)
    otherwise = {
        "atomic_gb_per_s": 0.0,
        "backward_softmax_exposed": kernel.softmax_exposed,
        "backward_start_us": 2.0 * start_us,
        "backward_tile_overhead_us": kernel.tile_overhead_us,
        "start_us": start_us,
    }
    copy_fields(row, kernel, otherwise, before="attention_")
    widths = sorted(kernel.head_dims.items())[:MAX_HEAD_DIMS]
    row["num_attention_dims"] = len(widths)
    for position, (width, at) in enumerate(widths):
        row["attention_dims"][position] = (
            width,
            at.forward_rows or kernel.forward_rows,
            at.forward_columns or kernel.forward_columns,
            at.backward_columns or kernel.backward_columns,
            at.backward_rows or kernel.backward_rows,
            _relative(at.forward_efficiency, at.forward_scale, kernel.forward_efficiency),
            _relative(at.backward_efficiency, at.backward_scale, kernel.backward_efficiency),
            at.mask_rows,
        )


def copy_fields(
    row: np.void,
    section: Config,
    otherwise: Mapping[str, float] = MappingProxyType({}),
    *,
    before: str = "",
    without: str = "",
) -> None:
    """Write each number of a section that a record has under the same name, in SI.

    In the record ``before`` stands before all names, and names lack ``without``. What is not stated
    is as in ``otherwise``.
    """
    for name, field, unit in _same_fields(type(section), row.dtype, before, without):
        stated = getattr(section, name)
        value = otherwise.get(name) if stated is None else stated
        if isinstance(value, int | float):
            row[field] = value * unit


@cache
def _same_fields(
    section: type[Config], record: "np.dtype[Any]", before: str, without: str
) -> list[tuple[str, str, float]]:
    """Return the fields that a section and a record share: both names, and the unit in SI."""
    found = [(name, *in_si(name)) for name in section.model_fields]
    named = [(name, f"{before}{si.removeprefix(without)}", unit) for name, si, unit in found]
    return [each for each in named if each[1] in (record.names or ())]


def _relative(own: float | None, scale: float, usual: float) -> float:
    """Return the efficiency at one head width over the usual one; it never makes it exceed 1."""
    return min(scale * given(own, usual), 1.0) / usual


def given(value: float | None, otherwise: float) -> float:
    """Return a number, or another one where there is none."""
    return otherwise if value is None else value


def native_type(device: Device, name: str) -> str:
    """Return the matrix type that runs when ``name`` is asked for."""
    native, seen = device.matrix_flop_per_clk_per_cu, set()
    while name not in native and name not in seen:
        seen.add(name)
        name = _STAND_INS.get(name, "fp32")
    return name if name in native else next(iter(native))
