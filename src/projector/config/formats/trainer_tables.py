"""What the arguments of Hugging Face trainers are called and mean."""

from collections.abc import Mapping
from typing import Any, Final

TOOL: Final = "the trainer"

MOVED: Final[Mapping[str, str]] = {
    # axolotl
    "base_model": "model_name_or_path",
    "micro_batch_size": "per_device_train_batch_size",
    "sequence_len": "max_seq_length",
    "optimizer": "optim",
    "lora_dropout_p": "lora_dropout",
    "tensor_parallel_size": "tp_size",
    "context_parallel_size": "cp_size",
    "sequence_parallel_degree": "sp_size",
    "load_in_4bit": "quantization_4bit",
    "load_in_8bit": "quantization_8bit",
    # LLaMA-Factory
    "cutoff_len": "max_seq_length",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "enable_liger_kernel": "use_liger_kernel",
    # TRL, run_clm and others
    "max_length": "max_seq_length",
    "block_size": "max_seq_length",
    "model_max_length": "max_seq_length",
    "seq_length": "max_seq_length",
    "max_seq_len": "max_seq_length",
    "model_name": "model_name_or_path",
    "model_id": "model_name_or_path",
    "model_path": "model_name_or_path",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "torch_dtype": "dtype",
    "model_dtype": "dtype",
    "deepspeed_config": "deepspeed",
    "bfloat16": "bf16",
    "float16": "fp16",
    "flash_attention": "flash_attn",
    "parallelism_config.tp_size": "tp_size",
    "parallelism_config.parallelism_config_tp_size": "tp_size",
    "parallelism_config.cp_size": "cp_size",
    "parallelism_config.parallelism_config_cp_size": "cp_size",
    "parallelism_config.sp_size": "sp_size",
}
"""How tools on top of transformers write an argument -> its name here."""

SEQUENCE: Final = "max_seq_length"

OPTIMIZERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "adamw_torch": {"name": "adam", "update_bytes": 4.0},
    "adamw_hf": {"name": "adam", "update_bytes": 4.0},
    "adamw": {"name": "adam", "update_bytes": 4.0},
    "adamw_torch_fused": {"name": "adam"},
    "adamw_apex_fused": {"name": "adam"},
    "adamw_anyprecision": {"name": "adam"},
    "adamw_8bit": {"name": "adam", "moment_dtype": "fp8"},
    "adamw_bnb_8bit": {"name": "adam", "moment_dtype": "fp8"},
    "adamw_torch_8bit": {"name": "adam", "moment_dtype": "fp8"},
    "paged_adamw_8bit": {"name": "adam", "moment_dtype": "fp8"},
    "paged_adamw_32bit": {"name": "adam"},
    "paged_adamw": {"name": "adam"},
    "sgd": {"name": "sgd"},
    "muon": {"name": "muon"},
}
"""``optim`` -> ``training.optimizer``: foreach kernels have an intermediate of 4 bytes, states of
8 bits are one byte."""

UNFUSED: Final = ("eager", "disabled", "none")
"""Attention that is not one kernel."""

ADAPTERS: Final = {"lora_r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}
"""Argument -> field of ``training.adapter``."""

_OFF: Final[tuple[Any, ...]] = (False, 0, "", "none", "no", "None", [])

UNMODELLED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "group_by_length": (_OFF, "all sequences have their full length"),
    "neftune_noise_alpha": ((0, None), "no noise is added"),
    "use_galore": (_OFF, "the optimizer keeps whole states"),
    "use_apollo": (_OFF, "the optimizer keeps whole states"),
    "use_badam": (_OFF, "all layers are trained"),
    "lisa_n_layers": (_OFF, "all layers are trained"),
    "unfrozen_parameters": (_OFF, "all layers are trained"),
    "mixture_of_depths": (_OFF, "all layers run"),
    "use_unsloth": (_OFF, "kernels are those of transformers"),
    "auto_find_batch_size": (_OFF, "the batch is the one stated"),
}
"""Argument -> values without effect, and what is projected."""

REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "it finds the norm of each adapted weight anew in every forward",
    "relora_steps": "adapters that are merged while it trains are not modelled",
    "loraplus_lr_ratio": "",
    "quantization_8bit": "frozen weights of 8 bits are not modelled",
    "pissa_init": "",
    "use_pissa": "",
}
"""Argument -> why it is not projected; ``""`` where it changes nothing."""

STAGES: Final = ("pt", "sft", "pretrain", "")
"""LLaMA-Factory's stages with one model and one forward and backward a step."""

_HARMLESS_TEXT: Final = """
accelerator_ accelerator_config. adam_ adapter added_ assistant_ attn_implementation auto_resume_
average_ bf16_full_eval bnb_ buffer_ cache_ chat_ comet_ completion_ compute_ config_ conv_ data_
data_path data_seed dataloader_ dataset dataset_ datasets ddp_ debug deepspeed_ default_
disable_tqdm dispatch_ distributed_ do_eval do_predict do_train double_quantization downcast_
early_ embedding_lr enable_cpu_ eval_ eval_sample_ evals_ evaluation_ finetuning_type flash_attn
formatting_ fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_ fsdp_config. full_determinism
gc_steps gradient_checkpointing_ gradient_clip greater_ half_precision_ hf_ hub_ ignore_ image_
include_ interleave_ is_ jit_ label_ learning_ length_ liger_ load_best_ local_rank log_ logger
logging_ lora_ loss_ low_cpu_ lr_scheduler lr_scheduler_ machine_ main_ mask_ master_ max_eval_
max_grad_ max_samples max_steps max_train_ metric_ mix_ mixed_ mlflow_ model_kwargs model_revision
model_type neat_ neftune_ no_cuda node_ nproc_ num_epochs num_proc num_train_ optim_ optim_args
optimizer_torch_fused output_dir overwrite_ packing pad_ past_ peft_ per_device_eval_ plot_ plugins
prediction_ preprocessing_ prompt_ push_ quantization_ rdzv_ remove_ report_ resume_ rl roles_
rope_ run_name s2_ same_ sample_packing sample_packing_ save_ saves_ sdp_ seed shift_ shuffle_
skip_ special_ split_ stage streaming strict swanlab_ template test_ test_datasets text_ tf32 token
tokenized_ tokenizer tokenizer_ tokens torch_compile_ torchdynamo tpu_ trackio_ train_data
train_file train_on_ train_samples truncation_ trust_ type_of_ use_auth_ use_cpu use_fast_ use_ipex
use_lora use_mlflow use_peft use_swanlab use_wandb val_ validation_ video_ wandb_ warmup_
weight_decay world_ xformers_
"""
HARMLESS: Final = frozenset(_HARMLESS_TEXT.split())
"""Arguments, and beginnings of them with a dash below, that cannot change a projection."""
