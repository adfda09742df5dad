import pytest

import projector
from projector.config.load import load_job
from projector.validate.jobs import JobRow
from projector.validate.kind import FROM_RECIPE, FROM_ROW, FROM_RULE
from projector.validate.names import family_of, model_of
from projector.validate.training import KIND, why_not_eligible
from projector.validate.words import said

ROW = {
    "model": "Llama-3.1-8B", "gpu": "H100", "n_gpus": "16", "precision": "BF16",
    "seq_len": "4096", "micro_batch": "1", "global_batch": "128", "tp": "2", "pp": "2",
    "vpp": "", "cp": "1", "ep": "1", "dp": "4", "fsdp_zero": "distributed optimizer",
    "recompute": "none", "num_layers": "", "task": "pretrain", "other_flags": "",
    "tokens_per_s_per_gpu": "", "step_time_s": "2.5", "derived_fields": "", "source": "Somebody",
    "recipe_match": "exact", "recipe_tp_comm_overlap": "true",
    "recipe_overlap_grad_reduce": "true", "recipe_overlap_param_gather": "true",
}  # fmt: skip


def changed(**fields):
    return {**ROW, **fields}


def read(**fields):
    reader = JobRow(changed(**fields))
    return reader, reader.job()


def project(*rows):
    return KIND.project(rows)


# Eligibility ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, ""),
        ({"task": "lora"}, ""),
        ({"task": "sft"}, ""),
        ({"task": "inference"}, "task inference, not training on text"),
        ({"other_flags": "SFT on image-text"}, "images or frozen parts beside the text"),
        ({"other_flags": "HybridEP"}, ""),
        ({"task": "SFT"}, ""),
        ({"micro_batch": ""}, "no micro-batch"),
        ({"seq_len": " "}, "no sequence length"),
        ({"step_time_s": ""}, "neither tokens per second nor step time"),
        ({"step_time_s": "", "tokens_per_s_per_gpu": "900"}, ""),
        ({"model": "Nemotron_3_Nano"}, ""),
        ({"other_flags": "hybrid Mamba2"}, "a hybrid model with layers that are not modelled"),
        ({"model": "No such model"}, ""),
        ({"micro_batch": "many"}, ""),
    ],
)
def test_rules(fields, rule):
    assert why_not_eligible(changed(**fields)) == rule


# Names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("Llama-3.1-8B", "Llama-3.1-8B"),
        ("llama3_8b", "Llama-3-8B"),
        ("LLAMA3.1_405B", "Llama-3.1-405B"),
        ("Llama3 70B 2-node", "Llama-3-70B"),
        ("Llama-3-70B (MaxText/JAX)", "Llama-3-70B"),
        ("Llama-3.1-405B (num_layers<126 = proxy)", "Llama-3.1-405B"),
        ("Llama2-34B (fms)", "Llama-2-34B"),
        ("Qwen3_30B_a3B", "Qwen3-30B-A3B"),
        ("Qwen3 MoE 30B", "Qwen3-30B-A3B"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("DeepSeek V3 671B", "DeepSeek-V3"),
        ("Kimi_K2", "Kimi-K2"),
        ("MPT-1b", "MPT-1b"),
        ("Nemotron-340B", "Nemotron-4-340B"),
        ("GPT3-175B (Paxml/JAX)", "GPT3-175B"),
        ("GPT-6.2B (zero-bubble)", "ZB-6.2B"),
        ("GPT-175B (MegaScale)", "MegaScale-175B"),
        ("turing-530B", "Megatron-529.6B"),
        ("Grok-1 314B (num_layers<64 = proxy)", "Grok-1"),
    ],
)
def test_published_names(printed, name):
    assert model_of(printed)["name"] == name


def test_names_that_change_the_architecture():
    assert model_of("llama3-70b-L12")["num_layers"] == 12
    assert model_of("Llama-3-70B 4-layer proxy")["num_layers"] == 4
    assert model_of("llama3-405b-L4")["num_query_groups"] == 16
    proxy = model_of("deepseekv3-L4")
    assert (proxy["num_layers"], proxy["moe"]["layer_freq"]) == (4, [0, 1, 1, 1])
    assert model_of("Grok-1 314B")["vocab_size"] == 128256
    assert model_of("MPT-7b", seq_len=8192)["max_position_embeddings"] == 8192
    assert model_of("gpt-oss-120b", num_layers=9)["sliding_window_layers"] == 4


