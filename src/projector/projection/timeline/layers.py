"""One layer laid out: its kernels in order, the gaps between them, and what runs beside them.

A layer is a list of pieces, one after the other. A piece is a stretch of time that belongs to one
term of the step; an activity is a row, which begins with one piece and ends with another. Widths
become whole picoseconds only where pieces of all layers of a rank stand in a line, so that nothing
is rounded twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels.collective_algorithms import ALL_GATHER
from projector.lower.stages import KINDS, RECOMPUTE_FULL, is_layer
from projector.operations import table as ops
from projector.operations.cost import Hidden, hidden_times, hiding_slowdowns
from projector.operations.mlp import SEGMENT_FC1
from projector.operations.moe import EXECUTION, EXECUTION_BESIDE_SHARED
from projector.operations.table import FORWARD
from projector.operations.work import repeated_rows
from projector.projection.evaluate import Evaluation
from projector.projection.pipeline_costs import RunCosts, cost_runs
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline import columns
from projector.projection.timeline.columns import NONE

LAUNCH, DATA_PARALLEL = BREAKDOWN.index("launch"), BREAKDOWN.index("dp_comm")

PLAIN, WAITS, COPIES_BEFORE, SLOWS, COPIES_AFTER = range(5)
"""Kinds of pieces. All but the first are as long as data parallelism makes them: the layer waits
for its weights, copies them, computes slower, and copies its gradients."""

TRACK_OF = {ops.TP_COMM: columns.TP, ops.CP_COMM: columns.CP, ops.EP_COMM: columns.EP}
"""Track of the rows of a category; all others compute."""


class Piece(NamedTuple):
    """A stretch of time behind the one before it."""

    seconds: float
    """Of `SLOWS`: share of the layer's."""
    term: int
    row: int
    """Row that the piece is added to the step for; `NONE` where the block says so."""
    kind: int = PLAIN
    inside: int = NONE
    """Row of compute that takes longer by it, `NONE` elsewhere."""


@dataclass(slots=True)
class Row:
    """One activity of a layer."""

    label: str
    track: int
    term: int
    phase: int
    table_row: int = NONE
    recompute: bool = False
    launches: float = 0.0
    flop: float = 0.0
    bytes: float = 0.0
    alone_s: float = 0.0
    first: int = -1
    """Its first piece."""
    last: int = -1
    """The piece behind its last one."""
    prepare_s: float = np.nan
    """When the host begins with it, from when it begins with the layer; NaN without a launch."""
    launch_s: float = np.nan
    launched_s: float = np.nan

    def reach(self, piece: int) -> None:
        """Extend over a piece."""
        self.first = piece if self.first < 0 else min(self.first, piece)
        self.last = max(self.last, piece + 1)


class Layer(NamedTuple):
    """A layer laid out, in one direction."""

    label: str
    is_layer: bool
    pieces: list[Piece]
    rows: list[Row]
    lead_s: float
    """How long before the layer the host has to begin, so that nothing is launched too late."""
    busy_s: float
    """How long the host takes for it."""
    saved_bytes: float
    """Activations that it keeps from forward to backward, on the device."""
    transient_bytes: float
    """Its working set, in this direction."""


@dataclass(slots=True)
class _Item:
    """One row of the operation table in a layer, with what of it is still free to hide behind."""

    row: int
    recompute: bool
    is_compute: bool
    segment: int
    direction: int
    seconds: float
    low: float
    high: float
    number: int = -1
    """Of its `Row`."""
    claims: list[tuple[float, float, int]] = field(default_factory=list)
    """What of it runs beside which item."""
    wanted: float = 0.0
    """What a collective would still hide, beside compute."""


