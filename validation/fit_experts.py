"""Fit of the layers of experts to the published tables of NVIDIA's and AMD's kernels.

Every constant is a positive number with a prior (centre and spread of its logarithm), and belongs
to some kernel classes of some families. Errors are logarithmic with soft-L1. Groups named on
the command line are fitted, or all. Printed are the
constants with the rows that each rests on, and the errors in sample, with whole shapes left out,
with devices left out, and on rows with a doubt, which are never fitted. Rows that are faster than
the peak memory rate reads the weights of their experts are not fitted either.
"""

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from projector.arrays import Floats, Ints
from projector.config.device import Device
from projector.kernels.device import FIRST_NARROW, MATRIX_TYPES, OPERAND_BYTES
from projector.serving.experts import ExpertLayer, tuned_rows
from projector.units import KIB, MEGA, MICROSECOND, TB
from projector.validate.moe import LayerCase, read_layer

TABLE = Path(__file__).parent / "data" / "moe_measured.csv"
NOISE = 0.06
"""Spread of a row around the model."""

CACHE_MIB = 256
"""Bytes that the last cache of some devices may hold from one run to the next."""

SHARED = ("efficiency", "wave")
"""Constants that older releases share with new ones."""

RANDOM_DRAWS = 4
"""Draws of independent tokens that a fit looks at; more change no time by a percent."""

Draw = Floats
"""float64[draws]: one value for each draw of the loads of each row."""


class Constant(NamedTuple):
    """One fitted number."""

    field: str
    centre: float
    spread: float
    """Of the logarithm around the centre."""
    classes: tuple[str, ...]
    """``family`` or ``family/kernel class`` that it holds for."""
    most: float = np.inf


class Group(NamedTuple):
    """Families that are fitted together, and what holds for all of them."""

    families: tuple[str, ...]
    constants: tuple[Constant, ...]
    fixed: dict[str, float]


