"""Fit of hardware/attention.yaml to the published attention rows, all values at once.

Fitted is every value of that file whose source is attn_fit; one that several kernels name is one
value. Logarithmic errors, soft-L1, every source with the same weight, and a prior on every value.
Rows with a doubt are scored and never fitted.

Printed are the values, the rows each one moves, and the errors (median, 68th and 90th percentile)
in sample, with panels, head widths and lengths left out, and with devices and implementations left
out, each with the shares of rows that the bands for 68 and 90 % hold. A panel is a source, device,
implementation, type, pass, head width, mask, window and number of heads. Leaving it out is one
Newton step of the fit without its rows; devices and implementations are left out by whole fits, and
what remains of a device is its file: clocks, units, rates and memory. ``--record`` writes the
values into the file.
"""

import csv
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints, Records
from projector.config import resources
from projector.config.bands import SHARES, attention_time_band
from projector.config.device_file import load_device
from projector.config.device_kernels import AttentionKernel, Evidence
from projector.config.yaml_file import parse_yaml
from projector.lower.hardware import device_record, set_attention_kernel
from projector.units import MILLISECOND
from projector.validate.attention import (
    KIND,
    RUNS,
    AttentionCase,
    CaseColumns,
    case_columns,
    case_times_s,
    read_case,
)

TABLE = Path(__file__).parent / "data" / "attention_measured.csv"
KERNELS = resources.data_dir("hardware") / "attention.yaml"
FITTED = re.compile(r"\{value: ([-+.\de]+), source: attn_fit")
BEFORE = 363
"""Fitted values of the file before kernels shared them."""

NOISE = 0.05
"""Spread of a row around the model."""

FEWEST = 8
"""Rows a source needs to have the weight of a source; fewer weigh as single rows."""

MOVED = 0.02
"""A value moves a row whose time changes by this share of the value's change."""

PRIORS = {
    "forward_efficiency": (0.8, 0.4),
    "backward_efficiency": (0.5, 0.5),
    "forward_scale": (0.95, 0.2),
    "backward_scale": (0.9, 0.3),
    "softmax_exposed": (0.6, 0.4),
    "backward_softmax_exposed": (0.55, 0.3),
    "tile_overhead_us": (1.5, 0.7),
    "backward_tile_overhead_us": (2.0, 0.7),
    "mask_exposed": (0.4, 0.7),
    "half_efficiency": (0.8, 0.1),
    "start_us": (8.0, 0.4),
    "backward_start_us": (10.0, 0.4),
    "query_passes": (1.0, 0.7),
    "key_passes": (2.0, 0.7),
    "token_ns": (1.0, 1.0),
}
"""Centre of each field, and the spread of its logarithm."""

_KERNEL = ("gpu", "impl", "dtype", "pass")
PARTS: tuple[tuple[str, tuple[str, ...], Evidence], ...] = (
    ("panels", (*_KERNEL, "head_dim", "causal", "q_heads", "kv_heads"), "width"),
    ("and all their heads", (*_KERNEL, "head_dim", "causal"), "width"),
    ("lengths", (*_KERNEL, "seq_len"), "width"),
    ("head widths", (*_KERNEL, "head_dim"), "device"),
)
"""What is left out together in one step, and the bands that its rows have."""

MOST = {"efficiency": 1.0, "softmax_exposed": 2.0, "mask_exposed": 8.0}
"""Largest legal value of fields by the end of their name."""


class Value(NamedTuple):
    """One fitted number."""

    field: str
    kernel: str
    """The first kernel that names it."""
    used_by: tuple[int, ...]
    """Positions of the devices with kernels that it is a number of."""


class Optimum(NamedTuple):
    """Where a fit ended, and how the rows change there."""

    x: Floats
    error: Floats
    slope: Floats
    """float64[rows, values], of the error by the logarithm of a value."""


