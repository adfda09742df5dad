"""MaxText's settings: in experiments of Primus over presets, and in files of their own."""

import pytest

from projector.config.load import load_job
from projector.config.resources import settings_of
from projector.errors import ConfigError

EXPERIMENT = """
exp_name: ${{PRIMUS_EXP_NAME:jax}}
modules:
  pre_trainer:
    framework: maxtext
    config: pre_trainer.yaml
    model: {model}
    overrides:
      steps: ${{STEPS:50}}
      per_device_batch_size: ${{LOCAL:2}}
      max_target_length: 4096
{more}
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("PRIMUS_TP", "PRIMUS_PP", "PRIMUS_EP", "NNODES", "GPUS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


def experiment(tmp_path, preset="llama3_8B.yaml", more="", **overrides):
    folder = tmp_path / "MI300X"
    folder.mkdir(exist_ok=True)
    path = folder / "pretrain.yaml"
    lines = "".join(f"      {line}\n" for line in more.splitlines())
    path.write_text(EXPERIMENT.format(model=preset, more=lines))
    return load_job(path, {name.replace("__", "."): value for name, value in overrides.items()})


def plain(tmp_path, text="", **overrides):
    path = tmp_path / "config.yml"
    path.write_text(f"per_device_batch_size: 2\nmax_target_length: 4096\n{text}")
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_job(path, {"cluster.device": "h100"} | given)


def test_presets_of_primus_hold_where_the_experiment_says_nothing(tmp_path):
    found = experiment(tmp_path)
    training = found.training
    assert (found.name, found.model.name) == ("jax", "Llama-3-8B")
    assert found.cluster.device.name == "AMD Instinct MI300X"
    assert training.framework.name == "maxtext"
    # Weights of 16 bits have no copy, and states and gradients of their type.
    assert training.optimizer.master_weights == "none"
    assert training.optimizer.moment_dtype == training.gradient_dtype == "bf16"
    assert training.recompute.granularity == "full"
    assert training.flash_attention
    assert (found.parallelism.fsdp, found.cluster.nodes) == (2, 1)
    assert (training.micro_batch_size, training.global_batch_size) == (2, 16)
    assert found.origins["training.optimizer.master_weights"] == "Primus preset (assumed)"
    assert found.origins["training.recompute"] == "MaxText default"
    assert found.origins["training.global_batch_size"] == "derived as MaxText does"
    assert found.notes == ()
    assert found.ignored == ("steps",)


def test_maxtext_itself_keeps_weights_in_32_bits(tmp_path):
    training = plain(tmp_path, "model_name: llama2-7b\n").training
    assert training.optimizer.master_weights == "shared"
    assert training.optimizer.moment_dtype == training.gradient_dtype == "fp32"
    assert training.grad_reduce_dtype == "bf16"
    types = plain(
        tmp_path, "model_name: llama2-7b\ndtype: float32\ngrad_dtype: bfloat16\n"
    ).training
    assert (types.precision, types.gradient_dtype, types.grad_reduce_dtype) == (
        "fp32",
        "bf16",
        "fp32",
    )


MIXTURE = """dcn_data_parallelism: -1
ici_fsdp_parallelism: 1
ici_expert_parallelism: -1
sparse_matmul: false
megablox: false
capacity_factor: 1.25
quantization: nanoo_fp8
remat_policy: minimal_flash
sharding_tolerance: 0.05
expert_balance: true"""


def test_experts_share_a_node_and_their_tokens_have_a_capacity(tmp_path, monkeypatch):
    monkeypatch.setenv("NNODES", "2")
    found = experiment(tmp_path, "deepseek_v2_16B.yaml", MIXTURE)
    split, moe = found.parallelism, found.training.moe
    assert found.model.name == "DeepSeek-V2-Lite"
    assert (split.ep, split.fsdp, split.num_distributed_optimizer_instances) == (8, 2, 2)
    assert (moe.capacity_factor, moe.host_sync) == (1.25, False)
    assert (found.training.precision, found.training.fp8_recipe) == ("fp8", "delayed")
    assert found.training.recompute.modules == ("layernorm", "moe_act")
    assert found.training.global_batch_size == 2 * 16
    assert found.notes == (
        "sparse_matmul is not modelled: the products with masks that sort tokens are left out",
    )


def test_without_a_capacity_every_expert_works_on_every_token(tmp_path):
    found = experiment(tmp_path, "mixtral_8x7B.yaml", "sparse_matmul: false")
    assert found.training.moe.capacity_factor == 8 / 2
    sorted_ = experiment(tmp_path, "mixtral_8x7B.yaml", "capacity_factor: 2")
    assert sorted_.training.moe.capacity_factor is None
    assert sorted_.notes == ()


def test_axes_become_degrees_and_nodes(tmp_path):
    axes = """dcn_data_parallelism: 2
