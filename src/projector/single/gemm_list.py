"""Shapes of matrix multiplications, from the command line or a table, and their times."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Ints
from projector.config.bands import Band, gemm_band
from projector.config.formats.shape_table import read_extent, shape_rows
from projector.errors import ConfigError, shown
from projector.kernels.device import FIRST_NARROW, MATRIX_TYPES, OPERAND_BYTES
from projector.single.gemm import GemmCase, GemmReport, gemm_case
from projector.single.inputs import NO_NUMBERS, DeviceLike, whole_number
from projector.units import MICROSECOND, TB, TERA

MAX_OUT_BYTES = 1024.0

LAYOUTS = ("tn", "nn", "nt", "tt")

_COPIES = {"tn": (False, False), "nn": (True, False), "nt": (True, True), "tt": (False, True)}
"""Whether A, and whether B, is copied so that K is contiguous."""


@dataclass(frozen=True)
class GemmList:
    """GEMMs of one kind, explained."""

    case: GemmCase
    layout: str
    reports: tuple[GemmReport, ...]
    copy_s: tuple[float, ...]
    """Seconds of transposed copies before each."""

    @property
    def band(self) -> Band:
        """Where measured times of such GEMMs lie."""
        return gemm_band(self.case.device, self.case.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "uncertainty": self.band.to_dict(),
            "device": self.case.device.name,
            "dtype": self.case.dtype,
            "layout": self.layout,
            "model": self.case.model,
            "library": self.case.library,
            "run": self.case.run,
            "gemms": [self._row(row) for row in range(len(self.reports))],
        }

    def total_s(self, row: int) -> float:
        """Return the seconds of one GEMM with its copies."""
        return self.reports[row].time_s + self.copy_s[row]

    def flop_per_s(self, row: int) -> float:
        """Return the needed FLOP of one GEMM over its time with the copies."""
        total_s = self.total_s(row)
        return self.reports[row].flop_per_s * self.reports[row].time_s / total_s if total_s else 0.0

    def _row(self, row: int) -> dict[str, Any]:
        report = self.reports[row]
        fields = asdict(report)
        for name in ("time_s", "terms", "factors"):
            fields.pop(name)
        return {
            **fields,
            "time_us": self.total_s(row) / MICROSECOND,
            "copy_us": self.copy_s[row] / MICROSECOND,
            "tflops": self.flop_per_s(row) / TERA,
            "terms": report.terms,
            "factors": report.factors,
        }


def list_gemms(
    extents: Sequence[str | int],
    table: str | Path | None,
    *,
    gpu: DeviceLike = "h100",
    batch: int = 1,
    out_bytes: float = 2.0,
    layout: str = "tn",
    **kind: Any,
) -> GemmList:
    """Time the GEMM of three extents, or those of a CSV table with columns m, n, k (and batch).

    Extents may be text with commas, and are empty if a table is given. ``batch`` counts equal
    problems in one launch, for rows that do not state it; ``out_bytes`` are those of an output
    element; ``kind`` is that of `gemm_case`.
    """
    case = gemm_case(gpu, **kind)
    order = str(layout).lower()
    if order not in LAYOUTS:
        msg = f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}"
        raise ConfigError(msg, key="layout", value=layout, allowed=list(LAYOUTS))
    if not (_is_number(out_bytes) and 0.0 <= out_bytes <= MAX_OUT_BYTES):
        msg = f"out_bytes must be from 0 to {MAX_OUT_BYTES:g}, got {shown(out_bytes)}"
        raise ConfigError(msg, key="out_bytes", value=out_bytes, allowed=f"0 to {MAX_OUT_BYTES:g}")
    given, repeats = _texts(extents), whole_number("batch", batch)
    if bool(given) == (table is not None):
        msg = "give one GEMM as M N K, or many with --csv FILE.csv, but not both"
        raise ConfigError(msg, key="extents", value=given, allowed="M N K, or --csv")
    shapes = [_shape(given, repeats)] if table is None else _read_table(table, repeats)
    rows = np.array(shapes, np.int64).reshape(-1, 4)
    # Narrow types are copied until K is contiguous.
    along_k = order == "tn" or MATRIX_TYPES.index(case.dtype) >= FIRST_NARROW
    case = replace(case, rows_along_k=along_k)
    reports = case.explain(rows, np.full(len(rows), float(out_bytes)))
    return GemmList(case, order, tuple(reports), _copies(case, order, rows))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, NO_NUMBERS)


def _texts(extents: object) -> list[str | int]:
    """Return extents as a list; the letters of one text are none."""
    if not isinstance(extents, Sequence | np.ndarray) or isinstance(extents, str | bytes):
        msg = f"extents are a list of M, N and K, got {extents!r}"
        raise ConfigError(msg, key="extents", value=extents, allowed="a list of three extents")
    return list(extents)


def _shape(extents: Sequence[str | int], batch: int) -> tuple[int, ...]:
    if len(extents) != 3:
        shown = " ".join(str(extent) for extent in extents)
        msg = f"a GEMM has three extents M N K, got {len(extents)}: {shown}"
        raise ConfigError(msg, key="extents", value=list(extents), allowed="M N K")
    m, n, k = (
        read_extent(name, value) if isinstance(value, str) else whole_number(name, value)
        for name, value in zip("mnk", extents, strict=True)
    )
    return m, n, k, batch


def _read_table(table: str | Path, batch: int) -> list[tuple[int, ...]]:
    if not isinstance(table, str | Path):
        msg = f"a table is the path of a CSV file, got {table!r}"
        raise ConfigError(msg, key="csv", value=table, allowed="a path")
    shapes: list[tuple[int, ...]] = []
    for row in shape_rows(table, ("m", "n", "k"), ("batch",)):
        m, n, k = (row.extent(name) for name in "mnk")
        shapes.append((m, n, k, row.extent("batch") if row.text("batch") else batch))
    return shapes


def _copies(case: GemmCase, layout: str, rows: Ints) -> tuple[float, ...]:
    """Return the seconds of the passes that make K contiguous, where the type needs it."""
    code = MATRIX_TYPES.index(case.dtype)
    # Instructions of types of 8 bits and fewer take operands with K contiguous only.
    of_a, of_b = _COPIES[layout] if code >= FIRST_NARROW else (False, False)
    device = case.device
    share = device.elementwise_efficiency or device.hbm_efficiency
    rate = device.hbm_peak_tb_per_s * share * TB
    seconds = []
    for m, n, k, batch in rows.astype(np.float64).tolist():
        elements = batch * k * (m * of_a + n * of_b)
        launches = (of_a + of_b) * device.kernel_start_us * MICROSECOND if elements else 0.0
        seconds.append(2.0 * elements * float(OPERAND_BYTES[code]) / rate + launches)
    return tuple(seconds)
