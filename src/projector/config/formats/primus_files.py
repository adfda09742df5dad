"""Files of Primus: experiments and presets that extend others, and where presets lie."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from projector.config import resources
from projector.config.formats.megatron_settings.fields import MEGATRON_DEFAULTS
from projector.config.model_file import model_data
from projector.config.yaml_file import parse_yaml, read_yaml
from projector.errors import ConfigError
from projector.files import is_file

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)(?::-?([^{}]*))?\}")
_MOST_FILES = 256
"""Files that an experiment may lead to; Primus' own lead to a dozen."""

_EXTENDS = ("extends", "bases", "includes")
"""Keys by which a file starts from others: later ones outrank earlier ones, the file them all."""


class Surroundings:
    """What a file is read with: the environment, and what has been noticed."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ = os.environ if environ is None else environ
        """Environment variables."""
        self.used: dict[str, str] = {}
        """Setting -> the variable that gave it."""
        self.warnings: list[str] = []
        """What was left out."""
        self.files = 0
        """Files that were read, each as often as it was."""

    def enter(self, file: Path, above: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return the chain of files down to one that is read next."""
        here = file.resolve()
        if here in above:
            circle = " -> ".join(path.name for path in (*above[above.index(here) :], here))
            msg = f"{file}: 'extends' goes in a circle: {circle}"
            raise ConfigError(msg, key="extends", value=str(file), allowed="a chain of files")
        self.files += 1
        if self.files > _MOST_FILES:
            msg = f"{file}: 'extends' leads to more than {_MOST_FILES} files"
            raise ConfigError(msg, key="extends", value=str(file), allowed="fewer files")
        return (*above, here)

    def substitute(self, value: Any, name: str) -> Any:
        """Fill in ``${VAR:default}``; the result has the type that YAML gives its text."""
        if isinstance(value, list):
            return [self.substitute(item, name) for item in value]
        if isinstance(value, Mapping):
            return {key: self.substitute(item, f"{name}.{key}") for key, item in value.items()}
        if not isinstance(value, str) or "${" not in value:
            return value
        text = _PLACEHOLDER.sub(lambda match: self._fill(match, value, name), value)
        if "${" in text:
            msg = f"{name}: {value!r} is not of the form ${{VARIABLE:default}}"
            raise ConfigError(msg, key=name, value=value, allowed="${VARIABLE:default}")
        try:
            return parse_yaml(text, name=name)
        except ConfigError:
            return text

    def _fill(self, match: re.Match[str], value: str, name: str) -> str:
        variable, default = match[1], match[2]
        if self.environ.get(variable):
            self.used[name] = variable
            return self.environ[variable]
        if default is None:
            msg = f"{name} needs the environment variable {variable}, which is not set"
            raise ConfigError(msg, key=name, value=value, allowed=f"${{{variable}:default}}")
        return default


def whole_experiment(data: Mapping[str, Any], path: Path, around: Surroundings) -> dict[str, Any]:
    """Return an experiment with the files that it extends; mappings are merged key by key."""
    return _merged(dict(data), path, around, ())


def _merged(
    data: dict[str, Any], path: Path, around: Surroundings, above: tuple[Path, ...]
) -> dict[str, Any]:
    above = around.enter(path, above)
    merged: dict[str, Any] = {}
    for parent in _parents(data, path):
        file = path.parent / parent
        merged = _deep(merged, _merged(read_yaml(file, key="extends"), file, around, above))
    return _deep(merged, data)


def _parents(data: dict[str, Any], path: Path) -> list[str]:
    """Take the names of the files that a file starts from out of what it says."""
    parents: list[str] = []
    for key in _EXTENDS:
        given = data.pop(key, None) or []
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            msg = f"{path.name}: {key} should list the names of files (got {given!r})"
            raise ConfigError(msg, key=key, value=given, allowed="names of files")
        parents += names
    return parents


