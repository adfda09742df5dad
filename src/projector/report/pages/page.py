"""A document as a page of tables and interactive figures, one file that needs no network.

Figures are plain Plotly objects, mappings of ``data`` and ``layout``; plotly.js stands in the page
once, so that it opens anywhere.
"""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from projector.distribution import install_command, package_version
from projector.errors import ConfigError, shown
from projector.files import check_place, write_whole
from projector.report.document import Document, Figure, Media, Table
from projector.report.figures.figure import short_number

GRID = "#E6E6E6"
"""Colour of the lines behind a figure."""

KEY = "html"
SUFFIXES = (".html", ".htm")

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
"""A page loads nothing, whatever plotly.js asks for."""

LONG = 48
"""Characters from which a cell is broken into lines, so that columns behind it stay in sight."""


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


def write_page(path: str | Path, document: Document) -> None:
    """Write a page; it appears whole or not at all."""
    check_page(path)
    write_whole(Path(path), page(document).encode(), key=KEY)


def page(document: Document) -> str:
    """Return the text of a page."""
    from plotly.offline import get_plotlyjs

    figures: list[list[Figure]] = []
    title = document.title
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(document.lead)}</p>"]
    for section in document.sections:
        if Media.PAGE not in section.media:
            continue
        body.append(f"<h2>{escape(section.title)}</h2>")
        if section.lead or section.text:
            body.append(f"<p>{escape(f'{section.lead} {section.text}'.strip())}</p>")
        if section.items:
            listed = "".join(f"<li>{escape(item)}</li>" for item in section.items)
            body.append(f"<ul>{listed}</ul>")
        if section.table is not None:
            body.append(_table(section.table))
        if section.figures:
            body.append(_slot(len(figures), [name for name, _ in section.figures]))
            figures.append([make() for _, make in section.figures])
    body.append(f"<footer>projector {escape(package_version())}</footer>")
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}</title><style>\n{_beside('page.css')}</style>",
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<script>{get_plotlyjs()}</script></head><body>",
            *body,
            f'<script id="figures" type="application/json">{_json(figures)}</script>',
            f"<script>\n{_beside('page.js')}</script></body></html>",
            "",
        ]
    )


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _slot(index: int, names: Sequence[str]) -> str:
    choice = ""
    if len(names) > 1:
        options = "".join(
            f'<option value="{number}">{escape(name)}</option>' for number, name in enumerate(names)
        )
        choice = f'<select data-slot="{index}">{options}</select>'
    return f'{choice}<div class="figure" id="figure-{index}"></div>'


def _table(table: Table) -> str:
    columns = table.seen(Media.PAGE)
    head = "".join(f"<th>{escape(column.name)}</th>" for column in columns)
    rows = []
    for row in table.rows(Media.PAGE):
        cells = []
        for column, value in zip(columns, row, strict=True):
            if isinstance(value, int | float) and not isinstance(value, bool):
                text = f"{value:,.{column.digits}f}"
                cells.append(f'<td class="number" data-value="{shown(value)}">{text}</td>')
            elif column.kind == "copied":
                cells.append(f'<td><button title="{escape(value)}">copy</button></td>')
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


def scatter(mode: str, name: str, x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """Return points or a line (``mode``) of a figure."""
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, **more}


def stacked_bars(
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    group: str = "",
    *,
    flat: bool = False,
) -> list[dict[str, Any]]:
    """Return bars on each other at each name, lying ``flat`` or upright.

    Parts of a ``group`` stand beside those of none and have its name behind their own.
    """
    across, along = ("y", "x") if flat else ("x", "y")
    return [
        {
            "type": "bar",
            "orientation": "h" if flat else "v",
            "name": f"{part} {group}".rstrip(),
            across: list(map(said, names)),
            along: list(values),
            "offsetgroup": group or "time",
            "marker": {"color": colours[part]},
        }
        for part, values in parts.items()
        if any(values)
    ]


def band(values: Any, low: Any, high: Any, width: int = 0) -> dict[str, Any]:
    """Return bars of values that lie between a lower and an upper end."""
    ends = {"array": np.subtract(high, values), "arrayminus": np.subtract(values, low)}
    return {"type": "data", "symmetric": False, "thickness": 1, "width": width, **ends}


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis over a range, with ticks of one size."""
    ticks = round_ticks(low, high, room=1.15)
    low, high = low / 1.15, high * 1.15
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [short_number(tick) for tick in ticks],
    }


def round_ticks(low: float, high: float, room: float = 1.0) -> list[float]:
    """Return round numbers in a range and in the room around it, few enough to be read."""
    steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0) if high < 6.0 * low else (1.0, 2.0, 5.0)
    low, high = low / room, high * room
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def plain_layout(x: str, y: str) -> dict[str, Any]:
    """Return the layout of a figure with two labelled axes."""
    axis: dict[str, Any] = {"gridcolor": GRID, "zerolinecolor": GRID, "automargin": True}
    return {
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "font": {"color": "#222222"},
        "margin": {"t": 40, "r": 40},
        # Upright at the right it never lies on the legend.
        "modebar": {"orientation": "v"},
        "legend": {"orientation": "h", "y": 1.07, "yanchor": "bottom", "itemsizing": "constant"},
    }


def said(text: str) -> str:
    """Return a name that Plotly shows letter by letter; it reads tags in the texts of figures."""
    return escape(text, quote=False)


def named_axis(layout: dict[str, Any], axis: str) -> None:
    """Make places of an axis names: numbers and dates among them would be set apart as such."""
    layout[axis] |= {"type": "category"}
