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
from projector.config.formats.huggingface_models.keys import (
    HARMLESS,
    OF_OTHER_FAMILIES,
    UNSUPPORTED,
    refusal,
)
from projector.config.formats.megatron_settings.others import Unsupported
from projector.config.formats.megatron_settings.values import is_off
from projector.config.model import ModelConfig

_OUTER_KEYS: Final = ("tie_word_embeddings", "quantization_config")
_NESTED_KEYS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep their language model."""
_MOST_NESTED: Final = 8
_OTHER_PARTS: Final = ("vision_config", "audio_config")
_ATTENTION_KINDS: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_GROUPED: Final = frozenset(name for group in OF_OTHER_FAMILIES for name in group.keys)
_MOST_NAMED: Final = 12
"""Unknown keys that a warning names."""


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
    """
    config = _text_part(ConfigFile.of(data, key))
    model_type = config.text("model_type")
    family = _family(model_type, config)
    _check_layer_types(config)
    _refuse_other_models(config)
    if config.has("quantization_config"):
        config.warn("the quantised weights of the checkpoint; the training precision decides")

    fields = read_fields(family.fields, config)
    for part in family.parts:
        fields |= part(config)
    _refuse_other_families(config, fields)
    _warn_of_unknown(config)
    fields = {target: value for target, value in fields.items() if value is not None}
    fields["name"] = name or _own_name(data) or model_type
    fields["source"] = f"Hugging Face config.json ({model_type})"
    return ModelConfig.parse(fields, path=key), config.warnings


def _text_part(config: ConfigFile, depth: int = 0) -> ConfigFile:
    """Descend into the language model of a multimodal one."""
    if depth > _MOST_NESTED:
        raise config.unsupported(name=_NESTED_KEYS[0], why="a language model nests too deep")
    place = next((name for name in _NESTED_KEYS if config.has(name)), None)
    if place is None:
        return config
    nested = config.child(place, required=True)
    if any(map(config.has, _OTHER_PARTS)):
        nested.warn(f"the vision or audio part; only {place} is read")
    # The model ties its weights by what the outer mapping says.
    shared = {name: config.data[name] for name in _OUTER_KEYS if name in config.data}
    inner = ConfigFile(dict(nested.data) | shared, nested.path, nested.warnings)
    return _text_part(inner, depth + 1)


def _family(model_type: str, config: ConfigFile) -> Family:
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    import difflib

    known = sorted(FAMILIES)
    close = difflib.get_close_matches(model_type, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    why = REFUSED.get(model_type, f"unknown model type; {hint}known: {', '.join(known)}")
    raise config.unsupported(name="model_type", why=why, allowed=known)


def _own_name(data: Mapping[str, Any]) -> str:
    name = data.get("_name_or_path")
    return name if isinstance(name, str) else ""


def _check_layer_types(config: ConfigFile) -> None:
    other = set(config.sequence("layer_types", str)) - _ATTENTION_KINDS
    if other:
        why = f"layers of kind {', '.join(sorted(other))} are not supported"
        raise config.unsupported(name="layer_types", why=why, allowed=sorted(_ATTENTION_KINDS))


def _refuse_other_models(config: ConfigFile) -> None:
    """Refuse what makes a model that no type describes."""
    for name, entry in UNSUPPORTED.items():
        if name in config.data:
            _refuse(config, name, entry)


def _refuse_other_families(config: ConfigFile, fields: Mapping[str, Any]) -> None:
    """Refuse what makes a model of another type, where this type reads nothing of the kind."""
    for group in OF_OTHER_FAMILIES:
        if group.field in fields or config.used & set(group.keys):
            continue
        for name in group.keys:
            if name in config.data:
                _refuse(config, name, group.entry)


def _refuse(config: ConfigFile, name: str, entry: Unsupported) -> None:
    error = refusal(entry, config.data[name], config.key(name))
    if error is not None:
        raise error


def _warn_of_unknown(config: ConfigFile) -> None:
    """Name in one sentence the keys that nobody knows and that are not switched off."""
    unknown = [
        str(name)
        for name, value in config.data.items()
        if name not in config.used
        and name not in HARMLESS
        and name not in _GROUPED
        and not str(name).startswith("_")
        and not is_off(value)
    ]
    if not unknown:
        return
    names = ", ".join(unknown[:_MOST_NAMED])
    more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    what = "an unknown key" if len(unknown) == 1 else f"{len(unknown)} unknown keys"
    config.warnings.append(f"{what} of the config.json cannot be followed: {names}{more}")
