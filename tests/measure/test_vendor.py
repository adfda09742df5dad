"""Clock and power through the libraries of vendors, which objects stand for."""

import ctypes
import signal
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_smi import FakeNvml, FakeRocmSmi

from projector.errors import MeasurementError
from projector.measure import smi
from projector.measure.smi import (
    Hwmon,
    Nvml,
    RocmSmi,
    current_frequency,
    name_of_gpu,
    open_library,
    pci_address,
)
from projector.measure.vendor import Load, Sampler, locked_clock


def test_nvml_reads_its_units() -> None:
    library = FakeNvml(1755)
    device = Nvml(library, 1)
    assert device.name() == "NVIDIA H100 80GB HBM3"
    assert device.read("clock_mhz") == 1755.0
    assert (device.read("power_w"), device.read("power_limit_w")) == (695.5, 700.0)
    assert device.read("temperature_c") == 61.0
    assert device.reasons() == ("power cap",)
    device.close()
    assert library.open == 0


@pytest.mark.parametrize("recent", [True, False])
def test_rocm_smi_reads_its_units(recent: bool) -> None:
    library = FakeRocmSmi(recent=recent)
    device = RocmSmi(library, 0)
    assert device.name() == "AMD Instinct MI300X"
    assert device.read("clock_mhz") == 1950.0
    assert (device.read("power_w"), device.read("power_limit_w")) == (742.0, 750.0)
    assert device.read("temperature_c") == 71.0
    assert device.reasons() == ()
    device.close()
    assert library.open == 0


def test_current_power_stands_in_for_the_average() -> None:
    assert RocmSmi(FakeRocmSmi(average=False), 0).read("power_w") == 750.0


@pytest.mark.parametrize("supported", range(1, 33))
def test_both_layouts_of_frequencies_are_told_apart(supported: int) -> None:
    listed = [(100 + 50 * at) * 1_000_000 for at in range(supported)]
    for current in range(supported):
        tail = struct.pack(f"<{supported}Q", *listed) + bytes(64)
        recent = struct.pack("<?xxxIIxxxx", bool(current % 2), supported, current) + tail
        former = struct.pack("<II", supported, current) + tail
        assert current_frequency(recent) == listed[current]
        assert current_frequency(former) == listed[current]


def test_frequencies_that_make_no_sense_are_none() -> None:
    assert current_frequency(bytes(512)) is None
    assert current_frequency(b"\xff" * 512) is None


def test_device_is_found_by_its_address() -> None:
    assert pci_address(0, 0x1B, 0) == "00000000:1b:00.0"
    assert Nvml(FakeNvml(), 5, pci_address(0, 0x1B, 0)).read("clock_mhz") == 1755.0
    found = RocmSmi(FakeRocmSmi(), 5, pci_address(1, 0x75, 0))
    assert found._device.value == 1


@pytest.mark.parametrize(("maker", "fake"), [(Nvml, FakeNvml), (RocmSmi, FakeRocmSmi)])
def test_missing_device_closes_the_library(maker: Any, fake: Any) -> None:
    library = fake()
    with pytest.raises(OSError, match="has no device"):
        maker(library, 7)
    with pytest.raises(OSError, match="has no device"):
        maker(library, 0, "00000000:ff:00.0")
    assert library.open == 0


def test_functions_that_a_library_has_not_read_nothing() -> None:
    class Old:
        def nvmlInit_v2(self) -> int:
            return 0

        def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
            return 0

    device = Nvml(Old(), 0)
    assert (device.name(), device.read("clock_mhz"), device.read("power_w")) == ("", None, None)
    assert (device.read("power_limit_w"), device.read("temperature_c")) == (None, None)
    assert device.reasons() == ()


def test_former_name_of_reasons() -> None:
    class Former(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            if name == "nvmlDeviceGetCurrentClocksEventReasons":
                raise AttributeError(name)
            return super().__getattribute__(name)

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Any, bits: Any) -> int:
            return self.nvmlDeviceGetClockInfo(device, ctypes.c_uint(1), bits)

    assert Nvml(Former(0x20), 0).reasons() == ("temperature",)


def test_no_library_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(smi.ctypes, "CDLL", missing)
    assert open_library(0) is None
    with Sampler(0) as sampler:
        assert sampler.load([(0.0, 1e9)])[:2] == (None, None)
    with pytest.raises(MeasurementError, match="no library"), locked_clock(0, 1000.0):
        pass


def test_first_library_that_starts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def cdll(name: str) -> Any:
        opened.append(name)
        if name.startswith("libnvidia"):
            raise OSError(name)
        return FakeRocmSmi()

    monkeypatch.setattr(smi.ctypes, "CDLL", cdll)
    library = open_library(0)
    assert library is not None
    assert library.vendor == "amd"
    assert opened[-1] == smi.ROCM_SMI_NAMES[0]


def sensors(root: Path, pci: str, vendor: str, **values: int) -> None:
    folder = root / "sys/bus/pci/devices" / pci / "hwmon" / "hwmon3"
    folder.mkdir(parents=True)
    (folder.parent.parent / "vendor").write_text(f"{vendor}\n")
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def test_sensors_of_amds_driver(tmp_path: Path) -> None:
    sensors(tmp_path, "0000:1b:00.0", "0x10de", temp1_input=40_000)
    sensors(
        tmp_path, "0000:75:00.0", "0x1002",
        freq1_input=1_950_000_000, power1_input=750_000_000, temp2_input=71_000,
        power1_cap=760_000_000,
    )  # fmt: skip
    sensors(tmp_path, "0000:95:00.0", "0x1002", freq1_input=132_000_000, power1_average=140_000_000)
    wanted = ("clock_mhz", "power_w", "temperature_c")
    device = Hwmon(0, root=tmp_path)
    assert tuple(map(device.read, wanted)) == (1950.0, 750.0, 71.0)
    assert device.read("power_limit_w") == 760.0
    device = Hwmon(5, pci_address(0, 0x95, 0), tmp_path)
    assert tuple(map(device.read, wanted)) == (132.0, 140.0, None)
    assert (device.name(), device.reasons()) == ("", ())
    with pytest.raises(OSError, match="no device 2"):
        Hwmon(2, root=tmp_path)
    lock = locked_clock(0, 1300.0, library=device)
    with pytest.raises(MeasurementError, match="does not lock"), lock:
        pass


