"""Calibrating a device: fit, cross-validate, judge on rows put aside.

Groups of rows are held out together, and divided the same way whatever the order of the table.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from projector.arrays import Flags, Floats
from projector.calibrate.fit import Field, Fit, changed, field_of, fit
from projector.calibrate.profile import Base, Calibration, Change, Fitted, load_base
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.errors import ConfigError, ProjectorError
from projector.lower.hardware import native_type
from projector.validate.attention import default_or_name
from projector.validate.kind import Kind, Readings, Row, integer, kind_of
from projector.validate.names import PROFILES, device_of, precision_of
from projector.validate.run import Table
from projector.validate.totals import errors_of

ANOTHER_DEVICE = "another device"


@dataclass(frozen=True, slots=True)
class _Kind:
    group: Callable[[Row], str]
    """Rows of one group are held out together, so that no shape is both fitted and judged."""
    fields: Callable[[Device, Sequence[Row]], tuple[str, ...]]
    """What is fitted unless the user says."""
    rule: Callable[[Row], str]
    """Why a row that can be projected says nothing about these fields, or ``""``."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that count."""

    kind: str
    table: str
    digest: str
    """SHA-256 of the file."""
    readings: Readings
    groups: tuple[str, ...]
    fields: tuple[str, ...]
    """Default fields for these rows."""
    left_out: dict[str, int]
    """Rows that were not used, by reason."""


def read_rows(kind_name: str, path: str | Path, device: str, shipped: Device) -> Rows:
    """Return the rows of a table that measure one device, shipped or a profile."""
    kind = kind_of(kind_name)
    how = _KINDS.get(kind.name)
    if how is None or kind.read is None:
        msg = f"{kind_name} tables cannot be calibrated to; use one of {', '.join(_KINDS)}"
        raise ConfigError(msg, key="kind", value=kind_name, allowed=list(_KINDS))
    table = Table(path, kind.columns, kind.name)
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    names: dict[str, str] = {}
    for line in table:
        why = line.error or _why_not(kind, how, line.row, (device, shipped), names)
        if why:
            left_out[why] += 1
        else:
            rows.append(line.row)
    readings = kind.read(rows)
    left_out.update(readings.failures)
    if not readings.positions:
        devices = sorted({name for name in names.values() if name})
        has = f"it has {', '.join(devices)}" if devices else "it names no device we know"
        if device in devices:
            has = "; ".join(why for why in left_out if why != ANOTHER_DEVICE)
        msg = f"device: {path} has no row that {device} can be fitted to ({has})"
        raise ConfigError(msg, key="device", value=device, allowed=devices)
    used = [rows[position] for position in readings.positions]
    with Path(path).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Rows(
        kind=kind.name,
        table=Path(path).name,
        digest=digest,
        readings=readings,
        groups=tuple(how.group(row) for row in used),
        fields=how.fields(shipped, used),
        left_out=dict(left_out.most_common()),
    )


def _why_not(
    kind: Kind, how: _Kind, row: Row, device: tuple[str, Device], names: dict[str, str]
) -> str:
    text = row.get(kind.device) or ""
    if text not in names:
        names[text] = _named(text, *device)
    if names[text] != device[0]:
        return ANOTHER_DEVICE
    try:
        why = kind.why_not_eligible(row) or how.rule(row)
    except ValueError as error:
        return str(error)
    doubt = (row.get("doubt") or "").strip()
    return why or (f"doubtful: {doubt}" if doubt else "")


def _named(text: str, device: str, profile: Device) -> str:
    """Return the device of a text, or of the path of a profile of its name; ``""`` without one."""
    try:
        name = device_of(text)
        same = name.endswith(PROFILES) and load_device(name).name == profile.name
    except (ValueError, ProjectorError):
        return ""
    return device if same else name


