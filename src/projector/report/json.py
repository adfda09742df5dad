"""The one place where results become JSON text."""

import json
from collections.abc import Mapping
from typing import Any


def to_json(result: Mapping[str, Any]) -> str:
    """Return one JSON object with unrounded floats and a final newline; never NaN or infinity."""
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # Bytes of an argument that are no UTF-8 reach Python as lone surrogates; JSON escapes them.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
