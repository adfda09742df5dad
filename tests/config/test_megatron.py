"""Megatron-LM arguments: which field each becomes, defaults, warnings and errors."""

import shlex

import pytest

from config.megatron_jobs import SMALL, read, read_megatron
from projector.config.formats import megatron
from projector.config.formats.megatron_settings.model import layout_stages
from projector.config.formats.values import int_expression, int_or_list
from projector.config.model import ModelConfig
from projector.errors import ConfigError, UnsupportedError
from reference.parameters import parameters_total


def test_megatron_defaults_are_named():
    job, warnings, origins = read()
    assert warnings == ()
    model, parallelism, training = job["model"], job["parallelism"], job["training"]
    assert model["ffn_hidden_size"] == 4096
    assert model["activation"] == "gelu"
    assert model["normalization"] == "layernorm"
    assert model["position_embedding"] == "learned"
    assert model["attention_bias"] == "qkv+out"
    assert model["mlp_bias"] is True
    assert model["tied_embeddings"] is True
    assert parallelism["sequence_parallel"] is False
    assert parallelism["zero_stage"] == 0
    assert parallelism["overlap_grad_reduce"] is False
    assert training["gradient_dtype"] == "fp32"
    assert training["precision"] == "bf16"
    assert "moe" not in training
    for field in ("parallelism.zero_stage", "model.tied_embeddings", "model.ffn_hidden_size"):
        assert origins[field] == "Megatron default"


