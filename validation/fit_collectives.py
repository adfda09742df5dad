"""Constants of collectives in one node, fitted to the published table, in and out of sample.

The residual of a row is the logarithm of its projected over its measured time, under a soft L1 loss
of 5 %. Each source weighs the same. Each constant has a prior: the logarithm of a physical value
and a width. Out of sample, rows are projected with constants fitted, from the priors on, to those
of other systems, sources, devices or numbers of devices. Without its rows a device has the
constants of its family, or, as the only one of it, their priors. ``--left-out`` prints these errors
beside those of several nodes (fit_networks.py): the table of docs/collectives.md.
"""

import csv
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import fit_networks
import numpy as np
from fit_networks import LeftOut, source_of
from scipy.optimize import least_squares

from projector.arrays import Flags, Floats
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.validate import collectives
from projector.validate.collectives import is_exchange
from projector.validate.kind import Readings, Row
from projector.validate.names import device_of

TABLE = Path(__file__).parent / "data" / "collectives_measured.csv"
FAMILIES = {
    "Ampere": ("a100", "a100_40gb"),
    "Hopper": ("h100", "h200"),
    "Blackwell": ("b200", "gb200", "gb300"),
    "CDNA3": ("mi300x", "mi325x"),
    "CDNA4": ("mi355x",),
}
SCALE = 0.05
"""Relative error from which the loss grows linearly, and the width of a prior's unit."""
SIZES = (("up to 4 MB", 4.2e6), ("to 256 MB", 256e6), ("from 256 MB", np.inf))


class Constant(NamedTuple):
    """One fitted number."""

    family: str
    """Empty for all."""
    field: str
    prior: float
    width: float
    """Of the prior's logarithm."""


ALL = (
    Constant("", "collective_self_copy_share", 0.4, 0.5),
    Constant("", "collective_chunk_us", 3.0, 1.0),
    Constant("", "in_network_chunk_us", 3.0, 1.0),
    Constant("", "collective_fill_limit_us", 100.0, 0.3),
    Constant("", "collective_flag_traffic", 2.0, 0.3),
)
OWN = (
    ("collective_start_us", 6.7, 0.7),
    ("scale_up_latency_us", 0.6, 0.5),
    ("collective_simple_start_us", 12.0, 0.7),
    ("scale_up_efficiency", 0.8, 0.1),
    ("collective_exchange_efficiency", 0.95, 0.1),
    ("collective_exchange_step_us", 1.5, 0.7),
    ("collective_exchange_issue_us", 0.4, 0.7),
    ("collective_exchange_simple_start_us", 6.0, 0.7),
)
"""Start and hop with flags: NCCL's tuner (src/graph/tuning.cc) has 6.6 to 6.8 us, and 0.6 over
NVLink; RCCL's has 0.8 to 0.9."""
NARROW = {("CDNA4", "scale_up_efficiency"): (0.72, 0.03)}
"""Priors instead: only pairs were timed on CDNA4, and eight of CDNA3 reach less than its pairs."""
IN_NETWORK = "in_network_all_reduce_gb_per_s"


def constants() -> tuple[Constant, ...]:
    """Return all constants; reduction in the switch has one rate a family."""
    own = tuple(
        Constant(family, field, *NARROW.get((family, field), prior))
        for family in FAMILIES
        for field, *prior in OWN
    )
    switch = (
        Constant("Hopper", IN_NETWORK, 274.0, 0.1),
        Constant("Blackwell", IN_NETWORK, 479.0, 0.1),
    )
    return (*ALL, *own, *switch)


CONSTANTS = constants()
PRIOR = np.log([constant.prior for constant in CONSTANTS])
WIDTH = np.array([constant.width for constant in CONSTANTS])


KEYS: dict[str, Callable[[Row], str]] = {
    "system": lambda row: f"{row['system']} {row['source']}",
    "source": source_of,
    "device": lambda row: device_of(row["gpu"] or ""),
    "count": lambda row: row["n_gpus"] or "",
}
"""What is left out, with its value for a row."""


