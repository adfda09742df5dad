"""Constants of transports, fitted to published collectives of several nodes, in and out of sample.

The residual of a row is the logarithm of its projected over its measured time, under a soft L1 loss
of 12 %. No source weighs more than 12 rows, and rows with a doubt do not count. Few systems have
the same transport, so that each constant of a transport is a mean of its family (adapters that a
library drives through verbs; adapters behind a plug-in with a protocol of its own) times a factor
near 1. Priors hold the means near what libraries state and the factors near 1. Out of sample, rows
are projected with constants fitted, from the priors on, to those of other systems, sources,
transports or numbers of nodes. With ``--constants`` the script prints the constants as JSON.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from projector.arrays import Flags, Floats, Ints, Records
from projector.config.network import Network
from projector.units import MICROSECOND
from projector.validate import collectives
from projector.validate.collectives import is_exchange
from projector.validate.kind import Row, read_cases

TABLE = Path(__file__).parent / "data" / "collectives_measured.csv"
SCALE = 0.12
"""Relative error from which the loss grows linearly, and the width of a prior's unit."""
MOST_ROWS = 12
SIZES = (("up to 4 MB", 4.2e6), ("to 256 MB", 256e6), ("from 256 MB", np.inf))
OTHER_LIBRARIES = ("MORI",)
"""Rows of libraries that are neither NCCL nor RCCL are shown and not fitted."""


SETTLED_DOUBT = "instance type to be checked"
"""Of rows of H100 over EFA, which P5 alone has: P5en has H200."""


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
    Constant("nic_latency_us", 17.0, 50.0, 0.4, 0.3),
    Constant("nic_flag_latency_us", 6.0, 20.0, 0.15, 0.15),
    Constant("nic_flag_traffic", 8.0, 8.0, 0.4, 0.01),
    Constant("collective_start_us", 4.0, 10.0, 0.4, 0.3),
    Constant("collective_chunk_us", 40.0, 200.0, 0.7, 0.35),
    Constant("collective_fill_limit_us", 200.0, 500.0, 0.7, 0.35),
)
"""Hops of a tree between nodes: 14 us without flags and 5 with them in NCCL's tuner, 20 to 25 and
10 in RCCL's (src/graph/tuning.cc). Behind a plug-in, aws-ofi-nccl tells NCCL 75 us more a hop on
P4d and P5 and 35 on later ones (src/platform-aws.cpp); the measured hops do not differ in this way.
Traffic with flags: across nodes NCCL's tuner lets LL reach 45 and 35 GB/s on Hopper and 22.5 and 19
on Ampere, an eighth of the adapters of a node. Start: in the tuners one of several nodes takes what
one of one node takes. Efficiency: verbs reach 48 to 49 of 50 GB/s. The priors of plug-ins and of
chunks are wide; they were chosen with the rows in sight. Hardly a row is small enough to tell a hop
with flags, so that its prior is narrow; with flags, rows of P5 with a doubt have 21 us."""

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
RCCL = {"nic_latency_us": 22.0, "nic_flag_latency_us": 10.0}
"""What RCCL's tuner states, for the adapter that it alone drives."""
FACTORS = {
    name: [np.log(RCCL.get(each.field, each.verbs) / each.verbs) for each in CONSTANTS]
    for name in ("pollara",)
}
PRIOR = np.concatenate([MEANS.ravel(), *(FACTORS.get(name, np.zeros(NUM)) for name in TRANSPORTS)])
WIDTH = np.concatenate(
    [
        np.tile([each.width for each in CONSTANTS], len(FAMILIES)),
        np.tile([each.own_width for each in CONSTANTS], len(TRANSPORTS)),
    ]
)


class LeftOut(NamedTuple):
    """Rows with the times that constants give which have not seen them."""

    rows: list[Row]
    fitted: Flags
    """Rows that count in fits."""
    measured_s: Floats
    times_s: dict[str, Floats]
    """By what is left out with a row, all rows of the same system, say; first in sample."""


KEYS: dict[str, Callable[[Row, str], str]] = {
    "system": lambda row, _: row["system"] or "",
    "source": lambda row, _: source_of(row),
    "transport": lambda _, transport: transport,
    "nodes": lambda row, _: row["n_nodes"] or "",
}
"""What is left out, with its value for a row and the transport of its network."""


def main() -> None:
    """Print constants, then errors in sample and left out."""
    if "--constants" in sys.argv[1:]:
        read, rows, transports, counts = _read()
        fitted = _fit(read, _weights([source_of(row) for row in rows], counts))
        print(json.dumps(_rounded(fitted, set(transports[counts])), indent=1))
        return
    found = left_out()
    print(
        f"{'median / p90 of errors in %, and bias':55} "
        + "  ".join(f"{name:18}" for name in found.times_s)
    )
    for name, kept in _groups(found.rows, found.fitted).items():
        if kept.any():
            times = found.times_s.values()
            cells = [_error(time_s[kept], found.measured_s[kept]) for time_s in times]
            print(f"{name:50} {kept.sum():4} " + "  ".join(cells))


