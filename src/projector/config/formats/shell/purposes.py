"""What the commands of a script are for, told by their words."""

import re
from collections.abc import Sequence

from projector.config.formats.shell import nodes as shell
from projector.config.formats.shell.nodes import Node, Word

_UNRELATED_TEXT = """
alias apt apt-get awk basename bc cat cd chmod chown clear command cp curl cut date df dirname du
echo find git grep hash head hostname kill ln ls lscpu lsof make mkdir mktemp module mv nproc
nvidia-smi pip pip3 pkill popd printf ps pushd pwd read rm rmdir rocm-smi rsync scp sed shopt
sleep sort sync tail tar tee touch tr trap type ulimit uname uniq unzip wait wc wget which xargs
zip
"""
UNRELATED = frozenset(_UNRELATED_TEXT.split())
"""Programs that train nothing: their words are no arguments of a training."""

ASSIGNMENTS = (shell.Assign, shell.AssignArray)
_ARGUMENT = re.compile(r"(?<![^\s=\"'])--[A-Za-z][\w-]*")


def is_test(node: Node) -> bool:
    """Whether a command is there to be judged, not to do something."""
    if isinstance(node, shell.Not):
        return is_test(node.node)
    if isinstance(node, shell.Group):
        return len(node.body) == 1 and is_test(node.body[0])
    if isinstance(node, shell.Chain):
        return all(is_test(part) for _, part in node.links)
    return isinstance(node, shell.Condition) or shell.first_word(node) in {"[", "test"}


_TRAINING = re.compile(r"(^|/)(torchrun|accelerate|deepspeed)$|\.py$|^torch\.distributed\.")


def trains(body: Sequence[Node]) -> bool:
    """Whether commands start a Python program, whatever it is."""
    return any(
        _TRAINING.search(shell.literal(item))
        for command in shell.simple_commands(list(body))
        if shell.first_word(command) not in UNRELATED
        for item in command.items
        if not isinstance(item, ASSIGNMENTS)
    )


def arguments_of(body: Sequence[Node]) -> list[str]:
    """Return the arguments that commands would pass, each once."""
    found: dict[str, None] = {}
    for command in shell.simple_commands(list(body)):
        if shell.first_word(command) in UNRELATED:
            continue
        for item in command.items:
            for word in _words_of(item):
                found.update(dict.fromkeys(_ARGUMENT.findall(shell.literal(word))))
    return list(found)


def _words_of(item: Word | shell.Assign | shell.AssignArray) -> Sequence[Word]:
    if isinstance(item, shell.Assign):
        return (item.word,)
    return item.words if isinstance(item, shell.AssignArray) else (item,)
