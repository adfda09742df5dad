"""A block laid out: the layers of one stage in one direction, data parallelism beside them.

A block is laid out once for all microbatches for which it takes as long. Its columns are arrays, so
that many of them are put in a line at once.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.projection.breakdown import BREAKDOWN
from projector.projection.timeline import columns
from projector.projection.timeline.columns import NONE
from projector.projection.timeline.layers import (
    COPIES_AFTER,
    COPIES_BEFORE,
    DATA_PARALLEL,
    LAUNCH,
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
    knots_s: Floats
    """float64[knots]: moments since the start of the step, where gathers run ahead of it."""
    knots_piece: Ints
    """Boundary of pieces at each of them."""


class Labels:
    """Names of rows, each kept once."""

    def __init__(self) -> None:
        """Begin without any."""
        self._number: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        """Return the number of a name."""
        return self._number.setdefault(name, len(self._number))

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, by number."""
        return tuple(self._number)


def lay_out_block(
    layers: list[tuple[Layer, int]], traffic: BlockTraffic | None, labels: Labels
) -> Block:
    """Put the layers of a stage in a line.

    Parameters
    ----------
    layers : list of (Layer, int)
        In the order in which they run, each with its number among the layers of the stage.
    traffic : BlockTraffic, optional
        What data parallelism does meanwhile; nothing without.
    labels : Labels
        Takes the names of rows.
    """
    return _Line(layers, traffic, labels).block()


class _Line:
    """Collects the columns of a block."""

    def __init__(
        self, layers: list[tuple[Layer, int]], traffic: BlockTraffic | None, labels: Labels
    ) -> None:
        self.layers, self.traffic, self.labels = layers, traffic, labels
        self.seconds: list[Floats] = []
        self.term: list[Ints] = []
        self.row: list[Ints] = []
        self.inside: list[Ints] = []
        self.rows: list[Row] = []
        self.number: list[int] = []
        self.of_layer: list[int] = []
        self.first = [0]

    def block(self) -> Block:
        """Return the block."""
        for at, (layer, number) in enumerate(self.layers):
            self._add(layer, number, at)
        begin, end, at_s = self._spans()
        rows = self.rows
        return Block(
            seconds=np.concatenate(self.seconds),
            term=np.concatenate(self.term),
            row=np.concatenate(self.row),
            inside=np.concatenate(self.inside),
            begin=begin,
            end=end,
            at_s=at_s,
            label=np.array([self.labels(row.label) for row in rows], np.int64),
            track=np.array([row.track for row in rows], np.int64),
            row_term=np.array([row.term for row in rows], np.int64),
            phase=np.array([row.phase for row in rows], np.int64),
            layer=np.array(self.number, np.int64),
            table_row=np.array([row.table_row for row in rows], np.int64),
            recompute=np.array([row.recompute for row in rows], np.bool_),
            launches=np.array([row.launches for row in rows], np.float64),
            flop=np.array([row.flop for row in rows], np.float64),
            bytes=np.array([row.bytes for row in rows], np.float64),
            alone_s=np.array([row.alone_s for row in rows], np.float64),
            host_s=np.array(
                [[row.prepare_s, row.launch_s, row.launched_s] for row in rows], np.float64
            ).reshape(-1, 3),
            host_layer=np.array(self.of_layer, np.int64),
            layer_first=np.array(self.first, np.int64),
            layer_label=np.array([self.labels(layer.label) for layer, _ in self.layers], np.int64),
            layer_number=np.array([number for _, number in self.layers], np.int64),
            lead_s=np.array([layer.lead_s for layer, _ in self.layers], np.float64),
            busy_s=np.array([layer.busy_s for layer, _ in self.layers], np.float64),
            knots_s=np.zeros(0) if self.traffic is None else self.traffic.knots_s,
            knots_piece=self._knots(),
        )

    def _add(self, layer: Layer, number: int, at: int) -> None:
        """Add a layer, with what data parallelism makes it wait, copy and slow down."""
        base, first = len(self.rows), self.first[-1]
        kind = np.array(layer.pieces.kind, np.int64)
        seconds = np.array(layer.pieces.seconds, np.float64)
        row = np.array(layer.pieces.row, np.int64)
        row = np.where(row >= 0, row + base, NONE)
        inside = np.array(layer.pieces.inside, np.int64)
        if self.traffic is not None:
            of = self.traffic
            for name, values in (
                (WAITS, of.waits_s), (COPIES_BEFORE, of.before_s), (SLOWS, of.slows_s),
                (COPIES_AFTER, of.after_s),
            ):  # fmt: skip
                seconds[kind == name] *= values[at]
        self.seconds.append(seconds)
        self.term.append(np.array(layer.pieces.term, np.int64))
        self.row.append(row)
        self.inside.append(np.where(inside >= 0, inside + base, NONE))
        self.first.append(first + len(seconds))
        for each in layer.rows:
            copy = _moved(each, first)
            if self.traffic is not None and copy.term == DATA_PARALLEL:
                copy.alone_s = float(seconds[copy.first - first])
            self.rows.append(copy)
            self.number.append(number)
            self.of_layer.append(at)

    # What data parallelism sends beside the layers.

    def _spans(self) -> tuple[Edge, Edge, Floats]:
        """Return where rows begin and end, those of data parallelism added."""
        traffic = self.traffic
        if traffic is not None:
            self._send(traffic)
        first = np.array([row.first for row in self.rows], np.int64)
        last = np.array([row.last for row in self.rows], np.int64)
        at_s = np.full((len(self.rows), 2), np.nan)
        begin = Edge(first, first.copy(), np.zeros(len(first)))
        end = Edge(last, last.copy(), np.zeros(len(last)))
        if traffic is None or not traffic.events:
            return begin, end, at_s
        own = slice(len(self.rows) - len(traffic.events), len(self.rows))
        times = np.array([(event.begin_s, event.end_s) for event in traffic.events], np.float64)
        if traffic.ahead:
            at_s[own] = times
            begin.low[own] = begin.high[own] = end.low[own] = end.high[own] = 0
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
        base = len(self.rows)
        for event in traffic.events:
            self.rows.append(
                Row(
                    event.label,
                    columns.DP,
                    DATA_PARALLEL,
                    event.phase,
                    launches=1.0,
                    bytes=event.bytes,
                    alone_s=event.alone_s,
                )
            )
            self.number.append(self.layers[event.layer][1])
            self.of_layer.append(NONE)
        kind_of = [np.array(layer.pieces.kind, np.int64) for layer, _ in self.layers]
        for at, kind in enumerate(kind_of):
            row = self.row[at]
            row[kind == WAITS] = (
                base + traffic.waits_for[at] if traffic.waits_for[at] >= 0 else NONE
            )
            row[kind == SLOWS] = (
                base + traffic.slowed_by[at] if traffic.slowed_by[at] >= 0 else NONE
            )
        for place, seconds in traffic.tail_s:
            self.seconds.append(np.array([seconds]))
            self.term.append(np.array([DATA_PARALLEL]))
            self.row.append(np.array([base + place]))
            self.inside.append(np.array([NONE]))

    def _knots(self) -> Ints:
        """Return the boundary of pieces at each moment that data parallelism knows of."""
        if self.traffic is None:
            return np.zeros(0, np.int64)
        first = np.array(self.first, np.int64)
        # Before and after the wait, which is the first piece of each layer, and at the end.
        knots = np.stack([first[:-1], first[:-1] + 1], axis=1).ravel()
        total = sum(len(each) for each in self.seconds)
        return np.append(knots, [first[-1], total])


