"""A report as sections, tables and charts, made once from a result.

`terminal.console` prints it and `pages.page` makes a page of it. What a column is called, how its
values are written and where it stands is said here once for all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType

Kind = Literal["number", "word", "text", "bar", "copied"]
"""What is in a column: right-aligned numbers, words on one line, folded text, bars of a share, text
that a page copies at a click."""

Figure = Mapping[str, Any]
"""A Plotly object: ``data`` and ``layout``."""


class Media(Flag):
    """Where a part of a report is shown."""

    TERMINAL = 1
    PAGE = 2
    ALL = TERMINAL | PAGE


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    values: Sequence[Any]
    """In the unit of the name; None where nothing is known."""
    write: Callable[[Any], str] = str
    """How a terminal writes a value."""
    digits: int = 0
    """Digits behind the point of a number of a page, which sorts by the whole number."""
    kind: Kind = "number"
    short: str = ""
    """Name where there is little room: in a terminal."""
    media: Media = Media.ALL
    style: str = ""
    """Of the cells in a terminal."""


def words(name: str, values: Sequence[Any], **more: Any) -> Column:
    """Return a column of words, which stay on one line."""
    return Column(name, values, kind="word", **more)


def prose(name: str, values: Sequence[Any], **more: Any) -> Column:
    """Return a column of text, which is folded where there is little room."""
    return Column(name, values, kind="text", **more)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns beside each other; one of which nothing is known is left out."""

    columns: Sequence[Column]
    styles: Mapping[int, str] = field(default_factory=dict)
    """Row -> its style in a terminal."""
    gap: int = 2
    """Blanks between columns of a terminal."""
    brief: Sequence[int] | None = None
    """Rows that a terminal shows, where these are not all."""

    def seen(self, media: Media) -> list[Column]:
        """Return the columns that one medium shows."""
        shown = (each for each in self.columns if media in each.media)
        return [each for each in shown if any(value is not None for value in each.values)]

    def rows(self, media: Media) -> list[tuple[Any, ...]]:
        """Return the values of each row."""
        rows = list(zip(*(each.values for each in self.seen(media)), strict=True))
        return rows if self.brief is None or media is Media.PAGE else [rows[i] for i in self.brief]


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of a report."""

    title: str
    text: str = ""
    """What a page says below the title."""
    table: Table | None = None
    items: Sequence[str] = ()
    """Sentences, a list on a page."""
    note: str = ""
    """What a terminal says beside the title, in few words."""
    lead: str = ""
    """What all media say below the title."""
    figures: Sequence[tuple[str, Callable[[], Figure]]] = ()
    """Name and chart of a page; of several one is shown and the others can be chosen."""
    closing: "Sequence[RenderableType]" = ()
    """What only a terminal shows, below the table."""
    media: Media = Media.ALL


@dataclass(frozen=True, slots=True)
class Document:
    """A report: what stands above its sections, and these."""

    title: str
    lead: str
    sections: Sequence[Section]
    head: "Sequence[RenderableType]" = ()
    """What a terminal shows instead of title and lead."""
