"""Reports of single kernels: attentions and matrix multiplications."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.formats.shape_table import ShapeRow, read_extent, shape_rows
from projector.config.resources import hardware_table
from projector.errors import ConfigError
from projector.report.terminal.grid import Grid, bar, heading, milliseconds, percent, section
from projector.single.attention import EXTENTS, AttentionProjection
from projector.single.gemm import GemmList
from projector.single.gemm_words import GemmReport
from projector.units import MICROSECOND, TERA

EXPLAINED = 8
"""Shapes whose terms are shown, the first ones; --json has all."""

COLUMNS = ("batch", "heads", "seq", "seq_kv", "kv_heads", "head_dim", "v_head_dim", "window")
"""Columns of a table of shapes; the first three are required."""

_TERMS: Mapping[str, list[str]] = hardware_table("report_words.yaml")["attention_terms"]


def read_shapes(
    shape: Sequence[str], table: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `project_attention` from a shape or a table, and from options."""
    given = dict(options)
    given["device"] = given.pop("gpu")
    if (table is None) == (not shape):
        msg = "give BATCH HEADS SEQ or --csv FILE, one of both"
        raise ConfigError(msg, key="shape", value=list(shape) or None, allowed="BATCH HEADS SEQ")
    if table is None:
        if len(shape) not in {3, 4}:
            msg = f"a shape is BATCH HEADS SEQ [SEQ_KV], got {len(shape)} numbers"
            raise ConfigError(msg, key="shape", value=list(shape), allowed="3 or 4 integers")
        extents = (read_extent(*pair) for pair in zip(COLUMNS, shape, strict=False))
        return {**given, **dict(zip(("batch", "heads", "seq_q", "seq_kv"), extents, strict=False))}
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    for row in shape_rows(table, COLUMNS[:3], COLUMNS[3:]):
        for name in COLUMNS:
            columns[name].append(_extent(row, name, given))
    arrays = {name: np.array(values) for name, values in columns.items()}
    return {**given, "seq_q": arrays.pop("seq"), **arrays}


def _extent(row: ShapeRow, name: str, options: Mapping[str, Any]) -> int:
    """Return one number of a line: its own, that of the options, or one derived from others."""
    if not row.text(name):
        value = options.get(name)
        if value is not None:
            return int(value)
        other = {"seq_kv": "seq", "kv_heads": "heads", "v_head_dim": "head_dim"}.get(name)
        if other is not None:
            return _extent(row, other, options)
    return row.extent(name)


def attention_report(
    projection: AttentionProjection, *, explain: bool, packed_s: float | None
) -> list[RenderableType]:
    """Return the shapes with their times, and with ``explain`` the terms of the first ones."""
    columns = (projection.extents, projection.window, projection.time_s, projection.flop_per_s)
    table = Grid.of(
        "attentions",
        zip(*(column.tolist() for column in columns), projection.bound, strict=True),
        window=lambda keys: keys or "-",
        tera=lambda rate: f"{rate / TERA:,.1f}",
        share=lambda rate: percent(rate / projection.peak_flop_per_s),
    )
    parts = section(title(projection), _note(projection, packed_s), table)
    if explain:
        for row in range(min(len(projection), EXPLAINED)):
            parts += _explained(projection, row)
    return parts


def title(projection: AttentionProjection) -> str:
    """Return a title that names the projection in one line."""
    way = "backward" if projection.backward else "forward"
    mask = "causal" if projection.causal else "full"
    return f"{projection.device.name}, {projection.impl}, {projection.dtype}, {mask} {way}"


def _note(projection: AttentionProjection, packed_s: float | None) -> str:
    total = f"{milliseconds(float(projection.time_s.sum()))} ms in turn"
    packed = "" if packed_s is None else f", {milliseconds(packed_s)} ms as one kernel"
    known = f"{projection.basis}, {projection.band.words} for 68 %"
    return f"at {projection.clock_mhz:,.0f} MHz; {total}{packed}; {known}"