def test_one_size_of_two_papers():
    old = model_of("GPT-1.7B", seq_len=2048, gpu="A100-80GB")
    new = model_of("GPT-1.7B", seq_len=4096, gpu="H100")
    assert (old["hidden_size"], new["hidden_size"]) == (2304, 2048)


def test_families():
    assert [family_of(name) for name in ("Llama-3-8B", "Mixtral-8x7B", "nothing")] == [
        "dense",
        "moe",
        "",
    ]
    assert said({"model": "Nemotron-H-56B"}, "hybrid_model")
    assert said({"other_flags": "hybrid Mamba2"}, "hybrid_run")
    assert not said({"other_flags": "mock data; fp8 hybrid delayed scaling"}, "hybrid_run")
    assert not said({"model": "Nemotron4-340B"}, "hybrid_model")


# Settings ------------------------------------------------------------------------------------


def test_row_and_recipe():
    reader, job = read()
    assert job["parallelism"]["tp_comm_overlap"] is True
    assert job["parallelism"]["zero_stage"] == 1
    assert job["training"]["recompute"] == "none"
    assert job["training"]["global_batch_size"] == 128
    assert reader.mark == FROM_RECIPE
    assert JobRow(changed(recipe_match="stated")).mark == FROM_ROW


@pytest.mark.parametrize(
    ("stated", "recipe", "expected", "mark"),
    [
        ("full", "none", "full", FROM_RECIPE),
        (
            "full block, 5 of 48 layers",
            "",
            {"granularity": "full", "method": "block", "num_layers": 5},
            FROM_RECIPE,
        ),
        ("full, all 80 layers (block)", "", "full", FROM_RECIPE),
        ("not stated", "full:per block", "full", FROM_RECIPE),
        ("not stated", "unknown", "none", FROM_RULE),
        (
            "not stated",
            "selective:mla_up_proj+mlp",
            {"granularity": "selective", "modules": ["mla_up_proj", "mlp"]},
            FROM_RECIPE,
        ),
        (
            "RMSNorm+MLA up-proj",
            "",
            {"granularity": "selective", "modules": ["layernorm", "mla_up_proj"]},
            FROM_RECIPE,
        ),
    ],
)
def test_recomputation(stated, recipe, expected, mark):
    reader, job = read(recompute=stated, recipe_recompute=recipe)
    assert job["training"]["recompute"] == expected
    assert reader.mark == mark


def test_torchtitan_recomputes_by_operators():
    _, job = read(
        source="pytorch/torchtitan benchmarks", recompute="selective (default)", num_layers="4"
    )
    assert job["training"]["recompute"] == {"granularity": "selective", "modules": ["per_op"]}


@pytest.mark.parametrize(
    ("printed", "source", "other", "expected"),
    [
        ("BF16 (assumed)", "", "", {"precision": "bf16"}),
        ("amp_bf16", "", "", {"precision": "bf16"}),
        ("FP8", "NVIDIA/NeMo x", "", {"precision": "fp8", "fp8_recipe": "delayed"}),
        (
            "FP8",
            "NVIDIA-NeMo/Megatron-Bridge x",
            "",
            {"precision": "fp8", "fp8_recipe": "tensorwise"},
        ),
        ("FP8-CS", "", "", {"precision": "fp8", "fp8_recipe": "tensorwise"}),
        ("FP8 rowwise", "", "", {"precision": "fp8", "fp8_recipe": "rowwise"}),
        ("FP8 (float8 linear)", "", "", {"precision": "fp8", "fp8_recipe": "tensorwise"}),
        ("FP8", "", "fp8_recipe=mxfp8", {"precision": "mxfp8"}),
        ("FP8", "AMD-AGI/Primus x", "", {"precision": "fp8", "fp8_recipe": "delayed"}),
        (
            "FP8",
            "AMD-AGI/Primus@fd1eeabb examples/mlperf/x",
            "",
            {"precision": "fp8", "fp8_recipe": "tensorwise"},
        ),
        ("MXFP8", "", "", {"precision": "mxfp8"}),
        ("NVFP4", "", "", {"precision": "nvfp4"}),
    ],
)
def test_precision(printed, source, other, expected):
    _, job = read(precision=printed, source=source, recipe_other=other)
    assert {key: job["training"].get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "recipe", "expected"),
    [
        ("FSDP FULL_SHARD", "", {"fsdp": 1, "fsdp_reshard_after_forward": True}),
        ("FSDP SHARD_GRAD_OP", "", {"fsdp": 1, "fsdp_reshard_after_forward": False}),
        ("FSDP2 32", "", {"fsdp": 2, "fsdp_reshard_after_forward": True}),
        ("", "fsdp2", {"fsdp": 2, "fsdp_reshard_after_forward": True}),
        ("DDP", "", {"zero_stage": 0}),
        ("ZeRO-1 (Primus default)", "", {"zero_stage": 1}),
        ("", "", {"zero_stage": 1}),
    ],
)
def test_sharding(text, recipe, expected):
    _, job = read(fsdp_zero=text, recipe_fsdp=recipe)
    assert {key: job["parallelism"].get(key) for key in expected} == expected