@pytest.mark.parametrize(
    ("argument", "field", "value"),
    [
        ("--swiglu", "model.ffn_hidden_size", 2688),
        ("--squared-relu", "model.activation", "squared_relu"),
        ("--disable-bias-linear --add-qkv-bias", "model.attention_bias", "qkv"),
        ("--disable-bias-linear", "model.mlp_bias", False),
        ("--qk-layernorm", "model.qk_norm", "head"),
        ("--use-rotary-position-embeddings", "model.position_embedding", "rope"),
        ("--enable-gpt-oss", "model.position_embedding", "rope"),
        ("--no-position-embedding", "model.position_embedding", "none"),
        ("--padded-vocab-size 50304", "model.make_vocab_size_divisible_by", None),
        ("--padded-vocab-size 50304", "model.vocab_size", 50304),
        ("--window-size '(128, 0)'", "model.sliding_window_layers", 24),
        ("--window-size 128,0 --window-attn-skip-freq 2", "model.sliding_window_layers", 12),
        ("--window-size 128,0", "model.sliding_window", 128),
        (
            "--window-size 128,0 --window-attn-skip-freq ([1]+[0]*5)*4",
            "model.sliding_window_layers",
            4,
        ),
        ("--softmax-type learnable", "model.attention_sinks", True),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            "parallelism.vpp",
            4,
        ),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3",
            "parallelism.vpp",
            3,
        ),
        ("--use-torch-fsdp2", "parallelism.fsdp", 2),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
            "parallelism.zero_stage",
            2,
        ),
        (
            "--use-custom-fsdp --data-parallel-sharding-strategy optim_grads_params",
            "parallelism.zero_stage",
            3,
        ),
        ("--cp-comm-type allgather", "parallelism.cp_comm_type", "all_gather"),
        ("--use-tp-pp-dp-mapping", "parallelism.rank_order", "tp-cp-ep-pp-dp"),
        (
            "--num-distributed-optimizer-instances 2",
            "parallelism.num_distributed_optimizer_instances",
            2,
        ),
        ("--no-torch-fsdp2-reshard-after-forward", "parallelism.fsdp_reshard_after_forward", False),
        ("--fp8-format hybrid --fp8-recipe mxfp8", "training.precision", "mxfp8"),
        ("--fp4-format e2m1 --fp4-recipe nvfp4", "training.precision", "nvfp4"),
        ("--fp4-format e2m1 --fp4-recipe mxfp4", "training.precision", "mxfp4"),
        ("--fp8-format hybrid --first-last-layers-bf16", "training.first_last_layers_bf16", 1),
        ("--no-gradient-accumulation-fusion", "training.gradient_accumulation_fusion", False),
        ("--grad-reduce-in-bf16", "training.gradient_dtype", "bf16"),
        ("--no-accumulate-allreduce-grads-in-fp32", "training.gradient_dtype", "bf16"),
        ("--recompute-activations", "training.recompute.granularity", "selective"),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 5",
            "training.recompute.num_layers",
            5,
        ),
        ("--optimizer sgd", "training.optimizer.name", "sgd"),
        ("--optimizer-cpu-offload", "training.optimizer.offload_fraction", 1.0),
        (
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
            "training.optimizer.offload_fraction",
            0.5,
        ),
        ("--enable-cuda-graph", "training.cuda_graphs", True),
        ("--external-cuda-graph", "training.cuda_graphs", True),
        ("--attention-backend unfused", "training.flash_attention", False),
        ("--attention-dropout 0", "training.attention_dropout", 0.0),
        ("--attention-backend local", "training.flash_attention", False),
        ("--ddp-bucket-size 20000000", "parallelism.ddp_bucket_size", 20_000_000),
        ("--transformer-impl local", "training.flash_attention", False),
        ("--tp-comm-overlap", "parallelism.tp_comm_overlap", True),
        ("--seq-length=4096", "training.seq_length", 4096),
        ("--num-layers 12", "model.num_layers", 12),
    ],
)
def test_argument_becomes_field(argument, field, value):
    job, _, _ = read(argument)
    for part in field.split("."):
        job = job[part]
    assert job == value


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("2", 2),
        (3, 3),
        ([1, 0, 1], [1, 0, 1]),
        ("[1,0,1]", [1, 0, 1]),
        ("([0]*3+[1]*58)", [0] * 3 + [1] * 58),
        ("([1]+[0]*1)*24", [1, 0] * 24),
        ("3*[0]+[1]", [0, 0, 0, 1]),
    ],
)
def test_layer_frequency(text, pattern):
    words = [*shlex.split(SMALL), "--num-experts", "8", "--moe-layer-freq"]
    words += [str(item) for item in text] if isinstance(text, list) else [str(text)]
    job, _, _ = read_megatron(words)
    assert job["model"]["moe"]["layer_freq"] == pattern


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "[0]*99999999999", "[1", "1.5", "[0]**2", "[[1]]", "((((1", "'a'*3", "x"],
)
def test_layer_frequency_is_never_evaluated(text):
    with pytest.raises(ConfigError, match="moe-layer-freq"):
        read_megatron([*shlex.split(SMALL), "--num-experts", "8", "--moe-layer-freq", text])


@pytest.mark.parametrize("text", ["+".join(["1"] * 4000), "-" * 5000 + "1", "(" * 4000, "1" * 9000])
def test_expressions_are_bounded(text):
    try:
        int_expression(text)
    except ValueError:
        pass
    else:
        assert text.startswith("1+1")


def test_arithmetic():
    assert int_expression("2 * (3 + 5) / 4 - 1") == 3
    assert int_or_list("[1]*2+[0]") == [1, 1, 0]
    with pytest.raises(ValueError, match="zero"):
        int_expression("1 / 0")


@pytest.mark.parametrize(
    ("layout", "stages"),
    [("EtL", 1), ("Et*3|(tt|)*29m|L", 32), ("E|(t|)*3m|m||L", 8), ("Et*2|(tt|)*22t|(tt|)*7mL", 32)],
)
def test_layout_stages(layout, stages):
    assert layout_stages(layout) == stages


