"""What a calibration starts from, what it finds, and the profile that it writes."""

import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from projector.config import resources
from projector.config._base import merge, nested
from projector.config.device import Device
from projector.config.device_file import YAML, load_device
from projector.config.yaml_file import base_of, read_yaml
from projector.distribution import package_version
from projector.envelope import told
from projector.errors import ConfigError
from projector.files import umask

FURTHEST = 3.0
"""Widths of a prior beyond which a run is not explained by its constants."""

LITTLE = 0.95
"""Share of a prior's width left over from which on the runs say next to nothing."""

UNEXPLAINED = 0.1
"""Error left over, as a logarithm, that a calibration names."""

_TO_CHECK: Mapping[str, str] = resources.hardware_table("report_words.yaml")["runs_to_check"]
"""Whether a run is slower or faster than projected -> what of its job is likely wrong."""


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
class Change:
    """Errors of some rows (`errors_of`) with the constants as they were and as they were fitted."""

    rows: int
    groups: int
    before: Mapping[str, float]
    after: Mapping[str, float]


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
        if judged is not None and judged.after["median_ape"] >= judged.before["median_ape"]:
            warnings.append("rows that were held out do not improve: the fit does not carry over")
        return warnings

    def to_dict(self) -> dict[str, Any]:
        """Return the keys that ``--json`` prints."""
        return {
            **told(self, "kind table"),
            "table_sha256": self.digest,
            "device": self.base.device,
            **told(self.fitted, "rows groups"),
            **told(self, "left_out fields"),
            "fit": asdict(self.fitted),
            **told(self, "cross_validation folds holdout"),
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
            which = "slower" if is_slow else "faster"
            factor = max(worst.measured_s / worst.before_s, worst.before_s / worst.measured_s)
            warnings.append(
                f"{worst.name} is {which} than projected by a factor "
                f"of {factor:.2f}: its constants would have to leave their priors "
                f"({self.widths_needed:.1f} widths; {FURTHEST:g} are plausible). The job file is "
                f"more likely wrong than the constants; check {_TO_CHECK[which]}"
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
        head = {"kind": "own_runs", "device": self.base.device}
        return head | told(self, "runs fields widths_needed")


DEEPEST = 8
"""Profiles that may extend one another."""

DIGEST_DIGITS = 16
"""Hexadecimal digits of a table's SHA-256 that a profile names."""


def load_base(name: str) -> Base:
    """Return a shipped device, or a profile over what it extends; or alone, rows name its path."""
    profile = load_device(name, key="device")
    files: list[Path] = []
    overrides: dict[str, Any] = {}
    while str(name).endswith(YAML) and len(files) <= DEEPEST:
        files.append(Path(name))
        data = read_yaml(name, key="device")
        parent = base_of(data, name)
        overrides = merge(data, overrides)
        if not isinstance(parent, str):
            return Base(str(name), tuple(files), overrides, profile)
        name = parent
    stem = resources.find("hardware", name, key="device").stem
    return Base(stem, tuple(files), overrides, profile)


def profile_text(calibration: Calibration) -> str:
    """Return the new profile: the shipped device with each fitted field and where it came from."""
    change = calibration.fitted
    source = (
        f"fit of {len(calibration.fields)} fields to {calibration.table} "
        f"(sha256 {calibration.digest[:DIGEST_DIGITS]}) by projector {package_version()}"
    )
    rows = f"{change.rows} rows of {change.groups} groups"
    notes = [(field, f"{rows}; {_note(field)}") for field in calibration.fields if field.seen]
    data = _overlaid(calibration.base, source, notes)
    lines = [f"{calibration.base.profile.name}, fitted to {calibration.table}."]
    judged = (
        ("the rows that were fitted", calibration.fitted),
        ("cross-validated", calibration.cross_validation),
        ("rows put aside", calibration.holdout),
    )
    for name, errors in judged:
        if errors is not None:
            before, after = errors.before, errors.after
            lines.append(
                f"Error of {errors.rows} rows, {name}: median {before['median_ape']:.1%} -> "
                f"{after['median_ape']:.1%}, 90th percentile {before['p90_ape']:.1%} -> "
                f"{after['p90_ape']:.1%}."
            )
    return _profile_text(calibration.base, data, lines)


def _overlaid(
    base: Base, source: str, notes: Iterable[tuple[Fitted | Moved, str]]
) -> dict[str, Any]:
    """Return what a profile says over its base: fields with a note on each."""
    data: dict[str, Any] = dict(base.overrides)
    for field, note in notes:
        entry = {"value": field.value, "source": source, "note": note}
        data = merge(data, _nested(data, base.profile, field.field.split("."), entry))
    return data


def _profile_text(base: Base, data: Mapping[str, Any], lines: Sequence[str]) -> str:
    """Return a profile that extends its base; one of its own is written whole."""
    extended = {} if base.device.endswith(YAML) else {"extends": base.device}
    body = yaml.safe_dump({**extended, **data}, sort_keys=False, width=100, allow_unicode=True)
    return "".join(f"# {line}\n" for line in lines) + body


def write_profile(
    calibration: Calibration, out: str | Path, *, table: str | Path, force: bool = False
) -> None:
    """Write the new profile, whole or not at all."""
    target = check_target(out, [*calibration.base.files, table], force=force)
    _save(profile_text(calibration), target, force=force)


def write_own_profile(calibration: OwnCalibration, out: str | Path, *, force: bool = False) -> None:
    """Write the profile of a device calibrated to own runs; raises as `write_profile` does."""
    base, count = calibration.base, len(calibration.runs)
    inputs: list[str | Path] = [*base.files, *(run.name for run in calibration.runs)]
    target = check_target(out, inputs, force=force)
    source = f"fit to {count} own run{'s' * (count > 1)} by projector {package_version()}"
    notes = [
        (field, f"was {field.prior:g}, moved by {field.shift:+.2f} widths of its prior")
        for field in calibration.fields
        if field.seen
    ]
    data = _overlaid(base, source, notes)
    known = dict.fromkeys([*base.profile.calibrated_to, *calibration.classes])
    if known:
        data["calibrated_to"] = list(known)
    lines = [f"{base.profile.name}, calibrated to own runs."]
    lines += [
        f"{run.name}: measured {1e3 * run.measured_s:.1f} ms, projected {1e3 * run.before_s:.1f} "
        f"-> {1e3 * run.after_s:.1f} ms."
        for run in calibration.runs
    ]
    _save(_profile_text(base, data, lines), target, force=force)


def _save(text: str, target: Path, *, force: bool) -> None:
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            encoding="utf-8",
            dir=target.parent,
            prefix=f".{target.name}.",
            suffix=target.suffix,
            delete=False,
        ) as stream:
            temporary = Path(stream.name)
            stream.write(text)
        load_device(temporary, key="out")
        temporary.chmod(0o666 & ~umask())
        if force:
            temporary.replace(target)
        else:
            # Fails where another process was faster, which a rename would not.
            os.link(temporary, target)
    except FileExistsError:
        raise _taken(target) from None
    except OSError as error:
        msg = f"out: {target} cannot be written: {error.strerror or error}"
        raise ConfigError(msg, key="out", value=str(target), allowed="a writable file") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_target(out: str | Path, inputs: Iterable[str | Path] = (), *, force: bool) -> Path:
    """Return where the profile goes, or raise `ConfigError` if it must not go there."""
    target = Path(out)
    if target.suffix not in YAML:
        msg = f"out: the name of a profile must end in {' or '.join(YAML)}"
        raise ConfigError(msg, key="out", value=str(target), allowed=list(YAML))
    resolved = target.resolve()
    if resolved.is_relative_to(resources.data_dir("hardware").resolve()):
        msg = f"out: {target} is a shipped profile; write to another file"
        raise ConfigError(msg, key="out", value=str(target), allowed="a file elsewhere")
    if resolved in {Path(each).resolve() for each in inputs}:
        msg = f"out: {target} is an input of the calibration"
        raise ConfigError(msg, key="out", value=str(target), allowed="a new file")
    if target.exists() and not force:
        raise _taken(target)
    return target


def _note(field: Fitted) -> str:
    parts = [f"was {field.prior:g}"]
    if field.standard_error is not None:
        parts.append(f"standard error {field.standard_error:.2g}")
    if field.fold_least is not None and field.fold_most is not None:
        parts.append(f"folds {field.fold_least:g} to {field.fold_most:g}")
    if field.bound:
        parts.append(f"at its {field.bound} bound")
    return ", ".join(parts)


def _nested(
    data: Mapping[str, Any], device: Device, parts: list[str], entry: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a mapping that sets one field; a list is written whole, each item as it was."""
    if parts[0] != "gemm_tiles":
        return nested(parts, dict(entry))
    tiles = data.get("gemm_tiles")
    if tiles is None:
        tiles = [
            {name: _sourced(device, f"gemm_tiles.{i}.{name}", value) for name, value in tile}
            for i, tile in enumerate(device.gemm_tiles)
        ]
    position = int(parts[1])
    whole = [dict(tile) for tile in tiles]
    whole[position][parts[2]] = dict(entry)
    return {"gemm_tiles": whole}


def _sourced(device: Device, path: str, value: Any) -> Any:
    source = device.sources.get(path)
    return {"value": value, "source": source} if source else value


def _taken(target: Path) -> ConfigError:
    msg = f"out: {target} exists; choose another file, or overwrite it with --force"
    return ConfigError(msg, key="out", value=str(target), allowed="a new file")
