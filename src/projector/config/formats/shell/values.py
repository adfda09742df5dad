"""What the words of a script stand for, and conditions that they decide."""

import os.path
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from projector.config.formats.shell.nodes import Node, Output, Parameter, Sum, Text, Word
from projector.config.formats.values import int_expression
from projector.errors import ConfigError

UNKNOWN = "$(...)"
"""Stands for what a program would print."""

_UNSET = re.compile(r"\$\{([^{}]*)\}")
_PIECE = re.compile(r"(?:[^\s'\"\\]++|'[^']*+'|\"(?:[^\"\\]|\\.)*+\"|\\.)++", re.DOTALL)
_QUOTE = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)", re.DOTALL)
_SUM_NAME = re.compile(r"\$\{?(\w+)\}?|\b([A-Za-z_]\w*)", re.ASCII)
_WHOLE = {"@", "*"}
_MOST_EXPANDED = 1 << 22
_LONGEST_CUT = 2000

Value = str | list[str]
Printer = Callable[[Sequence[Node]], str | None]
"""Returns what commands would print, None where it is not known."""


class UnknownValueError(Exception):
    """A condition hangs on what a program would print."""


class Variables:
    """Variables of a script, and what words become with them."""

    def __init__(self, script: Path | None) -> None:
        self.held: dict[str, Value] = {}
        """What each variable holds: text, or a list for an array."""
        self.arguments: list[str] = []
        """What ``$1`` and so on are."""
        self.script = script
        self.folder = script.absolute().parent if script is not None else None
        self.taken_for_unset: set[str] | None = None
        """Unset variables, which count as empty while a condition is judged; None otherwise."""
        self._expanded = 0

    def fields(self, word: Word, output: Printer) -> list[str]:
        """Return the words that one word becomes: unquoted values are divided, arrays opened."""
        done: list[str] = []
        current: str | None = None
        for part in word:
            if isinstance(part, Text):
                current = (current or "") + part.text
                continue
            value = self._bounded(self._value(part, output))
            if part.quoted and isinstance(value, str):
                current = (current or "") + value
                continue
            pieces = value if part.quoted and isinstance(value, list) else divide(value)
            text = "" if isinstance(value, list) else value
            if current is not None and text[:1].isspace():
                done.append(current)
                current = None
            for position, piece in enumerate(pieces):
                if position and current is not None:
                    done.append(current)
                    current = None
                current = (current or "") + piece
            if current is not None and text[-1:].isspace():
                done.append(current)
                current = None
        return done if current is None else [*done, current]

    def text(self, word: Word, output: Printer) -> str:
        """Return a word as one text, as in an assignment; arrays are joined by blanks."""
        texts: list[str] = []
        for part in word:
            if isinstance(part, Text):
                texts.append(part.text)
                continue
            value = self._bounded(self._value(part, output))
            texts.append(value if isinstance(value, str) else " ".join(value))
        return "".join(texts)

    def assign(self, name: str, value: Value, *, more: bool) -> None:
        """Set a variable, or add to it."""
        old = self.held.get(name, "") if more else ""
        if isinstance(value, list):
            before = old if isinstance(old, list) else [old] if old else []
            self.held[name] = [*before, *value]
        else:
            self.held[name] = [*old, value] if isinstance(old, list) else old + value

    def assign_element(self, name: str, place: str, value: str) -> None:
        """Set one element of an array, by its number or its key."""
        old = self.held.get(name, [])
        array = list(old) if isinstance(old, list) else [old]
        if place.isdecimal():
            index = int(place[:5])
            if index < len(array):
                array[index] = value
            else:
                array.append(value)
        else:
            array = [
                *(each for each in array if not each.startswith(f"[{place}]=")),
                f"[{place}]={value}",
            ]
        self.held[name] = array

    def known(self, text: str) -> str:
        """Return a text within a condition, where what nobody sets is empty."""
        if UNKNOWN in text:
            raise UnknownValueError
        if self.taken_for_unset is not None:
            self.taken_for_unset.update(_UNSET.findall(text))
        return _UNSET.sub("", text)

    def _bounded(self, value: Value) -> Value:
        """Return a value, within bounds: ``A=$A$A`` doubles with every line."""
        self._expanded += len(value) + (sum(map(len, value)) if isinstance(value, list) else 0)
        if self._expanded > _MOST_EXPANDED:
            msg = f"the script expands to more than {_MOST_EXPANDED} characters"
            raise ConfigError(msg, key="config", allowed="Megatron-LM arguments")
        return value

    def _value(self, part: Parameter | Output | Sum, output: Printer) -> Value:
        if isinstance(part, Output):
            printed = output(part.body)
            return UNKNOWN if printed is None else printed
        return self._sum(part.text) if isinstance(part, Sum) else self._parameter(part, output)

    def _parameter(self, part: Parameter, output: Printer) -> Value:
        value = self._named(part)
        kind = part.operation
        if kind in _WHERE_UNSET:
            return self._or_default(part, value, output)
        if kind == "length":
            return "0" if value is None else str(len(value))
        if value is None:
            return [] if part.place in _WHOLE else self._unset(part.name)
        return value if not kind else self._part_of(value, part, output)

    def _or_default(self, part: Parameter, value: Value | None, output: Printer) -> Value:
        """Return what ``${NAME:-word}`` and its like come to."""
        kind = part.operation
        lacking = value is None or (kind.startswith(":") and value in ("", []))
        if kind.endswith("+"):
            return "" if lacking else self.text(part.argument, output)
        if value is not None and not lacking:
            return value
        if kind.endswith("?"):
            return self._unset(part.name)
        default = self.text(part.argument, output)
        if kind.endswith("="):
            self.held[part.name] = default
        return default

    def _part_of(self, value: Value, part: Parameter, output: Printer) -> Value:
        """Return what ``${NAME#word}`` and its like come to."""
        cut = _CUTS.get(part.operation)
        if cut is None or isinstance(value, list) or len(value) > _LONGEST_CUT:
            return self._unset(part.name)
        argument = self.text(part.argument, output)
        if "${" in value or UNKNOWN in value or len(argument) > _LONGEST_CUT:
            return value
        return cut(value, argument)

    def _named(self, part: Parameter) -> Value | None:
        """Return what a variable holds, None if the script does not set it."""
        name = part.name
        if name in {"@", "*"}:
            return list(self.arguments)
        if name == "#":
            return str(len(self.arguments))
        if name.isdecimal() and name != "0":
            place = int(name) if len(name) < 6 else 0
            return self.arguments[place - 1] if 0 < place <= len(self.arguments) else None
        value = self.held.get(name, self._of_script(name))
        if value is None or part.place in _WHOLE:
            return [value] if isinstance(value, str) else value
        return _element(value, part.place) if isinstance(value, list) else value

    def _of_script(self, name: str) -> str | None:
        """Return what follows from where the script lies."""
        if self.script is None:
            return None
        if name in {"0", "BASH_SOURCE"}:
            return str(self.script.absolute())
        return str(self.folder) if name == "PWD" else None

    def _unset(self, name: str) -> str:
        return f"${{{name}}}"

    def _sum(self, text: str) -> str:
        def fill(match: re.Match[str]) -> str:
            value = self._named(Parameter(match[1] or match[2]))
            return value if isinstance(value, str) else " "

        try:
            return str(int_expression(_SUM_NAME.sub(fill, text)))
        except ValueError:
            return UNKNOWN


