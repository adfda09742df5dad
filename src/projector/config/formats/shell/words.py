"""Words of a shell script: quotes, expansions and the characters between them."""

import re
from collections.abc import Callable
from typing import TypeVar

from projector.config.formats.shell.nodes import Node, Output, Parameter, Sum, Text, Word
from projector.errors import ConfigError

_T = TypeVar("_T")

_PLAIN = re.compile(r"[^\s;|&()<>'\"\\$`]+")
_PLAIN_WITHIN = {
    '"': re.compile(r"[^\"\\$`]+"),
    "}": re.compile(r"[^}'\"\\$`]+"),
    "": re.compile(r"[^\\$`]+"),
}
_NAME = re.compile(r"[A-Za-z_]\w*+", re.ASCII)
_SPECIAL = re.compile(r"[0-9@*#?!$-]")
_INDEX = re.compile(r"\[([^\]\n]*)\]")
_OPERATION = re.compile(r":[-=+?]|[-=+?]|##?|%%?|//?|\^\^?|,,?|:")
_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
PATTERN = re.compile(r"\({1,8}+\[[\d,\[\]()+*]{0,2000}+(?=\s|\Z)", re.ASCII)
"""A layer pattern such as ([0]*3+[1]*58), which a plain list of arguments need not quote."""

_MOST_NESTED = 50
_MOST_PIECES = 30_000


class Budget:
    """Counts the parts of a script and of all that it reads, within bounds."""

    def __init__(self) -> None:
        self._parts = 0

    def spend(self, parts: int = 1) -> None:
        """Count parts."""
        self._parts += parts
        if self._parts > _MOST_PIECES:
            msg = f"the script has more than {_MOST_PIECES} parts, too many for a launch script"
            raise ConfigError(msg, key="config", allowed="Megatron-LM arguments")


