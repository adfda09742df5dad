"""Matrix multiplications by themselves: three models behind one interface, and every term.

``tile`` is the model that projections use (`projector.kernels.gemm`). ``ws_persistent`` and
``sol`` are documented ones, to compare with.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.config.device import Device
from projector.config.device_kernels import MOST_ROWS, MOST_UNITS, GemmTile, MatrixType
from projector.errors import ConfigError, shown
from projector.kernels.device import (
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
from projector.single.gemm_words import ExplainedGemm, gemm_sentences
from projector.single.inputs import (
    DeviceLike,
    clock_within,
    device_from,
    matrix_type,
    run_named,
)
from projector.units import MEGA, TB

MODELS = ("tile", "ws_persistent", "sol")

_TILE = re.compile(r"(\d{1,5})x(\d{1,5})(?::(\d{1,3})x(\d{1,3}))?")


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
    """Clock that the kernel runs at."""
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
class GemmCase:
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
        if self.model == "ws_persistent":
            return self._explain_ws_persistent(extents, out_bytes)
        if self.model == "sol":
            return self._explain_sol(extents, out_bytes)
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
            self._report(extent, seconds, BOUNDS[bound[row]], int(choice[row]), GemmTerms(*parts))
            for row, (extent, seconds, parts) in enumerate(
                zip(extents, time_s.tolist(), terms.tolist(), strict=True)
            )
        ]

    def _report(
        self, extents: Ints, time_s: float, bound: str, choice: int, terms: GemmTerms
    ) -> GemmReport:
        m, n, k, batch = (int(extent) for extent in extents)
        full_clock_mhz = float(self._record[0]["clock_hz"][self._code]) / MEGA
        named = terms._asdict()
        share, watts = named.pop("clock_share"), named.pop("power_w")
        if choice < 0:
            empty = {"ideal_s": 0.0}
            return GemmReport(m, n, k, batch, 0.0, bound, "", full_clock_mhz, None, named, empty)
        tile, split = choice // MAX_SPLIT_K, choice % MAX_SPLIT_K + 1
        row = self._record[0]["tiles"][tile]
        step = float(row[TILE_K_BYTES]) / STEP_ELEMENT_BYTES
        depth = np.ceil(np.ceil(k / step) / split) * step * split
        tiles = terms.tiles / split
        padded = tiles * float(row[TILE_M]) * float(row[TILE_N]) * depth / (m * n * k * batch)
        waves = terms.waves * float(self._record[0]["compute_units"]) / terms.tiles
        clock_mhz = full_clock_mhz * share
        frequency = self.device.peak_clock_mhz / clock_mhz
        factors = {"padding": float(padded), "waves": waves, "frequency": frequency}
        return GemmReport(
            m,
            n,
            k,
            batch,
            time_s,
            bound,
            self._label(tile, split),
            clock_mhz,
            watts if watts > 0.0 else None,
            named,
            self._factors(m, n, k, batch, time_s, factors),
            self._explanation((m, n, k, batch), tile, split, time_s, bound, terms),
        )

    def _explanation(
        self,
        extents: tuple[int, int, int, int],
        position: int,
        split: int,
        time_s: float,
        bound: str,
        terms: GemmTerms,
    ) -> tuple[str, ...]:
        full_clock_mhz = float(self._record[0]["clock_hz"][self._code]) / MEGA
        offer = self.offers[position]
        return gemm_sentences(
            ExplainedGemm(
                self.device,
                self.dtype,
                offer.library,
                self.run,
                self.clock_mhz is not None,
                extents,
                offer.tile,
                float(self._record[0]["tiles"][position][TILE_UNITS]),
                split,
                time_s,
                bound,
                full_clock_mhz * terms.clock_share,
                terms.power_w if terms.power_w > 0.0 else None,
                terms._asdict(),
            )
        )

    def _factors(
        self, m: int, n: int, k: int, batch: int, time_s: float, factors: dict[str, float]
    ) -> dict[str, float]:
        """Put the FLOP at the peak clock before the factors and the remainder after them."""
        per_clk = self.device.matrix_flop_per_clk_per_cu[self.dtype]
        peak = per_clk * self.device.compute_units * self.device.peak_clock_mhz * MEGA
        ideal_s = 2.0 * m * n * k * batch / peak
        known = ideal_s * float(np.prod(list(factors.values())))
        return {"ideal_s": ideal_s, **factors, "utilisation": time_s / known}

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
        clock_mhz = float(record[0]["clock_hz"][self._code]) / MEGA
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
            factors = {"frequency": self.device.peak_clock_mhz / clock_mhz}
            seconds = float(time_s[row])
            reports.append(
                GemmReport(
                    m,
                    n,
                    k,
                    batch,
                    seconds,
                    BOUNDS[bound[row]],
                    "",
                    clock_mhz,
                    None,
                    terms,
                    self._factors(m, n, k, batch, seconds, factors)
                    if seconds
                    else {"ideal_s": 0.0},
                )
            )
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
        clock_mhz = float(self._record[0]["clock_hz"][self._code]) / MEGA
        reports = []
        for row, (m, n, k, batch) in enumerate(extents.tolist()):
            terms = WsTerms(*columns[row].tolist())._asdict()
            time_s = terms.pop("time_s")
            parts = {
                "memory": terms["load_s"],
                "compute": terms["matrix_s"],
                "epilogue": terms["epilogue_s"],
                "overhead": 0.0,
            }
            factors = {"ideal_s": 0.0}
            if time_s:
                frequency = {"frequency": self.device.peak_clock_mhz / clock_mhz}
                factors = self._factors(m, n, k, batch, time_s, frequency)
            reports.append(
                GemmReport(
                    m,
                    n,
                    k,
                    batch,
                    time_s,
                    max(parts, key=lambda name: parts[name]),
                    self._label(int(choice[row]), 1) if choice[row] >= 0 else "",
                    clock_mhz,
                    None,
                    terms,
                    factors,
                )
            )
        return reports


def gemm_case(
    device: DeviceLike,
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
    profile = device_from(device)
    kind = matrix_type(profile, dtype)
    clock = clock_within(profile, clock_mhz)
    _one_of("model", model, MODELS)
    _one_of("library", library, ("default", *profile.gemm_libraries))
    return GemmCase(
        profile,
        kind,
        model,
        clock,
        library,
        _run(profile, run),
        _offers(profile, library, kind, tile),
        _hit_rate(l2_hit_rate, model),
    )


def _run(device: Device, name: str) -> Run:
    run = run_named(name)
    if run != "training" and device.power is None:
        msg = f"run {run!r} needs a power model, which {device.name} lacks; use run training"
        raise ConfigError(msg, key="run", value=run, allowed=["training"])
    return run


def _one_of(key: str, value: object, legal: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in legal:
        msg = f"{key} must be one of {', '.join(legal)}, got {value!r}"
        raise ConfigError(msg, key=key, value=value, allowed=list(legal))


def _offers(device: Device, library: str, kind: MatrixType, text: str | None) -> tuple[Offer, ...]:
    """Return what a library offers, or only the tiles that ``128x256`` or ``128x256:2x1`` names.

    A tile that only another library has keeps its fields, and reaches what this one does.
    """
    menu = tuple(gemm_menu(device, library, kind))
    if text is None:
        return menu
    sizes = _tile_sizes(text)
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


def _tile_sizes(text: str) -> list[int]:
    """Read ``128x256`` or ``128x256:2x1``."""
    legal = f"128x256 or 128x256:2x1, up to {MOST_ROWS} wide and {MOST_UNITS} units"
    match = _TILE.fullmatch(str(text))
    sizes = [int(number or 1) for number in match.groups()] if match else []
    rows, units = max(sizes[:2], default=0), max(sizes[2:], default=0)
    if min(sizes, default=0) < 1 or rows > MOST_ROWS or units > MOST_UNITS:
        msg = f"tile must be {legal}, got {shown(text)}"
        raise ConfigError(msg, key="tile", value=text, allowed=legal)
    return sizes


def _hit_rate(value: float, model: str) -> float:
    if not (isinstance(value, Real) and 0.0 <= value <= 1.0):
        msg = f"l2_hit_rate must be from 0 to 1, got {shown(value)}"
        raise ConfigError(msg, key="l2_hit_rate", value=value, allowed="0 to 1")
    if value and model != "ws_persistent":
        msg = f"l2_hit_rate applies to model ws_persistent, not to {model}"
        raise ConfigError(msg, key="l2_hit_rate", value=value, allowed=[0])
    return float(value)