def main() -> None:
    """Print constants and errors by system, or with ``--left-out`` errors by what is left out."""
    if "--left-out" in sys.argv[1:]:
        for label, found in (("one node", left_out()), ("several nodes", fit_networks.left_out())):
            print(f"\n{label:34}      " + "  ".join(f"{name:19}" for name in found.times_s))
            _print(
                found,
                {
                    k: v
                    for k, v in _groups(found.rows).items()
                    if " up " in k or " to " in k or " from " in k
                },
            )
        return
    rows = _rows()
    read = collectives.read(rows)
    fitted = _fit(read, _weights([row["source"] or "" for row in rows]))
    for constant, value in zip(CONSTANTS, np.exp(fitted), strict=True):
        print(f"{constant.family or 'all':10} {constant.field:36} {value:8.3f}")
    _print(left_out(("system",)), _groups(rows))


def left_out(keys: Sequence[str] = tuple(KEYS)) -> LeftOut:
    """Project the rows of one node, in sample and by constants of the other rows."""
    rows = _rows()
    read = collectives.read(rows)
    weight = _weights([row["source"] or "" for row in rows])
    times = {"in sample": _predict(read, _fit(read, weight))}
    for name in keys:
        values = np.array([KEYS[name](row) for row in rows])
        times[name] = np.empty(len(rows))
        for value in sorted(set(values)):
            out = values == value
            times[name][out] = _predict(read, _fit(read, np.where(out, 0.0, weight)))[out]
    return LeftOut(rows, np.full(len(rows), True), read.measured_s, times)


def _print(found: LeftOut, groups: Mapping[str, Flags]) -> None:
    for name, group in groups.items():
        kept = group & found.fitted
        times = [time_s[kept] for time_s in found.times_s.values()]
        cells = [_error(time_s, found.measured_s[kept]) for time_s in times]
        print(f"{name:34} {kept.sum():4} " + "  ".join(cells))


def _rows() -> list[Row]:
    with TABLE.open(newline="", encoding="utf-8") as stream:
        rows: list[Row] = list(csv.DictReader(stream))
    known = {name for names in FAMILIES.values() for name in names}
    kept = []
    for row in rows:
        if row["n_nodes"] != "1" or is_exchange(row) or collectives.KIND.why_not_eligible(row):
            continue
        try:
            device = device_of(row["gpu"] or "")
        except ValueError:
            continue
        if device in known:
            kept.append(row)
    return kept


def _weights(sources: Sequence[str]) -> Floats:
    """Weigh every source the same, but no row more than twice the average."""
    count = Counter(sources)
    weight = np.array([count[source] ** -0.5 for source in sources])
    weight *= np.sqrt(len(sources) / np.sum(weight**2))
    return np.minimum(weight, 2.0)


def _fit(read: Readings, weight: Floats, steps: int = 25) -> Floats:
    def residual(point: Floats) -> Floats:
        error = np.log(_predict(read, point) / read.measured_s)
        return np.concatenate([weight * error / SCALE, (point - PRIOR) / WIDTH])

    return np.asarray(least_squares(residual, PRIOR, loss="soft_l1", max_nfev=steps).x)


def _predict(read: Readings, point: Floats) -> Floats:
    devices: dict[str, Device] = {}

    def device_for(name: str) -> Device:
        if name not in devices:
            devices[name] = _device(name).model_copy(update=_values(name, point))
        return devices[name]

    return read.times_s(device_for)


@lru_cache
def _device(name: str) -> Device:
    return load_device(name)


def _values(name: str, point: Floats) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for constant, value in zip(CONSTANTS, np.exp(point), strict=True):
        if constant.family and name not in FAMILIES[constant.family]:
            continue
        values[constant.field] = min(1.0, value) if "efficiency" in constant.field else value
    if values.get(IN_NETWORK) and not _device(name).in_network_all_reduce_gb_per_s:
        del values[IN_NETWORK]
    return values


def _groups(rows: Sequence[Row]) -> dict[str, Flags]:
    size = np.array([float(row["message_bytes"] or 0.0) for row in rows])
    vendor = np.array([_device(device_of(row["gpu"] or "")).vendor for row in rows])
    system = np.array([(row["system"] or "")[:34] for row in rows])
    groups = {}
    for name in sorted(set(vendor)):
        lower = 0.0
        for label, upper in SIZES:
            groups[f"{name} {label}"] = (vendor == name) & (size > lower) & (size < upper)
            lower = upper
    return groups | {name: system == name for name in sorted(set(system))}


def _error(time_s: Floats, measured_s: Floats) -> str:
    error = 100.0 * np.abs(time_s / measured_s - 1.0)
    bias = np.exp(np.mean(np.log(time_s / measured_s)))
    return f"{np.median(error):5.1f} /{np.percentile(error, 90):5.1f} ({bias:.2f})"


if __name__ == "__main__":
    main()