def _older(family: str, name: str, field: str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the classes that a constant holds for; older releases multiply as new ones do."""
    same = [item for item in classes if item.split("@")[0] == name]
    return tuple(f"{family}/{item}" for item in (same if field in SHARED else [name]))


def _nvidia(
    family: str, classes: Sequence[str], extra: Sequence[Constant] = (), **fixed: float
) -> Group:
    """Memory and expert of a family; start, wave, pass rate and efficiency of its classes."""
    whole = (
        Constant("memory", 0.88, 0.06, (family,), 1.0),
        Constant("expert", 0.13, 0.5, (family,)),
    )
    each = [
        Constant(field, centre, spread, _older(family, name, field, classes), most)
        for name in classes
        for field, centre, spread, most in (
            ("start", 24.0, 0.3, np.inf),
            ("wave", 0.8, 0.5, np.inf),
            ("pass", 12.0, 0.4, np.inf),
            ("efficiency", 0.85, 0.15, 1.0),
        )
        if not (field in SHARED and "@" in name)
    ]
    constants = [item for item in (*whole, *each, *extra) if item.field not in fixed]
    return Group((family,), tuple(constants), {"overlap": 0.2, "sum": 1.0, **fixed})


def _amd() -> Group:
    """Constants of AITER's kernels; what MI300X has no rows for is CDNA 4's."""
    both = ("cdna3", "cdna4")
    names = ("fp8_one", "fp8_block", "fp8_block_one", "mxfp8", "mxfp4", "mxfp4_fp8", "mxfp4_bf16")
    starts = [Constant("start", 12.0, 0.5, (f"cdna4/{name}",)) for name in names]
    starts[4] = starts[4]._replace(classes=("cdna4/mxfp4", "cdna4/mxfp4_one"))
    efficient = (
        ("cdna3/bf16", "cdna4/mxfp4_bf16"),
        ("cdna4/fp8_one",),
        ("cdna4/fp8_block", "cdna4/fp8_block_one"),
        ("cdna4/mxfp8",),
        ("cdna4/mxfp4", "cdna4/mxfp4_one"),
        ("cdna4/mxfp4_fp8",),
    )
    return Group(
        both,
        (
            *(Constant("memory", 0.8, 0.1, (name,), 1.0) for name in both),
            *(Constant("wave", 1.5, 0.6, (name,)) for name in both),
            Constant("expert", 0.03, 1.0, both),
            Constant("overlap", 0.2, 0.5, both, 1.0),
            Constant("sum", 0.5, 0.5, both, 1.0),
            Constant("start", 12.0, 0.5, ("cdna3/bf16",)),
            *starts,
            *(Constant("efficiency", 0.4, 0.4, names, 1.0) for names in efficient),
        ),
        {"pass": 13.0},
    )


FULLEST = Constant("fullest", 15.0, 0.5, ("blackwell/fp8_block", "blackwell/fp8_block@1.3.0rc15"))
NVIDIA_BLACKWELL = ("bf16", "fp8", "fp8_block", "fp8_block@1.3.0rc15", "nvfp4")
GROUPS = {
    "Ampere": _nvidia("ampere", ("bf16",), expert=0.12, wave=0.8, memory=0.81),
    "Hopper": _nvidia("hopper", ("bf16", "fp8", "fp8_block")),
    "Blackwell": _nvidia("blackwell", NVIDIA_BLACKWELL, (FULLEST,)),
    "CDNA 3 and 4": _amd(),
}


class Point(NamedTuple):
    """One row."""

    case: LayerCase
    family: str
    name: str
    """Kernel class, with the release where that has an entry of its own."""
    dtype: str
    doubt: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Hidden size, width and experts."""
        layer = self.case.layer
        return layer.hidden, layer.inner, layer.experts

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.case.layer.device.name

    @property
    def impossible(self) -> bool:
        """Whether the peak memory rate cannot read the weights in the measured time."""
        layer, device = self.case.layer, self.case.layer.device
        active = float((self.case.loads > 0).sum(axis=1).mean())
        bytes_ = _bytes(layer.weights or layer.dtype)
        moved = active * (2 + layer.gated) * layer.hidden * layer.inner * bytes_
        least_s = (moved - CACHE_MIB * KIB * KIB) / (device.hbm_peak_tb_per_s * TB)
        return least_s > self.case.measured * MICROSECOND


def _bytes(dtype: str) -> float:
    return float(OPERAND_BYTES[MATRIX_TYPES.index(dtype)])


class Columns:
    """Rows as columns, one entry for each draw of a row's loads."""

    def __init__(self, points: Sequence[Point]) -> None:
        """Lay the points out; tiles are counted once, as no constant changes them."""
        self.points = points
        self.draws = np.array([len(point.case.loads) for point in points])
        self.row = np.repeat(np.arange(len(points)), self.draws)
        self.measured_us = np.array([point.case.measured for point in points])
        self.menus = [point.case.layer.device.expert_layer.row_tiles for point in points]
        self.wide = [_widths(point.case.layer) for point in points]
        self.heights = np.array(sorted({high for menu in self.menus for high in menu}), float)
        self.widths = np.array(sorted({wide for menu in self.wide for wide in menu}), float)
        loads = [point.case.loads for point in points]
        self.tiles = self._per_draw(loads, lambda item, high: np.ceil(item / high).sum(axis=1))
        tuned = [
            np.broadcast_to(
                max(1, tuned_rows(point.case.layer, point.case.tokens)), point.case.loads.shape
            )
            if tuned_rows(point.case.layer, point.case.tokens)
            else point.case.loads
            for point in points
        ]
        self.tuned = self._per_draw(tuned, lambda item, high: np.ceil(item / high).sum(axis=1))
        self.active = np.concatenate([(item > 0).sum(axis=1) for item in loads]).astype(float)
        self.pairs = np.concatenate([item.sum(axis=1) for item in loads]).astype(float)
        self.fullest = np.concatenate([_fullest(item) for item in loads])
        self.allowed = np.array(
            [
                [[h in menu and w in wide for w in self.widths] for h in self.heights]
                for menu, wide in zip(self.menus, self.wide, strict=True)
            ]
        )[self.row]

    def _per_draw(self, loads: Sequence[Ints], count: Callable[[Ints, float], Floats]) -> Floats:
        return np.stack(
            [np.concatenate([count(item, high) for item in loads]) for high in self.heights], axis=1
        )

    def each(self, value: Callable[[ExpertLayer], float]) -> Draw:
        """Return a number of each row's layer, for every draw."""
        return np.array([float(value(point.case.layer)) for point in self.points])[self.row]


def _widths(layer: ExpertLayer) -> tuple[int, ...]:
    one = layer.kernels.slice_columns
    return (one,) if one else layer.device.expert_layer.column_tiles


def _fullest(loads: Ints) -> Floats:
    return loads.max(axis=1, initial=0) * (2.0 if loads.shape[1] < 4 else 1.0)


class Model:
    """The layer's time as a function of the constants, in numpy."""

    def __init__(self, points: Sequence[Point], group: Group) -> None:
        """Collect what the constants multiply."""
        self.group = group
        self.columns = columns = Columns(points)
        each = columns.each
        self.inner, self.hidden = each(lambda x: x.inner), each(lambda x: x.hidden)
        self.projections = each(lambda x: 1 + x.gated)
        self.one = each(lambda x: x.kernels.slice_columns)
        self.fuses = each(lambda x: x.kernels.fuses) > 0.0
        self.row_bytes = each(lambda x: _bytes(x.dtype))
        self.weight_bytes = each(lambda x: _bytes(x.weights or x.dtype))
        self.units = each(lambda x: x.device.compute_units)
        self.clock = each(lambda x: x.device.peak_clock_mhz * MEGA)
        self.rate = self.clock * each(lambda x: x.device.matrix_flop_per_clk_per_cu[x.dtype])
        self.fill = self.clock * each(lambda x: x.device.l2_fill_bytes_per_clk_per_cu)
        self.peak = each(lambda x: x.device.hbm_peak_tb_per_s * TB)
        self.stream = each(lambda x: x.device.hbm_efficiency)
        tokens = np.array([point.case.tokens for point in points])[columns.row].astype(float)
        self.around_s, self.passes, self.uneven = self._around(points, tokens)
        self.place = self._places(points)

    def _places(self, points: Sequence[Point]) -> dict[str, Ints]:
        """Return for each field the constant of every draw, -1 where it is fixed."""
        fields = {item.field for item in self.group.constants} | self.group.fixed.keys()
        place = {field: np.full(len(points), -1) for field in fields | {"fullest"}}
        for index, item in enumerate(self.group.constants):
            for row, point in enumerate(points):
                if not {point.family, f"{point.family}/{point.name}"}.isdisjoint(item.classes):
                    place[item.field][row] = index
        return {field: where[self.columns.row] for field, where in place.items()}

    def _around(self, points: Sequence[Point], tokens: Draw) -> tuple[Draw, Draw, Draw]:
        """Return fixed seconds of routing, and bytes and elements of passes over rows."""
        around = np.zeros(len(tokens))
        passes = np.zeros((len(tokens), 4))
        pairs = self.columns.pairs
        for row, point in enumerate(points):
            layer, draws = point.case.layer, self.columns.row == row
            if layer.gemms_alone:
                continue
            costs, experts = layer.device.expert_layer, layer.experts
            count = float(point.case.tokens)
            around[draws] = (
                costs.sort_unit_ns * 1e-9 * count * layer.topk / layer.device.compute_units
            )
            if layer.topk <= costs.fused_router_topk and experts <= costs.fused_router_experts:
                passes[draws, :2] += 4.0 * count * experts
            else:
                around[draws] += costs.unfused_router_us * 1e-6
                around[draws] += costs.unfused_router_ps * 1e-12 * count * experts
            moved, activated = _passes(layer, count, pairs[draws])
            passes[draws, :2] += moved
            passes[draws, 2:] = activated
        uneven = np.where(self.columns.each(lambda x: x.gemms_alone) > 0, 0.0, self.columns.fullest)
        return around, passes, uneven

    def value(self, logs: Floats, field: str) -> Draw:
        """Return a field's constant of every draw."""
        where = self.place.get(field)
        fixed = self.group.fixed.get(field, 0.0)
        if where is None:
            return np.full(len(self.columns.row), fixed)
        return np.where(where >= 0, np.exp(logs)[where], fixed)

    def times_us(self, logs: Floats) -> Floats:
        """Return float64[rows], the mean time over the draws of each."""
        get = partial(self.value, logs)
        one = self.one > 0
        first_n = np.where(one, self.inner, self.inner * self.projections)
        first_k = np.where(one, self.hidden * (self.projections + 1), self.hidden)
        share = np.where(one, 1.0 / (self.projections + 1), 1.0)
        out = np.where(self.fuses, np.where(one, 0.0, 2.0 / self.projections), 2.0)
        gemm = self._gemm_s(logs, first_n, first_k, share, out)
        second = self._gemm_s(logs, self.hidden, self.inner, 1.0, np.where(self.fuses, 0.0, 2.0))
        gemm += np.where(one, 0.0, second)
        slices = np.where(one, np.ceil(self.inner / np.maximum(self.one, 1.0)), 1.0)
        added = self.columns.pairs * self.hidden * 2.0 * slices / (self.peak * get("sum"))
        units = self.units * self.clock * get("pass")
        memory = self.peak * self.stream
        moved_s = self.passes[:, 0] / memory + self.passes[:, 1] / units
        activation_s = self.passes[:, 2] / memory + self.passes[:, 3] / units
        total = get("start") * MICROSECOND + gemm + np.where(self.fuses, added, 0.0)
        total += self.around_s + moved_s
        total += np.maximum(activation_s, get("fullest") * 1e-9 * self.uneven)
        sums = np.bincount(self.columns.row, total)
        return sums / self.columns.draws / MICROSECOND

    def _gemm_s(self, logs: Floats, n: Draw, k: Draw, share: Draw | float, out: Draw) -> Draw:
        columns, get = self.columns, partial(self.value, logs)
        high, wide = columns.heights[None, :, None], columns.widths[None, None, :]
        at = np.s_[:, None, None]
        pipe = 2.0 * high * wide * (k / (self.rate * get("efficiency")))[at]
        rows = high * (k * share * self.row_bytes / self.fill)[at]
        tile_s = np.maximum(pipe, rows + wide * (k * self.weight_bytes / self.fill)[at])
        tile_s = tile_s + (get("wave") * MICROSECOND)[at]
        across = np.ceil(n[at] / wide)
        known_s = np.ceil(columns.tuned[:, :, None] * across / self.units[at]) * tile_s
        known_s = np.where(columns.allowed, known_s, np.inf).reshape(len(n), -1)
        real_s = np.ceil(columns.tiles[:, :, None] * across / self.units[at]) * tile_s
        core = np.take_along_axis(
            real_s.reshape(len(n), -1), np.argmin(known_s, axis=1)[:, None], axis=1
        )[:, 0]
        moved = columns.active * n * k * self.weight_bytes
        moved = moved + columns.pairs * (k * share * self.row_bytes + n * out)
        memory = moved / (self.peak * get("memory"))
        hidden = get("overlap") * np.minimum(core, memory)
        return np.maximum(core, memory) + hidden + columns.active * get("expert") * MICROSECOND


def _passes(layer: ExpertLayer, tokens: float, pairs: Floats) -> tuple[Floats, Floats]:
    """Return (bytes, elements) of all passes but the activation, and of the activation."""
    code, blocks, kernels = MATRIX_TYPES.index(layer.dtype), layer.block_scaled, layer.kernels
    operand, wide = _bytes(layer.dtype), layer.block_scaled or code < FIRST_NARROW
    rows, arriving, inner = tokens * layer.hidden, pairs * layer.hidden, pairs * layer.inner
    moved = np.zeros((len(pairs), 2))
    if not wide:
        moved += np.array([(2.0 + operand) * rows, 2.0 * rows])
    if layer.fused:
        return moved, np.zeros_like(moved)
    moved[:, 0] += 2.0 * (2.0 if wide else operand) * arriving + 2.0 * arriving + 2.0 * rows
    moved[:, 1] += 3.0 * arriving + rows
    if blocks:
        moved += np.stack([(2.0 + operand) * arriving, 2.0 * arriving], axis=1)
    if kernels.gathers:
        moved += np.stack([4.0 * arriving, 2.0 * arriving], axis=1)
    apart = blocks and kernels.quantises_apart
    if apart:
        moved += np.stack([(2.0 + operand) * inner, 2.0 * inner], axis=1)
    out = 2.0 if apart else operand
    activated = np.stack(
        [(2.0 * (1 + layer.gated) + out) * inner, (2.0 + layer.gated) * inner], axis=1
    )
    return moved, activated


def fitted(points: Sequence[Point], group: Group) -> Floats:
    """Return the logarithms of the constants that fit the points best."""
    if not points:
        return np.log([item.centre for item in group.constants])
    model = Model(points, group)
    centre = np.log([item.centre for item in group.constants])
    spread = np.array([item.spread for item in group.constants])
    most = np.log([item.most for item in group.constants])

    def residuals(logs: Floats) -> Floats:
        error = np.log(model.times_us(logs) / model.columns.measured_us) / NOISE
        soft = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + error * error) - 1.0))
        return np.concatenate([soft, (logs - centre) / spread])

    start = np.minimum(centre, most - 1e-3)
    bounds = (np.full(len(centre), -np.inf), most)
    solution = least_squares(residuals, start, bounds=bounds, x_scale=spread, max_nfev=40)
    logs: Floats = solution.x
    return logs


