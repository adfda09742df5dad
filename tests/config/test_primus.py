"""Reading Primus experiments: presets, environment, models, warnings and errors."""

from pathlib import Path

import pytest

from projector.config.formats.primus import environment_overrides, read_primus
from projector.config.load import load_job
from projector.config.model_file import load_model
from projector.config.yaml_file import parse_yaml
from projector.errors import ConfigError, UnsupportedError
from reference.parameters import parameters_total

EXAMPLES = Path(__file__).parents[2] / "examples" / "megatron" / "configs"
VARIABLES = ("PRIMUS_TP", "PRIMUS_PP", "PRIMUS_EP", "NNODES", "GPUS_PER_NODE", "PRIMUS_SEQ_LENGTH")

BATCH = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in (*VARIABLES, "PRIMUS_EXP_NAME", "PRIMUS_MODEL"):
        monkeypatch.delenv(name, raising=False)


def experiment(model="llama3.1_8B.yaml", **overrides):
    trainer = {
        "framework": "megatron",
        "config": "pre_trainer.yaml",
        "model": model,
        "overrides": {**BATCH, **overrides},
    }
    return {"exp_name": "${PRIMUS_EXP_NAME:test}", "modules": {"pre_trainer": trainer}}


def read(model="llama3.1_8B.yaml", path="experiment.yaml", **overrides):
    return read_primus(experiment(model, **overrides), path=Path(path))[:3]


def field(job, dotted):
    for part in dotted.split("."):
        job = job[part]
    return job


def test_preset_defaults_are_marked():
    job, warnings, origins = read()
    assert warnings == ()
    assert job["name"] == "test"
    assert job["model"] == {"extends": "llama3.1_8B", "make_vocab_size_divisible_by": 128}
    assert job["cluster"] == {}
    assert job["parallelism"]["zero_stage"] == 1
    assert job["parallelism"]["sequence_parallel"] is True
    assert job["parallelism"]["overlap_grad_reduce"] is False
    assert job["training"]["gradient_dtype"] == "fp32"
    for name in ("parallelism.zero_stage", "parallelism.overlap_grad_reduce", "training.precision"):
        assert origins[name] == "Primus preset (assumed)"
    assert "training.seq_length" not in origins


@pytest.mark.parametrize(
    ("overrides", "dotted", "value"),
    [
        ({"tensor_model_parallel_size": "${PRIMUS_TP:4}"}, "parallelism.tp", 4),
        ({"overlap_param_gather": True}, "parallelism.overlap_param_gather", True),
        ({"sequence_parallel": 1}, "parallelism.sequence_parallel", True),
        ({"use_torch_fsdp2": True, "use_distributed_optimizer": False}, "parallelism.fsdp", 2),
        ({"fp8": "hybrid"}, "training.precision", "fp8"),
        ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, "training.precision", "mxfp8"),
        ({"fp4": "e2m1", "fp4_recipe": "mxfp4"}, "training.precision", "mxfp4"),
        ({"fp8": "hybrid", "fp8_recipe": "blockwise"}, "training.fp8_recipe", "blockwise"),
        (
            {"fp8": "hybrid", "no_fp8_weight_transpose_cache": True},
            "training.fp8_weight_transpose_cache",
            False,
        ),
        ({"fp8": "hybrid", "use_torch_fsdp2": True}, "training.fp8_weight_cache", True),
        ({"padded_vocab_size": 128512}, "model.vocab_size", 128512),
        ({"make_vocab_size_divisible_by": 128}, "model.make_vocab_size_divisible_by", 128),
        ({"recompute_layer_ids": [0, 3, 4]}, "training.recompute.layers", [0, 3, 4]),
        ({"recompute_layer_ids": "0,3,4"}, "training.recompute.granularity", "full"),
        (
            {"grad_reduce_in_bf16": "${PRIMUS_GRAD_REDUCE_IN_BF16:true}"},
            "training.gradient_dtype",
            "bf16",
        ),
        ({"accumulate_allreduce_grads_in_fp32": False}, "training.gradient_dtype", "fp32"),
        ({"max_position_embeddings": 8192}, "model.max_position_embeddings", 8192),
        ({"optimizer": "muon"}, "training.optimizer.name", "muon"),
        (
            {"patch_primus_pipeline": True, "pp_algorithm": "1f1b-interleaved"},
            "training.schedule",
            "1f1b",
        ),
    ],
)
def test_override_becomes_field(overrides, dotted, value):
    job, warnings, origins = read(**overrides)
    assert field(job, dotted) == value
    assert warnings == ()
    assert dotted not in origins or "accumulate" not in str(overrides)