def test_batches_that_are_not_stated():
    assert read(global_batch="")[1]["training"]["global_batch_size"] == 4 * 8
    _, job = read(global_batch="", recipe_other="yaml mbs 2 / gbs 128, row mbs 1")
    assert job["training"]["global_batch_size"] == 128
    _, job = read(
        global_batch="", pp="1", other_flags="gbs from script comment 12->768,14->896", dp=""
    )
    assert job["training"]["global_batch_size"] == 8 * 8
    _, job = read(source="pytorch/torchtitan x", micro_batch="8", global_batch="32")
    assert job["training"]["micro_batch_size"] == 4


def test_layers_that_stages_do_not_divide():
    both = "account_for_embedding_in_pipeline_split"
    _, job = read(model="Llama-3.1-405B", pp="8", vpp="8", tp="1", n_gpus="64", dp="8")
    assert job["parallelism"][both]
    _, job = read(model="DeepSeek-V3", pp="16", tp="1", n_gpus="16", dp="1")
    assert job["parallelism"]["pipeline_model_parallel_layout"] == ("Etttt|" + "tttt|" * 14 + "tL")
    _, job = read(
        model="DeepSeekV3", pp="8", vpp="4", tp="1", n_gpus="8", dp="1",
        source="NVIDIA-NeMo/Megatron-Bridge docs",
    )  # fmt: skip
    assert job["model"]["mtp_num_layers"] == 1
    assert job["parallelism"]["pipeline_model_parallel_layout"] == "Et|" + "tt|" * 30 + "mL"


def test_mixture_of_experts():
    _, job = read(
        model="Qwen3-30B-A3B", tp="2", ep="4", recipe_moe_dispatcher="flex:hybridep",
        recipe_cuda_graph="full_iteration:default", recipe_moe_overlap="ep_a2a_overlap",
        recipe_overlap_grad_reduce="false",
    )  # fmt: skip
    assert job["parallelism"]["etp"] == 1
    assert job["parallelism"]["overlap_moe_expert_parallel_comm"]
    assert job["parallelism"]["overlap_grad_reduce"] is False
    assert job["training"]["moe"] == {"dispatcher": "hybridep", "host_sync": False}
    assert job["training"]["cuda_graphs"]
    _, job = read(model="Qwen3-30B-A3B", ep="4", other_flags="tokendrop")
    assert job["training"]["moe"]["capacity_factor"] == 1.0


PRIMUS = {"source": "AMD-AGI/Primus x", "model": "Qwen3-30B-A3B", "ep": "4"}


def test_settings_that_rows_of_primus_state():
    _, job = read(
        **PRIMUS, fsdp_zero="ZeRO-1 (precision-aware, bf16 grads)",
        other_flags="DeepEP 80 CU, sync-free stage 1; fused wgrad accumulation",
    )  # fmt: skip
    assert job["training"]["moe"] == {
        "dispatcher": "deepep", "dispatcher_sms": 80, "permute_fusion": True, "host_sync": True
    }  # fmt: skip
    assert job["training"]["optimizer"]["moment_dtype"] == "bf16"
    assert job["training"]["gradient_dtype"] == "bf16"
    assert job["training"]["gradient_accumulation_fusion"]
    _, job = read(**PRIMUS, precision="FP8", other_flags="no fp8 weight transpose cache")
    assert job["training"]["fp8_weight_transpose_cache"] is False
    assert load_job(job).training.fp8_weight_cache
    _, job = read(**PRIMUS, other_flags="sync-free stage 2; alltoall dispatcher")
    assert job["training"]["moe"]["host_sync"] is False
    assert job["training"]["moe"]["dispatcher"] == "alltoall"


