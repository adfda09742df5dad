"""Stand-ins for the libraries of the vendors, as `ctypes` would open them."""

import ctypes
import struct
from typing import Any


def put(reference: Any, value: Any) -> None:
    """Write through what `ctypes.byref` made."""
    reference._obj.value = value


class FakeNvml:
    """One H100 among two devices; ``clocks`` is what it answers one after another."""

    def __init__(self, *clocks: int, reasons: int = 0x4, deny: bool = False) -> None:
        self.clocks = list(clocks) or [1755]
        self.bits = reasons
        self.deny = deny
        self.locked: list[tuple[int, int] | None] = []
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        put(device, 100 + index.value)
        return 0 if index.value < 2 else 6

    def nvmlDeviceGetHandleByPciBusId_v2(self, pci: Any, device: Any) -> int:
        put(device, 101)
        return 0 if pci.value == b"00000000:1b:00.0" else 6

    def nvmlDeviceGetName(self, device: Any, text: Any, length: Any) -> int:
        text.value = b"NVIDIA H100 80GB HBM3"[: length.value]
        return 0

    def nvmlDeviceGetClockInfo(self, device: Any, kind: Any, clock: Any) -> int:
        if kind.value == 2:
            put(clock, 2619)
            return 0
        assert kind.value == 1
        put(clock, self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0])
        return 0

    def nvmlDeviceGetPowerUsage(self, device: Any, power: Any) -> int:
        put(power, 695_500)
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Any, power: Any) -> int:
        put(power, 700_000)
        return 0

    def nvmlDeviceGetTemperature(self, device: Any, kind: Any, value: Any) -> int:
        assert kind.value == 0
        put(value, 61)
        return 0

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: Any, bits: Any) -> int:
        put(bits, self.bits)
        return 0

    def nvmlDeviceSetGpuLockedClocks(self, device: Any, low: Any, high: Any) -> int:
        if self.deny:
            return 4
        self.locked.append((low.value, high.value))
        return 0

    def nvmlDeviceResetGpuLockedClocks(self, device: Any) -> int:
        self.locked.append(None)
        return 0


class FakeRocmSmi:
    """Two MI300X; ``recent`` is the layout of ROCm 6 and later."""

    def __init__(self, *, recent: bool = True, average: bool = True, deny: bool = False) -> None:
        self.recent = recent
        self.average = average
        self.deny = deny
        self.locked: list[int | None] = []
        self.open = 0

    def rsmi_init(self, flags: Any) -> int:
        self.open += 1
        return 0

    def rsmi_shut_down(self) -> int:
        self.open -= 1
        return 0

    def rsmi_num_monitor_devices(self, count: Any) -> int:
        put(count, 2)
        return 0

    def rsmi_dev_pci_id_get(self, device: Any, found: Any) -> int:
        put(found, (device.value << 32) | 0x75 << 8)
        return 0

    def rsmi_dev_name_get(self, device: Any, text: Any, length: Any) -> int:
        text.value = b"AMD Instinct MI300X"[: length.value]
        return 0

    def rsmi_dev_gpu_clk_freq_get(self, device: Any, kind: Any, buffer: Any) -> int:
        # The compute units, or the memory.
        listed = {
            0: [132_000_000, 1_950_000_000, 2_100_000_000],
            4: [900_000_000, 1_300_000_000, 2_600_000_000],
        }[kind.value]
        head = struct.pack("<?xxxIIxxxx" if self.recent else "<II", *([False] * self.recent), 3, 1)
        raw = head + struct.pack("<3Q", *listed)
        ctypes.memmove(buffer, raw, len(raw))
        return 0

    def rsmi_dev_power_ave_get(self, device: Any, sensor: Any, power: Any) -> int:
        put(power, 742_000_000)
        return 0 if self.average else 2

    def rsmi_dev_power_get(self, device: Any, power: Any, kind: Any) -> int:
        put(power, 750_000_000)
        put(kind, 1)
        return 0

    def rsmi_dev_power_cap_get(self, device: Any, sensor: Any, power: Any) -> int:
        assert sensor.value == 0
        put(power, 750_000_000)
        return 0

    def rsmi_dev_temp_metric_get(self, device: Any, kind: Any, metric: Any, value: Any) -> int:
        assert (kind.value, metric.value) == (1, 0)
        put(value, 71_000)
        return 0

    def rsmi_perf_determinism_mode_set(self, device: Any, clock: Any) -> int:
        if self.deny:
            return 3
        self.locked.append(clock.value)
        return 0

    def rsmi_dev_perf_level_set(self, device: Any, level: Any) -> int:
        assert level.value == 0
        self.locked.append(None)
        return 0
