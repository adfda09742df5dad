"""Calibrating a device: fit, cross-validate, judge on rows put aside."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.calibrate.fields import Field, changed, field_of
from projector.calibrate.fit import Fit, fit
from projector.calibrate.folds import folds, held_out
from projector.calibrate.profile import Base, load_base
from projector.calibrate.rows import Rows, read_rows
from projector.errors import ConfigError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of the time over some rows, as fractions."""

    median_ape: float
    p90_ape: float
    mean_ape: float
    geomean_ratio: float


@dataclass(frozen=True, slots=True)
class Change:
    """Some rows with the constants as they were and as they were fitted."""

    rows: int
    groups: int
    before: Errors
    after: Errors


@dataclass(frozen=True, slots=True)
class Fitted:
    """One field and what became of it."""

    field: str
    prior: float
    value: float
    standard_error: float | None
    """From the curvature at the solution, as if rows were independent; None where there is none."""
    fold_least: float | None
    """Least value that leaving out a fold gave."""
    fold_most: float | None
    bound: str
    """``lower`` or ``upper`` where the fit ended at a bound, else ``""``."""
    seen: bool
    """Whether any row depends on the field; one that no row sees is not written."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A device fitted to a table."""

    kind: str
    table: str
    digest: str
    """SHA-256 of the table."""
    base: Base
    fields: tuple[Fitted, ...]
    fitted: Change
    """The rows that the fit saw."""
    folds: tuple[Change, ...]
    """Each part of them as the fit without it gives it."""
    cross_validation: Change | None
    """All parts together."""
    holdout: Change | None
    """The rows put aside, which neither the fit nor its folds saw."""
    left_out: dict[str, int]
    """Rows that were not used, by reason."""

    @property
    def warnings(self) -> list[str]:
        """What speaks against using the profile."""
        found = []
        for field in self.fields:
            if not field.seen:
                found.append(f"{field.field}: no row depends on it; it is left as it is")
            elif field.bound:
                found.append(f"{field.field}: the fit ended at its {field.bound} bound")
        if self.cross_validation is None:
            found.append("all rows are of one group, so nothing could be held out")
        judged = self.holdout or self.cross_validation
        if judged is not None and judged.after.median_ape >= judged.before.median_ape:
            found.append("rows that were held out do not improve: the fit does not carry over")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the keys that ``--json`` prints."""
        return {
            "kind": self.kind,
            "table": self.table,
            "table_sha256": self.digest,
            "device": self.base.device,
            "rows": self.fitted.rows,
            "groups": self.fitted.groups,
            "left_out": self.left_out,
            "fields": [asdict(field) for field in self.fields],
            "fit": asdict(self.fitted),
            "cross_validation": _optional(self.cross_validation),
            "folds": [asdict(fold) for fold in self.folds],
            "holdout": _optional(self.holdout),
        }


def calibrate(
    kind: str,
    path: str | Path,
    device: str,
    *,
    fields: Sequence[str] = (),
    holdout: float = 0.0,
    say: Say | None = None,
) -> Calibration:
    """Fit fields of a device to a measurement table.

    Parameters
    ----------
    kind : str
        Kind of table: ``gemm_measured``, ``attention_measured`` or ``collectives_measured``.
    path : str or Path
        CSV file.
    device : str
        A shipped device, or a profile that extends one.
    fields : sequence of str
        Dotted fields; those of the kind if empty.
    holdout : float
        Share of the rows to put aside, by whole groups.
    say : callable, optional
        Told of progress.

    Raises
    ------
    ConfigError
        For an unknown kind, device or field, an unreadable table, or too few rows.
    """
    if not 0.0 <= holdout < 1.0:
        msg = f"holdout is {holdout:g}, not a share of the rows"
        raise ConfigError(msg, key="holdout", value=holdout, allowed="0 <= holdout < 1")
    base = load_base(device)
    rows = read_rows(kind, path, base.device, base.profile)
    chosen = [field_of(base.profile, name) for name in dict.fromkeys(fields or rows.fields)]
    aside = held_out(rows.groups, holdout)
    if holdout > 0.0 and not aside.any():
        msg = f"holdout: no group is as small as {holdout:g} of the {len(rows.groups)} rows"
        raise ConfigError(msg, key="holdout", value=holdout, allowed="a larger share")
    used = int((~aside).sum())
    if used < len(chosen):
        msg = f"fields: {used} rows cannot fit {len(chosen)} fields; name fewer"
        raise ConfigError(msg, key="fields", value=used, allowed=f"at most {used} fields")
    return _Calibrator(base, rows, chosen, say or _silent).run(aside)


class _Calibrator:
    def __init__(self, base: Base, rows: Rows, fields: Sequence[Field], say: Say) -> None:
        self._base, self._rows, self._fields, self._say = base, rows, fields, say
        self._measured_s = rows.readings.measured_s
        self._before_s = self._times_s({})

    def run(self, aside: NDArray[np.bool_]) -> Calibration:
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

    def _times_s(self, values: dict[str, float]) -> NDArray[np.float64]:
        device = changed(self._base.profile, values)
        return self._rows.readings.times_s(lambda _: device)

    def _fit(self, used: NDArray[np.bool_]) -> Fit:
        return fit(self._fields, lambda values: self._times_s(values)[used], self._measured_s[used])

    def _values(self, found: Fit) -> dict[str, float]:
        """Return the values as they are written, of the fields that some row sees."""
        return {
            field.path: field.rounded(float(x))
            for field, x, seen in zip(self._fields, found.coordinates, found.seen, strict=True)
            if seen
        }

    def _fitted(self, whole: Fit, i: int, others: Sequence[dict[str, float]]) -> Fitted:
        field, x = self._fields[i], float(whole.coordinates[i])
        seen = bool(whole.seen[i])
        value = field.rounded(x) if seen else field.prior
        error = float(whole.errors[i]) * field.slope(x)
        spread = [each[field.path] for each in others if field.path in each] if seen else []
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

    def _change(self, which: NDArray[np.bool_], after_s: NDArray[np.float64]) -> Change:
        measured_s = self._measured_s[which]
        groups = Counter(
            group for group, chosen in zip(self._rows.groups, which, strict=True) if chosen
        )
        before = _errors(self._before_s[which] / measured_s)
        return Change(int(which.sum()), len(groups), before, _errors(after_s[which] / measured_s))


def _errors(ratio: NDArray[np.float64]) -> Errors:
    error = np.abs(ratio - 1.0)
    return Errors(
        median_ape=float(np.median(error)),
        p90_ape=float(np.percentile(error, 90.0)),
        mean_ape=float(np.mean(error)),
        geomean_ratio=float(np.exp(np.mean(np.log(ratio)))),
    )


def _optional(change: Change | None) -> dict[str, Any] | None:
    return None if change is None else asdict(change)


def _silent(text: str) -> None:
    del text
