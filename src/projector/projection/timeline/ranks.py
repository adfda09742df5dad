"""The step of one pipeline rank in a line, in whole picoseconds.

Elements stand one after the other: what the host needs for a step, then waits and blocks in the
order of the schedule, then what follows the last backward. The pieces of one term are rounded
together, so that they add up to the term.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels.grouping import concatenated_ranges
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline.blocks import Block
from projector.projection.timeline.columns import BLOCK, LAYER, NONE, NOT_LAUNCHED
from projector.schedule.replay.order_times import PS_PER_S


class Place(NamedTuple):
    """Where an element belongs."""

    chunk: int = NONE
    stage: int = NONE
    microbatch: int = NONE
    first_layer: int = 0
    """Number of the first layer of its stage."""
    label: int = NONE
    """Name of the block; `NONE` for what is no block."""
    phase: int = NONE


@dataclass(slots=True)
class Moved:
    """A row that begins and ends at moments of its own."""

    element: int
    begin_s: float
    end_s: float


@dataclass(slots=True)
class Line:
    """The elements of a rank."""

    rank: int
    begin_ps: int
    elements: list[Block] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    """Picoseconds of what stands as a second in each element."""
    places: list[Place] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    """Rows of elements of one row, in seconds since the start of the pipeline."""
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    """Messages that nothing waits for: element that sends, picoseconds, name."""

    def add(self, element: Block, scale: float = PS_PER_S, place: Place | None = None) -> int:
        """Put an element behind the others; return its number."""
        self.elements.append(element)
        self.scale.append(scale)
        self.places.append(Place() if place is None else place)
        return len(self.elements) - 1


def apportioned(weight: Floats, term: Ints, total_ps: Ints | None) -> Ints:
    """Return whole picoseconds for each piece, so that each term adds up to its total.

    Each boundary between the pieces of a term is rounded by itself, so that what pieces are off by
    does not add up. Without ``total_ps`` int64[terms] a term adds up to the sum of its weights
    (ps), rounded.
    """
    width = np.zeros(len(weight), np.int64)
    for number in range(len(BREAKDOWN)):
        pieces = np.flatnonzero(term == number)
        if not len(pieces):
            continue
        until = np.cumsum(weight[pieces])
        found = float(until[-1])
        total = round(found) if total_ps is None else int(total_ps[number])
        share = total / found if found > 0.0 else 0.0
        # A share of one keeps waits, which are whole already, as they are.
        bound = np.minimum(np.rint(until * share), total).astype(np.int64)
        # The last piece of all that take time has what the sum of floats is off.
        timed = np.flatnonzero(weight[pieces] > 0.0)
        bound[timed[-1] if len(timed) else -1 :] = total
        width[pieces] = np.diff(bound, prepend=0)
    return width


class Placed:
    """A line whose pieces have their places."""

    def __init__(self, line: Line, total_ps: Ints | None) -> None:
        self.line = line
        # A line has few blocks, each many times.
        number = {block: at for at, block in enumerate(dict.fromkeys(line.elements))}
        self._blocks = tuple(number)
        self._block_of = np.array([number[each] for each in line.elements], np.int64)
        self._rows: dict[bytes, Ints] = {}
        self.pieces_of, self.rows_of = self.lengths("seconds"), self.lengths("label")
        self.first_piece = np.cumsum(self.pieces_of) - self.pieces_of
        self.first_row = np.cumsum(self.rows_of) - self.rows_of
        weight = self.joined("seconds") * np.repeat(np.array(line.scale), self.pieces_of)
        self.term: Ints = self.joined("term")
        self.width = apportioned(weight, self.term, total_ps)
        self.boundary = np.concatenate([[0], np.cumsum(self.width)]) + line.begin_ps
        self.label: Ints = self.joined("label")

    def lengths(self, name: str) -> Ints:
        """Return how long a column of each element is."""
        return np.array([len(getattr(each, name)) for each in self._blocks], np.int64)[
            self._block_of
        ]

    def joined(self, name: str, part: slice | int = slice(None)) -> Any:
        """Return a column of all elements, or a part of it."""
        values = [getattr(each, name)[part] for each in self._blocks]
        lengths = np.array([len(each) for each in values], np.int64)
        key = lengths.tobytes()
        if key not in self._rows:
            first = np.cumsum(lengths) - lengths
            of = self._block_of
            self._rows[key] = concatenated_ranges(first[of], lengths[of])
        return np.concatenate(values)[self._rows[key]]

    def begins(self, element: int) -> int:
        """Return when an element begins."""
        return int(self.boundary[self.first_piece[element]])

    def ends(self, element: int) -> int:
        """Return when an element ends."""
        return int(self.boundary[self.first_piece[element] + self.pieces_of[element]])

    def per_row(self, values: list[int]) -> Ints:
        """Repeat what elements have for each of their rows."""
        return np.repeat(np.array(values, np.int64), self.rows_of)

    def columns(self, knots: tuple[Floats, Ints]) -> dict[str, Any]:
        """Return the columns of the rows; those of `Timeline` but rank and lane.

        ``knots`` are seconds since the start of the pipeline, float64[k], and when these are,
        int64[k].
        """
        line = self.line
        start, end = self._spans()
        self._move(start, end, knots)
        exposed, slowdown, slowed = self._added()
        places = line.places
        local = self.joined("layer")
        first_layer = self.per_row([place.first_layer for place in places])
        alone = np.rint(self.joined("alone_s") * PS_PER_S)
        duration = end - start
        prepare, launch, launched = self._host(start)
        return {
            "track": self.joined("track"),
            "label": self.label,
            "term": self.joined("row_term"),
            "phase": self.joined("phase"),
            "layer": np.where(local >= 0, local + first_layer, NONE),
            "stage": self.per_row([place.stage for place in places]),
            "chunk": self.per_row([place.chunk for place in places]),
            "microbatch": self.per_row([place.microbatch for place in places]),
            "start_ps": start,
            "duration_ps": duration,
            "exposed_ps": exposed,
            "slowdown_ps": slowdown,
            "slowed_ps": slowed,
            "alone_ps": np.where(np.isnan(alone), duration, alone).astype(np.int64),
            "prepare_ps": prepare,
            "launch_ps": launch,
            "launch_end_ps": launched,
            "launches": self.joined("launches"),
            "flop": self.joined("flop"),
            "bytes": self.joined("bytes"),
            "recompute": self.joined("recompute"),
            "row": self.joined("table_row"),
        }

    def _spans(self) -> tuple[Ints, Ints]:
        first = np.repeat(self.first_piece, self.rows_of)

        def at(name: str) -> Ints:
            low, high, share = (self.joined(name, part) for part in range(3))
            left, right = self.boundary[first + low], self.boundary[first + high]
            return np.asarray(left + np.rint(share * (right - left)).astype(np.int64))

        start = at("begin")
        return start, np.maximum(start, at("end"))

    def _move(self, start: Ints, end: Ints, knots: tuple[Floats, Ints]) -> None:
        """Put rows that have moments of their own where these are."""
        line = self.line
        at_s = self.joined("at_s")
        rows = np.flatnonzero(~np.isnan(at_s[:, 0]))
        start[rows] = moment_ps(at_s[rows, 0], knots)
        end[rows] = moment_ps(at_s[rows, 1], knots)
        for each in line.moved:
            row = self.first_row[each.element]
            begin, until = moment_ps(np.array([each.begin_s, each.end_s]), knots).tolist()
            start[row], end[row] = min(begin, start[row]), max(until, begin)

    def _added(self) -> tuple[Ints, Ints, Ints]:
        """Return what each row adds to the step, what of it slows compute, and what slows it."""
        first = np.repeat(self.first_row, self.pieces_of)
        row, inside = self.joined("row"), self.joined("inside")
        exposed, slowdown, slowed = (np.zeros(int(self.rows_of.sum()), np.int64) for _ in range(3))
        pieces = np.flatnonzero(row >= 0)
        np.add.at(exposed, (first + row)[pieces], self.width[pieces])
        beside = np.flatnonzero(inside >= 0)
        np.add.at(slowed, (first + inside)[beside], self.width[beside])
        beside = beside[row[beside] >= 0]
        np.add.at(slowdown, (first + row)[beside], self.width[beside])
        return exposed, slowdown, slowed

    def _host(self, start: Ints) -> tuple[Ints, Ints, Ints]:
        """Return when the host prepares and launches each row, layers as late as they may."""
        host_s, of_layer = self.joined("host_s"), self.joined("host_layer")
        lead_s, busy_s = self.joined("lead_s"), self.joined("busy_s")
        result = [np.full(len(start), NOT_LAUNCHED) for _ in range(3)]
        if not len(busy_s):
            return result[0], result[1], result[2]
        layers_of = self.lengths("layer_label")
        firsts = self.joined("layer_first", slice(-1)) + np.repeat(self.first_piece, layers_of)
        # Rounding may bring a kernel forward by a picosecond for each of its terms.
        lead_ps = np.ceil(lead_s * PS_PER_S).astype(np.int64) + 2 * len(BREAKDOWN)
        busy_ps = np.ceil(busy_s * PS_PER_S).astype(np.int64)
        before = np.cumsum(busy_ps) - busy_ps
        latest = self.boundary[firsts] - lead_ps - before
        begin = np.minimum.accumulate(latest[::-1])[::-1] + before
        first_of = np.repeat(np.cumsum(layers_of) - layers_of, self.rows_of)
        rows = np.flatnonzero(~np.isnan(host_s[:, 0]) & (of_layer >= 0))
        own = begin[(first_of + of_layer)[rows]]
        for place in range(3):
            result[place][rows] = own + np.floor(host_s[rows, place] * PS_PER_S).astype(np.int64)
        return result[0], result[1], result[2]

    def ranges(self) -> dict[str, Any]:
        """Return the columns of the blocks and of their layers, but the rank."""
        line = self.line
        layers_of = self.lengths("layer_label")
        blocks = np.array(
            [at for at, place in enumerate(line.places) if place.label >= 0], np.int64
        )
        of_layer = np.repeat(np.arange(len(layers_of)), layers_of)
        element = np.concatenate([blocks, of_layer])
        firsts = self.joined("layer_first", slice(-1))
        lasts = self.joined("layer_first", slice(1, None))
        begin = np.concatenate(
            [self.first_piece[blocks], self.first_piece[of_layer] + firsts]
        ).astype(np.int64)
        end = np.concatenate(
            [self.first_piece[blocks] + self.pieces_of[blocks], self.first_piece[of_layer] + lasts]
        ).astype(np.int64)
        number = self.joined("layer_number")
        places = line.places

        def of_place(name: str) -> Ints:
            values: Ints = np.array([getattr(place, name) for place in places], np.int64)
            return np.asarray(values[element])

        local = np.concatenate([np.full(len(blocks), NONE), number])
        return {
            "level": np.repeat([BLOCK, LAYER], [len(blocks), len(number)]),
            "label": np.concatenate([of_place("label")[: len(blocks)], self.joined("layer_label")]),
            "phase": of_place("phase"),
            "layer": np.where(local >= 0, local + of_place("first_layer"), NONE),
            "stage": of_place("stage"),
            "chunk": of_place("chunk"),
            "microbatch": of_place("microbatch"),
            "start_ps": self.boundary[begin],
            "duration_ps": self.boundary[end] - self.boundary[begin],
        }


def moment_ps(seconds: Floats, knots: tuple[Floats, Ints]) -> Ints:
    """Return when moments of a recurrence are: in proportion between the knots around them."""
    known_s, known_ps = knots
    if not len(known_s):
        return np.rint(seconds * PS_PER_S).astype(np.int64)
    # Picoseconds are added as integers: a float64 holds those of 2.5 hours alone.
    last = len(known_s) - 1
    place = np.clip(np.searchsorted(known_s, seconds, "right") - 1, 0, max(0, last - 1))
    following = np.minimum(place + 1, last)
    apart_s = known_s[following] - known_s[place]
    share = np.clip((seconds - known_s[place]) / np.where(apart_s > 0.0, apart_s, 1.0), 0.0, 1.0)
    inside = np.rint(share * (known_ps[following] - known_ps[place])).astype(np.int64)
    later = np.rint(np.maximum(0.0, seconds - known_s[-1]) * PS_PER_S).astype(np.int64)
    return np.asarray(known_ps[place] + inside + later)


def lanes(track: Ints, start_ps: Ints, end_ps: Ints) -> Ints:
    """Give activities that overlap on one track lanes of their own, int64[rows]."""
    lane = np.zeros(len(track), np.int64)
    for number in np.unique(track).tolist():
        rows = np.flatnonzero(track == number)
        rows = rows[np.lexsort((end_ps[rows], start_ps[rows]))]
        until = np.maximum.accumulate(end_ps[rows])
        if np.all(start_ps[rows][1:] >= until[:-1]):
            continue
        free: list[int] = []
        chosen = []
        for begin, end in zip(start_ps[rows].tolist(), end_ps[rows].tolist(), strict=True):
            place = next((at for at, busy in enumerate(free) if busy <= begin), len(free))
            if place == len(free):
                free.append(end)
            else:
                free[place] = max(end, free[place])
            chosen.append(place)
        lane[rows] = chosen
    return lane


def kept(columns: dict[str, Any]) -> Flags:
    """Return which rows say anything: some are only there in case rounding left something."""
    duration, exposed = columns["duration_ps"], columns["exposed_ps"]
    told = (columns["row"] >= 0) & (columns["launches"] > 0.0)
    return np.asarray(told | (duration > 0) | (exposed != 0))
