"""Numbers with their sources: ``{value: 304, source: name}``, and files laid over each other."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeGuard

from pydantic import Field, model_validator

from projector.config._base import SHOWN, Config
from projector.errors import ConfigError, shown

SOURCED = {"value", "source", "note"}
"""Keys of a number with its source."""


class Sourced(Config):
    """Configuration whose numbers may be given with their source: ``{value, source, note}``."""

    sources: Annotated[dict[str, str], SHOWN] = Field(default_factory=dict)
    """Where each number comes from, by dotted field."""

    @model_validator(mode="before")
    @classmethod
    def _split_sources(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        table = source_table(data)
        noted: dict[str, str] = {}
        body = {
            str(name): _strip(value, str(name), table, noted)
            for name, value in data.items()
            if name not in {"sources", "extends"}
        }
        return {**body, "sources": {**of_fields(cls, table), **noted}}


def source_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts that fields cite by a key."""
    table = data.get("sources") or {}
    if isinstance(table, Mapping):
        return {str(key): text for key, text in table.items()}
    msg = f"sources: must be a mapping of keys to texts (got {shown(table)})"
    raise ConfigError(msg, key="sources", value=table, allowed="a mapping of keys to texts")


def of_fields(owner: type[Sourced], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sources of fields: other keys of a table are those that fields cite."""
    fields = owner.model_fields
    return {key: text for key, text in table.items() if key in fields or "." in key}


_PLAIN = (str, int, float, list, tuple, type(None))


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is a mapping; a device has hundreds of values, nearly all of them plain."""
    plain = isinstance(value, _PLAIN)
    return isinstance(value, dict) or (not plain and isinstance(value, Mapping))


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``override`` laid over it, mapping by mapping.

    A sourced number is replaced whole, so that an override never inherits a source.
    """
    merged = dict(base)
    for name, value in override.items():
        old = merged.get(name)
        if is_mapping(value) and is_mapping(old) and "value" not in value and "source" not in old:
            merged[name] = merge(old, value)
        else:
            merged[name] = value
    return merged


def _strip(value: Any, path: str, table: Mapping[str, str], sources: dict[str, str]) -> Any:
    """Replace every ``{value, source}`` below ``value`` by its value, noting the source."""
    if is_mapping(value):
        if "value" in value and value.keys() <= SOURCED:
            text = str(table.get(str(value.get("source")), value.get("source") or "unsourced"))
            note = f" ({value['note']})" if value.get("note") else ""
            sources[path] = f"{text}{note}"
            return value["value"]
        return {key: _strip(item, f"{path}.{key}", table, sources) for key, item in value.items()}
    if isinstance(value, list):
        return [_strip(item, f"{path}.{i}", table, sources) for i, item in enumerate(value)]
    return value
