"""Amounts of what is trained, as people write them: 1e12, 300B, 15.6T."""

import re
from typing import Any

_WRITTEN = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([kmbgt]?)", re.IGNORECASE)
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def read_amount(value: Any) -> Any:
    """Return the number that a text stands for; what is no such text is returned as it is."""
    match = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    return float(match[1].replace(",", "").replace("_", "")) * _SCALES[match[2].lower()]
