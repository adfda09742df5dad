"""Sizes to sweep, from the command line: ``512,1024``, ``256:8192``, ``1KiB:64MiB``."""

from collections.abc import Callable

from projector.config.formats.shape_table import byte_count, read_extent
from projector.errors import ConfigError

MOST_SIZES = 10_000
"""Most sizes of one sweep."""

FORMS = "N,N,...; LOW:HIGH, doubling; LOW:HIGH:xF, times F; LOW:HIGH:N, adding N"
"""How sizes may be written."""

Read = Callable[[str, str], int]


def extent(key: str, text: str) -> int:
    """Return an extent of at least 1 from its text."""
    value = read_extent(key, text)
    if value < 1:
        msg = f"{key} must be at least 1, got {text!r}"
        raise ConfigError(msg, key=key, value=text, allowed="1 <= integer <= 2**40")
    return value


def whole_bytes(key: str, text: str) -> int:
    """Return a number of bytes of at least 1 from its text, with or without a unit."""
    value = byte_count(key, text)
    if value < 1.0 or value != int(value):
        msg = f"{key} must be whole bytes, at least 1, got {text!r}"
        raise ConfigError(msg, key=key, value=text, allowed="65536, 64MiB, 1GB ...")
    return int(value)


def read_sizes(key: str, text: str, read: Read = extent) -> list[int]:
    """Return the sizes of one option in the order written, each once.

    Parameters
    ----------
    key : str
        Option, for messages.
    text : str
        As `FORMS` says; forms may be mixed.
    read : callable, optional
        `extent` or `whole_bytes`.
    """
    sizes: dict[int, None] = {}
    for part in text.split(","):
        for size in _part(key, part.strip(), read):
            sizes[size] = None
            if len(sizes) > MOST_SIZES:
                msg = f"{key}: {text!r} has more than {MOST_SIZES:,} sizes"
                raise ConfigError(msg, key=key, value=text, allowed=f"up to {MOST_SIZES:,}")
    return list(sizes)


def _part(key: str, part: str, read: Read) -> list[int]:
    pieces = [piece.strip() for piece in part.split(":")]
    if len(pieces) == 1:
        return [read(key, part)]
    if len(pieces) > 3:
        msg = f"{key}: {part!r} must be one of {FORMS}"
        raise ConfigError(msg, key=key, value=part, allowed=FORMS)
    low, high = (read(key, piece) for piece in pieces[:2])
    if high < low:
        msg = f"{key}: the range {part!r} goes down"
        raise ConfigError(msg, key=key, value=part, allowed="LOW:HIGH with LOW <= HIGH")
    step = pieces[2] if len(pieces) == 3 else "x2"
    if step.lower().startswith("x"):
        return _growing(key, part, low, high, step[1:])
    by = read(key, step)
    count = (high - low) // by + 1
    # A long range is cut where `read_sizes` refuses it.
    return (
        list(range(low, high + 1, by))
        if count <= MOST_SIZES
        else list(range(low, low + (MOST_SIZES + 1) * by, by))
    )


def _growing(key: str, part: str, low: int, high: int, factor: str) -> list[int]:
    try:
        times = float(factor)
    except ValueError:
        times = 0.0
    if not 1.001 <= times <= 1e6:
        msg = f"{key}: the factor of {part!r} must be a number above 1, such as x2 or x1.5"
        raise ConfigError(msg, key=key, value=part, allowed="x1.001 to x1e6")
    sizes: list[int] = []
    at = float(low)
    while at <= high and len(sizes) <= MOST_SIZES:
        sizes.append(round(at))
        at *= times
    return sizes
