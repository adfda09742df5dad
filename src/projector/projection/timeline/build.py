"""Building the timeline of a projection: every rank's line, put into the columns of one table."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.errors import ConfigError
from projector.operations.table import BACKWARD, FORWARD, WEIGHT
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.performance import PerformanceProjection, replica_of
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline import columns
from projector.projection.timeline.blocks import Block, BlockLine, Labels, single, whole_block
from projector.projection.timeline.columns import NONE, NOT_LAUNCHED, Held, Ranges, Timeline
from projector.projection.timeline.ending import Ending, held_over_time, waits_of
from projector.projection.timeline.layers import Layers
from projector.projection.timeline.ranks import Line, Moved, Place, Placed, kept, lanes
from projector.projection.timeline.traffic import Left, Traffic
from projector.schedule.order import Order
from projector.schedule.replay.order_times import PS_PER_S
from projector.schedule.replay.run import PipelineRun

if TYPE_CHECKING:
    from projector.measure.record import Record

BLOCK_NAMES = ("forward", "backward", "weight gradient")


@dataclass(frozen=True, slots=True)
class Detail:
    """What of a step is told operation by operation; the rest is told block by block."""

    ranks: tuple[int, ...] | None = None
    """Pipeline ranks; all, unless stated."""
    microbatches: tuple[int, ...] | None = None
    """All, unless stated."""
    most: int = 1_000_000
    """Activities of all ranks at most. Where there would be more, the first microbatch, one in the
    middle and the last are told in detail; then only on the rank that ends the step."""


MOST_BLOCKS = 1 << 18
"""Operations of a schedule that a timeline has at most: they are some 100 MB compressed. 65,536
took 9 s of a processor and 0.6 GB, 131,072 took 14 s and 0.9 GB."""


def build_timeline(
    result: PerformanceProjection, detail: Detail | None = None, *, record: "Record | None" = None
) -> Timeline:
    """Lay out the step of a projection.

    The job is evaluated once more: projections keep no operations.

    Args:
        result: PerformanceProjection
        detail (Detail, optional): What is told operation by operation.
        record (Record, optional): What the projection was restored from, where the projection does
            not know it.

    Raises:
        ConfigError: If ``result`` is of closed forms, which have no operations, or was restored
            from a record that is not given, or ``detail`` names a rank or a microbatch that the job
            does not have, or its schedule has more than ``MOST_BLOCKS`` operations.
    """
    if not isinstance(result, PerformanceProjection):
        msg = f"result is a PerformanceProjection of tiles, got {type(result).__name__}"
        raise ConfigError(msg, key="result", value=type(result).__name__, allowed="tiles")
    found = timeline_of(_evaluated(result, record), 0, detail, result.pipeline)
    return found if result.provenance.times is None else replace(found, clock_hz=0.0)


def _evaluated(result: PerformanceProjection, record: "Record | None") -> Evaluation:
    times = result.provenance.times
    if times is None:
        return evaluate([result.job])
    from projector.projection.measured import Hybrid

    known = record if record is not None else result.record
    if known is None:
        msg = "record: the projection was restored from a record; give it to build_timeline"
        raise ConfigError(msg, key="record", value=None, allowed="a Record")
    return Hybrid(result.job, known, str(times.record.get("tp_rule", "ratio"))).evaluate(result.job)


def timeline_of(
    evaluation: Evaluation, row: int, detail: Detail | None = None, run: PipelineRun | None = None
) -> Timeline:
    """Lay out the step of one job of an evaluation; see `build_timeline`."""
    return _Builder(evaluation, row, detail or Detail(), run).timeline()


def _check_size(order: Order) -> None:
    if len(order.kind) > MOST_BLOCKS:
        most = MOST_BLOCKS * order.microbatches // len(order.kind)
        msg = (
            f"a timeline of {order.pp} ranks and {order.microbatches:,} microbatches has "
            f"{len(order.kind):,} forwards and backwards, more than {MOST_BLOCKS:,}; one of "
            f"{most:,} microbatches shows the same"
        )
        key = "training.global_batch_size"
        raise ConfigError(msg, key=key, allowed=f"{most:,} microbatches or fewer")


class _Builder:
    def __init__(
        self, evaluation: Evaluation, row: int, detail: Detail, run: PipelineRun | None
    ) -> None:
        from projector.projection.performance import pipeline_run_of

        self.evaluation, self.row = evaluation, row
        self.replica, self.placement = replica_of(evaluation, row)
        self.run = run or pipeline_run_of(evaluation, row)
        self.order: Order = self.run.order
        self.labels = Labels()
        self.layers = Layers(evaluation, splits=self.order.splits_backward)
        self.traffic = Traffic(evaluation, self.replica)
        self.ending = Ending.of(evaluation, row)
        _check_size(self.order)
        self.first_layer = self._first_layers()
        self._blocks: dict[tuple[Any, ...], tuple[Block, list[Left]]] = {}
        self._whole: dict[int, Block] = {}
        self.detail = self._chosen(detail)

    # Blocks.

    def _stage_runs(self, stage: int) -> list[tuple[int, int]]:
        replicas = self.evaluation.inputs.replicas
        kind = int(replicas.stage_kind[replicas.stage_offset[self.replica] + stage])
        runs = replicas.run[replicas.run_offset[kind] : replicas.run_offset[kind + 1]]
        return [(int(run), int(replicas.workloads.run_count[run])) for run in runs]

    def _first_layers(self) -> Ints:
        counts = [
            sum(
                count
                for run, count in self._stage_runs(stage)
                if self.layers.layer(run, (FORWARD,), parallel=True).is_layer
            )
            for stage in range(self.placement.num_stages)
        ]
        return np.cumsum([0, *counts])[:-1]

    def block(self, stage: int, kind: int, *, first: bool, last: bool) -> tuple[Block, list[Left]]:
        """Return a block of a stage of the model, and what it leaves to send.

        ``kind`` is that of the operation of the schedule; it may work on the first or last
        microbatch.
        """
        replicas = self.evaluation.inputs.replicas
        alike = int(replicas.stage_kind[replicas.stage_offset[self.replica] + stage])
        own = first and kind == FORWARD
        key = (stage if own else alike, kind, own, last and kind != FORWARD)
        if key not in self._blocks:
            self._blocks[key] = self._lay_out(stage, kind, first=first, last=last)
        return self._blocks[key]

    def _lay_out(
        self, stage: int, kind: int, *, first: bool, last: bool
    ) -> tuple[Block, list[Left]]:
        whole = kind == BACKWARD and not self.order.splits_backward
        phases = (BACKWARD, WEIGHT) if whole else (kind,)
        of = self.traffic
        found = of.backward(stage, kind, last=last) if kind else of.forward(stage, first=first)
        traffic = None if found.is_silent else found
        placed, number = [], 0
        for run, count in self._stage_runs(stage):
            layer = self.layers.layer(run, phases, parallel=traffic is not None)
            for _ in range(count):
                placed.append((layer, number if layer.is_layer else NONE))
                number += layer.is_layer
        if kind != FORWARD:
            placed.reverse()
        block = BlockLine(placed, traffic, self.labels).block()
        return block, [] if traffic is None else traffic.left

    def _told(self, block: Block, kind: int, rank: int, microbatch: int) -> Block:
        """Return a block as it is told: in detail or by its terms."""
        ranks, microbatches = self.detail
        if rank in ranks and (microbatches is None or microbatch in microbatches):
            return block
        if id(block) not in self._whole:
            self._whole[id(block)] = whole_block(block, kind, self.labels)
        return self._whole[id(block)]

    def _chosen(self, detail: Detail) -> tuple[frozenset[int], frozenset[int] | None]:
        """Return which ranks and microbatches are told in detail; None are all."""
        order = self.order
        for key, values, most in (
            ("ranks", detail.ranks, order.pp),
            ("microbatches", detail.microbatches, order.microbatches),
        ):
            wrong = [value for value in values or () if not 0 <= value < most]
            if wrong:
                msg = f"detail.{key}: there are {most}, from 0 to {most - 1}; got {wrong[0]}"
                raise ConfigError(
                    msg, key=f"detail.{key}", value=wrong[0], allowed=f"0..{most - 1}"
                )
        ranks = frozenset(range(order.pp) if detail.ranks is None else detail.ranks)
        microbatches = None if detail.microbatches is None else frozenset(detail.microbatches)
        if microbatches is None and self._size(ranks) > detail.most:
            last = order.microbatches - 1
            microbatches = frozenset((0, last // 2, last))
            share = len(microbatches) / order.microbatches
            if detail.ranks is None and self._size(ranks) * share > detail.most:
                ranks = frozenset((self.ending.rank,))
        return ranks, microbatches

    def _size(self, ranks: frozenset[int]) -> int:
        kinds = (FORWARD, BACKWARD, WEIGHT) if self.order.splits_backward else (FORWARD, BACKWARD)
        return (
            sum(
                len(self.block(int(stage), kind, first=False, last=False)[0].label)
                for rank in ranks
                for stage in self.placement.model_stage[rank]
                for kind in kinds
            )
            * self.order.microbatches
        )

    # Lines.

    def timeline(self) -> Timeline:
        ending, pp = self.ending, self.order.pp
        tables, ranges, ends, held = [], [], [], []
        for rank in range(pp):
            table, around, begin, memory = self._rank(rank)
            held.append(memory)
            tables.append(table | {"rank": np.full(len(table["track"]), rank)})
            ranges.append(around | {"rank": np.full(len(around["level"]), rank)})
            ends.append(begin)
        joined = {name: np.concatenate([each[name] for each in tables]) for name in tables[0]}
        around = {name: np.concatenate([each[name] for each in ranges]) for name in ranges[0]}
        begin_ps = np.array(ends, np.int64)
        launched = joined["launch_ps"] != NOT_LAUNCHED
        # The host may begin before the step does.
        earliest = int(joined["prepare_ps"][launched].min()) if launched.any() else 0
        shift = max(0, -earliest)
        for name in ("prepare_ps", "launch_ps", "launch_end_ps"):
            joined[name] = np.where(launched, joined[name] + shift, NONE)
        joined["start_ps"] += shift
        around["start_ps"] = around["start_ps"] + shift
        return Timeline(
            **joined,
            labels=self.labels.names,
            table=self.evaluation.table,
            ranges=Ranges(**around),
            memory=tuple(each._replace(time_ps=each.time_ps + shift) for each in held),
            ending_rank=ending.rank,
            terms_ps=ending.terms_ps,
            begin_ps=begin_ps + shift,
            name=self.evaluation.job(self.row).model.name,
            clock_hz=self._clock_hz(),
        )

    def _clock_hz(self) -> float:
        table, workloads = self.evaluation.table, self.evaluation.workloads
        largest = int(np.argmax(table.flop))
        device = workloads.columns.device[table.workload[largest]]
        clock = workloads.devices["clock_hz"][device, table.dtype[largest]]
        return float(clock) if table.flop[largest] > 0.0 else 0.0

    def _rank(self, rank: int) -> tuple[dict[str, Any], dict[str, Any], int, Held]:
        """Return the rows of a rank, its ranges, when its step begins, and what it holds."""
        ending = self.ending
        line = Line(rank, ending.begin_ps(rank))
        line.add(self._single("step.host", columns.WAIT, "launch"), ending.overhead_s * PS_PER_S)
        found = self._operations(line, rank)
        after = self._after(line, rank, found)
        placed = Placed(line, ending.terms_ps if rank == ending.rank else None)
        table = placed.columns(self._knots(placed, rank, found, after))
        self._send(table, placed)
        chosen = kept(table)
        table = {name: column[chosen] for name, column in table.items()}
        end_ps = table["start_ps"] + table["duration_ps"]
        table["lane"] = lanes(table["track"], table["start_ps"], end_ps)
        rows = np.lexsort((table["track"], table["start_ps"]))
        replicas, state = self.evaluation.inputs.replicas, self.evaluation.inputs.state
        at = replicas.kinds_of_ranks(self.replica)[rank]
        return (
            {name: column[rows] for name, column in table.items()},
            placed.ranges(),
            line.begin_ps,
            held_over_time(
                placed,
                static_bytes=float(state.static_bytes[at] - state.transient_bytes[at]),
                gathered_bytes=float(state.gathered_bytes[at]),
                updating_bytes=float(state.updating_bytes[at]),
                weight_share=self.run.w_share if self.order.splits_backward else 0.0,
            ),
        )

    def _single(self, name: str, track: int, term: str, phase: int = columns.OTHER) -> Block:
        return single(self.labels(name), track, BREAKDOWN.index(term), phase)

    def _operations(self, line: Line, rank: int) -> "_Operations":
        """Add waits, blocks and blocking messages of a rank, in the order of the schedule."""
        order, run = self.order, self.run
        ops = range(int(order.rank_offset[rank]), int(order.rank_offset[rank + 1]))
        found = _Operations({}, {}, [], 0)
        bubble, comm, sends = (
            self._single(name, columns.WAIT, term)
            for name, term in (
                ("pipeline.wait", "pp_bubble"), ("message.wait", "pp_comm"),
                ("send.wait", "pp_bubble"),
            )
        )  # fmt: skip
        waits = waits_of(self.ending, run, rank)
        for op, wait in zip(ops, waits, strict=True):
            kind, chunk, microbatch = (
                int(column[op]) for column in (order.kind, order.chunk, order.microbatch)
            )
            stage = int(self.placement.model_stage[rank, chunk])
            last = microbatch == order.microbatches - 1
            block, left = self.block(stage, kind, first=microbatch == 0, last=last)
            place = Place(
                chunk, int(order.stage_of[rank, chunk]), microbatch, int(self.first_layer[stage]),
                self.labels(BLOCK_NAMES[kind]), kind,
            )  # fmt: skip
            for ps, each in ((wait.bubble_ps, bubble), (wait.message_ps, comm)):
                if ps > 0:
                    line.add(each, float(ps))
            element = line.add(self._told(block, kind, rank, microbatch), place=place)
            if left:
                found.lefts[chunk] = left
            if kind == FORWARD and microbatch == 0 and place.stage < order.num_stages:
                found.firsts.append(element)
            within = Place(chunk, place.stage, microbatch)
            name = self.labels("send.backward" if kind else "send.forward")
            if wait.sent_ps + wait.stalled_ps > 0:
                line.add(
                    single(name, columns.PP, BREAKDOWN.index("pp_comm"), kind),
                    float(wait.sent_ps), within,
                )  # fmt: skip
                if wait.stalled_ps > 0:
                    line.add(sends, float(wait.stalled_ps), within)
            if wait.latency_ps > 0:
                line.sent.append((element, wait.latency_ps, name))
            found.ends[chunk] = found.last = len(line.elements) - 1
        return found

    def _after(self, line: Line, rank: int, found: "_Operations") -> list[tuple[float, int]]:
        """Add what follows the last backward; return moments and the elements that end then."""
        ending = self.ending
        after = self._tails(line, rank, found)
        for left in self._lefts(rank, gathers=False):
            self._parallel(line, left.label, left.seconds, left)
        if ending.tied(rank) > 0.0:
            left = Left("tied_embeddings.all_reduce", ending.tied(rank), 0.0)
            self._parallel(line, left.label, left.seconds, left)
        waits_s = ending.finish_s[ending.rank] - ending.finish_s[rank]
        if waits_s > 0.0:
            line.add(self._single("rank.wait", columns.WAIT, "pp_bubble"), waits_s * PS_PER_S)
        wait = self._single("stragglers.wait", columns.WAIT, "stragglers")
        line.add(wait, ending.late_s * PS_PER_S)
        self._update(line, rank)
        if rank == ending.rank:
            # Whatever rounding leaves of a term that nothing else takes.
            for term in BREAKDOWN:
                line.add(self._single("rounding", columns.WAIT, term), 0.0)
        return after

    def _tails(self, line: Line, rank: int, found: "_Operations") -> list[tuple[float, int]]:
        """Add gradient traffic that runs on behind the last backward of each chunk."""
        ending, after, channel_s = self.ending, [], 0.0
        end_s = ending.end_s(rank)
        for chunk in np.argsort(ending.last_ps[rank], kind="stable").tolist():
            channel_s = max(channel_s, ending.last_s(rank, chunk))
            for left in found.lefts.get(chunk, ()):
                begin_s, channel_s = channel_s, channel_s + left.seconds
                exposed_s = max(0.0, channel_s - max(begin_s, end_s))
                element = self._parallel(line, left.label, exposed_s, left)
                line.moved.append(Moved(element, begin_s, channel_s))
                if exposed_s > 0.0:
                    after.append((channel_s, element))
        return after

    def _lefts(self, rank: int, *, gathers: bool) -> list[Left]:
        stages = self.placement.model_stage[rank].tolist()
        return [left for stage in stages for left in self.traffic.after(stage, gathers=gathers)]

    def _parallel(self, line: Line, label: str, seconds: float, left: Left) -> int:
        """Add a collective of data parallelism outside of blocks; return its element."""
        plain = self._single(label, columns.DP, "dp_comm", columns.UPDATE)
        element = replace(
            plain, bytes=np.array([left.bytes]), launches=np.ones(1),
            alone_s=np.array([left.seconds]),
        )  # fmt: skip
        return line.add(element, seconds * PS_PER_S)

    def _update(self, line: Line, rank: int) -> None:
        ending, own_s = self.ending, float(self.ending.optimizer_s[rank])
        gathers = self._lefts(rank, gathers=True)
        gathered_s = sum(left.seconds for left in gathers)
        slowest = ending.updating
        update_s = float(ending.optimizer_s[slowest])
        if rank != ending.rank:
            update_s = own_s
        optimizer = self._single("optimizer.step", columns.OPTIMIZER, "optimizer", columns.UPDATE)
        line.add(optimizer, min(own_s, update_s) * PS_PER_S)
        if update_s > own_s:
            wait = self._single("optimizer.wait", columns.WAIT, "optimizer", columns.UPDATE)
            line.add(wait, (update_s - own_s) * PS_PER_S)
        room_s = float(ending.gather_after_s[slowest]) if rank == ending.rank else gathered_s
        share = min(1.0, room_s / gathered_s) if gathered_s > 0.0 else 0.0
        for left in gathers:
            self._parallel(line, left.label, share * left.seconds, left)
        rest_s = ending.after_s - update_s - share * gathered_s
        if rest_s > 1e-12 * ending.after_s:
            term = "dp_comm" if rank == ending.rank else "pp_bubble"
            line.add(self._single("rank.wait", columns.WAIT, term), rest_s * PS_PER_S)

    def _knots(
        self, placed: Placed, rank: int, found: "_Operations", after: list[tuple[float, int]]
    ) -> tuple[Floats, Ints]:
        """Return moments of the pipeline and when they are on the line of a rank."""
        ending, seconds, when = self.ending, [0.0], [placed.ends(0)]
        for element in found.firsts:
            block = placed.line.elements[element]
            seconds += block.knots_s.tolist()
            when += placed.boundary[placed.first_piece[element] + block.knots_piece].tolist()
        for chunk, element in found.ends.items():
            seconds.append(ending.last_s(rank, chunk))
            when.append(placed.ends(element))
        seconds.append(ending.end_s(rank))
        when.append(placed.ends(found.last))
        for moment, element in after:
            seconds.append(moment)
            when.append(placed.ends(element))
        rows = np.lexsort((when, seconds))
        return (
            np.maximum.accumulate(np.array(seconds, np.float64)[rows]),
            np.maximum.accumulate(np.array(when, np.int64)[rows]),
        )

    def _send(self, table: dict[str, Any], placed: Placed) -> None:
        sent = placed.line.sent
        if not sent:
            return
        count = len(sent)
        element = np.array([each for each, _, _ in sent], np.int64)
        places = [placed.line.places[each] for each in element.tolist()]
        duration = np.array([latency for _, latency, _ in sent], np.int64)
        values: dict[str, Any] = {
            "track": columns.PP,
            "label": [name for _, _, name in sent],
            "term": BREAKDOWN.index("pp_comm"),
            "phase": [place.phase for place in places],
            "stage": [place.stage for place in places],
            "chunk": [place.chunk for place in places],
            "microbatch": [place.microbatch for place in places],
            "start_ps": [placed.ends(each) for each in element.tolist()],
            "duration_ps": duration,
            "alone_ps": duration,
            "launches": 1.0,
            "bytes": float(self.evaluation.inputs.p2p.bytes[self.replica]),
            "prepare_ps": NOT_LAUNCHED, "launch_ps": NOT_LAUNCHED, "launch_end_ps": NOT_LAUNCHED,
            "layer": NONE, "row": NONE,
        }  # fmt: skip
        for name, column in table.items():
            more = np.broadcast_to(np.asarray(values.get(name, 0)), count).astype(column.dtype)
            table[name] = np.concatenate([column, more])


@dataclass(slots=True)
class _Operations:
    lefts: dict[int, list[Left]]
    """What the last backward of each chunk leaves to send."""
    ends: dict[int, int]
    """Last element of each chunk."""
    firsts: list[int]
    """Forwards of the first microbatch, of the first copy of the model."""
    last: int
