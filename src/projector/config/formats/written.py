"""Numbers as people write them: extents with commas, bytes with units."""

import re

from projector.errors import ConfigError

MAX_EXTENT = 1 << 40
"""Largest extent; products of larger ones are no longer exact."""

MAX_BYTES = 1e24
"""Largest buffer of a collective or message, far beyond any memory."""

MAX_DIGITS = 40
"""Longest text that is read as a number, leading zeros included."""

_WHOLE = re.compile(r"(\d+|\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3})+)(?:\.0*)?", re.ASCII)

_SIZE = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([kmgtp]i?)?b?", re.IGNORECASE)
_POWERS = "kmgtp"


def read_extent(name: str, text: str, where: str = "") -> int:
    """Return an extent from its text; ``where`` begins the message of an error."""
    match = _WHOLE.fullmatch(text.strip()) if len(text) <= MAX_DIGITS else None
    value = int(match[1].replace(",", "").replace("_", "")) if match else -1
    if not 0 <= value <= MAX_EXTENT:
        shown = text if len(text) <= MAX_DIGITS else f"{text[:MAX_DIGITS]}..."
        msg = f"{where}{name} must be an integer from 0 to 2**40, got {shown!r}"
        raise ConfigError(msg, key=name, value=shown, allowed="0 <= integer <= 2**40")
    return value


def byte_count(key: str, text: str) -> float:
    """Return bytes from a number with or without a unit: ``65536``, ``64MiB``, ``1.5 GB``.

    Units with an i are powers of 1,024, those without are powers of 1,000.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        msg = f"{key} must be bytes, such as 65536, 64MiB or 1GB, got {text!r}"
        raise ConfigError(
            msg, key=key, value=text, allowed="a number, with KiB, MiB, GB ... or not"
        )
    number, unit = found.groups()
    base = 1024.0 if unit and unit[1:] else 1000.0
    power = _POWERS.index(unit[0].lower()) + 1 if unit else 0
    size = float(re.sub("[_,]", "", number)) * base**power
    if not size <= MAX_BYTES:
        msg = f"{key} must be at most {MAX_BYTES:g}, got {text!r}"
        raise ConfigError(msg, key=key, value=text, allowed=f"0 to {MAX_BYTES:g}")
    return size
