"""Names of devices, and the look for a GPU."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from projector.config.device_file import load_device
from projector.measure import devices
from projector.measure.devices import (
    cpu_name,
    driver_at_hand,
    gpus_at_hand,
    load_runtime_names,
    profile_of,
    stands_for,
)

NAMES = load_runtime_names()


def nvidia(root: Path, models: list[str], given: int) -> Path:
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()
    for at in range(given):
        (root / f"dev/nvidia{at}").touch()
    for at, model in enumerate(models):
        folder = root / f"proc/driver/nvidia/gpus/0000:{at:02x}:00.0"
        folder.mkdir(parents=True)
        text = f"Model: \t\t {model}\nIRQ:   \t\t 211\nGPU UUID: \t GPU-{at}\n"
        (folder / "information").write_text(text)
    return root


def amd(root: Path, ids: list[int]) -> Path:
    (root / "dev").mkdir()
    (root / "dev/kfd").touch()
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for at, device in enumerate([0, *ids]):
        (nodes / str(at)).mkdir(parents=True)
        simds = 1216 if device else 0
        vendor = 4098 if device else 0
        text = f"cpu_cores_count 0\nsimd_count {simds}\nvendor_id {vendor}\ndevice_id {device}\n"
        (nodes / str(at) / "properties").write_text(text)
    return root


def test_every_name_is_of_a_shipped_device_and_has_a_source() -> None:
    entries = [*NAMES.names.items(), *NAMES.amd_pci_devices.items()]
    assert {entry.source for _, entry in entries} == NAMES.sources.keys()
    for name, entry in NAMES.names.items():
        device = load_device(entry.value)
        assert stands_for(device, name)
        assert name.lower().startswith(device.vendor), name
        assert entry.note or entry.source != "assumed"


def test_every_pci_device_has_a_name_of_the_table() -> None:
    for device, entry in NAMES.amd_pci_devices.items():
        assert device == f"{int(device, 16):#06x}"
        assert profile_of(entry.value)


def test_names_of_neighbours_are_kept_apart() -> None:
    assert profile_of("NVIDIA H100 80GB HBM3") == "h100"
    assert profile_of("nvidia h100-80gb_hbm3") == "h100"
    assert profile_of("NVIDIA H100 PCIe") == "h100_pcie"
    assert profile_of("NVIDIA H100 NVL") is None
    assert profile_of("NVIDIA GH200 144G HBM3e") is None
    assert profile_of("AMD Instinct MI300A") is None
    assert profile_of("") is None
    assert not stands_for(load_device("h100"), "NVIDIA H200")


def test_profile_of_ones_own_stands_for_the_device_it_is_named_after() -> None:
    device = load_device("h100").model_copy(update={"name": "AMD EPYC 9575F"})
    assert stands_for(device, "AMD EPYC 9575F")
    assert not stands_for(device, "NVIDIA H100 80GB HBM3")
    changed = load_device("h100").model_copy(update={"hbm_gib": 60.0})
    assert stands_for(changed, "NVIDIA H100 80GB HBM3")


def test_gpus_of_nvidia(tmp_path: Path) -> None:
    root = nvidia(tmp_path, ["NVIDIA H200"] * 8, given=8)
    assert gpus_at_hand(root, {}) == ("nvidia", "NVIDIA H200", 8, "h200")


def test_container_has_the_gpus_that_it_was_given(tmp_path: Path) -> None:
    assert gpus_at_hand(nvidia(tmp_path, ["NVIDIA H200"] * 8, given=0), {}) is None


def test_gpus_that_the_kernel_hides_are_named_by_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = nvidia(tmp_path, [], given=2)
    monkeypatch.setattr(devices, "name_of_gpu", lambda: "")
    assert gpus_at_hand(root, {}) == ("nvidia", "", 2, None)
    monkeypatch.setattr(devices, "name_of_gpu", lambda: "NVIDIA H200")
    assert gpus_at_hand(root, {}) == ("nvidia", "NVIDIA H200", 2, "h200")


def test_linux_of_windows_has_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "name_of_gpu", lambda: "NVIDIA RTX A6000")
    root = nvidia(tmp_path, [], given=0)
    (root / "dev/dxg").touch()
    assert gpus_at_hand(root, {}) == ("nvidia", "NVIDIA RTX A6000", 1, None)


@pytest.mark.parametrize(
    ("hidden", "count"), [("", 0), ("-1", 0), ("3", 1), ("0,1", 2), ("0,-1,2", 1), ("0,1,2,3,4", 4)]
)
def test_hidden_gpus_do_not_count(tmp_path: Path, hidden: str, count: int) -> None:
    found = gpus_at_hand(nvidia(tmp_path, ["NVIDIA B200"] * 4, 4), {"CUDA_VISIBLE_DEVICES": hidden})
    assert (found.gpus if found else 0) == count


def test_gpus_of_amd(tmp_path: Path) -> None:
    root = amd(tmp_path, [0x74A1] * 8)
    assert gpus_at_hand(root, {}) == ("amd", "AMD Instinct MI300X", 8, "mi300x")
    assert gpus_at_hand(root, {"HIP_VISIBLE_DEVICES": "0,1"}) == (
        "amd", "AMD Instinct MI300X", 2, "mi300x",
    )  # fmt: skip
    assert gpus_at_hand(root, {"ROCR_VISIBLE_DEVICES": ""}) is None


def test_unknown_gpu_of_amd_has_no_name(tmp_path: Path) -> None:
    assert gpus_at_hand(amd(tmp_path, [0x1234]), {}) == ("amd", "", 1, None)


def test_no_gpu(tmp_path: Path) -> None:
    assert gpus_at_hand(tmp_path, {}) is None
    assert driver_at_hand(tmp_path) == ""


def test_version_of_a_driver(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.195.03  Release Build\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    assert driver_at_hand(tmp_path) == "570.195.03"


def test_version_of_amds_driver(tmp_path: Path) -> None:
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.12.12\n")
    assert driver_at_hand(tmp_path) == "6.12.12"


def test_name_of_the_processor(tmp_path: Path) -> None:
    assert cpu_name(tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9575F\n")
    assert cpu_name(tmp_path) == "AMD EPYC 9575F"


def test_look_is_quick_and_loads_no_library(tmp_path: Path) -> None:
    root = amd(tmp_path, [0x74A1] * 8)
    gpus_at_hand(root, {})
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        gpus_at_hand(root, {})
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.02
    code = "import sys, projector.measure.devices; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