def errors(points: Sequence[Point], group: Group, logs: Floats) -> Floats:
    """Return the logarithm of projected over measured time."""
    model = Model(points, group)
    return np.log(model.times_us(logs) / model.columns.measured_us)


def left_out(points: Sequence[Point], group: Group, key: Callable[[Point], object]) -> Floats:
    """Return the errors of each set of points under constants that were fitted to the others."""
    found = np.zeros(len(points))
    keys = [key(point) for point in points]
    for value in sorted(set(keys), key=str):
        rest = [point for point, other in zip(points, keys, strict=True) if other != value]
        out = np.array([other == value for other in keys])
        chosen = [point for point, other in zip(points, keys, strict=True) if other == value]
        found[out] = errors(chosen, group, fitted(rest, group))
    return found


def read_points() -> list[Point]:
    """Read the table."""
    devices: dict[str, Device] = {}
    points = []
    with TABLE.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            case = read_layer(row, devices)
            layer = case.layer
            name, table = layer.kernel_name, layer.device.expert_layer.kernels
            older = f"{name}@{layer.release}"
            name = older if older in table else name
            family = layer.device.expert_family or ""
            if layer.gemms_alone:
                case = replace(case, loads=case.loads[:RANDOM_DRAWS])
            points.append(Point(case, family, name, row["dtype"], row["doubt"]))
    return points


