"""Watts of a device over a step."""

import numpy as np
import pytest
from hypothesis import given, settings

from projection.jobs import jobs
from projector.config.device_file import load_device
from projector.config.load import load_job
from projector.projection.evaluate import evaluate
from projector.projection.money import device_power
from thoroughness import examples

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 1},
}


def power_of(**overrides):
    return device_power(evaluate([load_job(JOB, overrides)]))


def test_training_draws_less_than_tdp_and_more_than_idle():
    power = power_of()
    assert 350.0 < power.step_w[0] < 679.0
    assert power.idle_w[0] == 175.0


def test_by_hand_from_the_operation_table():
    """Row by row, where the model adds up kinds of kernels first."""
    evaluation = evaluate([load_job(JOB)])
    table, rows = evaluation.table, evaluation.rows
    device = load_job(JOB).cluster.device
    count = np.zeros(len(evaluation.workloads.rows))
    np.add.at(count, evaluation.workloads.run_workload, evaluation.workloads.run_count)
    joules = 0.0
    for row in range(len(table)):
        time_s, kind = float(rows.time_s[row]), int(table.kind[row])
        flop = float(table.flop[row]) * (1.25 if kind == 1 and table.phase[row] == 1 else 1.0)
        if kind == 0:
            size = float(table.m[row]) * table.k[row] + float(table.k[row]) * table.n[row]
            num_bytes = 2 * size + float(table.m[row]) * table.n[row] * float(table.out_bytes[row])
        elif kind == 1:
            width = float(table.k[row] + table.d_v[row]) * 2
            num_bytes = width * float(
                table.m[row] * table.heads[row] + table.n[row] * table.key_heads[row]
            )
        else:
            num_bytes = float(table.bytes[row]) * (1 if kind == 2 else 2)
        own = flop * device.power.pj_per_flop["bf16"] * 1e-12
        own += num_bytes * device.power.pj_per_hbm_byte * 1e-12
        if kind < 3:
            own = min(own, time_s * (0.97 * 700 - 175))
        joules += own * float(table.repeats[row]) * count[table.workload[row]]
    step_s = float(evaluation.steps.iteration_s[0])
    watts = 175 + joules * 16 / step_s
    assert device_power(evaluation).step_w[0] == pytest.approx(watts, rel=0.03)


def test_a_lower_clock_draws_less():
    assert power_of(**{"cluster.gpu_clock_mhz": 1000}).step_w < power_of().step_w


def test_idle_steps_draw_less():
    few = power_of(**{"parallelism.pp": 4, "training.global_batch_size": 4})
    many = power_of(**{"parallelism.pp": 4, "training.global_batch_size": 256})
    assert few.step_w < many.step_w


def test_without_a_power_model_a_share_of_tdp():
    power = power_of(**{"cluster.device": {"extends": "h100", "power": None}})
    assert power.step_w[0] == pytest.approx(0.76 * 700)
    assert power.idle_w[0] == pytest.approx(0.25 * 700)


def test_stated_overhead_replaces_that_of_the_family():
    assert power_of().other_w[0] == 400.0
    assert power_of(**{"run.energy.node_overhead_w_per_gpu": 10}).other_w[0] == 10.0


@settings(max_examples=examples(15))
@given(jobs())
def test_every_job_stays_between_idle_and_cap(job):
    power = device_power(evaluate([job]))
    device = job.cluster.device
    assert power.idle_w[0] <= power.step_w[0] <= device.tdp_w * device.power.loaded_share


def test_a_batch_equals_batches_of_one():
    batch = [
        load_job(JOB, {"cluster.device": name, "training.micro_batch_size": micro})
        for name in ("h100", "mi300x", "h100", "b200")
        for micro in (1, 2)
    ]
    together = device_power(evaluate(batch)).step_w
    alone = [device_power(evaluate([job])).step_w[0] for job in batch]
    np.testing.assert_array_equal(together, alone)


def node_kw(job):
    """Return the power of a node without the network."""
    power = device_power(evaluate([job]))
    return 8 * (power.step_w[0] + power.other_w[0] - 50.0) / 1e3


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_node_of_h100_in_training(micro_batch):
    """Demanding training takes 7.75 kW of such a node, and 8.4 kW at most."""
    job = load_job(
        JOB,
        {
            "model": "llama2_13b",
            "parallelism": {"fsdp": 2},
            "training.recompute": "full",
            "training.seq_length": 4096,
            "training.micro_batch_size": micro_batch,
        },
    )
    assert 7.75 * 0.88 < node_kw(job) < 8.4


@pytest.mark.parametrize(
    ("name", "kind", "tflops", "measured_w", "error"),
    [
        ("h200", "bf16", 820.6, 588, 0.16),
        ("h200", "fp8", 1227.5, 688, 0.02),
        ("b200", "bf16", 1458, 693, 0.41),
        ("b200", "fp8", 1754, 883, 0.07),
        ("gb200", "bf16", 1536, 1177, 0.02),
        ("gb200", "fp8", 2818, 1178, 0.02),
    ],
)
def test_power_models_against_logged_power(name, kind, tflops, measured_w, error):
    """GEMMs of about a second; the table of docs/cost.md."""
    device = load_device(name)
    free_w = device.power.idle_w + device.power.pj_per_flop[kind] * tflops
    watts = min(device.tdp_w * device.power.loaded_share, free_w)
    assert abs(watts / measured_w - 1.0) < error
