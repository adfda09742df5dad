"""Reading the ``config.json`` of a Hugging Face model.

Each ``model_type`` is one row of `FAMILIES`: where the plain dimensions are, what the
architecture fixes, and the small functions ("parts") that read what several keys decide
together. A key that is absent takes the default of the Hugging Face class; where that is no
property of the architecture, the key is required.
"""

from collections.abc import Mapping
from typing import Any, Final

from projector.config.formats.huggingface_models.config_file import ConfigFile, read_fields
from projector.config.formats.huggingface_models.families import FAMILIES, REFUSED, Family
from projector.config.model import ModelConfig

_OUTER_KEYS: Final = ("tie_word_embeddings", "quantization_config")
_ATTENTION_KINDS: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


def read_huggingface(
    data: Mapping[str, Any], *, name: str = "", key: str = "model"
) -> tuple[ModelConfig, list[str]]:
    """Convert the contents of a ``config.json``.

    Parameters
    ----------
    data : mapping
        The parsed file; of a multimodal model only ``text_config`` is read.
    name : str
        Name shown in reports; the file's own ``_name_or_path`` or ``model_type`` by default.
    key : str
        Dotted position put before every key in an error.

    Returns
    -------
    tuple of ModelConfig and list of str
        The architecture, and a sentence for everything that would change the projection and
        is not modelled.

    Raises
    ------
    UnsupportedError
        If the ``model_type`` is unknown, or the architecture cannot be described exactly.
    ConfigError
        If a key is missing, of the wrong type, or contradicts another one.
    """
    config = _text_part(ConfigFile.of(data, key))
    model_type = config.text("model_type")
    family = _family(model_type, config)
    _check_layer_types(config)
    if config.has("quantization_config"):
        config.warn("the quantised weights of the checkpoint; the training precision decides")

    fields = read_fields(family.fields, config)
    for part in family.parts:
        fields |= part(config)
    fields = {target: value for target, value in fields.items() if value is not None}
    fields["name"] = name or _own_name(data) or model_type
    fields["source"] = f"Hugging Face config.json ({model_type})"
    return ModelConfig.parse(fields, path=key), config.warnings


def _text_part(config: ConfigFile) -> ConfigFile:
    """Descend into the language model of a multimodal one."""
    if not config.has("text_config"):
        return config
    nested = config.child("text_config", required=True)
    if config.has("vision_config") or config.has("audio_config"):
        nested.warn("the vision or audio part; only text_config is read")
    shared = {name: config.data[name] for name in _OUTER_KEYS if name in config.data}
    return ConfigFile(shared | dict(nested.data), nested.path, nested.warnings)


def _family(model_type: str, config: ConfigFile) -> Family:
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    known = sorted(FAMILIES)
    why = REFUSED.get(model_type, f"unknown model type; known: {', '.join(known)}")
    raise config.unsupported(name="model_type", why=why, allowed=known)


def _own_name(data: Mapping[str, Any]) -> str:
    name = data.get("_name_or_path")
    return name if isinstance(name, str) else ""


def _check_layer_types(config: ConfigFile) -> None:
    other = set(config.sequence("layer_types", str)) - _ATTENTION_KINDS
    if other:
        why = f"layers of kind {', '.join(sorted(other))} are not supported"
        raise config.unsupported(name="layer_types", why=why, allowed=sorted(_ATTENTION_KINDS))
