"""A page of tables and interactive figures in one file that needs no network.

Figures are plain Plotly objects, mappings of ``data`` and ``layout``; plotly.js stands in the page
once, so that it opens anywhere.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from projector.distribution import install_command, package_version
from projector.errors import ConfigError
from projector.files import check_place, write_whole
from projector.report.pages.style import SCRIPT, STYLE

KEY = "html"
SUFFIXES = (".html", ".htm")

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
"""A page loads nothing, whatever plotly.js asks for."""

Figure = Mapping[str, Any]

LONG = 48
"""Characters from which a cell is broken into lines, so that columns behind it stay in sight."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is sorted by a click on a head."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Numbers stay numbers, so that they are sorted as such."""
    digits: Mapping[str, int] = field(default_factory=dict)
    """Head -> digits behind the point; the others are written whole."""


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of a page."""

    title: str
    text: str = ""
    table: Table | None = None
    figures: Sequence[tuple[str, Figure]] = ()
    """Name and figure; of several one is shown and the others can be chosen."""
    items: Sequence[str] = ()
    """A list below the text."""


def check_page(path: str | Path) -> None:
    """Refuse a page that could not be written, before anything is projected for it."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        msg = f"{target} is not a page: its name must end in {' or '.join(SUFFIXES)}"
        raise ConfigError(msg, key=KEY, value=str(target), allowed=list(SUFFIXES))
    check_place(target, key=KEY)
    try:
        import plotly  # noqa: F401  # whether it is there
    except ImportError:
        msg = f"--html needs plotly: {install_command('html')}"
        raise ConfigError(msg, key=KEY, value=str(target)) from None


def write_page(path: str | Path, title: str, lead: str, sections: Iterable[Section]) -> None:
    """Write a page; it appears whole or not at all."""
    check_page(path)
    write_whole(Path(path), page(title, lead, sections).encode(), key=KEY)


def page(title: str, lead: str, sections: Iterable[Section]) -> str:
    """Return the text of a page."""
    from plotly.offline import get_plotlyjs

    figures: list[list[Figure]] = []
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(lead)}</p>"]
    for section in sections:
        body.append(f"<h2>{escape(section.title)}</h2>")
        if section.text:
            body.append(f"<p>{escape(section.text)}</p>")
        if section.items:
            listed = "".join(f"<li>{escape(item)}</li>" for item in section.items)
            body.append(f"<ul>{listed}</ul>")
        if section.table is not None:
            body.append(_table(section.table))
        if section.figures:
            body.append(_slot(len(figures), [name for name, _ in section.figures]))
            figures.append([figure for _, figure in section.figures])
    body.append(f"<footer>projector {escape(package_version())}</footer>")
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<script>{get_plotlyjs()}</script></head><body>",
            *body,
            f'<script id="figures" type="application/json">{_json(figures)}</script>',
            f"<script>{SCRIPT}</script></body></html>",
            "",
        ]
    )


def _slot(index: int, names: Sequence[str]) -> str:
    choice = ""
    if len(names) > 1:
        options = "".join(
            f'<option value="{number}">{escape(name)}</option>' for number, name in enumerate(names)
        )
        choice = f'<select data-slot="{index}">{options}</select>'
    return f'{choice}<div class="figure" id="figure-{index}"></div>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.heads)
    rows = []
    for row in table.rows:
        cells = []
        for name, value in zip(table.heads, row, strict=True):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number:
                text = f"{value:,.{table.digits.get(name, 0)}f}"
                cells.append(f'<td class="number" data-value="{value!r}">{text}</td>')
            else:
                text = "" if value is None else escape(str(value))
                long = ' class="long"' if len(text) > LONG else ""
                cells.append(f"<td{long}>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    inner = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table>{inner}</table></div>'


def _json(value: Any) -> str:
    """Return JSON that is safe inside a script: no NaN or infinity, and no end of the script."""
    text = json.dumps(_plain(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        # Seven digits are more than a screen shows, and halve the page.
        return float(f"{value:.7g}") if np.isfinite(value) else None
    return value