class Model:
    """The rows, the values, and the time of each row for given values."""

    def __init__(self) -> None:
        text = KERNELS.read_text(encoding="utf-8")
        self.start = np.log([float(value) for value in FITTED.findall(text)])
        # Each fitted value stands for itself by its position in the file.
        count = iter(range(len(self.start)))
        numbered = FITTED.sub(lambda _: f"{{value: {next(count)}, source: attn_fit", text)
        self.table: dict[str, Any] = parse_yaml(numbered)
        self.rows, self.cases = _read()
        names = [self._kernel(case) for case in self.cases]
        self.kernels = list(dict.fromkeys(names))
        self.columns = case_columns(self.cases, [self.kernels.index(name) for name in names])
        self.measured_s = np.array([case.measured for case in self.cases]) * MILLISECOND
        self.good = np.array([not row["doubt"] for row in self.rows])
        self.records: dict[Any, Records] = {
            run: np.concatenate(
                [device_record(load_device(device), run=run) for device, _, _ in self.kernels]
            )
            for run in RUNS
        }
        self.values = self._values()
        self.weight = self._weights()
        fields = [PRIORS[value.field] for value in self.values]
        self.centre = np.log([centre for centre, _ in fields])
        self.stiffness = np.array([spread for _, spread in fields]) ** -2.0

    def _kernel(self, case: AttentionCase) -> tuple[str, str, str]:
        family = load_device(case.device).attention_family or ""
        name = self.table[family]["default"] if case.kernel == "default" else case.kernel
        return case.device, family, name

    def _values(self) -> list[Value]:
        found: dict[int, Value] = {}
        for position, (_, family, name) in enumerate(self.kernels):
            for field, number in _fitted_fields(self.table[family]["kernels"][name]):
                old = found.get(number, Value(field, f"{family}.{name}", ()))
                found[number] = old._replace(used_by=(*old.used_by, position))
        unused = set(range(len(self.start))) - found.keys()
        if unused:
            msg = f"values {sorted(unused)} of {KERNELS.name} have no row"
            raise ValueError(msg)
        return [found[number] for number in range(len(self.start))]

    def _weights(self) -> Floats:
        """Return a weight for each row; the rows of each source of some size add up to the same."""
        sources = np.array([_source(row) for row in self.rows])
        size = {name: int((self.good & (sources == name)).sum()) for name in set(sources)}
        large = [rows for rows in size.values() if rows >= FEWEST]
        mean = sum(large) / len(large)
        weight = np.array(
            [mean / size[name] if size[name] >= FEWEST else 1.0 for name in sources.tolist()]
        )
        return weight / float(weight.mean()) / NOISE**2

    def set_kernels(self, x: Floats, positions: Sequence[int]) -> None:
        """Write the kernels of these devices with the values ``exp(x)``."""
        for position in positions:
            device, family, name = self.kernels[position]
            data = _with_values(self.table[family]["kernels"][name], x)
            kernel = AttentionKernel.model_validate(data)
            for run in RUNS:
                set_attention_kernel(self.records[run][position], load_device(device), kernel)

    def errors(self, select: Ints) -> Floats:
        """Return log(projected / measured) of the rows ``select``."""
        columns = CaseColumns(*(column[select] for column in self.columns))
        error: Floats = np.log(case_times_s(columns, self.records) / self.measured_s[select])
        return error

    def slopes(self, x: Floats, rows: Ints, error: Floats) -> Floats:
        """Return float64[rows, values], the change of each error with each value."""
        step = 1e-3
        slope = np.zeros((len(rows), len(x)))
        for number, value in enumerate(self.values):
            touched = np.isin(self.columns.device[rows], value.used_by)
            if not touched.any():
                continue
            moved = x.copy()
            moved[number] += step
            self.set_kernels(moved, value.used_by)
            slope[touched, number] = (self.errors(rows[touched]) - error[touched]) / step
            self.set_kernels(x, value.used_by)
        return slope


