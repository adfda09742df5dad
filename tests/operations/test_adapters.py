"""Adapters in the operation table: parameters, GEMMs and kept bytes against plain formulas."""

import numpy as np
import pytest

from projector.config.load import load_job
from projector.errors import ConfigError
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_REDUCE
from projector.lower.batch import JobBatch, job_columns
from projector.lower.stages import Kind
from projector.lower.workloads import build_workloads, lay_out
from projector.operations.counts import count_model
from projector.operations.emit import emit_operations
from projector.operations.linear import NF4_BYTES
from projector.operations.table import BACKWARD, COLLECTIVE, FORWARD, GEMM, WEIGHT
from projector.projection.api import project_memory, project_performance
from projector.report.terminal.step import parameters

H, FFN, HEADS, GROUPS, WIDTH, LAYERS, VOCAB = 512, 1408, 8, 2, 64, 4, 1024
DENSE = {
    "num_layers": LAYERS, "hidden_size": H, "ffn_hidden_size": FFN, "num_attention_heads": HEADS,
    "num_query_groups": GROUPS, "vocab_size": VOCAB, "max_position_embeddings": 4096,
}  # fmt: skip
MOE = {**DENSE, "moe": {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 256}}
MBS, SEQ = 2, 1024
TOKENS = MBS * SEQ
Q, KV = HEADS * WIDTH, GROUPS * WIDTH

SHAPES = {
    "linear_qkv": (H, Q + 2 * KV), "linear_proj": (Q, H), "linear_fc1": (H, 2 * FFN),
    "linear_fc2": (FFN, H), "q_proj": (H, Q), "k_proj": (H, KV), "v_proj": (H, KV),
    "o_proj": (Q, H), "gate_proj": (H, FFN), "up_proj": (H, FFN), "down_proj": (FFN, H),
}  # fmt: skip
"""Target -> inputs and outputs of its layer."""


def job_of(adapter, *, model=DENSE, gpus=1, **overrides):
    training = {"micro_batch_size": MBS, "global_batch_size": 16, "seq_length": SEQ}
    if adapter is not None:
        training["adapter"] = adapter
    cluster = {"device": "h100", "nodes": 1, "gpus_per_node": gpus}
    return load_job({"model": model, "training": training, "cluster": cluster}, overrides)


def layer_of(adapter, kind=Kind.DENSE, **where):
    batch = JobBatch.of([job_of(adapter, **where)])
    workloads = build_workloads(batch, job_columns(batch), lay_out(batch))
    table = emit_operations(workloads.rows)
    (workload,) = np.flatnonzero(workloads.rows["kind"] == kind)[:1]
    return table, table.workload == workload


def kept(adapter, **where):
    table, rows = layer_of(adapter, **where)
    return float(table.saved_bytes[rows].sum())


@pytest.mark.parametrize(
    "targets",
    [
        ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"], ["q_proj", "v_proj"],
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        ["linear_fc2"],
    ],
)  # fmt: skip
def test_parameters_follow_the_definition(targets):
    # r (inputs + outputs) beside each layer; published counts of PEFT are of this form.
    expected = LAYERS * sum(16 * sum(SHAPES[name]) for name in targets)
    job = job_of({"rank": 16, "targets": targets})
    counts, full = count_model(job), count_model(job_of(None))
    assert counts.parameters_trained == expected
    assert counts.parameters_total == full.parameters_total == full.parameters_trained
    memory = project_memory(job)
    assert memory.scalars["parameters_trained"] == expected
    assert memory.stages[0].parameters == full.parameters_total + expected


def test_count_of_trained_parameters_of_llama_3_8b():
    # 32 layers, rank 16: 16 (4096 + 4096) beside q_proj and 16 (4096 + 1024) beside v_proj.
    job = job_of({"rank": 16, "targets": ["q_proj", "v_proj"]}, model="llama3.1_8b")
    assert count_model(job).parameters_trained == 6_815_744


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_each_expert_parallel_rank_trains_an_adapter_of_its_own(ep):
    # One of 16 (H + 2 * 256) beside the experts of each rank, or one beside each expert.
    one = 16 * (H + 2 * 256)
    for how, copies in (("shared", ep), ("each", 8)):
        adapter = {"rank": 16, "targets": ["linear_fc1"], "expert_adapters": how}
        job = job_of(adapter, model=MOE, gpus=8, **{"parallelism.ep": ep})
        memory = project_memory(job)
        assert memory.scalars["parameters_trained"] == LAYERS * copies * one
        assert count_model(job).parameters_trained == LAYERS * copies * one


