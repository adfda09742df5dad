"""Constants of AMD's GEMMs by family, fitted to the published table, in and out of sample.

The residual of a row is the logarithm of its projected over its measured time, under a soft L1 loss
of 5 %. Every row counts twice: with the tile that it names, if it names one, and with the tile that
the model chooses. The fastest of many projected tiles is the one that the model flatters most, so
that constants fitted to named tiles alone choose tiles that come out about 8 % too fast. Rows of a
source and type weigh as the root of their number, so that no table decides alone. Each constant
has a prior: the logarithm of a physical value and a width. Main loops are double-buffered, and
memory streams at 0.8 of its peak on these devices: both priors are narrow.
Rows with a stated doubt are neither fitted nor scored. Out of sample, rows are projected with
constants fitted without their (n, k), without their source, or without their device.

Run with the families to fit (default: all), and ``--out`` for the errors out of sample,
and ``--derived`` for those of every device known from its datasheet and its sibling alone.
"""

import argparse
import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel
from scipy.optimize import least_squares

from projector.arrays import Flags, Floats
from projector.config.bands import band_of, kernel_classes
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.units import MICROSECOND
from projector.validate.gemm import Case, case_times, read_case
from projector.validate.kind import Row

TABLE = Path(__file__).parent / "data" / "gemm_measured.csv"
SCALE = 0.05
"""Relative error from which the loss grows linearly, and the width of a prior's unit."""
FOLDS = 5
MOST_STEPS = 15
"""Of a fit, which starts from the constants that ship."""
LIBRARIES = "gemm_libraries"
DEVICES = {"cdna2": "mi250x", "cdna3": "mi300x", "cdna4": "mi355x"}
"""A device of each family, which has its constants as they ship."""


class Constant(NamedTuple):
    """One fitted number."""

    paths: tuple[str, ...]
    """Dotted fields of a device that share it; ``*`` stands for all tiles that have the field."""
    prior: float
    width: float
    """Of the prior's logarithm."""
    rows: Callable[[Row, Case], bool]
    """Whether a row tells of it."""


def _any_row(_row: Row, _case: Case) -> bool:
    return True


def _of(library: str = "", *kinds: str) -> Callable[[Row, Case], bool]:
    """Return whether a row is of a library, and of one of some types."""

    def fits(_row: Row, case: Case) -> bool:
        found = case.setup.member or case.setup.library
        return found == library and (not kinds or case.setup.kind in kinds)

    return fits


def _split(_row: Row, case: Case) -> bool:
    return case.kernel is None or max(case.kernel.splits) > 1


def _grouped(backward: bool) -> Callable[[Row, Case], bool]:
    def fits(_row: Row, case: Case) -> bool:
        return case.gemms[0].groups > 1 and (len(case.gemms) > 1) == backward

    return fits


def _scaled(_row: Row, case: Case) -> bool:
    return case.setup.kind == "fp8_block"


def _quantised(kind: str) -> Callable[[Row, Case], bool]:
    return lambda _row, case: case.quantise == kind


def _common(fill: float) -> tuple[Constant, ...]:
    return (
        Constant(("gemm_overhead_us",), 2.5, 0.4, _any_row),
        Constant(("gemm_split_k_us",), 2.0, 0.4, _split),
        Constant(("gemm_overlap_loss",), 0.25, 0.1, _any_row),
        Constant(("gemm_epilogue_clk",), 800.0, 0.6, _any_row),
        Constant(("gemm_epilogue_bytes_per_clk_per_cu",), 6.0, 0.6, _any_row),
        Constant(("gemm_epilogue_exposed",), 0.5, 0.5, _any_row),
        Constant(("gemm_l2_miss_share",), 0.05, 0.5, _any_row),
        Constant(("gemm_hbm_efficiency",), 0.80, 0.03, _any_row),
        Constant(("gemm_fill_bytes_per_clk_per_cu",), fill, 0.2, _any_row),
        _wait("hipblaslt"),
    )


