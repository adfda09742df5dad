"""What the command line says about transfers in a node, as plain values for JSON."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.errors import ConfigError
from projector.topology.build import Topology
from projector.topology.node import End
from projector.topology.routes import Choice
from projector.topology.transfers import (
    SWEEP_BYTES,
    Way,
    check_accesses,
    find_way,
    serving_engines,
    shared_rates,
)
from projector.units import GB, MICROSECOND


def show_transfer(
    topology: Topology,
    source: str,
    target: str,
    num_bytes: float,
    *,
    engine: str | None = None,
    both_directions: bool = False,
    accesses: int = 1,
    choice: Choice = "widest",
    sweep: bool = False,
) -> dict[str, Any]:
    """Return a transfer by one engine or by every engine that works there.

    Parameters
    ----------
    topology : Topology
        The node.
    source, target : str
        Number of a device, ``host``, or the name of a NUMA domain.
    num_bytes : float
        Message.
    engine : str, optional
        The only engine; else all, of which the fastest comes first.
    both_directions, accesses, choice
        As in `projector.topology.transfers.transfer_time`.
    sweep : bool
        Whether to show other sizes, and the sizes at which the fastest engine changes.
    """
    check_accesses(accesses)
    first, last = end_named(source), end_named(target)
    names = [engine] if engine is not None else serving_engines(topology, first, last)
    if not names:
        msg = f"{topology.node.name} describes no engine between {source} and {target}"
        raise ConfigError(msg, key="engine", value=None, allowed="an engine of the node file")
    ways = [
        find_way(topology, first, last, name, both_directions=both_directions, choice=choice)
        for name in names
    ]
    rows = [
        _row(way, num_bytes, both_directions=both_directions, accesses=accesses) for way in ways
    ]
    rows.sort(key=lambda row: float(row["time_us"]))
    shown = {
        "node": topology.node.name,
        "from": ways[0].route.path[0],
        "to": ways[0].route.path[-1],
        "bytes": int(num_bytes),
        "both_directions": both_directions,
        "accesses": accesses,
        **rows[0],
        "engines": rows,
    }
    if sweep:
        shown |= _swept(ways, both_directions=both_directions, accesses=accesses)
    return shown


def show_sharing(
    topology: Topology,
    flows: Sequence[tuple[str, str]],
    *,
    engine: str | None = None,
    both_directions: bool = False,
) -> dict[str, Any]:
    """Return the rates of large messages that move at the same time, for one engine or all."""
    ends = [(end_named(first), end_named(last)) for first, last in flows]
    serving = [serving_engines(topology, *flow) for flow in ends]
    common = [name for name in serving[0] if all(name in each for each in serving)]
    names = [engine] if engine is not None else common
    if not names:
        between = ", ".join(f"{first}-{last}" for first, last in flows)
        msg = f"no engine of {topology.node.name} serves all of {between}"
        raise ConfigError(msg, key="to", value=between, allowed="flows of one engine")
    found = []
    for name in names:
        rates = shared_rates(topology, ends, engine=name, both_directions=both_directions)
        alone = [
            find_way(topology, *flow, name, both_directions=both_directions).gb_per_s
            for flow in ends
        ]
        total = sum(rates) * (2.0 if both_directions else 1.0)
        each = [
            {"from": first, "to": last, "gb_per_s": rate, "alone_gb_per_s": single}
            for (first, last), rate, single in zip(flows, rates, alone, strict=True)
        ]
        found.append({"engine": name, "total_gb_per_s": total, "flows": each})
    return {"node": topology.node.name, "both_directions": both_directions, "engines": found}


def end_named(text: str) -> End:
    """Return an end as the command line names it: a number, ``host`` or a name."""
    return int(text) if text.isascii() and text.isdigit() else text


def _row(way: Way, num_bytes: float, *, both_directions: bool, accesses: int) -> dict[str, Any]:
    seconds = float(way.seconds(num_bytes, accesses=accesses))
    rate = num_bytes / seconds / GB if seconds else 0.0
    # A copy within a device reads and writes the same memory.
    directions = 2.0 if both_directions or way.place == "local" else 1.0
    return {
        "engine": way.engine,
        "what": way.numbers.what,
        "time_us": seconds / MICROSECOND,
        "gb_per_s": rate,
        "total_gb_per_s": rate * directions,
        "peak_gb_per_s": way.gb_per_s,
        "low_gb_per_s": way.low_gb_per_s,
        "high_gb_per_s": way.high_gb_per_s,
        "link_gb_per_s": way.route.gb_per_s if np.isfinite(way.route.gb_per_s) else None,
        "latency_us": way.latency_us,
        "path": list(way.route.path),
        "hops": way.route.hops,
        "compute_units": way.numbers.compute_units,
    }


def _swept(ways: Sequence[Way], *, both_directions: bool, accesses: int) -> dict[str, Any]:
    sizes = []
    for size in SWEEP_BYTES:
        rows = [
            _row(way, float(size), both_directions=both_directions, accesses=accesses)
            for way in ways
        ]
        fastest = min(rows, key=lambda row: float(row["time_us"]))
        sizes.append(
            {
                "bytes": int(size),
                **{key: fastest[key] for key in ("engine", "time_us", "gb_per_s")},
                "engines": {
                    row["engine"]: {key: row[key] for key in ("time_us", "gb_per_s")}
                    for row in rows
                },
            }
        )
    return {"sizes": sizes, "crossovers": _crossovers(ways, accesses)}


def _crossovers(ways: Sequence[Way], accesses: int) -> list[dict[str, Any]]:
    """Return the sizes at which the fastest engine changes; equal engines do not change."""
    fine = 2.0 ** np.arange(8.0, 33.001, 1.0 / 64.0)
    times: Floats = np.stack([way.seconds(fine, accesses=accesses) for way in ways])
    least = times.min(axis=0)
    found: list[dict[str, Any]] = []
    current = int(np.argmin(times[:, 0]))
    for column in range(1, len(fine)):
        if times[current, column] <= least[column] * (1.0 + 1e-9):
            continue
        following = int(np.argmin(times[:, column]))
        size = float(fine[column - 1])
        found.append(
            {"bytes": round(size), "from": ways[current].engine, "to": ways[following].engine}
        )
        current = following
    return found
