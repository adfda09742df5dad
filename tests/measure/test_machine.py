"""What Linux says of the machine, and that a worker that wants too much fails instead of dying."""

import subprocess
import sys

import pytest

from projector.measure import devices

TOO_MUCH = """
import numpy as np
from projector.measure.devices import limit_memory, memory_bytes
limit_memory()
half = int(0.6 * memory_bytes().available)
held = [np.empty(half, np.int8)]
try:
    held.append(np.empty(half, np.int8))
except MemoryError:
    print("refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits")
def test_memory_beyond_what_is_free_is_refused():
    # The pages are never written, so that nothing is really taken.
    run = subprocess.run(
        [sys.executable, "-c", TOO_MUCH], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "refused"


def test_the_machine_has_memory():
    found = devices.memory_bytes()
    assert 0 <= found.available <= found.total


def test_a_container_may_use_less_than_the_machine_has(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 8000 kB\nMemAvailable: 6000 kB\n",
        "/sys/fs/cgroup/memory.max": "3072000\n",
        "/sys/fs/cgroup/memory.current": "1024000\n",
    }
    monkeypatch.setattr(devices, "text_of", lambda path: files.get(str(path), "").strip())
    assert devices.memory_bytes() == (3_072_000, 2_048_000)
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert devices.memory_bytes() == (8_192_000, 6_144_000)
    files.clear()
    assert devices.memory_bytes() == (0, 0)


def test_the_fastest_core_counts(monkeypatch):
    text = "model name\t: A\ncpu MHz\t\t: 2000.5\nmodel name\t: A\ncpu MHz\t\t: 3100.0\n"
    monkeypatch.setattr(devices, "text_of", lambda _: text)
    assert devices.clock_mhz() == 3100.0
    monkeypatch.setattr(devices, "text_of", lambda _: "")
    assert devices.clock_mhz() is None
