"""What bounds a matrix multiplication, and why, in the words of those who write its kernels."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from projector.config.device import Device
from projector.config.device_kernels import GemmTile, MatrixType
from projector.config.resources import hardware_table
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.kernels.gemm import STEP_ELEMENT_BYTES
from projector.lower.hardware import Offer, Run
from projector.units import GB, KIB, MEGA, MICROSECOND, TB, TERA


@dataclass(frozen=True, slots=True)
class GemmReport:
    """One GEMM, explained."""

    m: int
    n: int
    k: int
    batch: int
    time_s: float
    bound: str
    """What sets the time."""
    kernel: str
    """Tile with its cluster, whether units run in pairs, and split of K; empty without one."""
    clock_mhz: float
    power_w: float | None
    """Watts, where the device has a power model and the model uses it."""
    terms: dict[str, float]
    """Parts of the model by name; those that end in ``_s`` are seconds at `clock_mhz`."""
    factors: dict[str, float]
    """Factors of the time: ``ideal_s``, the FLOP at the peak clock, times the others."""
    explanation: tuple[str, ...] = ()
    """What bounds it and why, then how it runs: sentences, for the model of tiles."""

    @property
    def flop_per_s(self) -> float:
        """Needed FLOP over the time."""
        return 2.0 * self.m * self.n * self.k * self.batch / self.time_s if self.time_s else 0.0


@dataclass(frozen=True)
class GemmKind:
    """A kind of GEMM on a device: all but the extents."""

    device: Device
    dtype: MatrixType
    model: str
    clock_mhz: float | None
    library: str
    run: Run
    offers: tuple[Offer, ...]
    """Tiles to choose from."""
    l2_hit_rate: float
    rows_along_k: bool = True
    """Whether A and B lie along K in memory."""


class Vocabulary(NamedTuple):
    """What a vendor calls the parts of its devices."""

    unit: str
    group: str
    tile: str
    die: str
    scratch: str
    cache: str
    """Behind L2."""


@dataclass(frozen=True, slots=True)
class ExplainedGemm:
    """One GEMM with the kernel that was chosen for it."""

    case: GemmKind
    report: GemmReport
    offer: Offer
    units: float
    """Compute units that its clusters can fill."""
    split: int

    @property
    def device(self) -> Device:
        """Return the device that it runs on."""
        return self.case.device

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Return m, n, k and batch."""
        return self.report.m, self.report.n, self.report.k, self.report.batch

    @property
    def words(self) -> Vocabulary:
        """Return what the vendor calls things."""
        known = hardware_table("report_words.yaml")["parts_of_devices"]
        return Vocabulary(**known.get(self.device.vendor, known["other"]))

    @property
    def flop(self) -> float:
        """Return the FLOP that are needed."""
        m, n, k, batch = self.extents
        return 2.0 * m * n * k * batch

    @property
    def element_bytes(self) -> float:
        """Return the bytes of an operand element with its share of the scales."""
        return float(OPERAND_BYTES[MATRIX_TYPES.index(self.case.dtype)])

    def term(self, name: str) -> float:
        """Return a part of the model, 0 where it has none of this name."""
        return self.report.terms.get(name, 0.0)


def gemm_sentences(gemm: ExplainedGemm) -> tuple[str, ...]:
    """Return what bounds a GEMM and why, then how it runs; a paragraph each."""
    words, device = gemm.words, gemm.device
    m, n, k, batch = gemm.extents
    operands = (m + n) * k * batch * gemm.element_bytes
    l2 = f"L2 ({device.l2_mib:,.0f} MiB)"
    if device.dies > 1 and device.vendor == "amd":
        l2 = f"L2 ({device.l2_mib / device.dies:,.0f} MiB an {words.die})"
    text = f"Bytes: the {words.group}s load {_size(gemm.term('l2_bytes'))} from {l2}"
    if device.mall_mib and gemm.term("cache_bytes"):
        text += (
            f"; {_size(gemm.term('cache_bytes'))} pass {words.cache} ({device.mall_mib:,.0f} MiB)"
        )
    text += f"; {_size(gemm.term('hbm_bytes'))} pass HBM in {_us(gemm.term('memory_s'))}"
    text += f". A and B alone are {_size(operands)}."
    return (f"{_headline(gemm)} {_why(gemm)}", f"{_cut(gemm)} {_waves(gemm)}", text, _clock(gemm))


def _headline(gemm: ExplainedGemm) -> str:
    device, types = gemm.device, hardware_table("report_words.yaml")["matrix_types"]
    kind = types.get(gemm.case.dtype, gemm.case.dtype.upper())
    rate = gemm.flop / gemm.report.time_s
    text = f"{device.name} takes {_us(gemm.report.time_s)} in {kind}: {rate / TERA:,.0f} TFLOP/s"
    peak_tflops = device.matrix_peak_tflops.get(gemm.case.dtype)
    if peak_tflops is not None:
        share = rate / (peak_tflops * TERA)
        text += f", {share:.0%} of the {peak_tflops:,.0f} of its data sheet"
    return f"{text}."


