"""What a shell script consists of: words and the commands that they make."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from projector.config.resources import settings_of


class Text(NamedTuple):
    """Characters that stand for themselves."""

    text: str
    quoted: bool = False


class Parameter(NamedTuple):
    """``$NAME`` or ``${NAME...}``."""

    name: str
    place: str = ""
    """Between brackets, ``@`` and ``*`` for all."""
    operation: str = ""
    """Such as ``:-``; ``#`` before the name is ``length``."""
    argument: "Word" = ()
    quoted: bool = False


class Output(NamedTuple):
    """``$(...)``: what commands would print."""

    body: tuple["Node", ...]
    quoted: bool = False


class Sum(NamedTuple):
    """``$((...))``."""

    text: str
    quoted: bool = False


Part = Text | Parameter | Output | Sum
Word = tuple[Part, ...]


class Assign(NamedTuple):
    """``NAME=word``, or ``NAME+=word``."""

    name: str
    word: Word
    more: bool = False
    place: str = ""
    """Of ``NAME[place]=word``."""


class AssignArray(NamedTuple):
    """``NAME=( ... )``, or ``NAME+=( ... )``."""

    name: str
    words: tuple[Word, ...]
    more: bool = False


@dataclass
class Simple:
    """A command with its words and assignments."""

    items: list[Word | Assign | AssignArray] = field(default_factory=list)
    documents: list[Word] = field(default_factory=list)
    """Texts that it reads: ``<<END ... END``."""


@dataclass
class Condition:
    """``[[ ... ]]``, or ``(( ... ))`` as one text."""

    words: list[Word]
    arithmetic: str = ""


@dataclass
class Chain:
    """Commands joined by ``&&`` and ``||``; the first has no operator."""

    links: list[tuple[str, "Node"]]


@dataclass
class Pipe:
    """Commands joined by ``|``."""

    stages: list["Node"]


@dataclass
class Not:
    """``! command``."""

    node: "Node"


@dataclass
class Group:
    """``{ ... }`` or ``( ... )``."""

    body: list["Node"]


@dataclass
class If:
    """Conditions with what follows each, ``else`` with none."""

    branches: list[tuple[list["Node"], list["Node"]]]


@dataclass
class Case:
    """A word, and patterns with what follows each."""

    subject: Word
    arms: list[tuple[list[Word], list["Node"]]]


@dataclass
class Loop:
    """``while`` and ``until`` with a condition, or ``for`` with the words it goes through."""

    kind: str
    name: str
    condition: list["Node"]
    words: list[Word]
    body: list["Node"]


@dataclass
class Function:
    """``name() { ... }``."""

    name: str
    body: list["Node"]


Node = Simple | Condition | Chain | Pipe | Not | Group | If | Case | Loop | Function


def literal(word: Word) -> str:
    """Return the characters of a word, without what is to be filled in."""
    return "".join(part.text for part in word if isinstance(part, Text))


def first_word(node: Node) -> str:
    """Return the first word of a simple command, ``""`` if it has none."""
    if isinstance(node, Simple) and node.items and isinstance(node.items[0], tuple):
        item = node.items[0]
        return "" if isinstance(item, Assign | AssignArray) else literal(item)
    return ""


def simple_commands(nodes: list[Node]) -> Iterator[Simple]:
    """Yield every simple command within, in the order of the script, none of those within words."""
    rest: list[Any] = [*reversed(nodes)]
    while rest:
        node = rest.pop()
        if isinstance(node, Simple):
            yield node
        elif isinstance(node, list | tuple) and not isinstance(node, Part):
            rest += reversed(node)
        elif is_dataclass(node):
            rest += reversed([getattr(node, each.name) for each in fields(node)])


# What commands are for, told by their words.

UNRELATED = frozenset(settings_of("shell")["unrelated"].split())
"""Programs that train nothing: their words are no arguments of a training."""

ASSIGNMENTS = (Assign, AssignArray)
_ARGUMENT = re.compile(r"(?<![^\s=\"'])--[A-Za-z][\w-]*")


def is_test(node: Node) -> bool:
    """Whether a command is there to be judged, not to do something."""
    if isinstance(node, Not):
        return is_test(node.node)
    if isinstance(node, Group):
        return len(node.body) == 1 and is_test(node.body[0])
    if isinstance(node, Chain):
        return all(is_test(part) for _, part in node.links)
    return isinstance(node, Condition) or first_word(node) in {"[", "test"}


_TRAINING = re.compile(r"(^|/)(torchrun|accelerate|deepspeed)$|\.py$|^torch\.distributed\.")


def trains(body: Sequence[Node]) -> bool:
    """Whether commands start a Python program, whatever it is."""
    return any(
        _TRAINING.search(literal(item))
        for command in simple_commands(list(body))
        if first_word(command) not in UNRELATED
        for item in command.items
        if not isinstance(item, ASSIGNMENTS)
    )


def arguments_of(body: Sequence[Node]) -> list[str]:
    """Return the arguments that commands would pass, each once."""
    found: dict[str, None] = {}
    for command in simple_commands(list(body)):
        if first_word(command) in UNRELATED:
            continue
        for item in command.items:
            for word in _words_of(item):
                found.update(dict.fromkeys(_ARGUMENT.findall(literal(word))))
    return list(found)


def _words_of(item: Word | Assign | AssignArray) -> Sequence[Word]:
    if isinstance(item, Assign):
        return (item.word,)
    return item.words if isinstance(item, AssignArray) else (item,)