def test_settings_that_rows_of_primus_leave_open():
    """Its experiment files and presets differ by model; each rule is named."""
    reader, job = read(**PRIMUS)
    assert job["training"]["moe"]["permute_fusion"] is False
    assert job["training"]["gradient_accumulation_fusion"]
    assert "permutation not fused (Primus)" in reader.notes
    row = {**PRIMUS, "model": "DeepSeek-V2-Lite"}
    _, job = read(**row)
    assert job["training"]["moe"]["permute_fusion"]
    assert not job["training"]["gradient_accumulation_fusion"]
    assert job["parallelism"]["moe_shared_expert_overlap"]
    _, job = read(**row, other_flags="+DeepEP")
    assert "moe_shared_expert_overlap" not in job["parallelism"]
    _, job = read(**{**row, "source": "AMD-AGI/Primus examples/moe_package"})
    assert job["training"]["moe"]["permute_fusion"] is False
    assert "gradient_accumulation_fusion" not in read()[1]["training"]


def test_clusters():
    assert read()[1]["cluster"].nodes == 2
    _, job = read(n_gpus="4", tp="2", pp="2", dp="1")
    assert (job["cluster"].nodes, job["cluster"].gpus_per_node) == (1, 4)
    _, job = read(gpu="A100-80GB", other_flags="1600 Gbps node-node")
    assert job["cluster"].network.nic_gbit_per_s == 200.0


def test_schedules():
    training = read(other_flags="schedule ZB-2p; x", pp="4", dp="2")[1]["training"]
    assert training["schedule"] == "seaailab"
    assert training["zero_bubble_max_pending_backward"] == 8
    assert training["optimizer_post_validation"]
    _, job = read(model="GPT-6.2B (zero-bubble)", other_flags="schedule 1F1B-I; x", pp="8", dp="1")
    assert job["training"]["schedule"] == "interleaved"
    assert job["parallelism"]["vpp"] == 4


# Projection ----------------------------------------------------------------------------------


def test_a_row_is_the_projection_of_its_job():
    outcome = project(ROW)[0]
    expected = projector.project_performance(JobRow(ROW).job()).iteration_time_s
    assert (outcome.status, outcome.predicted, outcome.measured) == ("ok", expected, 2.5)
    assert outcome.ratio == expected / 2.5


def test_a_rate_is_turned_into_time():
    seconds = project(ROW)[0]
    rate = 128 * 4096 / 2.5 / 16
    found = project(changed(step_time_s="", tokens_per_s_per_gpu=str(rate)))[0]
    assert found.ratio == pytest.approx(seconds.ratio)
    assert found.measured == pytest.approx(rate)
    assert found.predicted / found.measured == pytest.approx(1 / found.ratio)


def test_a_derived_step_time_gives_way_to_the_rate():
    found = project(changed(tokens_per_s_per_gpu="1000", derived_fields="step_time_s"))[0]
    assert found.measured == pytest.approx(128 * 4096 / 16 / 1000)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "No such model"}, "unknown model 'No such model'"),
        ({"gpu": "Z80"}, "unknown device 'Z80'"),
        ({"precision": "ternary"}, "unknown precision 'ternary'"),
        ({"n_gpus": "many"}, "n_gpus is 'many', not a number"),
        ({"n_gpus": "1e30"}, "not a count"),
        ({"tp": "0"}, "tp is '0', not a count"),
        ({"loss_chunks": "0"}, "loss_chunks is '0', not a count"),
        ({"loss_chunks": "many"}, "loss_chunks is 'many', not a number"),
        ({"packed_tokens": "many"}, "training.packed_tokens: should be a whole number"),
        ({"tp": "3"}, "does not divide n_gpus"),
        ({"num_layers": "9" * 12}, "not a count"),
        ({"global_batch": "130"}, "not a multiple"),
        ({"step_time_s": "-1"}, "not a positive number"),
        ({"step_time_s": "nan"}, "not a number"),
        ({"other_flags": "schedule fancy"}, "unknown schedule 'fancy'"),
    ],
)
def test_a_bad_row_says_why_and_spoils_no_other(fields, message):
    outcomes = project(changed(**fields), ROW, changed(**fields))
    assert message in outcomes[0].status
    assert outcomes[0].ratio is None
    assert outcomes[1].status == "ok"
    assert outcomes[2] == outcomes[0]


def test_batches_do_not_change_rows():
    rows = [changed(micro_batch=str(2**n), seq_len=str(1024 * s)) for n in range(3) for s in (1, 4)]
    assert project(*rows) == [project(row)[0] for row in rows]
