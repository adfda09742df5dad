"""Following the commands of a launch script, without running any of them."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from projector.config.formats.shell import nodes as shell
from projector.config.formats.shell.nodes import Node, Word
from projector.config.formats.shell.syntax import DECLARATIONS, Budget, Parser
from projector.config.formats.shell.values import (
    UNKNOWN,
    UnknownValueError,
    Value,
    Variables,
    Verdict,
    both,
    judge,
    judge_sum,
    matches,
    negated,
    printed,
)
from projector.config.resources import settings_of
from projector.config.yaml_file import read_text
from projector.errors import ConfigError
from projector.files import is_file

_MAX_WORDS = 50_000
_MOST_FILES = 32
_MOST_CALLS = 12

_TABLE = settings_of("shell")
_SHELLS = frozenset(_TABLE["shells"].split())
_TAKERS = _SHELLS.union(_TABLE["takers"].split())
"""Programs that run the script which they are given as a file or a text."""

_PREFIXES = {"exec", "nohup", "time"}


class _ExitError(Exception):
    """The script ends."""


class _ReturnError(Exception):
    """A function or a file that was read ends."""


class Script:
    """Commands of a shell script, with its own variables filled in."""

    def __init__(self, text: str, *, path: Path | None = None) -> None:
        self._values = Variables(path)
        self.variables: dict[str, Value] = self._values.held
        """What each variable holds at the end."""
        self._budget = Budget()
        self._files = 0
        self._calls = 0
        self._words_seen = 0
        self._functions: dict[str, list[Node]] = {}
        self._called: set[str] = set()
        self.commands: list[list[str]] = []
        """Words of each command that is reached, without programs that train nothing."""
        self.skipped: list[str] = []
        """Arguments in parts that hang on what is not known here, in the order of the script."""
        self.left_out: dict[str, list[str]] = {}
        """Variable that is not set and that a condition looks at -> arguments left out by it."""
        self.loops: dict[str, list[str]] = {}
        """Variable -> what it goes through in a loop that trains; the first counts."""
        self.not_read: list[str] = []
        """Files that the script reads and that were not found."""
        self.launch: dict[str, int] = {}
        """``nnodes`` and ``nproc_per_node`` as options of Slurm give them."""
        self._take_launch(batch_options(text))
        with suppress(_ExitError, _ReturnError):
            self._follow(Parser(text, self._budget).parse())
        for name, body in list(self._functions.items()):
            if name not in self._called and not self.commands:
                with suppress(_ExitError, _ReturnError):
                    self._follow(body)

    def _follow(self, body: Iterable[Node]) -> None:
        for node in body:
            self._budget.spend()
            self._status(node, presumed=True)

    def _take_launch(self, options: dict[str, int]) -> None:
        """Keep options of Slurm, and the variables that it sets by them."""
        self.launch |= options
        for option, names in _TABLE["slurm_sets"].items():
            for name in names.split():
                if option in options:
                    self._values.held.setdefault(name, str(options[option]))

    # What a command comes to.

    def _status(self, node: Node, *, presumed: Verdict) -> Verdict:
        """Follow one command and return whether it succeeds; programs do as ``presumed``."""
        match node:
            case shell.Simple() | shell.Condition():
                return self._single(node, presumed)
            case shell.Not(inner):
                return negated(self._status(inner, presumed=None))
            case shell.Chain(links):
                return self._chain(links, presumed)
            case shell.Pipe(stages):
                self._follow(stages)
                return presumed
            case shell.Group(body):
                return self._last(body, presumed)
            case shell.If(branches):
                self._if(branches)
            case shell.Case(subject, arms):
                self._case(subject, arms)
            case shell.Loop():
                self._loop(node)
            case shell.Function(name, body):
                self._functions[name] = body
        return presumed

    def _single(self, node: shell.Simple | shell.Condition, presumed: Verdict) -> Verdict:
        with suppress(UnknownValueError):
            if isinstance(node, shell.Condition):
                return self._condition(node)
            return self._simple(node, presumed)
        return None

    def _last(self, body: Sequence[Node], presumed: Verdict) -> Verdict:
        """Follow commands and return how the last one ends."""
        verdict: Verdict = presumed
        for place, node in enumerate(body):
            verdict = self._status(node, presumed=presumed if place == len(body) - 1 else True)
        return verdict

    def _chain(self, links: Sequence[tuple[str, Node]], presumed: Verdict) -> Verdict:
        _, first = links[0]
        unset = self._values.taken_for_unset
        looks: set[str] = set() if unset is None else unset
        verdict = self._link(first, looks, presumed)
        for operator, node in links[1:]:
            wanted = operator == "&&"
            if verdict is None and shell.is_test(node):
                other = self._judging(node, looks)
                verdict = both(None, other) if wanted else negated(both(None, negated(other)))
            elif verdict is None:
                self._skip([node])
            elif verdict is wanted:
                verdict = self._link(node, looks, presumed)
            elif not shell.is_test(node):
                self._leave_out([node], looks)
        if unset is None:
            self._values.taken_for_unset = None
        return verdict

    def _link(self, node: Node, looks: set[str], presumed: Verdict) -> Verdict:
        """Judge a command of a chain, or follow it."""
        if shell.is_test(node):
            return self._judging(node, looks)
        return self._status(node, presumed=presumed)

    @contextmanager
    def _looking(self, looks: set[str]) -> Iterator[None]:
        """Take what nobody sets for empty, and gather it; end where that is not enough."""
        before, self._values.taken_for_unset = self._values.taken_for_unset, looks
        try:
            with suppress(UnknownValueError):
                yield
        finally:
            self._values.taken_for_unset = before

    def _judging(self, node: Node, looks: set[str]) -> Verdict:
        """Return the verdict on a condition; ``looks`` gathers what it takes for unset."""
        with self._looking(looks):
            return self._status(node, presumed=None)
        return None

    def _verdict(self, condition: Sequence[Node], looks: set[str]) -> Verdict:
        if not condition:
            return True
        self._follow(condition[:-1])
        return self._judging(condition[-1], looks)

    def _condition(self, node: shell.Condition) -> Verdict:
        """Judge ``[[ ... ]]`` and ``(( ... ))``."""
        if not node.words:
            return judge_sum(self._values.known(self._filled(node.arithmetic)))
        words = [self._values.known(self._values.text(word, self._output)) for word in node.words]
        return self._on_variables(words) if "-v" in words[:2] else judge(words, patterns=True)

    def _on_variables(self, words: Sequence[str]) -> Verdict:
        """Judge ``-v NAME``, alone or before further conditions."""
        place = words.index("-v")
        name = words[place + 1] if place + 1 < len(words) else ""
        is_set = "yes" if name in self._values.held else ""
        if not is_set and self._values.taken_for_unset is not None:
            self._values.taken_for_unset.add(name)
        return judge([*words[:place], "-n", is_set, *words[place + 2 :]], patterns=True)

    def _filled(self, text: str) -> str:
        """Fill variables into a sum of which one side may be compared with the other."""
        held = self._values.held

        def fill(match: re.Match[str]) -> str:
            name = match[1]
            value = held.get(name, str(len(self._values.arguments)) if name == "#" else "0")
            return value if isinstance(value, str) else "0"

        return re.sub(r"\$?\{?([A-Za-z_]\w*|#)\}?", fill, text, flags=re.ASCII)

    # Blocks.

    def _if(self, branches: Sequence[tuple[list[Node], list[Node]]]) -> None:
        looks: set[str] = set()
        for place, (condition, body) in enumerate(branches):
            verdict = self._verdict(condition, looks)
            if verdict is None:
                rest = [later for _, later in branches[place:]]
                started = next((later for later in rest if shell.trains(later)), None)
                for later in rest:
                    if later is not started:
                        self._skip(later)
                self._follow(started or [])
                return
            if verdict:
                for _, later in branches[place + 1 :]:
                    self._leave_out(later, looks)
                self._follow(body)
                return
            self._leave_out(body, looks)

    def _case(self, subject: Word, arms: Sequence[tuple[list[Word], list[Node]]]) -> None:
        looks: set[str] = set()
        taken = self._taken_arm(subject, arms, looks)
        for place, (_, body) in enumerate(arms):
            if taken is None:
                self._skip(body)
            elif place != taken:
                self._leave_out(body, looks)
        if taken is not None and taken < len(arms):
            self._follow(arms[taken][1])

    def _taken_arm(
        self, subject: Word, arms: Sequence[tuple[list[Word], list[Node]]], looks: set[str]
    ) -> int | None:
        """Return which arm a case takes, their number for none; None if that is not known."""
        with self._looking(looks):
            text = self._values.known(self._values.text(subject, self._output))
            for place, (patterns, _) in enumerate(arms):
                for pattern in patterns:
                    if matches(text, self._values.known(self._values.text(pattern, self._output))):
                        return place
            return len(arms)
        return None

    def _loop(self, node: shell.Loop) -> None:
        """Follow a loop that trains, once; any other is skipped."""
        values: list[str] = []
        if node.kind in {"while", "until"}:
            if self._verdict(node.condition, set()) is (node.kind == "until"):
                return
        elif node.name:
            values = [field for word in node.words for field in self._fields(word)]
            if not values:
                return
        if not shell.trains(node.body):
            self._skip(node.body)
            return
        if len(values) > 1:
            self.loops[node.name] = values
        if values:
            self._values.assign(node.name, values[0], more=False)
        self._follow(node.body)

    def _skip(self, body: Sequence[Node]) -> None:
        for name in shell.arguments_of(body):
            if name not in self.skipped:
                self.skipped.append(name)

    def _leave_out(self, body: Sequence[Node], looks: set[str]) -> None:
        """Note the arguments of a branch not taken, by the unset variables that decided it."""
        names = shell.arguments_of(body) if looks else []
        for variable in sorted(looks):
            held = self.left_out.setdefault(variable, [])
            held.extend(name for name in names if name not in held)

    # Simple commands.

    def _simple(self, node: shell.Simple, presumed: Verdict) -> Verdict:
        if shell.first_word(node) in {"[", "test"}:
            return self._test(node)
        words: list[str] = []
        for item in node.items:
            if isinstance(item, shell.Assign):
                value = self._values.text(item.word, self._output)
                if item.place:
                    self._values.assign_element(item.name, item.place, value)
                else:
                    self._values.assign(item.name, value, more=item.more)
            elif isinstance(item, shell.AssignArray):
                values = [field for word in item.words for field in self._fields(word)]
                self._values.assign(item.name, values, more=item.more)
            else:
                words.extend(self._fields(item))
        while words and words[0] in _PREFIXES:
            words = words[1:]
        if not words:
            return True
        if words[0] in {"true", "false", ":"}:
            return words[0] != "false"
        self._command(words, node)
        return presumed

    def _test(self, node: shell.Simple) -> Verdict:
        """Judge ``[ ... ]``; a variable that is not set is one empty word here."""
        items = [item for item in node.items if not isinstance(item, shell.ASSIGNMENTS)]
        texts = [self._values.text(item, self._output) for item in items[1:]]
        words = [self._values.known(text) for text in texts]
        words = words[:-1] if words and words[-1] == "]" else words
        return self._on_variables(words) if "-v" in words[:2] else judge(words, patterns=False)

    def _fields(self, word: Word) -> list[str]:
        fields = self._values.fields(word, self._output)
        self._words_seen += len(fields)
        if self._words_seen > _MAX_WORDS:
            what = f"more than {_MAX_WORDS} words, too many for a launch script"
            msg = f"the script expands to {what}"
            raise ConfigError(msg, key="config", allowed="Megatron-LM arguments")
        return fields

    def _output(self, body: Sequence[Node]) -> str | None:
        """Return what commands within ``$(...)`` print, None where it is not known."""
        commands: list[list[str]] = []
        for node in body:
            links = node.links if isinstance(node, shell.Chain) else [("", node)]
            simple = [part for _, part in links if isinstance(part, shell.Simple)]
            if len(simple) < len(links) or any(sign not in {"", "&&"} for sign, _ in links):
                return None
            for part in simple:
                words = [item for item in part.items if not isinstance(item, shell.ASSIGNMENTS)]
                if len(words) < len(part.items):
                    return None
                fields = [field for word in words for field in self._fields(word)]
                judged = self._values.taken_for_unset is not None
                commands.append([*map(self._values.known, fields)] if judged else fields)
        return printed(commands, self._values.folder)

    def _command(self, words: list[str], node: shell.Simple) -> None:
        name = words[0]
        if name in self._functions:
            self._call(name, words[1:])
        elif name in {"exit", "return"}:
            self._leave(name, words[1:])
        elif name in DECLARATIONS:
            return
        elif name == "unset":
            for variable in words[1:]:
                self._values.held.pop(variable, None)
        elif name == "set":
            if "--" in words:
                self._values.arguments = words[words.index("--") + 1 :]
        elif name == "shift":
            self._values.arguments = self._values.arguments[1:]
        elif name in {"source", "."}:
            self._read_file(words[1] if len(words) > 1 else "")
        elif name == "eval":
            self._run_nested(" ".join(words[1:]))
        elif name not in shell.UNRELATED:
            self._program(words, node)

    def _leave(self, name: str, arguments: Sequence[str]) -> None:
        """End the script where it says so, but not where it gives up for lack of a value."""
        if not arguments or arguments[0] == "0":
            raise _ExitError if name == "exit" else _ReturnError

    @contextmanager
    def _deeper(self, **own: Any) -> Iterator[bool]:
        """Follow what is nested, within bounds: a function or a file that returns ends alone.

        ``own`` are attributes that the variables have in it.
        """
        self._calls += 1
        before = {name: getattr(self._values, name) for name in own}
        vars(self._values).update(own)
        try:
            with suppress(_ReturnError):
                yield self._calls <= _MOST_CALLS
        finally:
            vars(self._values).update(before)
            self._calls -= 1

    def _call(self, name: str, arguments: list[str]) -> None:
        self._called.add(name)
        with self._deeper(arguments=arguments) as fits:
            if fits:
                self._follow(self._functions[name])

    def _program(self, words: list[str], node: shell.Simple) -> None:
        """Keep the words of a program, or follow the script that it is given."""
        program = words[0].rpartition("/")[2] if words else ""
        self._take_launch(_read(words[1:]) if program in _TABLE["launchers"].split() else {})
        names = [word.rpartition("/")[2] for word in words]
        for place in [place for place, word in enumerate(names) if word in _SHELLS]:
            rest = words[place + 1 :]
            flags = [at for at, word in enumerate(rest) if re.fullmatch(r"-[a-z]*c", word)]
            if flags and flags[0] + 1 < len(rest):
                self._run_nested(rest[flags[0] + 1])
                return
        if names[0] in _TAKERS:
            for document in node.documents:
                self._run_nested(self._values.text(document, self._output))
            if node.documents:
                return
            files = [word for word in words[1:] if re.search(r"\.(sh|bash|slurm|sbatch)$", word)]
            if files and self._read_file(files[0], needed=False):
                return
        elif len(words) == 1 and names[0].endswith(".sh") and self._read_file(words[0]):
            return
        whole = [word for word in words if ".py" in word and " --" in word]
        if whole:
            self._run_nested(whole[0])
        else:
            self.commands.append(words)

    def _run_nested(self, text: str) -> None:
        """Follow a script that is given as one text, as to ``eval`` or ``sh -c``."""
        try:
            with self._deeper() as fits:
                if fits:
                    self._follow(Parser(text, self._budget).parse())
        except ConfigError as error:
            if "never closed" not in str(error):
                raise
            self.commands.append(_split_quietly(text))

    def _read_file(self, name: str, *, needed: bool = True) -> bool:
        """Follow a script that is read by this one; return whether it is there."""
        folder = self._values.folder
        if folder is None:
            return False
        file = folder / name
        known = name and "${" not in name and UNKNOWN not in name
        if not known or not is_file(file):
            if needed and name not in self.not_read:
                self.not_read.append(name)
            return False
        self._files += 1
        with self._deeper(script=file) as fits:
            if fits and self._files <= _MOST_FILES:
                text = read_text(file)
                self._take_launch(batch_options(text))
                self._follow(Parser(text, self._budget).parse())
        return True


def _split_quietly(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


# What options of Slurm say about nodes and GPUs.

_LINE = re.compile(r"^#SBATCH[ \t]+([^\n#]*)", re.MULTILINE)
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,6})", re.ASCII)


def batch_options(text: str) -> dict[str, int]:
    """Return what ``#SBATCH`` lines give: ``nnodes`` and ``nproc_per_node``."""
    return _read([word for line in _LINE.findall(text) for word in line.split()])


def _read(words: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("-N") and word[2:].isdecimal():
            name, equals, value = "-N", "=", word[2:]
        target = _TABLE["slurm_options"].get(name)
        if target is None:
            continue
        if not equals:
            value = words[place + 1] if place + 1 < len(words) else ""
        count = _GPUS.fullmatch(value.rpartition("-")[2] if target == "nnodes" else value)
        # One task a node starts all of its GPUs by itself.
        if count is not None and not (name == "--ntasks-per-node" and count[1] == "1"):
            found[target] = int(count[1])
    return found
