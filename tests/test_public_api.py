"""The Python API that others rely on."""

import subprocess
import sys

import numpy as np
import pytest

import projector as pj
from projector.errors import ConfigError, ScheduleError

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}


def test_import_is_light():
    code = (
        "import projector, sys; print(*sys.modules.keys() & "
        "{'numba', 'numpy', 'torch', 'pandas', 'matplotlib', 'pyarrow', 'scipy', 'pydantic'})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_every_public_name_exists():
    for name in pj.__all__:
        assert getattr(pj, name) is not None
    assert pj.__version__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pj.nothing


def test_results_show_themselves():
    memory, step = pj.project_memory(JOB), pj.project_performance(JOB)
    assert "fits" in repr(memory)
    assert "tokens/s/GPU" in repr(step)
    for result in (memory, step):
        assert result._repr_html_().startswith("<table>")
        assert {"schema_version", "version", "warnings", "uncertainty"} <= result.to_dict().keys()


def test_stable_keys():
    step, memory = pj.project_performance(JOB).to_dict(), pj.project_memory(JOB).to_dict()
    assert {
        "iteration_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu",
        "bubble_fraction", "schedule", "nodes", "gpus", "parallelism", "breakdown_ms",
        "communication", "memory", "bound", "provenance",
    } <= step.keys()  # fmt: skip
    assert step["parallelism"].keys() == {"tp", "pp", "vpp", "cp", "ep", "etp", "dp"}
    assert all(
        entry.keys() == {"algorithm", "bytes", "time_ms", "exposed_ms"}
        for entry in step["communication"].values()
    )
    assert {
        "parameters_total", "parameters_active", "device_memory_gib", "peak_gib", "fits",
        "peak_stage", "stages", "components", "documented",
    } <= memory.keys()  # fmt: skip
    assert memory["stages"][0].keys() == {
        "stage", "parameters", "weights_gib", "gradients_gib", "optimizer_gib", "activations_gib",
        "transient_gib", "buffers_gib", "peak_gib", "in_flight_microbatches",
    }  # fmt: skip
    assert memory["components"][0].keys() == {"name", "parameters", "activation_gib", "children"}


def test_target_nodes_keep_the_global_batch():
    step = pj.project_performance(JOB, target_nodes=4)
    assert step.gpus == 32
    assert step.microbatches == 4
    with pytest.raises(ConfigError, match="global_batch_size"):
        pj.project_performance(JOB, target_nodes=64)


def test_all_schedules_are_compared():
    step = pj.project_performance(JOB, schedule="all")
    names = [step.schedule, *(other.schedule for other in step.alternatives)]
    assert sorted(names) == ["1f1b", "gpipe"]
    times = [other.iteration_time_s for other in step.alternatives if other.memory.fits]
    assert all(step.iteration_time_s <= time for time in times)
    with pytest.raises(ScheduleError, match="there is no schedule"):
        pj.project_performance(JOB, schedule="nope")


def test_a_job_that_does_not_fit_is_projected_all_the_same():
    memory = pj.project_memory({**JOB, "model": "llama3.1_405b", "parallelism": {"tp": 8}})
    assert not memory.fits
    assert memory.headroom_bytes < 0
    assert memory.peak_bytes > 0


def test_gemm_time_broadcasts():
    times = pj.gemm_time([[1024], [2048]], [512, 1024, 2048], 4096, device="mi300x")
    assert times.shape == (2, 3)
    assert times[0, 1] == pj.gemm_time(1024, 1024, 4096, device="mi300x")
    assert isinstance(pj.gemm_time(1, 1, 1, device="h100"), float)
    with pytest.raises(ConfigError, match="no native fp8"):
        pj.gemm_time(1, 1, 1, device="a100", dtype="fp8")
    with pytest.raises(ConfigError, match="m is an integer"):
        pj.gemm_time(-1, 1, 1, device="a100")
    with pytest.raises(ConfigError, match="do not broadcast"):
        pj.gemm_time([1, 2], [1, 2, 3], 1, device="a100")


def test_attention_time_broadcasts():
    times = pj.attention_time(1, 32, [1024, 2048, 4096], head_dim=128, device="h100")
    assert np.all(np.diff(times) > 0)
    backward = pj.attention_time(1, 32, 4096, head_dim=128, device="h100", backward=True)
    assert backward > times[-1]


def test_collective_time_broadcasts():
    times = pj.collective_time("all_reduce", [1e6, 1e9], 8, device="h100")
    assert times[1] > times[0]
    across = pj.collective_time("all_reduce", 1e9, 8, device="h100", stride=8)
    assert across > times[1]
    with pytest.raises(ConfigError, match="unknown collective"):
        pj.collective_time("gossip", 1, 2, device="h100")


def test_simulate_schedule():
    assert pj.simulate_schedule("1f1b", pp=8, microbatches=32).makespan_s == pytest.approx(117.0)
