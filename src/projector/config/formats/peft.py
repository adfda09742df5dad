"""The ``adapter_config.json`` of Hugging Face's PEFT."""

from collections.abc import Mapping
from typing import Any, Final

from projector.errors import ConfigError, UnsupportedError

_FIELDS: Final = {
    "r": "rank",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "targets",
}
"""Key -> our field."""

_DEFAULTS: Final = {"rank": 8, "expert_adapters": "each"}
"""What PEFT has where a file says nothing: its rank, and an adapter beside each module."""

_HARMLESS_TEXT = """
alpha_pattern auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config
fan_in_fan_out inference_mode init_lora_weights layers_pattern loftq_config lora_ga_config
megatron_config megatron_core peft_type peft_version qalora_group_size revision runtime_config
task_type use_rslora
"""
_HARMLESS: Final = frozenset(_HARMLESS_TEXT.split())
"""Keys that change neither what is trained nor what it costs."""

_REFUSED: Final = {
    "exclude_modules": "modules are named, not left out",
    "layer_replication": "layers are trained once",
    "layers_to_transform": "all layers have adapters, or none",
    "lora_bias": "adapters have no bias",
    "modules_to_save": "no module is trained in full beside adapters",
    "rank_pattern": "all adapters outside experts have one rank",
    "target_parameters": "adapters stand beside modules",
    "trainable_token_indices": "no token of the embedding is trained",
    "use_dora": "it finds the norm of each adapted weight anew in every forward",
    "use_qalora": "inputs of adapters are not pooled",
}
"""Keys that make another training of it -> what is modelled."""


def read_peft(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``training.adapter`` that a file of PEFT describes."""
    kind = data["peft_type"]
    adapter: dict[str, Any] = {"kind": kind}
    if str(kind).upper() != "LORA":
        return adapter
    for key, value in data.items():
        off = value in (None, False, 0, "none") or value in ({}, [], ())
        if key in _FIELDS:
            if value is not None:
                adapter[_FIELDS[key]] = value
        elif key == "bias":
            if not off:
                _refuse(key, value, "biases are frozen")
        elif key not in _HARMLESS and not off:
            _refuse(key, value, _REFUSED.get(key, "it is not known"))
    if "targets" not in adapter:
        msg = "names no module: PEFT then takes those of a table by model"
        raise ConfigError(msg, key="target_modules", allowed="a list of modules")
    return {**_DEFAULTS, **adapter}


def _refuse(key: str, value: Any, why: str) -> None:
    raise UnsupportedError(f"{key} is not modelled: {why}", key=key, value=value, allowed=None)