def _gemm_fields(device: Device, rows: Sequence[Row]) -> tuple[str, ...]:
    kinds = sorted({native_type(device, precision_of(row.get("in_dtype") or "")) for row in rows})
    return (
        *(f"sustained_clock_mhz.{kind}" for kind in kinds),
        "gemm_overhead_us",
        "gemm_hbm_efficiency" if device.gemm_hbm_efficiency else "hbm_efficiency",
        "l2_fill_bytes_per_clk_per_cu",
        "gemm_overlap_loss",
        "gemm_epilogue_exposed",
    )


def _attention_fields(device: Device, rows: Sequence[Row]) -> tuple[str, ...]:
    names = ("forward_efficiency", "backward_efficiency", "softmax_exposed", "tile_overhead_us")
    kernels = sorted({default_or_name(row, device) for row in rows})
    parents = [
        "attention" if name == "default" else f"attention_kernels.{name}" for name in kernels
    ]
    return tuple(f"{parent}.{name}" for parent in parents for name in names)


_COLLECTIVE_FIELDS = (
    "scale_up_efficiency",
    "collective_start_us",
    "scale_up_latency_us",
    "collective_self_copy_share",
)


def _one_node_rule(row: Row) -> str:
    if (integer(row, "n_nodes") or 1) > 1:
        return "more than one node, which the network decides"
    if (row.get("collective") or "").startswith("MoE"):
        return "an exchange among experts, another kernel than the collective library's"
    return ""


_KINDS = {
    "gemm_measured": _Kind(
        lambda row: f"n={integer(row, 'n')} k={integer(row, 'k')}", _gemm_fields, lambda _: ""
    ),
    "attention_measured": _Kind(
        lambda row: (
            f"head_dim={integer(row, 'head_dim')} {(row.get('pass') or '').strip().lower()}"
        ),
        _attention_fields,
        lambda _: "",
    ),
    "collectives_measured": _Kind(
        lambda row: (row.get("collective") or "").strip(),
        lambda _device, _rows: _COLLECTIVE_FIELDS,
        _one_node_rule,
    ),
}

FOLDS = 5
"""Parts of a cross-validation, where there are as many groups."""


def folds(groups: Sequence[str], count: int = FOLDS) -> list[Flags]:
    """Return which rows each fold holds out: whole groups, about as many rows in each; or none."""
    sizes = Counter(groups)
    count = min(count, len(sizes))
    if count < 2:
        return []
    members: list[set[str]] = [set() for _ in range(count)]
    rows = [0] * count
    for group in sorted(sizes, key=lambda name: (-sizes[name], _hash(name))):
        smallest = rows.index(min(rows))
        members[smallest].add(group)
        rows[smallest] += sizes[group]
    return [np.array([group in chosen for group in groups]) for chosen in members]


def held_out(groups: Sequence[str], fraction: float) -> Flags:
    """Return which rows are put aside: whole groups, up to ``fraction`` of all rows."""
    sizes = Counter(groups)
    limit = fraction * len(groups)
    chosen: set[str] = set()
    rows = 0
    for group in sorted(sizes, key=_hash):
        if rows + sizes[group] <= limit:
            chosen.add(group)
            rows += sizes[group]
    return np.array([group in chosen for group in groups])


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


Say = Callable[[str], None]


def calibrate(
    kind: str,
    path: str | Path,
    device: str,
    *,
    fields: Sequence[str] = (),
    holdout: float = 0.0,
    say: Say | None = None,
) -> Calibration:
    """Fit fields of a device to a table of GEMMs, attention or collectives.

    The device is a shipped one, or a profile that extends one. Without ``fields`` (dotted) those of
    the kind are fitted. ``holdout`` is the share of the rows to put aside, by whole groups.
    """
    if not 0.0 <= holdout < 1.0:
        msg = f"holdout is {holdout:g}, not a share of the rows"
        raise ConfigError(msg, key="holdout", value=holdout, allowed="0 <= holdout < 1")
    base = load_base(device)
    rows = read_rows(kind, path, base.device, base.profile)
    chosen = [field_of(base.profile, name) for name in dict.fromkeys(fields or rows.fields)]
    aside = held_out(rows.groups, holdout)
    if holdout > 0.0 and not aside.any():
        msg = f"holdout: every group is larger than {holdout:g} of the {len(rows.groups)} rows"
        raise ConfigError(msg, key="holdout", value=holdout, allowed="a larger share")
    used = int((~aside).sum())
    if used < len(chosen):
        msg = f"fields: {used} rows cannot fit {len(chosen)} fields; name fewer"
        raise ConfigError(msg, key="fields", value=used, allowed=f"at most {used} fields")
    return _Calibrator(base, rows, chosen, say or (lambda _: None)).run(aside)


