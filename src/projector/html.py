"""The small tables that results show in a notebook."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def html_table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a caption and one table row for each mapping, numbers to four digits."""
    if not rows:
        return f"<p>{escape(title)}</p>"
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