def _explained(projection: AttentionProjection, row: int) -> list[RenderableType]:
    terms = {name: float(column[row]) for name, column in projection.terms.items()}
    time_s = terms["time_s"]
    table = Grid.of(
        "attention_terms", _TERMS.items(), time_s=lambda row: terms[row[0]],
        share=lambda row: terms[row[0]] / time_s if time_s else 0.0,
    )  # fmt: skip
    shape = ", ".join(
        f"{name} {value}" for name, value in zip(EXTENTS, projection.extents[row], strict=True)
    )
    waves = f"{terms['groups']:,.0f} work-groups in {terms['waves']:,.2f} waves"
    tile = f"tiles of {terms['rows']:g} x {terms['columns']:g}"
    steps = f"{terms['steps_per_group']:,.1f} steps each"
    moved = f"{(terms['bytes'] + terms['pass_bytes']) * 1e-9:,.3f} GB"
    note = f"{shape}: {projection.bound[row]} limits; {waves}, {tile}, {steps}; {moved}"
    return section(f"Row {row + 1}", note, table)


# Matrix multiplications as tables: times, and the parts of each time.
MANY = 200
"""Rows that a table shows of a longer list."""

_NAMES: Mapping[str, str] = hardware_table("report_words.yaml")["gemm_terms"]

_FACTORS: Mapping[str, str] = hardware_table("report_words.yaml")["gemm_factors"]


def gemm_report(gemms: GemmList, *, explain: bool) -> list[RenderableType]:
    """Return the table of times, and with ``explain`` every term of each GEMM."""
    case = gemms.case
    title = f"GEMM, {case.dtype}, {case.device.name}"
    libraries = " and ".join(dict.fromkeys(gemms.libraries))
    note = f"model {case.model}, library {libraries}, run {case.run}, layout {gemms.layout}"
    if gemms.band.words:
        note += f"; times {gemms.band.words} for 68 %"
    table = Grid.of(
        "gemms",
        enumerate(gemms.reports[:MANY]),
        us=lambda row: _us(gemms.total_s(row)),
        tflops=lambda row: f"{gemms.flop_per_s(row) / TERA:,.1f}",
    )
    rest = len(gemms.reports) - MANY
    if rest > 0:
        note += f"; {rest:,} more rows in --json"
    parts = section(title, note, table)
    if explain:
        for row, report in enumerate(gemms.reports[:MANY]):
            parts += _explained_products(report, gemms.copy_s[row], gemms.total_s(row))
    return parts


def _explained_products(report: GemmReport, copy_s: float, total_s: float) -> list[RenderableType]:
    seconds = {name: value for name, value in report.terms.items() if name.endswith("_s")}
    if copy_s:
        seconds["copy_s"] = copy_s
    longest = max(seconds.values(), default=0.0) or 1.0
    terms = Grid("=term", "us", "|")
    for name, value in seconds.items():
        terms.add_row(_NAMES.get(name, "transposed copies"), _us(value), bar(value / longest))
    facts = Grid("=", "", header=False)
    for name, value in report.terms.items():
        if not name.endswith("_s"):
            facts.add_row(name.replace("_", " "), f"{value:,.0f}")
    factors = Grid("=made of", "")
    for name, value in report.factors.items():
        text = f"{_us(value)} us" if name == "ideal_s" else f"x {value:.3f}"
        factors.add_row(_FACTORS[name], text)
    if copy_s:
        factors.add_row("transposed copies", f"+ {_us(copy_s)} us")
    size = f"{report.m:,} x {report.n:,} x {report.k:,}"
    limit = f"{_us(total_s)} us, bound by {report.bound}"
    return [
        heading(size, limit),
        *[Padding(Text(each), (0, 0, 1, 2)) for each in report.explanation],
        *section("Terms", "side by side or one after another", terms),
        *section("Counts", "", facts),
        *section("Time", "the product of", factors),
    ]


def _us(seconds: float) -> str:
    value = seconds / MICROSECOND
    return f"{value:,.1f}" if value >= 100.0 else f"{value:,.3f}"
