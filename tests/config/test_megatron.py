"""Reading Megatron-LM arguments: scripts, lists, defaults, warnings and errors."""

import shlex

import pytest

from projector.config.formats import megatron
from projector.config.formats._expression import int_or_list, integer
from projector.config.formats.megatron_settings.parallelism import layout_stages
from projector.config.load import load_job
from projector.errors import ConfigError, UnsupportedError

SMALL = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50257 "
    "--micro-batch-size 1 --global-batch-size 8 --seq-length 2048 --bf16 "
)

LLAMA3_8B = r"""
#!/bin/bash
# Llama 3 8B on two nodes
export CUDA_DEVICE_MAX_CONNECTIONS=1
CHECKPOINT_PATH=${1:-"checkpoints/llama3_8b"}
TP_SIZE=${TP_SIZE:-1}     # tensor parallelism
CP_SIZE=2
GPUS_PER_NODE=8
NUM_NODES=${SLURM_NNODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*NUM_NODES))
mkdir -p "$(dirname "$CHECKPOINT_PATH")"

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES        # hosts
    --node_rank ${NODE_RANK:-0}
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 1000000
    --attention-dropout 0.0
    --swiglu
    --normalization RMSNorm
    --init-method-std 0.0134
    --apply-layernorm-1p
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --transformer-impl transformer_engine
    --vocab-size 128256
)
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size $((WORLD_SIZE * 8)) \
    --train-samples 1953125000 --lr 0.00015 --clip-grad 1.0 --bf16"
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format" "hybrid")
fi
DTYPE_ARGS+=(--fp8-format hybrid --fp8-recipe tensorwise "--fp8-param-gather")

cmd="torchrun ${DISTRIBUTED_ARGS[@]}"
torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" ${TRAINING_ARGS} "${DTYPE_ARGS[@]}" \
    --tensor-model-parallel-size $TP_SIZE \
    --context-parallel-size $CP_SIZE \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --cross-entropy-loss-fusion --mock-data --tokenizer-type NullTokenizer \
    --log-interval 1 --save "$CHECKPOINT_PATH" $EXTRA_ARGS 2>&1 | tee log.txt
"""

DEEPSEEK_V3 = r"""
torchrun --nproc-per-node 8 --nnodes 32 pretrain_gpt.py \
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 \
  --kv-channels 128 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 \
  --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm \
  --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope \
  --untie-embeddings-and-output-weights --vocab-size 129280 --make-vocab-size-divisible-by 1280 \
  --num-experts 256 --moe-layer-freq '([0]*3+[1]*58)' --moe-ffn-hidden-size 2048 \
  --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 --moe-router-num-groups 8 \
  --moe-router-group-topk 4 --moe-router-score-function sigmoid \
  --moe-router-enable-expert-bias --moe-grouped-gemm --moe-permute-fusion \
  --moe-token-dispatcher-type flex --moe-enable-deepep --moe-router-dtype fp32 \
  --mtp-num-layers 1 --seq-length 4096 --max-position-embeddings 4096 \
  --micro-batch-size 1 --global-batch-size 8192 --bf16 --fp8-format e4m3 --fp8-recipe blockwise \
  --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 8 \
  --expert-model-parallel-size 32 --expert-tensor-parallel-size 1 \
  --pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L" \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --use-precision-aware-optimizer --main-grads-dtype fp32 --main-params-dtype fp32 \
  --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 \
  --recompute-granularity selective --recompute-modules mla_up_proj moe mlp layernorm \
  --cuda-graph-impl transformer_engine --cuda-graph-scope attn --delay-wgrad-compute
"""


def read_megatron(text, *, name=""):
    """Return job, warnings and origins."""
    return megatron.read_megatron(text, name=name)[:3]


def read(extra: str = "", base: str = SMALL):
    return read_megatron(base + extra, name="job")


