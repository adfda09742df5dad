"""Events in which something is not as it should be, mended as far as that can be done.

Older profilers write threads as ``stream 7``, ROCm some numbers in hexadecimal, hand-made traces
numbers as text. Whatever cannot be understood is left out, and said.
"""

import math
import re
import zlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

MALFORMED = (
    KeyError, TypeError, ValueError, OverflowError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What taking an event raises if something in it is not as it should be."""

WORD = 1 << 63
MOST_US = 10**18
"""No stamp is larger: 30,000 years."""

LONGEST_NAME = 65_536

_TRAILING = re.compile(r"(\d+)\s*$")
_INTEGERS = ("correlation", "External id", "Sequence number", "Fwd thread id")


class Unusable(Exception):  # noqa: N818  # caught where it is raised for
    """An event of which nothing can be used; the text says why."""


def mend_event(event: Any, problems: list[str]) -> dict[str, Any]:
    """Return an event in which everything has the type that it should have.

    Parameters
    ----------
    event : object
        As it was parsed.
    problems : list of str
        Takes what had to be left out.
    """
    if not isinstance(event, Mapping):
        raise Unusable("something among the events is none and is left out")
    mended = dict(event)
    phase = event.get("ph")
    if not isinstance(phase, str):
        raise Unusable("an event without a phase (ph) is left out")
    category = event.get("cat")
    mended["cat"] = category if category is None or isinstance(category, str) else str(category)
    mended["process"] = event.get("pid")
    mended["pid"] = identity(event.get("pid", -1))
    mended["tid"] = identity(event.get("tid", -1))
    mended["args"] = _args(event.get("args"), problems)
    if phase == "X":
        mended["name"] = _name(event.get("name"), problems)
        mended["ts"] = _stamp(event.get("ts"))
        mended["dur"] = _duration(event.get("dur"), problems)
    return mended


def _name(name: Any, problems: list[str]) -> str:
    if isinstance(name, str):
        return name[:LONGEST_NAME]
    if name is None:
        problems.append("an event has no name")
        return ""
    return str(name)[:LONGEST_NAME]


def _stamp(value: Any) -> Any:
    stamp = number(value)
    if stamp is None:
        raise Unusable("an event without a stamp (ts) is left out")
    return stamp


def _duration(value: Any, problems: list[str]) -> Any:
    length = number(value)
    if length is None:
        problems.append("an event has no duration (dur); it counts as of no length")
        return 0
    return length


def _args(args: Any, problems: list[str]) -> dict[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        problems.append("the arguments (args) of an event are none and are left out")
        return {}
    mended = dict(args)
    for name in _INTEGERS:
        if name in mended:
            mended[name] = _integer(mended[name])
    if _integer(mended.get("external id", 0)) is None:
        del mended["external id"]
    for name in ("device", "stream"):
        if mended.get(name) is not None:
            mended[name] = identity(mended[name])
    for name in _INTEGERS:
        if name in mended and mended[name] is None:
            problems.append(f"{name!r} of an event is no number and is left out")
            del mended[name]
    return mended


def number(value: Any) -> Any:
    """Return a number, or what a text spells; None if it is none or beyond all stamps."""
    if isinstance(value, str):
        try:
            value = float(value) if not value.strip().isdecimal() else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        return None
    return value if -MOST_US < value < MOST_US else None


def identity(value: Any) -> int:
    """Return a number for a process, thread, device or stream, whatever stands for it.

    Texts become what they spell (``0x1f``, ``12``), the number at their end (``stream 7``) or a
    negative number of their own.
    """
    plain = _integer(value)
    if plain is not None:
        return plain
    text = str(value)
    match = _TRAILING.search(text)
    if match and len(match[1]) < len(str(WORD)) - 1:
        return int(match[1])
    return -2 - zlib.crc32(text.encode("utf-8", "replace"))


def _integer(value: Any) -> int | None:
    """Return an integer of 64 bits, or None."""
    try:
        whole = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, TypeError, OverflowError, ArithmeticError):
        return None
    if -WORD <= whole < WORD:
        return whole
    # Handles of streams may use all bits.
    return whole - 2 * WORD if WORD <= whole < 2 * WORD else None
