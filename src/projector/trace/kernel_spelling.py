"""How tools spell the name of one kernel, and which of their spellings can be compared.

Profilers write names mangled (``_ZN2at6native4fillIfEEvPf``), demangled in full, without template
arguments, or as the function alone; with ``.kd`` and ``[clone .kd]`` behind them and more or fewer
spaces in them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

FULL, BARE, FUNCTION = range(3)
"""Ways of comparing names: all of it; without template arguments and parameters; only what stands
behind the last ``::``."""

LEVELS = ("full", "without templates", "function")

_BEHIND = re.compile(r"(\s*\[clone [^\]]*\]|\s*\(\.kd\)|\.kd)+\s*$")
_ANONYMOUS = ("(anonymous namespace)", "<unnamed>", "{anonymous}", "_GLOBAL__N_1")
_LENGTH = re.compile(r"\d+")
_OPENING, _CLOSING = "<([{", ">)]}"


@lru_cache(maxsize=65_536)
def spelled(name: str, level: int) -> str:
    """Return what of a name can be compared at a level.

    Parameters
    ----------
    name : str
        As a tool writes it.
    level : int
        `FULL`, `BARE` or `FUNCTION`.
    """
    name = _BEHIND.sub("", name.strip())
    if level == FULL:
        plain = name
        for word in _ANONYMOUS:
            plain = plain.replace(word, "anonymous")
        return "".join(plain.split()).removeprefix("void")
    bare = _of_mangled(name) if name.startswith("_Z") else _bare(name)
    return bare.rpartition("::")[2] if level == FUNCTION else bare


def _bare(name: str) -> str:
    """Return a name without its type, template arguments and parameters."""
    for word in _ANONYMOUS:
        name = name.replace(word, "anonymous")
    kept: list[str] = []
    depth = 0
    for char in name:
        if char in _OPENING:
            depth += 1
            if depth == 1 and char == "(" and kept and kept[-1] != ":":
                break
        elif char in _CLOSING:
            depth -= 1
        elif depth <= 0:
            kept.append(char)
    words = "".join(kept).split()
    return words[-1] if words else name


def _of_mangled(name: str) -> str:
    """Return the qualified name in a mangled one, of the Itanium ABI, without its templates."""
    nested = name.startswith("_ZN")
    place = 3 if nested else 2
    while nested and name[place : place + 1] in ("K", "V", "r"):
        place += 1
    parts: list[str] = []
    while place < len(name):
        found = _LENGTH.match(name, place)
        if found is None:
            if nested and name[place] == "I":
                place = _after_arguments(name, place)
                continue
            break
        start, place = found.end(), found.end() + int(found[0])
        part = name[start:place]
        parts.append("anonymous" if part in _ANONYMOUS else part)
        if not nested:
            break
    return "::".join(parts) or name


def _after_arguments(name: str, place: int) -> int:
    """Return the place behind a list of template arguments; its end if it is not understood."""
    depth = 0
    while place < len(name):
        found = _LENGTH.match(name, place)
        if found:
            place = found.end() + int(found[0])
            continue
        depth += {"I": 1, "N": 1, "X": 1, "L": 1, "J": 1, "E": -1}.get(name[place], 0)
        place += 1
        if depth == 0:
            return place
    return place


def common_level(timed: Sequence[str], counted: Sequence[str]) -> int:
    """Return the most exact level at which the names of two runs agree.

    That is the first at which nearly as many of the counted names are found among the timed ones as
    at any level.
    """
    shares = []
    for level in (FULL, BARE, FUNCTION):
        known = {spelled(name, level) for name in timed}
        shares.append(sum(spelled(name, level) in known for name in counted))
    enough = 0.9 * max(shares)
    return next(level for level, share in enumerate(shares) if share >= enough)
