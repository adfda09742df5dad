"""What must hold for every legal job."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from projection.jobs import jobs
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.projection.api import project_jobs, project_performance
from projector.projection.evaluate import evaluate
from projector.projection.performance import performance_projection
from projector.projection.results import Results
from projector.projection.terms import BREAKDOWN, MEMORY_TERMS
from thoroughness import examples

RATES = (
    "vector_tflops",
    "transcendental_per_clk_per_cu",
    "l2_fill_bytes_per_clk_per_cu",
    "l2_tb_per_s",
    "mall_tb_per_s",
    "hbm_peak_tb_per_s",
    "host_link_gb_per_s",
)


def raised(job, change, factor):
    """Return the job on a device with one rate multiplied."""
    device = job.cluster.device
    if change == "clock":
        return load_job(
            job,
            {
                "cluster.device.peak_clock_mhz": device.peak_clock_mhz * factor,
                **{
                    f"cluster.device.sustained_clock_mhz.{kind}": clock * factor
                    for kind, clock in device.sustained_clock_mhz.items()
                },
            },
        )
    if change == "matrix":
        return load_job(
            job,
            {
                f"cluster.device.matrix_flop_per_clk_per_cu.{kind}": rate * factor
                for kind, rate in device.matrix_flop_per_clk_per_cu.items()
            },
        )
    if change == "scale_up":
        return load_job(
            job,
            {
                "cluster.device.scale_up_gb_per_s": device.scale_up_gb_per_s * factor,
                "cluster.device.scale_up_peer_gb_per_s": device.scale_up_peer_gb_per_s * factor,
                "cluster.device.in_network_all_reduce_gb_per_s": factor
                * device.in_network_all_reduce_gb_per_s,
            },
        )
    if change == "nic":
        rate = job.cluster.network.nic_gbit_per_s
        return load_job(job, {"cluster.network.nic_gbit_per_s": rate * factor})
    if change == "atomics":
        rate = device.attention.atomic_gb_per_s
        return load_job(job, {"cluster.device.attention.atomic_gb_per_s": rate * factor})
    return load_job(job, {f"cluster.device.{change}": getattr(device, change) * factor})


@settings(max_examples=examples(200))
@given(jobs())
def test_terms_are_positive_and_add_up(job):
    evaluation = evaluate([job])
    step = performance_projection(Results(evaluation), 0)
    assert math.isfinite(step.iteration_time_s)
    assert step.iteration_time_s > 0.0
    assert tuple(step.breakdown) == BREAKDOWN
    assert min(step.breakdown.values()) >= 0.0
    assert sum(step.breakdown.values()) == pytest.approx(step.iteration_time_s, rel=1e-9)
    assert 0.0 < step.mfu <= 1.0
    assert step.mfu <= step.hfu
    check_exposed(step)
    memory = evaluation.memory(0)
    for term in MEMORY_TERMS:
        values = term.of(memory)
        assert np.all(np.isfinite(values))
        assert np.all(values >= 0.0)
    assert np.all(memory.activations_bytes > 0.0)


def check_exposed(step):
    """Check that what is exposed is part of the whole, and adds up to its term."""
    for name, entry in step.communication.items():
        assert 0.0 <= entry.exposed_s <= entry.time_s * (1.0 + 1e-9), name
    for term, seconds in step.breakdown_s.items():
        group, comm, rest = term.partition("_comm")
        if comm and not rest:
            exposed = [
                entry.exposed_s
                for name, entry in step.communication.items()
                if name.startswith(f"{group}:")
            ]
            assert math.fsum(exposed) == pytest.approx(seconds, rel=1e-9, abs=1e-12), term


@given(
    jobs(),
    st.sampled_from([*RATES, "clock", "matrix", "scale_up", "nic", "atomics"]),
    st.floats(1.0, 8.0),
)
def test_a_faster_machine_is_never_slower(job, change, factor):
    before = project_performance(job).iteration_time_s
    after = project_performance(raised(job, change, factor)).iteration_time_s
    # Durations are rounded to picoseconds, one operation at a time.
    assert after <= before * (1.0 + 1e-9)


APART = {"zerobubble": 1, "zerobubble-h2": 1, "zbv-formatted": 2, "dualpipe": 1}
"""Schedules with W's of their own whose orders depend on no times, and their chunks."""


