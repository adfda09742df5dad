"""Tables of results elsewhere: as data frames of pandas, and as HTML in a notebook."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from projector.distribution import install_command
from projector.errors import UnsupportedError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]
    import pyarrow as pa


def to_pandas(table: "pa.Table") -> "pd.DataFrame":
    """Return a table as a data frame."""
    try:
        import pandas  # noqa: ICN001, F401
    except ImportError:
        msg = f"pandas is not installed; install it ({install_command('pandas')}) or use to_arrow()"
        raise UnsupportedError(msg, key="pandas") from None
    return table.to_pandas()


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
