"""Constants of transports, fitted to published collectives of several nodes, in and out of sample.

The residual of a row is the logarithm of its projected over its measured time, under a soft L1 loss
of 12 %. No system weighs more than 12 rows, and rows with a doubt do not count. Few systems have
the same transport, so that each constant of a transport is a mean of its family (adapters that a
library drives through verbs; adapters behind a plug-in with a protocol of its own) times a factor
near 1. Priors hold the means near physical values and the factors near 1. Out of sample, each
system is projected with constants fitted to the others. With ``--constants`` the script prints them
as JSON.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from projector.arrays import Flags, Floats
from projector.units import MICROSECOND
from projector.validate import collectives
from projector.validate.collectives import is_exchange
from projector.validate.kind import Row

TABLE = Path(__file__).parent / "data" / "collectives_measured.csv"
SCALE = 0.12
"""Relative error from which the loss grows linearly, and the width of a prior's unit."""
MOST_ROWS = 12
SIZES = (("up to 4 MB", 4.2e6), ("to 256 MB", 256e6), ("from 256 MB", np.inf))
OTHER_LIBRARIES = ("MORI",)
"""Rows of libraries that are neither NCCL nor RCCL are shown and not fitted."""


class Constant(NamedTuple):
    """A constant of every transport: its field and its prior."""

    field: str
    verbs: float
    plug_in: float
    """Means of the families."""
    width: float
    """Of the logarithm of a family's mean."""
    own_width: float
    """Of the logarithm of a transport's factor."""


CONSTANTS = (
    Constant("nic_efficiency", 0.94, 0.92, 0.04, 0.04),
    Constant("nic_latency_us", 9.0, 55.0, 0.4, 0.3),
    Constant("collective_start_us", 10.0, 20.0, 0.6, 0.3),
    Constant("collective_chunk_us", 40.0, 200.0, 0.7, 0.35),
    Constant("collective_fill_limit_us", 200.0, 500.0, 0.7, 0.35),
)
"""Hops: NCCL's tuner has 5 to 14 us for trees between nodes (src/graph/tuning.cc); aws-ofi-nccl
reports 75 us for P4d and P5 and 35 us for later ones (src/platform-aws.cpp), between which the
measured ones do not differ in this way. Efficiency: verbs reach 48 to 49 of 50 GB/s. The priors of
the start and of the chunks are wide; they were chosen with the rows in sight."""

TRANSPORTS = {
    "infiniband_hdr": "verbs",
    "infiniband_ndr": "verbs",
    "infiniband_xdr": "verbs",
    "roce_v2": "verbs",
    "spectrum_x": "verbs",
    "pollara": "verbs",
    "efa_v1": "plug_in",
    "efa_v2": "plug_in",
    "efa_v3": "plug_in",
    "efa_v4": "plug_in",
    "tcpx": "plug_in",
    "tcpxo": "plug_in",
    "slingshot_11": "plug_in",
}
FAMILIES = ("verbs", "plug_in")
NUM = len(CONSTANTS)
MEANS = np.log([[getattr(each, family) for each in CONSTANTS] for family in FAMILIES])
PRIOR = np.concatenate([MEANS.ravel(), np.zeros(NUM * len(TRANSPORTS))])
WIDTH = np.concatenate(
    [
        np.tile([each.width for each in CONSTANTS], len(FAMILIES)),
        np.tile([each.own_width for each in CONSTANTS], len(TRANSPORTS)),
    ]
)


def main() -> None:
    """Print constants, then errors in sample and with whole systems left out."""
    rows = _rows()
    read = collectives.read_joined(rows)
    rows = [rows[position] for position in read.positions]
    systems = np.array([row["system"] or "" for row in rows])
    fitted_rows = np.array([_counts(row) for row in rows])
    transports = np.array([read.networks[record].transport for record in read.fabric])
    fitted_rows &= transports != ""
    weight = _weights(systems, fitted_rows)
    fitted = _fit(read, weight)
    if "--constants" in sys.argv[1:]:
        print(json.dumps(_rounded(fitted, set(transports[fitted_rows])), indent=1))
        return
    for name, values in _constants(fitted).items():
        print(f"{name:16} " + "  ".join(f"{value:8.3g}" for value in values))
    held = np.full(len(rows), np.nan)
    for system in sorted(set(systems[fitted_rows])):
        out = systems == system
        others = np.where(out, 0.0, weight)
        held[out] = _predict(read, _fit(read, others, start=fitted, steps=10))[out]
    shown = {"in sample": _predict(read, fitted), "left out": held}
    for name, kept in _groups(rows, fitted_rows).items():
        if kept.any():
            cells = [_error(time_s[kept], read.measured_s[kept]) for time_s in shown.values()]
            print(f"{name:50} {kept.sum():4} " + "  ".join(cells))


