"""Calibrating a device: fit, cross-validate, judge on rows put aside."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from projector.arrays import Flags, Floats
from projector.calibrate.fields import Field, changed, field_of
from projector.calibrate.fit import Fit, fit
from projector.calibrate.folds import folds, held_out
from projector.calibrate.profile import load_base
from projector.calibrate.result import Base, Calibration, Change, Errors, Fitted
from projector.calibrate.rows import Rows, read_rows
from projector.errors import ConfigError

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
    return _Calibrator(base, rows, chosen, say or _silent).run(aside)


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
        return fit(self._fields, lambda values: self._times_s(values)[used], self._measured_s[used])

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
        before = _errors(self._before_s[which] / measured_s)
        return Change(int(which.sum()), len(groups), before, _errors(after_s[which] / measured_s))


def _errors(ratio: Floats) -> Errors:
    error = np.abs(ratio - 1.0)
    return Errors(
        median_ape=float(np.median(error)),
        p90_ape=float(np.percentile(error, 90.0)),
        mean_ape=float(np.mean(error)),
        geomean_ratio=float(np.exp(np.mean(np.log(ratio)))),
    )


def _silent(text: str) -> None:
    del text
