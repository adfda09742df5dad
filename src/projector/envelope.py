"""JSON of results: the keys that every object carries, and its text."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Generic, TypeVar

from projector.distribution import package_version
from projector.units import in_si

SCHEMA_VERSION = 1

T = TypeVar("T")


def envelope(
    warnings: Iterable[str] = (), uncertainty: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the keys that every JSON object carries, that of a projection with its uncertainty."""
    head = {"schema_version": SCHEMA_VERSION, "version": package_version()}
    band = {} if uncertainty is None else {"uncertainty": uncertainty}
    return {**head, "warnings": list(warnings), **band}


class Told(Generic[T]):
    """A scalar as an attribute of a projection, which keeps it in ``scalars`` by its column."""

    def __init__(self, read: Callable[[Any], T], column: str = "") -> None:
        """Read the column of this name, or that of the attribute's."""
        self._read, self._column = read, column

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name of the attribute for that of the column unless one was given."""
        self._column = self._column or name

    def __get__(self, projection: Any, owner: type | None = None) -> T:
        """Return the value; of the class, the attribute itself."""
        if projection is None:
            return self  # type: ignore[return-value]
        return self._read(projection.scalars[self._column])


def told(result: object, names: str) -> dict[str, Any]:
    """Return attributes of a result as JSON has them; ``names`` has spaces between the names.

    A name with a unit, such as ``peak_gib``, may be that of an attribute in SI, ``peak_bytes``.
    Results within the result are told by their own ``to_dict``, or field by field.
    """
    found = {}
    for name in names.split():
        attribute, unit = (name, 1.0) if hasattr(result, name) else in_si(name)
        found[name] = _plain(getattr(result, attribute), unit)
    return found


def _plain(value: Any, unit: float) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(each, unit) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, unit) for each in value]
    return value if value is None or unit == 1.0 else value / unit


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def to_json(result: Mapping[str, Any]) -> str:
    """Return one JSON object with unrounded floats and a final newline; never NaN or infinity."""
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # Bytes of an argument that are no UTF-8 reach Python as lone surrogates; JSON escapes them.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
