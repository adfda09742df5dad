"""What bounds a matrix multiplication, and why, in the words of those who write its kernels."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class ExplainedGemm:
    """One GEMM with the kernel that was chosen for it."""

    case: GemmKind
    report: GemmReport
    offer: Offer
    units: float
    """Compute units that its clusters can fill."""
    split: int


class _Amount(float):
    """A number that texts may write as a time or as bytes."""

    def __format__(self, form: str) -> str:
        """Write seconds as ``us``, bytes as ``size``, all else as numbers are written."""
        if form == "us":
            value = self / MICROSECOND
            return f"{value:,.0f} us" if value >= 100.0 else f"{value:,.3g} us"
        if form != "size":
            return super().__format__(form)
        for unit, name in ((TB, "TB"), (GB, "GB")):
            if self >= unit:
                return f"{self / unit:,.3g} {name}"
        return f"{self / MEGA:,.3g} MB"


def gemm_sentences(gemm: ExplainedGemm) -> tuple[str, ...]:
    """Return what bounds a GEMM and why, then how it runs; a paragraph each."""
    facts = _facts(gemm)
    paragraphs: list[list[str | dict[str, str]]]
    paragraphs = hardware_table("report_words.yaml")["gemm_sentences"]
    return tuple("".join(_said(part, facts) for part in parts) for parts in paragraphs)


def _said(part: str | dict[str, str], facts: Mapping[str, Any]) -> str:
    if isinstance(part, str):
        return part.format_map(facts)
    return next((text.format_map(facts) for fact, text in part.items() if facts[fact]), "")


def _facts(gemm: ExplainedGemm) -> Mapping[str, Any]:
    """Return what the sentences read: terms of the model and more, 0 for what is not there."""
    table = hardware_table("report_words.yaml")
    device, case, report, tile = gemm.case.device, gemm.case, gemm.report, gemm.offer.tile
    m, n, k, batch = report.m, report.n, report.k, report.batch
    code = MATRIX_TYPES.index(case.dtype)
    terms = defaultdict[str, Any](_Amount, {n: _Amount(v) for n, v in report.terms.items()})
    flop = 2.0 * m * n * k * batch
    operand_bytes = (m + n) * k * batch * float(OPERAND_BYTES[code])
    step = tile.k_bytes / STEP_ELEMENT_BYTES
    pipe_s = terms["matrix_s"] + terms["scale_s"]
    loop_s = max(pipe_s, terms["l2_fill_s"], terms["issue_s"]) + terms["wait_s"]
    per_clk = device.matrix_flop_per_clk_per_cu[case.dtype]
    depth = np.ceil(np.ceil(k / step) / gemm.split) * step
    done_flop = terms["waves"] * depth * 2.0 * tile.m * tile.n
    busy_share = done_flop / (per_clk * report.clock_mhz * MEGA) / terms["matrix_s"]
    start_s, reduce_s = terms["start_s"], terms["reduce_s"]
    rate, peak_tflops = flop / report.time_s, device.matrix_peak_tflops.get(case.dtype)
    l2_of_die = device.dies > 1 and device.vendor == "amd"
    exact_waves = terms["tiles"] / gemm.units
    instruction = device.matrix_instructions.get(case.dtype)
    known: Mapping[str, dict[str, str]] = table["parts_of_devices"]
    words = known.get(device.vendor, known["other"])
    amounts = {
        "time_s": report.time_s, "loop_s": loop_s, "busy_s": loop_s + terms["epilogue_s"],
        "steps_s": max(terms["issue_s"], terms["wait_s"]),
        "stores_s": max(terms["epilogue_s"], terms["epilogues_s"]),
        "work_s": max(loop_s, terms["memory_s"]), "operand_bytes": operand_bytes,
    }  # fmt: skip
    hidden = report.bound == "overhead" and start_s + reduce_s < amounts["work_s"]
    return terms | {name: _Amount(value) for name, value in amounts.items()} | words | {
        "device": device.name, "type": table["matrix_types"].get(case.dtype, case.dtype.upper()),
        "tflops": rate / TERA, "peak_tflops": peak_tflops or 0.0,
        "tflops_share": rate / ((peak_tflops or 1.0) * TERA),
        report.bound: True, "hidden": hidden, "hidden_adding": hidden and reduce_s > 0.0,
        "overhead_adding": report.bound == "overhead" and reduce_s > 0.0,
        "scaled": report.bound == "compute" and terms["scale_s"] > 0.0,
        "scaled_within": report.bound == "compute" and case.dtype == "fp8_block",
        "waiting": report.bound == "compute" and terms["wait_s"] > 0.0,
        "busy_share": float(busy_share), "scale_share": terms["scale_s"] / report.time_s,
        "flop_per_byte": flop / terms["hbm_bytes"], "loads": terms["l2_bytes"] / operand_bytes,
        "m": tile.m, "n": tile.n, "k": k, "depth": step,
        "staged_kib": (tile.m + tile.n) * step * float(OPERAND_BYTES[code]) / KIB,
        "instruction": instruction if instruction and _divides(instruction, tile) else "",
        "down": int(np.ceil(m / (tile.m * tile.cluster_m))) * tile.cluster_m,
        "across": int(np.ceil(n / (tile.n * tile.cluster_n))) * tile.cluster_n,
        "split": gemm.split, "parted": gemm.split > 1, "batch": batch, "batched": batch > 1,
        "clustered": tile.cluster_m * tile.cluster_n > 1, "pair": tile.pair,
        "cluster": f"{tile.cluster_m}x{tile.cluster_n}",
        "library": "" if gemm.offer.library == "default" else gemm.offer.library,
        "compute_units": device.compute_units, "units": gemm.units,
        "idle_units": gemm.units < device.compute_units, "dies": device.dies,
        "dies_apart": device.dies > 1, "die_aware": device.dies > 1 and device.gemm_die_aware,
        "units_of_die": device.compute_units / device.dies, "one_wave": terms["waves"] <= 1.0,
        "exact_waves": exact_waves, "last_wave": exact_waves - (terms["waves"] - 1.0),
        "whole": terms["tiles"] / gemm.split, "mall_mib": device.mall_mib,
        "cached": device.mall_mib and terms["cache_bytes"], "l2_of_die": l2_of_die,
        "l2_mib": device.l2_mib / device.dies if l2_of_die else device.l2_mib,
        "clock_mhz": report.clock_mhz, "power_w": report.power_w, "tdp_w": device.tdp_w,
        "peak_clock_mhz": device.peak_clock_mhz, "given": case.clock_mhz is not None,
        "by_training": case.run == "training" or report.power_w is None, "else": True,
        "slower": device.peak_clock_mhz / report.clock_mhz,
    }  # fmt: skip


def _divides(instruction: str, tile: GemmTile) -> bool:
    """Whether a tile is made of whole results of an instruction, where its name tells their size.

    What is known is that of long main loops; narrow tiles take another.
    """
    size = re.search(r"_(\d+)x(\d+)x\d", instruction)
    return size is None or tile.m % int(size[1]) == tile.n % int(size[2]) == 0
