"""The operation table against closed forms of papers and against the model's own counts."""

from typing import get_args

import numpy as np
import pytest

from projector.config import resources
from projector.config.load import load_job
from projector.config.model import BLOCKS, LayerType, Mixer, parts_of
from projector.config.model_file import load_model
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_TO_ALL
from projector.kernels.device import FIRST_NARROW, MATRIX_TYPES
from projector.kernels.moe_exchange import COMBINE, DISPATCH
from projector.lower.batch import JobBatch, job_columns
from projector.lower.stages import Kind, has_part, is_layer
from projector.lower.workloads import build_workloads, lay_out
from projector.operations.counts import count_model
from projector.operations.emit import emit_operations
from projector.operations.recurrent import RECURRENT
from projector.operations.table import (
    ATTENTION,
    BACKWARD,
    COLLECTIVE,
    EXCHANGE,
    FORWARD,
    GEMM,
    MEMORY,
    WEIGHT,
    WHOLE_LAYER,
)
from projector.projection.api import project_performance
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
    unfused = {"training.flash_attention": False}
    assert saved(unfused) == pytest.approx(expected, rel=1e-3)
    # Dropout keeps its mask and what it leaves, 3 of the 5.
    without = {**unfused, "training.attention_dropout": 0.0}
    assert saved(unfused) - saved(without) == 3 * a * b * s**2
    assert saved() == saved({"training.attention_dropout": 0.0})


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


@pytest.mark.parametrize("micro_batch", [1, 2])
@pytest.mark.parametrize("tp", [1, 8])
def test_eager_layers_of_nanotron_keep_copies_and_gathered_inputs(micro_batch, tp):
    # Bytes of a token and H, with an inner width of 2 H: what enters and leaves the norms 4 + 4; Q,
    # K and V as projected 6, K and V once more 4, the output of attention 2 and transposed 2; both
    # halves of the first product 8, the activated one 4, the product of both 4. A head has 4 more.
    nanotron = {"training.framework": "nanotron", "training.micro_batch_size": micro_batch}
    split = {"parallelism.tp": tp, "parallelism.sequence_parallel": tp > 1}
    found = saved({**nanotron, **split}, model="nanotron_1b", gpus_per_node=tp)
    tokens, heads = 2048 * micro_batch, 32
    inside = 6 + 4 + 2 + 8 + 4 + 4 + 2 * (micro_batch > 1)
    assert found == tokens * (2048 * (4 / tp + 4 + inside / tp) + 4 * heads / tp)


def test_compiled_layers_keep_no_copies():
    compiled = {"training.elementwise": "eager", "training.torch_compile": True}
    copies = {f"cluster.software.{part}_copy_bytes": 2 for part in ("gate", "attention")}
    assert saved(compiled | copies, model="nanotron_1b") == saved(compiled, model="nanotron_1b")


@pytest.mark.parametrize(("sequence_parallel", "backward"), [(True, [6, 3]), (False, [0, 0])])
def test_kept_inputs_are_not_gathered_again(sequence_parallel, backward):
    def gathers(keep, phase):
        split = {"tp": 8, "sequence_parallel": sequence_parallel, "keep_gathered_input": keep}
        _, _, table = table_of(
            {f"parallelism.{name}": value for name, value in split.items()}, gpus_per_node=8
        )
        labels = np.array(table.labels)[table.label[table.phase == phase]]
        return int(np.sum(np.char.endswith(labels, "tp.all_gather")))

    # Inputs of attention, MLP and head; gradients of what attention, MLP and embedding leave.
    assert [gathers(keep, BACKWARD) for keep in (False, True)] == backward
    assert gathers(False, FORWARD) == gathers(True, FORWARD) == backward[0] // 2


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


@pytest.mark.parametrize(("overrides", "share"), [({}, 1), ({"parallelism.tp": 2}, 2)])
def test_flop_of_attention_count_both_widths_of_heads(overrides, share):
    job, workloads, table = table_of(overrides, model="deepseek_v2_lite", gpus_per_node=share)
    mla, heads = job.model.mla, job.model.num_attention_heads
    widths = mla.qk_head_dim + mla.qk_pos_emb_head_dim + mla.v_head_dim
    assert mla.qk_head_dim + mla.qk_pos_emb_head_dim != mla.v_head_dim
    core = (table.kind == ATTENTION) & of_kind(workloads, table, Kind.DENSE)
    # Two sequences, of which a token sees half on average; the backward multiplies twice as often.
    forward = 2 * 2 * heads * (2048 * 2048 / 2) * widths / share
    assert table.flop[core & (table.phase == FORWARD)].tolist() == [forward]
    assert table.flop[core & (table.phase == BACKWARD)].tolist() == [2 * forward]