def _element(array: list[str], place: str) -> str | None:
    """Return an element by its number, the first without one, or by its key."""
    text = place.strip("'\" ")
    number = text.removeprefix("-")
    if not text or (number.isdecimal() and len(number) < 6):
        index = int(text or "0")
        return array[index] if -len(array) <= index < len(array) else ""
    start = f"[{text}]="
    return next((each.removeprefix(start) for each in array if each.startswith(start)), None)


def divide(value: Value) -> list[str]:
    """Divide an unquoted value into words; quotes within it hold words together.

    A shell would keep the quotes. Whoever writes them means one word.
    """
    text = value if isinstance(value, str) else " ".join(value)
    if not ("'" in text or '"' in text or "\\" in text):
        return text.split()
    words = [match[0] for match in _PIECE.finditer(text)]
    return [
        _QUOTE.sub(lambda match: match[1] or match[2] or match[3] or "", word) for word in words
    ]


def matches(text: str, pattern: str) -> bool:
    """Whether a text is of a shell's pattern."""
    if len(pattern) > _LONGEST_CUT or len(text) * len(pattern) > 1 << 22:
        raise UnknownValueError
    return fnmatchcase(text, pattern)


_WHERE_UNSET = {f"{colon}{sign}" for colon in ("", ":") for sign in "-=+?"}


def _without_start(value: str, pattern: str, *, longest: bool) -> str:
    ends = range(len(value), -1, -1) if longest else range(len(value) + 1)
    return next((value[end:] for end in ends if fnmatchcase(value[:end], pattern)), value)