def test_name_of_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml()
    monkeypatch.setattr(smi.ctypes, "CDLL", lambda name: library)
    assert name_of_gpu() == "NVIDIA H100 80GB HBM3"
    assert library.open == 0


def test_visible_devices_are_counted_among_those_of_the_machine() -> None:
    assert smi._number_in_machine(0, "") == 0
    assert smi._number_in_machine(1, "4,6") == 6
    assert smi._number_in_machine(0, "GPU-1234") == 0


def test_cpu_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smi.ctypes, "CDLL", pytest.fail)
    with Sampler(None) as sampler:
        assert sampler.load([(0.0, 1e9)])[:2] == (None, None)


def test_sampler_reads_beside_the_load_and_lets_go() -> None:
    fake = FakeNvml(1980, 1755)
    with Sampler(0, period_s=0.001, library=Nvml(fake, 0)) as sampler:
        start_s = time.perf_counter()
        deadline_s = start_s + 5.0
        while len(sampler._samples) < 5 and time.perf_counter() < deadline_s:
            time.sleep(0.001)
        clock_mhz, power_w = sampler.load([(start_s, time.perf_counter())])[:2]
    assert (clock_mhz, power_w) == (1755.0, 695.5)
    assert fake.open == 0
    assert not [each for each in threading.enumerate() if each.name == "clock"]
    assert sampler.load([(start_s, time.perf_counter())])[:2] == (1755.0, 695.5)


def sampled(*samples: tuple[float, float | None]) -> Sampler:
    sampler = Sampler(None, period_s=0.01)
    for at_s, clock_mhz in samples:
        sampler._samples.append((at_s, Load(clock_mhz, 500.0, 60.0, ("power cap",))))
    return sampler


def test_median_of_a_span_is_of_its_own_readings() -> None:
    sampler = sampled((0.0, 1000.0), (1.0, 1500.0), (1.1, 1600.0), (1.2, 1980.0), (9.0, 300.0))
    assert sampler.load([(0.9, 1.3)])[:2] == (1600.0, 500.0)
    assert sampler.load([(5.0, 6.0)])[:2] == (None, None)


def test_short_span_has_the_readings_next_to_it() -> None:
    sampler = sampled((1.0, 1500.0), (1.01, 1700.0), (2.0, 300.0))
    assert sampler.load([(1.004, 1.006)])[:2] == (1600.0, 500.0)


def test_spans_of_one_operation_are_read_together() -> None:
    sampler = sampled((1.0, 1500.0), (2.0, 300.0), (3.0, 1600.0), (4.0, None))
    load = sampler.load([(0.9, 1.1), (2.9, 3.1), (3.9, 4.1)])
    assert load == (1550.0, 500.0, 60.0, ("power cap",))
    assert sampler.load([]) == (None, None, None, ())


@pytest.mark.parametrize(
    ("maker", "fake", "locked"),
    [(Nvml, FakeNvml(), (1300, 1300)), (RocmSmi, FakeRocmSmi(), 1300)],
)
def test_locked_clock_is_reset(maker: Any, fake: Any, locked: Any) -> None:
    with locked_clock(0, 1300.0, library=maker(fake, 0)):
        assert fake.locked == [locked]
    assert fake.locked == [locked, None]
    assert fake.open == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_locked_clock_is_reset_after_an_error(error: type[BaseException]) -> None:
    fake = FakeNvml()
    with pytest.raises(error), locked_clock(0, 1300.0, library=Nvml(fake, 0)):
        raise error
    assert fake.locked == [(1300, 1300), None]
    assert fake.open == 0


def test_locked_clock_is_reset_when_the_process_is_ended() -> None:
    fake = FakeNvml()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left, locked_clock(0, 1300.0, library=Nvml(fake, 0)):
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 128 + signal.SIGTERM
    assert fake.locked[-1] is None
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("maker", "fake"), [(Nvml, FakeNvml(deny=True)), (RocmSmi, FakeRocmSmi(deny=True))]
)
def test_denied_lock_says_what_it_takes(maker: Any, fake: Any) -> None:
    entered = []
    lock = locked_clock(0, 1300.0, library=maker(fake, 0))
    with pytest.raises(MeasurementError, match="administrator") as raised, lock:
        entered.append(True)
    assert not entered
    assert raised.value.key == "lock_clocks"
    assert fake.open == 0


def test_clock_that_stays_locked_says_how_to_reset_it() -> None:
    class Stuck(FakeNvml):
        def nvmlDeviceResetGpuLockedClocks(self, device: Any) -> int:
            return 999

    lock = locked_clock(0, 1300.0, library=Nvml(Stuck(), 0))
    with pytest.raises(MeasurementError, match="nvidia-smi --reset-gpu-clocks"), lock:
        pass


def test_lock_works_in_other_threads() -> None:
    fake = FakeNvml()

    def run() -> None:
        with locked_clock(0, 1300.0, library=Nvml(fake, 0)):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert fake.locked == [(1300, 1300), None]