@settings(max_examples=examples(60))
@given(
    jobs(),
    st.sampled_from([*APART]),
    st.sampled_from([64, 512, 4096]),
    st.sampled_from([*RATES, "clock", "matrix", "scale_up", "nic", "atomics"]),
    st.floats(1.0, 8.0),
)
def test_a_faster_machine_is_never_slower_with_weights_apart(job, name, length, change, factor):
    split = job.parallelism
    fields = {
        "training.schedule": name,
        "training.seq_length": length,
        "parallelism.vpp": APART[name] if split.pp > 1 else 1,
    }
    try:
        job = load_job(job, fields)
        before = project_performance(job).iteration_time_s
    except ProjectorError:
        assume(False)
    after = project_performance(raised(job, change, factor)).iteration_time_s
    # Collectives of layers hide beside a W too: docs/schedules.md, "Shorter operations".
    hides = (
        split.tp > 1 or split.overlap_moe_expert_parallel_comm or split.moe_shared_expert_overlap
    )
    assert after <= before * (1.01 if hides else 1.0 + 1e-9)


def test_a_faster_clock_makes_no_operation_longer_where_the_host_is_late():
    # W got shorter and B, which had what was left of a wait for both, longer: the step by 0.4 %.
    base = load_job(
        {
            "model": "llama3.1_8b",
            "parallelism": {"pp": 4},
            "training": {
                "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048,
                "schedule": "zerobubble",
            },
            "cluster": {"device": "h100", "nodes": 2, "software": {"launch_us": 200}},
        }
    )  # fmt: skip
    fast, faster = (evaluate([raised(base, "clock", factor)]) for factor in (1.5, 3.0))
    assert np.all(faster.pipeline(0).timings.alone_ps <= fast.pipeline(0).timings.alone_ps)
    assert faster.steps.iteration_s[0] <= fast.steps.iteration_s[0]
    assert not np.array_equal(*(each.pipeline(0).timings.alone_ps for each in (fast, faster)))


@settings(max_examples=examples(100))
@given(jobs())
def test_persistent_state_never_grows_with_the_zero_stage(job):
    steps = project_jobs([load_job(job, {"parallelism.zero_stage": stage}) for stage in range(4)])
    states = [
        [s.weights_bytes + s.gradients_bytes + s.optimizer_bytes for s in step.memory.stages]
        for step in steps
    ]
    for less, more in itertools.pairwise(states):
        assert np.all(np.array(more) <= np.array(less))


@settings(max_examples=examples(40))
@given(st.lists(jobs(), min_size=2, max_size=5))
def test_a_batch_equals_its_jobs_alone(batch):
    together = project_jobs(batch)
    for step, job in zip(together, batch, strict=True):
        alone = project_performance(job)
        assert step.to_dict() == alone.to_dict()
        assert step.memory.to_dict() == alone.memory.to_dict()


