"""What a calibration starts from and what it finds."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from projector.config.device import Device


@dataclass(frozen=True, slots=True)
class Base:
    """What a calibration starts from."""

    device: str
    """The shipped device; rows must name it."""
    files: tuple[Path, ...]
    """Files of the user that lie over it."""
    overrides: dict[str, Any]
    """What those files change, so that a further calibration keeps it."""
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


def _optional(change: Change | None) -> dict[str, Any] | None:
    return None if change is None else asdict(change)