def _why(gemm: ExplainedGemm) -> str:
    return {
        "compute": _why_compute,
        "memory": _why_memory,
        "l2": _why_l2,
        "l2_fill": _why_fill,
        "issue": _why_issue,
        "epilogue": _why_epilogue,
    }.get(gemm.report.bound, _why_overhead)(gemm)


def _why_compute(gemm: ExplainedGemm) -> str:
    matrix_s, scale_s = gemm.term("matrix_s"), gemm.term("scale_s")
    share = scale_s / gemm.report.time_s
    text = (
        f"The matrix pipes bound it: at {_busy_share(gemm):.0%} of their rate the main loops last "
        f"{_us(matrix_s)}"
    )
    if scale_s > 0.0:
        text += (
            f", and {_us(scale_s)} more ({share:.0%} of the time) while vector "
            "instructions multiply the accumulators by the scales of each block of K"
        )
    elif gemm.case.dtype == "fp8_block":
        text += ", which holds the multiplications by the scales of each block of K"
    if gemm.term("wait_s") > 0.0:
        text += f"; barriers and waits of the steps add {_us(gemm.term('wait_s'))}"
    return f"{text}. Memory needs {_us(gemm.term('memory_s'))} beside them."


def _busy_share(gemm: ExplainedGemm) -> float:
    """Return the share of the matrix rate at this clock that the main loops reach."""
    tile, k = gemm.offer.tile, gemm.extents[2]
    step = tile.k_bytes / STEP_ELEMENT_BYTES
    depth = np.ceil(np.ceil(k / step) / gemm.split) * step
    per_clk = gemm.device.matrix_flop_per_clk_per_cu[gemm.case.dtype]
    flop = gemm.term("waves") * depth * 2.0 * tile.m * tile.n
    return float(flop / (per_clk * gemm.report.clock_mhz * MEGA) / gemm.term("matrix_s"))


def _why_memory(gemm: ExplainedGemm) -> str:
    memory_s, moved = gemm.term("memory_s"), gemm.term("hbm_bytes")
    busy_s = _loop_s(gemm) + gemm.term("epilogue_s")
    return (
        f"Memory bounds it: {_size(moved)} in {_us(memory_s)}, with only "
        f"{gemm.flop / moved:,.0f} FLOP for each byte. The {gemm.words.unit}s would be done in "
        f"{_us(busy_s)}."
    )


def _why_l2(gemm: ExplainedGemm) -> str:
    loaded, l2_s = gemm.term("l2_bytes"), gemm.term("l2_s")
    m, n, k, batch = gemm.extents
    once = (m + n) * k * batch * gemm.element_bytes
    return (
        f"L2 bounds it: the {gemm.words.group}s load A and B {loaded / once:,.1f} times, "
        f"{_size(loaded)} in {_us(l2_s)}. Larger tiles would load less."
    )


def _why_fill(gemm: ExplainedGemm) -> str:
    words = gemm.words
    return (
        f"Loads into each {words.unit} bound it: bringing the rows of A and columns of B of a "
        f"{gemm.offer.tile.m}x{gemm.offer.tile.n} tile to the matrix pipe lasts "
        f"{_us(gemm.term('l2_fill_s'))}, multiplying them {_us(gemm.term('matrix_s'))}."
    )


def _why_issue(gemm: ExplainedGemm) -> str:
    steps_s = max(gemm.term("issue_s"), gemm.term("wait_s"))
    return (
        f"The steps of the main loop bound it: issuing, barriers and waits last {_us(steps_s)}, "
        f"the products {_us(gemm.term('matrix_s'))}. The tile is too small to keep the pipe busy."
    )


def _why_epilogue(gemm: ExplainedGemm) -> str:
    epilogue_s = max(gemm.term("epilogue_s"), gemm.term("epilogues_s"))
    return (
        f"Epilogues bound it: K is only {gemm.extents[2]:,}, so that storing the tiles of C lasts "
        f"{_us(epilogue_s)} and the main loops {_us(_loop_s(gemm))}."
    )


def _why_overhead(gemm: ExplainedGemm) -> str:
    start_s, reduce_s = gemm.term("start_s"), gemm.term("reduce_s")
    work_s = max(_loop_s(gemm), gemm.term("memory_s"))
    if start_s + reduce_s < work_s:
        text = (
            f"No part alone bounds it: the main loops last {_us(_loop_s(gemm))} and memory "
            f"{_us(gemm.term('memory_s'))}, of whose overlap {_us(gemm.term('loss_s'))} are lost; "
            f"starting and ending the kernel takes {_us(start_s)}"
        )
        return text + (f", adding the parts of K {_us(reduce_s)}." if reduce_s > 0.0 else ".")
    text = f"Starting and ending the kernel bounds it: {_us(start_s)}"
    if reduce_s > 0.0:
        text += f", and {_us(reduce_s)} to add the parts of K"
    return f"{text}, where the longest part of the work lasts {_us(work_s)}."