def _share(library: str, *kinds: str, also: str = "") -> Constant:
    paths = [f"{LIBRARIES}.{library}.efficiency.{kind}" for kind in kinds]
    paths += [f"{LIBRARIES}.{also}"] if also else []
    return Constant(tuple(paths), 0.85, 0.2, _of(library, *kinds))


def _wait(library: str, *kinds: str, tiles: str = "") -> Constant:
    return Constant((f"{LIBRARIES}.{library}{tiles}.step_clk",), 250.0, 0.7, _of(library, *kinds))


def _rate(kind: str, prior: float) -> Constant:
    return Constant((f"quantising.{kind}.tb_per_s",), prior, 0.5, _quantised(kind))


def _energy(kind: str, prior: float) -> Constant:
    def fits(_row: Row, case: Case) -> bool:
        return case.setup.kind == kind

    return Constant((f"power.pj_per_flop.{kind}",), prior, 0.15, fits)


SCALES = Constant(("gemm_scale_instructions",), 3.0, 0.5, _scaled)

CONSTANTS: dict[str, tuple[Constant, ...]] = {
    "cdna2": (*_common(32.0), _share("hipblaslt", "fp16"), _share("hipblaslt", "bf16")),
    "cdna3": (
        *_common(32.0),
        SCALES,
        # What CK's grouped kernels reach of it is the efficiency of grouped GEMMs.
        _share("hipblaslt", "bf16", "fp16", also="ck.efficiency.bf16"),
        _share("hipblaslt", "fp8", also="ck.efficiency.fp8"),
        _share("triton", "fp8_block"),
        _share("ck", "fp8_block"),
        _share("aiter_asm", "int8"),
        _wait("triton"),
        _wait("ck"),
        _wait("aiter_asm"),
        Constant(("grouped_gemm_efficiency_forward",), 0.85, 0.3, _grouped(backward=False)),
        Constant(("grouped_gemm_efficiency_backward",), 0.7, 0.3, _grouped(backward=True)),
        _rate("fp8", 3.0),
        _rate("fp8_block", 3.0),
    ),
    "cdna4": (
        *_common(42.0),
        SCALES,
        _share("hipblaslt", "bf16", "fp16"),
        _share("triton", "fp8_block"),
        _share("ck", "fp8_block"),
        _share("ck", "int8"),
        _share("ck", "mxfp4"),
        _share("ck_preshuffled", "fp8"),
        _share("ck_preshuffled", "fp8_block"),
        _share("aiter_asm", "bf16"),
        _share("aiter_asm", "mxfp4"),
        _share("cktile", "fp8"),
        _share("cktile", "fp8_block"),
        _share("flydsl", "bf16"),
        _share("flydsl", "fp8"),
        _wait("triton"),
        _wait("ck"),
        _wait("ck", "fp8_block", tiles=".tiles_of.fp8_block.*"),
        _wait("ck_preshuffled"),
        _wait("aiter_asm"),
        _wait("cktile"),
        _wait("flydsl"),
        _wait("hipkittens"),
        _rate("fp8_block", 4.0),
        # No clock under a load is published: energies follow from the rates at the power cap.
        _energy("bf16", 1.2),
        _energy("fp8", 0.55),
        _energy("mxfp4", 0.3),
    ),
}

BOUNDED = re.compile(r"efficiency|exposed|loss|share")
"""Fields that are shares."""


def changed(section: Any, parts: Sequence[str], value: float) -> Any:
    """Return a device, or a part of it, with another value of a dotted field."""
    if not parts:
        return value
    first, rest = parts[0], parts[1:]
    if isinstance(section, BaseModel):
        return section.model_copy(
            update={first: changed(getattr(section, first, None), rest, value)}
        )
    if first == "*":
        return tuple(
            each if getattr(each, rest[0]) is None else changed(each, rest, value)
            for each in section
        )
    return {**section, first: changed(section.get(first), rest, value)}


