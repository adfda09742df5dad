"""Clock, power and temperature of a GPU while it works, through the library of its vendor.

NVIDIA's is NVML (``libnvidia-ml.so.1``), AMD's is ROCm SMI (``librocm_smi64.so``). Both come with
the driver or the runtime; they are opened where they are. Without ROCm SMI the files of AMD's
kernel driver are read, and where these are missing too, nothing is. Names and layouts are those of
``nvml.h``, of ``rocm_smi/rocm_smi.h`` and of https://docs.kernel.org/gpu/amdgpu/thermal.html.
"""

import ctypes
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from projector.errors import MeasurementError

AMD_PCI_VENDOR = 0x1002

NVML_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
ROCM_SMI_NAMES = (
    "librocm_smi64.so", "librocm_smi64.so.1", "librocm_smi64.so.7", "librocm_smi64.so.6",
    "librocm_smi64.so.5", "/opt/rocm/lib/librocm_smi64.so",
)  # fmt: skip

_SUCCESS = 0
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
"""``NVML_CLOCK_SM`` and ``NVML_CLOCK_MEM``."""
_GPU_SENSOR = 0
"""``NVML_TEMPERATURE_GPU``."""
_SYSTEM_CLOCK, _DRAM_CLOCK = 0, 4
"""``RSMI_CLK_TYPE_SYS``, the clock of the compute units, and ``RSMI_CLK_TYPE_MEM``."""
_JUNCTION, _CURRENT = 1, 0
"""``RSMI_TEMP_TYPE_JUNCTION`` and ``RSMI_TEMP_CURRENT``."""
_AUTOMATIC = 0
"""``RSMI_DEV_PERF_LEVEL_AUTO``."""
_NAME_BYTES = 96

REASONS = (
    "idle", "application clocks", "power cap", "hardware slowdown", "sync boost", "temperature",
    "temperature (hardware)", "power brake", "display clocks",
)  # fmt: skip
"""Bits of ``nvmlClocksEventReasons``, from the lowest."""

_MOST_FREQUENCIES = 33
"""``RSMI_MAX_NUM_FREQUENCIES``; 32 before ROCm 6."""
_BUFFER_BYTES = 1024
_PLAUSIBLE_HZ = (1e6, 1e10)

Reading = Literal["clock_mhz", "memory_clock_mhz", "power_w", "power_limit_w", "temperature_c"]
"""What is read of a device: clocks of compute units and memory, the power that it draws and that
beyond which it lowers its clock, heat of the die."""


class Library:
    """One device, as its vendor tells of it; what this class has holds for one that tells less."""

    vendor = title = ""
    reset = ""
    """Command that lets a locked clock go."""

    def name(self) -> str:
        """Return the name of the device, ``""`` if unknown."""
        return ""

    def read(self, what: Reading) -> float | None:
        """Return a reading in the unit of its name, None where it is not known."""
        raise NotImplementedError

    def reasons(self) -> tuple[str, ...]:
        """Return what holds the clock down."""
        return ()

    def lock(self, clock_mhz: float) -> None:
        """Hold the clock; raises `MeasurementError` if that is not allowed."""
        status = self._lock(round(clock_mhz))
        if status != _SUCCESS:
            msg = (
                f"{self.title} does not lock the clock to {clock_mhz:g} MHz (status {status}); "
                "that takes the rights of an administrator and a clock that the device has"
            )
            allowed = "no locked clock"
            raise MeasurementError(msg, key="lock_clocks", value=clock_mhz, allowed=allowed)

    def unlock(self) -> None:
        """Let the clock go; raises `MeasurementError` if it cannot."""
        status = self._unlock()
        if status != _SUCCESS:
            msg = (
                f"{self.title} does not reset the locked clock (status {status}); run {self.reset}"
            )
            raise MeasurementError(msg, key="lock_clocks", value=status, allowed=self.reset)

    def close(self) -> None:
        """Let go of the library."""

    def _lock(self, clock_mhz: int) -> int:
        del clock_mhz
        return -1

    def _unlock(self) -> int:
        return _SUCCESS


class _Opened(Library):
    _NAME: tuple[str, Any]
    """Function for the name of a device, and the type of the size that it takes."""
    _CLOSE: str

    def __init__(self, library: Any) -> None:
        self._library = library
        self._device: Any = None

    def name(self) -> str:
        """Return the name of the device."""
        function, size = self._NAME
        text = ctypes.create_string_buffer(_NAME_BYTES)
        failed = self._call(function, self._device, text, size(_NAME_BYTES))
        return "" if failed else text.value.decode(errors="replace")

    def close(self) -> None:
        """Shut the library down."""
        self._call(self._CLOSE)

    def _call(self, function: str, *arguments: Any) -> int:
        """Call a function; one that this version does not have fails with -1."""
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError:
            return -1

    def _number(
        self, function: str, value: Any, unit: float, *which: Any, more: Sequence[Any] = ()
    ) -> float | None:
        """Return what a function puts into a number, which lies before its last arguments."""
        failed = self._call(function, self._device, *which, ctypes.byref(value), *more)
        return None if failed else float(value.value) / unit


