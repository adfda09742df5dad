"""The Python API that others rely on."""

import json
import subprocess
import sys

import numpy as np
import pytest

import projector as pj
from projector.errors import ConfigError, ProjectorError, ScheduleError, shown
from projector.lower.hardware import RUNS
from projector.schedule.registry import SCHEDULES
from projector.single.attention import project_attention
from projector.single.gemm import gemm_case

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}


def test_import_is_light():
    code = (
        "import projector, sys; print(*sys.modules.keys() & "
        "{'numba', 'numpy', 'torch', 'pandas', 'matplotlib', 'pyarrow', 'scipy', 'networkx', "
        "'pydantic'})"
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
    assert {*names, *(name for name, _ in step.left_out)} == {*SCHEDULES}
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
    with pytest.raises(ConfigError, match="m must be an integer"):
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


BEYOND_64_BITS = [2**63, 10**20, -(10**20), 10**400, [1, 10**20], 10**5000]


@pytest.mark.parametrize("value", BEYOND_64_BITS, ids=lambda value: shown(value)[:24])
def test_integers_of_more_than_64_bits(value):
    # They once were "no number and no array of numbers", and those without text a ValueError.
    says = "must be an integer from 0 to 2**40, got "
    assert f"m {says}" in refused(pj.gemm_time, value, 1, 1, device="h100").message
    for name in ("kv_heads", "head_dim", "v_head_dim", "window"):
        sizes = {"head_dim": 64, "device": "h100", name: value}
        assert f"{name} {says}" in refused(pj.attention_time, 1, 8, 64, **sizes).message
    ranks = refused(pj.collective_time, "all_reduce", 1e6, value, device="h100")
    assert f"ranks {says}" in ranks.message
    stride = refused(pj.collective_time, "all_reduce", 1e6, 8, device="h100", stride=value)
    assert len(stride.message) < 120
    for clock in (pj.gemm_time, pj.attention_time):
        sizes = {"head_dim": 64} if clock is pj.attention_time else {}
        assert refused(clock, 1, 8, 8, device="h100", clock_mhz=value, **sizes).key == "clock_mhz"
    assert pj.collective_time("all_reduce", 10**20, 8, device="h100") > 0


@pytest.mark.parametrize("field", ["compute_units", "dies", "attention.forward_rows"])
def test_counts_of_more_than_64_bits(field):
    changes = {f"cluster.device.{field}": 10**20}
    error = refused(pj.load_job, JOB, changes)
    assert error.message == (
        f"cluster.device.{field}: should be less than or equal to {2**30} (got {10**20})"
    )


@pytest.mark.parametrize(
    "field", ["transcendental_per_clk_per_cu", "matrix_flop_per_clk_per_cu.bf16", "power.idle_w"]
)
def test_numbers_whose_products_leave_a_float(field):
    error = refused(pj.load_job, JOB, {f"cluster.device.{field}": 1e300})
    assert error.key == f"cluster.device.{field}"
    assert error.message.endswith("should be less than or equal to 1000000000000000 (got 1e+300)")


def test_times_that_leave_a_float():
    # NumPy once warned of the overflow before the error.
    job = pj.load_job(JOB, {"cluster.device.hbm_peak_tb_per_s": 1e-300})
    assert "a time is negative, not finite" in refused(pj.project_performance, job).message


NO_EXTENTS = [
    None, -1, 1.5, np.nan, np.inf, "8", "abc", b"x", 1j, [1j], 2**70, [1, [2]], True, object(), {},
    np.array([1, None], object), np.array(["2020-01-01"], "datetime64[D]"), np.timedelta64(3),
]  # fmt: skip


def refused(call, *arguments, **keywords):
    with pytest.raises(ProjectorError) as caught:
        call(*arguments, **keywords)
    assert caught.value.key
    assert caught.value.allowed is not None
    json.dumps(caught.value.to_dict(), allow_nan=False)
    return caught.value


@pytest.mark.parametrize("value", NO_EXTENTS, ids=lambda value: repr(value).split(" at ")[0])
def test_what_is_no_extent(value):
    for name in ("m", "n", "k", "batch"):
        extents = {"m": 64, "n": 64, "k": 64, "batch": 1, name: value}
        error = refused(
            pj.gemm_time, extents["m"], extents["n"], extents["k"],
            batch=extents["batch"], device="h100",
        )  # fmt: skip
        assert error.key == name
    if value is not None:  # None stands for a default
        refused(pj.attention_time, 1, 8, 64, value, head_dim=64, device="h100")
    refused(pj.attention_time, 1, 8, 64, head_dim=64, window=value, device="h100")
    refused(pj.collective_time, "all_reduce", 1e6, value, device="h100")


@pytest.mark.parametrize("clock", [-1, 0, 0.5, np.nan, np.inf, "8", [1000], np.array([1e3]), 9000])
def test_a_clock_that_the_device_does_not_have(clock):
    attention = {"head_dim": 64, "device": "h100", "clock_mhz": clock}
    assert refused(pj.attention_time, 1, 8, 64, **attention).key == "clock_mhz"
    error = refused(pj.gemm_time, 64, 64, 64, device="h100", clock_mhz=clock)
    assert error.key == "clock_mhz"
    assert "peak clock of NVIDIA H100" in error.message
    assert pj.gemm_time(64, 64, 64, device="h100", clock_mhz=np.float64(1500)) > 0


@pytest.mark.parametrize("device", ["h100", "mi300x"])
@pytest.mark.parametrize("run", ["sprint", "TRAINING", "", None, 5, [], np.array(["short", "x"])])
def test_a_run_that_is_none(run, device):
    options = {"device": device, "run": run}
    for error in (
        refused(pj.gemm_time, 64, 64, 64, **options),
        refused(gemm_case, **options),
        refused(pj.attention_time, 1, 8, 64, head_dim=64, **options),
        refused(project_attention, 1, 8, 64, head_dim=64, **options),
    ):
        assert (error.key, error.allowed) == ("run", ["training", "loaded", "short"])
        assert error.message.startswith("run must be one of training, loaded, short, got ")


def test_the_run_of_attention_is_its_clock():
    shape, options = (1, 8, 4096), {"head_dim": 128, "device": "h100"}
    times = {run: pj.attention_time(*shape, run=run, **options) for run in RUNS}
    assert times["training"] == times["loaded"] == pj.attention_time(*shape, **options)
    assert times["short"] == project_attention(*shape, run="short", **options).time_s[0]
    assert times["short"] < times["training"]


@pytest.mark.parametrize("value", [np.nan, None, -1, -np.inf, np.inf, 1e9, "2"])
def test_bytes_of_an_output(value):
    assert refused(pj.gemm_time, 1, 1, 1, device="h100", out_bytes=value).key == "out_bytes"


@pytest.mark.parametrize("value", ["abc", None, np.nan, 2, [True]])
def test_switches_of_attention(value):
    for name in ("causal", "backward"):
        keywords = {"head_dim": 64, "device": "h100", name: value}
        assert refused(pj.attention_time, 1, 8, 64, **keywords).key == name


def test_key_heads_divide_the_heads():
    assert pj.attention_time(1, 8, 64, head_dim=64, kv_heads=[1, 2, 8], device="h100").shape == (3,)
    for heads in (3, 16, 0):
        error = refused(pj.attention_time, 1, 8, 64, head_dim=64, kv_heads=heads, device="h100")
        assert (error.key, error.value) == ("kv_heads", heads)


@pytest.mark.parametrize("stride", ["abc", None, [1, 8], np.nan, 1.5, 0, -1, True])
def test_strides(stride):
    assert refused(pj.collective_time, "all_reduce", 1, 2, device="h100", stride=stride).key


def test_names_that_are_none():
    assert refused(pj.gemm_time, 1, 1, 1, device="h100", dtype=np.array([])).key == "dtype"
    assert refused(pj.collective_time, ["all_reduce"], 1, 2, device="h100").key == "operation"
    network = refused(pj.collective_time, "all_reduce", 1, 2, device="h100", network=[[1]])
    assert network.key == "cluster.network"
    assert refused(pj.simulate_schedule, [], pp=4).key == "schedule"
    assert refused(pj.simulate_schedule, "1f1b", pp=4, f=[1j] * 4).key == "f"


@pytest.mark.filterwarnings("error")
def test_empty_arrays():
    assert pj.gemm_time([], 64, 64, device="h100").shape == (0,)
    assert pj.gemm_time(np.ones((0, 3)), 64, 64, device="h100").shape == (0, 3)
    assert pj.attention_time([], 8, 64, head_dim=64, device="h100").shape == (0,)
    assert pj.collective_time("all_reduce", 1e6, [], device="h100").shape == (0,)
    assert pj.collective_time("send_recv", [], 2, device="h100").shape == (0,)
    assert pj.gemm_time([64], 64, 64, device="h100").flags.writeable


def test_the_largest_arguments_are_finite():
    most = 1 << 40
    assert np.isfinite(pj.gemm_time(most, most, most, batch=most, device="h100"))
    sizes = {"head_dim": 256, "kv_heads": 1, "device": "h100"}
    assert np.isfinite(pj.attention_time(most, 128, most, **sizes))
    assert np.isfinite(pj.collective_time("all_reduce", 1e24, most, device="h100", stride=most))


@pytest.mark.parametrize("job", [None, 1, b"x", [JOB]])
def test_what_is_no_job(job):
    assert refused(pj.project_performance, job).key == "config"
    assert refused(pj.project_memory, job).key == "config"


def test_batches_of_jobs():
    assert pj.project_jobs([]) == []
    for jobs in (JOB, "job.yaml", None, 1):
        assert refused(pj.project_jobs, jobs).key == "jobs"
    assert refused(pj.project_performance, JOB, schedule=[]).key == "training.schedule"
