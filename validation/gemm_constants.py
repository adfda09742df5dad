"""Fitted constants of GEMMs, and measured rows for each, by family of devices.

A constant is a number of a device file, or of ``hardware/gemm.yaml``, whose source is a fit to GEMM
rows. Equal values of one field in a family (of a type and of the one that shares its kernels, of a
library and of the one that calls it, of two devices) are one constant. Rows are those that
`projector validate` projects without a stated doubt; those that name a device of the family count,
whatever their library.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from projector.config.device_file import load_device
from projector.config.device_kernels import MATRIX_TYPES
from projector.validate.names import device_of
from projector.validate.run import validate

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).parent / "data" / "gemm_measured.csv"
FITS = "gemm_fit"
"""Beginning of the sources that are fits to GEMM rows."""


def main() -> None:
    """Print a line for each family."""
    rows: dict[str, int] = defaultdict(int)
    devices: dict[str, set[str]] = defaultdict(set)
    for result in validate("gemm_measured", TABLE).results:
        if result.projected and not result.doubt:
            name = device_of(result.device)
            family = load_device(name).architecture
            rows[family] += 1
            devices[family].add(name)
    print("| family | devices with rows | fitted constants | rows | rows a constant |")
    print("|---|---|---|---|---|")
    for family, count in sorted(rows.items(), key=lambda item: -item[1]):
        fitted = set(_fitted(family, devices[family]))
        share = f"{count / len(fitted):.0f}" if fitted else "-"
        names = ", ".join(sorted(devices[family]))
        print(f"| {family} | {names} | {len(fitted)} | {count} | {share} |")


def _fitted(family: str, devices: set[str]) -> Iterator[tuple[str, float]]:
    """Yield the field, without its type, and the value of each fitted constant."""
    for name in devices:
        text = (ROOT / "hardware" / f"{name}.yaml").read_text(encoding="utf-8")
        yield from _leaves(yaml.safe_load(text), "")
    shared = ROOT / "hardware" / "gemm.yaml"
    if shared.exists():
        yield from _leaves(yaml.safe_load(shared.read_text(encoding="utf-8")).get(family, {}), "")


def _leaves(entry: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(entry, list):
        for each in entry:
            yield from _leaves(each, path)
    if not isinstance(entry, dict):
        return
    if isinstance(entry.get("value"), float | int):
        if str(entry.get("source", "")).startswith(FITS):
            field, _, last = path.rpartition(".")
            field = field if last in MATRIX_TYPES else path
            yield re.sub(r"^gemm_libraries\.\w+", "gemm_libraries", field), float(entry["value"])
        return
    for key, value in entry.items():
        yield from _leaves(value, f"{path}.{key}" if path else str(key))


if __name__ == "__main__":
    main()
