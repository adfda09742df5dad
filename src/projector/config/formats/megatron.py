"""Megatron-LM command-line arguments: a launch script or a plain list."""

import re
from collections.abc import Sequence
from typing import Any

from projector.config.formats._shell import Script
from projector.config.formats.megatron_settings.fields import MEGATRON_DEFAULTS
from projector.config.formats.megatron_settings.settings import Dialect
from projector.config.formats.megatron_settings.translate import Triple, translate
from projector.errors import ConfigError, UnsupportedError

_FLAG = re.compile(r"--?[A-Za-z]")
_MARKERS = ("--num-layers", "--hidden-size", "--micro-batch-size", "--tensor-model-parallel-size")

_ARGUMENT = {"fp8": "fp8_format", "fp4": "fp4_format"}

_NEGATED = {
    "disable_bias_linear": "add_bias_linear",
    "no_position_embedding": "add_position_embedding",
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "no_masked_softmax_fusion": "masked_softmax_fusion",
    "no_bias_gelu_fusion": "bias_gelu_fusion",
    "no_bias_swiglu_fusion": "bias_swiglu_fusion",
    "no_bias_dropout_fusion": "bias_dropout_fusion",
    "no_rope_fusion": "apply_rope_fusion",
    "no_async_tensor_model_parallel_allreduce": "async_tensor_model_parallel_allreduce",
    "no_overlap_p2p_communication": "overlap_p2p_comm",
    "no_accumulate_allreduce_grads_in_fp32": "accumulate_allreduce_grads_in_fp32",
    "no_torch_fsdp2_reshard_after_forward": "torch_fsdp2_reshard_after_forward",
    "no_moe_permute_fusion": "moe_permute_fusion",
    "no_overlap_grad_reduce": "overlap_grad_reduce",
    "no_overlap_param_gather": "overlap_param_gather",
    "no_sequence_parallel": "sequence_parallel",
    "no_use_distributed_optimizer": "use_distributed_optimizer",
    "no_flash_attn": "use_flash_attn",
    "no_cross_entropy_loss_fusion": "cross_entropy_loss_fusion",
    "no_check_for_nan_in_loss_and_grad": "check_for_nan_in_loss_and_grad",
    "no_mmap_bin_files": "mmap_bin_files",
    "no_create_attention_mask_in_dataloader": "create_attention_mask_in_dataloader",
    "no_initialization": "perform_initialization",
    "no_barrier_with_level_1_timing": "log_barrier",
    "no_log_loss_scale_to_tensorboard": "log_loss_scale",
    "no_log_learnig_rate_to_tensorboard": "log_learning_rate",
    "no_log_learning_rate_to_tensorboard": "log_learning_rate",
    "no_scatter_gather_tensors_in_pipeline": "scatter_gather_tensors_in_pipeline",
    "no_ckpt_fully_parallel_save": "ckpt_fully_parallel_save",
    "no_data_sharding": "data_sharding",
    "no_one_logger": "one_logger_on",
    "no_align_grad_reduce": "align_grad_reduce",
    "no_align_param_gather": "align_param_gather",
    "no_use_tokenizer_model_from_checkpoint_args": "use_tokenizer_model_from_checkpoint_args",
    "no_gradient_reduce_div_fusion": "gradient_reduce_div_fusion",
    "disable_gloo_process_groups": "enable_gloo_process_groups",
    "disable_msc": "enable_msc",
}
"""Switches that turn a setting off: argument -> setting."""

_ENCODERS = "only decoder-only models are"
_PROGRAMS = {
    "mamba": ("hybrid Mamba models", "attention and MLP layers are"),
    "hybrid": ("hybrid Mamba models", "attention and MLP layers are"),
    "bert": ("BERT models", _ENCODERS),
    "t5": ("encoder-decoder models (T5)", _ENCODERS),
    "vlm": ("vision-language models", _ENCODERS),
    "vision": ("vision models", _ENCODERS),
    "ict": ("retrieval models", _ENCODERS),
    "retro": ("retrieval models", _ENCODERS),
}
"""Part of a training program's name -> what it trains that is not supported, and what is."""

_MOST_SHOWN = 12