def _moved(row: Row, by: int) -> Row:
    """Return a copy of a row whose pieces stand further on."""
    return replace(row, first=row.first + by, last=row.last + by)


def whole_block(block: Block, phase: int, labels: Labels) -> Block:
    """Return a block that is told by what it takes of each term alone, one row each."""
    seconds = np.bincount(block.term, block.seconds, len(BREAKDOWN)).astype(np.float64)
    terms = np.flatnonzero(seconds > 0.0)
    # Gaps first: they are shown as one wait before everything that runs.
    terms = np.array(sorted(terms.tolist(), key=lambda term: (term != LAUNCH, term)), np.int64)
    count, own = len(terms), np.arange(len(terms))

    def total(values: Floats) -> Floats:
        return np.bincount(block.row_term, values, len(BREAKDOWN))[terms].astype(np.float64)

    nothing = np.zeros(count)
    layers = len(block.layer_first) - 1
    return Block(
        seconds=seconds[terms], term=terms, row=own, inside=np.full(count, NONE),
        begin=Edge(own, own, nothing), end=Edge(own + 1, own + 1, nothing),
        at_s=np.full((count, 2), np.nan),
        label=np.array([labels(BREAKDOWN[term]) for term in terms.tolist()], np.int64),
        track=np.array(TERM_TRACKS, np.int64)[terms], row_term=terms,
        phase=np.full(count, phase), layer=np.full(count, NONE), table_row=np.full(count, NONE),
        recompute=np.zeros(count, np.bool_), launches=total(block.launches),
        flop=total(block.flop), bytes=total(block.bytes), alone_s=total(block.alone_s),
        host_s=np.full((count, 3), np.nan), host_layer=np.full(count, NONE),
        layer_first=np.zeros(1, np.int64), layer_label=np.zeros(0, np.int64),
        layer_number=np.zeros(0, np.int64), lead_s=np.zeros(0), busy_s=np.zeros(0),
        knots_s=block.knots_s[[0, -1]] if len(block.knots_s) else block.knots_s,
        knots_piece=np.array([0, count][: 2 * (layers > 0 and len(block.knots_s) > 0)], np.int64),
    )  # fmt: skip


def single(label: int, track: int, term: int, phase: int) -> Block:
    """Return one activity by itself, of one piece, whose seconds are given where it stands."""
    zero, one, none = np.zeros(1, np.int64), np.ones(1, np.int64), np.full(1, NONE)
    return Block(
        seconds=np.ones(1), term=np.array([term]), row=zero, inside=none,
        begin=Edge(zero, zero, np.zeros(1)), end=Edge(one, one, np.zeros(1)),
        at_s=np.full((1, 2), np.nan), label=np.array([label]), track=np.array([track]),
        row_term=np.array([term]), phase=np.array([phase]), layer=none, table_row=none,
        recompute=np.zeros(1, np.bool_), launches=np.zeros(1), flop=np.zeros(1),
        bytes=np.zeros(1), alone_s=np.full(1, np.nan), host_s=np.full((1, 3), np.nan),
        host_layer=none, layer_first=np.zeros(1, np.int64), layer_label=np.zeros(0, np.int64),
        layer_number=np.zeros(0, np.int64), lead_s=np.zeros(0), busy_s=np.zeros(0),
        knots_s=np.zeros(0), knots_piece=np.zeros(0, np.int64),
    )  # fmt: skip
