"""Which device is at hand, which profile stands for it, and what Linux says of the machine.

torch is not loaded for that.

Kernels tell what they drive in small files: ``/proc/driver/nvidia`` of NVIDIA's, and
``/sys/class/kfd`` of AMD's. Reading them takes about a millisecond. NVML is asked only where a GPU
is there and those files are not.
"""

import os
import platform
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from projector.config import resources
from projector.config._base import Config
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.measure.smi import AMD_PCI_VENDOR, name_of_gpu, text_of
from projector.trace.names import Word

Vendor = Literal["nvidia", "amd"]

HIDING: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Variables with which the runtimes of a vendor hide devices from a process."""


class RuntimeNames(Config):
    """``hardware/runtime_names.yaml``."""

    names: dict[str, Word]
    """Name of a runtime -> file of the device."""
    amd_pci_devices: dict[str, Word]
    """Device id of PCI, in hexadecimal digits -> name of a runtime."""
    sources: dict[str, str]


class GpusAtHand(NamedTuple):
    """The GPUs of one kind that this process may use."""

    vendor: Vendor
    name: str
    """As the driver gives it, ``""`` where it gives none."""
    gpus: int
    profile: str | None
    """File of the shipped device, if it is one."""


load_runtime_names = resources.shipped_table(RuntimeNames, "runtime_names.yaml")


@cache
def _profiles() -> dict[str, str]:
    names = load_runtime_names().names
    return {resources.normalise(name): entry.value for name, entry in names.items()}


def profile_of(name: str) -> str | None:
    """Return the shipped device that a runtime's name is, such as ``h100``; None if it is none."""
    return _profiles().get(resources.normalise(name))


def stands_for(profile: Device, name: str) -> bool:
    """Whether a profile, maybe with numbers of one's own, is that of a runtime's device."""
    wanted = resources.normalise(name)
    if resources.normalise(profile.name) == wanted:
        return True
    shipped = profile_of(name)
    return shipped is not None and profile.name == load_device(shipped).name


def gpus_at_hand(root: Path = Path("/"), env: Mapping[str, str] | None = None) -> GpusAtHand | None:
    """Return the GPUs under ``root`` that a process may use, the kind with most; None without."""
    env = os.environ if env is None else env
    kinds: dict[Vendor, list[str]] = {"nvidia": _nvidia_names(root), "amd": _amd_names(root)}
    for vendor, names in kinds.items():
        for name, count in Counter(names).most_common(1):
            gpus = _visible(count, [env[key] for key in HIDING[vendor] if key in env])
            if gpus:
                return GpusAtHand(vendor, name, gpus, profile_of(name))
    return None


def driver_at_hand(root: Path = Path("/")) -> str:
    """Return the version of the GPU driver, ``""`` where none is loaded."""
    text = text_of(root / "proc/driver/nvidia/version")
    found = re.search(r"(?:Module|x86_64|aarch64)\s+(\d+\.\d+(?:\.\d+)?)", text)
    return found[1] if found else text_of(root / "sys/module/amdgpu/version")


def cpu_name(root: Path = Path("/")) -> str:
    """Return the name of the processor, as its maker gives it."""
    found = re.search(
        r"^(?:model name|Model)\s*:\s*(.+)$", text_of(root / "proc/cpuinfo"), re.MULTILINE
    )
    return found[1].strip() if found else platform.processor() or platform.machine()


def _nvidia_names(root: Path) -> list[str]:
    # The kernel lists all devices of the machine, and a container may be given none of them.
    # The Linux of Windows has all of them behind one.
    given = [path for path in _inside(root / "dev") if re.fullmatch(r"nvidia\d+|dxg", path.name)]
    names = []
    for folder in _inside(root / "proc/driver/nvidia/gpus"):
        found = re.search(r"^Model:\s*(.*)$", text_of(folder / "information"), re.MULTILINE)
        names.append(found[1].strip() if found else "")
    if not names and given:
        # Some sandboxes and virtual machines hide what the kernel knows.
        names = [name_of_gpu()] * len(given)
    return names[: len(given)]


def _amd_names(root: Path) -> list[str]:
    if not (root / "dev/kfd").exists():
        return []
    known = load_runtime_names().amd_pci_devices
    names = []
    for node in _inside(root / "sys/class/kfd/kfd/topology/nodes"):
        # A node that a container is not given cannot be read.
        lines = (line.split() for line in text_of(node / "properties").splitlines())
        values = {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}
        if values.get("vendor_id") == AMD_PCI_VENDOR and values.get("simd_count"):
            entry = known.get(f"{values.get('device_id', 0):#06x}")
            names.append(entry.value if entry else "")
    return names


def _visible(count: int, hidings: list[str]) -> int:
    """Return how many of so many devices the variables of the runtimes leave."""
    for text in hidings:
        ids = [each.strip() for each in text.split(",")]
        # A runtime stops at the first that is none.
        shown = next((at for at, each in enumerate(ids) if each in {"", "-1"}), len(ids))
        count = min(count, shown)
    return count


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


LEFT_SHARE = 0.9
"""Of the memory that is free, what a worker may take before an allocation fails."""


class Memory(NamedTuple):
    """Bytes of main memory; 0 where the system does not say."""

    total: int
    available: int


def clock_mhz() -> float | None:
    """Return the fastest clock of all cores now, None without one; a hypervisor may state any."""
    clocks = re.findall(r"cpu MHz\s*:\s*([\d.]+)", text_of(Path("/proc/cpuinfo")))
    return max(map(float, clocks), default=None)


def memory_bytes() -> Memory:
    """Return main memory, or what a container may use of it."""
    text = text_of(Path("/proc/meminfo"))
    total, available = (
        int(found[1]) * 1024 if (found := re.search(rf"{name}:\s*(\d+) kB", text)) else 0
        for name in ("MemTotal", "MemAvailable")
    )
    limit = text_of(Path("/sys/fs/cgroup/memory.max"))
    if limit.isdigit() and 0 < int(limit) < total:
        used = text_of(Path("/sys/fs/cgroup/memory.current"))
        left = int(limit) - (int(used) if used.isdigit() else 0)
        return Memory(int(limit), max(0, min(available, left)))
    return Memory(total, available)


def status_bytes(field: str) -> int | None:
    """Return one line of this process's status in bytes, None where Linux does not say."""
    found = re.search(rf"^{field}:\s*(\d+) kB", text_of(Path("/proc/self/status")), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def limit_memory() -> None:
    """Let allocations beyond what is free fail in this process, instead of having it killed.

    Linux promises more memory than there is, and ends a process that uses what it was promised.
    """
    try:
        import resource
    except ImportError:
        return
    available = memory_bytes().available
    held = status_bytes("VmData")
    if not available or held is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    given = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    limit = min([held + int(LEFT_SHARE * available), *given])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