def shipped(family: str) -> Floats:
    """Return the constants as they ship, which a fit starts from."""
    device = load_device(DEVICES[family])
    return np.array([_value(device, each.paths[0]) for each in CONSTANTS[family]])


def _value(section: Any, path: str) -> float:
    for part in path.split("."):
        if part == "*":
            return next(each.step_clk for each in section if each.step_clk is not None)
        section = section[part] if isinstance(section, Mapping) else getattr(section, part)
    return float(section)


class Data(NamedTuple):
    """Rows of a family."""

    rows: list[Row]
    cases: list[Case]
    measured_us: Floats
    weight: Floats


def read(family: str, device: str = "") -> Data:
    """Read the rows of a device, or of a family's devices, that have no doubt."""
    rows, cases = [], []
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["doubt"] or not (row["m"] and row["n"] and row["k"]):
                continue
            try:
                case = read_case(row)
            except ValueError:
                continue
            known = case.setup.device
            if known == device if device else load_device(known).gemm_family == family:
                rows.append(row)
                cases.append(case)
    weight = _equal(
        [f"{_owner(row)} {case.setup.kind}" for row, case in zip(rows, cases, strict=True)]
    )
    return Data(rows, cases, np.array([case.measured for case in cases]), weight)


def _owner(row: Row) -> str:
    """Return the repository that a row comes from."""
    return re.split(r"[@ ]", row["source"] or "")[0]


def _equal(groups: Sequence[str]) -> Floats:
    count = Counter(groups)
    weight = np.array([1.0 / np.sqrt(count[group]) for group in groups])
    return weight / weight.mean()


def times_us(
    data: Data, constants: Sequence[Constant], values: Floats, *, as_named: bool = False
) -> Floats:
    """Project rows, with the tile that each names or with the one that is chosen."""
    made: dict[str, Device] = {}

    def device_for(name: str) -> Device:
        if name not in made:
            device = load_device(name)
            for constant, value in zip(constants, values, strict=True):
                for path in constant.paths:
                    bound = min(value, 1.0) if BOUNDED.search(path) else value
                    device = changed(device, path.split("."), float(bound))
            made[name] = device
        return made[name]

    return case_times(data.cases, device_for, as_named=as_named) / MICROSECOND


def fit(data: Data, constants: Sequence[Constant], used: Flags, start: Floats) -> Floats:
    """Fit constants to some of the rows."""
    prior = np.array([constant.prior for constant in constants])
    width = np.array([constant.width for constant in constants])
    weight = np.sqrt(data.weight * used)

    # Steps of the differences are shares of what is varied, which must not be near zero.
    def residuals(shifted: Floats) -> Floats:
        offset = shifted - 10.0
        found = prior * np.exp(offset)
        both = [times_us(data, constants, found, as_named=named) for named in (True, False)]
        error = np.log(np.array(both) / data.measured_us)
        soft = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + (error / SCALE / 2) ** 2) - 1.0)) * 2
        return np.concatenate([*(soft * weight * np.sqrt(0.5)), offset / width])

    first = np.log(start / prior)
    found = least_squares(residuals, first + 10.0, diff_step=0.002, max_nfev=MOST_STEPS)
    values: Floats = prior * np.exp(found.x - 10.0)
    return values


def group_of(row: Row, case: Case) -> str:
    """Return the group in which a row is scored."""
    kind = case.setup.kind
    if "Primus-Turbo" in (row["source"] or ""):
        shape = "grouped" if case.gemms[0].groups > 1 else "dense"
        return f"Primus-Turbo {shape} {'backward' if len(case.gemms) > 1 else 'forward'}, {kind}"
    return f"{_owner(row)}, {kind}"