@pytest.mark.parametrize(
    ("overrides", "dotted", "value"),
    [
        ({}, "dispatcher", "alltoall"),
        ({"moe_enable_deepep": True}, "dispatcher", "deepep"),
        ({"enable_primus_turbo": True, "use_turbo_deepep": True}, "dispatcher", "deepep"),
        ({"enable_primus_turbo": True, "turbo_sync_free_moe_stage": 0}, "permute_fusion", False),
        ({"enable_primus_turbo": True, "turbo_sync_free_moe_stage": 1}, "permute_fusion", True),
        ({"enable_primus_turbo": True, "turbo_sync_free_moe_stage": 1}, "dispatcher", "alltoall"),
        ({"enable_primus_turbo": True, "turbo_sync_free_moe_stage": 2}, "host_sync", False),
        ({"enable_primus_turbo": True, "turbo_sync_free_moe_stage": 2}, "dispatcher", "deepep"),
        ({"moe_enable_deepep": True, "moe_deepep_num_sms": 24}, "dispatcher_sms", 24),
        (
            {"enable_primus_turbo": True, "use_turbo_deepep": True, "turbo_deepep_num_cu": 64},
            "dispatcher_sms",
            64,
        ),
        ({}, "permute_fusion", False),
        ({"moe_permute_fusion": True}, "permute_fusion", True),
        ({"moe_router_force_load_balancing": True}, "load", "balanced"),
    ],
)
def test_experts(overrides, dotted, value):
    job, _, _ = read("mixtral_8x7B_v0.1.yaml", **overrides)
    assert job["training"]["moe"][dotted] == value


def test_first_stage_without_synchronisation_still_waits_for_counts():
    job, _, _ = read(
        "mixtral_8x7B_v0.1.yaml", enable_primus_turbo=True, turbo_sync_free_moe_stage=1
    )
    assert "host_sync" not in job["training"]["moe"]


@pytest.mark.parametrize("switch", [{"use_turbo_deepep": True}, {"turbo_sync_free_moe_stage": 2}])
def test_turbo_switch_without_turbo_is_named(switch):
    job, warnings, _ = read("mixtral_8x7B_v0.1.yaml", **switch)
    assert job["training"]["moe"]["dispatcher"] == "alltoall"
    assert "host_sync" not in job["training"]["moe"]
    assert f"{next(iter(switch))} was ignored: enable_primus_turbo is off" in warnings[0]


def test_stage_beyond_the_last():
    with pytest.raises(ConfigError, match="turbo_sync_free_moe_stage is 4, not 0 to 3"):
        read("mixtral_8x7B_v0.1.yaml", enable_primus_turbo=True, turbo_sync_free_moe_stage=4)


SINKS = {"use_sink_attention": True}


@pytest.mark.parametrize(
    ("model", "overrides", "expected"),
    [
        ("gpt_oss_20b", {**SINKS, "sink_sliding_window": 0}, (0, 0)),
        ("gpt_oss_20b", {**SINKS, "sink_sliding_window": 64}, (64, 12)),
        ("gpt_oss_20b", {"window_size": "(-1, -1)"}, (0, 0)),
        ("gpt_oss_20b", {"window_size": None}, (0, 0)),
        ("llama3.1_8B", {**SINKS, "sink_sliding_window": 64}, (64, 16)),
        ("llama3.1_8B", {**SINKS, "sink_sliding_window": 0}, (0, 0)),
    ],
)
def test_a_window_of_nothing_is_no_window(model, overrides, expected):
    job = load_job_of(model, **overrides)
    assert (job.model.sliding_window, job.model.sliding_window_layers) == expected


def load_job_of(model, **overrides):
    return load_from(experiment(model, **overrides))


def load_from(data, **fields):
    read_job = read_primus(data, path=Path("MI300X/x.yaml"))
    return load_job(read_job.data, {"cluster.nodes": 1, **fields})


