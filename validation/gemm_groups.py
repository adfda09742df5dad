"""Errors of measured GEMMs by kind of kernel: what trains, what tuners chose, and the rest.

Rows without a stated doubt, median / 90th percentile and geometric mean of predicted over measured
time, in sample. Rows of tuners are scored by the model's own choice and as they name their kernel.
"""

import re
from collections import defaultdict
from pathlib import Path

from projector.config.device_file import load_device
from projector.validate.names import device_of, precision_of
from projector.validate.run import Result, validate
from projector.validate.totals import totals

TABLE = Path(__file__).parent / "data" / "gemm_measured.csv"

BENCHMARKS = (
    ("training shapes", re.compile(r"AMD-AGI/Primus-Turbo")),
    ("tuned", re.compile(r"ROCm/(aiter|hipBLASLt)")),
)
"""Name of a group -> sources; of AMD devices, all others make one group."""


def main() -> None:
    """Print a line for each group, and below it one for each of its parts."""
    members: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in validate("gemm_measured", TABLE, by=("op",)).results:
        if result.projected and not result.doubt:
            for key in _keys(result):
                members[key].append(result)
    print("| group | rows | chosen | ratio | as named, rows | |")
    print("|---|---|---|---|---|---|")
    for key, group in sorted(members.items()):
        named = [each for each in (result.as_named for result in group) if each is not None]
        cells = [", ".join(key), f"{len(group)}", *_errors(group)]
        cells += [f"{len(named)}", " ".join(_errors(named))] if named else ["", ""]
        print(f"| {' | '.join(cells)} |")


def _keys(result: Result) -> list[tuple[str, ...]]:
    """Return the groups of a row, from the widest to the narrowest."""
    name = device_of(result.device)
    device = load_device(name)
    if device.vendor != "amd":
        return [(device.vendor,), (device.vendor, device.architecture)]
    found = (group for group, sources in BENCHMARKS if sources.match(result.source))
    benchmark = next(found, "other benchmarks")
    kind = precision_of(result.precision)
    if kind == "fp8" and "block" in result.precision:
        kind = "fp8, block scales"
    part = "grouped" if "grouped" in result.group else "dense"
    part += " backward" if "dgrad" in result.group else ""
    return [
        ("amd", benchmark),
        ("amd", benchmark, kind),
        ("amd", benchmark, kind, name, part),
    ]


def _errors(results: list[Result]) -> tuple[str, str]:
    found = totals(results)
    assert found.median_ape is not None
    assert found.p90_ape is not None
    errors = f"{100.0 * found.median_ape:.1f} / {100.0 * found.p90_ape:.1f} %"
    return errors, f"{found.geomean_ratio:.2f}"


if __name__ == "__main__":
    main()
