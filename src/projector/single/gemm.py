"""Matrix multiplications by themselves: three models behind one interface, and every term.

``tile`` is the model that projections use (`projector.kernels.gemm`). ``ws_persistent`` and
``sol`` are documented ones, to compare with.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats, Ints, Records
from projector.config.bands import Band, gemm_band
from projector.config.device import Device
from projector.config.device_kernels import MOST_ROWS, MOST_UNITS, GemmTile, MatrixType
from projector.config.formats.shape_table import read_extent, shape_rows
from projector.envelope import told
from projector.errors import ConfigError, one_of, shown
from projector.frames import Frame
from projector.kernels.device import (
    FIRST_NARROW,
    MATRIX_TYPES,
    OPERAND_BYTES,
    TILE_CLUSTER_M,
    TILE_CLUSTER_N,
    TILE_K_BYTES,
    TILE_M,
    TILE_N,
    TILE_UNITS,
)
from projector.kernels.gemm import (
    BOUNDS,
    MAX_SPLIT_K,
    STEP_ELEMENT_BYTES,
    GemmTerms,
    gemm_term_columns,
    gemm_time_columns,
    sol_time_columns,
)
from projector.kernels.gemm.documented import Rates, WsTerms, ws_persistent_columns
from projector.lower.hardware import Offer, Run, device_record, gemm_menu, tile_row
from projector.single import inputs
from projector.single.gemm_words import ExplainedGemm, GemmKind, GemmReport, gemm_sentences
from projector.units import MEGA, MICROSECOND, TB, TERA

MAX_OUT_BYTES = 1024.0
"""Widest element of an output; real ones have 1 to 16 bytes."""

MODELS = ("tile", "ws_persistent", "sol")

_TILE = re.compile(r"(\d{1,5})x(\d{1,5})(?::(\d{1,3})x(\d{1,3}))?")


@dataclass(frozen=True)
class GemmCase(GemmKind):
    """A kind of GEMM, timed and explained."""

    @cached_property
    def _record(self) -> Records:
        records = device_record(
            self.device,
            self.clock_mhz,
            gemm_library=self.library,
            gemm_type=self.dtype,
            rows_along_k=self.rows_along_k,
            run=self.run,
        )
        for position, offer in enumerate(self.offers):
            records[0]["tiles"][position] = tile_row(self.device, offer.tile, offer)
        records[0]["num_tiles"] = len(self.offers)
        return records

    @property
    def _code(self) -> int:
        return MATRIX_TYPES.index(self.dtype)

    def times_s(self, extents: Ints, out_bytes: Floats) -> Floats:
        """Return the seconds of GEMMs of extents int64[gemms, 4]: m, n, k, batch."""
        if self.model == "ws_persistent":
            return self._ws_persistent(extents, out_bytes)[1][:, WsTerms._fields.index("time_s")]
        rows = len(extents)
        code, device = np.full(rows, self._code), np.zeros(rows, np.int64)
        if self.model == "sol":
            return sol_time_columns(extents, code, out_bytes, device, self._record)[0]
        return gemm_time_columns(extents, code, out_bytes, np.ones(rows), device, self._record)[0]

    def explain(self, extents: Ints, out_bytes: Floats) -> list[GemmReport]:
        """Return every term of each GEMM; parameters are those of `times_s`."""
        explain = {"ws_persistent": self._explain_ws_persistent, "sol": self._explain_sol}
        return explain.get(self.model, self._explain_tile)(extents, out_bytes)

    def _explain_tile(self, extents: Ints, out_bytes: Floats) -> list[GemmReport]:
        rows = len(extents)
        columns = (
            np.ascontiguousarray(extents, np.int64),
            np.full(rows, self._code),
            out_bytes,
            np.ones(rows),
            np.zeros(rows, np.int64),
            self._record,
        )
        time_s, bound, choice = gemm_time_columns(*columns)
        terms = gemm_term_columns(*columns, choice)
        return [
            self._of_tile(extent, seconds, BOUNDS[bound[row]], int(choice[row]), GemmTerms(*parts))
            for row, (extent, seconds, parts) in enumerate(
                zip(extents.tolist(), time_s.tolist(), terms.tolist(), strict=True)
            )
        ]

    def _of_tile(
        self, extents: Sequence[int], time_s: float, bound: str, choice: int, terms: GemmTerms
    ) -> GemmReport:
        named = terms._asdict()
        share, watts = named.pop("clock_share"), named.pop("power_w")
        if choice < 0:
            return self._report(extents, 0.0, bound, named)
        m, n, k, batch = extents
        position, split = choice // MAX_SPLIT_K, choice % MAX_SPLIT_K + 1
        row = self._record[0]["tiles"][position]
        step = float(row[TILE_K_BYTES]) / STEP_ELEMENT_BYTES
        depth = np.ceil(np.ceil(k / step) / split) * step * split
        tiles = terms.tiles / split
        padded = tiles * float(row[TILE_M]) * float(row[TILE_N]) * depth / (m * n * k * batch)
        waves = terms.waves * float(self._record[0]["compute_units"]) / terms.tiles
        report = self._report(
            extents,
            time_s,
            bound,
            named,
            kernel=self._label(position, split),
            clock_share=share,
            power_w=watts if watts > 0.0 else None,
            factors={"padding": float(padded), "waves": waves},
        )
        offer, units = self.offers[position], float(row[TILE_UNITS])
        sentences = gemm_sentences(ExplainedGemm(self, report, offer, units, split))
        return replace(report, explanation=sentences)

    def _report(
        self,
        extents: Sequence[int],
        time_s: float,
        bound: str,
        terms: dict[str, float],
        *,
        kernel: str = "",
        clock_share: float = 1.0,
        power_w: float | None = None,
        factors: Mapping[str, float] | None = None,
    ) -> GemmReport:
        """Return a GEMM of any model.

        The factors of its time are the FLOP at the peak clock, those given, and what remains.
        """
        m, n, k, batch = extents
        clock_mhz = float(self._record[0]["clock_hz"][self._code]) / MEGA * clock_share
        all_factors = {"ideal_s": 0.0}
        if time_s:
            known = {**(factors or {}), "frequency": self.device.peak_clock_mhz / clock_mhz}
            per_clk = self.device.matrix_flop_per_clk_per_cu[self.dtype]
            peak = per_clk * self.device.compute_units * self.device.peak_clock_mhz * MEGA
            ideal_s = 2.0 * m * n * k * batch / peak
            utilisation = time_s / (ideal_s * float(np.prod(list(known.values()))))
            all_factors = {"ideal_s": ideal_s, **known, "utilisation": utilisation}
        return GemmReport(
            m, n, k, batch, time_s, bound, kernel, clock_mhz, power_w, terms, all_factors
        )

    def _label(self, position: int, split: int) -> str:
        tile = self.offers[position].tile
        text = f"{tile.m}x{tile.n}"
        if tile.cluster_m * tile.cluster_n > 1:
            text += f":{tile.cluster_m}x{tile.cluster_n}"
        if tile.pair:
            text += " pair"
        return f"{text} split {split}" if split > 1 else text

    def _explain_sol(self, extents: Ints, out_bytes: Floats) -> list[GemmReport]:
        rows, record = len(extents), self._record
        code, device = np.full(rows, self._code), np.zeros(rows, np.int64)
        time_s, bound = sol_time_columns(extents, code, out_bytes, device, record)
        reports = []
        for row, (m, n, k, batch) in enumerate(extents.tolist()):
            flop_s = 2.0 * m * n * k * batch / float(record[0]["matrix_flop_per_s"][self._code])
            operands = (m + n) * k * float(OPERAND_BYTES[self._code])
            traffic = batch * (operands + m * n * float(out_bytes[row]))
            terms = {
                "matrix_s": flop_s,
                "memory_s": traffic / float(record[0]["hbm_bytes_per_s"]),
                "hbm_bytes": traffic,
            }
            limit = BOUNDS[bound[row]]
            reports.append(self._report((m, n, k, batch), float(time_s[row]), limit, terms))
        return reports

    def _ws_persistent(self, extents: Ints, out_bytes: Floats) -> tuple[Ints, Floats]:
        device, constants = self.device, self.device.ws_persistent
        clock_hz = float(self._record[0]["clock_hz"][self._code])
        element_bytes = float(OPERAND_BYTES[self._code])
        scales = element_bytes % 0.5
        rates = Rates(
            device.matrix_flop_per_clk_per_cu[self.dtype] * clock_hz,
            device.hbm_peak_tb_per_s * device.hbm_efficiency * TB,
            element_bytes,
            constants.first_load_bytes / (element_bytes - scales),
            constants.setup_clk / clock_hz,
            constants.epilogue_clk / clock_hz,
            1.0 - self.l2_hit_rate,
        )
        count = int(self._record[0]["num_tiles"])
        columns = [TILE_M, TILE_N, TILE_CLUSTER_M, TILE_CLUSTER_N, TILE_UNITS]  # of a `WsTile`
        menu = self._record[0]["tiles"][:count][:, columns]
        return ws_persistent_columns(extents, out_bytes, menu, rates)

    def _explain_ws_persistent(self, extents: Ints, out_bytes: Floats) -> list[GemmReport]:
        choice, columns = self._ws_persistent(extents, out_bytes)
        reports = []
        for row, extent in enumerate(extents.tolist()):
            terms = WsTerms(*columns[row].tolist())._asdict()
            time_s = terms.pop("time_s")
            parts = {
                "memory": terms["load_s"],
                "compute": terms["matrix_s"],
                "epilogue": terms["epilogue_s"],
                "overhead": 0.0,
            }
            limit = max(parts, key=lambda name: parts[name])
            label = self._label(int(choice[row]), 1) if choice[row] >= 0 else ""
            reports.append(self._report(extent, time_s, limit, terms, kernel=label))
        return reports


def gemm_time(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    device: inputs.DeviceLike,
    dtype: str = "bf16",
    batch: ArrayLike = 1,
    out_bytes: ArrayLike = 2.0,
    clock_mhz: float | None = None,
    model: str = "tile",
    library: str = "default",
    run: str = "training",
    tile: str | None = None,
    l2_hit_rate: float = 0.0,
) -> float | Floats:
    """Return the seconds of ``C[m, n] = A[m, k] @ B[k, n]``.

    Args:
        m, n, k, batch (int or int array): Extents, broadcast like numpy; ``batch`` equal problems
            run in one launch.
        device (str, Path, mapping or Device): Accelerator, as in a job.
        dtype (str): Operand type; one that the device has natively.
        out_bytes (float or float array): Bytes of an output element (8 for FP32 read and written in
            place).
        clock_mhz (float, optional): Instead of the clock that ``run`` implies.
        model (str): ``tile``, ``ws_persistent`` or ``sol`` (`projector.single.gemm`).
        library (str): ``default``, or a GEMM library that the device describes.
        run (str): ``training``: the sustained clock. ``loaded`` (a second of the same kernel) or
            ``short`` (a few launches): the highest clock that the power cap allows.
        tile (str, optional): The only tile, ``128x256`` or with its cluster ``128x256:2x1``; else
            the fastest.
        l2_hit_rate (float): Share of the loads that ``ws_persistent`` takes from L2; no other model
            has it.

    Returns:
        float or float64 array: Seconds, without launching from the host and without quantising
            passes.

    Raises:
        ConfigError: For an unknown device, type, model, library or run, an invalid extent, or a
            clock above the peak.
    """
    columns, shape = inputs.broadcast(m=m, n=n, k=k, batch=batch, out_bytes=out_bytes)
    extents = inputs.extents_of(columns, ("m", "n", "k", "batch"))
    inputs.check_range(columns, "out_bytes", MAX_OUT_BYTES)
    case = gemm_case(
        device,
        dtype,
        clock_mhz=clock_mhz,
        model=model,
        library=library,
        run=run,
        tile=tile,
        l2_hit_rate=l2_hit_rate,
    )
    return inputs.shaped(case.times_s(extents, columns["out_bytes"]), shape)


def gemm_case(
    device: inputs.DeviceLike,
    dtype: str = "bf16",
    *,
    clock_mhz: float | None = None,
    model: str = "tile",
    library: str = "default",
    run: str = "training",
    tile: str | None = None,
    l2_hit_rate: float = 0.0,
) -> GemmCase:
    """Return a kind of GEMM on a device; parameters are those of `gemm_time`."""
    profile = inputs.device_from(device)
    kind = inputs.matrix_type(profile, dtype)
    clock = inputs.clock_within(profile, clock_mhz)
    one_of("model", model, MODELS)
    one_of("library", library, ("default", *profile.gemm_libraries))
    if not (isinstance(l2_hit_rate, Real) and 0.0 <= l2_hit_rate <= 1.0):
        msg = f"l2_hit_rate must be from 0 to 1, got {shown(l2_hit_rate)}"
        raise ConfigError(msg, key="l2_hit_rate", value=l2_hit_rate, allowed="0 to 1")
    if l2_hit_rate and model != "ws_persistent":
        msg = f"l2_hit_rate applies to model ws_persistent, not to {model}"
        raise ConfigError(msg, key="l2_hit_rate", value=l2_hit_rate, allowed=[0])
    return GemmCase(
        profile,
        kind,
        model,
        clock,
        library,
        _run(profile, run),
        _offers(profile, library, kind, tile),
        float(l2_hit_rate),
    )


def _run(device: Device, name: str) -> Run:
    run = inputs.run_named(name)
    if run != "training" and device.power is None:
        msg = f"run {run!r} needs a power model, which {device.name} lacks; use run training"
        raise ConfigError(msg, key="run", value=run, allowed=["training"])
    return run


def _offers(device: Device, library: str, kind: MatrixType, text: str | None) -> tuple[Offer, ...]:
    """Return what a library offers, or only the tiles that ``128x256`` or ``128x256:2x1`` names.

    A tile that only another library has keeps its fields, and reaches what this one does.
    """
    menu = tuple(gemm_menu(device, library, kind))
    if text is None:
        return menu
    legal = f"128x256 or 128x256:2x1, up to {MOST_ROWS} wide and {MOST_UNITS} units"
    match = _TILE.fullmatch(str(text))
    sizes = [int(number or 1) for number in match.groups()] if match else []
    rows, units = max(sizes[:2], default=0), max(sizes[2:], default=0)
    if min(sizes, default=0) < 1 or rows > MOST_ROWS or units > MOST_UNITS:
        msg = f"tile must be {legal}, got {shown(text)}"
        raise ConfigError(msg, key="tile", value=text, allowed=legal)
    named = tuple(offer for offer in menu if _sizes(offer.tile) == sizes)
    if named:
        return named
    libraries = device.gemm_libraries.values()
    menus = (
        device.gemm_tiles,
        *(tiles for other in libraries for tiles in (other.tiles, *other.tiles_of.values())),
    )
    known = (tile for tiles in menus for tile in tiles if _sizes(tile) == sizes)
    first, (m, n, high, wide) = menu[0], sizes
    tile = next(known, None) or GemmTile(
        m=m, n=n, k_bytes=first.tile.k_bytes, cluster_m=high, cluster_n=wide
    )
    share = first.efficiency / first.tile.efficiency * tile.efficiency
    step_clk = first.step_clk if tile.step_clk is None else tile.step_clk
    return (Offer(library, tile, share, step_clk),)


def _sizes(tile: GemmTile) -> list[int]:
    return [tile.m, tile.n, tile.cluster_m, tile.cluster_n]


LAYOUTS = ("tn", "nn", "nt", "tt")

_COPIES = {"tn": (False, False), "nn": (True, False), "nt": (True, True), "tt": (False, True)}
"""Whether A, and whether B, is copied so that K is contiguous."""


@dataclass(frozen=True)
class GemmList(Frame):
    """GEMMs of one kind, explained."""

    case: GemmCase
    layout: str
    reports: tuple[GemmReport, ...]
    copy_s: tuple[float, ...]
    """Seconds of transposed copies before each."""
    measured_us: tuple[float | None, ...]
    """What a table says was measured."""
    libraries: tuple[str, ...]
    """GEMM library of each."""

    @property
    def records(self) -> list[dict[str, Any]]:
        """One row for each: shape, time, terms, and what was measured beside it."""
        rows = map(self._row, range(len(self.reports)))
        return [{name: row[name] for name in row if name != "explanation"} for row in rows]

    @property
    def ratios(self) -> Floats:
        """Projected over measured time of those that were measured."""
        both = [(self.total_s(i), us) for i, us in enumerate(self.measured_us) if us]
        return np.array([total_s / (us * MICROSECOND) for total_s, us in both], np.float64)

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
            **told(self.case, "model library run"),
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
            "library": self.libraries[row],
            **({"measured_us": self.measured_us[row]} if any(self.measured_us) else {}),
            "terms": report.terms,
            "factors": report.factors,
        }


MEASURED = "measured_us"
"""Column of a table with measured times."""


def list_gemms(
    extents: Sequence[str | int],
    table: str | Path | None,
    *,
    gpu: inputs.DeviceLike = "h100",
    batch: int = 1,
    out_bytes: float = 2.0,
    layout: str = "tn",
    **kind: Any,
) -> GemmList:
    """Time the GEMM of three extents, or those of a CSV table with columns m, n, k.

    The table may also have ``batch``, ``library``, and ``measured_us`` to compare with.

    Extents may be text with commas, and are empty if a table is given. ``batch`` counts equal
    problems in one launch, for rows that do not state it; ``out_bytes`` are those of an output
    element; ``kind`` is that of `gemm_case`, whose library is of rows that do not name one.
    """
    case = gemm_case(gpu, **kind)
    order = str(layout).lower()
    one_of("layout", layout if order not in LAYOUTS else order, LAYOUTS)
    if not (inputs.is_number(out_bytes) and 0.0 <= out_bytes <= MAX_OUT_BYTES):
        msg = f"out_bytes must be from 0 to {MAX_OUT_BYTES:g}, got {shown(out_bytes)}"
        raise ConfigError(msg, key="out_bytes", value=out_bytes, allowed=f"0 to {MAX_OUT_BYTES:g}")
    given, repeats = _texts(extents), inputs.whole_number("batch", batch)
    if bool(given) == (table is not None):
        msg = "give one GEMM as M N K, or many with --csv FILE.csv, but not both"
        raise ConfigError(msg, key="extents", value=given, allowed="M N K, or --csv")
    shapes, measured_us, named = (
        ([_shape(given, repeats)], [None], [""])
        if table is None
        else _read_table(table, repeats, case.device)
    )
    rows = np.array(shapes, np.int64).reshape(-1, 4)
    libraries = np.array([name or case.library for name in named])
    # Narrow types are copied until K is contiguous.
    along_k = order == "tn" or MATRIX_TYPES.index(case.dtype) >= FIRST_NARROW
    reports: dict[int, GemmReport] = {}
    for library in dict.fromkeys(libraries.tolist()):
        each = replace(gemm_case(case.device, **{**kind, "library": library}), rows_along_k=along_k)
        at = np.flatnonzero(libraries == library)
        found = each.explain(rows[at], np.full(len(at), float(out_bytes)))
        reports |= dict(zip(at.tolist(), found, strict=True))
    in_order = tuple(reports[row] for row in range(len(rows)))
    copies = _copies(case, order, rows)
    return GemmList(case, order, in_order, copies, tuple(measured_us), tuple(libraries.tolist()))


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
        read_extent(name, value) if isinstance(value, str) else inputs.whole_number(name, value)
        for name, value in zip("mnk", extents, strict=True)
    )
    return m, n, k, batch


def _read_table(
    table: str | Path, batch: int, device: Device
) -> tuple[list[tuple[int, ...]], list[float | None], list[str]]:
    """Return the shapes of a table, what it says was measured, and the libraries it names."""
    if not isinstance(table, str | Path):
        msg = f"a table is the path of a CSV file, got {table!r}"
        raise ConfigError(msg, key="csv", value=table, allowed="a path")
    shapes, measured_us, libraries = list[tuple[int, ...]](), list[float | None](), list[str]()
    for row in shape_rows(table, ("m", "n", "k"), ("batch", "library", MEASURED)):
        m, n, k = (row.extent(name) for name in "mnk")
        shapes.append((m, n, k, row.extent("batch") if row.text("batch") else batch))
        measured_us.append(row.positive(MEASURED))
        name, legal = row.text("library").lower(), ("default", *device.gemm_libraries)
        libraries.append(name and one_of(f"{row.where}library", name, legal))
    return shapes, measured_us, libraries


def _copies(case: GemmCase, layout: str, rows: Ints) -> tuple[float, ...]:
    """Return the seconds of the passes that make K contiguous, where the type needs it."""
    code = MATRIX_TYPES.index(case.dtype)
    # Instructions of types of 8 bits and fewer take operands with K contiguous only.
    of_a, of_b = _COPIES[layout] if code >= FIRST_NARROW else (False, False)
    device = case.device
    rate = device.hbm_peak_tb_per_s * (device.elementwise_efficiency or device.hbm_efficiency) * TB
    seconds = []
    for m, n, k, batch in rows.astype(np.float64).tolist():
        elements = batch * k * (m * of_a + n * of_b)
        launches = (of_a + of_b) * device.kernel_start_us * MICROSECOND if elements else 0.0
        seconds.append(2.0 * elements * float(OPERAND_BYTES[code]) / rate + launches)
    return tuple(seconds)
