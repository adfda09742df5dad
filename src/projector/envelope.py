"""JSON of results: the keys that every object carries, and its text."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from projector.distribution import package_version

SCHEMA_VERSION = 1


def envelope(warnings: Iterable[str], uncertainty: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that every JSON object of a projection carries."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": package_version(),
        "warnings": list(warnings),
        "uncertainty": uncertainty,
    }


def to_json(result: Mapping[str, Any]) -> str:
    """Return one JSON object with unrounded floats and a final newline; never NaN or infinity."""
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # Bytes of an argument that are no UTF-8 reach Python as lone surrogates; JSON escapes them.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
