"""Conditions of a script that can be judged without running it."""

import re
from collections.abc import Callable, Sequence

from projector.config.formats._expression import integer
from projector.config.formats.shell.values import matches

Verdict = bool | None
"""None: it hangs on what is not known here, such as files and programs."""

_MOST_WORDS = 100
"""Words of a condition; longer ones are not judged."""

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_SIGNS = {"==": "-eq", "!=": "-ne", "<": "-lt", "<=": "-le", ">": "-gt", ">=": "-ge"}
_SUM_COMPARISON = re.compile(r"([^<>=!&|]*)(==|!=|<=|>=|<|>)([^<>=!&|]*)")


def negated(verdict: Verdict) -> Verdict:
    """Return the verdict on the opposite."""
    return None if verdict is None else not verdict


def both(left: Verdict, right: Verdict) -> Verdict:
    """Return the verdict on two conditions that must hold."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def judge(words: Sequence[str], *, patterns: bool) -> Verdict:
    """Return the verdict on the words between brackets.

    Parameters
    ----------
    words : sequence of str
        Words of ``[ ... ]`` or ``[[ ... ]]``, with values filled in.
    patterns : bool
        Whether ``==`` compares with a pattern, as between double brackets.
    """
    if len(words) > _MOST_WORDS:
        return None
    for signs, either in ((("||", "-o"), True), (("&&", "-a"), False)):
        place = _outside(words, signs)
        if place >= 0:
            left = judge(words[:place], patterns=patterns)
            right = judge(words[place + 1 :], patterns=patterns)
            if either:
                return negated(both(negated(left), negated(right)))
            return both(left, right)
    if words and words[0] == "!":
        return negated(judge(words[1:], patterns=patterns))
    if len(words) > 2 and words[0] == "(" and words[-1] == ")":
        return judge(words[1:-1], patterns=patterns)
    return _single(words, patterns=patterns)


def _outside(words: Sequence[str], signs: tuple[str, ...]) -> int:
    """Return where one of the signs joins two conditions, -1 if none does."""
    depth = 0
    for place, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        if depth == 0 and word in signs and 0 < place < len(words) - 1:
            return place
    return -1


def _single(words: Sequence[str], *, patterns: bool) -> Verdict:
    match list(words):
        case []:
            return False
        case [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==" | "!=" as sign, right]:
            equal = matches(left, right) if patterns else left == right
            return equal if sign != "!=" else not equal
        case [left, sign, right] if sign in _COMPARISONS:
            return _compared(left, sign, right)
        case _:
            return None


def judge_sum(text: str) -> Verdict:
    """Return the verdict on what stands between ``((`` and ``))``."""
    match = _SUM_COMPARISON.fullmatch(text)
    if match is None:
        try:
            return integer(text) != 0
        except ValueError:
            return None
    return _compared(match[1], _SIGNS[match[2]], match[3])


def _compared(left: str, sign: str, right: str) -> Verdict:
    try:
        return _COMPARISONS[sign](integer(left or "0"), integer(right or "0"))
    except ValueError:
        return None
