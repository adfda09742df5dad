"""Rows of measurement tables: what was measured, in the columns that `projector validate` reads.

A row holds everything: spread, clock and status stand in a column of notes, in words that are read
back when a list is continued.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from projector.config.resources import hardware_table
from projector.measure.bench.cases import LAYOUTS, BenchKind, Case
from projector.measure.task import ClockProgram, CopyProgram, Environment, Outcome, Status, Timing
from projector.units import GB, MICROSECOND, MILLISECOND, TERA

Row = dict[str, str]


def csv_text(lines: Iterable[Sequence[str]]) -> str:
    """Return lines of fields as the text of a table."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue()


_NOTES = {"gemm": "clock_note"}
"""Column of notes, where it is not ``notes``."""

_WRITTEN: Mapping[str, list[str]] = hardware_table("table_names.yaml")["written"]

COLUMNS: dict[BenchKind, tuple[str, ...]] = {
    kind: tuple(_WRITTEN[kind]) for kind in get_args(BenchKind)
}
"""Columns of each kind of table, in order; those of the first three are the ones of the published
tables ``gemm_measured``, ``attention_measured`` and ``collectives_measured``."""

_LAST_KNOWN: dict[BenchKind, str] = {
    "gemm": "layout", "attention": "causal", "collective": "message_bytes", "memory": "bytes",
    "clock": "seconds",
}  # fmt: skip
"""Up to which column a row says what is measured; behind it stands what measuring found."""

TABLES: dict[BenchKind, str] = {
    "gemm": "gemm_measured",
    "attention": "attention_measured",
    "collective": "collectives_measured",
}
"""Kind of table for `projector validate` and `projector calibrate`."""

_TIMES: dict[BenchKind, tuple[str, float]] = {
    "gemm": ("runtime_us", MICROSECOND),
    "attention": ("time_ms", MILLISECOND),
    "collective": ("value", MICROSECOND),
    "memory": ("runtime_us", MICROSECOND),
}
"""Column of the time of each kind of row, and its unit."""

SOURCE = "projector-benchmark"
"""First word of ``source``, by which fits weigh rows."""

NOT_MEASURED = "not measured: "
"""How the ``doubt`` of a row without a time begins."""

FLOP_CONVENTION = "4*b*s^2*h*d (/2 causal; (dqk+dv)/2 as d); bwd x2.5"

_WORDS: dict[Status, str] = {
    "out_of_memory": "out of memory",
    "unsupported": "unsupported",
    "failed": "failed",
}
_OUT_TYPES = {"fp16": "fp16", "fp32": "fp32", "tf32": "fp32", "int8": "fp32"}


@dataclass(frozen=True, slots=True)
class Machine:
    """Where rows are measured, as they say it."""

    gpu: str
    """Name of the profile that stands for the device, else the name its runtime gives."""
    environment: Environment
    locked_mhz: float | None = None
    day: str = ""

    @property
    def source(self) -> str:
        """What measured: the first word is `SOURCE`."""
        where = self.environment
        runtime = {"cuda": "CUDA", "rocm": "ROCm"}.get(where.backend, "")
        parts = [
            f"{SOURCE} torch {where.torch}",
            f"{runtime} {where.runtime}" if runtime and where.runtime else "",
            f"driver {where.driver}" if where.driver else "",
            where.device,
            f"{where.threads} threads" if where.threads else "",
        ]
        return ", ".join(filter(None, parts))

    @property
    def clock(self) -> str:
        """How the clock ran."""
        return f"locked {self.locked_mhz:g} MHz" if self.locked_mhz else "clock free"


