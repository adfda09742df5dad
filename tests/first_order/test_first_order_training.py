import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import projector as pj
from projector.config.first_order import FirstOrderDevice, first_order_device
from projector.config.first_order_job import FirstOrderJob, load_first_order_job
from projector.errors import ConfigError
from projector.first_order.results import project_performance
from projector.units import GIB

JOB = {
    "model": "llama3.1_70b",
    "parallelism": {"tp": 8, "pp": 4},
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 16},
}


def project(**overrides):
    changed = {name.replace("__", "."): value for name, value in overrides.items()}
    return project_performance([load_first_order_job(JOB, changed)])[0]


def test_a_step_by_hand():
    step = project()
    parameters = 70_553_706_496
    compute_s = 6 * parameters * 256 * 8192 / (128 * 0.45 * 989.4e12)
    held = parameters / 32
    # Four replicas of eight ranks each: every one of a group lies in another node.
    all_reduce_s = 2 * 3 / 4 * held * 4 / 50e9
    others_s = all_reduce_s + 3 / 64 * compute_s
    assert step.iteration_time_s == pytest.approx(compute_s + 0.2 * others_s, rel=1e-3)
    assert sum(step.breakdown_s.values()) == pytest.approx(step.iteration_time_s)
    assert step.bubble_fraction == 3 / 64
    assert step.bound == "compute"
    states = held * (2 + 4 + 12 / 4)
    activations = 80 * 8192 * 8192 * 34 / 8
    assert step.memory.peak_bytes == pytest.approx(states + activations)


def test_what_a_job_says_reaches_the_closed_forms():
    whole = project()
    full = project(training__recompute="full")
    assert full.memory.terms_bytes["activations"] == pytest.approx(
        0.3 * whole.memory.terms_bytes["activations"]
    )
    scores = project(training__flash_attention=False)
    assert scores.memory.terms_bytes["activations"] > whole.memory.terms_bytes["activations"]
    beside = project(training__gradient_accumulation_fusion=False)
    narrow = project(training__gradient_dtype="bf16")
    gradients = [step.memory.terms_bytes["gradients"] for step in (narrow, whole, beside)]
    assert [each / gradients[0] for each in gradients] == pytest.approx([1.0, 2.0, 3.0])
    crossing = project(parallelism__tp=16)
    assert crossing.breakdown_s["tp_comm"] == pytest.approx(crossing.iteration_time_s * 0.4 / 1.4)
    interleaved = project(parallelism__vpp=2)
    assert interleaved.bubble_fraction == 3 / 128
    assert interleaved.schedule == "interleaved"
    assert project(training__schedule="zerobubble").warnings[0].startswith("the first-order model")


def test_a_domain_of_72_is_not_crossed():
    assert project(cluster__device="gb200", parallelism__tp=16).breakdown_s["tp_comm"] == 0.0
    assert project(parallelism__tp=16).breakdown_s["tp_comm"] > 0.0


def test_experts_are_divided():
    job = {**JOB, "model": "mixtral_8x22b", "parallelism": {"ep": 8, "pp": 4}}
    held = project_performance([load_first_order_job(job)])[0]
    whole = project_performance([load_first_order_job(job, {"parallelism.ep": 1})])[0]
    assert held.memory.terms_bytes["weights"] < 0.2 * whole.memory.terms_bytes["weights"]
    assert held.breakdown_s["compute"] == whole.breakdown_s["compute"]


def test_a_batch_is_as_its_jobs():
    jobs = [
        load_first_order_job(JOB),
        load_first_order_job(JOB, {"cluster.device": "tpu_v5p", "first_order.overlap": 0.1}),
        load_first_order_job(JOB, {"parallelism.tp": 16}),
    ]
    together = project_performance(jobs)
    alone = [project_performance([job])[0] for job in jobs]
    assert [step.to_dict() for step in together] == [step.to_dict() for step in alone]
    assert project_performance([]) == []