@pytest.mark.parametrize(
    ("model", "overrides", "field_name", "value"),
    [
        ("gpt_oss_20b", {"use_sink_attention": False}, "attention_sinks", False),
        ("gpt_oss_20b", {"softmax_type": "vanilla"}, "attention_sinks", False),
        ("gpt_oss_20b", {"activation_func_clamp_value": None}, "activation_clamp", 0.0),
        ("qwen3_8B", {"qk_layernorm": False}, "qk_norm", "none"),
        ("qwen3_32B", {"kv_channels": None}, "head_dim", 80),
        ("llama3_8B", {"group_query_attention": False}, "query_groups", 32),
    ],
)
def test_what_an_experiment_takes_back_of_a_model(model, overrides, field_name, value):
    assert getattr(load_job_of(model, **overrides).model, field_name) == value


def test_shared_experts_and_groups_can_be_taken_back():
    taken = ("moe_shared_expert_intermediate_size", "moe_router_num_groups")
    job = load_job_of(
        "deepseek_v3", **dict.fromkeys((*taken, "moe_router_group_topk")), num_layers=8
    )
    assert job.model.moe.shared_expert_ffn_hidden_size == 0
    assert (job.model.moe.num_groups, job.model.moe.group_topk) == (0, 0)


def test_each_unmodelled_setting_is_named():
    _, warnings, _ = read(
        "mixtral_8x7B_v0.1.yaml",
        bias_swiglu_fusion=False,
        moe_use_legacy_grouped_gemm=True,
        moe_shared_expert_overlap=False,
        enable_turbo_attention_float8=None,
        no_such_setting=1,
    )
    assert len(warnings) == 3
    assert "bias_swiglu_fusion" in warnings[0]
    assert "moe_use_legacy_grouped_gemm" in warnings[1]
    assert "unknown Megatron setting no_such_setting" in warnings[2]


def test_inconsequential_settings_are_silent():
    text = """
      wandb_project: x
      stderr_sink_level: DEBUG
      log_avg_skip_iterations: 2
      train_iters: 50
      lr: 1.0e-5
      lr_decay_iters: null
      adam_beta1: 0.9
      eod_mask_loss: true
      init_method_std: 0.008
      norm_epsilon: 1.0e-6
      mock_data: true
      train_data_path: ${PRIMUS_TOKENIZED_DATA_PATH:null}
      finetune: false
      auto_continue_train: false
      save: null
      no_save_optim: null
      disable_last_saving: true
      ckpt_format: torch
      eval_iters: 0
      moe_router_dtype: fp32
      cross_entropy_fusion_impl: te
      use_turbo_attention: true
      use_turbo_grouped_mlp: false
      turbo_deepep_num_cu: 64
      turbo_deepep_use_comm_stream: false
      moe_use_fused_router_with_aux_score: false
      disable_compile_dependencies: false
      manual_gc: true
      profile: false
      use_pytorch_profiler: false
    """
    _, warnings, _ = read(**parse_yaml(text))
    assert warnings == ()


def test_presets_of_a_shipped_model_can_be_taken_back():
    job, _, _ = read("deepseek_v3.yaml", multi_latent_attention=False, mtp_num_layers=None)
    assert job["model"]["mla"] is None
    assert job["model"]["kv_channels"] == 128
    assert job["model"]["mtp_num_layers"] == 0
    job, _, _ = read(
        "deepseek_v3.yaml", moe_router_topk=4, num_layers=4, moe_layer_freq="[0]+[1]*3"
    )
    assert job["model"]["moe"] == {"router_topk": 4, "layer_freq": [0, 1, 1, 1]}
    assert job["model"]["num_layers"] == 4


@pytest.mark.parametrize("pp", [1, 4])
def test_recomputed_layers_count_over_the_whole_model(pp):
    job, warnings, _ = read(recompute_layer_ids="0,3,1,3", pipeline_model_parallel_size=pp)
    assert job["training"]["recompute"]["layers"] == [0, 1, 3]
    assert warnings == ()
    with pytest.raises(ConfigError, match="recompute_layer_ids"):
        read(recompute_layer_ids=[99], pipeline_model_parallel_size=pp)


