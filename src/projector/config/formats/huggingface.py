"""Reading the ``config.json`` of a Hugging Face model.

Each ``model_type`` is a row of ``hardware/settings/huggingface.yaml``: where the plain dimensions
are, what the architecture fixes, and the small functions ("parts") that read what several keys
decide together.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from projector.config.formats import huggingface_file as hf
from projector.config.formats import huggingface_hybrid as hybrid
from projector.config.formats import huggingface_parts as parts
from projector.config.formats.read_job import Unsupported
from projector.config.formats.values import is_off
from projector.config.model import ModelConfig
from projector.config.resources import settings_of


class Family(NamedTuple):
    """How the configurations of one ``model_type`` are read."""

    fields: hf.Fields
    parts: tuple[parts.Part, ...]
    own_keys: frozenset[str] = frozenset()
    """Keys that make a model of another type where they are not read here."""


_TABLE: Final = settings_of("huggingface")
_PARTS: Final = vars(parts) | vars(hybrid)


def _part(entry: str | Mapping[str, Any]) -> parts.Part:
    """Return a part of a row, with what it is told beside the file."""
    if isinstance(entry, str):
        part: parts.Part = _PARTS[entry]
        return part
    ((name, told),) = entry.items()
    if name == "unrotated_where_full":
        return partial(parts.unrotated_where_full, part=_part(told))
    read = _PARTS[name]
    if isinstance(told, Mapping):
        return partial(read, **told)
    return lambda config: read(config, told)


def _families(
    rows: Mapping[str, Mapping[str, Any]], *own_keys: frozenset[str]
) -> dict[str, Family]:
    return {
        kind: Family(
            hf.fields_of(row, _TABLE["field_sets"]),
            tuple(map(_part, row.get("parts", ()))),
            *own_keys,
        )
        for kinds, row in rows.items()
        for kind in kinds.split()
    }


FAMILIES: Final[Mapping[str, Family]] = _families(_TABLE["families"]) | _families(
    _TABLE["hybrids"], frozenset(_TABLE["of_hybrids"].split())
)

REFUSED: Final = {kind: why for why, kinds in _TABLE["refused"].items() for kind in kinds.split()}
"""Architectures that cannot be described, and why."""


_OUTER_KEYS: Final = ("tie_word_embeddings", "quantization_config")
_NESTED_KEYS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep their language model."""
_MOST_NESTED: Final = 8
_OTHER_PARTS: Final = ("vision_config", "audio_config")
_ATTENTION_KINDS: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_GROUPED: Final = frozenset(name for group in hf.OF_OTHER_FAMILIES for name in group.keys)
_MOST_NAMED: Final = 12
"""Unknown keys that a warning names."""


def read_huggingface(
    data: Mapping[str, Any], *, name: str = "", key: str = "model"
) -> tuple[ModelConfig, list[str]]:
    """Return the architecture of a parsed ``config.json``, and what of it is not modelled.

    That is a sentence for everything that would change the projection. Of a multimodal model only
    ``text_config`` is read. Without ``name`` reports show the file's own ``_name_or_path`` or
    ``model_type``; ``key`` is put before every key in an error.
    """
    config = _text_part(hf.ConfigFile.of(data, key))
    model_type = config.text("model_type")
    family = _family_of(model_type, config)
    other = set(config.sequence("layer_types", str)) - _ATTENTION_KINDS
    if other and not family.own_keys:
        why = f"layers of kind {', '.join(sorted(other))} are not supported"
        raise config.unsupported(name="layer_types", why=why, allowed=sorted(_ATTENTION_KINDS))
    for key_of_another, entry in hf.UNSUPPORTED.items():
        if key_of_another in config.data and key_of_another not in family.own_keys:
            _refuse(config, key_of_another, entry)
    if config.has("quantization_config"):
        config.warn("the quantised weights of the checkpoint; the training precision decides")

    fields = parts.numerics(config) | hf.read_fields(family.fields, config)
    for part in family.parts:
        fields |= part(config)
    _refuse_other_families(config, fields)
    _warn_of_unknown(config)
    fields = {target: value for target, value in fields.items() if value is not None}
    own = data.get("_name_or_path")
    fields["name"] = name or (own if isinstance(own, str) else "") or model_type
    fields["source"] = f"Hugging Face config.json ({model_type})"
    return ModelConfig.parse(fields, path=key), config.warnings


def _text_part(config: hf.ConfigFile, depth: int = 0) -> hf.ConfigFile:
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
    inner = hf.ConfigFile(dict(nested.data) | shared, nested.path, nested.warnings)
    return _text_part(inner, depth + 1)


def _family_of(model_type: str, config: hf.ConfigFile) -> Family:
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    import difflib

    known = sorted(FAMILIES)
    close = difflib.get_close_matches(model_type, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    why = REFUSED.get(model_type, f"unknown model type; {hint}known: {', '.join(known)}")
    raise config.unsupported(name="model_type", why=why, allowed=known)


def _refuse_other_families(config: hf.ConfigFile, fields: Mapping[str, Any]) -> None:
    """Refuse what makes a model of another type, where this type reads nothing of the kind."""
    for group in hf.OF_OTHER_FAMILIES:
        if group.field in fields or config.used & set(group.keys):
            continue
        for name in group.keys:
            if name in config.data:
                _refuse(config, name, group.entry)


def _refuse(config: hf.ConfigFile, name: str, entry: Unsupported) -> None:
    error = hf.refusal(entry, config.data[name], config.key(name))
    if error is not None:
        raise error


def _warn_of_unknown(config: hf.ConfigFile) -> None:
    """Name in one sentence the keys that nobody knows and that are not switched off."""
    unknown = [
        str(name)
        for name, value in config.data.items()
        if name not in config.used
        and name not in hf.HARMLESS
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
