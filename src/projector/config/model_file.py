"""Reading an architecture from wherever users keep it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.config import resources
from projector.config._base import Config, merge
from projector.config.model import MLAConfig, ModelConfig, MoEConfig
from projector.config.yaml_file import base_of, check_nesting, extended, read_text, read_yaml
from projector.errors import ConfigError, shown


def load_model(source: str | Path | Mapping[str, Any], *, key: str = "model") -> ModelConfig:
    """Read an architecture by shipped name, from a YAML or Hugging Face JSON file, or a mapping.

    A mapping or file with ``extends: NAME`` starts from that model and overrides it. A file that a
    file extends is found from the folder of the one that says so. What a file describes and the
    projection does not follow stands in ``notes`` of the result.
    """
    data = model_data(source, key=key)
    return ModelConfig.parse(_without_other_models(data, ModelConfig, key), path=key)


_PARTS: Mapping[str, type[Config]] = {"mla": MLAConfig, "moe": MoEConfig}


def _without_other_models(data: Mapping[str, Any], kind: type[Config], key: str) -> dict[str, Any]:
    """Refuse settings that make another model, by their own names; leave out those that are off."""
    known = {*kind.model_fields, *kind.aliases}
    kept: dict[str, Any] = {}
    for name, value in data.items():
        path = f"{key}.{name}" if key else name
        if name in _PARTS and isinstance(value, Mapping):
            kept[name] = _without_other_models(value, _PARTS[name], path)
        elif name in known or not _makes_no_other_model(name, value, path):
            kept[name] = value
    return kept


def _makes_no_other_model(name: str, value: Any, key: str) -> bool:
    """Whether a setting belongs to other models and is off; raise its error where it is on."""
    from projector.config.formats.huggingface_file import UNSUPPORTED, refusal

    if name not in UNSUPPORTED:
        return False
    error = refusal(UNSUPPORTED[name], value, key)
    if error is not None:
        raise error
    return True


def model_data(source: Any, *, key: str = "model", chain: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the native mapping of an architecture, with ``extends`` resolved.

    ``chain`` has what extends it already; see `extended`.
    """
    if isinstance(source, ModelConfig):
        return _mapping_of(source)
    chain = extended(chain, source, key=key)
    if isinstance(source, Mapping):
        check_nesting(source, name=key)
        return _of_mapping(source, key, chain)
    if not isinstance(source, str | Path):
        msg = f"{key or 'model'}: a model is a name, a file or a mapping, got {shown(source)}"
        raise ConfigError(msg, key=key, value=source, allowed="a name, a file or a mapping")
    text = str(source)
    if text.endswith(".json"):
        return _from_huggingface(read_json(Path(text)), name=Path(text).parent.name, key=key)
    if text.endswith((".yaml", ".yml")):
        data = read_yaml(text, key=key or "model")
        if {"model", "training"} <= data.keys():
            msg = f"{text} describes a job, not an architecture; give what its key model names"
            raise ConfigError(msg, key=key, value=text, allowed="a file of an architecture")
        base = base_of(data, text)
        return _of_mapping(data if base is None else {**data, "extends": base}, key, chain)
    path = resources.find("models", text, key=key or "model")
    return {"name": path.stem, **resources.contents(path)}


def _of_mapping(given: Mapping[str, Any], key: str, chain: tuple[str, ...]) -> dict[str, Any]:
    data = {str(name): value for name, value in given.items()}
    base = data.pop("extends", None)
    foreign = {"model_type", "architectures", "peft_type", "layer_num"} & data.keys()
    if foreign and base is not None:
        where = f"{key}.extends" if key else "extends"
        msg = (
            f"{where}: extends starts from a model whose fields follow, and {min(foreign)} is none"
        )
        raise ConfigError(msg, key=where, value=base, allowed="native fields beside extends")
    if foreign:
        return _from_huggingface(data, name="", key=key)
    return data if base is None else merge(model_data(base, key=key, chain=chain), data)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    return json_object(read_text(path), path)


def json_object(text: str, path: Path) -> dict[str, Any]:
    """Return the object in the text of a JSON file."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it nests too deep" if isinstance(error, RecursionError) else error
        msg = f"{path} is not valid JSON: {why}"
        raise ConfigError(msg, key="config", value=str(path), allowed="a JSON object") from None
    check_nesting(data, name=str(path))
    if not isinstance(data, dict):
        msg = f"{path} holds a {type(data).__name__}, not a JSON object"
        raise ConfigError(msg, key="config", value=str(path), allowed="a JSON object")
    return data


def _from_huggingface(data: Mapping[str, Any], *, name: str, key: str) -> dict[str, Any]:
    if "peft_type" in data:
        where = key or "model"
        msg = f"{where}: a file of PEFT describes an adapter, not a model; name it training.adapter"
        raise ConfigError(msg, key=where, value=name or None, allowed="a config.json")
    from projector.config.formats import simumax
    from projector.config.formats.huggingface import read_huggingface

    if {"layer_num", "head_num", "hidden_size"} <= data.keys():
        return simumax.read_model(data, key=key or "model")
    model, warnings = read_huggingface(data, name=name, key=key or "model")
    return {**_mapping_of(model), **({"notes": tuple(warnings)} if warnings else {})}


def _mapping_of(model: ModelConfig) -> dict[str, Any]:
    """Return what a model states, with its notes, which no dump of a configuration has."""
    data = model.model_dump(exclude_unset=True)
    return {**data, "notes": model.notes} if model.notes else data


def model_of(data: Mapping[str, Any]) -> ModelConfig | None:
    """Return the architecture of a native layout; None where it cannot be read."""
    try:
        return load_model(data.get("model") or {})
    except ConfigError:
        return None