def test_frozen_weights_have_no_gradient_gemms():
    full, rows = layer_of(None)
    everything = np.sum(rows & (full.kind == GEMM) & (full.phase == FORWARD))
    table, rows = layer_of({"rank": 16})
    gemm = rows & (table.kind == GEMM)
    assert np.sum(gemm & (table.adapter == 0) & (table.phase == FORWARD)) == everything
    assert np.sum(gemm & (table.adapter == 0) & (table.phase == BACKWARD)) == everything
    assert not np.any(gemm & (table.adapter == 0) & (table.phase == WEIGHT))
    for phase in (FORWARD, BACKWARD, WEIGHT):
        assert np.sum(gemm & (table.adapter == 1) & (table.phase == phase)) == 2 * 4


def test_model_flop_leave_gradients_of_frozen_weights_out():
    # 2 + 2 FLOP a weight and token instead of 2 + 4, and 6 for those of adapters.
    full, lora = (count_model(job_of(adapter)) for adapter in (None, {"rank": 16}))
    linear = LAYERS * sum(np.prod(SHAPES[n]) for n in ("linear_qkv", "linear_proj"))
    linear += LAYERS * (3 * H * FFN) + VOCAB * H
    expected = full.flop_per_sequence - 2.0 * SEQ * linear + 6.0 * SEQ * lora.parameters_trained
    assert lora.flop_per_sequence == pytest.approx(expected, rel=1e-12)


def test_kept_bytes_of_a_frozen_layer():
    # Two norms, Q, K, V, O and the logarithms of attention, and both halves before the activation.
    t = TOKENS
    frozen = 2 * t * (2 * H + Q + 2 * KV + Q) + 4 * t * HEADS + 2 * t * 2 * FFN
    rank = 16
    adapter = {"rank": rank, "targets": ["linear_fc1"]}
    # The adapter keeps its input, and what is between A and B.
    assert kept(adapter) == pytest.approx(frozen + 2 * t * (H + rank))
    both = {"rank": rank, "targets": ["gate_proj", "up_proj"]}
    assert kept(both) == pytest.approx(frozen + 2 * t * (H + 2 * rank))
    # Attention keeps the input of the output projection anyhow.
    assert kept({"rank": rank, "targets": ["o_proj"]}) == pytest.approx(frozen + 2 * t * rank)
    # A dropped copy and its mask belong to each adapter alone.
    dropped = kept({**both, "dropout": 0.1})
    assert dropped == pytest.approx(frozen + 2 * 3 * t * H + 2 * 2 * t * rank)
    behind = kept({**both, "dropout": 0.1, "dropout_position": "post"})
    assert behind == pytest.approx(frozen + 2 * t * (H + 2 * rank) + 2 * t * FFN)
    # Full training keeps the inputs of all linear layers.
    assert kept(None) == pytest.approx(frozen + 2 * t * (H + H + FFN))


def test_states_are_those_of_adapters():
    full, lora = (project_memory(job_of(adapter)).stages[0] for adapter in (None, {"rank": 16}))
    trained = LAYERS * sum(16 * sum(SHAPES[n]) for n in SHAPES if n.startswith("linear"))
    assert lora.gradients_bytes == 4 * trained
    assert lora.optimizer_bytes == 12 * trained
    assert lora.weights_bytes == full.weights_bytes + 2 * trained
    assert full.gradients_bytes == 4 * full.parameters


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_shards_what_there_is(zero):
    job = job_of({"rank": 16}, gpus=8, **{"parallelism.zero_stage": zero})
    memory = project_memory(job).stages[0]
    trained = memory.parameters - count_model(job).parameters_total
    assert memory.optimizer_bytes == pytest.approx(12 * trained / 8)
    assert memory.gradients_bytes == pytest.approx(4 * trained / (8 if zero >= 2 else 1))
    assert memory.weights_bytes == pytest.approx(2 * memory.parameters / (8 if zero == 3 else 1))


def test_a_base_in_four_bits():
    plain, packed = (
        project_memory(job_of({"rank": 16, "base_precision": base})).stages[0]
        for base in (None, "nf4")
    )
    linear = LAYERS * (H * (Q + 2 * KV) + Q * H + 3 * H * FFN)
    saved = plain.weights_bytes - packed.weights_bytes
    assert saved == pytest.approx((2.0 - NF4_BYTES) * linear, rel=1e-6)
    assert pytest.approx(4.127, abs=1e-3) == 8 * NF4_BYTES
    times = [
        project_performance(job_of({"rank": 16, "base_precision": base})).iteration_time_s
        for base in (None, "nf4")
    ]
    assert times[1] > times[0]


