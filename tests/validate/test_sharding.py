import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector import project_performance
from projector.config.load import load_job
from projector.validate.jobs import JobRow
from projector.validate.row_layout import sharding_fields
from projector.validate.words import said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"zero_stage": 1}),
        ("distributed optimizer (DDP)", {"zero_stage": 1}),
        ("none", {"zero_stage": 0}),
        ("DDP", {"zero_stage": 0}),
        ("NO_SHARD", {"zero_stage": 0}),
        ("ZeRO-1 (distributed optimizer, precision-aware, bf16 grads)", {"zero_stage": 1}),
        ("ZeRO-1 all DP (zero1=-1)", {"zero_stage": 1}),
        ("ZeRO-1 (zero1=8)", {"zero_stage": 1, "sharding_group_size": 8}),
        ("zero stage 2", {"zero_stage": 2}),
        ("zero3 group 64", {"zero_stage": 3, "sharding_group_size": 64}),
        ("ZeRO-2 (Megatron-FSDP)", {"zero_stage": 2}),
        ("Megatron-FSDP optim_grads", {"zero_stage": 2}),
        ("Megatron-FSDP optim_grads_params", "fsdp"),
        ("FSDP FULL_SHARD", "fsdp"),
        ("FSDP2 (torch)", "fsdp"),
        ("FSDP SHARD_GRAD_OP", "kept"),
        ("FSDP2 256", "fsdp"),
        ("FSDP2 32", 32),
        ("FSDP shard 8", 8),
        ("FSDP over 16 GPUs", 16),
        ("HSDP", 8),
        ("hybrid shard within node", 8),
        ("HSDP 16x16", 16),
        ("HSDP shard 32 x replicate 8", 32),
        ("HSDP (replicate 4, shard 64)", 64),
        ("dp_shard=8, dp_replicate=32", 8),
    ],
)
def test_texts_of_sharding(text, expected):
    if isinstance(expected, str):
        expected = {"fsdp": 2, "fsdp_reshard_after_forward": expected != "kept"}
    elif isinstance(expected, int):
        expected = {
            "fsdp": 2, "fsdp_reshard_after_forward": True, "sharding_group_size": expected
        }  # fmt: skip
    assert sharding_fields({"recipe_fsdp": text}, 2, 256, 8) == expected


@given(
    shard=st.integers(2, 512),
    copies=st.integers(2, 64),
    words=st.sampled_from(
        ["HSDP {0}x{1}", "HSDP {0} x {1}", "FSDP2 shard {0}, replicate {1}",
         "HSDP (replicate={1}, shard={0})", "hybrid shard {0} x replicate {1}"]
    ),
)  # fmt: skip
def test_every_spelling_of_a_group_and_its_copies(shard, copies, words):
    assert said({"fsdp_zero": words.format(shard, copies)}, "sharding_group") == str(shard)


@given(st.text(max_size=40), st.integers(1, 4096), st.integers(1, 8))
def test_any_text_makes_legal_fields(text, ranks, node):
    found = sharding_fields({"fsdp_zero": text}, 2, ranks, node)
    assert ranks % found.get("sharding_group_size", 1) == 0


ROW = {
    "model": "Llama-3.1-8B", "gpu": "H100", "n_gpus": "64", "precision": "BF16",
    "seq_len": "8192", "micro_batch": "1", "global_batch": "128", "tp": "2", "pp": "1",
    "source": "somebody/else",
}  # fmt: skip


def job(**changes):
    return load_job(JobRow({**ROW, **changes}).job())


def test_groups_in_rows():
    # Four of the eight ranks of a node are tensor-parallel pairs' data-parallel ranks.
    assert job(fsdp_zero="HSDP").parallelism.sharding_group_size == 4
    assert job(fsdp_zero="FSDP2 32").parallelism.sharding_group_size is None
    assert job(fsdp_zero="ZeRO-1 (zero1=8)").parallelism.sharding_group_size == 8
    copied = job(recipe_fsdp="zero1", recipe_other="n_distopt_inst=4")
    assert copied.parallelism.sharding_group_size == 8
    moe = {"model": "Qwen3-30B-A3B", "ep": "8", "tp": "1", "fsdp_zero": "FSDP2 4"}
    assert job(**moe).parallelism.sharding_group_size is None