def main() -> None:
    """Fit, print values and errors, and record them if asked to."""
    model = Model()
    everything = np.arange(len(model.rows))
    best = fit(model, model.good, model.start, 20)
    rows = np.flatnonzero(model.good)
    print(
        f"{len(model.values)} fitted values, {BEFORE} before, for {len(rows)} rows without doubt:"
    )
    print(f"{len(rows) / len(model.values):.1f} rows a value\n")
    for number, value in enumerate(model.values):
        moved = int((np.abs(best.slope[:, number]) > MOVED).sum())
        result = f"{_legal(value.field, best.x[number]):8.3g}"
        print(f"{value.field:26} {value.kernel:28} {result} moves {moved} rows")
    error = model.errors(everything)
    print(f"\nin sample           {_summary(best.error, 'width')}")
    print(f"rows with a doubt   {_summary(error[~model.good], 'width')}")
    for what, names, evidence in PARTS:
        groups = np.array([_group(row, names) for row in model.rows])[rows]
        print(f"{what:20}{_summary(left_out(model, best, groups), evidence)}")
    _print_whole(model, best, "device", lambda case, _: case.device)
    _print_whole(model, best, "implementation", lambda _, row: row["impl"])
    if "--record" in sys.argv[1:]:
        _record(model, best.x)


def fit(model: Model, mask: Flags, x: Floats, steps: int) -> Optimum:
    """Return the best values for the rows of ``mask`` (Levenberg and Marquardt, soft-L1)."""
    rows = np.flatnonzero(mask)
    weight, damping = model.weight[rows], 1e-2

    def cost(error: Floats, at: Floats) -> float:
        rough = 2.0 * (np.sqrt(1.0 + weight * error**2) - 1.0)
        return float(rough.sum() + (model.stiffness * (at - model.centre) ** 2).sum())

    def errors_at(at: Floats) -> Floats:
        model.set_kernels(at, range(len(model.kernels)))
        return model.errors(rows)

    error = errors_at(x)
    now = cost(error, x)
    for _ in range(steps):
        curvature, gradient = _normal(model, x, error, model.slopes(x, rows, error), rows)
        gained = 0.0
        while damping < 1e6 and gained <= 0.0:
            damped = curvature + damping * np.diag(np.diag(curvature))
            tried = x - np.clip(np.linalg.solve(damped, gradient), -1.0, 1.0)
            tried_error = errors_at(tried)
            gained = now - cost(tried_error, tried)
            damping *= 5.0 if gained <= 0.0 else 0.2
        if gained <= 0.0:
            break
        x, error, now = tried, tried_error, now - gained
        if gained < 1e-4 * now:
            break
    error = errors_at(x)
    return Optimum(x, error, model.slopes(x, rows, error))


def left_out(model: Model, best: Optimum, groups: Sequence[str] | np.ndarray[Any, Any]) -> Floats:
    """Return the errors of the fitted rows, each group by the fit without its rows (one step)."""
    rows = np.flatnonzero(model.good)
    groups = np.asarray(groups)
    error = np.empty(len(rows))
    everything = _normal(model, best.x, best.error, best.slope, rows)
    for name in set(groups.tolist()):
        own = groups == name
        slope = best.slope[own]
        weight = _robust(model.weight[rows[own]], best.error[own])
        curvature = everything[0] - slope.T @ (weight[:, None] * slope)
        gradient = everything[1] - slope.T @ (weight * best.error[own])
        step = -np.clip(np.linalg.solve(curvature, gradient), -1.0, 1.0)
        error[own] = best.error[own] + slope @ step
    return error


def _normal(
    model: Model, x: Floats, error: Floats, slope: Floats, rows: Ints
) -> tuple[Floats, Floats]:
    """Return curvature and gradient of the cost around ``x``."""
    weight = _robust(model.weight[rows], error)
    curvature = slope.T @ (weight[:, None] * slope) + np.diag(model.stiffness)
    return curvature, slope.T @ (weight * error) + model.stiffness * (x - model.centre)


def _robust(weight: Floats, error: Floats) -> Floats:
    softened: Floats = weight / np.sqrt(1.0 + weight * error**2)
    return softened