def read_megatron(text: str | Sequence[str], *, name: str = "") -> Triple:
    """Read Megatron-LM arguments.

    Parameters
    ----------
    text : str or sequence of str
        A shell script or a text of arguments, or the arguments one by one.
    name : str
        Name of the job.

    Returns
    -------
    tuple
        Native job mapping without a device, warnings, and origins of values that are
        Megatron's defaults.

    Raises
    ------
    ConfigError
        If there are no arguments, one is malformed, or the vocabulary's size is missing.
    UnsupportedError
        If the model is of a kind that is not supported.
    """
    warnings: list[str] = []
    if isinstance(text, str):
        launcher, program, words = _script_words(text, warnings)
    else:
        launcher, program, words = _divide([str(word) for word in text])
    _check_program(program)
    stated = _settings(words)
    for key, value in _settings(launcher).items():
        if key in {"nnodes", "nproc_per_node"}:
            stated.setdefault(key, value)
    if not stated:
        msg = "no Megatron-LM arguments were found (such as --num-layers 32)"
        raise ConfigError(msg, key="config", allowed="Megatron-LM arguments")
    _resolve_world(stated, warnings)
    spelling = {
        setting: switch for switch, setting in _NEGATED.items() if stated.get(setting) is False
    }

    def spell(setting: str) -> str:
        return "--" + spelling.get(setting, _ARGUMENT.get(setting, setting)).replace("_", "-")

    dialect = Dialect(spell, MEGATRON_DEFAULTS, "Megatron default", "argument")
    job, further, origins = translate(stated, dialect)
    job["name"] = name
    job.setdefault("training", {})["framework"] = "megatron_lm"
    if name:
        job["model"].setdefault("name", name)
    return job, (*warnings, *further), origins


def _script_words(text: str, warnings: list[str]) -> tuple[list[str], str, list[str]]:
    """Return the Python file in the command that trains, with the words before and after it."""
    script = Script(text)
    if script.skipped:
        more = len(script.skipped) - _MOST_SHOWN
        warnings.append(
            "parts of the script inside conditions or loops were skipped with their arguments: "
            + ", ".join(script.skipped[:_MOST_SHOWN])
            + (f" and {more} more" if more > 0 else "")
        )
    programs = [words for words in script.commands if any(_is_program(word) for word in words)]
    training = [words for words in programs if any(word.startswith(_MARKERS) for word in words)]
    if training:
        return _divide(training[-1])
    words = [word for command in script.commands for word in command]
    if any(word.startswith(_MARKERS) for word in words):
        return _divide(words)
    held: list[str] = []
    for value in script.variables.values():
        parts = value if isinstance(value, list) else value.split()
        if parts and parts[0].startswith("--"):
            held.extend(parts)
    launcher, program, rest = _divide([*held, *words])
    return launcher or held, program, rest


def _divide(words: list[str]) -> tuple[list[str], str, list[str]]:
    for position, word in enumerate(words):
        if _is_program(word):
            return words[:position], word, words[position + 1 :]
    return [], "", words


def _check_program(program: str) -> None:
    """Refuse a program that trains what is not supported: its name is all that tells."""
    stem = program.rpartition("/")[2].removesuffix(".py").lower()
    for part in re.split(r"[^a-z0-9]+", stem):
        if part in _PROGRAMS:
            what, legal = _PROGRAMS[part]
            msg = f"{program}: {what} are not supported; {legal}"
            raise UnsupportedError(msg, key="config", value=program, allowed="pretrain_gpt.py")


def _is_program(word: str) -> bool:
    return word.endswith(".py") and not word.startswith("-")


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """Group words into settings; a bare switch is True, several words are a list."""
    settings: dict[str, Any] = {}
    current = ""
    values: list[str] = []
    for word in [*words, "--"]:
        if not _FLAG.match(word) and word != "--":
            if current and not (word.startswith(("${", "$(")) and values):
                values.append(word)
            continue
        if current:
            _set(settings, current, values)
        current, equals, value = word.lstrip("-").partition("=")
        values = [value] if equals else []
    return settings


def _set(settings: dict[str, Any], argument: str, values: list[str]) -> None:
    setting = argument.replace("-", "_")
    value: Any = True if not values else values[0] if len(values) == 1 else values
    if setting in _NEGATED:
        setting, value = _NEGATED[setting], False
    settings[setting] = value


def _resolve_world(stated: dict[str, Any], warnings: list[str]) -> None:
    """Turn torchrun's node counts into numbers, or leave them to the user."""
    for key, field in (("nnodes", "nodes"), ("nproc_per_node", "gpus_per_node")):
        value = stated.get(key)
        if value is None:
            continue
        most = str(value).rpartition(":")[2]
        if most.isdigit():
            stated[key] = int(most)
        else:
            del stated[key]
            warnings.append(f"--{key} is {value!r}; give cluster.{field}=N to set it")