def _without_end(value: str, pattern: str, *, longest: bool) -> str:
    starts = range(len(value) + 1) if longest else range(len(value), -1, -1)
    return next((value[:start] for start in starts if fnmatchcase(value[start:], pattern)), value)


def _replaced(value: str, argument: str, *, everywhere: bool) -> str:
    what, _, by = argument.partition("/")
    if not what or set(what) & set("*?["):
        return value
    return value.replace(what, by, -1 if everywhere else 1)


def _slice(value: str, argument: str) -> str:
    start, _, size = argument.strip().partition(":")
    if not start.isdecimal() or (size and not size.isdecimal()):
        return value
    return value[int(start[:6]) :][: int(size[:6]) if size else None]


_CUTS: dict[str, Callable[[str, str], str]] = {
    "#": lambda value, pattern: _without_start(value, pattern, longest=False),
    "##": lambda value, pattern: _without_start(value, pattern, longest=True),
    "%": lambda value, pattern: _without_end(value, pattern, longest=False),
    "%%": lambda value, pattern: _without_end(value, pattern, longest=True),
    "/": lambda value, argument: _replaced(value, argument, everywhere=False),
    "//": lambda value, argument: _replaced(value, argument, everywhere=True),
    "^": lambda value, _: value[:1].upper() + value[1:],
    "^^": lambda value, _: value.upper(),
    ",": lambda value, _: value[:1].lower() + value[1:],
    ",,": lambda value, _: value.lower(),
    ":": _slice,
}
"""``${NAME...}`` that takes a part of a value."""


# Conditions that can be judged without running them.

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
    """Return the verdict on the words between brackets, with values filled in.

    With ``patterns``, as between double brackets, ``==`` compares with a pattern.
    """
    if len(words) > _MOST_WORDS:
        return None
    for signs, either in ((("||", "-o"), True), (("&&", "-a"), False)):
        place = _outside(words, signs)
        if place >= 0:
            left = judge(words[:place], patterns=patterns)
            right = judge(words[place + 1 :], patterns=patterns)
            return negated(both(negated(left), negated(right))) if either else both(left, right)
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
            return int_expression(text) != 0
        except ValueError:
            return None
    return _compared(match[1], _SIGNS[match[2]], match[3])


def _compared(left: str, sign: str, right: str) -> Verdict:
    try:
        return _COMPARISONS[sign](int_expression(left or "0"), int_expression(right or "0"))
    except ValueError:
        return None


# What ``$(...)`` prints, for the few programs that only look at their arguments.


def printed(commands: Sequence[Sequence[str]], folder: Path | None) -> str | None:
    """Return what commands (lists of words) print in their folder, None where it is not known."""
    where = None if folder is None else str(folder)
    lines: list[str] = []
    for words in commands:
        if not words:
            continue
        name, arguments = words[0], list(words[1:])
        if any(UNKNOWN in word or "${" in word for word in arguments):
            return None
        if name == "cd" and len(arguments) == 1 and where is not None:
            where = os.path.normpath(os.path.join(where, arguments[0]))  # noqa: PTH118  # no links
        elif name == "pwd" and where is not None:
            lines.append(where)
        elif name in _PRINTING:
            line = _PRINTING[name](
                [word for word in arguments if word == "-" or word[:1] != "-"], where
            )
            if line is None:
                return None
            lines.append(line)
        else:
            return None
    return "\n".join(lines)


def _folder_of(arguments: list[str], _: str | None) -> str | None:
    return (os.path.dirname(arguments[0].rstrip("/")) or ".") if arguments else None  # noqa: PTH120


def _name_of(arguments: list[str], _: str | None) -> str | None:
    if not arguments:
        return None
    name = os.path.basename(arguments[0].rstrip("/"))  # noqa: PTH119
    return name.removesuffix(arguments[1]) if len(arguments) > 1 else name


def _whole_path(arguments: list[str], where: str | None) -> str | None:
    if not arguments or where is None:
        return None
    return os.path.normpath(os.path.join(where, arguments[-1]))  # noqa: PTH118


_PRINTING: dict[str, Callable[[list[str], str | None], str | None]] = {
    "dirname": _folder_of,
    "basename": _name_of,
    "realpath": _whole_path,
    "readlink": _whole_path,
    "echo": lambda arguments, _: " ".join(arguments),
}
"""Program -> what it prints of its arguments, options left out."""
