"""Fit of the layers of experts to the published tables of NVIDIA's and AMD's kernels.

Every constant is a positive number with a prior (centre and spread of its logarithm), and belongs
to some kernel classes of some families. Constants of one kind may have a mean that is fitted too:
then the prior is that of the mean, and each lies around it. Errors are logarithmic with soft-L1.
Groups named on the command line are fitted, or all. Printed are the constants with the rows that
each rests on, and the errors in sample and with whole shapes left out.

``--devices`` prints the errors of each device as if nobody had measured it: its rows are left out,
and what its datasheet does not say is its sibling's. Bands are made without it too. Then a release
is left out likewise.

Rows with a doubt are not fitted, but for those of an older release with constants of its own, and
of kernels that route by groups of experts whatever the row says, which is simulated.
"""

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from conformal import Method, Residual, tables_of
from scipy.optimize import least_squares

from projector.arrays import Floats, Ints
from projector.config.bands import SHARES, kernel_classes
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.resources import data_dir
from projector.config.yaml_file import read_yaml
from projector.kernels.device import FIRST_NARROW, MATRIX_TYPES, OPERAND_BYTES
from projector.serving.experts import ExpertLayer, tuned_rows
from projector.units import MEGA, MICROSECOND, TB
from projector.validate.moe import KIND, LayerCase, read_layer
from projector.validate.run import validate

TABLE = Path(__file__).parent / "data" / "moe_measured.csv"
NOISE = 0.06
"""Spread of a row around the model."""

SHARED = ("efficiency", "wave")
"""Constants that older releases share with new ones."""

FITTED_DOUBTS = {
    "@": "slow release, cause unknown",
    "_low_latency": "routed by expert groups whatever distribution says",
}
"""Doubts that a part of the name of a kernel class answers."""

SIBLINGS = {
    "NVIDIA A100 SXM 80GB": "h100",
    "NVIDIA H100 SXM 80GB": "h200",
    "NVIDIA H200 SXM": "h100",
    "NVIDIA B200 SXM": "gb200",
    "NVIDIA GB200": "b200",
    "AMD Instinct MI300X": "mi355x",
    "AMD Instinct MI355X": "mi300x",
}
"""Device that the file of each would be written from."""

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
    around: float = 0.0
    """Spread around the mean of all constants of the field that have one; 0 without a mean. Centre
    and spread are those of the mean then."""


class Group(NamedTuple):
    """Families that are fitted together, and what holds for all of them."""

    families: tuple[str, ...]
    constants: tuple[Constant, ...]
    fixed: dict[str, float]


def _older(
    family: str, name: str, field: str, classes: Sequence[str], slow: Sequence[str]
) -> tuple[str, ...]:
    """Return the classes that a constant holds for; older releases multiply as new ones do."""
    same = [item for item in classes if item.split("@")[0] == name]
    all_of = [item for item in slow if item.split("@")[0] == name]
    return tuple(f"{family}/{item}" for item in (*(same if field in SHARED else [name]), *all_of))


def _nvidia(
    family: str,
    classes: Sequence[str],
    extra: Sequence[Constant] = (),
    slow: Sequence[str] = (),
    **fixed: float,
) -> Group:
    """Memory and expert of a family; start, wave, pass rate and efficiency of its classes.

    Classes of a ``slow`` release share all constants with the new one, but for one factor.
    """
    whole = (
        Constant("memory", 0.88, 0.06, (family,), 1.0),
        Constant("expert", 260.0, 0.5, (family,)),
    )
    each = [
        Constant(field, centre, spread, _older(family, name, field, classes, slow), most)
        for name in classes
        for field, centre, spread, most in (
            ("start", 24.0, 0.3, np.inf),
            ("wave", 1600.0, 0.5, np.inf),
            ("pass", 12.0, 0.4, np.inf),
            ("efficiency", 0.85, 0.15, 1.0),
        )
        if not (field in SHARED and "@" in name)
    ]
    constants = [item for item in (*whole, *each, *extra) if item.field not in fixed]
    return Group((family,), tuple(constants), {"overlap": 0.2, "sum": 1.0, "slow": 1.0, **fixed})