def _rows() -> list[Row]:
    with TABLE.open(newline="", encoding="utf-8") as stream:
        rows: list[Row] = list(csv.DictReader(stream))
    return [
        row
        for row in rows
        if row["n_nodes"] not in {"", "1"}
        and not is_exchange(row)
        and not collectives.KIND.why_not_eligible(row)
    ]


def _counts(row: Row) -> bool:
    return not row["doubt"] and not (row["library"] or "").startswith(OTHER_LIBRARIES)


def _weights(systems: Sequence[str] | np.ndarray, counts: Flags) -> Floats:
    number = Counter(np.asarray(systems)[counts])
    share = [min(1.0, MOST_ROWS / number[system]) ** 0.5 if number[system] else 0.0
             for system in systems]  # fmt: skip
    return np.where(counts, share, 0.0)


def _fit(
    read: collectives.Joined, weight: Floats, start: Floats = PRIOR, steps: int = 30
) -> Floats:
    counts = weight > 0.0

    def residual(point: Floats) -> Floats:
        error = np.log(_predict(read, point) / read.measured_s)[counts] * weight[counts] / SCALE
        soft = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + error**2) - 1.0))
        return np.concatenate([soft, (point - PRIOR) / WIDTH])

    return np.asarray(least_squares(residual, start, max_nfev=steps).x)


def _constants(point: Floats) -> dict[str, Floats]:
    """Return the constants of each transport in the order of `CONSTANTS`."""
    means = point[: NUM * len(FAMILIES)].reshape(len(FAMILIES), NUM)
    factors = point[NUM * len(FAMILIES) :].reshape(len(TRANSPORTS), NUM)
    found = {}
    for (name, family), factor in zip(TRANSPORTS.items(), factors, strict=True):
        values = np.exp(means[FAMILIES.index(family)] + factor)
        values[0] = min(values[0], 0.99)
        found[name] = values
    return found


def _predict(read: collectives.Joined, point: Floats) -> Floats:
    constants = _constants(point)
    fabrics = read.fabrics.copy()
    for record, network in zip(fabrics, read.networks, strict=True):
        if network.transport:
            efficiency, hop_us, start_us, chunk_us, limit_us = constants[network.transport]
            record["nic_bytes_per_s"] *= efficiency / network.nic_efficiency
            record["nic_latency_s"] = hop_us * MICROSECOND
            record["network_start_s"] = start_us * MICROSECOND
            record["network_chunk_s"] = chunk_us * MICROSECOND
            record["network_fill_limit_s"] = limit_us * MICROSECOND
    return read.times_s(fabrics)


def _rounded(point: Floats, measured: set[str]) -> dict[str, dict[str, object]]:
    return {
        name: {"measured": name in measured}
        | {each.field: float(f"{value:.3g}") for each, value in zip(CONSTANTS, values, strict=True)}
        for name, values in _constants(point).items()
    }


def _groups(rows: Sequence[Row], counts: Flags) -> dict[str, Flags]:
    size = np.array([float(row["message_bytes"] or 0.0) for row in rows])
    amd = np.array(["MI" in (row["gpu"] or "") for row in rows])
    operation = np.array([row["collective"] for row in rows])
    system = np.array([f"{row['system']}"[:38] for row in rows])
    doubt = np.array([bool(row["doubt"]) for row in rows])
    groups = {"all": counts}
    for vendor, of_vendor in (("NVIDIA", ~amd), ("AMD", amd)):
        lower = 0.0
        for label, upper in SIZES:
            groups[f"{vendor} {label}"] = counts & of_vendor & (size > lower) & (size < upper)
            lower = upper
    groups |= {name: counts & (operation == name) for name in sorted(set(operation))}
    groups |= {name: counts & (system == name) for name in sorted(set(system))}
    groups |= {f"not fitted: {name}": ~counts & (system == name) for name in sorted(set(system))}
    return groups | {"with a doubt": doubt}


def _error(time_s: Floats, measured_s: Floats) -> str:
    if np.isnan(time_s).all():
        return ""
    ratio = time_s / measured_s
    error = 100.0 * np.abs(ratio - 1.0)
    bias = np.exp(np.nanmean(np.log(ratio)))
    return f"{np.nanmedian(error):5.1f} /{np.nanpercentile(error, 90):5.1f} ({bias:.2f})"


if __name__ == "__main__":
    main()