def test_gradient_traffic_is_that_of_adapters():
    times = {}
    for adapter in (None, {"rank": 16}):
        job = job_of(adapter, model="llama3.1_8b", gpus=8, **{"parallelism.zero_stage": 0})
        entry = project_performance(job).to_dict()["communication"]
        times[adapter is None] = sum(
            item["bytes"] for name, item in entry.items() if name.startswith("dp")
        )
    ratio = times[False] / times[True]
    job = job_of({"rank": 16}, model="llama3.1_8b")
    counts = count_model(job)
    assert ratio == pytest.approx(counts.parameters_trained / counts.parameters_total, rel=0.05)


def test_tensor_parallelism_divides_adapters_as_megatron_bridge_does():
    tp, rank = 2, 16
    table, rows = layer_of({"rank": rank}, gpus=tp, **{"parallelism.tp": tp})
    held = float(table.parameters[rows & (table.adapter == 1)].sum())
    assert held == sum(rank * sum(SHAPES[n]) for n in SHAPES if n.startswith("linear")) / tp
    label = np.array(table.labels)[table.label]
    moved = rows & (table.kind == COLLECTIVE) & np.char.endswith(label, ".lora.all_gather")
    forward = {
        str(label[row]): float(table.bytes[row])
        for row in np.flatnonzero(moved & (table.phase == FORWARD))
    }
    assert forward["attention.qkv.lora.all_gather"] == 2 * TOKENS * rank
    assert forward["attention.proj.lora.all_gather"] == 2 * TOKENS * H
    summed = rows & (table.operation == ALL_REDUCE) & (table.kind == COLLECTIVE)
    assert np.sum(summed & (table.phase == FORWARD)) == 2  # proj and fc2
    # Inputs are not gathered once more, as there is no gradient of the weight to use them.
    again = rows & (table.kind == COLLECTIVE) & (table.operation == ALL_GATHER)
    assert not np.any(again & (table.phase == BACKWARD) & (label == "mlp.tp.all_gather") &
                      (table.segment == 4))  # fmt: skip


def test_one_adapter_beside_all_experts_or_beside_each():
    for how, copies in (("shared", 1), ("each", 8)):
        adapter = {"rank": 16, "targets": ["linear_fc1"], "expert_adapters": how}
        table, rows = layer_of(adapter, kind=Kind.MOE, model=MOE)
        of_experts = rows & (table.adapter == 1) & (table.expert == 1)
        assert table.parameters[of_experts].sum() == copies * 16 * (H + 2 * 256)
    adapter = {"rank": 16, "targets": ["linear_fc1"], "expert_rank": 8}
    table, rows = layer_of(adapter, kind=Kind.MOE, model=MOE)
    assert table.parameters[rows & (table.adapter == 1)].sum() == 8 * (H + 2 * 256)


def test_latent_attention_has_sites_of_its_own():
    everything = {"rank": 16, "targets": ["all-linear"]}
    table, rows = layer_of(everything, model="deepseek_v2_lite")
    label = np.array(table.labels)[table.label]
    adapted = {str(name) for name in label[rows & (table.adapter == 1)]}
    assert {"attention.kv_down.lora_a", "attention.kv_up.lora_b", "attention.q.lora_a"} <= adapted


@pytest.mark.parametrize(
    ("adapter", "where", "key"),
    [
        ({"targets": ["linear_qkv"]}, {"model": "deepseek_v2_lite"}, "targets"),
        ({"rank": 2}, {"gpus": 4, "parallelism.tp": 4}, "rank"),
    ],
)
def test_what_a_model_or_a_split_cannot_have(adapter, where, key):
    with pytest.raises(ConfigError) as caught:
        project_memory(job_of(adapter, **where))
    assert caught.value.key == f"training.adapter.{key}"


def test_full_training_keeps_and_does_more():
    for overrides in (
        {}, {"training.recompute": "full"}, {"training.recompute": "selective"},
        {"parallelism.fsdp": 2}, {"training.precision": "fp8"}, {"parallelism.pp": 2},
    ):  # fmt: skip
        full, lora = (
            job_of(adapter, model="llama3.1_8b", gpus=8, **overrides)
            for adapter in (None, {"rank": 8, "targets": ["linear_qkv"]})
        )
        assert project_memory(lora).peak_bytes < project_memory(full).peak_bytes, overrides
        assert (
            project_performance(lora).iteration_time_s < project_performance(full).iteration_time_s
        ), overrides


def test_reports_tell_what_is_trained_and_what_is_missed():
    adapter = {"rank": 16, "targets": ["linear_qkv", "linear_q_up_proj"]}
    memory = project_memory(job_of(adapter))
    assert memory.to_dict()["parameters_trained"] == LAYERS * 16 * (H + Q + 2 * KV)
    assert [w for w in memory.warnings if "has no linear_q_up_proj" in w]
    assert "in adapters, which alone are trained" in parameters(memory).plain
    assert "trained" not in parameters(project_memory(job_of(None))).plain
