"""A block laid out: the layers of one stage in one direction, data parallelism beside them.

A block is laid out once for all microbatches for which it takes as long. Its columns are arrays, so
that many of them are put in a line at once.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Flags, Floats, Ints
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline import columns
from projector.projection.timeline.columns import NONE
from projector.projection.timeline.layers import (
    COPIES_AFTER,
    COPIES_BEFORE,
    DATA_PARALLEL,
    LAUNCH,
    PLAIN,
    SLOWS,
    WAITS,
    Layer,
    Row,
)
from projector.projection.timeline.traffic import BlockTraffic

TERM_TRACKS = tuple(
    {
        "tp_comm": columns.TP,
        "cp_comm": columns.CP,
        "ep_comm": columns.EP,
        "dp_comm": columns.DP,
        "launch": columns.WAIT,
    }.get(name, columns.COMPUTE)
    for name in BREAKDOWN
)
"""Track of what a block takes of each term, where it is not told layer by layer."""


class Edge(NamedTuple):
    """Where rows begin or end: a share of the way from one boundary of pieces to another."""

    low: Ints
    high: Ints
    share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Pieces, rows and layers of one block, in order; seconds, and picoseconds of none yet."""

    seconds: Floats
    """float64[pieces]."""
    term: Ints
    row: Ints
    """Row that each piece is added to the step for."""
    inside: Ints
    """Row of compute that takes longer by the piece; `NONE` elsewhere."""
    begin: Edge
    """Of each row, boundaries counted from that before the first piece."""
    end: Edge
    at_s: Floats
    """float64[rows, 2]: begin and end from the start of the step, of gathers that run ahead of
    the pipeline; NaN elsewhere."""
    label: Ints
    track: Ints
    row_term: Ints
    phase: Ints
    layer: Ints
    """Of the layers of the stage; `NONE` outside."""
    table_row: Ints
    recompute: Flags
    launches: Floats
    flop: Floats
    bytes: Floats
    alone_s: Floats
    host_s: Floats
    """float64[rows, 3]: preparation, launch and its end, from when the host begins with the layer;
    NaN without a launch."""
    host_layer: Ints
    """Layer of the block, in order, that each row belongs to."""
    layer_first: Ints
    """int64[layers + 1]: first piece of each layer of the block, in order."""
    layer_label: Ints
    layer_number: Ints
    """int64[layers]: of the layers of the stage; `NONE` for what is no transformer layer."""
    lead_s: Floats
    busy_s: Floats
    held_piece: Ints
    """int64[held, 2]: boundaries of pieces between which each of the following is there."""
    saved_bytes: Floats
    """float64[held]: activations of a layer, or of the block."""
    transient_bytes: Floats
    """float64[held]: its working set."""
    knots_s: Floats
    """float64[knots]: moments since the start of the step, where gathers run ahead of it."""
    knots_piece: Ints
    """Boundary of pieces at each of them."""


class Labels:
    """Names of rows, each kept once."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        """Return the number of a name."""
        return self._number.setdefault(name, len(self._number))

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, by number."""
        return tuple(self._number)


_COLUMNS: dict[str, type[np.generic]] = {
    "track": np.int64, "term": np.int64, "phase": np.int64, "table_row": np.int64,
    "recompute": np.bool_, "launches": np.float64, "flop": np.float64, "bytes": np.float64,
    "alone_s": np.float64, "first": np.int64, "last": np.int64, "prepare_s": np.float64,
    "launch_s": np.float64, "launched_s": np.float64,
}  # fmt: skip
"""Columns of rows that are numbers -> their type."""


class _Template(NamedTuple):
    pieces: dict[str, Array]
    rows: dict[str, Array]

    @staticmethod
    def of(layer: Layer, labels: Labels) -> "_Template":
        """Turn lists into arrays."""
        pieces = {
            name: np.array([getattr(each, name) for each in layer.pieces], np.int64)
            for name in ("term", "row", "inside", "kind")
        }
        seconds = np.array([each.seconds for each in layer.pieces], np.float64)
        return _Template(pieces | {"seconds": seconds}, columns_of(layer.rows, labels))


def columns_of(rows: list[Row], labels: Labels) -> dict[str, Array]:
    """Return rows as columns."""
    columns = {
        name: np.array([getattr(row, name) for row in rows], dtype)
        for name, dtype in _COLUMNS.items()
    }
    return columns | {"label": np.array([labels(row.label) for row in rows], np.int64)}