def _amd() -> Group:
    """Constants of AITER's kernels; what MI300X has no rows for is CDNA 4's.

    The efficiency is the share of a plain GEMM's rate on the same device. A wave starts and ends
    in as many clocks on both families. Priors of wave, memory and overlap are NVIDIA's constants.
    """
    both = ("cdna3", "cdna4")
    starts = [
        ("cdna3/bf16",),
        ("cdna4/fp8_one",),
        ("cdna4/fp8_block",),
        ("cdna4/fp8_block_one",),
        ("cdna4/mxfp8",),
        ("cdna4/mxfp4", "cdna4/mxfp4_one"),
        ("cdna4/mxfp4_fp8",),
        ("cdna4/mxfp4_bf16",),
    ]
    efficient = [
        ("cdna3/bf16", "cdna4/mxfp4_bf16"),
        ("cdna4/fp8_one",),
        ("cdna4/fp8_block", "cdna4/fp8_block_one"),
        ("cdna4/mxfp8",),
        ("cdna4/mxfp4", "cdna4/mxfp4_one"),
        ("cdna4/mxfp4_fp8",),
    ]
    return Group(
        both,
        (
            *(Constant("memory", 0.88, 0.06, (name,), 1.0, 0.1) for name in both),
            Constant("wave", 1250.0, 0.3, both),
            Constant("expert", 60.0, 1.0, both),
            Constant("overlap", 0.2, 0.25, both, 1.0),
            *(Constant("sum", 0.5, 0.5, (name,), 1.0, 0.3) for name in both),
            *(Constant("start", 14.0, 0.5, names, np.inf, 0.2) for names in starts),
            *(Constant("efficiency", 0.5, 0.5, names, 1.0, 0.2) for names in efficient),
        ),
        {"pass": 13.0, "slow": 1.0},
    )


LOW_LATENCY = ("blackwell/nvfp4_low_latency",)
SLOW = ("bf16@1.3.0rc15", "fp8@1.3.0rc15")
NVIDIA_BLACKWELL = ("bf16", "fp8", "fp8_block", "fp8_block@1.3.0rc15", "nvfp4")
BLACKWELL = (
    Constant("fullest", 30.0, 0.5, ("blackwell/fp8_block", "blackwell/fp8_block@1.3.0rc15")),
    Constant("slow", 1.5, 0.5, tuple(f"blackwell/{name}" for name in SLOW)),
    Constant("start", 22.0, 0.4, LOW_LATENCY),
    Constant("expert", 100.0, 0.7, LOW_LATENCY),
    Constant("wave", 1250.0, 0.5, LOW_LATENCY),
)


def _with_low_latency(group: Group) -> Group:
    """Return a group whose low-latency kernels multiply and pass as its others of their type do."""
    constants = [
        item._replace(classes=item.classes + LOW_LATENCY)
        if item.field in {"efficiency", "pass"} and "blackwell/nvfp4" in item.classes
        else item
        for item in group.constants
    ]
    return group._replace(constants=tuple(constants))


