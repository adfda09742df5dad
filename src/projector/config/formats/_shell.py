"""The arguments that a launch script passes, found without running it.

Understood: comments, line continuations, quotes, assignments, arrays, ``+=``, ``$VAR``,
``${VAR}``, ``${VAR:-default}``, ``"${ARRAY[@]}"`` and integer ``$((...))``. Conditional parts
and loops are skipped; what a command would print stays unresolved as ``$(...)``.
"""

import re
import shlex
from collections.abc import Iterator

from projector.config.formats._expression import integer
from projector.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?!$-]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_PATTERN = re.compile(r"\(+\[[\d,\[\]()+*]*(?=\s|$)", re.ASCII)
"""A layer pattern such as ([0]*3+[1]*58), which a plain list of arguments need not quote."""

_OPENERS = {"if", "case", "while", "for", "until", "select"}
_CLOSERS = {"fi", "esac", "done"}
_DECLARATIONS = {"export", "local", "declare", "readonly", "typeset"}
_MAX_WORDS = 50_000
_MAX_EXPANDED = 1 << 22
_END = "\n"


class Script:
    """Commands of a shell script, with its own variables filled in.

    Attributes
    ----------
    commands : list of list of str
        Words of each command outside conditions and loops.
    variables : dict
        What each variable holds at the end: text, or a list for an array.
    skipped : list of str
        Arguments inside skipped parts, in the order of the script.
    """

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._depth = 0
        self._words_seen = 0
        self._expanded = 0
        self.commands: list[list[str]] = []
        self.variables: dict[str, str | list[str]] = {}
        self.skipped: list[str] = []
        self._read()

    def _read(self) -> None:
        words: list[str] = []
        drop_next = False
        while True:
            start = self._at
            operator = self._operator()
            if operator is not None:
                if operator in {">", "<"}:
                    if words and words[-1].isdigit() and self._text[start - 1 : start].isdigit():
                        words.pop()
                    drop_next = True
                elif operator == "<<":
                    self._skip_here_document()
                else:
                    self._finish(words)
                    words, drop_next = [], False
                if operator == "":
                    return
                continue
            array = self._array_assignment() if not words or words[0] in _DECLARATIONS else False
            if array:
                continue
            fields = self._word()
            self._words_seen += len(fields)
            if self._words_seen > _MAX_WORDS:
                msg = (
                    f"the script expands to more than {_MAX_WORDS} words, "
                    "too many for a launch script"
                )
                raise ConfigError(msg, key="config", allowed="Megatron-LM arguments")
            if drop_next:
                drop_next = False
            else:
                words.extend(fields)

    def _operator(self) -> str | None:
        """Consume blanks and one operator; None if a word comes next, ``""`` at the end."""
        text, size = self._text, len(self._text)
        while self._at < size:
            char = text[self._at]
            if char in " \t":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                self._at = _find_or_end(text, "\n", self._at)
            elif _PATTERN.match(text, self._at):
                return None
            elif char in "\n;|&()":
                self._at += 1
                return _END
            elif text.startswith("<<", self._at) and not text.startswith("<<<", self._at):
                self._at += 2
                return "<<"
            elif char in "<>":
                while self._at < size and text[self._at] in "<>&":
                    self._at += 1
                return char
            else:
                return None
        return ""

    def _skip_here_document(self) -> None:
        line_end = _find_or_end(self._text, "\n", self._at)
        mark = re.match(r"-?\s*['\"\\]?(\w+)", self._text[self._at : line_end])
        if mark is None:
            return
        close = re.compile(rf"^\s*{re.escape(mark[1])}\s*$", re.MULTILINE)
        end = close.search(self._text, line_end)
        self._at = end.end() if end else len(self._text)

    def _array_assignment(self) -> bool:
        match = _ASSIGNMENT.match(self._text, self._at)
        if match is None or not self._text.startswith("(", match.end()):
            return False
        name, opened = match[1], match.end()
        self._at = opened + 1
        values: list[str] = []
        while True:
            if self._at >= len(self._text):
                msg = f"array {name} (line {self._line(opened)}) is never closed with ')'"
                raise ConfigError(msg, key=name, allowed=f"{name}=( ... )")
            char = self._text[self._at]
            if char in " \t\n":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                self._at = _find_or_end(self._text, "\n", self._at)
            elif _PATTERN.match(self._text, self._at):
                values.extend(self._word())
            elif char == ")":
                self._at += 1
                break
            elif char in "(;|&<>":
                self._at += 1
            else:
                values.extend(self._word())
        if self._depth:
            self._skip(values)
        else:
            old = self.variables.get(name, []) if match[2] else []
            self.variables[name] = [*([old] if isinstance(old, str) else old), *values]
        return True

    def _word(self) -> list[str]:
        """Read one word; unquoted expansions may split it into several or none."""
        text = self._text
        pattern = _PATTERN.match(text, self._at)
        if pattern is not None:
            self._at = pattern.end()
            return [pattern[0]]
        fields = [""]
        solid = False
        start = self._at
        while self._at < len(text):
            char = text[self._at]
            if char in " \t\n;|&()<>":
                break
            if char == "'":
                end = text.find("'", self._at + 1)
                if end < 0:
                    raise self._unclosed(start)
                fields[-1] += text[self._at + 1 : end]
                self._at, solid = end + 1, True
            elif char == '"':
                quoted = self._double_quoted()
                _append(fields, quoted)
                solid = solid or bool(quoted)
            elif char == "\\":
                if not text.startswith("\\\n", self._at):
                    fields[-1] += text[self._at + 1 : self._at + 2]
                self._at += 2
            elif char in "$`":
                _append(fields, self._split(self._expansion(), assigned="=" in fields[0]))
            else:
                fields[-1] += char
                self._at += 1
        return fields if solid or any(fields) else []

    def _split(self, value: str | list[str], *, assigned: bool) -> list[str]:
        if isinstance(value, list):
            return value or [""]
        if assigned or "$(" in value or "${" in value:
            return [value]
        try:
            return shlex.split(value) or [""]
        except ValueError:
            return value.split() or [""]

    def _double_quoted(self) -> list[str]:
        """Return the fields of a quoted text: one, or as many as the array within it has."""
        start = self._at
        self._at += 1
        fields = [""]
        no_items = False
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return [] if no_items and fields == [""] else fields
            if char == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                if following != "\n":
                    fields[-1] += (
                        following if following in {'"', "$", "\\", "`"} else f"\\{following}"
                    )
                self._at += 2
            elif char in "$`":
                value = self._expansion()
                no_items = no_items or value == []
                _append(fields, value if isinstance(value, list) else [value])
            else:
                fields[-1] += char
                self._at += 1
        raise self._unclosed(start)

    def _expansion(self) -> str | list[str]:
        """Expand what comes next, within bounds: ``A=$A$A`` doubles with every line."""
        value = self._expand()
        self._expanded += len(value) + sum(map(len, value))
        if self._expanded > _MAX_EXPANDED:
            msg = f"the script expands to more than {_MAX_EXPANDED} characters"
            raise ConfigError(msg, key="config", allowed="Megatron-LM arguments")
        return value

    def _expand(self) -> str | list[str]:
        """Consume one ``$`` expansion or back-quoted command and return its value."""
        text, start = self._text, self._at
        if text[start] == "`":
            self._at = _find_or_end(text, "`", start + 1) + 1
            return "$(...)"
        if text.startswith("$((", start):
            end = text.find("))", start)
            if end < 0:
                raise self._unclosed(start)
            self._at = end + 2
            return self._arithmetic(text[start + 3 : end])
        if text.startswith("$(", start):
            self._at = _closing(text, start + 1, "(", ")")
            return "$(...)"
        if text.startswith("${", start):
            self._at = _closing(text, start + 1, "{", "}")
            return self._parameter(text[start + 2 : self._at - 1])
        name = _NAME.match(text, start + 1)
        if name is None:
            self._at += 1
            return "$"
        self._at = name.end()
        return self._value(name[0])

    def _parameter(self, body: str) -> str | list[str]:
        name = _NAME.match(body)
        if name is None:
            return f"${{{body}}}"
        rest = body[name.end() :]
        known = name[0] in self.variables
        if rest in {"[@]", "[*]"}:
            value = self.variables.get(name[0], [])
            return value if isinstance(value, list) else [value]
        if rest.startswith((":-", ":=", "-", "=")):
            value = self.variables.get(name[0], "")
            use_default = not known or (rest.startswith(":") and not value)
            return self._nested(rest.lstrip(":")[1:]) if use_default else value
        return self._value(name[0]) if not rest else f"${{{body}}}"

    def _nested(self, text: str) -> str:
        """Expand the default of ``${NAME:-default}``."""
        outer, position = self._text, self._at
        self._text, self._at = '"' + text.strip('"') + '"', 0
        try:
            return " ".join(self._double_quoted())
        finally:
            self._text, self._at = outer, position

    def _value(self, name: str) -> str | list[str]:
        value = self.variables.get(name, f"${{{name}}}")
        return value[:1] or "" if isinstance(value, list) else value

    def _arithmetic(self, body: str) -> str:
        def fill(match: re.Match[str]) -> str:
            value = self.variables.get(match[1] or match[2], "")
            return str(value)

        filled = re.sub(r"\$\{?([A-Za-z_]\w*)\}?|([A-Za-z_]\w*)", fill, body)
        try:
            return str(integer(filled))
        except ValueError:
            return "$(...)"

    def _finish(self, words: list[str]) -> None:
        """Carry out assignments, follow conditions, keep anything else as a command."""
        while words and words[0] in {"then", "else", "do", "{", "}", "!"}:
            words = words[1:]
        if not words:
            return
        if words[0] in _OPENERS:
            self._depth += 1
        elif words[0] in _CLOSERS:
            self._depth = max(0, self._depth - 1)
        elif self._depth:
            self._skip(words)
        else:
            self._run(words)

    def _skip(self, words: list[str]) -> None:
        """Note the arguments among words that are not run."""
        for word in words:
            for name in re.findall(r"(?<![^\s=\"'])--[A-Za-z][\w-]*", word):
                if name not in self.skipped:
                    self.skipped.append(name)

    def _run(self, words: list[str]) -> None:
        rest = words[1:] if words[0] in _DECLARATIONS else words
        while rest:
            match = _ASSIGNMENT.match(rest[0])
            if match is None:
                break
            old = self.variables.get(match[1], "") if match[2] else ""
            value = rest[0][match.end() :]
            self.variables[match[1]] = [*old, value] if isinstance(old, list) else old + value
            rest = rest[1:]
        if rest and words[0] not in _DECLARATIONS:
            self.commands.append(list(_resplit(rest)))

    def _unclosed(self, start: int) -> ConfigError:
        shown = self._text[start : start + 20].partition("\n")[0]
        msg = f"a quote or bracket in line {self._line(start)} is never closed: {shown}"
        return ConfigError(msg, key="config", value=shown, allowed="balanced quotes")

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1


def _append(fields: list[str], more: list[str]) -> None:
    """Join the first of ``more`` to the last field and add the others."""
    if more:
        fields[-1] += more[0]
        fields.extend(more[1:])


def _resplit(words: list[str]) -> Iterator[str]:
    """Open up a whole command that is given as one word, as to ``eval`` or ``sh -c``."""
    for word in words:
        if ".py" in word and " --" in word:
            yield from _split_quietly(word)
        else:
            yield word


def _split_quietly(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _find_or_end(text: str, what: str, start: int) -> int:
    index = text.find(what, start)
    return len(text) if index < 0 else index


def _closing(text: str, start: int, opening: str, closing: str) -> int:
    """Return the position after the bracket that closes the one at ``start``."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return at + 1
    return len(text)