def test_exchanges_between_experts():
    flex = "--num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type flex "
    job, warnings, _ = read(flex + "--moe-deepep-num-sms 24 --moe-shared-expert-overlap")
    assert warnings == ()
    assert job["training"]["moe"]["dispatcher_sms"] == 24
    assert job["parallelism"]["moe_shared_expert_overlap"] is True
    job, _, _ = read(flex + "--moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 16")
    assert job["training"]["moe"]["dispatcher"] == "hybridep"
    assert job["training"]["moe"]["dispatcher_sms"] == 16
    job, _, _ = read("--num-experts 8 --moe-grouped-gemm --moe-deepep-num-sms 24")
    assert "dispatcher_sms" not in job["training"]["moe"], "the all-to-all takes none"


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--delay-wgrad-compute", "--delay-wgrad-compute"),
        ("--cpu-offloading-num-layers 4", "--cpu-offloading-num-layers"),
        ("--no-bias-swiglu-fusion", "--no-bias-swiglu-fusion"),
        ("--no-rope-fusion", "--no-rope-fusion"),
        ("--rampup-batch-size 16 8 300000", "--rampup-batch-size"),
        ("--frobnicate 3", "unknown Megatron argument --frobnicate"),
        ("--tensor-model-paralel-size 2", "did you mean --tensor-model-parallel-size"),
        ("--num-query-groups 4", "--group-query-attention"),
        ("--exp-avg-dtype bf16", "--use-precision-aware-optimizer"),
        ("--data-parallel-sharding-strategy optim", "--use-megatron-fsdp"),
        ("--num-experts 8", "--moe-grouped-gemm"),
    ],
)
def test_each_unmodelled_argument_is_named_once(argument, named):
    _, warnings, _ = read(argument)
    assert len(warnings) == 1
    assert named in warnings[0]


def test_inconsequential_arguments_are_silent():
    _, warnings, _ = read(
        "--lr 1e-4 --min-lr 0 --weight-decay 0.1 --adam-beta1 0.9 --clip-grad 1.0 --seed 1 "
        "--save x --load y --save-interval 100 --log-interval 1 --eval-iters 0 --data-path 0.5 a "
        "--split 99,1,0 --tokenizer-type GPT2BPETokenizer --vocab-file v --merge-file m "
        "--hidden-dropout 0.0 --attention-dropout 0 --wandb-project p --tensorboard-dir t "
        "--train-iters 10 --lr-decay-style cosine --no-load-optim --use-mcore-models "
        "--distributed-timeout-minutes 60 --norm-epsilon 1e-5 --use-flash-attn --manual-gc "
        "--fp8-amax-history-len 1024 --no-check-for-nan-in-loss-and-grad --ckpt-format torch "
        "--timing-log-level 0 --rotary-base 10000 --no-save-rng --num-workers 2 --mock-data"
    )
    assert warnings == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no Megatron-LM arguments"),
        ("echo hello", "no Megatron-LM arguments"),
        (SMALL + "--num-layers many", "--num-layers"),
        (SMALL + "--num-layers", "needs a value"),
        (SMALL + "--swiglu perhaps", "--swiglu"),
        (SMALL + "--moe-layer-recompute --recompute-modules", "--recompute-modules needs a value"),
        (SMALL + "--normalization BatchNorm", "--normalization"),
        (SMALL + "--recompute-granularity full", "--recompute-method"),
        (SMALL + "--recompute-granularity half", "--recompute-granularity"),
        (SMALL + "--pipeline-model-parallel-layout 'xyz'", "--pipeline-model-parallel-layout"),
        (
            SMALL + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|t|L'",
            "3 stages",
        ),
        (
            SMALL + "--pipeline-model-parallel-size 5 --num-layers-per-virtual-pipeline-stage 2",
            "does not divide",
        ),
        (SMALL + "--fp8-format e5m9", "--fp8-format"),
        (SMALL + "--optimizer lion", "--optimizer"),
        (
            SMALL + "--moe-token-dispatcher-type pigeon --num-experts 8",
            "--moe-token-dispatcher-type",
        ),
        ("A='unclosed\n" + SMALL, "line 1"),
        ("A=( --num-layers 3", "never closed"),
        ('A="x\n', "never closed"),
        ("A=x\n" + "A=$A$A\n" * 60 + SMALL, "expands to more"),
    ],
)
def test_malformed_input_is_a_config_error(text, named):
    with pytest.raises(ConfigError, match=named):
        read_megatron(text)