def errors(
    data: Data, projected_us: Floats, groups: Sequence[str]
) -> dict[str, tuple[int, float, float]]:
    """Return rows, median and 90th percentile of the error in % by group."""
    error = 100.0 * np.abs(projected_us / data.measured_us - 1.0)
    table = {}
    for group in sorted(set(groups)):
        own = error[[each == group for each in groups]]
        table[group] = (len(own), float(np.median(own)), float(np.percentile(own, 90)))
    return table


def held_out(
    data: Data, constants: Sequence[Constant], values: Floats, parts: Sequence[str]
) -> Floats:
    """Project each part of the rows with constants fitted to the others."""
    out = np.empty(len(parts))
    for part in sorted(set(parts)):
        own = np.array([each == part for each in parts])
        if own.all():
            out[own] = np.nan
            continue
        without = fit(data, constants, ~own, values)
        out[own] = times_us(data, constants, without)[own]
    return out


def folds(data: Data) -> list[str]:
    """Return the fold of each row; rows of one (n, k) share it."""
    shapes = sorted({(int(row["n"] or 0), int(row["k"] or 0)) for row in data.rows})
    order = np.random.default_rng(0).permutation(len(shapes))
    fold = {shape: str(place % FOLDS) for shape, place in zip(shapes, order, strict=True)}
    return [fold[int(row["n"] or 0), int(row["k"] or 0)] for row in data.rows]


def report(family: str, *, out_of_sample: bool) -> None:
    """Fit a family and print its constants and errors."""
    data, constants = read(family), CONSTANTS[family]
    everything = np.ones(len(data.rows), bool)
    values = fit(data, constants, everything, shipped(family))
    print(f"\n{family}: {len(data.rows)} rows, {len(constants)} constants")
    print("| constant | prior | value | rows |\n|---|---|---|---|")
    for constant, value in zip(constants, values, strict=True):
        told = sum(map(constant.rows, data.rows, data.cases))
        print(f"| {', '.join(constant.paths)} | {constant.prior:g} | {value:.4g} | {told} |")
    groups = [group_of(row, case) for row, case in zip(data.rows, data.cases, strict=True)]
    columns = {
        "as named": times_us(data, constants, values, as_named=True),
        "chosen": times_us(data, constants, values),
    }
    if out_of_sample:
        columns["(n, k) out"] = held_out(data, constants, values, folds(data))
        columns["source out"] = held_out(data, constants, values, [*map(_owner, data.rows)])
        devices = [case.setup.device for case in data.cases]
        columns["device out"] = held_out(data, constants, values, devices)
    tables: Mapping[str, Any] = {
        name: errors(data, times, groups) for name, times in columns.items()
    }
    print("\n| group | rows | " + " | ".join(columns) + " |")
    print("|---|---|" + "---|" * len(columns))
    for group in sorted(set(groups)):
        cells = " | ".join("{1:.1f} / {2:.1f}".format(*table[group]) for table in tables.values())
        print(f"| {group} | {tables['chosen'][group][0]} | {cells} |")
    if out_of_sample:
        out = columns["device out"]
        for device, (rows, median, high) in errors(data, out, devices).items():
            print(f"{device} out: {rows} rows, {median:.1f} / {high:.1f} %")


SIBLINGS = {
    "a100": "a100_pcie", "a100_pcie": "a100", "h100": "a100", "h200": "h100", "h800": "h100",
    "gh200": "h200", "b200": "h100", "gb200": "b200", "b300": "b200", "gb300": "gb200",
    "mi210": "mi250x", "mi250x": "mi210", "mi300x": "mi250x", "mi325x": "mi300x",
    "mi355x": "mi300x",
}  # fmt: skip
"""Device with rows -> the one that it is derived from; of two generations, the older one."""

BLOCK_SCALED = load_device("h100").gemm_libraries["deepgemm"].efficiency["fp8"]
"""Share of an FP8 GEMM that one reaches whose block scales vector units multiply: on Hopper."""

