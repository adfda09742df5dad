"""What torchtitan's settings are called and mean."""

from collections.abc import Mapping
from typing import Any, Final

TOOL: Final = "torchtitan"

ASSUMED: Final = "derived as torchtitan does"

_PARALLELISM: Final = (
    "data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree",
    "context_parallel_degree", "context_parallel_rotate_method", "pipeline_parallel_degree",
    "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv", "disable_loss_parallel",
    "pipeline_parallel_microbatches", "pipeline_parallel_microbatch_size",
    "pipeline_parallel_split_points", "pipeline_parallel_layers_per_stage",
    "enable_async_tensor_parallel", "fsdp_reshard_after_forward", "enable_compiled_autograd",
    "expert_parallel_degree", "expert_tensor_parallel_degree",
)  # fmt: skip
_FLOAT8: Final = ("enable_fsdp_float8_all_gather", "recipe_name")

MOVED: Final[Mapping[str, str]] = {
    **{f"training.{name}": f"parallelism.{name}" for name in _PARALLELISM},
    **{f"experimental.{name}": f"parallelism.{name}" for name in _PARALLELISM},
    **{f"float8.{name}": f"quantize.linear.float8.{name}" for name in _FLOAT8},
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "optimizer.fused": "optimizer.is_fused",
}
"""Where releases of 2024 and 2025 wrote a setting -> where the last ones with TOML do."""

_DEBUG: Final = {
    "num_layers": 6,
    "hidden_size": 256,
    "ffn_hidden_size": 768,
    "num_attention_heads": 16,
    "vocab_size": 2048,
}
"""``debugmodel`` of torchtitan/models/llama3."""

FLAVORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama2": {"7b": "llama2_7b", "13b": "llama2_13b", "70b": "llama2_70b"},
    "llama3": {
        "debugmodel": _DEBUG,
        "1b": "llama3.2_1b",
        "3b": "llama3.2_3b",
        "8b": "llama3.1_8b",
        "70b": "llama3.1_70b",
        "405b": "llama3.1_405b",
    },
    "llama4": {"17bx16e": "llama4_scout", "17bx128e": "llama4_maverick"},
    "deepseek_v3": {"16b": "deepseek_v2_lite", "236b": "deepseek_v2", "671b": "deepseek_v3"},
    "qwen3": {
        "0.6b": "qwen3_0.6b",
        "1.7b": "qwen3_1.7b",
        "4b": "qwen3_4b",
        "8b": "qwen3_8b",
        "14b": "qwen3_14b",
        "32b": "qwen3_32b",
        "30b-a3b": "qwen3_30b_a3b",
        "235b-a22b": "qwen3_235b_a22b",
    },
    "gpt_oss": {"20b": "gpt_oss_20b", "120b": "gpt_oss_120b"},
}
"""``model.name`` -> ``model.flavor`` in small letters -> the same architecture here (a shipped
name, or its fields), as torchtitan/models/*/__init__.py describe them."""

KNOWN_CONVERTERS: Final = ("float8", "mx", "quantize.", "primus_turbo")
"""Beginnings of converters that are followed, or that choose kernels of the device alone."""

RESHARDS: Final = {"default": None, "always": True, "never": False}
"""By default gathered weights are freed unless there is a pipeline."""

COMM_TYPES: Final = {"allgather": "all_gather", "alltoall": "p2p"}
"""``alltoall`` passes keys and values on from rank to rank."""

DISPATCHERS: Final = {"standard": "alltoall", "deepep": "deepep", "hybridep": "hybridep"}

OPTIMIZERS: Final = {"adam": "adam", "adamw": "adam", "muon": "muon", "sgd": "sgd"}

SCHEDULES: Final = {
    "1f1b": ("1F1B", "1f1b"),
    "gpipe": ("GPipe", "gpipe"),
    "interleaved1f1b": ("Interleaved1F1B", "interleaved"),
    "zbvzerobubble": ("ZBVZeroBubble", "zbv-formatted"),
}
"""Schedule of torch.distributed.pipelining in small letters -> its spelling, and the name here."""

UNSUPPORTED_SCHEDULES: Final = {
    "loopedbfs": "breadth-first schedules of several chunks are not supported",
    "interleavedzerobubble": "interleaved zero-bubble schedules are not supported",
    "dualpipev": "DualPipeV is not supported (dualpipe holds two copies of the model)",
    "pipelineschedulemulti": "schedules of a file are not supported",
    "pipelineschedulesingle": "schedules of a file are not supported",
    "_pipelinescheduleruntime": "schedules of a file are not supported",
}
"""The same -> why it is not projected."""

SEVERAL_STAGES: Final = frozenset(
    {"interleaved1f1b", "loopedbfs", "interleavedzerobubble", "zbvzerobubble", "dualpipev"}
)
"""Schedules with two stages a rank unless the file says otherwise."""

_OFF: Final[tuple[Any, ...]] = (False, 0, "", [])

UNMODELLED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "parallelism.disable_loss_parallel": (_OFF, "the loss is divided over tensor parallelism"),
    "parallelism.pipeline_parallel_split_points": (_OFF, "layers are divided evenly"),
    "optimizer.early_step_in_backward": (_OFF, "the optimizer steps after the backward"),
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": (
        ([], ["moe.router.gate"]),
        "every second matrix product is kept",
    ),
    "fault_tolerance.enable": (_OFF, "no copies beyond those of the file"),
    "quantize.grouped_mm.float8.fqns": (_OFF, "experts follow training.precision"),
    "quantize.grouped_mm.mx.fqns": (_OFF, "experts follow training.precision"),
    "float8.moe_fqns_prototype": (_OFF, "experts follow training.precision"),
    "activation_offload.enable": (_OFF, "activations stay on the device"),
    "model.norm_type": (("rmsnorm", "fused_rmsnorm"), "norms are those of the flavour"),
    "training.mixed_precision_buffer": (_OFF, "buffers are left out"),
}
"""Setting -> values without effect, and what is projected."""

HARMLESS: Final = frozenset(
    {
        "job.", "profiling.", "metrics.", "checkpoint.", "comm.", "validation.", "lr_scheduler.",
        "memory_estimation.", "fault_tolerance.", "experimental.", "debug.", "training.dataloader.",
        "sink_level", "file_sink_level", "stderr_sink_level",
        "training.debug_moe_force_load_balance",
        "float8.", "mx.", "quantize.", "primus_turbo.", "logging.", "eval.", "tokenizer.",
        "training.dataset", "training.dataset_path", "training.mock_data", "training.steps",
        "training.max_norm", "training.gc_freq", "training.gc_debug", "training.seed",
        "training.deterministic", "training.warmup_steps", "training.data_dir",
        "model.hf_assets_path", "model.tokenizer_path", "model.print_after_conversion",
        "compile.backend", "hf_transformers.",
        "optimizer.lr", "optimizer.eps", "optimizer.beta1", "optimizer.beta2",
        "optimizer.weight_decay", "optimizer.is_fused", "optimizer.momentum",
        "parallelism.enable_compiled_autograd", "parallelism.context_parallel_load_balancer",
        "parallelism.pipeline_parallel_expert_parallel_overlap",
        "activation_checkpoint.visualize_memory_budget_pareto",
        "activation_checkpoint.memory_budget", "activation_checkpoint.selective_ac_option",
        "activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check",
        "activation_checkpoint.debug",
    }
)  # fmt: skip
"""Settings, and sections with a point behind, that cannot change a projection."""