def test_llama3_script():
    job, warnings, origins = read_megatron(LLAMA3_8B, name="llama3")
    assert job["model"] == {
        "name": "llama3",
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "kv_channels": 128,
        "max_position_embeddings": 8192,
        "position_embedding": "rope",
        "normalization": "rmsnorm",
        "activation": "swiglu",
        "attention_bias": "none",
        "mlp_bias": False,
        "tied_embeddings": False,
        "vocab_size": 128257,  # NullTokenizer adds the end of a document
        "make_vocab_size_divisible_by": 128,
    }
    assert job["cluster"] == {"nodes": 2, "gpus_per_node": 8}
    assert job["parallelism"]["tp"] == 1
    assert job["parallelism"]["cp"] == 2
    assert job["parallelism"]["zero_stage"] == 1
    assert job["training"]["global_batch_size"] == 128
    assert job["training"]["precision"] == "fp8"
    assert job["training"]["fp8_recipe"] == "tensorwise"
    assert job["training"]["fp8_param_gather"] is True
    assert job["training"]["cross_entropy_fusion"] is True
    assert len(warnings) == 1
    assert warnings[0].startswith("the script does not set DTYPE, on which a condition hangs")
    assert origins["model.make_vocab_size_divisible_by"] == "Megatron default"
    assert "model.num_layers" not in origins
    assert "parallelism.zero_stage" not in origins


def test_deepseek_v3_script():
    job, warnings, _ = read_megatron(DEEPSEEK_V3)
    model, training, parallelism = job["model"], job["training"], job["parallelism"]
    assert model["moe"]["layer_freq"] == [0] * 3 + [1] * 58
    assert model["moe"]["shared_expert_ffn_hidden_size"] == 2048
    assert model["moe"]["num_groups"] == 8
    assert model["mla"] == {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
    }
    assert "qk_norm" not in model
    assert model["mtp_num_layers"] == 1
    assert parallelism["vpp"] == 4
    assert parallelism["etp"] == 1
    assert parallelism["pipeline_model_parallel_layout"] == "Et*3|(tt|)*29m|L"
    assert training["moe"]["dispatcher"] == "deepep"
    assert training["optimizer"] == {
        "name": "adam",
        "moment_dtype": "bf16",
        "master_weights": "split",
    }
    assert training["gradient_dtype"] == "fp32"
    assert training["recompute"]["modules"] == ["mla_up_proj", "moe", "mlp", "layernorm"]
    assert training["cuda_graphs"] is True
    assert training["precision"] == "fp8"
    assert any("--delay-wgrad-compute" in text for text in warnings)
    assert any("--cuda-graph-scope" in text for text in warnings)
    assert len(warnings) == 2


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
        integer(text)
    except ValueError:
        pass
    else:
        assert text.startswith("1+1")


def test_arithmetic():
    assert integer("2 * (3 + 5) / 4 - 1") == 3
    assert int_or_list("[1]*2+[0]") == [1, 1, 0]
    with pytest.raises(ValueError, match="zero"):
        integer("1 / 0")


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
        "--is-hybrid-model",
        "--hybrid-override-pattern M-M*",
        "--mamba-state-dim 128",
        "--heterogeneous-layers-config-path x.json",
    ],
)
def test_unsupported_models_are_refused(argument):
    with pytest.raises(UnsupportedError):
        read(argument)