class _Calibrator:
    def __init__(self, base: Base, rows: Rows, fields: Sequence[Field], say: Say) -> None:
        self._base, self._rows, self._fields, self._say = base, rows, fields, say
        self._measured_s = rows.readings.measured_s
        self._before_s = self._times_s({})

    def run(self, aside: Flags) -> Calibration:
        """Fit all rows that are not put aside, and again without each fold of them."""
        rows = self._rows
        used = ~aside
        self._say(f"fitting {len(self._fields)} fields to {used.sum()} rows")
        whole = self._fit(used)
        if not whole.seen.any():
            names = ", ".join(field.path for field in self._fields)
            msg = f"fields: no row of {rows.table} depends on {names}"
            raise ConfigError(msg, key="fields", value=names, allowed=list(rows.fields))
        after_s = self._times_s(self._values(whole))
        parts, values, judged_s = [], [], self._before_s.copy()
        where = np.flatnonzero(used)
        inside = folds([rows.groups[i] for i in where])
        for number, inner in enumerate(inside, start=1):
            self._say(f"fitting without fold {number} of {len(inside)}")
            out = np.zeros(len(used), bool)
            out[where[inner]] = True
            values.append(self._values(self._fit(used & ~out)))
            judged_s[out] = self._times_s(values[-1])[out]
            parts.append(self._change(out, judged_s))
        return Calibration(
            kind=rows.kind,
            table=rows.table,
            digest=rows.digest,
            base=self._base,
            fields=tuple(self._fitted(whole, i, values) for i in range(len(self._fields))),
            fitted=self._change(used, after_s),
            folds=tuple(parts),
            cross_validation=self._change(used, judged_s) if parts else None,
            holdout=self._change(aside, after_s) if aside.any() else None,
            left_out=rows.left_out,
        )

    def _times_s(self, values: dict[str, float]) -> Floats:
        device = changed(self._base.profile, values)
        return self._rows.readings.times_s(lambda _: device)

    def _fit(self, used: Flags) -> Fit:
        return fit(
            self._fields,
            lambda points: [self._times_s(values)[used] for values in points],
            self._measured_s[used],
        )

    def _values(self, solution: Fit) -> dict[str, float]:
        """Return the values as they are written, of the fields that some row sees."""
        return {
            field.path: field.rounded(float(x))
            for field, x, seen in zip(
                self._fields, solution.coordinates, solution.seen, strict=True
            )
            if seen
        }

    def _fitted(self, whole: Fit, i: int, others: Sequence[dict[str, float]]) -> Fitted:
        field, x = self._fields[i], float(whole.coordinates[i])
        seen = bool(whole.seen[i])
        value = field.rounded(x) if seen else field.prior
        error = float(whole.errors[i]) * field.slope(x)
        spread = [values[field.path] for values in others if field.path in values] if seen else []
        bound = {field.lower: "lower", field.upper: "upper"}.get(value, "") if seen else ""
        return Fitted(
            field=field.path,
            prior=field.prior,
            value=value,
            standard_error=error if np.isfinite(error) else None,
            fold_least=min(spread, default=None),
            fold_most=max(spread, default=None),
            bound=bound,
            seen=seen,
        )

    def _change(self, which: Flags, after_s: Floats) -> Change:
        measured_s = self._measured_s[which]
        groups = Counter(
            group for group, chosen in zip(self._rows.groups, which, strict=True) if chosen
        )
        both = (errors_of(time_s[which] / measured_s) for time_s in (self._before_s, after_s))
        return Change(int(which.sum()), len(groups), *both)