class BlockLine:
    """The layers of a stage in a line, each with its number among those of the stage."""

    def __init__(
        self, layers: list[tuple[Layer, int]], traffic: BlockTraffic | None, labels: Labels
    ) -> None:
        """Put ``traffic``, what data parallelism does meanwhile, beside them; name their rows."""
        self.layers, self.traffic, self.labels = layers, traffic, labels
        self.pieces: list[dict[str, Array]] = []
        self.rows: list[dict[str, Array]] = []
        self.count = 0
        self.first = [0]

    def block(self) -> Block:
        """Return the block."""
        templates: dict[int, _Template] = {}
        for at, (layer, number) in enumerate(self.layers):
            if id(layer) not in templates:
                templates[id(layer)] = _Template.of(layer, self.labels)
            self._add(templates[id(layer)], number, at)
        if self.traffic is not None:
            self._send(self.traffic)
        rows = self._joined(self.rows, columns_of([], self.labels))
        begin, end, at_s = self._spans(rows["first"], rows["last"])
        nothing = np.zeros(0, np.int64)
        pieces = self._joined(
            self.pieces,
            {"seconds": np.zeros(0), "term": nothing, "row": nothing, "inside": nothing},
        )
        layers = [layer for layer, _ in self.layers]
        numbers: dict[str, Any] = {
            name: np.array([getattr(layer, name) for layer in layers], np.float64)
            for name in ("lead_s", "busy_s", "saved_bytes", "transient_bytes")
        }
        return Block(
            **{name: pieces[name] for name in ("seconds", "term", "row", "inside")},
            begin=begin,
            end=end,
            at_s=at_s,
            row_term=rows["term"],
            layer=rows.get("layer", nothing),
            host_layer=rows.get("host_layer", nothing),
            host_s=np.stack([rows[f"{name}_s"] for name in ("prepare", "launch", "launched")], 1),
            **{
                name: rows[name]
                for name in (
                    "label", "track", "phase", "table_row", "recompute", "launches", "flop",
                    "bytes", "alone_s",
                )
            },
            layer_first=np.array(self.first, np.int64),
            layer_label=np.array([self.labels(layer.label) for layer in layers], np.int64),
            layer_number=np.array([number for _, number in self.layers], np.int64),
            **numbers,
            held_piece=np.stack([self.first[:-1], self.first[1:]], axis=1).astype(np.int64),
            knots_s=np.zeros(0) if self.traffic is None else self.traffic.knots_s,
            knots_piece=self._knots(),
        )  # fmt: skip

    @staticmethod
    def _joined(parts: list[dict[str, Array]], empty: dict[str, Array]) -> dict[str, Array]:
        if not parts:
            return empty
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _add(self, layer: _Template, number: int, at: int) -> None:
        """Add a layer, with what data parallelism makes it wait, copy and slow down."""
        base, first, count = self.count, self.first[-1], len(layer.rows["first"])
        pieces, rows = dict(layer.pieces), dict(layer.rows)
        for name in ("row", "inside"):
            pieces[name] = np.where(pieces[name] >= 0, pieces[name] + base, NONE)
        if self.traffic is not None:
            of, seconds, kind = self.traffic, pieces["seconds"].copy(), pieces["kind"]
            for code, values in (
                (WAITS, of.waits_s), (COPIES_BEFORE, of.before_s), (SLOWS, of.slows_s),
                (COPIES_AFTER, of.after_s),
            ):  # fmt: skip
                seconds[kind == code] *= values[at]
            pieces["seconds"] = seconds
            copies = np.flatnonzero(rows["term"] == DATA_PARALLEL)
            rows["alone_s"] = rows["alone_s"].copy()
            rows["alone_s"][copies] = seconds[rows["first"][copies]]
        self.pieces.append(pieces)
        self.first.append(first + len(pieces["seconds"]))
        rows["first"], rows["last"] = rows["first"] + first, rows["last"] + first
        rows["layer"], rows["host_layer"] = np.full(count, number), np.full(count, at)
        self.rows.append(rows)
        self.count += count

    # What data parallelism sends beside the layers.

    def _spans(self, first: Ints, last: Ints) -> tuple[Edge, Edge, Floats]:
        traffic = self.traffic
        at_s = np.full((len(first), 2), np.nan)
        begin = Edge(first, first.copy(), np.zeros(len(first)))
        end = Edge(last, last.copy(), np.zeros(len(last)))
        if traffic is None or not traffic.events:
            return begin, end, at_s
        own = slice(len(first) - len(traffic.events), len(first))
        times = np.array([(event.begin_s, event.end_s) for event in traffic.events], np.float64)
        if traffic.ahead:
            at_s[own] = times
            return begin, end, at_s
        knots_s, knots_piece = traffic.knots_s, self._knots()
        for edge, moment in ((begin, times[:, 0]), (end, times[:, 1])):
            place = np.clip(np.searchsorted(knots_s, moment, "right") - 1, 0, len(knots_s) - 2)
            width = knots_s[place + 1] - knots_s[place]
            share = (moment - knots_s[place]) / np.where(width > 0.0, width, 1.0)
            edge.low[own], edge.high[own] = knots_piece[place], knots_piece[place + 1]
            edge.share[own] = np.clip(share, 0.0, 1.0)
        return begin, end, at_s

    def _send(self, traffic: BlockTraffic) -> None:
        """Add the rows of data parallelism, and say for which of them layers wait and slow down."""
        base, events = self.count, traffic.events
        for at in range(len(self.layers)):
            pieces = self.pieces[at]
            for code, places in ((WAITS, traffic.waits_for), (SLOWS, traffic.slowed_by)):
                place = int(places[at])
                pieces["row"][pieces["kind"] == code] = base + place if place >= 0 else NONE
        for place, seconds in traffic.tail_s:
            self.pieces.append(
                {
                    "seconds": np.array([seconds]),
                    "term": np.array([DATA_PARALLEL]),
                    "row": np.array([base + place]),
                    "inside": np.array([NONE]),
                    "kind": np.array([PLAIN]),
                }
            )
        if not events:
            return
        rows = [
            Row(
                event.label, columns.DP, DATA_PARALLEL, event.phase, launches=1.0, first=0, last=0,
                bytes=event.bytes, alone_s=event.alone_s,
            )
            for event in events
        ]  # fmt: skip
        own = columns_of(rows, self.labels)
        own["layer"] = np.array([self.layers[event.layer][1] for event in events], np.int64)
        own["host_layer"] = np.full(len(events), NONE)
        self.rows.append(own)
        self.count += len(events)

    def _knots(self) -> Ints:
        """Return the boundary of pieces at each moment that data parallelism knows of."""
        if self.traffic is None:
            return np.zeros(0, np.int64)
        first = np.array(self.first, np.int64)
        # Before and after the wait, which is the first piece of each layer, and at the end.
        knots = np.stack([first[:-1], first[:-1] + 1], axis=1).ravel()
        return np.append(knots, [first[-1], sum(len(each["seconds"]) for each in self.pieces)])


