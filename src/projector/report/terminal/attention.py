"""Attention kernels on the terminal, and the shapes that a table of them lists."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType

from projector.config.formats.shape_table import ShapeRow, read_extent, shape_rows
from projector.errors import ConfigError
from projector.report.terminal.tables import add_row, bar, grid, milliseconds, percent, section
from projector.single.attention import EXTENTS, AttentionProjection

EXPLAINED = 8
"""Shapes whose terms are shown, the first ones; --json has all."""

COLUMNS = ("batch", "heads", "seq", "seq_kv", "kv_heads", "head_dim", "v_head_dim", "window")
"""Columns of a table of shapes; the first three are required."""

_TERMS = (
    ("matrix_s", "matrix", "products of whole tiles at the efficiency of the kernel"),
    ("softmax_s", "softmax", "exponentials and their vector work that the products do not hide"),
    ("mask_s", "mask", "tiles that are partly masked"),
    ("tile_s", "tiles", "start and finish of the work-groups"),
    ("idle_s", "idle", "units without work: the last wave, and uneven ends"),
    ("atomics_s", "atomics", "adds of dQ, beside the work-groups"),
    ("memory_s", "memory", "operands from and to memory, beside the work-groups"),
    ("passes_s", "passes", "what goes through memory before and after"),
    ("start_s", "start", "fixed time of the kernels"),
)


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
    table = grid(
        "batch",
        "heads",
        "kv",
        "queries",
        "keys",
        "d",
        "d_v",
        "window",
        "ms",
        "TFLOP/s",
        "of peak",
        "=bound",
    )
    for row in range(len(projection)):
        rate = float(projection.flop_per_s[row])
        batch, heads, kv, queries, keys, width, v_width = (
            int(extent) for extent in projection.extents[row]
        )
        window = int(projection.window[row])
        add_row(
            table,
            f"{batch:,}",
            f"{heads:,}",
            f"{kv:,}",
            f"{queries:,}",
            f"{keys:,}",
            f"{width:,}",
            f"{v_width:,}",
            f"{window:,}" if window else "-",
            milliseconds(float(projection.time_s[row])),
            f"{rate * 1e-12:,.1f}",
            percent(rate / projection.peak_flop_per_s),
            projection.bound[row],
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
    table = grid("=term", "ms", "of time", "| ", "<what")
    for name, label, meaning in _TERMS:
        share = terms[name] / time_s if time_s else 0.0
        add_row(table, label, milliseconds(terms[name]), percent(share), bar(share), meaning)
    shape = ", ".join(
        f"{name} {value}" for name, value in zip(EXTENTS, projection.extents[row], strict=True)
    )
    waves = f"{terms['groups']:,.0f} work-groups in {terms['waves']:,.2f} waves"
    tile = f"tiles of {terms['rows']:g} x {terms['columns']:g}"
    steps = f"{terms['steps_per_group']:,.1f} steps each"
    moved = f"{(terms['bytes'] + terms['pass_bytes']) * 1e-9:,.3f} GB"
    note = f"{shape}: {projection.bound[row]} limits; {waves}, {tile}, {steps}; {moved}"
    return section(f"Row {row + 1}", note, table)
