"""Megatron-LM scripts as shells run them: launchers, conditions, loops, files."""

import pytest

from config.megatron_jobs import SMALL, read, read_megatron
from projector.config.load import load_job
from projector.errors import ConfigError, UnsupportedError

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
        "rotary_base": 1000000.0,
        "zero_centered_norms": True,
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


def test_a_switch_before_further_arguments_is_on():
    job = read("--sequence-parallel $EXTRA --overlap-grad-reduce ${MORE} $(cat more)")[0]
    assert job["parallelism"]["sequence_parallel"] is True
    assert job["parallelism"]["overlap_grad_reduce"] is True


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
