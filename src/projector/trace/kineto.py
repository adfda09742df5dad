"""Traces of Kineto, the profiler of PyTorch, in the JSON of Chrome's traces."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.trace.events import Events, Link, RankTrace
from projector.trace.kineto_events import COLUMNS, Arrow, Collector, Found, plain_detail

US_PS = 1_000_000
NS_PS = 1_000


def read_kineto(path: Path) -> RankTrace:
    """Return the trace of one rank.

    Parameters
    ----------
    path : Path
        JSON, plain or gzip.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        document = json.load(file)
    collector = Collector()
    collector.take(document.pop("traceEvents"))
    return assemble(path, document, collector.found)


def assemble(path: Path, head: Mapping[str, Any], found: Found) -> RankTrace:
    """Return the trace that rows and what stood around them make."""
    rows = np.frombuffer(found.rows, np.int64).reshape(-1, len(COLUMNS))
    times_us = np.frombuffer(found.times_us, np.float64).reshape(-1, 2)
    other = head.get("otherData") or {}
    grid_ps = int(other.get("time_grid_ps", NS_PS))
    zero_us = int(times_us[:, 0].min() // 1) if len(times_us) else 0
    columns = {name: rows[:, i].copy() for i, name in enumerate(COLUMNS)}
    events = Events(
        start_ps=exact_ps(times_us[:, 0], grid_ps, zero_us),
        duration_ps=exact_ps(times_us[:, 1], grid_ps),
        **columns,
    )
    base_ns = int(head.get("baseTimeNanoseconds", 0))
    distributed = head.get("distributedInfo") or {}
    devices = tuple(str(d.get("name", "")) for d in head.get("deviceProperties", ()))
    return RankTrace(
        path=str(path),
        format="kineto",
        rank=int(distributed.get("rank", -1)),
        world_size=int(distributed.get("world_size", 0)),
        zero_ns=base_ns + zero_us * NS_PS,
        names=tuple(found.names),
        events=events,
        details=tuple(map(plain_detail, found.facts)),
        links=_links(found.arrows, grid_ps, zero_us),
        groups={
            str(group["pg_name"]): tuple(group.get("ranks", ()))
            for group in distributed.get("pg_config", ())
        },
        devices=devices,
        vendor=_vendor(head),
        skipped=dict(found.skipped),
    )


def exact_ps(times_us: Floats, grid_ps: int, zero_us: int = 0) -> Ints:
    """Return stamps in ps after a zero, each on the grid of its clock.

    The fraction is split off before anything is scaled: the nearest float64 of a stamp of 4e12 us
    is within 0.0005 us of it, so the nearest ns is the right one.
    """
    whole = np.floor(times_us)
    steps = np.rint((times_us - whole) * (US_PS / grid_ps)).astype(np.int64)
    return (whole.astype(np.int64) - zero_us) * US_PS + steps * grid_ps


def _links(arrows: list[Arrow], grid_ps: int, zero_us: int) -> tuple[Link, ...]:
    stamps = exact_ps(np.array([a.ts_us for a in arrows], np.float64), grid_ps, zero_us)
    begun = {a.id: i for i, a in enumerate(arrows) if a.begins}
    return tuple(
        Link(arrows[begun[a.id]].thread, int(stamps[begun[a.id]]), a.thread, int(stamps[i]))
        for i, a in enumerate(arrows)
        if not a.begins and a.id in begun
    )


def _vendor(head: Mapping[str, Any]) -> str:
    if "cupti_version" in head or "cuda_runtime_version" in head:
        return "NVIDIA"
    if "roctracer_version" in head or "hip_runtime_version" in head:
        return "AMD"
    names = " ".join(str(d.get("name", "")) for d in head.get("deviceProperties", ()))
    return next((vendor for vendor in ("NVIDIA", "AMD") if vendor in names), "")
