"""What a calibration starts from and what it finds."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from projector.config.device import Device

FURTHEST = 3.0
"""Widths of a prior beyond which a run is not explained by its constants."""

LITTLE = 0.95
"""Share of a prior's width left over from which on the runs say next to nothing."""

UNEXPLAINED = 0.1
"""Error left over, as a logarithm, that a calibration names."""

SLOWER = (
    "recomputation or an eager attention that the job does not state, an overlap that is off, "
    "clocks below those sustained (power cap, heat), the schedule and its chunks, a slow data "
    "loader, or a slow node"
)
FASTER = (
    "recomputation that the job states and the run does without, an overlap that the job switches "
    "off, the schedule and its chunks, or a step time that leaves out a part of the step"
)


@dataclass(frozen=True, slots=True)
class Base:
    """What a calibration starts from."""

    device: str
    """The shipped device, or the path of a profile that extends none; rows must name it."""
    files: tuple[Path, ...]
    """Files of the user that lie over it."""
    overrides: dict[str, Any]
    """What those files change, so that a further calibration keeps it; all of a profile that
    extends no shipped device."""
    profile: Device


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
        warnings = []
        for field in self.fields:
            if not field.seen:
                warnings.append(f"{field.field}: no row depends on it; it is left as it is")
            elif field.bound:
                warnings.append(f"{field.field}: the fit ended at its {field.bound} bound")
        if self.cross_validation is None:
            warnings.append("all rows are of one group, so nothing could be held out")
        judged = self.holdout or self.cross_validation
        if judged is not None and judged.after.median_ape >= judged.before.median_ape:
            warnings.append("rows that were held out do not improve: the fit does not carry over")
        return warnings

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


@dataclass(frozen=True, slots=True)
class OwnRun:
    """One of the user's runs, before and after."""

    name: str
    """Path of its job file."""
    measured_s: float
    before_s: float
    after_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the keys that ``--json`` prints; errors are projected over measured, less 1."""
        return {
            "job": self.name,
            "measured_ms": 1e3 * self.measured_s,
            "before_ms": 1e3 * self.before_s,
            "after_ms": 1e3 * self.after_s,
            "error_before": self.before_s / self.measured_s - 1.0,
            "error_after": self.after_s / self.measured_s - 1.0,
        }


@dataclass(frozen=True, slots=True)
class Moved:
    """One constant and how far the runs moved it."""

    field: str
    """Dotted field of the device."""
    prior: float
    value: float
    shift: float
    """Logarithm of value over prior, in widths of the prior."""
    width_left: float
    """Share of the prior's width that the runs leave open: 1 where they say nothing."""
    seen: bool
    """Whether any run depends on it; one that none depends on is not written."""


@dataclass(frozen=True, slots=True)
class OwnCalibration:
    """A device fitted to the user's own runs."""

    base: Base
    runs: tuple[OwnRun, ...]
    fields: tuple[Moved, ...]
    classes: tuple[str, ...]
    """Model and precision (`run_class`) of the runs that the constants explain, each once. Others
    do not narrow the band of jobs like them."""
    widths_needed: float
    """Widths of their priors by which all constants together would have to move to explain the run
    that is furthest off."""

    @property
    def values(self) -> dict[str, float]:
        """Value of each constant that some run depends on."""
        return {field.field: field.value for field in self.fields if field.seen}

    @property
    def warnings(self) -> list[str]:
        """What speaks against using the profile."""
        warnings = []
        far = [field for field in self.fields if abs(field.shift) > FURTHEST]
        worst = max(self.runs, key=lambda run: abs(math.log(run.before_s / run.measured_s)))
        if self.widths_needed > FURTHEST or far:
            is_slow = worst.measured_s > worst.before_s
            factor = max(worst.measured_s / worst.before_s, worst.before_s / worst.measured_s)
            warnings.append(
                f"{worst.name} is {'slower' if is_slow else 'faster'} than projected by a factor "
                f"of {factor:.2f}: its constants would have to leave their priors "
                f"({self.widths_needed:.1f} widths; {FURTHEST:g} are plausible). The job file is "
                f"more likely wrong than the constants; check {SLOWER if is_slow else FASTER}"
            )
        else:
            warnings += [
                f"{run.name}: {100.0 * (run.after_s / run.measured_s - 1.0):+.0f} % are left over"
                for run in self.runs
                if abs(math.log(run.after_s / run.measured_s)) > UNEXPLAINED
            ]
        if warnings:
            warnings.append("jobs like a run that is not explained keep the band of their class")
        open_fields = [field.field for field in self.fields if field.width_left > LITTLE]
        if open_fields:
            warnings.append(f"the runs say next to nothing about {', '.join(open_fields)}")
        return warnings

    def to_dict(self) -> dict[str, Any]:
        """Return the keys that ``--json`` prints."""
        return {
            "kind": "own_runs",
            "device": self.base.device,
            "runs": [run.to_dict() for run in self.runs],
            "fields": [asdict(field) for field in self.fields],
            "widths_needed": self.widths_needed,
        }


def _optional(change: Change | None) -> dict[str, Any] | None:
    return None if change is None else asdict(change)