def _print_whole(
    model: Model, best: Optimum, what: str, key: Callable[[AttentionCase, Mapping[str, str]], str]
) -> None:
    """Print the errors of groups that whole fits have not seen, by what is left of their kernel."""
    groups = np.array([key(*pair) for pair in zip(model.cases, model.rows, strict=True)])
    print(f"\none {what} left out")
    print("| left out | kernel has other rows | rows | error | in bands |")
    print("|---|---|---|---|---|")
    found: dict[bool, list[Floats]] = {True: [], False: []}
    for name in dict.fromkeys(groups.tolist()):
        own = model.good & (groups == name)
        if own.sum() < FEWEST:
            continue
        fit(model, model.good & ~own, best.x, 6)
        others = _has_others(model, own)
        for has, select in ((True, own & others), (False, own & ~others)):
            if select.any():
                found[has].append(model.errors(np.flatnonzero(select)))
                _print_row(name, found[has][-1], has=has)
    for has, errors in found.items():
        if errors:
            _print_row("all", np.concatenate(errors), has=has)


def _print_row(name: str, error: Floats, *, has: bool) -> None:
    evidence: Evidence = "family" if has else "none"
    errors, _, held = _summary(error, evidence).partition(" held ")
    print(f"| {name} | {'yes' if has else 'no'} | {len(error)} | {errors} | {held} |")


def _has_others(model: Model, own: Flags) -> Flags:
    """Return which rows run a kernel that has rows without doubt beside ``own``."""
    kernels = np.array([f"{family}.{name}" for _, family, name in model.kernels])
    of_row = kernels[model.columns.device]
    return np.isin(of_row, of_row[model.good & ~own])


def _read() -> tuple[list[dict[str, str]], list[AttentionCase]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not KIND.why_not_eligible(row)]
    return rows, [read_case(row) for row in rows]


def _fitted_fields(data: Mapping[Any, Any], field: str = "") -> list[tuple[str, int]]:
    """Return (field, number) of every fitted value below a mapping."""
    if "value" in data and "source" in data:
        return [(field, int(data["value"]))] if data["source"] == "attn_fit" else []
    nested = [(key, item) for key, item in data.items() if isinstance(item, Mapping)]
    return [pair for key, item in nested for pair in _fitted_fields(item, str(key))]


def _with_values(data: Any, x: Floats, field: str = "") -> Any:
    """Return a kernel's fields without sources, the fitted ones from ``x``."""
    if not isinstance(data, Mapping):
        return data
    if "value" in data and "source" in data:
        value = data["value"]
        return _legal(field, x[int(value)]) if data["source"] == "attn_fit" else value
    return {key: _with_values(item, x, str(key)) for key, item in data.items()}


def _legal(field: str, logarithm: float) -> float:
    most = next((most for end, most in MOST.items() if field.endswith(end)), np.inf)
    return min(float(np.exp(logarithm)), most)


def _source(row: Mapping[str, str]) -> str:
    return row["source"].partition(" ")[0]


def _group(row: Mapping[str, str], names: Sequence[str]) -> str:
    window = "window" if "sliding window" in row["notes"] else ""
    return "|".join([_source(row), window, *(row[name] for name in names)])


def _summary(error: Floats, evidence: Evidence) -> str:
    percent = 100.0 * np.abs(np.expm1(error))
    errors = " / ".join(f"{np.percentile(percent, rank):.1f}" for rank in (50, 68, 90))
    band = attention_time_band(evidence, "")
    held = []
    for share in SHARES:
        low, high = band.limits(share) or (np.nan, np.nan)
        held.append(np.mean((np.exp(-error) >= low) & (np.exp(-error) <= high)))
    return f"{errors} % held {' / '.join(f'{100.0 * share:.0f}' for share in held)} %"


def _record(model: Model, x: Floats) -> None:
    """Write the values into the file, three digits each."""
    fields = iter(zip(model.values, x, strict=True))

    def written(_: re.Match[str]) -> str:
        value, logarithm = next(fields)
        return f"{{value: {_legal(value.field, logarithm):.3g}, source: attn_fit"

    text = KERNELS.read_text(encoding="utf-8")
    KERNELS.write_text(FITTED.sub(written, text), encoding="utf-8")


if __name__ == "__main__":
    main()