def _print_errors(label: str, found: Floats) -> None:
    size = 100.0 * np.abs(np.expm1(found))
    print(
        f"  {label:34} {len(found):4}  {np.median(size):5.1f} / {np.quantile(size, 0.9):5.1f}"
        f"  bias {np.exp(np.median(found)):.3f}"
    )


def main() -> None:
    """Print constants and errors of every group."""
    points = read_points()
    impossible = [point for point in points if point.impossible and not point.doubt]
    print(f"{len(points)} rows, {len(impossible)} faster than the memory: not fitted")
    everything: list[tuple[Point, float, float]] = []
    for title in sys.argv[1:] or GROUPS:
        group = GROUPS[title]
        own = [point for point in points if point.family in group.families]
        clean = [point for point in own if not (point.doubt or point.impossible)]
        clean = [point for point in clean if "low_latency" not in point.name]
        logs = fitted(clean, group)
        print(f"\n{title}, {len(clean)} rows, {len(group.constants)} constants")
        for item, log in zip(group.constants, logs, strict=True):
            rows = sum(
                not {point.family, f"{point.family}/{point.name}"}.isdisjoint(item.classes)
                for point in clean
            )
            print(f"  {item.field:12} {np.exp(log):8.3f}  {rows:4} rows  {', '.join(item.classes)}")
        inside = errors(clean, group, logs)
        shapes = left_out(clean, group, lambda point: point.shape)
        everything += zip(clean, inside, shapes, strict=True)
        _print_errors("in sample", inside)
        _print_errors("shapes left out", shapes)
        _print_errors("devices left out", left_out(clean, group, lambda point: point.device))
        for name in sorted({f"{point.family}/{point.name}" for point in clean}):
            of_class = np.array([f"{point.family}/{point.name}" == name for point in clean])
            _print_errors(f"{name}, in sample", inside[of_class])
            _print_errors(f"{name}, shapes left out", shapes[of_class])
    for label, amd in (("NVIDIA", False), ("AMD", True)):
        chosen = [item for item in everything if item[0].family.startswith("cdna") == amd]
        if not chosen:
            continue
        print(f"\n{label}")
        _print_errors("in sample", np.array([item[1] for item in chosen]))
        _print_errors("shapes left out", np.array([item[2] for item in chosen]))


if __name__ == "__main__":
    main()