def test_copies_do_not_hide_traffic_inside_a_node():
    """Between two copies goes a shard each; the rest still slows the compute beside it."""
    plain = {"fsdp_zero": "FSDP", "n_gpus": "128", "tp": "1", "model": "Llama-3.1-70B"}
    row = {**plain, "n_gpus": "256", "fsdp_zero": "FSDP shard 128", "global_batch": "256"}
    whole, copied = (project_performance(job(**each)) for each in (plain, row))
    assert copied.iteration_time_s > whole.iteration_time_s


def test_microbatches_in_words():
    for text in ("GA 4", "GA4", "grad accum 4", "microbatches 4", "4 microbatches", "micro_num 4"):
        assert job(global_batch="", other_flags=text).training.global_batch_size == 128
    assert job(global_batch="64", other_flags="GA 4").training.global_batch_size == 64


def test_further_remarks():
    assert job(recipe_tp_comm_overlap="true (AsyncTP)").parallelism.tp_comm_overlap == "async_tp"
    assert job(other_flags="no sequence parallel").parallelism.sequence_parallel is False
    assert job(cp="2", other_flags="cp_comm a2a").parallelism.cp_comm_type == "a2a"
    assert not job(recipe_cuda_graph="none:full_iteration").training.cuda_graphs
    assert job(recipe_cuda_graph="local:full_iteration").training.cuda_graphs
    assert not job(recipe_other="grad_acc_fusion=false").training.gradient_accumulation_fusion
    assert job(pp="4", other_flags="VP8").parallelism.vpp == 8


@pytest.mark.parametrize(
    ("printed", "precision", "recipe"),
    [
        ("FP8-CS", "fp8", "tensorwise"),
        ("FP8-SC", "fp8", "blockwise"),
        ("FP8-DS", "fp8", "delayed"),
        ("FP8 (float8 linear)", "fp8", "tensorwise"),
        ("FP8 rowwise", "fp8", "rowwise"),
        ("FP8-MX", "mxfp8", None),
        ("FP8 (MXFP8)", "mxfp8", None),
        ("float8", "fp8", "tensorwise"),
    ],
)
def test_scaling_of_fp8(printed, precision, recipe):
    training = job(precision=printed, source="pytorch/torchtitan x").training
    assert training.precision == precision
    assert recipe is None or training.fp8_recipe == recipe


ZERO_BUBBLE = {
    "model": "GPT-6.2B (zero-bubble)", "gpu": "A100-80GB", "n_gpus": "8", "tp": "1", "pp": "8",
    "num_layers": "30", "micro_batch": "3", "global_batch": "72", "seq_len": "1024",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "schedule", "vpp"),
    [
        ("schedule ZB-V", "zbv-formatted", 2),
        ("schedule V-Half; published", "zbv-greedy-half", 2),
        ("V-Min", "zbv-greedy-min", 2),
        ("schedule: ZB-H1", "zerobubble", 1),
        ("Interleaved 1F1B; AsyncTP", "interleaved", 4),
        ("schedule GPipe", "gpipe", 1),
        ("DualPipe", "dualpipe", 1),
        ("interleaved schedule/mbs not in image", "auto", 1),
    ],
)
def test_schedules_of_rows(text, schedule, vpp):
    found = job(**ZERO_BUBBLE, other_flags=text)
    assert (found.training.schedule, found.parallelism.vpp) == (schedule, vpp)


def test_gpus_by_the_degrees_and_layers_that_are_offloaded():
    assert job(n_gpus="", dp="32").cluster.gpus == 64
    offloaded = job(recipe_activation_offload="cpu_offloading: 16 layers").training
    assert offloaded.activation_offload_fraction == 0.5