DATASHEET = (
    "name", "vendor", "architecture", "compute_units", "dies", "peak_clock_mhz",
    "matrix_flop_per_clk_per_cu", "matrix_peak_tflops", "vector_tflops",
    "transcendental_per_clk_per_cu", "lds_kib_per_cu", "l2_mib", "mall_mib", "hbm_gib",
    "hbm_peak_tb_per_s", "tdp_w", "scale_up_gb_per_s", "scale_up_peer_gb_per_s",
)  # fmt: skip
"""What is known of a chip before it exists."""


def derived(name: str) -> Device:
    """Return a device made of its datasheet and its sibling alone, as a user would state it."""
    sibling, own = load_device(SIBLINGS[name]), load_device(name)
    stated = own.model_dump(include=set(DATASHEET))
    rate, older = own.matrix_flop_per_clk_per_cu, sibling.matrix_flop_per_clk_per_cu
    new = rate.keys() - older.keys()
    rates = {kind: rate[kind] for kind in rate.keys() & older.keys()}
    known = load_device({**stated, "matrix_flop_per_clk_per_cu": rates, "extends": SIBLINGS[name]})
    for field in ("sustained_clock_mhz", "gemm_efficiency"):
        # A type that the sibling lacks has the share and the clock of its nearest one.
        values = getattr(known, field)
        if new:
            stated[field] = dict.fromkeys(new, values.get("fp8", values["bf16"]))
    if "fp8_block" in new:
        stated["gemm_efficiency"]["fp8_block"] *= BLOCK_SCALED
    return load_device({**stated, "extends": SIBLINGS[name]})


def report_derived() -> None:
    """Print the errors of devices known from their datasheet alone, with the bands they have."""
    print("| device | from | rows | own file | derived | ratio | in 68 / 90 % band |")
    print("|---|---|---|---|---|---|---|")
    found: dict[str, Floats] = {}
    for name, sibling in SIBLINGS.items():
        data = read("", device=name)
        made = derived(name)
        own = times_us(data, (), np.empty(0))
        times = case_times(data.cases, lambda _name, made=made: made) / MICROSECOND
        log = np.log(times / data.measured_us)
        found[name] = log
        (_, *before), (_, *after) = (
            errors(data, each, ["all"] * len(own))["all"] for each in (own, times)
        )
        inside = [
            100.0
            * np.mean(
                [
                    _holds(made, case, value, share)
                    for case, value in zip(data.cases, log, strict=True)
                ]
            )
            for share in (68, 90)
        ]
        print(
            f"| {name} | {sibling} | {len(own)} | {before[0]:.1f} / {before[1]:.1f} % "
            f"| {after[0]:.1f} / {after[1]:.1f} % | {np.exp(log.mean()):.2f} "
            f"| {inside[0]:.0f} / {inside[1]:.0f} |"
        )
    # Every device weighs the same.
    middle, high = (
        np.mean([np.percentile(abs(np.expm1(log)), share) for log in found.values()])
        for share in (50, 90)
    )
    print(f"mean over devices: {100.0 * middle:.1f} / {100.0 * high:.1f} %")


def _holds(device: Device, case: Case, log: float, share: int) -> bool:
    sibling = load_device(SIBLINGS[case.setup.device])
    same = sibling.architecture == device.architecture
    generation = device.architecture if same else "a new generation"
    classes = kernel_classes(device, case.setup.kind)
    limits = band_of("gemm", classes, "a new device", architecture=generation).limits(share)
    assert limits is not None
    return bool(limits[0] <= np.exp(-log) <= limits[1])


def main() -> None:
    """Fit the families that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=[*CONSTANTS])
    parser.add_argument("--out", action="store_true")
    parser.add_argument("--derived", action="store_true")
    given = parser.parse_args()
    if given.derived:
        report_derived()
        return
    for family in given.families:
        report(family, out_of_sample=given.out)


if __name__ == "__main__":
    main()