class Words:
    """A place in a text, and the words that begin there."""

    def __init__(self, text: str, budget: Budget, depth: int = 0) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._depth = depth
        self._budget = budget

    def _nested(self, read: Callable[[], _T]) -> _T:
        """Read what is nested, within bounds."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            msg = (
                f"line {self._line(self._at)} is nested more than {_MOST_NESTED} deep, too deep "
                "for a launch script"
            )
            raise ConfigError(msg, key="config", allowed=f"up to {_MOST_NESTED} levels")
        try:
            return read()
        finally:
            self._depth -= 1

    def _one_word(self) -> Word | None:
        """Read one word of this line, None where there is none."""
        self._blanks()
        if self._at >= len(self._text) or self._text[self._at] in "\n;|&()<>#":
            return None
        return self._word()

    def _word(self) -> Word:
        """Read one word, up to a blank or an operator."""
        pattern = PATTERN.match(self._text, self._at)
        if pattern is not None:
            self._at = pattern.end()
            return (Text(pattern[0]),)
        return self._parts(None)

    def _parts(self, stop: str | None) -> Word:
        """Read parts up to ``stop``: None ends a word, ``""`` is the end of the text.

        The closing character is passed over.
        """
        text, start = self._text, self._at
        plain = _PLAIN if stop is None else _PLAIN_WITHIN[stop]
        quoted = stop in {'"', ""}
        parts: list[Text | Parameter | Output | Sum] = []
        while self._at < len(text):
            self._budget.spend()
            char = text[self._at]
            run = plain.match(text, self._at)
            if run is not None:
                parts.append(Text(run[0], quoted))
                self._at = run.end()
            elif stop and char == stop:
                self._at += 1
                return tuple(parts)
            elif char == "'" and not quoted:
                parts.append(Text(self._single_quoted(), quoted=True))
            elif char == '"' and stop != "":
                self._at += 1
                inner = self._nested(lambda: self._parts('"'))
                parts.extend(inner or (Text("", quoted=True),))
            elif char == "\\":
                parts.append(Text(self._escaped(stop), quoted=True))
            elif char in "$`":
                parts.append(self._nested(lambda: self._expansion(quoted=quoted)))
            elif stop is None:
                break
            else:
                parts.append(Text(char, quoted))
                self._at += 1
        if stop:
            raise self._unclosed(start - 1)
        if stop is None and self._at == start:
            self._at += 1  # a character that no word begins with
        return tuple(parts)

    def _single_quoted(self) -> str:
        start = self._at
        end = self._text.find("'", start + 1)
        if end < 0:
            raise self._unclosed(start)
        self._at = end + 1
        return self._text[start + 1 : end]

    def _escaped(self, stop: str | None) -> str:
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if following == "\n":
            return ""
        if stop in {'"', ""} and following not in {'"', "$", "\\", "`"}:
            return f"\\{following}"
        return following

    def _expansion(self, *, quoted: bool) -> Text | Parameter | Output | Sum:
        text, start = self._text, self._at
        if text[start] == "`":
            end = text.find("`", start + 1)
            if end < 0:
                raise self._unclosed(start)
            self._at = end + 1
            return Output(tuple(self._commands_within(text[start + 1 : end])), quoted)
        if text.startswith("$((", start):
            return Sum(self._arithmetic(start + 3), quoted)
        if text.startswith("$(", start):
            self._at = start + 2
            body = self._list(frozenset())
            self._close(")", start)
            return Output(tuple(body), quoted)
        if text.startswith("${", start):
            return self._parameter(quoted=quoted)
        if text.startswith("$'", start) and not quoted:
            self._at = start + 1
            return Text(self._single_quoted(), quoted=True)
        name = _NAME.match(text, start + 1) or _SPECIAL.match(text, start + 1)
        if name is None:
            self._at += 1
            return Text("$", quoted)
        self._at = name.end()
        return Parameter(name[0], "@" if name[0] in "@*" else "", quoted=quoted)

    def _commands_within(self, body: str) -> list[Node]:
        """Return the commands of a text between back quotes."""
        raise NotImplementedError

    def _list(self, stops: frozenset[str], *, arm: bool = False) -> list[Node]:
        """Return the commands up to a closing bracket."""
        raise NotImplementedError

    def _parameter(self, *, quoted: bool) -> Parameter:
        start = self._at
        self._at += 2
        prefix = ""
        if self._starts(("#", "!")) and not self._starts(("#}", "!}")):
            prefix = self._text[self._at]
            self._at += 1
        name = _NAME.match(self._text, self._at) or re.compile(r"\d+|[@*#?!$-]").match(
            self._text, self._at
        )
        label = name[0] if name else ""
        self._at += len(label)
        index = _INDEX.match(self._text, self._at)
        self._at = index.end() if index else self._at
        operation = _OPERATION.match(self._text, self._at)
        self._at = operation.end() if operation else self._at
        argument = self._parts("}")
        if self._text[self._at - 1 : self._at] != "}":
            raise self._unclosed(start)
        kind = {"#": "length", "!": "indirect"}.get(prefix, operation[0] if operation else "")
        if not label or (argument and not kind):
            kind = "unknown"
        position = index[1] if index else ("@" if label in {"@", "*"} else "")
        return Parameter(label, position, kind, argument, quoted)

    def _arithmetic(self, start: int) -> str:
        """Return what stands between ``((``, which ends at ``start``, and its ``))``."""
        depth = 0
        for bracket in re.compile(r"[()]").finditer(self._text, start):
            self._budget.spend()
            depth += 1 if bracket[0] == "(" else -1
            if depth < 0:
                end = bracket.start()
                self._at = end + (2 if self._text.startswith("))", end) else 1)
                return self._text[start:end]
        raise self._unclosed(start - 2)

    # Positions.

    def _starts(self, what: str | tuple[str, ...]) -> bool:
        return self._text.startswith(what, self._at)

    def _blanks(self) -> None:
        match = _BLANK.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _to_line_end(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _close(self, bracket: str, start: int | None = None) -> None:
        if self._text.startswith(bracket, self._at):
            self._at += 1
        elif start is not None:
            raise self._unclosed(start)

    def _unclosed(self, start: int) -> ConfigError:
        start = max(start, 0)
        shown = self._text[start : start + 20].partition("\n")[0]
        msg = f"a quote or bracket in line {self._line(start)} is never closed: {shown}"
        return ConfigError(msg, key="config", value=shown, allowed="balanced quotes")

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1
