"""Tables of results elsewhere: data frames of pandas, CSV, and HTML in a notebook."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.distribution import install_command
from projector.envelope import flatten
from projector.errors import UnsupportedError
from projector.files import check_place, written_whole

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


class Frame:
    """A result that is a table too: in a notebook, for pandas and for a spreadsheet.

    A class says its ``records`` or its `tables`; each follows from the other.
    """

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows; what they nest becomes dotted columns, and lists become text."""
        return [row for table in self.tables() for row in table.to_pylist()]

    def tables(self) -> "Iterator[pa.Table]":
        """Yield the rows as tables of Arrow."""
        yield table_of_rows(self.records)

    def to_arrow(self) -> "pa.Table":
        """Return the rows as one table of Arrow."""
        return next(self.tables())

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a data frame.

        Raises:
            UnsupportedError: If pandas is not installed.
        """
        return to_pandas(self.to_arrow())

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as CSV, one after the other, with a line of names first.

        Raises:
            ConfigError: If the file cannot be written.
        """
        from pyarrow import csv

        check_place(path, key="csv")
        first = True
        with written_whole(Path(path), key="csv") as stream:
            for table in self.tables():
                csv.write_csv(table, stream, csv.WriteOptions(include_header=first))
                first = False
            if first:
                csv.write_csv(self.to_arrow(), stream)

    def _repr_html_(self) -> str:
        first = next(iter(self.tables()), None)
        return html_table(repr(self), [] if first is None else first[:NOTEBOOK_ROWS].to_pylist())


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    """Return rows as one table of Arrow; what they nest becomes dotted columns."""
    import pyarrow as pa

    flat = [
        {name.removeprefix("overrides."): value for name, value in flatten(row).items()}
        for row in rows
    ]
    names = dict.fromkeys(name for row in flat for name in row)
    return pa.table({name: _column([row.get(name) for row in flat]) for name in names})


NOTEBOOK_ROWS = 20
"""Rows that a notebook shows."""


def _column(values: Sequence[Any]) -> list[Any]:
    """Return values of one type: numbers, switches or text."""
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) <= 1 and kinds <= {int, float, str, bool}:
        return list(values)
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def html_table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a caption and one table row for each mapping, numbers to four digits.

    What a row nests is left out.
    """
    if not rows:
        return f"<p>{escape(title)}</p>"
    rows = [
        {name: value for name, value in row.items() if not isinstance(value, Mapping | list)}
        for row in rows
    ]
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