def test_recomputed_layers_may_name_mtp_modules():
    # They continue the numbers of the layers.
    job, warnings, _ = read(recompute_layer_ids=[31, 32], mtp_num_layers=1)
    assert job["training"]["recompute"]["layers"] == [31]
    assert "MTP" in warnings[0]
    with pytest.raises(ConfigError, match="names layer 33"):
        read(recompute_layer_ids=[33], mtp_num_layers=1)


def test_documented_variables(monkeypatch):
    environ = {
        "PRIMUS_TP": "2",
        "PRIMUS_PP": "4",
        "NNODES": "8",
        "GPUS_PER_NODE": "4",
        "PRIMUS_EP": "",
    }
    assert environment_overrides(environ) == {
        "parallelism.tp": 2,
        "parallelism.pp": 4,
        "cluster.nodes": 8,
        "cluster.gpus_per_node": 4,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    job, _, origins = read(pipeline_model_parallel_size=1, num_layers_per_virtual_pipeline_stage=4)
    assert job["parallelism"]["tp"] == 2
    assert job["parallelism"]["pp"] == 4
    assert job["parallelism"]["vpp"] == 2
    assert job["cluster"] == {"nodes": 8, "gpus_per_node": 4}
    assert origins["parallelism.tp"] == "environment variable PRIMUS_TP"
    assert origins["parallelism.pp"] == "environment variable PRIMUS_PP"
    assert origins["cluster.nodes"] == "environment variable NNODES"


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²", "99999999999"])
def test_bad_variable(value):
    with pytest.raises(ConfigError, match="PRIMUS_EP"):
        environment_overrides({"PRIMUS_EP": value})


def test_variables_inside_the_file(monkeypatch):
    job, _, origins = read(seq_length="${PRIMUS_SEQ_LENGTH:2048}")
    assert job["training"]["seq_length"] == 2048
    assert "training.seq_length" not in origins
    monkeypatch.setenv("PRIMUS_SEQ_LENGTH", "16384")
    job, _, origins = read(seq_length="${PRIMUS_SEQ_LENGTH:2048}")
    assert job["training"]["seq_length"] == 16384
    assert origins["training.seq_length"] == "environment variable PRIMUS_SEQ_LENGTH"
    monkeypatch.setenv("PRIMUS_MODEL", "llama3_8B")
    job, _, _ = read("${PRIMUS_MODEL:deepseek_v3}.yaml")
    assert job["model"]["extends"] == "llama3_8B"


def test_native_jobs_do_not_read_the_environment(monkeypatch):
    monkeypatch.setenv("PRIMUS_TP", "8")
    data = {"model": "llama3_8b", "training": BATCH, "cluster": {"device": "mi300x"}}
    assert load_job(data).parallelism.tp == 1


def test_device_is_a_parent_folder():
    job, _, origins = read(path="examples/megatron/configs/MI355X/x.yaml")
    assert job["cluster"]["device"] == "mi355x"
    assert origins["cluster.device"] == "folder name MI355X"
    job, _, _ = read(path="examples/megatron/configs/MI999X/x.yaml")
    assert "device" not in job["cluster"]


def test_model_file_beside_the_experiment(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "extends:\n  - base.yaml\nnum_layers: 4\nnum_experts: 8\nmoe_ffn_hidden_size: 512\n"
        "moe_layer_freq: '([0]+[1]*3)'\nvocab_size: 1000\ntokenizer_model: x/y\n"
    )
    (tmp_path / "base.yaml").write_text(
        "includes: [llama_base.yaml, elsewhere.yaml]\nhidden_size: 256\nnum_attention_heads: 8\n"
        "ffn_hidden_size: 1024\nnum_layers: 2\ngroup_query_attention: true\nnum_query_groups: 2\n"
    )
    job, warnings, origins = read("mine.yaml", path=tmp_path / "exp.yaml")
    model = job["model"]
    assert model["name"] == "mine"
    assert model["num_layers"] == 4
    assert model["hidden_size"] == 256
    assert model["num_query_groups"] == 2
    assert model["normalization"] == "rmsnorm"
    assert model["position_embedding"] == "rope"
    assert model["moe"]["layer_freq"] == [0, 1, 1, 1]
    assert model["moe"]["ffn_hidden_size"] == 512
    assert "elsewhere.yaml" in warnings[0]
    assert origins["model.moe.router_topk"] == "Primus preset (assumed)"


def test_circular_model_files(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: mine.yaml\n")
    with pytest.raises(ConfigError, match="circle"):
        read("mine.yaml", path=tmp_path / "exp.yaml")


@pytest.mark.parametrize("framework", ["maxdiffusion", 3])
def test_other_frameworks(framework):
    data = experiment()
    data["modules"]["pre_trainer"]["framework"] = framework
    with pytest.raises(UnsupportedError, match=str(framework)):
        read_primus(data, path=Path("x.yaml"))


@pytest.mark.parametrize(
    "change",
    [
        {"modules": None},
        {"modules": []},
        {"modules": {"pre_trainer": 3}},
        {"modules": {"pre_trainer": {"framework": "megatron"}}},
        {"modules": {"pre_trainer": {"framework": "megatron", "model": "no_such_model_xyz.yaml"}}},
        {"modules": {"pre_trainer": {"model": "llama3_8B.yaml", "overrides": [1]}}},
    ],
)
def test_malformed_experiments(change):
    with pytest.raises(ConfigError) as caught:
        read_primus(change, path=Path("x.yaml"))
    assert caught.value.message


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"micro_batch_size": "two"}, "micro_batch_size"),
        ({"micro_batch_size": [{"a": 1}]}, "micro_batch_size"),
        ({"tensor_model_parallel_size": "${NOT_SET_ANYWHERE}"}, "NOT_SET_ANYWHERE"),
        ({"tensor_model_parallel_size": "${bad-name}"}, "tensor_model_parallel_size"),
        ({"overlap_grad_reduce": "maybe"}, "overlap_grad_reduce"),
        ({"fp8": "e3m4"}, "fp8"),
        ({"is_hybrid_model": True, "hybrid_attention_ratio": "x"}, "hybrid_attention_ratio"),
        ({"fp4": "e2m1", "fp4_recipe": "int4"}, "fp4_recipe"),
        (
            {"fp4": "e2m1", "fp4_recipe": "mxfp4", "mxfp4_backward_precision": "fp8"},
            "mxfp4_backward_precision",
        ),
        ({"recompute_granularity": "full"}, "recompute_method"),
        ({"pp_algorithm": "best", "patch_primus_pipeline": True}, "pp_algorithm"),
    ],
)
def test_malformed_overrides(overrides, named):
    with pytest.raises(ConfigError, match=named):
        read(**overrides)