def test_weight_gradients_mirror_the_forward():
    _, _, table = table_of()
    gemm = table.kind == GEMM
    forward = gemm & (table.phase == FORWARD)
    weight = gemm & (table.phase == WEIGHT)
    assert np.array_equal(table.flop[forward], table.flop[weight])


def test_gradients_that_a_kernel_of_its_own_adds():
    """The GEMM writes 2 bytes; they are read again, and the FP32 sum is read and written."""
    apart = {"training.gradient_accumulation_fusion": False}
    _, workloads, table = table_of(apart)
    layer = of_kind(workloads, table, Kind.DENSE)
    gemms = layer & (table.kind == GEMM) & (table.phase == WEIGHT)
    sums = layer & (table.kind == MEMORY) & (table.phase == WEIGHT)
    assert np.all(table.out_bytes[gemms] == 2.0)
    assert np.all(table.bytes[sums] == 10.0 * table.m[gemms] * table.n[gemms])
    # Nothing accumulates under FSDP, which reduces the gradients of each microbatch.
    for overrides in ({}, apart):
        _, _, table = table_of({**overrides, "parallelism.fsdp": 2}, gpus_per_node=2)
        assert not np.any((table.kind == MEMORY) & (table.phase == WEIGHT))
        assert np.all(table.out_bytes[(table.kind == GEMM) & (table.phase == WEIGHT)] == 2.0)
    _, workloads, table = table_of()
    assert not np.any((table.kind == MEMORY) & (table.phase == WEIGHT))
    layer = of_kind(workloads, table, Kind.DENSE)
    gemms = layer & (table.kind == GEMM) & (table.phase == WEIGHT)
    assert np.all(table.out_bytes[gemms] == 8.0)


def test_permutation_without_a_kernel_of_its_own_adds_copies_one_by_one():
    moe = {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 512}
    moved = {}
    for fused in (True, False):
        _, _, table = table_of({"training.moe.permute_fusion": fused}, model={**GPT, "moe": moe})
        labels = np.array(table.labels)[table.label]
        rows = np.isin(labels, ("moe.permute", "moe.unpermute"))
        moved[fused] = table.bytes[rows]
    # Each element of each copy is added by an atomic, which runs at its own rate.
    job, *_ = table_of(model={**GPT, "moe": moe})
    software = job.cluster.software
    atomics = 2 * 2048 * 2 * 1024 * software.atomic_bytes * software.eager_share
    assert np.allclose(moved[False] - moved[True], [0.0, atomics, atomics, 0.0], rtol=1e-5)


EXPERTS = {**GPT, "activation": "swiglu", "activation_clamp": 7.0, "moe": {
    "num_experts": 8, "router_topk": 2, "ffn_hidden_size": 512,
}}  # fmt: skip


def bytes_of(label, overrides=None, model=EXPERTS):
    job, _, table = table_of(overrides, model=model)
    rows = np.array(table.labels)[table.label] == label
    return job, table.bytes[rows]


def test_biases_and_clamps_of_experts_are_operators_of_their_own():
    """One layer of each row of 2 * 2 * 2048 tokens: 512 activations, 1024 outputs."""
    rows = 2 * 2 * 2048
    for label, width, name in (
        ("moe.experts.clamp", 512, "clamp"),
        ("moe.experts.bias", 1024, "bias"),
    ):
        job, moved = bytes_of(label)
        passes = job.cluster.software.expert_passes
        expected = [getattr(passes, f"{name}_{phase}_bytes") for phase in ("forward", "backward")]
        assert np.array_equal(moved, rows * width * np.array(expected, np.float64))
        _, fused = bytes_of(label, {"training.moe.fused_experts": True})
        assert len(fused) == 0
    plain = {**EXPERTS, "activation_clamp": 0.0, "mlp_bias": False}
    for label in ("moe.experts.clamp", "moe.experts.bias"):
        assert len(bytes_of(label, model=plain)[1]) == 0