class Nvml(_Opened):
    """NVIDIA's library, and one device of it."""

    vendor = "nvidia"
    title = "NVML"
    reset = "nvidia-smi --reset-gpu-clocks"

    _NAME = "nvmlDeviceGetName", ctypes.c_uint
    _CLOSE = "nvmlShutdown"
    _READINGS: Mapping[Reading, tuple[str, tuple[int, ...], float]] = {
        "clock_mhz": ("nvmlDeviceGetClockInfo", (_SM_CLOCK,), 1.0),
        "memory_clock_mhz": ("nvmlDeviceGetClockInfo", (_MEMORY_CLOCK,), 1.0),
        # Newer drivers average it over about a second.
        "power_w": ("nvmlDeviceGetPowerUsage", (), 1e3),
        # An administrator's, or the lowest of others.
        "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", (), 1e3),
        "temperature_c": ("nvmlDeviceGetTemperature", (_GPU_SENSOR,), 1.0),
    }
    """Function, which of its numbers, and how many of them are one of the unit."""

    def __init__(self, library: Any, index: int, pci: str | None = None) -> None:
        """Start the library and find a device by its PCI address, or else by its number."""
        super().__init__(library)
        self._device = ctypes.c_void_p()
        if self._call("nvmlInit_v2") != _SUCCESS:
            raise OSError("NVML does not start")
        by, key = (
            ("nvmlDeviceGetHandleByPciBusId_v2", ctypes.c_char_p(pci.encode()))
            if pci
            else ("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
        )
        if self._call(by, key, ctypes.byref(self._device)) != _SUCCESS:
            self.close()
            raise OSError(f"NVML has no device {pci or index}")

    def read(self, what: Reading) -> float | None:
        """Return a reading of the multiprocessors, the memory or the board."""
        function, which, unit = self._READINGS[what]
        return self._number(function, ctypes.c_uint(), unit, *map(ctypes.c_uint, which))

    def reasons(self) -> tuple[str, ...]:
        """Return what holds the clock down."""
        bits = ctypes.c_ulonglong()
        # The former name is that of drivers before 535.
        for name in ("Event", "Throttle"):
            function = f"nvmlDeviceGetCurrentClocks{name}Reasons"
            if self._call(function, self._device, ctypes.byref(bits)) == _SUCCESS:
                return tuple(text for bit, text in enumerate(REASONS) if bits.value >> bit & 1)
        return ()

    def _lock(self, clock_mhz: int) -> int:
        clock = ctypes.c_uint(clock_mhz)
        return self._call("nvmlDeviceSetGpuLockedClocks", self._device, clock, clock)

    def _unlock(self) -> int:
        return self._call("nvmlDeviceResetGpuLockedClocks", self._device)


class RocmSmi(_Opened):
    """AMD's library, and one device of it."""

    vendor = "amd"
    title = "ROCm SMI"
    reset = "rocm-smi --resetperfdeterminism"

    _NAME = "rsmi_dev_name_get", ctypes.c_size_t
    _CLOSE = "rsmi_shut_down"

    def __init__(self, library: Any, index: int, pci: str | None = None) -> None:
        """Start the library and find a device by its PCI address, or else by its number."""
        super().__init__(library)
        if self._call("rsmi_init", ctypes.c_uint64(0)) != _SUCCESS:
            raise OSError("ROCm SMI does not start")
        devices = ctypes.c_uint32()
        self._call("rsmi_num_monitor_devices", ctypes.byref(devices))
        found = [
            each for each in range(devices.value)
            if (self._pci(each) == pci.lower() if pci else each == index)
        ]  # fmt: skip
        if not found:
            self.close()
            raise OSError(f"ROCm SMI has no device {pci or index}")
        self._device = ctypes.c_uint32(found[0])

    def read(self, what: Reading) -> float | None:
        """Return a reading: the average power where it is known, heat of the hottest spot."""
        number, sensor = self._number, ctypes.c_uint32(0)
        match what:
            case "clock_mhz" | "memory_clock_mhz":
                return self._clock_mhz(_SYSTEM_CLOCK if what == "clock_mhz" else _DRAM_CLOCK)
            case "power_w":
                average_w = number("rsmi_dev_power_ave_get", ctypes.c_uint64(), 1e6, sensor)
                if average_w is not None:
                    return average_w
                kind = ctypes.byref(ctypes.c_int())
                return number("rsmi_dev_power_get", ctypes.c_uint64(), 1e6, more=(kind,))
            case "power_limit_w":
                return number("rsmi_dev_power_cap_get", ctypes.c_uint64(), 1e6, sensor)
            case "temperature_c":
                which = ctypes.c_uint32(_JUNCTION), ctypes.c_int(_CURRENT)
                return number("rsmi_dev_temp_metric_get", ctypes.c_int64(), 1e3, *which)

    def _lock(self, clock_mhz: int) -> int:
        # The highest clock, in the mode that keeps a device at it.
        clock = ctypes.c_uint64(clock_mhz)
        return self._call("rsmi_perf_determinism_mode_set", self._device, clock)

    def _unlock(self) -> int:
        return self._call("rsmi_dev_perf_level_set", self._device, ctypes.c_int(_AUTOMATIC))

    def _clock_mhz(self, clock: int) -> float | None:
        buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
        which = ctypes.c_int(clock)
        if self._call("rsmi_dev_gpu_clk_freq_get", self._device, which, buffer) != _SUCCESS:
            return None
        clock_hz = current_frequency(buffer.raw)
        return None if clock_hz is None else clock_hz / 1e6

    def _pci(self, device: int) -> str:
        """Return the PCI address of a device: domain, bus and device of its 64-bit id."""
        found = ctypes.c_uint64()
        self._call("rsmi_dev_pci_id_get", ctypes.c_uint32(device), ctypes.byref(found))
        return pci_address(found.value >> 32, found.value >> 8 & 0xFF, found.value >> 3 & 0x1F)


class Hwmon(Library):
    """The sensors of AMD's kernel driver, which a container without ROCm SMI has too."""

    vendor = "amd"
    title = "the amdgpu driver"

    _READINGS: Mapping[Reading, tuple[tuple[str, ...], float]] = {
        "clock_mhz": (("freq1_input",), 1e6),
        "memory_clock_mhz": (("freq2_input",), 1e6),
        "power_w": (("power1_average", "power1_input"), 1e6),
        "power_limit_w": (("power1_cap",), 1e6),
        "temperature_c": (("temp2_input",), 1e3),
    }
    """Files, of which the first that holds a number counts, and how many are one of the unit."""

    def __init__(self, index: int, pci: str | None = None, root: Path = Path("/")) -> None:
        """Find a device by its PCI address, or else by its number among AMD's."""
        devices = root / "sys/bus/pci/devices"
        listed = sorted(path.parent.parent for path in devices.glob("*/hwmon/hwmon*"))
        found = [path for path in listed if text_of(path / "vendor") == f"{AMD_PCI_VENDOR:#06x}"]
        if pci:
            # Linux writes the domain in four digits.
            found = [path for path in found if path.name == pci.lower()[-len(path.name) :]]
            index = 0
        if index >= len(found):
            raise OSError(f"the amdgpu driver has no device {pci or index}")
        self._sensors = next(iter(sorted((found[index] / "hwmon").iterdir())))

    def read(self, what: Reading) -> float | None:
        """Return a reading of the compute units, the memory or the module."""
        files, unit = self._READINGS[what]
        texts = (text_of(self._sensors / name) for name in files)
        return next((float(text) / unit for text in texts if text.isdigit()), None)


def text_of(path: Path) -> str:
    """Return what a file of Linux says, without the space around it; ``""`` if it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def current_frequency(raw: bytes) -> float | None:
    """Return the current one of ``rsmi_frequencies_t``, in Hz.

    ROCm 6 put ``bool has_deep_sleep`` before ``num_supported``, ``current`` and the list; the
    former layout read as the later one has no supported frequencies, or no boolean.
    """
    for first, start in ((4, 16), (0, 8)):
        if first and raw[0] > 1:
            continue
        supported, current = struct.unpack_from("<II", raw, first)
        if 0 < supported <= _MOST_FREQUENCIES and current < supported:
            (found,) = struct.unpack_from("<Q", raw, start + 8 * current)
            if _PLAUSIBLE_HZ[0] <= found <= _PLAUSIBLE_HZ[1]:
                return float(found)
    return None


def pci_address(domain: int, bus: int, device: int) -> str:
    """Return a PCI address as both libraries know it: ``00000000:1b:00.0``."""
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def address_of(properties: Any) -> str | None:
    """Return the PCI address in torch's properties of a GPU; older releases do not have it."""
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    known = [int(number) for number in numbers if number is not None]
    return pci_address(*known) if len(known) == 3 else None


def name_of_gpu() -> str:
    """Return the name of the first GPU as NVML gives it (in tens of ms), ``""`` without NVML."""
    for name in NVML_NAMES:
        try:
            library = Nvml(ctypes.CDLL(name), 0)
        except OSError:
            continue
        found = library.name()
        library.close()
        return found
    return ""


def open_library(index: int, pci: str | None = None) -> Library | None:
    """Return the vendor's library of torch's device ``index`` by its PCI address; or None."""
    makers: tuple[tuple[Callable[..., Library], Sequence[str], str], ...] = (
        (Nvml, NVML_NAMES, "CUDA_VISIBLE_DEVICES"),
        (RocmSmi, ROCM_SMI_NAMES, "HIP_VISIBLE_DEVICES"),
    )
    for maker, names, hiding in makers:
        number = _number_in_machine(index, os.environ.get(hiding, ""))
        for name in names:
            try:
                return maker(ctypes.CDLL(name), number, pci)
            except OSError:
                continue
    try:
        return Hwmon(_number_in_machine(index, os.environ.get("HIP_VISIBLE_DEVICES", "")), pci)
    except OSError:
        return None


def _number_in_machine(index: int, visible: str) -> int:
    numbers = [each.strip() for each in visible.split(",")]
    known = index < len(numbers) and numbers[index].isdigit()
    return int(numbers[index]) if known else index
