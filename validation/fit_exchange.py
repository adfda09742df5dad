"""Fit of the exchange between experts to the published DeepEP tables of one and several nodes.

Each family of devices has six constants for a dispatch and six for a combine inside a node. Seven
more, from Hopper alone, describe several nodes. Logarithmic errors, soft-L1, and a prior on every
constant, in units of its own spread. Printed are the constants and the errors in sample, with whole
shapes, devices and node counts left out, and on the rows that carry a doubt, which are never
fitted.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from projector.arrays import Floats
from projector.config.cluster import ClusterConfig
from projector.kernels.moe_exchange import COMBINE, DISPATCH
from projector.lower.fabrics import exchange_record, fabric_record
from projector.validate.collectives import Routing, exchange_times_s, read_exchange
from projector.validate.names import device_of

TABLE = Path(__file__).parent / "data" / "collectives_measured.csv"
FAMILIES = {"Hopper": ("h100", "h200"), "Blackwell": ("b200", "gb200")}
OPERATIONS = {"dispatch": DISPATCH, "combine": COMBINE}
NOISE = 0.05
"""Spread of a row around the model."""

BOTH = tuple(OPERATIONS.values())


class Constant(NamedTuple):
    """One fitted number: a field of the record, for one operation or for both."""

    field: str
    unit: float
    centre: float
    spread: float
    """Of the logarithm around the centre, in the unit."""
    ops: tuple[int, ...]
    least: float = 0.0


def _inside(op: int) -> tuple[Constant, ...]:
    return (
        Constant("start_s", 1e-6, 30.0, 0.5, (op,)),
        Constant("scan_s", 1e-9, 250.0, 0.7, (op,)),
        Constant("message_s", 1e-9, 50.0, 0.7, (op,)),
        Constant("channel_bytes_per_s", 1e9, 60.0, 0.7, (op,)),
        Constant("link_efficiency", 1.0, 0.7, 0.25, (op,)),
        Constant("first_bytes_per_s", 1e9, 5.0, 0.7, (op,)),
    )


BEYOND = (
    Constant("network_start_s", 1e-6, 15.0, 0.5, (DISPATCH,)),
    Constant("network_start_s", 1e-6, 15.0, 0.5, (COMBINE,)),
    Constant("forward_slowdown", 1.0, 1.2, 0.3, (DISPATCH,), 1.0),
    Constant("forward_slowdown", 1.0, 1.2, 0.3, (COMBINE,), 1.0),
    Constant("doubling_s", 1e-6, 3.0, 0.7, BOTH),
    Constant("adapter_share", 1.0, 1.03, 0.05, BOTH),
    Constant("chunk_tokens", 1.0, 12.0, 0.7, BOTH),
)


class Point(NamedTuple):
    """One measured exchange."""

    device: str
    nodes: int
    ranks: int
    local: int
    routing: Routing
    measured_s: float
    doubt: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """What of a layer an exchange sees."""
        return self.routing.hidden, self.routing.topk, self.routing.experts


def main() -> None:
    """Print constants and errors."""
    points = _points()
    for family, devices in FAMILIES.items():
        record = exchange_record(ClusterConfig.parse({"device": devices[0]}))
        for operation, op in OPERATIONS.items():
            inside = [
                point
                for point in points
                if point.device in devices and point.nodes == 1 and point.routing.op == op
            ]
            constants = _inside(op)
            start, record = record, _fitted(inside, record, constants)
            print(f"\n{family}, {operation} inside a node, {len(inside)} rows")
            _print_constants(record, constants)
            _print_errors("in sample", _errors(inside, record))
            _print_left_out(inside, start, constants, "shapes left out", lambda p: p.shape)
            _print_left_out(inside, start, constants, "devices left out", lambda p: p.device)
        if family == "Hopper":
            hopper = record
    beyond = [point for point in points if point.nodes > 1]
    clean = [point for point in beyond if not point.doubt]
    record = _fitted(clean, hopper, BEYOND)
    print(f"\nHopper, several nodes, {len(clean)} rows")
    _print_constants(record, BEYOND)
    for operation, op in OPERATIONS.items():
        own = [point for point in clean if point.routing.op == op]
        _print_errors(f"{operation}, in sample", _errors(own, record))
        doubtful = [point for point in beyond if point.doubt and point.routing.op == op]
        _print_errors(f"{operation}, with a doubt", _errors(doubtful, record))
    _print_left_out(clean, hopper, BEYOND, "node counts left out", lambda p: p.nodes)


def _points() -> list[Point]:
    with TABLE.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if "DeepEP normal" in row["collective"]]
    points = []
    for row in rows:
        device, nodes = device_of(row["gpu"]), int(row["n_nodes"])
        local = ClusterConfig.parse({"device": device}).network.gpus_per_node
        routing, measured_s, _ = read_exchange(row, nodes * local, local)
        points.append(Point(device, nodes, nodes * local, local, routing, measured_s, row["doubt"]))
    return points


def _errors(points: Sequence[Point], record: np.ndarray) -> Floats:
    """Return the logarithm of projected over measured time of each point."""
    devices = sorted({point.device for point in points})
    fabrics = np.concatenate(
        [fabric_record(ClusterConfig.parse({"device": device})) for device in devices]
    )
    time_s = exchange_times_s(
        [point.routing for point in points],
        np.array([point.ranks for point in points]),
        np.array([point.local for point in points]),
        np.array([devices.index(point.device) for point in points]),
        fabrics,
        np.concatenate([record] * len(devices)),
    )
    return np.log(time_s / np.array([point.measured_s for point in points]))


def _fitted(
    points: Sequence[Point], start: np.ndarray, constants: Sequence[Constant]
) -> np.ndarray:
    """Return ``start`` with the constants fitted to the points."""
    centre = np.log([constant.centre for constant in constants])
    spread = np.array([constant.spread for constant in constants])
    with np.errstate(divide="ignore"):
        least = np.log([constant.least for constant in constants])

    def record_of(logs: Floats) -> np.ndarray:
        record = start.copy()
        for constant, log in zip(constants, logs, strict=True):
            for op in constant.ops:
                record[0][constant.field][op] = np.exp(log) * constant.unit
        return record

    def residuals(logs: Floats) -> Floats:
        errors = _errors(points, record_of(logs)) / NOISE
        return np.concatenate([errors, (logs - centre) / spread])

    fit = least_squares(residuals, centre, bounds=(least, np.inf), loss="soft_l1")
    return record_of(fit.x)


def _print_left_out(
    points: Sequence[Point],
    start: np.ndarray,
    constants: Sequence[Constant],
    label: str,
    group_of: Callable[[Point], object],
) -> None:
    held = []
    for group in sorted({group_of(point) for point in points}, key=str):
        kept = [point for point in points if group_of(point) != group]
        left = [point for point in points if group_of(point) == group]
        held.append(_errors(left, _fitted(kept, start, constants)))
    _print_errors(label, np.concatenate(held))


def _print_errors(label: str, log_errors: Floats) -> None:
    apart = 100.0 * np.abs(np.expm1(log_errors))
    print(
        f"  {label:22} {np.median(apart):5.1f} / {np.percentile(apart, 90):5.1f} %,"
        f" ratio {np.exp(np.mean(log_errors)):.2f}"
    )


def _print_constants(record: np.ndarray, constants: Sequence[Constant]) -> None:
    values = [
        f"{constant.field} {record[0][constant.field][constant.ops[0]] / constant.unit:.3g}"
        for constant in constants
    ]
    print("  " + ", ".join(values))


if __name__ == "__main__":
    main()
