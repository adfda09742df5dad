"""What Linux says of the machine that a worker runs on: its clock, and memory that is left."""

import re
from pathlib import Path
from typing import NamedTuple

LEFT_SHARE = 0.9
"""Of the memory that is free, what a worker may take before an allocation fails."""


class Memory(NamedTuple):
    """Bytes of main memory; 0 where the system does not say."""

    total: int
    available: int


def clock_mhz() -> float | None:
    """Return the fastest clock of all cores at this moment, None where Linux does not say.

    In a virtual machine it is often that which the hypervisor states, whatever the load.
    """
    clocks = [float(text) for text in re.findall(r"cpu MHz\s*:\s*([\d.]+)", _text("/proc/cpuinfo"))]
    return max(clocks, default=None)


def memory_bytes() -> Memory:
    """Return main memory, or what a container may use of it."""
    text = _text("/proc/meminfo")
    total, available = (
        int(found[1]) * 1024 if (found := re.search(rf"{name}:\s*(\d+) kB", text)) else 0
        for name in ("MemTotal", "MemAvailable")
    )
    limit = _text("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit() and 0 < int(limit) < total:
        used = _text("/sys/fs/cgroup/memory.current").strip()
        left = int(limit) - (int(used) if used.isdigit() else 0)
        return Memory(int(limit), max(0, min(available, left)))
    return Memory(total, available)


def limit_memory() -> None:
    """Let allocations beyond what is free fail in this process, instead of having it killed.

    Linux promises more memory than there is, and ends a process that uses what it was promised.
    """
    try:
        import resource
    except ImportError:
        return
    available = memory_bytes().available
    held = re.search(r"VmData:\s*(\d+) kB", _text("/proc/self/status"))
    if not available or held is None:
        return
    limit = int(held[1]) * 1024 + int(LEFT_SHARE * available)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    for given in (soft, hard):
        if given != resource.RLIM_INFINITY:
            limit = min(limit, given)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError:
        return ""