class Layers:
    """Lays out the layers of an evaluation, each kind once."""

    def __init__(self, evaluation: Evaluation, *, splits: bool) -> None:
        self.evaluation = evaluation
        table, workloads = evaluation.table, evaluation.workloads
        self.table: ops.OperationTable = table
        self.time_s: Floats = evaluation.rows.time_s
        self.again: Flags = repeated_rows(table, workloads)
        slowdown = hiding_slowdowns(table, workloads)
        self.hidden: Hidden = hidden_times(table, self.time_s, slowdown, len(workloads.rows))
        self._hidden_at: dict[int, int] = {
            int(row): at for at, row in enumerate(self.hidden.rows.tolist())
        }
        self.runs: RunCosts = cost_runs(workloads, evaluation.costs, splits=splits)
        self._kept: dict[tuple[int, tuple[int, ...], bool], Layer] = {}

    def layer(self, run: int, phases: tuple[int, ...], *, parallel: bool) -> Layer:
        """Return one layer of a run in a block's phases; ``parallel``: data parallelism may add."""
        key = (run, phases, parallel)
        if key not in self._kept:
            self._kept[key] = _Builder(self, run, phases, parallel).layer()
        return self._kept[key]

    def hides(self, row: int) -> tuple[float, float, float, float]:
        """Return what a collective waits, hides and slows: seconds, seconds, longer, share."""
        at = self._hidden_at.get(row)
        if at is None:
            return float(self.time_s[row]), 0.0, 1.0, 0.0
        hidden = self.hidden
        return (
            float(hidden.waited_s[at]),
            float(hidden.hidden_s[at]),
            float(hidden.longer[at]),
            float(hidden.slowed[at]),
        )


def execution_order(table: ops.OperationTable, rows: Ints) -> Ints:
    """Return a workload's rows as its forward runs, int64[rows]; experts are emitted otherwise."""
    labels = [table.labels[label] for label in table.label[rows].tolist()]
    beside = any(
        label == "moe.dispatch" and segment > 0
        for label, segment in zip(labels, table.segment[rows].tolist(), strict=True)
    )
    order = EXECUTION_BESIDE_SHARED if beside else EXECUTION
    places = [at for at, label in enumerate(labels) if label.startswith("moe.")]

    def rank(at: int) -> int:
        label = labels[at]
        if label.startswith("moe.shared."):
            second = "exit" if table.kind[rows[at]] == ops.COLLECTIVE else "second"
            first = table.segment[rows[at]] == SEGMENT_FC1
            label = f"moe.shared.{'first' if first else second}"
        return next(number for number, part in enumerate(order) if label.startswith(part))

    ordered = rows.copy()
    ordered[places] = rows[sorted(places, key=lambda at: (rank(at), at))]
    return ordered


def _backward_order(
    table: ops.OperationTable, rows: Ints, again: Flags, *, full: bool
) -> list[tuple[int, bool]]:
    """Return the rows of a backward in order, each with whether it is recomputed.

    Operations run in reverse, the gradient of an input before that of the weights. What is dropped
    is made again right before the first gradient that needs it, and a whole layer (``full``) at
    once. Rows are those of forward and backward in the order of the forward; ``again`` bool[all
    rows] says what is recomputed.
    """
    keyed: list[tuple[float, float, int, bool]] = []
    first_of: dict[int, int] = {}
    place_of = {row: place for place, row in enumerate(rows.tolist())}
    previous = -1
    for row, place in place_of.items():
        same = previous >= 0 and table.label[row] == table.label[previous]
        first_of[row] = first_of[previous] if same else place
        previous = row
    for row in place_of:
        if table.phase[row] != FORWARD:
            gradient = _gathered_before(table, rows, row)
            at = row if gradient is None else gradient
            behind = place_of[at] + 0.5 * (gradient is not None)
            keyed.append((-float(first_of[at]), behind, row, False))
    forward = [row for row in place_of if table.phase[row] == FORWARD]
    group: list[int] = []
    for row in [*forward, -1]:
        if row >= 0 and again[row]:
            group.append(row)
        elif group and (row < 0 or not full):
            begin = -np.inf if full else -float(first_of[group[-1]]) - 0.5
            keyed += [(begin, float(place_of[each]), each, True) for each in group]
            group = []
    return [(row, recompute) for *_, row, recompute in sorted(keyed)]


def _gathered_before(table: ops.OperationTable, rows: Ints, row: int) -> int | None:
    """Return the gradient of an input beside which the input itself is gathered once more."""
    segment = int(table.segment[row])
    if table.kind[row] != ops.COLLECTIVE or table.operation[row] != ALL_GATHER or segment <= 0:
        return None
    beside = rows[(table.segment[rows] == segment) & (table.category[rows] < ops.TP_COMM)]
    if not len(beside) or beside[0] < row:
        return None
    gradients = beside[table.phase[beside] == ops.BACKWARD]
    return int(gradients[0]) if len(gradients) else None