dcn_fsdp_parallelism: 4
ici_tensor_parallelism: 2
ici_context_parallelism: 2
ici_fsdp_parallelism: 2
context_parallel_strategy: ring
gradient_accumulation_steps: 3"""
    found = experiment(tmp_path, "llama3.1_405B.yaml", axes)
    split = found.parallelism
    assert (split.tp, split.cp, split.num_distributed_optimizer_instances) == (2, 2, 2)
    assert (found.cluster.nodes, split.cp_comm_type) == (8, "p2p")
    # Of each device two sequences: four devices share eight.
    assert (found.training.micro_batch_size, found.training.global_batch_size) == (8, 2 * 64 * 3)


def test_one_axis_of_devices_alone_needs_no_sharding(tmp_path):
    axes = "ici_fsdp_parallelism: 1\nici_data_parallelism: 8\n"
    assert experiment(tmp_path, more=axes).parallelism.zero_stage == 0
    sharded = experiment(tmp_path, more=f"{axes}shard_optimizer_over_data: true")
    assert sharded.parallelism.zero_stage == 1
    single = experiment(tmp_path, more="ici_fsdp_parallelism: 1\ndcn_data_parallelism: 1")
    assert (single.cluster.nodes, single.cluster.gpus_per_node) == (1, 1)


def test_pipelines_go_forward_before_they_go_back(tmp_path):
    axes = "ici_pipeline_parallelism: 4\nnum_layers_per_pipeline_stage: 8\n"
    found = experiment(tmp_path, more=f"{axes}num_pipeline_microbatches: 8")
    assert (found.parallelism.pp, found.training.schedule) == (4, "gpipe")
    assert found.parallelism.rank_order == "tp-cp-ep-pp-dp"
    assert (found.training.micro_batch_size, found.training.global_batch_size) == (1, 16)
    circular = experiment(tmp_path, more=axes.replace("8", "1"))
    assert (circular.parallelism.vpp, circular.training.schedule) == (8, "interleaved")
    assert circular.notes == (
        "rounds of a pipeline are projected as interleaved, which holds less",
    )


@pytest.mark.parametrize(
    ("more", "overrides", "told"),
    [
        ("ici_pipeline_parallelism: 4", {}, "12 layers in its pipeline (4 stages, 32"),
        ("ici_pipeline_parallelism: 4", {"model__num_layers": 36}, ""),
        ("ici_pipeline_parallelism: 4\npipeline_parallel_layers: 24", {}, ""),
        ("ici_pipeline_parallelism: 4\npipeline_parallel_layers: 23", {}, "12 (4 23"),
        ("ici_pipeline_parallelism: 2", {"model__num_layers": 36}, ""),
        ("ici_pipeline_parallelism: -1\nici_fsdp_parallelism: 1", {}, "24 (8 32"),
        # Its first layer is dense, and stands before the pipeline.
        ("ici_pipeline_parallelism: 2", {"model": "deepseek_v2_lite"}, "6 (2 26"),
        (
            "dcn_pipeline_parallelism: 2\nici_pipeline_parallelism: 8",
            {"model": "llama4_maverick", "cluster__nodes": 2},
            "",
        ),
    ],
)
def test_stages_that_maxtext_cannot_fill_are_told(tmp_path, more, overrides, told):
    found = experiment(tmp_path, more=f"{more}\nnum_layers_per_pipeline_stage: 3", **overrides)
    notes = [note for note in found.notes if note.startswith("MaxText needs")]
    assert len(notes) == bool(told)
    for word in told.split():
        assert word in notes[0]


CUSTOM = """decoder_block: mixtral
base_emb_dim: 1024
base_num_query_heads: 16
base_num_kv_heads: 4
base_mlp_dim: 4096
base_num_decoder_layers: 6
head_dim: 64
vocab_size: 32000
num_experts: 8
num_experts_per_tok: 2
base_moe_mlp_dim: 512
shared_experts: 2
first_num_dense_layers: 1
interleave_moe_layer_step: 2
use_qk_norm: true
rope_max_timescale: 1_000_000
"""


def test_settings_describe_a_model_without_a_name(tmp_path):
    model = plain(tmp_path, CUSTOM).model
    assert (model.hidden_size, model.num_query_groups, model.kv_channels) == (1024, 4, 64)
    assert (model.activation, model.qk_norm, model.tied_embeddings) == ("swiglu", "head", False)
    assert model.moe.layer_freq == (0, 1, 0, 1, 0, 1)
    assert (model.moe.ffn_hidden_size, model.moe.shared_expert_ffn_hidden_size) == (512, 1024)
    latent = plain(tmp_path, f"{CUSTOM}attention_type: mla\nkv_lora_rank: 256\n").model.mla
    assert (latent.kv_lora_rank, latent.q_lora_rank, latent.v_head_dim) == (256, 0, 128)


def test_a_preset_beside_the_experiment_is_read(tmp_path):
    models = tmp_path / "primus" / "configs" / "models" / "maxtext"
    models.mkdir(parents=True)
    (models / "model_base.yaml").write_text("model_name: default\nattention: dot_product\n")
    own = "".join(f"{line}\n" for line in CUSTOM.splitlines())
    (models / "mine.yaml").write_text(f"extends: [model_base.yaml]\n{own}")
    found = experiment(tmp_path, "mine.yaml", "base_num_decoder_layers: 4")
    assert (found.model.num_layers, found.model.hidden_size) == (4, 1024)
    assert not found.training.flash_attention


def test_a_setting_changes_the_model_of_a_name(tmp_path):
    found = experiment(
        tmp_path, "qwen3_30B_A3B.yaml", "base_num_decoder_layers: 6\nnum_experts: 16"
    )
    assert (found.model.num_layers, found.model.moe.num_experts) == (6, 16)
    assert found.model.moe.ffn_hidden_size == 768
    told = experiment(tmp_path, more="decoder_block: mistral").notes
    assert told == ("decoder_block was ignored: model_name llama3_8B says it",)


def test_gemma_4_says_what_is_left_out(tmp_path):
    found = experiment(tmp_path, "gemma4_26B.yaml")
    assert (found.model.moe.num_experts, found.model.sliding_window_layers) == (128, 25)
    assert any("heads of 512" in note for note in found.notes)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("ici_tensor_parallelism: 0", "ici_tensor_parallelism should be an integer >= 1, or -1"),
        ("ici_data_parallelism: -1", "-1 for one axis of a kind"),
        ("ici_tensor_parallelism: 3", "ici_fsdp_parallelism should be a size that divides 8"),
        ("quantization: int8", "quantization should be one of"),
        ("remat_policy: some", "remat_policy should be one of full, none, minimal"),
        ("remat_policy: custom", "remat_policy should be one of full, none, minimal"),
        ("attention: paged", "attention should be one of autoselected"),
        ("share_kv_projections: true", "keys and values share a projection: not supported"),
        ("mlp_activations: [tanh]", "mlp_activations should be one of silu linear"),
        ("weight_dtype: int8", "weight_dtype should be one of float32, bfloat16"),
        ("model_name: nobody-7b", "nobody-7b"),
    ],
)
def test_what_is_not_legal_is_refused_by_its_name(tmp_path, more, told):
    with pytest.raises(ConfigError, match=told):
        experiment(tmp_path, more=more)


@pytest.mark.parametrize("name", ["", "model_name:\n", "model_name: {a: 1}\n"])
def test_a_model_that_no_name_stands_for_has_the_defaults(tmp_path, name):
    found = plain(tmp_path, name + "num_experts: 8\ndecoder_block: mixtral\n").model
    assert (found.num_layers, found.moe.ffn_hidden_size) == (16, 7168)


def test_layers_without_end_are_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="num_layers: should be less than or equal to 10000"):
        plain(tmp_path, "num_experts: 8\nbase_num_decoder_layers: 1000000000000\n")


@pytest.mark.parametrize("local", ["0.5", "0", "-2", ".nan", ".inf", "1e30"])
def test_batches_are_whole(tmp_path, monkeypatch, local):
    monkeypatch.setenv("LOCAL", local)
    with pytest.raises(ConfigError, match="per_device_batch_size") as caught:
        experiment(tmp_path)
    assert caught.value.key == "per_device_batch_size"
    monkeypatch.setenv("LOCAL", "0.5")
    halves = experiment(tmp_path, more="ici_tensor_parallelism: 4").training
    assert (halves.micro_batch_size, halves.global_batch_size) == (2, 4)


def test_settings_of_experts_are_idle_in_a_dense_model(tmp_path):
    dense = "base_emb_dim: 1024\nnum_experts: 1\nnum_experts_per_tok: 1\nq_lora_rank: 0\n"
    found = plain(tmp_path, f"{dense}base_moe_mlp_dim: -1\nnum_pipeline_microbatches: -1\n")
    assert (found.model.hidden_size, found.model.moe, found.notes) == (1024, None, ())


def test_what_is_refused_can_be_given(tmp_path):
    found = experiment(tmp_path, more="share_kv_projections: true", model="llama2_7b")
    assert found.model.name == "Llama-2-7B"


def test_what_changes_a_run_and_is_not_modelled_is_told(tmp_path):
    more = "num_vocab_tiling: 4\nremat_policy: save_qkv_proj\nactivations_in_float32: true\nfoo: 1"
    notes = experiment(tmp_path, more=more).notes
    assert any(note.startswith("num_vocab_tiling is not modelled") for note in notes)
    assert any(note.startswith("remat_policy is not modelled") for note in notes)
    assert any(note.startswith("activations_in_float32 is not modelled") for note in notes)
    assert "an unknown setting of MaxText was ignored: foo" in notes
    off = experiment(tmp_path, more="num_vocab_tiling: 1\nmhc_expansion_rate: 1\nmoba: false")
    assert off.notes == ()


def test_no_setting_is_listed_twice():
    table = settings_of("maxtext")
    parts = ("architecture", *table["parts"].split())
    read = {name for part in parts for name in table[part]} - {"remat_policy"}
    listed = [*read, *table["refused"], *table["unmodelled"], *table["harmless"].split()]
    assert len(set(listed)) == len(listed)
