"""The operation table against closed forms of papers and against the model's own counts."""

from typing import get_args

import numpy as np
import pytest

from projector.config import resources
from projector.config.load import load_job
from projector.config.model import LayerType
from projector.config.model_file import load_model
from projector.lower.batch import JobBatch
from projector.lower.jobs import job_columns
from projector.lower.kinds import Kind, is_layer
from projector.lower.workloads import build_workloads, lay_out
from projector.operations.counts import count_model
from projector.operations.emit import LAYERS, emit_operations
from projector.operations.table import COLLECTIVE, EXCHANGE, FORWARD, GEMM, WEIGHT
from reference import parameters as reference

GPT = {
    "num_layers": 2, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16,
    "vocab_size": 51200, "position_embedding": "learned", "normalization": "layernorm",
    "activation": "gelu", "attention_bias": "qkv+out", "mlp_bias": True, "tied_embeddings": True,
    "max_position_embeddings": 2048,
}  # fmt: skip


def table_of(overrides=None, *, model=GPT, nodes=1, gpus_per_node=1):
    job = load_job(
        {
            "model": model,
            "training": {"micro_batch_size": 2, "global_batch_size": 64, "seq_length": 2048},
            "cluster": {"device": "h100", "nodes": nodes, "gpus_per_node": gpus_per_node},
        },
        overrides,
    )
    batch = JobBatch.of([job])
    workloads = build_workloads(batch, job_columns(batch), lay_out(batch))
    return job, workloads, emit_operations(workloads.rows)


def of_kind(workloads, table, kind):
    (workload,) = np.flatnonzero(workloads.rows["kind"] == kind)
    return table.workload == workload


def saved(overrides=None, **where):
    _, workloads, table = table_of(overrides, **where)
    return float(np.sum(table.saved_bytes[of_kind(workloads, table, Kind.DENSE)]))


def test_activations_of_unfused_attention_follow_korthikanti():
    # arXiv 2205.05198, equation 1: sbh (34 + 5 a s / h) bytes a layer, of which two bytes are
    # dropout masks, which modern pretraining does not have.
    s, b, h, a = 2048, 2, 1024, 16
    expected = s * b * h * (32 + 5 * a * s / h)
    assert saved({"training.flash_attention": False}) == pytest.approx(expected, rel=1e-3)


def test_sequence_and_tensor_parallelism_divide_activations():
    # Equation 4: with both, everything is divided by t.
    whole = saved()
    split = saved({"parallelism.tp": 8}, gpus_per_node=8)
    assert split == pytest.approx(whole / 8, rel=1e-3)


def test_tensor_parallelism_alone_keeps_norms_whole():
    # Equation 2: 10 bytes of 34 are not divided; without dropout masks 8 are.
    s, b, h = 2048, 2, 1024
    split = saved({"parallelism.tp": 8, "parallelism.sequence_parallel": False}, gpus_per_node=8)
    assert split == pytest.approx(s * b * h * (8 + 24 / 8), rel=1e-2)


def test_narrow_types_keep_narrow_inputs():
    assert saved({"training.precision": "fp8"}) < saved()


@pytest.mark.parametrize("name", resources.shipped("models"))
def test_parameters_equal_the_plain_count(name):
    job = load_job(
        {
            "model": name,
            "training": {"micro_batch_size": 1, "global_batch_size": 1, "seq_length": 128},
            "cluster": {"device": "mi355x", "gpus_per_node": 1},
        }
    )
    counts = count_model(job)
    model = load_model(name)
    assert counts.parameters_total == reference.parameters_total(model)
    assert counts.parameters_active == reference.parameters_active(model)


def test_flop_of_a_dense_model_follow_six_n_plus_attention():
    job, _, _ = table_of()
    model, s = job.model, 2048
    linear = 2 * (4 * 1024**2 + 2 * 1024 * 4096) + 51200 * 1024
    attention = 12 * model.num_layers * 1024 * s / 2
    expected = s * (6 * linear + attention)
    assert count_model(job).flop_per_sequence == pytest.approx(expected, rel=1e-3)


def test_weight_gradients_mirror_the_forward():
    _, _, table = table_of()
    gemm = table.kind == GEMM
    forward = gemm & (table.phase == FORWARD)
    weight = gemm & (table.phase == WEIGHT)
    assert np.array_equal(table.flop[forward], table.flop[weight])


def test_one_rank_needs_no_communication():
    _, _, table = table_of()
    assert not np.any((table.kind == COLLECTIVE) | (table.kind == EXCHANGE))


def test_experts_fold_over_tensor_parallel_ranks():
    overrides = {"parallelism.tp": 2, "parallelism.ep": 4, "parallelism.etp": 1}
    _, workloads, table = table_of(overrides, model="mixtral_8x7b", gpus_per_node=8)
    rows = of_kind(workloads, table, Kind.MOE)
    label = np.array(table.labels)[table.label]
    fc1 = rows & (label == "moe.experts.fc1") & (table.phase == FORWARD) & (table.kind == GEMM)
    # 2 of 8 experts a rank; 2048 tokens a rank after TP, 2 experts each, 4 ranks send.
    assert table.batch[fc1].tolist() == [2]
    assert table.m[fc1].tolist() == [2 * 2048 // 2 * 2 * 4 // 8]
    assert table.n[fc1].tolist() == [2 * 14336]


def test_deduplication_sends_no_more_than_the_plain_exchange():
    def sent(dispatcher):
        overrides = {"parallelism.ep": 16, "training.moe.dispatcher": dispatcher}
        _, workloads, table = table_of(overrides, model="deepseek_v3", nodes=4, gpus_per_node=8)
        rows = of_kind(workloads, table, Kind.MOE) & (table.kind == EXCHANGE)
        return float(table.remote_bytes[rows].sum())

    assert 0 < sent("deepep") < sent("alltoall")


def test_a_fused_loss_keeps_half_the_bytes():
    def head(fused):
        _, workloads, table = table_of({"training.cross_entropy_fusion": fused})
        return float(table.saved_bytes[of_kind(workloads, table, Kind.HEAD)].sum())

    logits = 2 * 2048 * 51200
    assert head(False) - head(True) == 2 * logits


def test_every_kind_of_layer_has_a_row_and_emitters():
    layers = {kind for kind in Kind if kind.layer is not None}
    assert {kind.layer for kind in layers} == set(get_args(LayerType))
    assert set(LAYERS) == layers
    assert is_layer(np.array(list(Kind))).tolist() == [kind in layers for kind in Kind]
    assert [int(kind) for kind in Kind] == list(range(len(Kind)))
