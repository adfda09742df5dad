"""What a row says of the benchmark that timed a collective: its loop, and a forced algorithm.

What a loop adds to a collective belongs to the row. A device starts a collective from a full queue,
as a training step does.
"""

import re
from dataclasses import dataclass

from projector.units import MICROSECOND
from projector.validate.kind import Row


@dataclass(frozen=True, slots=True)
class Loop:
    """How a benchmark calls the library, and what that costs."""

    name: str
    """Shown with the row."""

    rows: re.Pattern[str]
    """Found in the source or the library of its rows."""

    added_us: float = 0.0
    """Time of every call, whatever it does."""

    least_us: tuple[tuple[str, float], ...] = ()
    """Vendor, and what one thread takes to launch a call on one of the devices that it drives."""


LOOPS = (
    # stas00/ml-engineering network/benchmarks/all_reduce_bench.py says that a call alone on an idle
    # device adds 20 to 30 us of the host; its tables are older than the queue that hides them.
    # Primus' rccl_bench.py reads the clock of the host around a call and a synchronisation. 21 us
    # is what the 20 rows of a node of A100 below 512 KiB lie above a queued call.
    Loop(
        "a call of PyTorch on an idle device adds 21 us",
        re.compile(r"all_reduce_bench|Real network throughput|Primus benchmark rccl"),
        added_us=21.0,
    ),
    # Benchmarks/NVIDIA/NCCLBandwidth.py of Azure/AI-benchmarking-guide runs all_reduce_perf with
    # -g, so that one thread launches on all devices of a node, one after the other. Rows up to
    # 8 KiB are flat: 3.2 us a device on H100, 3.8 on H200, 4.0 on GB300 (half as many devices, half
    # the time), 6.0 on MI300X.
    Loop(
        "one thread launches on every device",
        re.compile(r"AI-benchmarking-guide"),
        least_us=(("nvidia", 3.7), ("amd", 6.0)),
    ),
)
"""Loops whose cost shows in their rows. Others queue calls from one process or thread a device."""

_ALGORITHMS = {"ring": "ring", "tree": "tree", "nvls": "in_network"}
_FORCED = re.compile(
    r"NCCL_ALGO=(Ring|Tree|NVLS)\b|NVLS disabled \((ring)\)|^NCCL [\d.]+ (NVLS|Ring)\b"
)


def loop_of(row: Row) -> Loop | None:
    """Return the loop of a row's benchmark, None where it adds nothing."""
    text = f"{row.get('source') or ''}; {row.get('library') or ''}"
    return next((loop for loop in LOOPS if loop.rows.search(text)), None)


def with_loop_s(time_s: float, loop: Loop | None, vendor: str, ranks: int) -> float:
    """Return the time that the loop shows for a collective of ``ranks`` in one node."""
    if loop is None:
        return time_s
    least_us = dict(loop.least_us).get(vendor, 0.0) * ranks
    return max(time_s + loop.added_us * MICROSECOND, least_us * MICROSECOND)


def forced_algorithm(row: Row) -> str:
    """Return the only algorithm that a row's run was allowed; empty where the library chose."""
    for column in ("library", "notes"):
        match = _FORCED.search(row.get(column) or "")
        if match:
            return _ALGORITHMS[next(filter(None, match.groups())).lower()]
    return ""
