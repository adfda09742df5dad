"""The profile that a calibration starts from, and the one it writes."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from projector.calibrate.result import Base, Calibration, Fitted, OwnCalibration
from projector.config import resources
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.sourced import merge
from projector.config.yaml_file import base_of, read_yaml
from projector.distribution import package_version
from projector.errors import ConfigError

SUFFIXES = (".yaml", ".yml")
DEEPEST = 8
"""Profiles that may extend one another."""

DIGEST_DIGITS = 16
"""Hexadecimal digits of a table's SHA-256 that a profile names."""


def load_base(name: str) -> Base:
    """Return a shipped device, or a user's profile with the device it extends.

    A profile that extends nothing, such as that of a probed CPU, is a device by itself: rows name
    its path.
    """
    profile = load_device(name, key="device")
    files: list[Path] = []
    overrides: dict[str, Any] = {}
    while str(name).endswith(SUFFIXES) and len(files) <= DEEPEST:
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
    base = calibration.base
    data: dict[str, Any] = dict(base.overrides)
    change = calibration.fitted
    source = (
        f"fit of {len(calibration.fields)} fields to {calibration.table} "
        f"(sha256 {calibration.digest[:DIGEST_DIGITS]}) by projector {package_version()}"
    )
    for field in calibration.fields:
        if field.seen:
            entry = {
                "value": field.value,
                "source": source,
                "note": f"{change.rows} rows of {change.groups} groups; {_note(field)}",
            }
            data = merge(data, _nested(data, base.profile, field.field.split("."), entry))
    body = yaml.safe_dump(
        {**_extended(base), **data}, sort_keys=False, width=100, allow_unicode=True
    )
    return "".join(f"# {line}\n" for line in _header(calibration)) + body


def _extended(base: Base) -> dict[str, str]:
    """Return what a new profile extends; one of its own is written whole."""
    return {} if base.device.endswith(SUFFIXES) else {"extends": base.device}


def write_profile(
    calibration: Calibration, out: str | Path, *, table: str | Path, force: bool = False
) -> None:
    """Write the new profile, whole or not at all."""
    target = check_target(out, calibration.base, [table], force=force)
    _save(profile_text(calibration), target, force=force)


def own_profile_text(calibration: OwnCalibration) -> str:
    """Return the profile of a device that was calibrated to a user's own runs."""
    base = calibration.base
    data: dict[str, Any] = dict(base.overrides)
    count = len(calibration.runs)
    source = f"fit to {count} own run{'s' * (count > 1)} by projector {package_version()}"
    for field in calibration.fields:
        if field.seen:
            note = f"was {field.prior:g}, moved by {field.shift:+.2f} widths of its prior"
            entry = {"value": field.value, "source": source, "note": note}
            data = merge(data, _nested(data, base.profile, field.field.split("."), entry))
    known = dict.fromkeys([*base.profile.calibrated_to, *calibration.classes])
    if known:
        data["calibrated_to"] = list(known)
    body = yaml.safe_dump(
        {**_extended(base), **data}, sort_keys=False, width=100, allow_unicode=True
    )
    lines = [f"{base.profile.name}, calibrated to own runs."]
    lines += [
        f"{run.name}: measured {1e3 * run.measured_s:.1f} ms, projected {1e3 * run.before_s:.1f} "
        f"-> {1e3 * run.after_s:.1f} ms."
        for run in calibration.runs
    ]
    return "".join(f"# {line}\n" for line in lines) + body


def write_own_profile(calibration: OwnCalibration, out: str | Path, *, force: bool = False) -> None:
    """Write that profile; raises as `write_profile` does."""
    inputs = [run.name for run in calibration.runs]
    target = check_target(out, calibration.base, inputs, force=force)
    _save(own_profile_text(calibration), target, force=force)


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
        temporary.chmod(0o666 & ~_umask())
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


def check_target(out: str | Path, base: Base, inputs: Sequence[str | Path], *, force: bool) -> Path:
    """Return where the profile goes, or raise `ConfigError` if it must not go there."""
    target = Path(out)
    if target.suffix not in SUFFIXES:
        msg = f"out: the name of a profile must end in {' or '.join(SUFFIXES)}"
        raise ConfigError(msg, key="out", value=str(target), allowed=list(SUFFIXES))
    resolved = target.resolve()
    if resolved.is_relative_to(resources.data_dir("hardware").resolve()):
        msg = f"out: {target} is a shipped profile; write to another file"
        raise ConfigError(msg, key="out", value=str(target), allowed="a file elsewhere")
    if resolved in {file.resolve() for file in (*base.files, *(Path(name) for name in inputs))}:
        msg = f"out: {target} is an input of the calibration"
        raise ConfigError(msg, key="out", value=str(target), allowed="a new file")
    if target.exists() and not force:
        raise _taken(target)
    return target


def _header(calibration: Calibration) -> list[str]:
    lines = [f"{calibration.base.profile.name}, fitted to {calibration.table}."]
    judged = (
        ("the rows that were fitted", calibration.fitted),
        ("cross-validated", calibration.cross_validation),
        ("rows put aside", calibration.holdout),
    )
    for name, change in judged:
        if change is not None:
            before, after = change.before, change.after
            lines.append(
                f"Error of {change.rows} rows, {name}: median {before.median_ape:.1%} -> "
                f"{after.median_ape:.1%}, 90th percentile {before.p90_ape:.1%} -> "
                f"{after.p90_ape:.1%}."
            )
    return lines


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
        nested: dict[str, Any] = dict(entry)
        for name in reversed(parts):
            nested = {name: nested}
        return nested
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


def _shipped() -> list[str]:
    return resources.shipped("hardware")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