def left_out(keys: Sequence[str] = tuple(KEYS)) -> LeftOut:
    """Project the rows of several nodes, in sample and by constants of the other rows."""
    read, rows, transports, counts = _read()
    weight = _weights([source_of(row) for row in rows], counts)
    times = {"in sample": _predict(read, _fit(read, weight))}
    for name in keys:
        values = np.array([KEYS[name](*each) for each in zip(rows, transports, strict=True)])
        times[name] = np.full(len(rows), np.nan)
        for value in sorted(set(values[counts])):
            out = values == value
            times[name][out] = _predict(read, _fit(read, np.where(out, 0.0, weight)))[out]
    return LeftOut(rows, counts, read.measured_s, times)


def source_of(row: Row) -> str:
    """Return the repository or site that published a row."""
    return (row["source"] or " ").split(" ")[0]


class Joined(NamedTuple):
    """Rows read once, so that they can be timed with other records of their links."""

    positions: tuple[int, ...]
    """Positions of the rows that could be read."""
    measured_s: Floats
    fabric: Ints
    """Each row's record among `fabrics`."""
    fabrics: Records
    networks: tuple[Network, ...]
    times_s: Callable[[Records], Floats]
    """Projected times with changed records."""


def read_joined(rows: Sequence[Row]) -> Joined:
    """Read rows, to be timed with other constants of a network."""
    parsed = read_cases(rows, collectives.read_case)
    cases = [case for case in parsed if not isinstance(case, str)]
    clusters, fabric = collectives.clusters_of(cases)
    return Joined(
        tuple(i for i, case in enumerate(parsed) if not isinstance(case, str)),
        np.array([case.measured for case in cases]) * MICROSECOND,
        fabric,
        collectives.fabrics_of(clusters),
        tuple(cluster.network for cluster in clusters.values()),
        lambda fabrics: collectives.times_s(cases, fabrics=fabrics),
    )


def _read() -> tuple[Joined, list[Row], np.ndarray, Flags]:
    """Return the rows of several nodes, their transports, and which of them count."""
    rows = _rows()
    read = read_joined(rows)
    rows = [rows[position] for position in read.positions]
    transports = np.array([read.networks[record].transport for record in read.fabric])
    return read, rows, transports, np.array([_counts(row) for row in rows]) & (transports != "")


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
    doubt = row["doubt"] and not (row["doubt"] or "").startswith(SETTLED_DOUBT)
    return not doubt and not (row["library"] or "").startswith(OTHER_LIBRARIES)


def _weights(sources: Sequence[str], counts: Flags) -> Floats:
    number = Counter(np.array(sources)[counts])
    share = [min(1.0, MOST_ROWS / max(1, number[source])) ** 0.5 for source in sources]
    return np.where(counts, share, 0.0)


def _fit(read: Joined, weight: Floats, steps: int = 25) -> Floats:
    """Return the point of least loss; a transport without a row stays at its prior."""
    counts = weight > 0.0
    used = {read.networks[record].transport for record in read.fabric[counts]}
    moves = np.repeat([True] * len(FAMILIES) + [name in used for name in TRANSPORTS], NUM)

    def whole(moved: Floats) -> Floats:
        point = PRIOR.copy()
        point[moves] = moved
        return point

    def residual(moved: Floats) -> Floats:
        error = np.log(_predict(read, whole(moved)) / read.measured_s)[counts]
        error *= weight[counts] / SCALE
        soft = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + error**2) - 1.0))
        return np.concatenate([soft, (moved - PRIOR[moves]) / WIDTH[moves]])

    # The faster algorithm counts, so that derivatives jump: steps are not too small.
    best = least_squares(residual, PRIOR[moves], max_nfev=steps, diff_step=3e-3)
    return whole(np.asarray(best.x))


def _constants(point: Floats) -> dict[str, Floats]:
    """Return the constants of each transport in the order of `CONSTANTS`."""
    means = point[: NUM * len(FAMILIES)].reshape(len(FAMILIES), NUM)
    factors = point[NUM * len(FAMILIES) :].reshape(len(TRANSPORTS), NUM)
    found = {}
    for (name, family), factor in zip(TRANSPORTS.items(), factors, strict=True):
        values = np.exp(means[FAMILIES.index(family)] + factor)
        values[0] = min(values[0], 0.99)
        values[2] = min(values[1], values[2])
        found[name] = values
    return found


def _predict(read: Joined, point: Floats) -> Floats:
    constants = _constants(point)
    fabrics = read.fabrics.copy()
    for record, network in zip(fabrics, read.networks, strict=True):
        if network.transport:
            efficiency, hop_us, flag_us, traffic, *rest = constants[network.transport]
            start_us, chunk_us, limit_us = rest
            record["nic_bytes_per_s"] *= efficiency / network.nic_efficiency
            record["nic_latency_s"] = hop_us * MICROSECOND
            record["nic_flag_latency_s"] = flag_us * MICROSECOND
            record["network_flag_traffic"] = max(1.0, traffic)
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