def _loop_s(gemm: ExplainedGemm) -> float:
    pipe_s = gemm.term("matrix_s") + gemm.term("scale_s")
    return max(pipe_s, gemm.term("l2_fill_s"), gemm.term("issue_s")) + gemm.term("wait_s")


def _divides(instruction: str, tile: GemmTile) -> bool:
    """Whether a tile is made of whole results of an instruction, where its name tells their size.

    What is known is that of long main loops; narrow tiles take another.
    """
    size = re.search(r"_(\d+)x(\d+)x\d", instruction)
    return size is None or tile.m % int(size[1]) == tile.n % int(size[2]) == 0


def _cut(gemm: ExplainedGemm) -> str:
    words, tile = gemm.words, gemm.offer.tile
    m, n, _, batch = gemm.extents
    down = int(np.ceil(m / (tile.m * tile.cluster_m))) * tile.cluster_m
    across = int(np.ceil(n / (tile.n * tile.cluster_n))) * tile.cluster_n
    depth = tile.k_bytes / STEP_ELEMENT_BYTES
    staged = (tile.m + tile.n) * depth * gemm.element_bytes / KIB
    instruction = gemm.device.matrix_instructions.get(gemm.case.dtype)
    text = f"A {words.tile} of {tile.m}x{tile.n} walks through K in steps of {depth:,.0f}"
    text += f" ({staged:,.0f} KiB of {words.scratch} each)"
    if instruction and _divides(instruction, tile):
        text += f" with {instruction}"
    cuts = f"{down:,} x {across:,} tiles"
    if gemm.split > 1:
        cuts += f" x {gemm.split} parts of K"
    if batch > 1:
        cuts += f" x {batch:,} of the batch"
    total = f"{gemm.term('tiles'):,.0f} {words.group}s"
    text += f"; {cuts} make {total}"
    if tile.cluster_m * tile.cluster_n > 1:
        text += f" in clusters of {tile.cluster_m}x{tile.cluster_n}, which share loads"
    if tile.pair:
        text += f", two {words.unit}s to an instruction"
    library = (
        "" if gemm.offer.library == "default" else f" The kernel is one of {gemm.offer.library}'s."
    )
    return f"{text}.{library}"


def _waves(gemm: ExplainedGemm) -> str:
    words, device = gemm.words, gemm.device
    count, waves = gemm.term("tiles"), gemm.term("waves")
    where = f"{device.compute_units:,} {words.unit}s"
    if device.dies > 1:
        each = device.compute_units / device.dies
        where += f" ({device.dies} {words.die}s of {each:,.0f})"
    if gemm.units < device.compute_units:
        where += f", of which whole clusters fill {gemm.units:,.0f},"
    exact = count / gemm.units
    if waves <= 1.0:
        text = f"They run on {where} in one wave, {exact:.0%} full."
    else:
        last = exact - (waves - 1.0)
        text = f"They run on {where} in {waves:,.0f} waves, the last one {last:.0%} full."
    if device.dies > 1 and not device.gemm_die_aware:
        text += f" The {words.die}s take them in turn, so that neighbours share no L2."
    elif device.dies > 1:
        text += f" Neighbours stay on one {words.die} and share its L2."
    if gemm.split > 1:
        whole = count / gemm.split
        text += (
            f" With a whole K there would be {whole:,.0f}; adding up the {gemm.split} parts costs "
            f"{_us(gemm.term('reduce_s'))}."
        )
    return text


def _clock(gemm: ExplainedGemm) -> str:
    device, clock = gemm.device, gemm.report.clock_mhz
    lost = device.peak_clock_mhz / clock
    at = f"{clock:,.0f} of {device.peak_clock_mhz:,.0f} MHz"
    if gemm.case.clock_mhz is not None:
        return f"Clock: {at}, as given."
    if gemm.case.run == "training" or gemm.report.power_w is None:
        text = f"Clock: {at}, what long matrix loads hold within {device.tdp_w:,.0f} W"
    else:
        text = (
            f"Clock: {at} at {gemm.report.power_w:,.0f} W, where {device.tdp_w:,.0f} W are allowed"
        )
    if gemm.report.bound in {"memory", "overhead"}:
        return f"{text}; it hardly matters here."
    return f"{text}. Work on the {gemm.words.unit}s lasts {lost:.2f} times as long as at the peak."


def _us(seconds: float) -> str:
    value = seconds / MICROSECOND
    return f"{value:,.0f} us" if value >= 100.0 else f"{value:,.3g} us"


def _size(count: float) -> str:
    for unit, name in ((TB, "TB"), (GB, "GB")):
        if count >= unit:
            return f"{count / unit:,.3g} {name}"
    return f"{count / MEGA:,.3g} MB"