def _deep(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        known = merged.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[key] = _deep(known, value) if both else value  # type: ignore[arg-type]
    return merged


def preset_file(name: str, kind: str, experiment: Path) -> Path | None:
    """Return the file of a preset that an experiment names, None where it is not at hand.

    The name may have a folder; the kind is ``models`` or ``modules``. Presets lie beside the
    experiment, in a folder of that kind beside it, or in a checkout above it.
    """
    own = {experiment.resolve(), *resources.index("models").values()}
    for candidate in _candidates(name, kind, experiment):
        if is_file(candidate) and candidate.resolve() not in own:
            return candidate
    return None


def _candidates(name: str, kind: str, experiment: Path) -> Iterator[Path]:
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    folder = experiment.parent
    yield from (folder / file, folder / file.name, folder / kind / file.name)
    for parent in experiment.absolute().parents:
        presets = parent / "primus" / "configs" / kind / "megatron"
        yield from (presets / file, presets / file.name)


def preset_settings(
    file: Path, around: Surroundings, above: tuple[Path, ...] = ()
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return what a preset and what it extends set, over a shipped architecture if not None.

    That architecture stands for a preset which is not at hand. Without one the settings describe
    all of the model.
    """
    above = around.enter(file, above)
    data = read_yaml(file, key="model")
    base: dict[str, Any] | None = None
    settings: dict[str, Any] = {}
    for parent in _parents(data, file):
        beside = file.parent / parent
        stem = Path(parent).name.removesuffix(".yaml")
        if is_file(beside):
            found, inherited = preset_settings(beside, around, above)
            base = found or base
            settings |= inherited
        elif stem in BASES:
            settings |= BASES[stem]
        elif is_shipped(stem):
            base = model_data(stem)
            settings |= {**preset(stem).run, **preset(stem).model}
        elif stem != "module_base":
            around.warnings.append(f"{file.name}: preset {parent} was not found and was left out")
    settings |= {name: around.substitute(value, name) for name, value in data.items()}
    return base, settings


def is_shipped(name: str) -> bool:
    """Whether an architecture of this name is shipped."""
    return resources.normalise(name) in resources.index("models")


# What presets set, as tables of Megatron settings. The facts were read in AMD-AGI/Primus at
# fd1eeabb: models from ``primus/configs/models/megatron``, trainers from
# ``primus/configs/modules/megatron``. Where the files are at hand, they are read instead.

PRIMUS_DEFAULTS: dict[str, Any] = {
    **MEGATRON_DEFAULTS,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "bf16": True,
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "moe_token_dispatcher_type": "allgather",
    "moe_permute_fusion": False,
    "moe_grouped_gemm": False,
}
"""What every trainer and model starts from (``trainer_base.yaml``, ``language_model.yaml``)."""

_TRAINERS: dict[str, dict[str, Any]] = {
    "pre_trainer": {"micro_batch_size": 2, "global_batch_size": 16, "seq_length": 1024},
    "sft_trainer": {"micro_batch_size": 1, "global_batch_size": 128, "seq_length": 2048},
}
"""What a trainer sets of a step, by the name of its file."""

_LLAMA = {
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
}
_GROUPED = {**_LLAMA, "group_query_attention": True}
_EXCHANGE = {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True}
_FUSED = {**_EXCHANGE, "moe_permute_fusion": True}
_DEEPSEEK_EXPERTS = {**_FUSED, "moe_shared_expert_overlap": True}
_DEEPSEEK = {**_LLAMA, **_DEEPSEEK_EXPERTS, "multi_latent_attention": True, "qk_layernorm": True}
_EIGHT = {"num_query_groups": 8, "num_experts": 8, "moe_router_topk": 2}

BASES: dict[str, dict[str, Any]] = {
    "primus_megatron_model": {},
    "language_model": {},
    "llama_base": _LLAMA,
    "llama2_base": {**_LLAMA, "max_position_embeddings": 4096},
    "llama3_base": {**_GROUPED, "max_position_embeddings": 8192},
    "llama4_base": {**_GROUPED, **_EXCHANGE, "num_query_groups": 8, "moe_router_topk": 1},
    "mixtral_base": {**_GROUPED, **_EXCHANGE, **_EIGHT},
    "grok_base": {**_GROUPED, **_EXCHANGE, **_EIGHT},
    "qwen2.5_base": {**_GROUPED, **_FUSED, "max_position_embeddings": 131072},
    "deepseek_v2_base": {**_DEEPSEEK, "moe_router_topk": 6},
    "deepseek_v3_base": {**_DEEPSEEK, "moe_router_topk": 6},
    "pre_trainer": {},
}
"""Presets that a model file may start from where their files are not at hand."""


class Preset(NamedTuple):
    """How a preset differs from the shipped architecture of its name."""

    model: Mapping[str, Any] = MappingProxyType({})
    """Settings that make another architecture of it, as it was published."""

    run: Mapping[str, Any] = MappingProxyType({})
    """Settings of the run that come with it."""


_UNTIED = {"untie_embeddings_and_output_weights": True}
_NO_BIAS = {"add_qkv_bias": False}
_NO_NORM = {"qk_layernorm": False}
_EVEN_HEADS = {"kv_channels": None}
_ON_A_NODE = {"expert_model_parallel_size": 8}
_DEEPSEEK_RUN = {**_DEEPSEEK_EXPERTS, "qk_layernorm": True}
"""The norm counts only where an experiment turns MLA off."""
_GPT_OSS = Preset(
    {
        "ffn_hidden_size": 10944,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "qk_layernorm": True,
        "softmax_type": "vanilla",
        "window_size": None,
        "activation_func_clamp_value": None,
        "moe_shared_expert_intermediate_size": 2880,
        "tokenizer_model": "deepseek-ai/DeepSeek-V2-Lite",
    },
    {**_DEEPSEEK_EXPERTS, **_ON_A_NODE},
)

_PRESETS: dict[str, Preset] = {
    "deepseek_v2": Preset({}, {**_DEEPSEEK_RUN, **_ON_A_NODE}),
    "deepseek_v2_lite": Preset({}, {**_DEEPSEEK_RUN, **_ON_A_NODE}),
    "deepseek_v3": Preset({"mtp_num_layers": 1}, {**_DEEPSEEK_RUN, **_ON_A_NODE}),
    "gpt_oss_20B": _GPT_OSS,
    "gpt_oss_120B": _GPT_OSS,
    "grok1": Preset(
        {
            **_UNTIED,
            "swiglu": True,
            "quick_geglu": False,
            "tokenizer_model": "mistralai/Mixtral-8x22B-v0.1",
        },
        _EXCHANGE,
    ),
    "kimi_k2": Preset({}, _DEEPSEEK_RUN),
    "llama3.2_1B": Preset(_UNTIED),
    "llama3.2_3B": Preset(_UNTIED),
    "llama4_17B16E": Preset({"qk_layernorm": True}, {**_DEEPSEEK_EXPERTS, **_ON_A_NODE}),
    "llama4_17B128E": Preset({"moe_layer_freq": 2}, {**_DEEPSEEK_EXPERTS, **_ON_A_NODE}),
    "minimax_m2.5": Preset({"qk_layernorm": True}, {**_FUSED, **_ON_A_NODE}),
    "mixtral_8x7B_v0.1": Preset({}, _EXCHANGE),
    "mixtral_8x22B_v0.1": Preset({}, _EXCHANGE),
    "qwen2.5_3B": Preset({**_UNTIED, **_NO_BIAS}, _FUSED),
    "qwen2.5_7B": Preset(_NO_BIAS, _FUSED),
    "qwen2.5_14B": Preset(_NO_BIAS, _FUSED),
    "qwen2.5_32B": Preset(_NO_BIAS, _FUSED),
    "qwen2.5_72B": Preset(_NO_BIAS, _FUSED),
    "qwen3_4B": Preset({**_UNTIED, **_EVEN_HEADS, **_NO_NORM}, _FUSED),
    "qwen3_8B": Preset(_NO_NORM, _FUSED),
    "qwen3_14B": Preset(_NO_NORM, _FUSED),
    "qwen3_32B": Preset({**_EVEN_HEADS, **_NO_NORM}, _FUSED),
    "qwen3_30B_A3B": Preset({}, _FUSED),
    "qwen3_235B_A22B": Preset({}, _FUSED),
}
_BY_NAME = {resources.normalise(name): preset for name, preset in _PRESETS.items()}


def preset(name: str) -> Preset:
    """Return how the preset of a name differs from the shipped architecture of that name."""
    return _BY_NAME.get(resources.normalise(name), Preset())


def trainer(config: str) -> dict[str, Any]:
    """Return what a trainer's file sets of a step; that of pre-training for an unknown name."""
    return _TRAINERS.get(config.removesuffix(".yaml"), _TRAINERS["pre_trainer"])
