"""Commands of a shell script, in one pass over its text.

The reader forgives: a block that is never closed ends with the text, a closing word without its
block is passed over. Quotes and brackets that are never closed are errors.
"""

import re
from collections.abc import Callable
from typing import TypeVar

from projector.config.formats.shell import nodes as shell
from projector.config.formats.shell.nodes import Node, Word, literal
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
_NUMBERED = re.compile(r"\d+|[@*#?!$-]")
_INDEX = re.compile(r"\[([^\]\n]*)\]")
_OPERATION = re.compile(r":[-=+?]|[-=+?]|##?|%%?|//?|\^\^?|,,?|:")
_COMMENT = re.compile(r"[^\n]*")
_OPERATOR = re.compile(r"&&|\|\||[()<>]")
_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
PATTERN = re.compile(r"\({1,8}+\[[\d,\[\]()+*]{0,2000}+(?=\s|\Z)", re.ASCII)
"""A layer pattern such as ([0]*3+[1]*58), which a plain list of arguments need not quote."""

_SEPARATORS = re.compile(r"(?:[ \t\n;&]++|#[^\n]*+)++")
_BETWEEN = re.compile(r"(?:[ \t\n]|\\\n|#[^\n]*)+")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*+)(\[[^\]\n]{0,200}\])?(\+?)=", re.ASCII)
_FUNCTION = re.compile(r"(?:function[ \t]++)?([\w.-]++)[ \t]*+\([ \t]*+\)", re.ASCII)
_FUNCTION_WORD = re.compile(r"function[ \t]++([\w.-]++)", re.ASCII)
_KEYWORD = re.compile(r"(?:[a-z]++|[{}!]|\[\[)(?=[\s;|&()<>]|\Z)")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|&>>?|>>|>\||>&|<&|<>|>|<)(?!\()")
_CLOSING = {"then", "elif", "else", "fi", "do", "done", "esac", "}"}
DECLARATIONS = {"export", "local", "declare", "readonly", "typeset"}

_MOST_NESTED = 50
_MOST_PIECES = 30_000


class Budget:
    """Counts the parts of a script and of all that it reads, within bounds."""

    def __init__(self) -> None:
        self._parts = 0

    def spend(self) -> None:
        """Count one part."""
        self._parts += 1
        if self._parts > _MOST_PIECES:
            msg = f"the script has more than {_MOST_PIECES} parts, too many for a launch script"
            raise ConfigError(msg, key="config", allowed="Megatron-LM arguments")


class Parser:
    """A place in a text, and the commands that begin there; `parse` returns them all."""

    def __init__(self, text: str, budget: Budget | None = None, depth: int = 0) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._depth = depth
        self._budget = budget or Budget()
        self._documents: list[tuple[shell.Simple, str, bool, bool]] = []

    def parse(self) -> list[Node]:
        """Return the commands of the text."""
        nodes: list[Node] = []
        while self._at < len(self._text):
            nodes.extend(self._list(frozenset()))
            self._at += 1  # a closing bracket without its opening one
        return nodes

    def whole(self) -> Word:
        """Return the text as one word in which blanks and quotes stand for themselves."""
        return self._parts("")

    # Lists of commands.

    def _list(self, stops: frozenset[str], *, arm: bool = False) -> list[Node]:
        """Read commands up to one of ``stops``, a closing bracket, or the end of an arm."""
        nodes: list[Node] = []
        while True:
            self._separators(arm=arm)
            if self._char in {"", ")"} or (arm and self._starts(";;")):
                return nodes
            word = self._keyword()
            if word in stops:
                return nodes
            if word in _CLOSING:
                self._at += len(word)
                continue
            nodes.append(self._chain())

    def _separators(self, *, arm: bool) -> None:
        """Pass over blanks, comments, line ends, ``;`` and ``&``."""
        while char := self._char:
            run = None if arm or self._documents else _SEPARATORS.match(self._text, self._at)
            if run is not None:
                self._at = run.end()
            elif char in " \t" or self._starts("\\\n"):
                self._pass(_BLANK)
            elif char == "#":
                self._pass(_COMMENT)
            elif char == "\n":
                self._line_end()
            elif char in ";&" and not (arm and self._starts(";;")):
                self._at += 1
            else:
                return

    def _between(self) -> None:
        """Pass over blanks, comments and line ends."""
        if self._documents:
            self._pass(_BLANK)
            if self._starts("\n"):
                self._line_end()
        self._pass(_BETWEEN)

    def _keyword(self) -> str:
        match = _KEYWORD.match(self._text, self._at)
        return match[0] if match else ""

    def _take(self, word: str) -> bool:
        self._separators(arm=False)
        if self._keyword() != word:
            return False
        self._at += len(word)
        return True

    def _chain(self) -> Node:
        links = [("", self._pipe())]
        while True:
            self._pass(_BLANK)
            operator = self._text[self._at : self._at + 2]
            if operator not in {"&&", "||"}:
                return links[0][1] if len(links) == 1 else shell.Chain(links)
            self._at += 2
            self._budget.spend()
            self._between()
            links.append((operator, self._pipe()))

    def _pipe(self) -> Node:
        self._budget.spend()
        self._pass(_BLANK)
        if self._keyword() == "!":
            self._at += 1
            return shell.Not(self._nested(self._pipe))
        stages = [self._command()]
        while True:
            self._pass(_BLANK)
            if self._starts("||") or not (self._take_text("|&") or self._take_text("|")):
                return stages[0] if len(stages) == 1 else shell.Pipe(stages)
            self._budget.spend()
            self._between()
            stages.append(self._command())

    def _command(self) -> Node:
        text = self._text
        if self._starts("(("):
            return shell.Condition([], self._arithmetic(self._at + 2))
        if self._take_text("("):
            return shell.Group(self._bracketed())
        function = _FUNCTION.match(text, self._at) or _FUNCTION_WORD.match(text, self._at)
        if function is not None:
            return self._function(function)
        word = self._keyword()
        if word not in _BLOCKS:
            return self._simple()
        self._at += len(word)
        block: Callable[[str], Node] = getattr(self, _BLOCKS[word])
        return self._nested(lambda: block(word))

    # Blocks.

    def _function(self, match: re.Match[str]) -> Node:
        self._at = match.end()
        self._between()
        body = self._nested(self._command)
        return shell.Function(match[1], body.body if isinstance(body, shell.Group) else [body])

    def _bracketed(self) -> list[Node]:
        """Read commands past a closing bracket, if there is one."""
        body = self._nested(lambda: self._list(frozenset()))
        self._take_text(")")
        return body

    def _up_to(self, *stops: str) -> list[Node]:
        """Read commands up to one of some words, of which the first is passed over."""
        body = self._list(frozenset(stops))
        self._take(stops[0])
        return body

    def _braces(self, _: str) -> Node:
        return shell.Group(self._up_to("}"))

    def _if(self, _: str) -> Node:
        branches: list[tuple[list[Node], list[Node]]] = []
        stops = frozenset({"elif", "else", "fi"})
        while True:
            condition = self._up_to("then", *stops)
            branches.append((condition, self._list(stops)))
            if self._take("elif"):
                continue
            if self._take("else"):
                branches.append(([], self._list(frozenset({"fi"}))))
            self._take("fi")
            return shell.If(branches)

    def _loop(self, word: str) -> Node:
        condition = self._up_to("do", "done")
        return shell.Loop(word, "", condition, [], self._up_to("done"))

    def _for(self, word: str) -> Node:
        self._pass(_BLANK)
        words: list[Word] = []
        name = ""
        if self._starts("(("):
            self._arithmetic(self._at + 2)
        else:
            name = literal(self._word())
            if self._take("in"):
                words = [*iter(self._one_word, None)]
        self._take("do")
        return shell.Loop(word, name, [], words, self._up_to("done"))

    def _case(self, _: str) -> Node:
        subject = self._one_word() or ()
        self._take("in")
        arms: list[tuple[list[Word], list[Node]]] = []
        while not self._take("esac"):
            self._between()
            if not self._char:
                break
            self._take_text("(")
            patterns: list[Word] = []
            while (pattern := self._one_word()) is not None:
                patterns.append(pattern)
                self._pass(_BLANK)
                if not self._take_text("|"):
                    break
            if not self._take_text(")"):
                break
            arms.append((patterns, self._list(frozenset({"esac"}), arm=True)))
            while self._starts((";", "&")):
                self._at += 1
        return shell.Case(subject, arms)

    def _double_brackets(self, _: str) -> Node:
        """Read a condition; within it ``&&``, ``<`` and brackets are words."""
        words: list[Word] = []
        while True:
            self._between()
            if not self._char:
                return shell.Condition(words)
            operator = self._pass(_OPERATOR)
            if operator:
                words.append((shell.Text(operator),))
                self._budget.spend()
                continue
            word = self._word()
            if word == (shell.Text("]]"),):
                return shell.Condition(words)
            words.append(word)

    # Simple commands.

    def _simple(self) -> Node:
        command = shell.Simple()
        plain = declares = False
        while True:
            self._pass(_BLANK)
            char = self._char
            if not char:
                return command
            redirection = _REDIRECTION.match(self._text, self._at)
            if redirection is not None:
                self._redirect(command, redirection)
            elif char == "#":
                self._pass(_COMMENT)
            elif char == "(" and command.items and PATTERN.match(self._text, self._at):
                command.items.append(self._word())
            elif char in "<>":
                self._at += 2
                self._bracketed()
                command.items.append((shell.Text("$(...)"),))
            elif char in "\n;|&()":
                self._take_text("(")
                return command
            elif not plain and (match := _ASSIGNMENT.match(self._text, self._at)):
                command.items.append(self._assignment(match))
            else:
                word = self._word()
                declares = declares or (not command.items and word[:1] in _DECLARED)
                plain = not declares
                command.items.append(word)

    def _assignment(self, match: re.Match[str]) -> shell.Assign | shell.AssignArray:
        self._at = match.end()
        more = bool(match[3])
        opened = self._at
        if not self._take_text("("):
            # Nothing, the end of the text, is in any text.
            word = () if self._char in " \t\n;|&()<>" else self._word()
            return shell.Assign(match[1], word, more, (match[2] or "").strip("[]"))
        words: list[Word] = []
        while True:
            self._between()
            if not self._char:
                name = match[1]
                msg = f"array {name} (line {self._line(opened)}) is never closed with ')'"
                raise ConfigError(msg, key=name, allowed=f"{name}=( ... )")
            if self._take_text(")"):
                return shell.AssignArray(match[1], tuple(words), more)
            self._budget.spend()
            if self._char in "(;|&<>" and not PATTERN.match(self._text, self._at):
                self._at += 1
            else:
                words.append(self._word())

    def _redirect(self, command: shell.Simple, match: re.Match[str]) -> None:
        self._at = match.end()
        self._budget.spend()
        self._pass(_BLANK)
        if match[0].endswith(("<<", "<<-")) and "<<<" not in match[0]:
            mark = re.compile(r"['\"\\]?([\w.-]+)['\"]?").match(self._text, self._at)
            if mark is not None:
                self._at = mark.end()
                plain = mark[0] == mark[1]
                self._documents.append((command, mark[1], plain, match[0].endswith("-")))
        elif self._char not in "\n;|&()<>":
            self._word()

    def _line_end(self) -> None:
        """Pass over the end of a line, and over the texts that commands of the line read."""
        self._at += 1
        waiting, self._documents = self._documents, []
        for command, mark, plain, indented in waiting:
            indent = r"[ \t]*" if indented else ""
            close = re.compile(rf"^{indent}{re.escape(mark)}[ \t]*$", re.MULTILINE)
            end = close.search(self._text, self._at)
            body = self._text[self._at : end.start() if end else len(self._text)]
            self._at = end.end() if end else len(self._text)
            word: Word = (shell.Text(body, quoted=True),)
            if plain and ("$" in body or "`" in body or "\\" in body):
                # Only ``$``, back quotes and backslashes have a meaning there.
                word = Parser(body, self._budget, self._depth + 1).whole()
            command.documents.append(word)

    # Words.

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
        self._pass(_BLANK)
        return None if self._char in "\n;|&()<>#" else self._word()

    def _word(self) -> Word:
        pattern = PATTERN.match(self._text, self._at)
        if pattern is not None:
            self._at = pattern.end()
            return (shell.Text(pattern[0]),)
        return self._parts(None)

    def _parts(self, stop: str | None) -> Word:
        """Read parts past ``stop``: None ends a word, ``""`` is the end of the text."""
        text, start = self._text, self._at
        plain = _PLAIN if stop is None else _PLAIN_WITHIN[stop]
        quoted = stop in {'"', ""}
        parts: list[shell.Text | shell.Parameter | shell.Output | shell.Sum] = []
        while self._at < len(text):
            self._budget.spend()
            char = text[self._at]
            run = plain.match(text, self._at)
            if run is not None:
                parts.append(shell.Text(run[0], quoted))
                self._at = run.end()
            elif stop and char == stop:
                self._at += 1
                return tuple(parts)
            elif char == "'" and not quoted:
                parts.append(shell.Text(self._quoted_by("'"), quoted=True))
            elif char == '"' and stop != "":
                self._at += 1
                inner = self._nested(lambda: self._parts('"'))
                parts.extend(inner or (shell.Text("", quoted=True),))
            elif char == "\\":
                parts.append(shell.Text(self._escaped(stop), quoted=True))
            elif char in "$`":
                parts.append(self._nested(lambda: self._expansion(quoted=quoted)))
            elif stop is None:
                break
            else:
                parts.append(shell.Text(char, quoted))
                self._at += 1
        if stop:
            raise self._unclosed(start - 1)
        if stop is None and self._at == start:
            self._at += 1  # a character that no word begins with
        return tuple(parts)

    def _quoted_by(self, mark: str) -> str:
        """Return what stands between a mark and its next one, and pass over both."""
        start = self._at
        end = self._text.find(mark, start + 1)
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

    def _expansion(
        self, *, quoted: bool
    ) -> shell.Text | shell.Parameter | shell.Output | shell.Sum:
        text, start = self._text, self._at
        if text[start] == "`":
            body = Parser(self._quoted_by("`"), self._budget, self._depth).parse()
            return shell.Output(tuple(body), quoted)
        if text.startswith("$((", start):
            return shell.Sum(self._arithmetic(start + 3), quoted)
        if text.startswith("$(", start):
            self._at = start + 2
            body = self._list(frozenset())
            if not self._take_text(")"):
                raise self._unclosed(start)
            return shell.Output(tuple(body), quoted)
        if text.startswith("${", start):
            return self._parameter(quoted=quoted)
        if text.startswith("$'", start) and not quoted:
            self._at = start + 1
            return shell.Text(self._quoted_by("'"), quoted=True)
        name = _NAME.match(text, start + 1) or _SPECIAL.match(text, start + 1)
        if name is None:
            self._at += 1
            return shell.Text("$", quoted)
        self._at = name.end()
        return shell.Parameter(name[0], "@" if name[0] in "@*" else "", quoted=quoted)

    def _parameter(self, *, quoted: bool) -> shell.Parameter:
        start = self._at
        self._at += 2
        prefix = ""
        if self._starts(("#", "!")) and not self._starts(("#}", "!}")):
            prefix = self._text[self._at]
            self._at += 1
        label = self._pass(_NAME) or self._pass(_NUMBERED)
        index = self._pass(_INDEX)
        operation = self._pass(_OPERATION)
        argument = self._parts("}")
        if self._text[self._at - 1 : self._at] != "}":
            raise self._unclosed(start)
        kind = {"#": "length", "!": "indirect"}.get(prefix, operation)
        if not label or (argument and not kind):
            kind = "unknown"
        position = index[1:-1] if index else ("@" if label in {"@", "*"} else "")
        return shell.Parameter(label, position, kind, argument, quoted)

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

    @property
    def _char(self) -> str:
        """The next character, nothing at the end of the text."""
        return self._text[self._at : self._at + 1]

    def _starts(self, what: str | tuple[str, ...]) -> bool:
        return self._text.startswith(what, self._at)

    def _take_text(self, what: str) -> bool:
        """Pass over a text, if it is next."""
        found = self._starts(what)
        self._at += len(what) * found
        return found

    def _pass(self, pattern: re.Pattern[str]) -> str:
        """Pass over what a pattern matches here, and return it."""
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match[0] if match else ""

    def _unclosed(self, start: int) -> ConfigError:
        start = max(start, 0)
        shown = self._text[start : start + 20].partition("\n")[0]
        msg = f"a quote or bracket in line {self._line(start)} is never closed: {shown}"
        return ConfigError(msg, key="config", value=shown, allowed="balanced quotes")

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1


_DECLARED = [(shell.Text(word),) for word in DECLARATIONS]

_BLOCKS = {
    "{": "_braces",
    "if": "_if",
    "while": "_loop",
    "until": "_loop",
    "for": "_for",
    "select": "_for",
    "case": "_case",
    "[[": "_double_brackets",
}
"""What begins a block, and the method that reads it."""
