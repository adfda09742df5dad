"""What names in a trace say of an operation: modules, operators, process groups."""

import re
from collections.abc import Iterable
from functools import cache

from projector.config import resources
from projector.config._base import Config


class Pattern(Config):
    """A regular expression, and the label that it stands for."""

    pattern: str
    label: str
    source: str


class GroupPattern(Config):
    """A regular expression over the name of a process group, and the term of the step."""

    pattern: str
    category: str
    source: str


class OperationNames(Config):
    """``hardware/trace_operations.yaml``."""

    modules: list[Pattern]
    operators: list[Pattern]
    groups: list[GroupPattern]
    collectives: list[Pattern]
    sources: dict[str, str]


@cache
def load_operation_names() -> OperationNames:
    """Return the shipped table of names."""
    return resources.shipped_table(OperationNames, "trace_operations.yaml")


_PREFIXES = re.compile(r"^(nn\.Module:\s*|forward:|backward:|recompute:|f_|b_)")
_PATH = re.compile(r"[./ :]+")


def label_of(text: str, labels: Iterable[str]) -> str | None:
    """Return the label of the models that the name of an operation, module or range is.

    Parameters
    ----------
    text : str
        Such as ``attention.qkv``, ``layers.3.self_attn.q_proj`` or ``nn.Module: q_proj``.
    labels : iterable of str
        Those that the job has.
    """
    known = set(labels)
    plain = _PREFIXES.sub("", text)
    if plain in known:
        return plain
    for part in reversed([part for part in _PATH.split(plain) if part and not part.isdigit()]):
        for pattern in load_operation_names().modules:
            if pattern.label in known and re.search(pattern.pattern, part, re.IGNORECASE):
                return pattern.label
    return None


def label_in(text: str, labels: Iterable[str]) -> str | None:
    """Return the label that stands as a word in the name of a kernel, as our timelines have it."""
    known = set(labels)
    return next((word for word in text.split() if "." in word and word in known), None)


def kind_of_operator(text: str) -> str | None:
    """Return the last part of a label that an operator's name speaks of, such as ``norm``."""
    for pattern in load_operation_names().operators:
        if re.search(pattern.pattern, text, re.IGNORECASE):
            return pattern.label
    return None


def category_of_group(text: str) -> str:
    """Return the term of the step whose process group has a name; empty if none is recognised."""
    for pattern in load_operation_names().groups:
        if re.search(pattern.pattern, text, re.IGNORECASE):
            return pattern.category
    return ""


_SEPARATORS = re.compile(r"[^a-z0-9]+")


def collective_of(text: str) -> str:
    """Return the operation of the models that a collective or its kernel is; empty if unknown."""
    plain = _SEPARATORS.sub("", text.lower())
    for pattern in load_operation_names().collectives:
        if re.search(pattern.pattern, plain):
            return pattern.label
    return ""
