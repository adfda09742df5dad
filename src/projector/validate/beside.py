"""What the models say beside operations that were measured here: the path of `project`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.config.device import Device
from projector.config.device_file import load_device
from projector.envelope import told
from projector.kernels.elementwise import elementwise_time_column
from projector.lower.hardware import device_record
from projector.measure.bench.cases import BenchKind, Case
from projector.measure.bench.rows import TABLES, Machine, Measured
from projector.measure.bench.session import Session
from projector.measure.task import ClockProgram, CopyProgram
from projector.units import GB, MEGA, MICROSECOND, MILLISECOND, TERA
from projector.validate.kind import Kind, Row, halved, kind_of
from projector.validate.totals import errors_of

_UNIT_S = {"gemm": MICROSECOND, "attention": MILLISECOND, "collective": MICROSECOND}

_ANY_TIME: dict[BenchKind, Row] = {
    "gemm": {"runtime_us": "1"},
    "attention": {"time_ms": "1"},
    "collective": {"value": "1", "unit": "us", "metric": "time"},
}
"""For rows without a time, whose projection does not look at it."""


@dataclass(frozen=True, slots=True)
class Modelled:
    """What the model says of one case."""

    time_s: float | None = None
    """None where the model has no answer, and of a clock."""
    clock_mhz: float | None = None
    """Of a clock: the one that the profile sustains."""
    flop_per_s: float | None = None
    """Of a clock: the rate of the matrix pipe at it."""
    why_not: str = ""


def modelled(measured: Sequence[Measured], device: str) -> list[Modelled]:
    """Return what a profile (a shipped name or a path) says of cases of one kind, in their order.

    GEMMs, attention and collectives are projected as `projector validate` projects their rows.
    """
    if not measured:
        return []
    profile = load_device(device, key="device")
    kind = measured[0].case.kind
    if kind == "memory":
        return [_copy(profile, each.case) for each in measured]
    if kind == "clock":
        return [_clock(profile, each.case) for each in measured]
    rows = [
        {**each.row, **({} if each.time_s else _ANY_TIME[kind]), "gpu": device, "doubt": ""}
        for each in measured
    ]
    return _projected(kind_of(TABLES[kind]), rows, _UNIT_S[kind])


def _projected(kind: Kind, rows: Sequence[Row], unit_s: float) -> list[Modelled]:
    rules = [kind.why_not_eligible(row) for row in rows]
    counted = [row for row, rule in zip(rows, rules, strict=True) if not rule]
    outcomes = iter(halved(counted, kind.project))
    found = []
    for rule in rules:
        outcome = rule or next(outcomes)
        if isinstance(outcome, str):
            found.append(Modelled(why_not=outcome))
        elif outcome.predicted is None:
            found.append(Modelled(why_not=outcome.status))
        else:
            found.append(Modelled(outcome.predicted * unit_s))
    return found


def _copy(device: Device, case: Case) -> Modelled:
    """Return the start of a kernel and its traffic at the rate of memory-bound operators."""
    assert isinstance(case.program, CopyProgram)
    traffic = np.array([float(case.program.bytes)])
    nothing, first = np.zeros(1), np.zeros(1, np.int64)
    record = device_record(device, None)
    time_s = elementwise_time_column(traffic, nothing, nothing, first, record)
    return Modelled(float(time_s[0]) + device.kernel_start_us * MICROSECOND)


def _clock(device: Device, case: Case) -> Modelled:
    """Return the clock under a load of a matrix type, and the rate of the matrix pipe at it."""
    assert isinstance(case.program, ClockProgram)
    dtype = case.program.dtype
    per_clk = {str(name): rate for name, rate in device.matrix_flop_per_clk_per_cu.items()}
    if dtype not in per_clk:
        return Modelled(why_not=f"{device.name} has no native {dtype}")
    sustained = {str(name): mhz for name, mhz in device.sustained_clock_mhz.items()}
    clock_mhz = sustained.get(dtype, device.peak_clock_mhz)
    rate = per_clk[dtype] * device.compute_units * clock_mhz * MEGA
    return Modelled(clock_mhz=clock_mhz, flop_per_s=rate)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A list that was measured, with what the model says of it."""

    kind: BenchKind
    machine: Machine
    measured: tuple[Measured, ...]
    modelled: tuple[Modelled, ...]
    """One for each case; none at all without a profile."""
    device: str = ""
    """Profile that is modelled, ``""`` without one."""
    asked: int = 0
    """Cases of the list; more than were measured if it was interrupted."""

    def ratio(self, row: int) -> float | None:
        """Return modelled over measured time of a case; of a clock, of the clocks."""
        if not self.modelled:
            return None
        here, there = self.measured[row], self.modelled[row]
        if self.kind == "clock":
            clock_mhz = number_of(here.row, "clock_mhz")
            return there.clock_mhz / clock_mhz if there.clock_mhz and clock_mhz else None
        return there.time_s / here.time_s if there.time_s and here.time_s else None

    @property
    def statuses(self) -> dict[str, int]:
        """Cases by status."""
        return dict(Counter(each.status for each in self.measured))

    @property
    def totals(self) -> dict[str, Any] | None:
        """Cases with both times, and errors of the modelled ones; None where there is none."""
        found = [self.ratio(row) for row in range(len(self.measured))]
        ratio = np.array([value for value in found if value is not None])
        if not ratio.size:
            return None
        errors = errors_of(ratio)
        names = ("median_ape", "p90_ape", "geomean_ratio")
        return {"rows": len(ratio)} | {name: errors[name] for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints, without its envelope."""
        return {
            "kind": self.kind,
            "table": TABLES.get(self.kind),
            "gpu": self.machine.gpu,
            "device": self.device or None,
            "locked_clock_mhz": self.machine.locked_mhz,
            "environment": self.machine.environment.model_dump(mode="json"),
            **told(self, "asked statuses"),
            "errors": self.totals,
            "rows": [self._row(row) for row in range(len(self.measured))],
        }

    def _row(self, row: int) -> dict[str, Any]:
        here = self.measured[row]
        there = self.modelled[row] if self.modelled else None
        unit, scale = RATES[self.kind]
        found = {
            **told(here, "status message"),
            **shape_of(here.case),
            "asked": here.case.asked or None,
            **told(here, "time_us"),
            **told(here.spread, "low_us high_us repeats settled"),
            unit: _over(here.rate, scale),
            **told(here.spread, "clock_mhz power_w"),
            "modelled_us": _over(there.time_s if there else None, MICROSECOND),
            "ratio": self.ratio(row),
            "not_modelled": there.why_not if there else "",
            "library": here.row.get("library") or here.row.get("impl", ""),
        }
        if self.kind == "clock":
            found["clock_mhz"] = number_of(here.row, "clock_mhz")
            found["power_w"] = number_of(here.row, "power_w")
            found["modelled_clock_mhz"] = there.clock_mhz if there else None
            found["modelled_tflops"] = _over(there.flop_per_s if there else None, TERA)
        return found


def benchmark_of(session: Session, *, model: bool = True) -> Benchmark:
    """Return what a session has measured so far; with ``model`` also what its profile says."""
    found = tuple(session.measuring.finished())
    device = session.device if model else ""
    return Benchmark(
        session.kind,
        session.measuring.machine,
        found,
        tuple(modelled(found, device)) if device else (),
        device,
        len(session.measuring.cases),
    )


RATES: dict[BenchKind, tuple[str, float]] = {
    "gemm": ("tflops", TERA),
    "attention": ("tflops", TERA),
    "collective": ("busbw_gb_per_s", GB),
    "memory": ("gb_per_s", GB),
    "clock": ("tflops", TERA),
}
"""Key of each kind's rate, and its unit."""


def shape_of(case: Case) -> dict[str, Any]:
    """Return the extents of a case by name."""
    if isinstance(case.program, CopyProgram):
        return {"bytes": case.program.bytes}
    if isinstance(case.program, ClockProgram):
        return {"dtype": case.program.dtype, "seconds": case.program.seconds}
    key = case.key
    if case.kind == "gemm":
        return {
            "dtype": key.dtype, "m": key.m, "n": key.n, "k": key.k, "batch": key.batch,
            "grouped": key.expert,
        }  # fmt: skip
    if case.kind == "collective":
        return {"operation": key.operation, "ranks": key.ranks, "bytes": key.bytes}
    return {
        "dtype": key.dtype, "pass": "bwd" if key.phase == "backward" else "fwd",
        "batch": key.batch, "heads": key.heads, "kv_heads": key.key_heads, "seq": key.m,
        "head_dim": key.k, "v_head_dim": key.d_v, "window": key.window, "causal": key.causal,
    }  # fmt: skip


def number_of(row: Row, column: str) -> float | None:
    """Return a column of a row as a number, None where it is empty."""
    text = row.get(column) or ""
    return float(text) if text else None


def _over(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