GROUPS = {
    "Ampere": _nvidia("ampere", ("bf16",), expert=170.0, wave=1130.0, memory=0.81),
    "Hopper": _nvidia("hopper", ("bf16", "fp8", "fp8_block")),
    "Blackwell": _with_low_latency(_nvidia("blackwell", NVIDIA_BLACKWELL, BLACKWELL, SLOW)),
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
    def is_fitted(self) -> bool:
        """Whether no doubt is left."""
        return not self.doubt or any(
            part in self.name and self.doubt == doubt for part, doubt in FITTED_DOUBTS.items()
        )


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
        self.menus = [_heights(point.case.layer) for point in points]
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


def _matrix_rate(layer: ExpertLayer) -> float:
    """Return what the efficiency is a share of: FLOP/s of a unit, of a GEMM or at the peak."""
    device, kind = layer.device, "fp8_block" if layer.block_scaled else layer.dtype
    hz = device.peak_clock_mhz * MEGA
    if layer.kernels.gemm_share is not None:
        hz = device.sustained_clock_mhz[kind] * device.gemm_efficiency[kind] * MEGA
    return float(device.matrix_flop_per_clk_per_cu[layer.dtype] * hz)


def _heights(layer: ExpertLayer) -> tuple[int, ...]:
    return layer.kernels.row_tiles or layer.device.expert_layer.row_tiles


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
        self.rate = each(_matrix_rate)
        self.l2 = each(
            lambda x: x.device.expert_layer.l2_efficiency * x.device.l2_tb_per_s * TB or np.inf
        )
        self.fill = self.clock * each(lambda x: x.device.l2_fill_bytes_per_clk_per_cu)
        self.peak = each(lambda x: x.device.hbm_peak_tb_per_s * TB)
        self.stream = each(lambda x: x.device.hbm_efficiency)
        tokens = np.array([point.case.tokens for point in points])[columns.row].astype(float)
        self.around_s, self.passes, self.uneven = self._around(points, tokens)
        self.place = self._places(points)

    def _places(self, points: Sequence[Point]) -> dict[str, Ints]:
        """Return for each field the constant of every draw, -1 where it is fixed."""
        fields = {item.field for item in self.group.constants} | self.group.fixed.keys()
        place = {field: np.full(len(points), -1) for field in sorted(fields | {"fullest"})}
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
            clocks = layer.device.compute_units * layer.device.peak_clock_mhz * MEGA
            around[draws] = costs.sort_unit_clk * count * layer.topk / clocks
            if layer.topk <= costs.fused_router_topk and experts <= costs.fused_router_experts:
                passes[draws, :2] += 4.0 * count * experts
            else:
                around[draws] += costs.unfused_router_us * MICROSECOND
                around[draws] += costs.unfused_router_unit_clk * count * experts / clocks
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
        total += np.maximum(activation_s, get("fullest") * self.uneven / self.clock)
        sums = np.bincount(self.columns.row, total)
        return sums / self.columns.draws / MICROSECOND

    def _gemm_s(self, logs: Floats, n: Draw, k: Draw, share: Draw | float, out: Draw) -> Draw:
        columns, get = self.columns, partial(self.value, logs)
        high, wide = columns.heights[None, :, None], columns.widths[None, None, :]
        at = np.s_[:, None, None]
        pipe = 2.0 * high * wide * (get("slow") * k / (self.rate * get("efficiency")))[at]
        taken = high * (k * share * self.row_bytes)[at] + wide * (k * self.weight_bytes)[at]
        tile_s = np.maximum(pipe, taken / (self.fill / get("slow"))[at])
        tile_s = tile_s + (get("wave") / self.clock)[at]
        across = np.ceil(n[at] / wide)

        def core_s(tiles: Floats) -> Floats:
            waves = np.ceil(tiles[:, :, None] * across / self.units[at])
            l2_s = tiles[:, :, None] * across * taken / self.l2[at]
            return np.maximum(waves * tile_s, l2_s).reshape(len(n), -1)

        known_s = np.where(columns.allowed.reshape(len(n), -1), core_s(columns.tuned), np.inf)
        real_s = core_s(columns.tiles)
        core = np.take_along_axis(real_s, np.argmin(known_s, axis=1)[:, None], axis=1)[:, 0]
        moved = columns.active * n * k * self.weight_bytes
        moved = moved + columns.pairs * (k * share * self.row_bytes + n * out)
        memory = moved * get("slow") / (self.peak * get("memory"))
        hidden = get("overlap") * np.minimum(core, memory)
        return np.maximum(core, memory) + hidden + columns.active * get("expert") / self.clock


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


def fitted(points: Sequence[Point], group: Group, near: Floats | None = None) -> Floats:
    """Return the logarithms of the constants that fit the points best; ``near`` is where to begin.

    Beginning at constants that fit most of the points takes a few steps instead of many.
    """
    constants = group.constants
    model = Model(points, group)
    fields = sorted({item.field for item in constants if item.around})
    own = np.array([fields.index(item.field) if item.around else -1 for item in constants])
    first = [next(item for item in constants if item.field == field) for field in fields]
    # The means come behind the constants.
    centre = np.log([item.centre for item in (*constants, *first)])
    spread = np.array([item.spread for item in (*constants, *first)])
    most = np.log([item.most for item in (*constants, *first)])
    alone = np.concatenate([own < 0, np.full(len(fields), fill_value=True)])
    around = np.array([item.around for item in constants])[own >= 0]

    def residuals(logs: Floats) -> Floats:
        values, means = logs[: len(constants)], logs[len(constants) :]
        error = np.log(model.times_us(values) / model.columns.measured_us) / NOISE
        soft = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + error * error) - 1.0))
        priors = ((logs - centre) / spread)[alone]
        return np.concatenate([soft, priors, (values[own >= 0] - means[own[own >= 0]]) / around])

    start = centre.copy()
    if near is not None:
        start[: len(constants)] = near
        for place in range(len(fields)):
            start[len(constants) + place] = near[own == place].mean()
    start = np.minimum(start, most - 1e-3)
    bounds = (np.full(len(centre), -np.inf), most)
    solution = least_squares(residuals, start, bounds=bounds, x_scale=spread, max_nfev=40)
    logs: Floats = solution.x[: len(constants)]
    return logs


def errors(points: Sequence[Point], group: Group, logs: Floats) -> Floats:
    """Return the logarithm of projected over measured time."""
    model = Model(points, group)
    return np.log(model.times_us(logs) / model.columns.measured_us)