def whole_block(block: Block, phase: int, labels: Labels) -> Block:
    """Return a block that is told by what it takes of each term alone, one row each."""
    seconds = np.bincount(block.term, block.seconds, len(BREAKDOWN)).astype(np.float64)
    terms = np.flatnonzero(seconds > 0.0)
    # Gaps first: they are shown as one wait before everything that runs.
    terms = np.array(sorted(terms.tolist(), key=lambda term: (term != LAUNCH, term)), np.int64)

    def total(values: Floats) -> Floats:
        return np.bincount(block.row_term, values, len(BREAKDOWN))[terms].astype(np.float64)

    has_knots = len(block.layer_label) > 0 and len(block.knots_s) > 0
    return replace(
        _plain(
            np.array([labels(BREAKDOWN[term]) for term in terms.tolist()], np.int64),
            np.array(TERM_TRACKS, np.int64)[terms], terms, phase,
        ),
        seconds=seconds[terms], launches=total(block.launches), flop=total(block.flop),
        bytes=total(block.bytes), alone_s=total(block.alone_s),
        held_piece=np.array([[0, len(terms)]]), saved_bytes=np.array([block.saved_bytes.sum()]),
        transient_bytes=np.array([block.transient_bytes.max(initial=0.0)]),
        knots_s=block.knots_s[[0, -1]] if len(block.knots_s) else block.knots_s,
        knots_piece=np.array([0, len(terms)][: 2 * has_knots], np.int64),
    )  # fmt: skip


@cache
def single(label: int, track: int, term: int, phase: int) -> Block:
    """Return one activity by itself, of one piece, whose seconds are given where it stands."""
    return _plain(np.array([label]), np.array([track]), np.array([term]), phase)


def _plain(label: Ints, track: Ints, term: Ints, phase: int) -> Block:
    """Return activities that follow one another, of a piece of a second each, without layers."""
    count, own = len(term), np.arange(len(term))
    none, nothing, empty = np.full(count, NONE), np.zeros(count), np.zeros(0, np.int64)
    return Block(
        seconds=np.ones(count), term=term, row=own, inside=none, begin=Edge(own, own, nothing),
        end=Edge(own + 1, own + 1, nothing), at_s=np.full((count, 2), np.nan), label=label,
        track=track, row_term=term, phase=np.full(count, phase), layer=none, table_row=none,
        recompute=np.zeros(count, np.bool_), launches=nothing, flop=nothing, bytes=nothing,
        alone_s=np.full(count, np.nan), host_s=np.full((count, 3), np.nan), host_layer=none,
        layer_first=np.zeros(1, np.int64), layer_label=empty, layer_number=empty,
        lead_s=np.zeros(0), busy_s=np.zeros(0), held_piece=np.zeros((0, 2), np.int64),
        saved_bytes=np.zeros(0), transient_bytes=np.zeros(0), knots_s=np.zeros(0),
        knots_piece=empty,
    )  # fmt: skip
