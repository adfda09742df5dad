"""What rows say in words, as columns: ``hardware/table_words.yaml``.

A row that has such a column says it there; of any other row the words are read. So a table is
normalised once (`columns_of`), and one that is not has the same outcomes.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import ClassVar

from pydantic import Field

from projector.config._base import Config
from projector.config.resources import shipped_table
from projector.validate.kind import Row, integer
from projector.validate.names import KNOWN_TEXTS, Loop, source_of, vendor_name


class Look(Config):
    """One place where a row may say something."""

    of: str
    """Columns, apart by blanks; their texts are joined by `BETWEEN`."""
    find: dict[str, str]
    """Pattern -> what it means, the first that is found."""
    erase: str = ""
    """Taken out of the text before."""
    words: dict[str, str] = Field(default_factory=dict)
    """What was found, in lower case -> name; what it does not have is passed over."""
    every: bool = False
    """Whether all places count, apart by commas."""

    def found(self, text: str) -> str:
        """Return what the text says, ``""`` for nothing."""
        bare = re.sub(self.erase, "", text) if self.erase else text
        for pattern, value in self.find.items():
            matches = list(re.finditer(pattern, bare)) if self.every else [re.search(pattern, bare)]
            named = [self._named(match.expand(value)) for match in matches if match]
            if any(named):
                return ",".join(dict.fromkeys(filter(None, named)))
        return ""

    def _named(self, text: str) -> str:
        plain = text.lower().strip(" ;,:()").replace("-", "_")
        return self.words.get(plain, "") if self.words else text


class Column(Config):
    """A column, and the words that it stands for."""

    aliases: ClassVar[Mapping[str, str]] = {"from": "looks"}

    means: str
    looks: tuple[Look, ...]


class Words(Config):
    """Columns of some kinds of tables."""

    tables: tuple[str, ...]
    columns: dict[str, Column]


class TableWords(Config):
    """``hardware/table_words.yaml``."""

    groups: tuple[Words, ...]


BETWEEN = " | "


load_table_words = shipped_table(TableWords, "table_words.yaml")


@cache
def _columns() -> dict[str, Column]:
    groups = load_table_words().groups
    return {name: column for group in groups for name, column in group.columns.items()}


def columns_of(kind: str) -> tuple[str, ...]:
    """Return the columns that stand for words in a table of a kind."""
    groups = [group.columns for group in load_table_words().groups if kind in group.tables]
    return tuple(name for columns in groups for name in columns if not name.startswith("_"))


def said(row: Row, column: str) -> str:
    """Return what a row says in a column, or where it has none in words; ``""`` for nothing."""
    text = row.get(column)
    if text is None and column in _columns():
        looks = _columns()[column].looks
        parts = ([_text(row, part) for part in look.of.split()] for look in looks)
        return _found(column, tuple(map(BETWEEN.join, parts)))
    return (text or "").strip()


def number_said(row: Row, column: str, default: int = 0) -> int:
    """Return a whole number that a row says, ``default`` where it says none."""
    value = integer({column: said(row, column)}, column)
    return default if value is None else value


def named_loop(row: Row, column: str, loops: Mapping[str, Loop]) -> Loop | None:
    """Return the loop that a row names in a column, None where it names none."""
    name = said(row, column)
    if name and name not in loops:
        raise ValueError(f"{column} must be one of {', '.join(loops)}, got {name!r}")
    return loops.get(name)


def _text(row: Row, column: str) -> str:
    if column == "origin":
        return source_of(row.get("source") or "")
    if column == "vendor":
        return vendor_name(row.get("gpu") or "")
    return said(row, column)


@lru_cache(maxsize=KNOWN_TEXTS)
def _found(column: str, texts: tuple[str, ...]) -> str:
    looks = zip(_columns()[column].looks, texts, strict=True)
    return next(filter(None, (look.found(text) for look, text in looks)), "")