def left_out(
    points: Sequence[Point], group: Group, logs: Floats, key: Callable[[Point], object]
) -> Floats:
    """Return the errors of each set of points under constants that were fitted to the others.

    ``logs`` fit all of them.
    """
    found = np.zeros(len(points))
    keys = [key(point) for point in points]
    for value in sorted(set(keys), key=str):
        rest = [point for point, other in zip(points, keys, strict=True) if other != value]
        out = np.array([other == value for other in keys])
        chosen = [point for point, other in zip(points, keys, strict=True) if other == value]
        found[out] = errors(chosen, group, fitted(rest, group, logs))
    return found


def _derived(device: Device, sibling: Device) -> Device:
    """Return a device with only what its datasheet says of its own."""

    def taken(of: dict[str, float]) -> dict[str, float]:
        return {name: of.get(name, of.get("fp8", of["bf16"])) for name in rates}

    rates = device.matrix_flop_per_clk_per_cu
    clock = device.peak_clock_mhz / sibling.peak_clock_mhz
    sustained = taken(sibling.sustained_clock_mhz)  # type: ignore[arg-type]
    return device.model_copy(
        update={
            "l2_fill_bytes_per_clk_per_cu": sibling.l2_fill_bytes_per_clk_per_cu,
            "hbm_efficiency": sibling.hbm_efficiency,
            "sustained_clock_mhz": {name: clock * mhz for name, mhz in sustained.items()},
            "gemm_efficiency": taken(sibling.gemm_efficiency),  # type: ignore[arg-type]
        }
    )


def device_out(points: Sequence[Point], name: str) -> tuple[list[Point], Floats]:
    """Return the points of a device, as of a derived one, and their errors; no fit has seen them.

    A family whose only device it is has the constants of its sibling's.
    """
    sibling = load_device(SIBLINGS[name])
    group = next(item for item in GROUPS.values() if sibling.expert_family in item.families)
    rest = [each for each in points if each.family in group.families and each.device != name]
    chosen = []
    for point in points:
        if point.device == name:
            layer = point.case.layer
            layer = replace(layer, device=_derived(layer.device, sibling))
            family = point.family if point.family in group.families else sibling.expert_family
            case = replace(point.case, layer=layer)
            chosen.append(point._replace(case=case, family=family or ""))
    return chosen, errors(chosen, group, fitted(rest, group))


def release_out(points: Sequence[Point], release: str) -> tuple[list[Point], Floats]:
    """Return the points of a release and their errors under constants of the others."""
    chosen = [each for each in points if each.case.layer.release == release]
    group = next(item for item in GROUPS.values() if chosen[0].family in item.families)
    rest = [each for each in points if each.family in group.families]
    rest = [each for each in rest if each.case.layer.release != release]
    chosen = [each._replace(name=each.name.split("@")[0]) for each in chosen]
    return chosen, errors(chosen, group, fitted(rest, group))


def held(
    points: Sequence[Point], found: Floats, known: Sequence[tuple[Point, float]], *, unseen: bool
) -> Floats:
    """Return the shares of errors that the bands hold which are made from known ones."""
    stated = read_yaml(data_dir("hardware") / "uncertainty.yaml")["method"]
    own = stated["kernels"][KIND.quantity]
    factor = own["unseen"]["value"] if unseen else 1.0
    method = Method(stated["pull"]["kernels"]["value"], None, is_symmetric=False)
    residuals = [
        Residual(point.device, _classes(point), -error, point.device) for point, error in known
    ]
    tables = tables_of(residuals, method, own["widening"]["value"] * factor)
    inside = []
    for point, error in zip(points, found, strict=True):
        table = next(tables[name] for name in _classes(point) if name in tables)
        ratio = np.exp(-error)
        inside.append(
            [table[f"low_{share}"] <= ratio <= table[f"high_{share}"] for share in SHARES]
        )
    shares: Floats = np.mean(np.array(inside, float), axis=0)
    return shares


def _classes(point: Point) -> tuple[str, ...]:
    return kernel_classes(point.case.layer.device, point.case.layer.dtype)


def read_points() -> list[Point]:
    """Read the table."""
    devices: dict[str, Device] = {}
    points = []
    with TABLE.open(newline="", encoding="utf-8") as stream:
        results = validate(KIND.name, TABLE).results
        for row, result in zip(csv.DictReader(stream), results, strict=True):
            case = read_layer(row, devices)
            layer = case.layer
            name, table = layer.kernel_name, layer.device.expert_layer.kernels
            older = f"{name}@{layer.release}"
            name = older if older in table else name
            family = layer.device.expert_family or ""
            if layer.gemms_alone:
                case = replace(case, loads=case.loads[:RANDOM_DRAWS])
            points.append(Point(case, family, name, row["dtype"], result.doubt))
    return points