def test_constants_are_fields_of_a_job():
    assert project(first_order__training_mfu=0.9).breakdown_s["compute"] == pytest.approx(
        project().breakdown_s["compute"] / 2
    )
    with pytest.raises(ConfigError, match=r"first_order\.overlap"):
        project(first_order__overlap=1.5)


@given(st.floats(1.0, 1e5), st.floats(1.001, 10.0))
def test_a_faster_device_is_never_slower(rate, factor):
    device = {
        "kind": "first_order", "name": "any", "peak_tflops": {"bf16": rate}, "memory_gib": 80,
        "memory_tb_per_s": 3, "scale_up_domain": 8, "scale_up_gb_per_s": rate,
        "scale_out_gb_per_s": rate,
    }  # fmt: skip
    slow = project(cluster__device=device).iteration_time_s
    for field in ("scale_up_gb_per_s", "scale_out_gb_per_s"):
        faster = project(cluster__device={**device, field: rate * factor})
        assert faster.iteration_time_s <= slow * (1 + 1e-12)
    peak = {"bf16": rate * factor}
    assert project(cluster__device={**device, "peak_tflops": peak}).iteration_time_s < slow


def test_from_python():
    step = pj.project_performance(JOB, fidelity="first-order")
    memory = pj.project_memory(JOB, fidelity="first-order")
    assert step.memory.to_dict() == memory.to_dict()
    found = step.to_dict()
    assert found["provenance"]["times"] == found["fidelity"] == "first-order"
    assert {"iteration_time_ms", "mfu", "breakdown_ms", "bound", "gpus"} <= found.keys()
    assert not {"hfu", "communication", "stages", "components", "documented"} & found.keys()
    assert json.loads(json.dumps(found)) == found
    assert pj.project_performance(JOB, target_nodes=32, fidelity="first-order").gpus == 256
    assert "first-order" in repr(step)
    assert "fits" in repr(memory)
    with pytest.raises(ConfigError, match="legal: tiles, first-order"):
        pj.project_performance(JOB, fidelity="second-order")  # type: ignore[call-overload]


def test_devices_without_compute_units():
    job = load_first_order_job(JOB, {"cluster.device": "trn2", "cluster.network": "hgx_h100"})
    assert isinstance(job, FirstOrderJob)
    assert job.cluster.gpus_per_node == 16
    assert "cluster.network" in job.notes[0]
    for call in (pj.project_performance, pj.project_memory):
        for given_job in (job, {**JOB, "cluster": {"device": "trn2"}}):
            with pytest.raises(ConfigError, match="--fidelity first-order") as caught:
                call(given_job)
            assert caught.value.key == "cluster.device"
    fewer = load_first_order_job(job, {"cluster.nodes": 4, "cluster.device.memory_gib": 48.0})
    assert fewer.cluster.gpus == 64
    assert fewer.cluster.device.memory_gib == 48.0


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"parallelism.tp": 3}, "must divide the 128 devices"),
        ({"parallelism.dp": 3}, r"parallelism\.dp is 3"),
        ({"training.global_batch_size": 3}, "must be a multiple of"),
        ({"training.precision": "nvfp4"}, "has no peak of nvfp4"),
        ({"cluster.device": "tpu_v9"}, "unknown GPU"),
        ({"cluster.device": {"extends": "tpu_v5p", "memory_gb": 3}}, "unknown key 'memory_gb'"),
        ({"cluster.device": {"extends": "tpu_v5p", "memory_gib": -3}}, "memory_gib"),
    ],
)
def test_bad_input_is_named(overrides, match):
    with pytest.raises(ConfigError, match=match):
        project_performance([load_first_order_job(JOB, overrides)])


def test_an_ordinary_device_gives_its_datasheet():
    view = first_order_device("h100")
    assert view.peak_flop_per_s("bf16") == pytest.approx(989.4e12, rel=1e-3)
    assert view.scale_up_domain == 8
    assert view.scale_out_gb_per_s == 50.0
    assert view.memory_bytes == view.memory_gib * GIB
    assert first_order_device(view) is view
    assert isinstance(view, FirstOrderDevice)