class Spread(NamedTuple):
    """What the notes of a row say about its runs."""

    low_s: float | None = None
    high_s: float | None = None
    repeats: int = 0
    settled: bool = True
    clock_mhz: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One case and its row."""

    case: Case
    row: Row
    status: Status
    message: str
    time_s: float | None
    spread: Spread

    @property
    def rate(self) -> float | None:
        """Return FLOP/s of a GEMM or an attention, bytes/s of a collective or a copy."""
        if self.case.kind == "clock":
            text = self.row["tflops"]
            return float(text) * TERA if text else None
        return work_of(self.case) / self.time_s if self.time_s else None


def work_of(case: Case) -> float:
    """Return FLOP of a GEMM or an attention; bytes over a link (nccl-tests) or read and written."""
    if case.kind == "memory":
        assert isinstance(case.program, CopyProgram)
        return float(case.program.bytes)
    if case.kind == "clock":
        return 0.0
    key = case.key
    if case.kind == "gemm":
        return 2.0 * key.batch * key.m * key.n * key.k
    if case.kind == "collective":
        share = 1.0 if key.operation == "send_recv" else (key.ranks - 1) / key.ranks
        return key.bytes * share * (2.0 if key.operation == "all_reduce" else 1.0)
    half = 0.5 if key.causal else 1.0
    passes = 2.5 if key.phase == "backward" else 1.0
    return 2.0 * half * passes * key.batch * key.heads * float(key.m) ** 2 * (key.k + key.d_v)


def measured(case: Case, outcome: Outcome, machine: Machine) -> Measured:
    """Return a case with its outcome and the row that says so."""
    timing = outcome.times.get("time")
    timed = timing is not None and outcome.status == "ok" and case.kind != "clock"
    time_s = timing.median_s if timing and timed else None
    status, message = outcome.status, _one_line(outcome.message)
    if status == "ok" and not time_s and case.kind != "clock":
        status, message = "failed", "the worker answered no time"
    row = _identity(case, machine)
    row |= _result(case, outcome, time_s)
    row["library"] = _library(case, outcome.backend, machine.environment)
    row["verified"] = "measured" if status == "ok" else ""
    row["doubt"] = "" if status == "ok" else f"{NOT_MEASURED}{_WORDS[status]}; {message}"
    if case.kind == "attention":
        row["impl"] = row.pop("library")
    if machine.day:
        row["source"] += f", on {machine.day}"
    notes = _NOTES.get(case.kind, "notes")
    row[notes] = "; ".join(filter(None, (row[notes], spread_words(timing) if timing else "")))
    full = {name: _one_line(row.get(name, "")) for name in COLUMNS[case.kind]}
    return Measured(case, full, status, message, time_s, read_spread(full[notes]))


def from_row(case: Case, row: Mapping[str, str]) -> Measured:
    """Return what a row that was written before says."""
    status, message = status_of(row)
    time_s = _time_s(case.kind, row) if status == "ok" else None
    spread = read_spread(row.get(_NOTES.get(case.kind, "notes"), ""))
    return Measured(case, dict(row), status, message, time_s, spread)


def is_readable(kind: BenchKind, row: Mapping[str, str]) -> bool:
    """Whether a row that was written before has the numbers of one that was measured."""
    if status_of(row)[0] != "ok":
        return True
    try:
        numbers = [_time_s(kind, row)] if kind != "clock" else [float(row.get("tflops") or 0.0)]
        read_spread(row.get(_NOTES.get(kind, "notes"), ""))
    except ValueError:
        return False
    return all(value is not None and 0.0 <= value < math.inf for value in numbers)


def status_of(row: Mapping[str, str]) -> tuple[Status, str]:
    """Return status and message of a row."""
    doubt = row.get("doubt", "")
    if not doubt.startswith(NOT_MEASURED):
        return "ok", ""
    word, _, message = doubt.removeprefix(NOT_MEASURED).partition(";")
    known = (status for status, text in _WORDS.items() if text == word.strip())
    return next(known, "failed"), message.strip()


def identity(kind: BenchKind, row: Mapping[str, str]) -> tuple[str, ...]:
    """Return what makes two rows the same measurement: all that does not come from measuring.

    The date does not count, nor does the clock that ran; another device, another version of torch
    or a locked clock does.
    """
    known = COLUMNS[kind][: COLUMNS[kind].index(_LAST_KNOWN[kind]) + 1]
    texts = [row.get(name, "") for name in known if name not in ("clock_note", "impl")]
    notes = row.get(_NOTES.get(kind, "notes"), "").partition("; quartiles")[0]
    return (*texts, notes, row.get("source", "").partition(", on ")[0])


def identity_of(case: Case, machine: Machine) -> tuple[str, ...]:
    """Return the `identity` that the row of a case will have."""
    row = {name: _one_line(text) for name, text in _identity(case, machine).items()}
    return identity(case.kind, row)


def _identity(case: Case, machine: Machine) -> Row:
    row = {"gpu": machine.gpu, "source": machine.source}
    notes = _NOTES.get(case.kind, "notes")
    row[notes] = machine.clock
    if isinstance(case.program, CopyProgram):
        return row | {"op": "copy", "bytes": f"{case.program.bytes}"}
    if isinstance(case.program, ClockProgram):
        program = case.program
        return row | {"in_dtype": program.dtype, "seconds": f"{program.seconds:g}"}
    key = case.key
    if case.kind == "gemm":
        several = key.batch if key.batch > 1 or key.expert else 0
        plain = "batched gemm" if several else "gemm"
        layout = next(name for name, phase in LAYOUTS.items() if phase == key.phase)
        return row | {
            "op": "grouped gemm (fwd)" if key.expert else plain,
            "in_dtype": key.dtype,
            "out_dtype": _OUT_TYPES.get(key.dtype, "bf16"),
            **{name: f"{getattr(key, name)}" for name in ("m", "n", "k")},
            "groups": f"{several}" if several else "",
            "layout": layout,
        }
    if case.kind == "attention":
        if key.window:
            row[notes] += f"; sliding window {key.window}"
        layer = case.program.layer
        if layer is not None and layer.attention != "flash":
            row[notes] += f"; backend {layer.attention}"
        return row | {
            "dtype": key.dtype,
            "pass": "bwd" if key.phase == "backward" else "fwd",
            "seq_len": f"{key.m}",
            "head_dim": f"{key.k}",
            "v_head_dim": f"{key.d_v}",
            "q_heads": f"{key.heads}",
            "kv_heads": f"{key.key_heads}",
            "batch": f"{key.batch}",
            "causal": f"{key.causal}",
        }
    return row | {
        "system": "this machine",
        "n_nodes": "1",
        "n_gpus": f"{key.ranks}",
        "collective": key.operation,
        "message_bytes": f"{key.bytes:.0f}",
    }


def _result(case: Case, outcome: Outcome, time_s: float | None) -> Row:
    if case.kind == "clock":
        numbers = outcome.numbers if outcome.status == "ok" else {}
        rate = numbers.get("flop_per_s")
        return {
            "clock_mhz": _number(numbers.get("clock_mhz")),
            "power_w": _number(numbers.get("power_w")),
            "tflops": _number(None if rate is None else rate / TERA),
        }
    if not time_s:
        return {}
    column, unit_s = _TIMES[case.kind]
    row, rate = {column: _number(time_s / unit_s)}, work_of(case) / time_s
    if case.kind == "collective":
        return row | {"unit": "us", "metric": "time"}
    if case.kind == "memory":
        return row | {"gb_per_s": _number(rate / GB)}
    row["tflops"] = _number(rate / TERA)
    if case.kind == "attention":
        return row | {"flops_convention": FLOP_CONVENTION}
    return row | {"derived_fields": "tflops", "power_w": _number(outcome.times["time"].power_w)}


def _time_s(kind: BenchKind, row: Mapping[str, str]) -> float | None:
    column, unit_s = _TIMES.get(kind, ("", 1.0))
    text = row.get(column, "")
    return float(text) * unit_s if text else None


def _library(case: Case, backend: str, where: Environment) -> str:
    """Return the library of a row; its first words decide how `projector validate` reads it.

    Names that published tables use for loops with a cost of their own are avoided: what is
    measured here is the time of the kernels.
    """
    version = f"torch {where.torch}"
    if case.kind == "attention":
        first = _attention_name(backend, where)
        return f"{first} ({', '.join(filter(None, (backend, version)))})"
    if case.kind == "collective":
        library = {"cuda": "NCCL", "rocm": "RCCL", "cpu": "gloo"}[where.backend]
        found = where.libraries.get(library.lower(), "")
        return " ".join(filter(None, (library, found, "through", version)))
    is_plain = case.kind == "gemm" and not case.key.expert
    names = {"cuda": "cuBLAS", "rocm": "hipBLASLt", "cpu": "oneDNN"} if is_plain else {}
    return ", ".join(filter(None, (names.get(where.backend), backend, version)))


def _attention_name(backend: str, where: Environment) -> str:
    """Return the implementation of a backend; plain GEMMs are none that is compared."""
    name = backend.lower()
    if "cudnn" in name:
        return "cuDNN"
    if "math" in name:
        return "torch math"
    # Of torch's fused kernels, the flash one for CUDA is that of its authors.
    return "FlashAttention-2" if "flash" in name and where.backend == "cuda" else "torch SDPA"


def spread_words(timing: Timing) -> str:
    """Return quartiles, runs, clock and power of a timing, as `read_spread` reads them."""
    low, high = (_number(value / MICROSECOND) for value in (timing.low_s, timing.high_s))
    text = f"quartiles {low} and {high} us of {timing.repeats} runs"
    if not timing.settled:
        text += ", not settled"
    if timing.clock_mhz is not None:
        text += f", at {_number(timing.clock_mhz)} MHz"
    if timing.power_w is not None:
        text += f", {_number(timing.power_w)} W"
    return text


_SPREAD = re.compile(
    r"quartiles (\S+) and (\S+) us of (\d+) runs(, not settled)?"
    r"(?:, at ([\d.e+-]+) MHz)?(?:, ([\d.e+-]+) W)?"
)


def read_spread(text: str) -> Spread:
    """Return what `spread_words` wrote into a text, nothing where it did not."""
    found = _SPREAD.search(text)
    if found is None:
        return Spread()
    low, high, repeats, unsettled, clock, power = found.groups()
    return Spread(
        float(low) * MICROSECOND,
        float(high) * MICROSECOND,
        int(repeats),
        unsettled is None,
        float(clock) if clock else None,
        float(power) if power else None,
    )


def _number(value: float | None) -> str:
    """Return a number in seven digits, ``""`` for none."""
    return "" if value is None else f"{value:.7g}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