def _print_errors(label: str, found: Floats, shares: Floats | None = None) -> None:
    size = 100.0 * np.abs(np.expm1(found))
    text = f"  {label:34} {len(found):4}  {np.median(size):5.1f} / {np.quantile(size, 0.9):5.1f}"
    text += f"  bias {np.exp(np.median(found)):.3f}"
    if shares is not None:
        text += "  bands hold " + " / ".join(f"{100.0 * share:.0f} %" for share in shares)
    print(text)


def _print_devices(points: Sequence[Point]) -> None:
    """Print the errors of devices that nobody measured."""
    print("\ndevices as derived from a datasheet")
    inside: list[tuple[Point, float]] = []
    for group in GROUPS.values():
        own = [point for point in points if point.family in group.families]
        inside += zip(own, errors(own, group, fitted(own, group)), strict=True)
    everything: list[tuple[Point, float]] = []
    for name in SIBLINGS:
        chosen, found = device_out(points, name)
        known = [item for item in inside if item[0].device != name]
        _print_errors(name, found, held(chosen, found, known, unseen=True))
        everything += zip(chosen, found, strict=True)
    for label, amd in (("NVIDIA", False), ("AMD", True)):
        of = [item for item in everything if item[0].device.startswith("AMD") == amd]
        _print_errors(label, np.array([item[1] for item in of]))


def _print_releases(points: Sequence[Point]) -> None:
    """Print the errors of a release that nobody measured, and the band of such libraries.

    Kernel classes weigh the same. The release of the A100 rows is one more.
    """
    print("\nreleases left out")
    chosen, found = release_out(points, "1.3.0rc15")
    names = np.array([point.name for point in chosen])
    parts = {f"1.3.0rc15, {name}": found[names == name] for name in sorted(set(names))}
    parts["1.0.0, bf16"] = device_out(points, "NVIDIA A100 SXM 80GB")[1]
    for name, part in parts.items():
        _print_errors(name, part)
    logs = -np.concatenate(list(parts.values()))
    weights = np.concatenate([np.full(len(part), 1.0 / len(part)) for part in parts.values()])
    order = np.argsort(logs)
    reached = np.cumsum(weights[order]) / weights.sum()
    for share in SHARES:
        tail = (1.0 - share / 100.0) / 2.0
        sides = [logs[order][np.searchsorted(reached, side)] for side in (tail, 1.0 - tail)]
        print(f"  {share} % band: {np.exp(sides[0]):.3f} to {np.exp(sides[1]):.3f}")


def main() -> None:
    """Print constants and errors of every group, or errors of devices left out."""
    points = [point for point in read_points() if point.is_fitted]
    print(f"{len(points)} rows are fitted")
    if "--devices" in sys.argv[1:]:
        _print_devices(points)
        _print_releases(points)
        return
    everything: list[tuple[Point, float, float]] = []
    for title in sys.argv[1:] or GROUPS:
        group = GROUPS[title]
        own = [point for point in points if point.family in group.families]
        logs = fitted(own, group)
        print(f"\n{title}, {len(own)} rows, {len(group.constants)} constants")
        for item, log in zip(group.constants, logs, strict=True):
            rows = sum(
                not {point.family, f"{point.family}/{point.name}"}.isdisjoint(item.classes)
                for point in own
            )
            print(f"  {item.field:12} {np.exp(log):8.3f}  {rows:4} rows  {', '.join(item.classes)}")
        inside = errors(own, group, logs)
        shapes = left_out(own, group, logs, lambda point: point.shape)
        everything += zip(own, inside, shapes, strict=True)
        _print_errors("in sample", inside)
        _print_errors("shapes left out", shapes)
        for name in sorted({f"{point.family}/{point.name}" for point in own}):
            of_class = np.array([f"{point.family}/{point.name}" == name for point in own])
            _print_errors(f"{name}, in sample", inside[of_class])
            _print_errors(f"{name}, shapes left out", shapes[of_class])
    known = [item[:2] for item in everything]
    for label, amd in (("NVIDIA", False), ("AMD", True)):
        chosen = [item for item in everything if item[0].family.startswith("cdna") == amd]
        if not chosen:
            continue
        print(f"\n{label}")
        _print_errors("in sample", np.array([item[1] for item in chosen]))
        shapes = np.array([item[2] for item in chosen])
        shares = held([item[0] for item in chosen], shapes, known, unseen=False)
        _print_errors("shapes left out", shapes, shares)


if __name__ == "__main__":
    main()
