"""Units, converted once at the edge; inside the package everything is SI.

A rate of memory or of a link is decimal (1 GB/s = 1e9 bytes/s), a capacity is binary
(1 GiB = 2**30 bytes), as vendors print them.
"""

import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Numbers = TypeVar("Numbers", float, "NDArray[np.float64]")
"""One number or a column of them."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3

GB = 1e9
TB = 1e12
TERA = 1e12
MEGA = 1e6
PICO = 1e-12

MICROSECOND = 1e-6
MILLISECOND = 1e-3
NANOSECOND = 1e-9
PICOSECOND = 1e-12

HOUR = 3600.0
DAY = 86400.0

GBIT = 1e9 / 8
"""Bytes in a gigabit."""

_SI = {
    "_gb_per_s": (GB, "_bytes_per_s"),
    "_gib": (GIB, "_bytes"),
    "_mib": (MIB, "_bytes"),
    "_kib": (KIB, "_bytes"),
    "_hours": (HOUR, "_s"),
    "_ms": (MILLISECOND, "_s"),
    "_us": (MICROSECOND, "_s"),
    "_ns": (NANOSECOND, "_s"),
    "_s": (1.0, "_s"),
}
"""End of the name of a setting -> its unit in SI, and the end of the name that a number in SI has;
the first that matches counts."""


_WRITTEN = re.compile(
    r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([kmbgt]?)",
    re.IGNORECASE,
)
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_MEASURED = (*_SI, "_per_node", "_seconds", "_days", "_mhz")
_LENGTHS = ("seq_length", "context", "output", "chunk_tokens", "max_position_embeddings")


def read_amount(value: Any, name: str = "") -> Any:
    """Return the number that a text such as ``15.6T`` stands for; anything else as it is.

    k is 1,000, and 1,024 in the length of a sequence, as people call them; B is 1e9. A ``name``
    that ends with a unit takes no letter, which could be another unit.
    """
    match = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or (match[2] and name.endswith(_MEASURED)):
        return value
    letter = match[2].lower()
    scale = KIB if letter == "k" and name.endswith(_LENGTHS) else _SCALES[letter]
    return float(match[1].replace(",", "").replace("_", "")) * scale


def si_unit(name: str) -> float:
    """Return the unit that the name of a setting ends with, such as ``hbm_gib``, in SI."""
    name = name.removesuffix("_per_node")
    return next(unit for end, (unit, _) in _SI.items() if name.endswith(end))


def in_si(name: str) -> tuple[str, float]:
    """Return the name of a setting in SI and its unit; without a unit it stays as it is."""
    for end, (unit, si) in _SI.items():
        if name.endswith(end):
            return f"{name.removesuffix(end)}{si}", unit
    return name, 1.0


def to_gib(num_bytes: Numbers) -> Numbers:
    """Convert bytes to GiB."""
    return num_bytes / GIB


def to_ms(seconds: Numbers) -> Numbers:
    """Convert seconds to milliseconds."""
    return seconds / MILLISECOND


def unwrapped(value: Any) -> Any:
    """Return a scalar or an array of NumPy as Python has it; anything else as it is."""
    as_python = getattr(value, "tolist", None)
    return value if as_python is None else as_python()