def test_assumptions_of_the_loss_and_the_host_are_each_jobs_own():
    base = load_job(
        {
            "model": "mixtral_8x7b",
            "parallelism": {"tp": 2, "etp": 1, "ep": 8, "pp": 2},
            "training": {
                "micro_batch_size": 1, "global_batch_size": 32, "seq_length": 1024,
                "cross_entropy_fusion": False,
            },
            "cluster": {"device": "h100", "nodes": 2, "software": {"moe_layer_ms": 9.0}},
        }
    )  # fmt: skip
    software = "cluster.software"
    assumed = base.cluster.software.unfused_loss
    changes = {f"{software}.unfused_loss.{name}": 10 * value or 100 for name, value in assumed}
    changes[f"{software}.moe_layer_parts"] = (0.0, 1.0)
    varied = [base] + [load_job(base, {field: value}) for field, value in changes.items()]
    for batch in (varied, varied[::-1]):
        for step, job in zip(project_jobs(batch), batch, strict=True):
            alone = project_performance(job)
            assert step.to_dict() == alone.to_dict()
            assert step.memory.to_dict() == alone.memory.to_dict()
    plain, *others = project_jobs(varied)
    for step in others:
        moved = step.iteration_time_s != plain.iteration_time_s
        stages = [each.memory.to_dict()["stages"] for each in (step, plain)]
        assert moved or stages[0] != stages[1]
    # Another loss, another field: nothing moves.
    fused = load_job(base, {f"{software}.fused_loss.forward_bytes": 400})
    assert project_performance(fused).iteration_time_s == plain.iteration_time_s


@settings(max_examples=examples(40))
@given(jobs(), st.floats(0.3, 1.0))
def test_a_slower_clock_is_never_faster(job, share):
    peak = job.cluster.device.peak_clock_mhz
    slow, fast = (
        project_performance(load_job(job, {"cluster.gpu_clock_mhz": peak * part}))
        for part in (share, 1.0)
    )
    assert fast.iteration_time_s <= slow.iteration_time_s * (1.0 + 1e-9)


def test_context_parallelism_divides_attention_by_its_degree():
    base = {
        "model": "llama3.1_8b",
        "training": {"micro_batch_size": 1, "global_batch_size": 1, "seq_length": 131072},
        "cluster": {"device": "h100", "nodes": 1},
    }
    one = load_job(base, {"cluster.gpus_per_node": 1})
    for kind in ("p2p", "all_gather", "a2a"):
        eight = load_job(base, {"parallelism.cp": 8, "parallelism.cp_comm_type": kind})
        ratio = (
            project_performance(one).breakdown["compute_attention"]
            / project_performance(eight).breakdown["compute_attention"]
        )
        assert ratio == pytest.approx(8.0, rel=0.1)


BIG = {
    "model": "llama3.1_405b",
    "parallelism": {
        "tp": 8, "pp": 16, "vpp": 8, "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    },
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 64},
}  # fmt: skip


@pytest.mark.parametrize("switch", ["overlap_param_gather", "overlap_grad_reduce"])
def test_overlapping_data_parallel_traffic_helps(switch):
    # Gathers once stood in the first forward of every stage, one after the other, so that
    # overlapping made the step slower; and a reduction that was not overlapped ran beside the
    # next chunk all the same.
    on, off = (
        project_performance(load_job(BIG, {f"parallelism.{switch}": value}))
        for value in (True, False)
    )
    assert on.iteration_time_s < off.iteration_time_s
    assert on.breakdown["dp_comm"] < off.breakdown["dp_comm"]


def test_the_bubble_of_equal_stages_is_the_closed_form():
    job = load_job(BIG, {"training.global_batch_size": 512, "cluster.software.step_overhead_ms": 0})
    step = project_performance(job)
    assert step.microbatches == 128
    assert step.bubble_fraction == pytest.approx(15 / (8 * 128), abs=0.05)


def test_uneven_stages_are_named():
    job = load_job(
        {
            "model": "llama3.1_8b",
            "parallelism": {"pp": 4, "decoder_last_pipeline_num_layers": 20},
            "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
            "cluster": {"device": "h100", "nodes": 1},
        }
    )
    step = project_performance(job)
    assert step.bound.startswith("uneven pipeline stages: stage 3")
    assert step.bubble_fraction < 0.5
    warned = load_job(
        job, {"parallelism.decoder_last_pipeline_num_layers": None, "model.num_layers": 30}
    )
    assert "do not divide" in project_performance(warned).to_dict()["warnings"][0]