@pytest.mark.parametrize(
    ("device", "precision", "recipe", "expected"),
    [
        # Reads of 16 bits, writes of 8: hopper's GEMMs read along K alone.
        ("h100", "fp8", "delayed", 2 + 2 * 1),
        ("h100", "fp8", "tensorwise", 2 * 2 + 2 * 1),
        ("h100", "fp8", "rowwise", 4 * 2 + 2 * 1),
        ("b200", "fp8", "delayed", 2 + 1),
        ("b200", "fp8", "tensorwise", 2 * 2 + 1),
        ("b200", "mxfp8", "delayed", 2 + 2 * (1 + 1 / 32)),
    ],
)
def test_recipes_read_and_write_an_operand_as_often_as_they_must(
    device, precision, recipe, expected
):
    given = {
        "training.precision": precision, "training.fp8_recipe": recipe, "cluster.device": device,
    }  # fmt: skip
    _, moved = bytes_of("mlp.fc2.quantise", given, model=GPT)
    assert moved == pytest.approx(np.array([4096, 1024]) * 2 * 2048 * expected)


def test_narrow_experts_pad_rows_by_passes_of_their_own():
    """What arrives and what is returned is read and written in 16 bits, both ways."""
    rows, narrow = 2 * 2 * 2048, {"training.precision": "fp8"}
    _, moved = bytes_of("moe.pad", narrow)
    assert np.array_equal(moved, [8.0 * rows * 1024] * 2)
    for given in (
        {},
        {**narrow, "training.moe.padding_fusion": True},
        {**narrow, "training.moe.fused_experts": True},
        {**narrow, "training.moe.dispatcher": "hybridep"},
    ):
        assert len(bytes_of("moe.pad", given)[1]) == 0


def calls_of(overrides=None, model=EXPERTS, gpus=1):
    _, _, table = table_of(overrides, model=model, gpus_per_node=gpus)
    rows = np.array(table.labels)[table.label] == "moe.host"
    return table.calls[rows]


def test_the_host_dispatches_more_for_more_experts_and_less_for_fused_kernels():
    one = calls_of()
    job, *_ = table_of(model=EXPERTS)
    counts = job.cluster.software.expert_calls
    each = np.add(counts.expert, counts.biased)
    assert np.array_equal(one, np.add(counts.fused, 8 * each))
    twice = {**EXPERTS, "moe": {**EXPERTS["moe"], "num_experts": 16}}
    assert np.array_equal(calls_of(model=twice) - one, 8 * each)
    assert np.all(calls_of({"training.moe.permute_fusion": False}) > one)
    split = {"parallelism.ep": 4}
    chunks = calls_of({**split, "training.moe.permute_fusion": False}, gpus=4)
    fused = {**split, "training.moe.dispatcher": "deepep", "training.moe.permute_fusion": False}
    without = np.add(np.add(counts.route, counts.exchange), 2 * each)
    assert np.array_equal(calls_of(fused, gpus=4), without)
    assert np.array_equal(chunks, np.rint(without + np.multiply(counts.chunk, 8)))


def test_what_a_fused_exchange_delivers_is_permuted_once():
    moe = {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 512}
    labels, moved = {}, {}
    for name in ("alltoall", "deepep"):
        _, _, table = table_of(
            {"training.moe.dispatcher": name, "parallelism.ep": 4},
            model={**GPT, "moe": moe}, gpus_per_node=4,
        )  # fmt: skip
        labels[name] = set(table.labels)
        rows = np.array(table.labels)[table.label] == "moe.permute"
        moved[name] = table.bytes[rows]
    assert labels["alltoall"] - labels["deepep"] == {"moe.sort"}
    # Two of eight experts lie on 4 * (1 - (6/8 * 5/7)) distinct ranks of four.
    copies, once = 2 * 2048 * 2 * 1024, 4.0 * (1.0 - 6 / 8 * 5 / 7)
    assert np.allclose(moved["alltoall"], (1.0 + 2.0) * copies)
    assert np.allclose(moved["deepep"], (once + 2.0) * copies, rtol=1e-4)