def test_mixtral_example(monkeypatch):
    file = EXAMPLES / "MI355X" / "mixtral_8x22B_v0.1-BF16-pretrain.yaml"
    monkeypatch.setenv("NNODES", "8")
    job = load_job(file)
    assert job.notes == ()
    assert job.model.num_layers == 56
    assert job.model.vocab_size == 32768
    assert (job.parallelism.pp, job.parallelism.vpp, job.parallelism.ep) == (4, 1, 8)
    assert job.cluster.device.name.upper().endswith("MI355X")
    assert job.cluster.gpus == 64
    assert job.origins["cluster.nodes"] == "environment variable NNODES"


@pytest.mark.parametrize(
    ("overrides", "schedule", "vpp"),
    [
        ({"patch_zero_bubble": True, "zero_bubble_v_schedule": True}, "zbv-greedy-half", 2),
        (
            {"patch_zero_bubble": True, "enable_1f1b_v": True, "zero_bubble_v_schedule": True},
            "1f1b-v",
            2,
        ),
        (
            {
                "patch_zero_bubble": True,
                "zero_bubble_v_schedule": True,
                "zero_bubble_v_schedule_mem_setup": "min",
            },
            "zbv-greedy-min",
            2,
        ),
        ({"patch_primus_pipeline": True, "pp_algorithm": "zbv-formatted"}, "zbv-formatted", None),
    ],
)
def test_v_schedules(overrides, schedule, vpp):
    job, warnings, _ = read(**overrides)
    assert job["training"]["schedule"] == schedule
    assert job.get("parallelism", {}).get("vpp") == vpp
    assert not warnings


