"""The benchmark job: what is given up, in which order, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.projection.jobs import jobs

from projector import project_performance, simulate_schedule
from projector.config.load import load_job
from projector.config.parallelism import divisors
from projector.errors import ConfigError
from projector.measure.keys import keys_of
from projector.measure.programs import lower_job
from projector.measure.reduction import benchmark_job, degrees_of, reduce_job, reduction_lines
from projector.operations.table import GEMM
from projector.projection.evaluate import check_exists, evaluate
from thoroughness import examples

ROOT = Path(__file__).parents[2]


@st.composite
def reductions(draw):
    """Draw a job and its reduction to some devices; what is refused is drawn again."""
    job = draw(jobs())
    offered = draw(st.integers(1, job.cluster.gpus_per_node))
    try:
        return reduce_job(job, offered)
    except ConfigError:
        assume(False)


def lines_of(reduction):
    return reduction_lines(reduction.to_dict())


def _keys(job, kind=GEMM):
    lowered = lower_job(job)
    rows = lowered.rows[lowered.table.kind[lowered.rows] == kind]
    return set(keys_of(lowered.table, rows))


@settings(max_examples=examples(60))
@given(reduction=reductions())
def test_the_benchmark_fits_and_can_be_projected(reduction):
    split, job = reduction.target.parallelism, reduction.job
    assert job.cluster.gpus == reduction.gpus <= reduction.available
    assert (job.parallelism.pp, job.parallelism.vpp, job.cluster.nodes) == (1, 1, 1)
    assert job.parallelism.cp == split.cp
    assert split.tp % job.parallelism.tp == 0
    assert split.ep % job.parallelism.ep == 0
    assert job.model.num_layers == reduction.target.model.num_layers
    assert np.all(evaluate([job]).steps.iteration_s > 0.0)


@settings(max_examples=examples(60))
@given(reduction=reductions())
def test_ranks_keep_their_experts(reduction):
    before, after = reduction.target.model.moe, reduction.job.model.moe
    assume(before is not None)
    each = before.num_experts // reduction.target.parallelism.ep
    now = after.num_experts // reduction.job.parallelism.ep
    assert after.router_topk == before.router_topk <= after.num_experts
    if each * reduction.job.parallelism.ep >= before.router_topk:
        assert now == each
    else:
        # As few as there can be, so that a token finds all that it visits.
        assert (now - 1) * reduction.job.parallelism.ep < before.router_topk <= after.num_experts


@settings(max_examples=examples(60))
@given(target=jobs(**{"training.moe.load": "balanced"}), data=st.data())
def test_gemms_are_those_of_the_target(target, data):
    """Reducing the pipeline and experts changes no GEMM but the router's.

    Unless a token would not find its experts, and but for what the fullest rank has more.
    """
    whole = degrees_of(target)
    fitting = [whole._replace(ep=ep) for ep in divisors(whole.ep)]
    fitting = [degrees for degrees in fitting if degrees.gpus <= target.cluster.gpus_per_node]
    assume(fitting)  # What takes more than a node is not measured.
    job = benchmark_job(target, data.draw(st.sampled_from(fitting)))
    changed = {"moe.router"}
    if target.model.moe is not None and (
        target.model.moe.num_experts // whole.ep != job.model.moe.num_experts // job.parallelism.ep
    ):
        changed |= {"moe.experts.fc1", "moe.experts.fc2"}
    before, after = (
        {key for key in _keys(each) if key.label not in changed} for each in (target, job)
    )
    assert before == after


@settings(max_examples=examples(25))
@given(job=jobs(), data=st.data())
def test_refusals_name_the_least_that_would_do(job, data):
    """What is refused is refused below the least that is named, and not from there on."""
    whole = degrees_of(job).gpus
    roomy = load_job(
        job, {"cluster.nodes": 1, "cluster.gpus_per_node": max(whole, job.cluster.gpus)}
    )
    least = min(n for n in range(1, whole + 1) if _is_reduced(roomy, n))
    assert reduce_job(roomy, least).gpus == least
    if least > 1:
        offered = data.draw(st.integers(1, least - 1))
        with pytest.raises(ConfigError, match=f"at least {least} would do") as raised:
            reduce_job(roomy, offered)
        assert raised.value.key == "benchmark_gpus"
        assert raised.value.value == offered


def _is_reduced(job, offered):
    try:
        return bool(reduce_job(job, offered))
    except ConfigError:
        return False


@settings(max_examples=examples(40))
@given(reduction=reductions())
def test_one_step_a_dimension_in_the_order_of_trust(reduction):
    order = ["pp", "ep", "etp", "tp"]
    taken = [step.dimension for step in reduction.steps]
    assert taken == sorted(set(taken), key=order.index)
    gpus = [reduction.least_gpus, *(step.gpus for step in reduction.steps)]
    assert gpus == sorted(gpus, reverse=True)
    assert gpus[-1] == reduction.gpus
    for step in reduction.steps:
        assert step.after < step.before


def _job(**overrides):
    return load_job(
        {
            "model": "mixtral_8x7b",
            "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 2048},
            "cluster": {"device": "mi355x", "nodes": 8},
            "parallelism": {"pp": 4, "vpp": 2, "ep": 8},
        },
        overrides,
    )


def test_the_pipeline_goes_first_and_then_experts():
    reduction = reduce_job(_job(**{"model.moe.num_experts": 32}), 1)
    assert [(step.dimension, step.before, step.after, step.gpus) for step in reduction.steps] == [
        ("pp", 4, 1, 8),
        ("ep", 8, 1, 1),
    ]
    assert reduction.job.model.moe.num_experts == 4
    assert (reduction.least_gpus, reduction.gpus) == (32, 1)
    assert (reduction.min_dp, reduction.target_dp) == (8, 16)
    check_exists(reduction.job)


def test_context_parallelism_is_never_reduced():
    job = _job(**{"parallelism.cp": 4})
    assert reduce_job(job, 4).job.parallelism.cp == 4
    with pytest.raises(ConfigError, match="at least 4 would do") as raised:
        reduce_job(job, 2)
    assert raised.value.key == "benchmark_gpus"


@pytest.mark.parametrize("offered", [0, -1, 9, True, "two", 2.0])
def test_bad_numbers_of_devices_are_refused(offered):
    with pytest.raises(ConfigError, match="an integer from 1 to 8"):
        reduce_job(_job(), offered)


def test_what_was_reduced_is_told():
    target = _job(
        **{"model.moe.num_experts": 32, "parallelism.tp": 2, "training.recompute": "full"}
    )
    lines = lines_of(reduce_job(target, 1))
    assert lines[:3] == [
        "Benchmark: TP=1, PP=1, VPP=1, EP=1, CP=1, DP=1 (1 GPU, 1 node)",
        "Target:    TP=2, PP=4, VPP=2, EP=8, CP=1, DP=8 (64 GPUs, 8 nodes)",
        "One copy of the target takes 64 GPUs; measured on 1 of 1 offered:",
    ]
    assert [line.split(". ")[1] for line in lines[3:6]] == [
        "PP 4 -> 1: 16 GPUs", "EP 8 -> 1: 2 GPUs", "TP 2 -> 1: 1 GPU",
    ]  # fmt: skip
    assert "Experts 32 -> 4, so that a rank keeps 4" in lines[4]
    assert "collectives are modelled" in lines[5]
    assert "full recomputation" in lines[-2]


def test_stand_ins_are_told():
    target = _job(**{"training.moe.dispatcher": "deepep", "training.optimizer": "muon"})
    reduction = reduce_job(target)
    assert len(reduction.stand_ins()) == 3
    assert reduction.job.training.moe.dispatcher == "alltoall"
    assert reduction.job.training.elementwise == "eager"


def test_nothing_is_reduced_of_what_one_device_holds():
    job = load_job(ROOT / "examples" / "llama3.1_8b_fp8_mi325x.yaml")
    assert lines_of(reduce_job(job))[2:] == [
        "One copy of the target takes 1 GPU of 8: nothing is reduced.",
        "Modelled, not measured: data parallelism.",
        "Scaled from other measured kernels: fused kernels beside GEMMs, from PyTorch's own.",
    ]


def test_copies_share_the_batch_in_proportion():
    """Without a pipeline the closed form is exact: compute is as many times shorter."""
    job = _job(**{"parallelism.pp": 1, "parallelism.vpp": 1})
    reduction = reduce_job(job)
    assert (reduction.min_dp, reduction.target_dp) == (8, 64)
    base, target = (
        project_performance(each).to_dict()["breakdown_ms"]["compute_gemm"]
        for each in (reduction.least_job(), job)
    )
    assert reduction.closed_form_s(base) == pytest.approx(target, rel=1e-9)
    assert reduction.closed_form_s(base, 2.0) == reduction.closed_form_s(base) + 2.0


@settings(max_examples=examples(30))
@given(pp=st.integers(2, 8), copies=st.integers(2, 8), rounds=st.integers(2, 6))
def test_the_closed_form_shortens_the_bubble_too(pp, copies, rounds):
    job = _job(**{
        "parallelism.pp": pp, "parallelism.vpp": 1, "parallelism.ep": 1,
        "model.num_layers": 32, "cluster.nodes": pp * copies, "cluster.gpus_per_node": 1,
        "training.global_batch_size": pp * rounds * copies,
    })  # fmt: skip
    reduction = reduce_job(job)
    assert (reduction.min_dp, reduction.target_dp) == (1, copies)
    base, replayed = (
        simulate_schedule("1f1b", pp=pp, microbatches=count, f=1.0, b=1.0, w=1.0).makespan_s
        for count in (pp * rounds * copies, pp * rounds)
    )
    bubble = 3.0 * (pp - 1)
    short = bubble * (1.0 - reduction.min_dp / reduction.target_dp)
    assert reduction.closed_form_s(base) == pytest.approx(replayed - short, rel=1e-9)


ODD = {
    "uneven ends": {
        "parallelism.decoder_first_pipeline_num_layers": 4,
        "parallelism.decoder_last_pipeline_num_layers": 4,
    },
    "layout": {"parallelism.pipeline_model_parallel_layout": "Ettt|(t*4|)*6tttttL"},
    "embedding counted": {
        "model.num_layers": 30,
        "parallelism.account_for_embedding_in_pipeline_split": True,
        "parallelism.account_for_loss_in_pipeline_split": True,
    },
    "stated dp": {"parallelism.dp": 16},
    "sharded in parts": {
        "parallelism.vpp": 1,
        "parallelism.num_distributed_optimizer_instances": 2,
    },
    "in groups": {"parallelism.vpp": 1, "parallelism.sharding_group_size": 8},
    "fsdp": {"parallelism.pp": 1, "parallelism.vpp": 1, "parallelism.fsdp": 2},
    "zero 3": {"parallelism.zero_stage": 3},
    "fp8": {"training.precision": "fp8", "training.first_last_layers_bf16": 1},
    "block": {"training.recompute": {"method": "block", "num_layers": 1}},
    "listed": {"training.recompute": {"layers": [0, 31]}},
    "offloads": {
        "training.activation_offload_fraction": 0.5,
        "training.optimizer": {"name": "adam", "offload_fraction": 0.5},
    },
    "zero bubble": {"parallelism.vpp": 1, "training.schedule": "zerobubble"},
    "planned": {
        "parallelism.vpp": 1,
        "training.schedule": "seaailab",
        "training.zero_bubble_max_pending_backward": 4,
    },
    "framework": {"training.framework": "megatron"},
    "stated experts' tensors": {"parallelism.tp": 2, "parallelism.etp": 2},
    "one tensor of experts": {"parallelism.tp": 4, "parallelism.etp": 1},
    "order": {"parallelism.rank_order": "tp-cp-ep-pp-dp", "parallelism.ep": 1},
    "head exchange": {"parallelism.cp": 2, "parallelism.cp_comm_type": "a2a"},
    "fused exchange": {"training.moe.dispatcher": "deepep"},
    "whole run": {"run.tokens": 1e12},
}


@pytest.mark.rotated
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("offered", [1, 2, 8])
def test_odd_jobs_are_reduced_or_refused(name, offered):
    target = _job(**{"model.moe.num_experts": 32, **ODD[name]})
    check_exists(target)
    if target.parallelism.cp > offered:
        with pytest.raises(ConfigError, match="cp"):
            reduce_job(target, offered)
        return
    job = reduce_job(target, offered).job
    assert evaluate([job]).steps.iteration_s[0] > 0.0
    assert evaluate([reduce_job(target, offered).least_job()]).steps.iteration_s[0] > 0.0
    if job.parallelism.tp == target.parallelism.tp and offered > 1:
        before, after = _keys(target), _keys(job)
        assert {k for k in before if "router" not in k.label} == {
            k for k in after if "router" not in k.label
        }


def test_the_page_shows_what_is_printed():
    page = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8")
    lines = lines_of(reduce_job(load_job(ROOT / "examples" / "deepseek_v3_h800.yaml")))
    assert "\n".join(lines) in page