def test_a_single_expert_is_a_plain_gemm():
    """A rank that holds one expert launches no grouped kernel, so none of its losses."""
    times = {}
    for share in (0.5, 1.0):
        for experts in (4, 8):
            moe = {"num_experts": experts, "router_topk": 2, "ffn_hidden_size": 512}
            device = {"extends": "h100", "grouped_gemm_efficiency_forward": share}
            projection = project_performance(
                {
                    "model": {**GPT, "moe": moe},
                    "parallelism": {"ep": 4},
                    "training": {
                        "micro_batch_size": 2, "global_batch_size": 64, "seq_length": 2048
                    },
                    "cluster": {"device": device, "gpus_per_node": 4},
                }
            )  # fmt: skip
            times[share, experts] = projection.iteration_time_s
    assert times[0.5, 4] == times[1.0, 4]
    assert times[0.5, 8] > times[1.0, 8]


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


def exchanges_of(nodes=8, ep=64, model="deepseek_v3", **overrides):
    """Rows of dispatch and combine: the table, and which of its rows they are."""
    dotted = {"parallelism.ep": ep, **{f"training.moe.{k}": v for k, v in overrides.items()}}
    _, workloads, table = table_of(dotted, model=model, nodes=nodes, gpus_per_node=8)
    names = np.isin(np.array(table.labels)[table.label], ["moe.dispatch", "moe.combine"])
    return table, of_kind(workloads, table, Kind.MOE) & names


def test_the_plain_dispatcher_is_an_all_to_all_of_every_copy():
    table, rows = exchanges_of()
    assert np.all(table.kind[rows] == COLLECTIVE)
    assert np.all(table.operation[rows] == ALL_TO_ALL)
    assert np.all(table.bytes[rows] == 4096 * 8 * 7168 * 2.0)
    assert table.phase[rows].tolist().count(FORWARD) == 2


def test_a_fused_exchange_sends_a_token_once_to_each_node():
    """DeepSeek-V3 on 8 nodes: top-8 of 256 experts, in 4 of 8 groups."""
    table, rows = exchanges_of(dispatcher="deepep")
    assert np.all(table.kind[rows] == EXCHANGE)
    nodes = 4 * (1 - np.prod([(96 - i) / (128 - i) for i in range(8)]))
    ranks = 32 * (1 - np.prod([(124 - i) / (128 - i) for i in range(8)]))
    assert table.domains_reached[rows] == pytest.approx(nodes, rel=1e-5)
    assert table.ranks_reached[rows] == pytest.approx(ranks, rel=1e-5)
    sent = 4096 * 7168 * 2.0 * (nodes * 7 / 8 + ranks * 7 / 8)
    assert table.bytes[rows] == pytest.approx(sent, rel=1e-5)
    assert table.tokens[rows].tolist() == [4096.0] * len(table.tokens[rows])
    # What crosses the network, over what the plain exchange sends: 8 copies, 7 of 8 elsewhere.
    assert nodes * 7 / 8 / (8 * 7 / 8) == pytest.approx(0.4536, abs=1e-4)


def test_a_group_sends_what_it_receives():
    """Every rank sends to each other one what comes back: copies of all tokens, over all ranks."""
    table, rows = exchanges_of(nodes=2, ep=16, dispatcher="deepep")
    dispatch, combine = (
        rows & (np.array(table.labels)[table.label] == f"moe.{name}") & (table.phase == FORWARD)
        for name in ("dispatch", "combine")
    )
    assert table.bytes[dispatch].sum() == table.bytes[combine].sum()
    assert table.operation[dispatch].tolist() == [DISPATCH] * int(dispatch.sum())
    assert table.operation[combine].tolist() == [COMBINE] * int(combine.sum())


def test_fp8_tokens_have_their_scales():
    for dispatcher in ("alltoall", "deepep"):
        wide, rows = exchanges_of(dispatcher=dispatcher)
        narrow, _ = exchanges_of(dispatcher=dispatcher, dispatch_precision="fp8")
        ratio = narrow.bytes[rows] / wide.bytes[rows]
        there = (np.array(wide.labels)[wide.label] == "moe.dispatch") & (wide.phase == FORWARD)
        assert ratio[there[rows]] == pytest.approx((1 + 4 / 128) / 2)
        assert np.all(ratio[~there[rows]] == 1.0), "combines and gradients stay in 16 bits"


