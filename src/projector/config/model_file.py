"""Reading an architecture from wherever users keep it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.config import resources
from projector.config.device import merge
from projector.config.model import ModelConfig
from projector.config.yaml_file import base_of, read_text, read_yaml
from projector.errors import ConfigError


def load_model(source: str | Path | Mapping[str, Any], *, key: str = "model") -> ModelConfig:
    """Read an architecture by shipped name, from a YAML or Hugging Face JSON file, or a mapping.

    A mapping or file with ``extends: NAME`` starts from that model and overrides it. A file that a
    file extends is found from the folder of the one that says so.
    """
    data = model_data(source, key=key)
    return ModelConfig.parse(data, path=key)


def model_data(source: Any, *, key: str = "model") -> dict[str, Any]:
    """Return the native mapping of an architecture, with ``extends`` resolved."""
    if isinstance(source, ModelConfig):
        return source.model_dump(exclude_unset=True)
    if isinstance(source, Mapping):
        data = {str(name): value for name, value in source.items()}
        base = data.pop("extends", None)
        if "model_type" in data or "architectures" in data:
            return _from_huggingface(data, name="", key=key)
        return data if base is None else merge(model_data(base, key=key), data)
    if not isinstance(source, str | Path):
        msg = f"{key or 'model'}: a model is a name, a file or a mapping, got {source!r}"
        raise ConfigError(msg, key=key, value=source, allowed="a name, a file or a mapping")
    text = str(source)
    if text.endswith(".json"):
        return _from_huggingface(read_json(Path(text)), name=Path(text).parent.name, key=key)
    if text.endswith((".yaml", ".yml")):
        data = read_yaml(text, key=key or "model")
        base = base_of(data, text)
        return model_data(data if base is None else {**data, "extends": base}, key=key)
    path = resources.find("models", text, key=key or "model")
    return {"name": path.stem, **read_yaml(path)}


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not a JSON object.
    """
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not valid JSON: {error}"
        raise ConfigError(msg, key="config", value=str(path), allowed="a JSON object") from None
    if not isinstance(data, dict):
        msg = f"{path} holds a {type(data).__name__}, not a JSON object"
        raise ConfigError(msg, key="config", value=str(path), allowed="a JSON object")
    return data


def _from_huggingface(data: Mapping[str, Any], *, name: str, key: str) -> dict[str, Any]:
    from projector.config.formats.huggingface import read_huggingface

    model, _ = read_huggingface(data, name=name, key=key or "model")
    return model.model_dump(exclude_unset=True)
