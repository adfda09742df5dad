"""The one place where results become JSON text."""

import json
from collections.abc import Mapping
from typing import Any


def to_json(result: Mapping[str, Any]) -> str:
    """Return one JSON object with unrounded floats and a final newline; never NaN or infinity."""
    return json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