@pytest.mark.parametrize(
    "overrides",
    [
        {"patch_zero_bubble": True, "enable_zero_bubble": True},
        {"patch_primus_pipeline": True, "pp_algorithm": "zero-bubble"},
    ],
)
def test_zero_bubble_is_available(overrides):
    job, warnings, _ = read(**overrides)
    assert job["training"]["schedule"] == "zerobubble"
    assert not warnings


def test_llama_example():
    job = load_job(EXAMPLES / "MI325X" / "llama3.1_70B-BF16-pretrain.yaml", {"cluster.nodes": 2})
    assert job.notes == ()
    assert job.parallelism.fsdp == 2
    assert job.parallelism.sharding_stage == 3
    assert job.training.recompute.granularity == "full"
    assert job.training.recompute.num_layers == 80
    assert job.cluster.nodes == 2
    assert "cluster.nodes" not in job.origins


def test_what_the_zero_bubble_runtime_looks_at():
    further = {"enable_optimizer_post_validation": True, "zero_bubble_max_pending_backward": 12}
    job, warnings, _ = read(patch_zero_bubble=True, enable_zero_bubble=True, **further)
    assert not warnings
    assert job["training"]["optimizer_post_validation"] is True
    assert job["training"]["zero_bubble_max_pending_backward"] == 12
    further["zero_bubble_max_pending_backward"] = "auto"
    job, _, _ = read(patch_zero_bubble=True, enable_zero_bubble=True, **further)
    assert "zero_bubble_max_pending_backward" not in job["training"]
    # Without it nothing reads them.
    job, _, _ = read(**further)
    assert "optimizer_post_validation" not in job["training"]


@pytest.mark.parametrize(("given", "expected"), [(True, None), (False, False)])
def test_pipeline_transfers_overlap_as_in_megatron(given, expected):
    job, warnings, _ = read(overlap_p2p_comm=given, microbatch_group_size_per_vp_stage=8)
    assert not warnings
    assert job["parallelism"].get("overlap_p2p_comm") is expected
    assert job["parallelism"]["microbatch_group_size_per_vp_stage"] == 8


FLUX = {
    "model_type": "flux_schnell", "num_joint_layers": 19, "num_single_layers": 38,
    "hidden_size": 3072, "num_attention_heads": 24, "activation_func": "openai_gelu",
    "in_channels": 64, "context_dim": 4096, "vec_in_dim": 768, "model_channels": 256,
    "vocab_size": 1, "tokenizer_type": "NullTokenizer", "vae_scale": 0.3611, "theta": 10000,
    "seq_length": 512,
}  # fmt: skip


def flux(**overrides):
    settings = {**FLUX, **overrides}
    stated = {name: value for name, value in settings.items() if value is not None}
    read_job = read_primus(experiment("language_model.yaml", **stated), path=Path("flux.yaml"))
    return read_job.data, read_job.notes


def test_an_experiment_of_flux_is_its_diffusion_transformer():
    data, warnings = flux(torch_compile={"enable": True, "strategy": "per_block"})
    assert warnings == ()
    job = load_job({**data, "cluster": {"device": "mi300x", "nodes": 1}})
    assert parameters_total(job.model) == 11_891_178_560
    assert job.model.diffusion == load_model("flux.1_schnell").diffusion
    assert job.training.torch_compile


@pytest.mark.parametrize(
    ("overrides", "text", "guidance"),
    [({"model_type": "diffusion_model"}, 512, False), ({"guidance_embed": True}, 256, True)],
)
def test_text_and_guidance_of_flux_follow_its_settings(overrides, text, guidance):
    told = flux(**overrides)[0]["model"]["diffusion"]
    assert (told["text_tokens"], told.get("guidance", False)) == (text, guidance)


def test_images_that_are_made_up_give_the_sequence():
    made_up = {"mock_data": True, "mock_dataset": {"params": {"image_size": 512}}}
    data, warnings = flux(model_type="diffusion_model", **made_up)
    assert data["training"]["seq_length"] == 512 + 1024
    assert warnings == ("mock_dataset: images of 512 make sequences of 1536 tokens",)


def test_other_diffusion_models_are_refused():
    with pytest.raises(UnsupportedError, match="of diffusion models only Flux is read"):
        flux(num_joint_layers=None, num_single_layers=None, num_layers=12)
