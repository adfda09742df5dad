"""Lines of reports: entries that stay whole, and text that is made for copying."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Entries:
    """Short texts side by side; a line ends between two of them and not within one."""

    texts: tuple[Text, ...]
    gap: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines for the width at hand."""
        line = Text()
        for text in self.texts:
            if line and line.cell_len + self.gap + text.cell_len > options.max_width:
                yield line
                line = Text()
            line.append(" " * self.gap if line else "").append_text(text)
        yield line


def entries(texts: Iterable[str | Text], style: str = "") -> Entries:
    """Return short texts side by side."""
    return Entries(tuple(each if isinstance(each, Text) else Text(each, style) for each in texts))


def pairs(named: Iterable[tuple[str, str]], name_style: str = "dim") -> Entries:
    """Return names, each with its value."""
    return Entries(
        tuple(Text(f"{name} ", name_style).append(value, "default") for name, value in named)
    )


@dataclass(frozen=True, slots=True)
class Pasted:
    """Text that is made for copying: one line, however long it is.

    A terminal shows a long line below itself and copies it as one. A part of a report has to stand
    by itself for this: what is padded is cut to the width.
    """

    text: str
    indent: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line."""
        yield Segment(" " * self.indent + self.text)
        yield Segment.line()


def assignment(name: str, value: Any) -> str:
    """Write an override as a shell takes it: with quotes where it has other meanings there."""
    return shlex.quote(f"{name}={_value(value)}")


def assignments(overrides: Mapping[str, Any]) -> str:
    """Write overrides as one piece of a command."""
    return " ".join(assignment(name, value) for name, value in overrides.items())


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_value(each)}' for name, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_value, value))}]"
    return str(value)
