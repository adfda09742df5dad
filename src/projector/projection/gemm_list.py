"""Shapes of matrix multiplications, from the command line or a table, and their times."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.errors import ConfigError
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.projection.gemm import GemmCase, GemmReport, gemm_case
from projector.projection.shape_table import read_extent, shape_rows
from projector.units import MICROSECOND, TB, TERA

MAX_OUT_BYTES = 1024.0

LAYOUTS = ("tn", "nn", "nt", "tt")

_COPIES = {"tn": (False, False), "nn": (True, False), "nt": (True, True), "tt": (False, True)}
"""Whether A, and whether B, is copied so that K is contiguous."""

_FIRST_NARROW = MATRIX_TYPES.index("fp8")
"""Instructions of this type and narrower ones take operands with K contiguous only."""


@dataclass(frozen=True)
class GemmList:
    """GEMMs of one kind, explained."""

    case: GemmCase
    layout: str
    reports: tuple[GemmReport, ...]
    copy_s: tuple[float, ...]
    """Seconds of transposed copies before each."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "device": self.case.device.name,
            "dtype": self.case.dtype,
            "layout": self.layout,
            "model": self.case.model,
            "library": self.case.library,
            "run": self.case.run,
            "gemms": [self._row(place) for place in range(len(self.reports))],
        }

    def total_s(self, place: int) -> float:
        """Return the seconds of one GEMM with its copies."""
        return self.reports[place].time_s + self.copy_s[place]

    def flop_per_s(self, place: int) -> float:
        """Return the needed FLOP of one GEMM over its time with the copies."""
        total_s = self.total_s(place)
        return (
            self.reports[place].flop_per_s * self.reports[place].time_s / total_s
            if total_s
            else 0.0
        )

    def _row(self, place: int) -> dict[str, Any]:
        report = self.reports[place]
        fields = asdict(report)
        for name in ("time_s", "terms", "factors"):
            fields.pop(name)
        return {
            **fields,
            "time_us": self.total_s(place) / MICROSECOND,
            "copy_us": self.copy_s[place] / MICROSECOND,
            "tflops": self.flop_per_s(place) / TERA,
            "terms": report.terms,
            "factors": report.factors,
        }


def list_gemms(
    extents: Sequence[str],
    table: str | None,
    *,
    gpu: str = "h100",
    batch: int = 1,
    out_bytes: float = 2.0,
    layout: str = "tn",
    **kind: Any,
) -> GemmList:
    """Time the GEMM of three extents, or those of a CSV table with columns m, n, k (and batch).

    Raises
    ------
    ConfigError
        If there is not exactly one of both, a shape is none, or `gemm_case` refuses the rest.
    """
    case = gemm_case(gpu, **kind)
    if layout.lower() not in LAYOUTS:
        msg = f"layout {layout!r} is none of {', '.join(LAYOUTS)}"
        raise ConfigError(msg, key="layout", value=layout, allowed=list(LAYOUTS))
    if not 0.0 <= out_bytes <= MAX_OUT_BYTES:
        msg = f"out_bytes is a number from 0 to {MAX_OUT_BYTES:g}, got {out_bytes:g}"
        raise ConfigError(msg, key="out_bytes", value=out_bytes, allowed=f"0 to {MAX_OUT_BYTES:g}")
    if bool(extents) == (table is not None):
        msg = "name one GEMM by its three extents M N K, or many by --csv FILE.csv"
        raise ConfigError(msg, key="extents", value=list(extents), allowed="M N K, or --csv")
    shapes = _read_table(Path(table), batch) if table is not None else [_shape(extents, batch)]
    rows = np.array(shapes, np.int64).reshape(-1, 4)
    reports = case.explain(rows, np.full(len(rows), float(out_bytes)))
    return GemmList(case, layout.lower(), tuple(reports), _copies(case, layout.lower(), rows))


def _shape(extents: Sequence[str], batch: int) -> tuple[int, ...]:
    if len(extents) != 3:
        msg = f"a GEMM has three extents M N K, got {len(extents)}: {' '.join(extents)}"
        raise ConfigError(msg, key="extents", value=list(extents), allowed="M N K")
    return (
        *(read_extent(name, text) for name, text in zip("mnk", extents, strict=True)),
        read_extent("batch", str(batch)),
    )


def _read_table(path: Path, batch: int) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    for row in shape_rows(path, ("m", "n", "k"), ("batch",)):
        m, n, k = (row.extent(name) for name in "mnk")
        own = row.text("batch") or str(batch)
        shapes.append((m, n, k, read_extent("batch", own, row.where)))
    return shapes


def _copies(case: GemmCase, layout: str, rows: NDArray[np.int64]) -> tuple[float, ...]:
    """Return the seconds of the passes that make K contiguous, where the type needs it."""
    code = MATRIX_TYPES.index(case.dtype)
    of_a, of_b = _COPIES[layout] if code >= _FIRST_NARROW else (False, False)
    device = case.device
    share = device.elementwise_efficiency or device.hbm_efficiency
    rate = device.hbm_peak_tb_per_s * share * TB
    seconds = []
    for m, n, k, batch in rows.astype(np.float64).tolist():
        elements = batch * k * (m * of_a + n * of_b)
        launches = (of_a + of_b) * device.kernel_start_us * MICROSECOND if elements else 0.0
        seconds.append(2.0 * elements * float(OPERAND_BYTES[code]) / rate + launches)
    return tuple(seconds)