@pytest.mark.parametrize(
    ("argument", "what", "off"),
    [
        ("--linear-attention-freq", "linear attention", "0"),
        ("--linear-attention-freq", "linear attention", "[0]*24"),
        ("--hybrid-attention-enabled", "compressed sparse attention", "false"),
        ("--compress-ratios", "compressed sparse attention", "'[0, 0]'"),
        ("--index-topk", "sparse attention", "None"),
        ("--experimental-attention-variant", "this variant of attention", "None"),
        ("--o-lora-rank", "low-rank output projection", "0"),
        ("--attention-output-gate", "a gate on the output", "False"),
        ("--hc-mult", "hyper-connections", "1"),
        ("--enable-hyper-connections", "hyper-connections", "false"),
        ("--attn-res-block-size", "residuals across blocks", "0"),
        ("--routed-expert-hidden-size", "latent space", "null"),
        ("--moe-latent-size", "latent space", "0"),
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


def test_a_vocabulary_that_is_missing_can_be_given(tmp_path):
    file = tmp_path / "run.sh"
    text = SMALL.replace("--vocab-size 50257", "--tokenizer-type HuggingFaceTokenizer")
    file.write_text(text)
    given = {"cluster.device": "h100"}
    with pytest.raises(
        ConfigError, match=r"--vocab-size is missing.*; or give model.vocab_size=\.\.\."
    ):
        load_job(file, given)
    job = load_job(file, {**given, "model.vocab_size": 50257})
    assert job.model.padded_vocab_size(1) == 50304


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


@pytest.mark.parametrize(("overrides", "batch"), [({}, 16), ({"cluster.nodes": 8}, 32)])
def test_global_batch_defaults_to_one_microbatch_per_replica(tmp_path, overrides, batch):
    text = SMALL.replace("--global-batch-size 8", "--tensor-model-parallel-size 2")
    file = tmp_path / "run.sh"
    file.write_text(f"torchrun --nproc_per_node 8 --nnodes 4 train.py {text}")
    job = load_job(file, {"cluster.device": "h100", **overrides})
    assert job.training.global_batch_size == batch
    assert job.origins["training.global_batch_size"] == "Megatron default"


@pytest.mark.parametrize(
    ("without", "field", "value", "says"),
    [
        ("--vocab-size 50257", "model.vocab_size", 50257, "--vocab-size is missing"),
        ("--num-layers 24", "model.num_layers", 12, "--num-layers is missing"),
        ("--num-attention-heads 16", "model.num_attention_heads", 8, "--num-attention-heads is"),
        ("--micro-batch-size 1", "training.micro_batch_size", 2, "--micro-batch-size is missing"),
        ("--seq-length 2048", "training.seq_length", 512, "--seq-length is missing"),
        ("--global-batch-size 8", "training.global_batch_size", 16, "--global-batch-size is"),
    ],
)
def test_what_is_missing_can_be_given(tmp_path, without, field, value, says):
    file = tmp_path / "run.sh"
    given = {"cluster.device": "h100"}
    for text in (
        SMALL.replace(without, ""),
        SMALL.replace(without, f"{without.split()[0]} $UNSET"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=rf"; or give {field}=\.\.\."):
            load_job(file, given)
        section, name = field.split(".")
        assert getattr(getattr(load_job(file, {**given, field: value}), section), name) == value
    file.write_text(SMALL.replace(without, ""))
    with pytest.raises(ConfigError, match=says):
        load_job(file, given)


def test_what_hangs_on_what_is_missing_follows_what_is_given(tmp_path):
    file = tmp_path / "run.sh"
    text = SMALL.replace("--hidden-size 1024", "--hidden-size $H --swiglu")
    file.write_text(f"{text} --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP")
    given = {"cluster.device": "h100", "parallelism.tp": 2, "parallelism.pp": 2}
    with pytest.raises(ConfigError, match=r"--hidden-size is '\$\{H\}', which the script .* set"):
        load_job(file, given)
    job = load_job(file, {**given, "model.hidden_size": 2048})
    assert job.model.ffn_hidden_size == 5440


@pytest.mark.parametrize(
    ("argument", "field", "value"),
    [
        ("--fp8-format $FP8", "training.precision", "fp8"),
        ("--normalization $NORM", "model.normalization", "rmsnorm"),
        ("--optimizer $OPTIMIZER", "training.optimizer.name", "sgd"),
        ("--recompute-granularity $GRANULARITY", "training.recompute.granularity", "selective"),
        ("--tensor-model-parallel-size $TP", "parallelism.tp", 2),
        ("--num-experts $E --moe-router-topk 3", "model.moe.num_experts", 8),
        ("--num-experts 8 --moe-router-topk $K", "model.moe.router_topk", 3),
    ],
)
def test_what_only_the_environment_has_is_neither_assumed_nor_lost(
    tmp_path, argument, field, value
):
    file = tmp_path / "run.sh"
    file.write_text(f"{SMALL} {argument}")
    given = {"cluster.device": "h100"}
    with pytest.raises(ConfigError, match=rf"the script itself does not set; or give {field}="):
        load_job(file, given)
    found = load_job(file, {**given, field: value})
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


def test_experts_keep_what_is_stated_beside_their_number(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(f"{SMALL} --num-experts $E --moe-router-topk 3 --moe-ffn-hidden-size 256")
    moe = load_job(file, {"cluster.device": "h100", "model.moe.num_experts": 8}).model.moe
    assert (moe.num_experts, moe.router_topk, moe.ffn_hidden_size) == (8, 3, 256)


def test_a_switch_before_further_arguments_is_on():
    job = read("--sequence-parallel $EXTRA --overlap-grad-reduce ${MORE} $(cat more)")[0]
    assert job["parallelism"]["sequence_parallel"] is True
    assert job["parallelism"]["overlap_grad_reduce"] is True


def test_a_model_by_name_stands_for_all_that_is_missing_of_it(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text("torchrun train.py --micro-batch-size 1 --seq-length 512 --bf16")
    given = {"cluster.device": "h100", "training.global_batch_size": 8, "model": "llama3.1_8b"}
    job = load_job(file, given)
    assert job.model.num_layers == 32
    assert not [field for field in job.origins if field.startswith("model.")]


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


def test_elastic_node_counts():
    job, warnings, _ = read_megatron(f"torchrun --nnodes=1:4 --nproc-per-node=gpu t.py {SMALL}")
    assert job["cluster"] == {"nodes": 4}
    assert "cluster.gpus_per_node" in warnings[0]


def test_plain_list_one_argument_a_line():
    job, warnings, _ = read_megatron(SMALL.replace(" --", "\n--") + "\n# a comment\n--swiglu\n")
    assert warnings == ()
    assert job["model"]["activation"] == "swiglu"


def test_sequence_of_arguments():
    job, _, _ = read_megatron(["torchrun", "--nnodes", "2", "pretrain_gpt.py", *SMALL.split()])
    assert job["cluster"] == {"nodes": 2}


def test_arrays_that_another_script_passes_on():
    job, _, _ = read_megatron(f'MODEL_ARGS=(\n{SMALL}\n)\nOTHER="--swiglu"\n')
    assert job["model"]["activation"] == "swiglu"


def test_command_in_one_word_is_opened():
    job, _, _ = read_megatron(f'RUN="python -u pretrain_gpt.py {SMALL}"\neval "$RUN"\n')
    assert job["model"]["num_layers"] == 24


def test_load_job_needs_a_device(tmp_path):
    file = tmp_path / "llama3.sh"
    file.write_text(LLAMA3_8B)
    with pytest.raises(ConfigError, match="device"):
        load_job(file)
    job = load_job(file, {"cluster.device": "h100", "parallelism.tp": 2})
    assert job.name == "llama3"
    assert job.parallelism.tp == 2
    assert job.cluster.gpus == 16
    assert job.model.padded_vocab_size(1) == 128384
    assert job.origins["training.optimizer.name"] == "Megatron default"


def test_load_job_deepseek(tmp_path):
    file = tmp_path / "v3.sh"
    file.write_text(DEEPSEEK_V3)
    job = load_job(file, {"cluster.device": "h100"})
    assert sum(job.model.moe_layers) == 58
    assert job.notes


@pytest.mark.parametrize(
    ("program", "extra", "says"),
    [
        ("pretrain_mamba.py", "", "hybrid Mamba"),
        ("./Megatron-LM/pretrain_mamba.py", "", "hybrid Mamba"),
        ("pretrain_bert.py", "", "BERT models are not supported; only decoder-only"),
        ("pretrain_t5.py", "", "encoder-decoder"),
        ("examples/multimodal/pretrain_vlm.py", "", "vision-language"),
        (
            "pretrain_gpt.py",
            "--encoder-num-layers 12",
            "--encoder-num-layers .*encoders are not supported; supported: decoder-only",
        ),
        (
            "pretrain_gpt.py",
            "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec",
            "--spec .*hybrid Mamba",
        ),
    ],
)
def test_models_that_are_not_decoders_are_refused(program, extra, says):
    with pytest.raises(UnsupportedError, match=says):
        read_megatron(f"torchrun {program} {SMALL} {extra}", name="job")


@pytest.mark.parametrize(
    "command",
    [
        "python tools/run_text_generation_server.py",
        "torchrun -m examples.inference.offline_inference",
        "python -m torch.distributed.run tools/checkpoint/convert.py",
        "python quantize.py",
    ],
)
def test_programs_that_do_not_train_are_refused(command):
    with pytest.raises(UnsupportedError, match="it does not train"):
        read_megatron(f"{command} {SMALL}")


def test_a_launcher_is_no_program():
    assert read_megatron(f"python -m torch.distributed.run pretrain_gpt.py {SMALL}")[1] == ()


def test_options_of_slurm_give_nodes_and_gpus():
    lines = "#!/bin/bash\n#SBATCH --nodes=4 --gres=gpu:h100:8\n"
    job, _, _ = read_megatron(f"{lines}srun --ntasks-per-node=1 python pretrain_gpt.py {SMALL}")
    assert job["cluster"] == {"nodes": 4, "gpus_per_node": 8}
    job, _, _ = read_megatron(f"{lines}torchrun --nnodes $SLURM_NNODES pretrain_gpt.py {SMALL}")
    assert job["cluster"]["nodes"] == 4
    job, _, _ = read_megatron(f"{lines}srun -N2 python pretrain_gpt.py {SMALL}")
    assert job["cluster"]["nodes"] == 2


def test_the_arguments_that_are_skipped_are_named():
    script = f"""
    if [ -f config.sh ]; then
        EXTRA=(--swiglu --fp8-format hybrid --lr 1)
    elif true; then
        MORE="--sequence-parallel --swiglu"
    fi
    torchrun pretrain_gpt.py {SMALL}
    """
    _, warnings, _ = read_megatron(script, name="job")
    assert warnings[0].endswith("with their arguments: --swiglu, --fp8-format, --sequence-parallel")
    many = " ".join(f"--option-{number}" for number in range(20))
    _, warnings, _ = read_megatron(f"if x; then y {many}\nfi\n{SMALL}", name="job")
    assert warnings[0].endswith("--option-11 and 8 more")


def test_what_an_unset_variable_decides_is_named_unless_harmless():
    script = """
    if [ -n "$USE_FP8" ]; then EXTRA="--fp8-format hybrid"; fi
    if [ -n "${WANDB_API_KEY}" ]; then LOG=(--wandb-project p); fi
    """
    (warning,) = read_megatron(f"{script}\ntorchrun train.py {SMALL} $EXTRA ${{LOG[@]}}")[1]
    assert warning.startswith("the script does not set USE_FP8, on which a condition hangs")
    assert warning.endswith("without --fp8-format")


def test_of_a_loop_the_first_is_projected():
    script = f"for TP in 2 4; do torchrun train.py {SMALL} --tensor-model-parallel-size $TP; done"
    job, (warning,), _ = read_megatron(script)
    assert job["parallelism"]["tp"] == 2
    assert warning == "TP goes through 2, 4 in a loop: 2 is projected"


def test_files_that_a_script_reads(tmp_path):
    (tmp_path / "model.sh").write_text(f'MODEL_ARGS="{SMALL}"\nexport PATH=/somewhere\n')
    file = tmp_path / "run.sh"
    file.write_text(
        'source "$(dirname "${BASH_SOURCE[0]}")/model.sh"\n. `pwd`/missing.sh\n'
        "torchrun pretrain_gpt.py ${MODEL_ARGS} --swiglu\n"
    )
    job = load_job(file, {"cluster.device": "h100"})
    assert job.model.num_layers == 24
    (note,) = job.notes
    assert note.startswith("the script reads ")
    assert note.endswith("missing.sh, which was not found")


@pytest.mark.parametrize("leak", ["echo --swiglu", "mkdir -p --swiglu", "git log --swiglu"])
def test_words_of_unrelated_commands_do_not_leak(leak):
    alone = f"{leak}\n{SMALL}\n{leak} 3\n"
    held = f"{leak}\nMODEL_ARGS='{SMALL}'\n{leak} 3\n"
    for text in (alone, held, f"{leak}\ntorchrun $PROGRAM {SMALL}\n{leak}"):
        assert read_megatron(text)[0]["model"]["activation"] == "gelu"


def test_a_specification_of_layers_that_is_not_known_is_named():
    assert read("--spec megatron.core.models.gpt.gpt_layer_specs get_spec")[1] == ()
    assert read("--spec local")[1] == ()
    (warning,) = read("--spec mine.layers build")[1]
    assert warning == "--spec mine.layers build is projected as Megatron's GPT layers"


def test_an_unknown_attention_backend():
    with pytest.raises(ConfigError, match="--attention-backend should be one of"):
        read("--attention-backend flsh")