@pytest.mark.parametrize(
    "argument",
    [
        "--linear-attention-freq 4 --experimental-attention-variant dsa",
        "--linear-attention-freq 4",
        "--heterogeneous-layers-config-path x.json",
    ],
)
def test_unsupported_models_are_refused(argument):
    with pytest.raises(UnsupportedError):
        read(argument)


@pytest.mark.parametrize(
    ("argument", "what", "off"),
    [
        ("--linear-attention-type", "this kind of linear attention", "None"),
        ("--hybrid-attention-enabled", "compressed sparse attention", "false"),
        ("--compress-ratios", "compressed sparse attention", "'[0, 0]'"),
        ("--index-topk", "sparse attention", "None"),
        ("--experimental-attention-variant", "this variant of attention", "None"),
        ("--o-lora-rank", "low-rank output projection", "0"),
        ("--mla-use-output-gate", "a gate on the output", "False"),
        ("--hc-mult", "hyper-connections", "1"),
        ("--enable-hyper-connections", "hyper-connections", "false"),
        ("--attn-res-block-size", "residuals across blocks", "0"),
        ("--routed-expert-hidden-size", "latent space", "null"),
        ("--num-hash-layers", "hash of the token", "0"),
        ("--use-engram", "memories of n-grams", "false"),
        ("--lora-r", "adapters by settings of their own", "0"),
        ("--language-model-type", "vision-language", "None"),
        ("--model-type", "models of this type", "gpt"),
    ],
)
def test_settings_that_make_another_model_are_refused_unless_off(argument, what, off):
    message = rf"{argument} \('4'\): .*{what}.* not supported; supported: "
    with pytest.raises(UnsupportedError, match=message) as caught:
        read(f"{argument} 4")
    assert caught.value.key == argument
    assert caught.value.value == "4"
    assert read(f"{argument} {off}")[1] == ()


def test_sizes_of_a_part_that_is_off_change_nothing():
    sizes = "--linear-num-key-heads 16 --kda-chunk-size 64 --hc-eps 1e-6 --index-head-dim 128"
    read_job = megatron.read_megatron(SMALL + sizes)
    assert read_job.notes == ()
    assert "--kda-chunk-size" in read_job.ignored


def test_unknown_arguments_are_one_warning_and_harmless_ones_are_listed():
    unknown = " ".join(f"--frobnicate-{number} 1" for number in range(15))
    read_job = megatron.read_megatron(f"{SMALL} {unknown} --nun-layers 3 --lr 1 --seed 3")
    (warning,) = read_job.notes
    assert warning.startswith("16 unknown Megatron arguments were ignored: --frobnicate-0, ")
    assert warning.endswith("--frobnicate-14, --nun-layers (or --num-layers?)")
    assert read_job.ignored == ("--lr", "--seed")


def test_settings_with_the_same_remedy_share_a_warning():
    (warning,) = read("--cpu-offloading-num-layers 4 --fine-grained-activation-offloading")[1]
    assert warning.startswith(
        "--cpu-offloading-num-layers and --fine-grained-activation-offloading are not modelled: "
    )


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ("--use-megatron-fsdp --megatron-fsdp-main-grads-dtype bf16", "bf16"),
        ("--use-megatron-fsdp --megatron-fsdp-main-grads-dtype auto", "fp32"),
        ("--megatron-fsdp-main-grads-dtype bf16", "fp32"),
    ],
)
def test_the_gradients_of_megatron_fsdp(arguments, dtype):
    assert read(arguments)[0]["training"]["gradient_dtype"] == dtype


def test_old_names_of_full_recomputation():
    for old in ("--checkpoint-activations", "--activations-checkpoint-method uniform"):
        recompute = read(old)[0]["training"]["recompute"]
        assert recompute == {"granularity": "full", "method": "uniform"}
    block = "--activations-checkpoint-method block --activations-checkpoint-num-layers 3"
    recompute = read(block)[0]["training"]["recompute"]
    assert recompute == {"granularity": "full", "method": "block", "num_layers": 3}


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ("", ["core_attn", "moe"]),
        ("mlp", ["mlp", "moe"]),
        ("mlp layernorm", ["mlp", "layernorm", "moe"]),
    ],
)
def test_whole_expert_layers_are_recomputed_beside_named_modules(modules, expected):
    argument = f"--recompute-modules {modules} " if modules else ""
    assert (
        read(f"{argument}--moe-layer-recompute")[0]["training"]["recompute"]["modules"] == expected
    )