class _Builder:
    def __init__(self, layers: Layers, run: int, phases: tuple[int, ...], parallel: bool) -> None:
        self.layers, self.run, self.phases, self.parallel = layers, run, phases, parallel
        table, workloads = layers.table, layers.evaluation.workloads
        self.table = table
        self.workload = int(workloads.run_workload[run])
        rows = execution_order(table, np.flatnonzero(table.workload == self.workload))
        if phases == (FORWARD,):
            order = [(int(row), False) for row in rows[table.phase[rows] == FORWARD]]
        else:
            of_block = rows[np.isin(table.phase[rows], phases) | (table.phase[rows] == FORWARD)]
            again = layers.again & (ops.BACKWARD in phases)
            full = int(workloads.columns.recompute[self.workload]) == RECOMPUTE_FULL
            order = _backward_order(table, of_block, again, full=full)
        self.items = [self._item(row, recompute) for row, recompute in order]
        self.pieces, self.rows = list[Piece](), list[Row]()

    def _item(self, row: int, recompute: bool) -> _Item:
        table, seconds = self.table, float(self.layers.time_s[row])
        is_compute = bool(table.category[row] < ops.TP_COMM)
        direction = int(table.phase[row] != FORWARD)
        item = _Item(
            row, recompute, is_compute, int(table.segment[row]), direction, seconds, 0.0, seconds
        )
        if not is_compute:
            _, hidden_s, longer, _ = self.layers.hides(row)
            item.wanted = longer * hidden_s
        return item

    def layer(self) -> Layer:
        self._hide()
        launch_s = self._launches()
        compute_s = sum(item.seconds for item in self.items if item.is_compute)
        phase = self.phases[0]
        if self.parallel:
            self._add(1.0, DATA_PARALLEL, NONE, WAITS)
            self._copies(COPIES_BEFORE, phase)
        for item in self.items:
            item.number = self._row_of(item)
        for number, item in enumerate(self.items):
            self._gap(launch_s[number], phase)
            if item.is_compute:
                self._compute(item, compute_s)
            else:
                self._wait(item)
        self._gap(launch_s[-1], phase)
        self._offload(phase)
        if self.parallel:
            self._copies(COPIES_AFTER, phase)
        lead_s, busy_s = self._host()
        saved_bytes, transient_bytes = self._memory()
        kind = KINDS[int(self.layers.evaluation.workloads.columns.kind[self.workload])]
        own = bool(is_layer(np.array([int(kind)]))[0])
        return Layer(
            kind.shown, own, self.pieces, self.rows, lead_s, busy_s, saved_bytes, transient_bytes
        )

    def _memory(self) -> tuple[float, float]:
        workloads, costs = self.layers.evaluation.workloads, self.layers.evaluation.costs
        training = workloads.first_jobs().training
        pipeline = int(workloads.pipeline_of_run[self.run])
        saved = float(costs.saved_bytes[self.workload]) * (1.0 - float(training.offload[pipeline]))
        transient = max(0.0, float(costs.transient_bytes[self.workload]))
        full = int(workloads.columns.recompute[self.workload]) == RECOMPUTE_FULL
        if full and ops.BACKWARD in self.phases:
            # Layers that are recomputed together hold their activations together.
            unit = float(training.recompute_unit[pipeline])
            transient += float(costs.unchecked_bytes[self.workload]) * unit
        return saved, transient

    # What hides behind what.

    def _hide(self) -> None:
        """Give each collective the compute that it runs beside, its own segment first."""
        wanting = [place for place, item in enumerate(self.items) if item.wanted > 0.0]
        wanting.sort(key=lambda place: self.items[place].segment == ops.WHOLE_LAYER)
        for place in wanting:
            own = self.items[place]
            partners = (
                at
                for at, item in enumerate(self.items)
                if item.is_compute
                and item.direction == own.direction
                and own.segment in (ops.WHOLE_LAYER, item.segment)
            )
            self._claim(place, partners)
        for place in wanting:
            # Gradients of weights may have a block of their own; then others stand for them.
            if self.items[place].wanted > 1e-15:
                self._claim(place, [at for at, item in enumerate(self.items) if item.is_compute])

    def _claim(self, place: int, partners: Iterable[int]) -> None:
        """Take what is free next to a collective: backwards from it, then onwards."""
        own, chosen = self.items[place], list(partners)
        before = [at for at in chosen if at < place]
        for at in [*reversed(before), *(at for at in chosen if at > place)]:
            item = self.items[at]
            length = min(item.high - item.low, own.wanted)
            if length <= 0.0:
                continue
            if at < place:
                item.claims.append((item.high - length, item.high, place))
                item.high -= length
            else:
                item.claims.append((item.low, item.low + length, place))
                item.low += length
            own.wanted -= length

    # What stands on which piece.

    def _add(self, *piece: Any, **more: int) -> int:
        """Add a `Piece` and return its number."""
        self.pieces.append(Piece(*piece, **more))
        return len(self.pieces) - 1

    def _row_of(self, item: _Item) -> int:
        table, row = self.table, item.row
        category = int(table.category[row])
        repeats = float(table.repeats[row])
        self.rows.append(
            Row(
                label=table.labels[int(table.label[row])],
                track=TRACK_OF.get(category, columns.COMPUTE),
                term=category,
                phase=ops.BACKWARD if item.recompute else int(table.phase[row]),
                table_row=row,
                recompute=item.recompute,
                launches=self._count(item),
                flop=float(table.flop[row]) * repeats,
                bytes=float(table.bytes[row]) * repeats,
                alone_s=item.seconds,
            )
        )
        return len(self.rows) - 1

    def _gap(self, seconds: float, phase: int) -> None:
        if seconds > 0.0:
            row = Row("launch", columns.WAIT, LAUNCH, phase, alone_s=seconds)
            row.reach(self._add(seconds, LAUNCH, len(self.rows)))
            self.rows.append(row)

    def _compute(self, item: _Item, compute_s: float) -> None:
        """Add what a kernel takes, cut where something begins or ends beside it."""
        row = self.rows[item.number]
        free = [(item.low, item.high, NONE)] if item.high > item.low or not item.claims else []
        for begin, end, place in sorted([*free, *item.claims]):
            row.reach(self._add(end - begin, row.term, item.number))
            if place == NONE:
                continue
            beside = self.items[place]
            self.rows[beside.number].reach(len(self.pieces) - 1)
            slowed = self.layers.hides(beside.row)[3]
            if slowed > 0.0:
                piece = self._add(
                    slowed * (end - begin),
                    self.rows[beside.number].term,
                    beside.number,
                    inside=item.number,
                )
                row.reach(piece)
                self.rows[beside.number].reach(piece)
        if self.parallel and compute_s > 0.0 and item.seconds > 0.0:
            share = item.seconds / compute_s
            row.reach(self._add(share, DATA_PARALLEL, NONE, SLOWS, inside=item.number))

    def _wait(self, item: _Item) -> None:
        """Add what nothing hides of a collective, and what it slows that is not in this block."""
        row = self.rows[item.number]
        waited_s, _, _, slowed = self.layers.hides(item.row)
        elsewhere_s = slowed * max(0.0, item.wanted)
        row.reach(self._add(waited_s + elsewhere_s, row.term, item.number))

    def _copies(self, kind: int, phase: int) -> None:
        label = "fsdp.copy_in" if kind == COPIES_BEFORE else "fsdp.copy_out"
        row = Row(label, columns.COMPUTE, DATA_PARALLEL, phase)
        row.reach(self._add(1.0, DATA_PARALLEL, len(self.rows), kind))
        self.rows.append(row)

    def _offload(self, phase: int) -> None:
        """Add copies of activations to the host, or back, which run beside the whole layer."""
        host = self.layers.runs.host
        moved_s, late_s = float(host.moved_s[self.run]), float(host.late_s[self.run, phase])
        if moved_s <= 0.0 or phase == ops.WEIGHT:
            return
        label = "activations.offload" if phase == FORWARD else "activations.reload"
        row = Row(label, columns.COPY, LAUNCH, phase, alone_s=moved_s)
        if late_s > 0.0 or not self.pieces:
            row.reach(self._add(late_s, LAUNCH, len(self.rows)))
        # A copy that is not late ends with the piece that runs when it has taken its time.
        reached = int(np.searchsorted(np.cumsum(self._fixed_seconds()), moved_s)) + 1
        row.first, row.last = 0, min(reached, len(self.pieces))
        self.rows.append(row)

    # What the host does.

    def _launches(self) -> list[float]:
        """Return the seconds of the gap before each item, and behind the last one."""
        runs, run, table = self.layers.runs, self.run, self.table
        host = runs.host
        launches = [self._count(item) for item in self.items]
        syncs = [float(table.syncs[item.row]) for item in self.items]
        of_phase = [
            ops.BACKWARD if item.recompute else int(table.phase[item.row]) for item in self.items
        ]
        gaps = [0.0] * (len(self.items) + 1)
        for phase in self.phases:
            total = float(runs.launch_s[run, phase] - host.late_s[run, phase])
            own = [at for at in range(len(self.items)) if of_phase[at] == phase]
            # The host waits once for input and weight gradients: all of the block share it.
            over = own if len(self.phases) == 1 else list(range(len(self.items)))
            kernels = sum(launches[at] for at in over)
            waiting = float(host.waiting_s[run, phase])
            plain = dict.fromkeys(over, 0.0)
            for at in own:
                plain[at] += float(host.gap_s[run]) * launches[at]
                plain[at] += float(host.sync_s[run]) * syncs[at]
            for at in over:
                plain[at] += waiting * launches[at] / kernels if kernels > 0.0 else 0.0
            found = sum(plain.values())
            if found <= 0.0:
                gaps[-1] += total
                continue
            # A measured layer takes a share of what is modelled, or more.
            share = min(1.0, total / found)
            for at in over:
                gaps[at] += share * plain[at]
            gaps[-1] += max(0.0, total - found) if total - found > 1e-9 * found else 0.0
        return gaps

    def _count(self, item: _Item) -> float:
        table, row = self.table, item.row
        launches = float(table.launches[row]) if item.is_compute else 1.0
        return launches * float(table.repeats[row])

    def _host(self) -> tuple[float, float]:
        """Say when the host prepares and launches each row; return how early it has to begin."""
        host, run = self.layers.runs.host, self.run
        call_s, operator_s = float(host.call_s[run]), float(host.operator_s[run])
        busy_s = float(sum(host.busy_s[run, phase] for phase in self.phases))
        if call_s + operator_s <= 0.0 or busy_s <= 0.0:
            return 0.0, 0.0
        counts = [self._count(item) for item in self.items]
        at = np.array([item.row for item in self.items], np.int64)
        calls = (self.table.calls * self.table.repeats)[at].tolist()
        rest_s = max(0.0, busy_s - (call_s + operator_s) * sum(counts))
        weights = calls if sum(calls) > 0.0 else counts
        weight = max(sum(weights), 1e-300)
        starts = np.concatenate([[0.0], np.cumsum(self._fixed_seconds())])
        now, lead_s = 0.0, 0.0
        # Communication that hides behind compute is launched before it.
        order = sorted(range(len(counts)), key=lambda at: self.rows[self.items[at].number].first)
        for place in order:
            item, count, extra = self.items[place], counts[place], weights[place]
            row, more_s = self.rows[item.number], rest_s * extra / weight
            if count > 0.0:
                row.prepare_s, row.launch_s = now, now + more_s + operator_s
                row.launched_s = row.launch_s + call_s
                if row.first >= 0:
                    lead_s = max(lead_s, row.launched_s - float(starts[row.first]))
            now += more_s + count * (call_s + operator_s)
        return lead_s, max(now, busy_s)

    def _fixed_seconds(self) -> Floats:
        """Return the seconds of the pieces without what data parallelism adds."""
        plain = [each.seconds if each.kind == PLAIN else 0.0 for each in self.pieces]
        return np.array(plain, np.float64)
