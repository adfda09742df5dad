"""Samples of cores, clocks and power."""

import json
import time

from measure.fake_smi import FakeNvml
from projector.measure.sampling import (
    Quantity,
    RunSampler,
    core_quantities,
    device_quantities,
    physical_cores,
)
from projector.measure.smi import Nvml


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_samples_are_lines_with_the_time_of_the_system(tmp_path):
    counted = iter(range(1000))
    before_ns = time.time_ns()
    path = tmp_path / "rank3.samples.jsonl"
    quantities = [
        Quantity("power_w", ("GPU 0",), lambda: [float(next(counted))]),
        Quantity("clock_mhz", ("GPU 0",), lambda: [None]),
    ]
    with RunSampler(path, quantities, period_s=0.002, about={"rank": 3}) as sampler:
        while next(counted) < 20:
            time.sleep(0.002)
    head, *samples = lines(sampler.path)
    assert (head["format"], head["version"], head["rank"]) == ("projector samples", 1, 3)
    assert head["columns"] == {"power_w": ["GPU 0"], "clock_mhz": ["GPU 0"]}
    assert len(samples) >= 3
    stamps = [sample["time_ns"] for sample in samples]
    assert before_ns <= stamps[0]
    assert stamps == sorted(stamps)
    assert stamps[-1] <= time.time_ns()
    assert all(set(sample) == {"time_ns", "power_w"} for sample in samples)


def test_nothing_to_sample_writes_no_file(tmp_path):
    with RunSampler(tmp_path / "x.jsonl", [], period_s=0.001):
        pass
    assert list(tmp_path.iterdir()) == []


def test_every_logical_core_is_a_column():
    (quantity,), about = core_quantities()
    assert quantity.name == "cpu_percent"
    assert len(quantity.read()) == len(quantity.columns)
    assert len(about.get("physical_core", quantity.columns)) == len(quantity.columns)


def test_two_threads_of_a_core_share_its_number(tmp_path):
    for core, (package, number) in enumerate([(0, 0), (0, 4), (1, 0), (0, 0)]):
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{number}\n")
    assert physical_cores(4, tmp_path) == [0, 1, 2, 0]
    assert physical_cores(5, tmp_path) == []


def test_a_device_gives_what_its_library_knows():
    found = device_quantities(Nvml(FakeNvml(), 0), "GPU 0")
    assert {each.name: list(each.read()) for each in found} == {
        "clock_mhz": [1755.0],
        "memory_clock_mhz": [2619.0],
        "power_w": [695.5],
    }
    assert device_quantities(None, "GPU 0") == []