def test_softmax_is_only_told_where_attention_is_not_one_kernel():
    assert read("--no-masked-softmax-fusion")[1] == ()
    (warning,) = read("--no-masked-softmax-fusion --attention-backend unfused")[1]
    assert warning.startswith("--no-masked-softmax-fusion is not modelled")


@pytest.mark.parametrize(
    ("program", "extra", "says"),
    [
        ("pretrain_bert.py", "", "BERT models are not supported; only decoder-only"),
        ("pretrain_t5.py", "", "encoder-decoder"),
        ("examples/multimodal/pretrain_vlm.py", "", "vision-language"),
        (
            "pretrain_gpt.py",
            "--encoder-num-layers 12",
            "--encoder-num-layers .*encoders are not supported; supported: decoder-only",
        ),
    ],
)
def test_models_that_are_not_decoders_are_refused(program, extra, says):
    with pytest.raises(UnsupportedError, match=says):
        read_megatron(f"torchrun {program} {SMALL} {extra}", name="job")


def test_a_specification_of_layers_that_is_not_known_is_named():
    assert read("--spec megatron.core.models.gpt.gpt_layer_specs get_spec")[1] == ()
    assert read("--spec local")[1] == ()
    (warning,) = read("--spec mine.layers build")[1]
    assert warning == "--spec mine.layers build is projected as Megatron's GPT layers"


def test_an_unknown_attention_backend():
    with pytest.raises(ConfigError, match="--attention-backend should be one of"):
        read("--attention-backend flsh")


@pytest.mark.parametrize(
    ("arguments", "biased"),
    [
        ("", True),
        ("--disable-bias-linear", False),
        ("--disable-bias-linear --moe-router-enable-expert-bias", True),
    ],
)
def test_a_router_has_a_bias_of_its_projection_or_one_that_balances(arguments, biased):
    """Megatron's TopKRouter: `bias` where linear layers have one, and `expert_bias`."""
    experts = "--num-experts 8 --moe-router-topk 2 --moe-router-score-function sigmoid "
    job, _, _ = read(experts + arguments)
    assert job["model"]["moe"]["router_bias"] is biased
    with_bias, without = (
        parameters_total(ModelConfig.parse({**job["model"], "moe": {**job["model"]["moe"],
                                                                    "router_bias": one}}))
        for one in (True, False)
    )  # fmt: skip
    assert with_bias - without == 24 * 8


@pytest.mark.parametrize(
    ("arguments", "freq", "warns"),
    [
        ("--no-rope-freq 4", 4, False),
        ("--no-rope-freq ([0]*3+[1]*1)*6", 4, False),
        ("--no-rope-freq ([0]*24)", None, False),
        ("--no-rope-freq ([1]*1+[0]*23)", None, True),
    ],
)
def test_layers_without_rotations_are_read_as_a_period(arguments, freq, warns):
    job, warnings, _ = read(f"--position-embedding-type rope {arguments}")
    assert job["model"].get("no_rope_freq") == freq
    assert any("no period" in warning for warning in warnings) == warns


def test_bounds_of_yarn_are_read():
    job, _, _ = read(
        "--position-embedding-type yarn --rotary-scaling-factor 32 --yarn-beta-fast 16 "
        "--yarn-beta-slow 2 --no-yarn-correction-range-round-to-int "
        "--yarn-original-max-position-embeddings 4096 --apply-layernorm-1p"
    )
    scaling = job["model"]["rope_scaling"]
    assert (scaling["beta_fast"], scaling["beta_slow"], scaling["truncate"]) == (16, 2, False)
    assert job["model"]["zero_centered_norms"] is True
