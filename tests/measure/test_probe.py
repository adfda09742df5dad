"""What a probe measures, and what it reads off copies and GEMMs."""

import pytest

from projector.config.device_file import load_device
from projector.config.load import load_job
from projector.errors import ConfigError, MeasurementError
from projector.measure.probe import (
    SWEPT,
    Processor,
    plan_probe,
    processor,
    read_off,
    settings_of,
)
from projector.measure.task import Answer, Environment, Outcome, Timing

HOST = Processor(clock_mhz=2500.0, core_cache_kib=1024.0, shared_cache_mib=32.0)


def environment(**changes):
    known = {
        "device": "Some Processor",
        "backend": "cpu",
        "memory_bytes": 16 * 2**30,
        "threads": 4,
        "torch": "2.13.0",
    }
    return Environment(**{**known, **changes})


def timed(seconds, *parts):
    timing = Timing(median_s=seconds, low_s=seconds, high_s=seconds, repeats=1)
    return Outcome(status="ok", times=dict.fromkeys(parts or ("time",), timing))


def rates(probe, flop_per_s=4e11, bytes_per_s=2e10):
    """Answer copies and swept GEMMs at one rate, the largest copy at half of it."""
    largest = max(probe.settings.copies)
    for program in probe.task.programs:
        if program.program == "copy":
            slower = 2.0 if program.bytes == largest else 1.0
            yield timed(slower * program.bytes / bytes_per_s)
        elif program.program == "operation" and program.key.label == SWEPT:
            key = program.key
            yield timed(2.0 * key.m * key.n * key.k / flop_per_s)
        else:
            yield Outcome(status="unsupported", message="not here")


def answer_of(probe, **changes):
    return Answer(environment=probe.environment, outcomes=list(rates(probe, **changes)))


def test_a_probe_measures_each_operation_of_its_jobs_once_and_every_layer():
    probe = plan_probe(environment(), host=HOST)
    programs = probe.task.programs
    keys = [program.key for program in programs if program.program == "operation"]
    assert len(set(keys)) == len(keys)
    assert {key.kind for key in keys} == {"gemm", "attention", "memory"}
    assert [each.program for each in programs].count("step") == len(probe.settings.jobs)
    kinds = {each.layer.kind for each in programs if each.program == "layer"}
    assert kinds == {"embedding", "dense", "moe", "head"}
    assert probe.task.threads == 4


def test_what_is_measured_does_not_depend_on_the_machine():
    first = plan_probe(environment(), host=HOST)
    second = plan_probe(environment(threads=64, memory_bytes=2**40), host=Processor())
    assert first.task.programs == second.task.programs


def test_rates_are_read_off_and_everything_says_where_it_comes_from():
    probe = plan_probe(environment(), host=HOST)
    device = load_device(read_off(probe, answer_of(probe)))
    assert device.name == "Some Processor"
    assert device.compute_units == 4
    assert device.matrix_peak_tflops["bf16"] == pytest.approx(0.4)
    assert device.peak_tflops("bf16") == pytest.approx(0.4, rel=1e-3)
    assert device.hbm_peak_tb_per_s == pytest.approx(0.02)
    assert device.hbm_efficiency == pytest.approx(0.5)
    assert device.hbm_gib == pytest.approx(16.0)
    assert device.l2_mib == 32.0
    assert "measured by projector" in device.sources["matrix_peak_tflops.bf16"]
    assert "Some Processor, 4 threads, torch 2.13.0" in device.sources["hbm_peak_tb_per_s"]
    assert "told by the operating system" in device.sources["l2_mib"]
    assert "assumed" in device.sources["tdp_w"]
    assert not [path for path, text in device.sources.items() if "unsourced" in text]


def test_a_machine_that_tells_nothing_gets_assumed_numbers():
    probe = plan_probe(environment(threads=None), host=Processor())
    device = load_device(read_off(probe, answer_of(probe)))
    assert device.compute_units == 1
    assert "assumed" in device.sources["peak_clock_mhz"]
    assert "assumed" in device.sources["l2_mib"]


def test_a_probed_cpu_is_a_device_like_any_other():
    probe = plan_probe(environment(), host=HOST)
    device = read_off(probe, answer_of(probe))
    job = load_job(
        {
            "model": "llama3.2_1b",
            "training": {"micro_batch_size": 1, "global_batch_size": 2, "seq_length": 128},
            "cluster": {"device": device, "nodes": 2},
        }
    )
    assert job.cluster.gpus_per_node == 1
    assert job.cluster.network.name.startswith("Hosts")


def test_a_gpu_extends_the_shipped_profile_of_its_name():
    gpu = environment(device="NVIDIA H100 80GB HBM3", backend="cuda", threads=None)
    probe = plan_probe(gpu)
    assert probe.base == "h100"
    data = read_off(probe, answer_of(probe, bytes_per_s=5.6e12))
    assert data["extends"] == "h100"
    device = load_device(data)
    assert device.hbm_efficiency == pytest.approx(2.8 / 3.35, rel=1e-3)
    assert device.compute_units == 132
    assert probe.task.device == "cuda"


def test_an_unknown_gpu_needs_a_base():
    gpu = environment(device="Some GPU", backend="rocm", threads=None)
    with pytest.raises(ConfigError, match="no shipped device is 'Some GPU'"):
        plan_probe(gpu)
    assert plan_probe(gpu, "mi300x").base == "mi300x"


def test_a_cpu_extends_nothing():
    with pytest.raises(ConfigError, match="a CPU extends no shipped device"):
        plan_probe(environment(), "h100", HOST)


def test_nothing_measured_is_an_error_that_says_why():
    probe = plan_probe(environment(), host=HOST)
    failed = Outcome(status="failed", message="no such instruction")
    answer = Answer(environment=probe.environment, outcomes=[failed] * len(probe.task.programs))
    with pytest.raises(MeasurementError, match="no such instruction"):
        read_off(probe, answer)


def test_processors_are_read_as_linux_tells_of_them(tmp_path):
    assert processor(tmp_path) == Processor()
    cpu = tmp_path / "sys/devices/system/cpu/cpu0"
    for number, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "999K"), (2, "Unified", "2048K"),
         (3, "Unified", "65536K")]
    ):  # fmt: skip
        folder = cpu / f"cache/index{number}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\ncpu MHz\t\t: 2100.5\n")
    told = processor(tmp_path)
    assert told == Processor(clock_mhz=2100.5, core_cache_kib=2048.0, shared_cache_mib=64.0)
    (cpu / "cpufreq").mkdir()
    (cpu / "cpufreq/base_frequency").write_text("2900000\n")
    assert processor(tmp_path).clock_mhz == 2900.0


@pytest.mark.parametrize("backend", ["cpu", "cuda", "rocm"])
def test_settings_of_every_backend_are_read(backend):
    settings = settings_of(backend)
    assert settings.jobs
    assert "bf16" in settings.gemms
    assert bool(settings.start) == (backend == "cpu")