def test_shared_experts_hide_the_exchange():
    on = {"parallelism.moe_shared_expert_overlap": True, "parallelism.ep": 8}
    _, _, table = table_of(on, model="deepseek_v3", gpus_per_node=8)
    label = np.array(table.labels)[table.label]
    for name, fc in (("dispatch", "fc1"), ("combine", "fc2")):
        exchange = label == f"moe.{name}"
        (segment,) = set(table.segment[exchange].tolist())
        assert set(table.segment[label == f"moe.shared.{fc}"].tolist()) == {segment}
        assert np.all(table.exposed_share[exchange] == 0.0)
        assert np.all(table.partner_share[exchange] == 1.0)
    whole = on | {"parallelism.overlap_moe_expert_parallel_comm": True}
    _, _, table = table_of(whole, model="deepseek_v3", gpus_per_node=8)
    exchange = np.isin(np.array(table.labels)[table.label], ["moe.dispatch", "moe.combine"])
    assert set(table.segment[exchange].tolist()) == {WHOLE_LAYER}


def test_a_fused_loss_keeps_half_the_bytes():
    def head(fused):
        _, workloads, table = table_of({"training.cross_entropy_fusion": fused})
        return float(table.saved_bytes[of_kind(workloads, table, Kind.HEAD)].sum())

    logits = 2 * 2048 * 51200
    assert head(False) - head(True) == 2 * logits


def test_every_kind_of_layer_has_a_row_and_emitters():
    layers = {kind for kind in Kind if kind.layer is not None}
    assert {kind.layer for kind in layers} == set(get_args(LayerType))
    assert len(layers) == len({parts_of(kind.layer) for kind in layers})
    mixers = set(get_args(Mixer)) - {"attention"}
    assert {*RECURRENT, *BLOCKS} == mixers
    for kind in layers:
        parts = parts_of(kind.layer)
        assert parts != ((), None)
        assert has_part(np.array([kind]), *mixers).item() == (not mixers.isdisjoint(parts[0]))
        assert all(
            has_part(np.array([kind]), part).item() for part in (*parts[0], parts[1]) if part
        )
    layers.add(Kind.VISION)
    assert is_layer(np.array(list(Kind))).tolist() == [kind in layers for kind in Kind]
    assert [int(kind) for kind in Kind] == list(range(len(Kind)))


def test_a_fused_exchange_takes_its_units_from_what_hides_it():
    def step(units):
        job = load_job(
            {
                "model": "deepseek_v2_lite",
                "parallelism": {"ep": 8, "overlap_moe_expert_parallel_comm": True},
                "training": {
                    "micro_batch_size": 2,
                    "global_batch_size": 64,
                    "seq_length": 4096,
                    "moe": {"dispatcher": "hybridep", "dispatcher_sms": units},
                },
                "cluster": {"device": "h100", "nodes": 1},
            }
        )
        return project_performance(job).iteration_time_s

    # Both hide all of it; more units make it shorter, but take more from the compute.
    assert step(2) > step(16)
    assert step(132) > step(64)


@pytest.mark.parametrize(("gpu", "kind"), [("mi300x", "fp8_block"), ("h100", "fp8")])
def test_blockwise_fp8_runs_on_its_own_kernels_where_a_device_has_them(gpu, kind):
    _, _, table = table_of(
        {"cluster.device": gpu, "training.precision": "fp8", "training.fp8_recipe": "blockwise"}
    )
    linear = (table.kind == GEMM) & (table.dtype >= FIRST_NARROW)
    assert linear.any()
    assert set(table.dtype[linear]) == {MATRIX_TYPES.index(kind)}


@pytest.mark.parametrize(
    ("precision", "recipe", "share"),
    [
        ("bf16", "delayed", 1.0),
        ("fp8", "delayed", 0.5),
        ("fp8", "tensorwise", 0.5),
        ("fp8", "rowwise", 1.0),
        ("mxfp8", "delayed", 33 / 64),
    ],
)
def test_narrow_layers_gather_what_they_quantised_and_reduce_in_16_bits(precision, recipe, share):
    split = {"parallelism.tp": 4, "parallelism.sequence_parallel": True, "cluster.device": "b200"}
    how = {"training.precision": precision, "training.fp8_recipe": recipe}
    sent = []
    for overrides in (split, split | how):
        _, workloads, table = table_of(overrides, gpus_per_node=4)
        layer = np.isin(
            workloads.rows["kind"][table.workload], [kind.value for kind in Kind if kind.layer]
        )
        rows = (table.kind == COLLECTIVE) & layer
        gathers = rows & (table.operation == ALL_GATHER)
        sent.append((table.bytes[gathers], table.bytes[rows & ~gathers]))
    assert sent[1][0] == pytest.approx(sent[0][0] * share)
    assert sent[1][1] == pytest.approx(sent[0][1])
