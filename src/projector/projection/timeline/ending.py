"""How a step ends, what its ranks wait for and hold: the events behind `kernels.step.end_steps`."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.pipeline import MIDDLE
from projector.kernels.step import COMPUTE_TERMS, PS
from projector.projection.evaluate import Evaluation
from projector.projection.performance import replica_of
from projector.projection.timeline import columns
from projector.projection.timeline.columns import Held
from projector.projection.timeline.ranks import Placed
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT, Order, Placement
from projector.schedule.replay.order_times import PS_PER_S
from projector.schedule.replay.run import PipelineRun


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """Moments and spans of one job, float64[pp] of its pipeline ranks."""

    rank: int
    """Ends the step."""
    updating: int
    """Takes the longest to update and to gather."""
    terms_ps: Ints
    """int64[terms]: the breakdown in whole picoseconds."""
    apart: int
    """1 where ranks do not wait for each other between steps."""
    start_ps: Ints
    end_ps: Ints
    """int64[pp]: of the first and the last operation."""
    alone_ps: Ints
    """int64[pp]: span without transfers."""
    sent_ps: Ints
    """int64[pp, chunks, kinds]: of an operation, until what it sends has arrived, where ranks wait
    for that."""
    latency_ps: Ints
    """int64[2, virtual stages]: of messages under which ranks work on."""
    placement: Placement
    last_ps: Ints
    """int64[pp, chunks]: end of the last backward of each chunk."""
    finish_s: Floats
    """When all is sent, from the beginning of each rank."""
    optimizer_s: Floats
    gather_after_s: Floats
    tied_s: float
    overhead_s: float
    late_s: float

    @staticmethod
    def of(evaluation: Evaluation, row: int) -> "Ending":
        """Return how the step of one job of an evaluation ends."""
        inputs, batch = evaluation.inputs, evaluation.batch
        replica, placement = replica_of(evaluation, row)
        ranks = inputs.replicas.ranks(replica)
        pipeline = evaluation.pipeline(row)
        apart = int(batch.training.post_validation[row])
        timings, replayed, alone = pipeline.timings, pipeline.replayed, pipeline.alone
        start_ps, end_ps = replayed.rank_start_ps[0], replayed.rank_end_ps[0]
        last_ps = replayed.last_backward_end_ps[0]
        first = int(inputs.replicas.chunk_first[replica])
        tail_s = inputs.chunk_tail_s[first : first + last_ps.size].reshape(last_ps.shape)
        tied_s = float(inputs.tied_s[replica])
        sent_s = np.array([_sent_s(*pair) for pair in zip(last_ps, tail_s, strict=True)])
        finish_s = np.maximum(end_ps * PS, sent_s) + inputs.reduce_after_s[ranks]
        ends = sorted({0, len(finish_s) - 1})
        finish_s[ends] += tied_s
        optimizer_s = inputs.optimizer_s[inputs.replicas.kinds_of_ranks(replica)]
        gather_s = inputs.gather_after_s[ranks]
        breakdown_s = evaluation.steps.breakdown_s[row]
        share = float(batch.straggler_share()[row])
        return Ending(
            rank=int(evaluation.steps.ending_rank[row]),
            updating=int(np.argmax(optimizer_s + gather_s)),
            terms_ps=np.rint(breakdown_s * PS_PER_S).astype(np.int64),
            apart=apart,
            start_ps=start_ps,
            end_ps=end_ps,
            alone_ps=alone.rank_end_ps[0] - apart * alone.rank_start_ps[0],
            sent_ps=(timings.duration_ps - timings.alone_ps)[0, :, :, :, MIDDLE],
            latency_ps=timings.latency_ps[0],
            placement=placement,
            last_ps=last_ps,
            finish_s=finish_s - apart * start_ps * PS,
            optimizer_s=optimizer_s,
            gather_after_s=gather_s,
            tied_s=tied_s,
            overhead_s=float(batch.cluster.step_overhead_s[row]),
            late_s=share * float(breakdown_s[:COMPUTE_TERMS].sum()),
        )

    @property
    def after_s(self) -> float:
        """Update and gathers of the rank that takes the longest for them."""
        return float(self.optimizer_s[self.updating] + self.gather_after_s[self.updating])

    def begin_ps(self, rank: int) -> int:
        """Return when the step of a rank begins."""
        return self.apart * int(self.start_ps[rank])

    def end_s(self, rank: int) -> float:
        """Return when the last operation of a rank ends."""
        return float(self.end_ps[rank]) * PS

    def last_s(self, rank: int, chunk: int) -> float:
        """Return when the last backward of a chunk ends."""
        return float(self.last_ps[rank, chunk]) * PS

    def tied(self, rank: int) -> float:
        """Return what a rank takes to sum the gradients of tied embeddings."""
        return self.tied_s if rank in (0, len(self.finish_s) - 1) else 0.0


def _sent_s(last_ps: Ints, tail_s: Floats) -> float:
    """Return when a rank has sent its gradients; 0 where nothing is left to send."""
    channel_s = 0.0
    for chunk in np.argsort(last_ps, kind="stable"):
        channel_s = max(channel_s, float(last_ps[chunk]) * PS) + float(tail_s[chunk])
    return channel_s if tail_s.max() > 0.0 else 0.0


class Wait(NamedTuple):
    """What an operation waits for, and what it sends, in picoseconds."""

    bubble_ps: int
    """Before it: for other ranks."""
    message_ps: int
    """Before it: for a message under way."""
    sent_ps: int
    """Behind it: until what it sends has arrived, of what transfers add to the step."""
    stalled_ps: int
    """The same, of what the rank would have idled without transfers."""
    latency_ps: int
    """Of the message that it sends and works on meanwhile; 0 without one."""


def waits_of(ending: Ending, run: PipelineRun, rank: int) -> list[Wait]:
    """Return the waits of a rank: as communication what transfers lengthen, else as bubble."""
    order, timeline = run.order, run.timeline
    ops = slice(int(order.rank_offset[rank]), int(order.rank_offset[rank + 1]))
    start, end, kind = timeline.start_ps[ops], timeline.end_ps[ops], order.kind[ops]
    latency, arriving = _messages(ending, order, rank)
    gap = start - np.concatenate([[ending.begin_ps(rank)], end[:-1]])
    sent = ending.sent_ps[rank, order.chunk[ops], kind]
    under_way = np.minimum(gap, arriving)
    span = int(ending.end_ps[rank]) - ending.begin_ps(rank)
    message = span - min(span, int(ending.alone_ps[rank]))
    first = _shared(np.concatenate([under_way, sent]), message)
    rest = np.concatenate([gap, sent]) - first
    more = _shared(rest, message - int(first.sum()))
    counted = first + more
    half = len(gap)
    before, behind = counted[:half], counted[half:]
    columns = (gap - before, before, behind, sent - behind, latency)
    return [Wait(*each) for each in zip(*(each.tolist() for each in columns), strict=True)]


def _shared(room: Ints, total: int) -> Ints:
    """Divide ``total`` over rooms in proportion to them, at most what each holds."""
    found = int(room.sum())
    if total >= found or found == 0:
        return room.copy()
    until, before, parts = 0, 0, []
    for each in room.tolist():
        until += each
        now = until * total // found
        parts.append(now - before)
        before = now
    return np.array(parts, np.int64)


def _messages(ending: Ending, order: Order, rank: int) -> tuple[Ints, Ints]:
    """Return what a message takes to be sent, and to arrive; 0 where it stays on a rank."""
    ops = slice(int(order.rank_offset[rank]), int(order.rank_offset[rank + 1]))
    kind, stage = order.kind[ops].astype(np.int64), order.stage_of[rank, order.chunk[ops]]
    rank_of, stages = ending.placement.rank_of, order.stage_of.size
    depth = stage % order.num_stages
    step = np.where(kind == FORWARD, 1, -1)
    sends = (kind != WEIGHT) & (depth != np.where(step > 0, order.num_stages - 1, 0))
    waits = (kind != WEIGHT) & (depth != np.where(step > 0, 0, order.num_stages - 1))
    direction = np.minimum(kind, BACKWARD)
    following, before = (stage + step) % stages, (stage - step) % stages
    sends &= rank_of[following] != rank
    waits &= rank_of[before] != rank
    latency_ps = ending.latency_ps
    return (
        np.where(sends, latency_ps[direction, stage], 0),
        np.where(waits, latency_ps[direction, before], 0),
    )


def held_over_time(
    placed: Placed,
    *,
    static_bytes: float,
    gathered_bytes: float,
    updating_bytes: float,
    weight_share: float,
) -> Held:
    """Return what a rank holds over time.

    A layer keeps its activations from the start of its forward until its backward ends; the share
    ``weight_share`` stays until its weights have their gradients, where these are made apart (0
    where they are not). Its working set is there while it runs. What is gathered of weights is
    there from the first layer to the last, and the working set of the update while that runs.
    ``static_bytes`` are there throughout.
    """
    begin, end, saved, transient, kind = _layers(placed)
    forward, backward, weight = (kind == each for each in (FORWARD, BACKWARD, WEIGHT))
    freed = saved * np.where(backward, 1.0 - weight_share, np.where(weight, weight_share, 0.0))
    nothing = np.zeros(len(saved))
    # What ends comes first: layers that follow on each other do not hold both working sets.
    times = [end, begin]
    activations = [-freed, np.where(forward, saved, 0.0)]
    working = [-transient, transient]
    if len(begin):
        times += [end[-1:], begin[:1]]
        activations += [nothing[:1], nothing[:1]]
        working += [np.array([-gathered_bytes]), np.array([gathered_bytes])]
    for element in [
        at
        for at, each in enumerate(placed.line.elements)
        if len(each.track) == 1 and each.track[0] == columns.OPTIMIZER
    ]:
        times += [np.array([placed.ends(element)]), np.array([placed.begins(element)])]
        activations += [np.zeros(1), np.zeros(1)]
        working += [np.array([-updating_bytes]), np.array([updating_bytes])]
    return _summed(placed.line.begin_ps, static_bytes, times, activations, working)


def _layers(placed: Placed) -> tuple[Ints, Ints, Floats, Floats, Ints]:
    """Return begin, end, activations, working set and kind of what blocks hold, in order."""
    count = placed.lengths("saved_bytes")
    first = np.repeat(placed.first_piece, count)
    piece = placed.joined("held_piece")
    kind = np.repeat([place.phase for place in placed.line.places], count)
    return (
        placed.boundary[first + piece[:, 0]],
        placed.boundary[first + piece[:, 1]],
        placed.joined("saved_bytes"),
        placed.joined("transient_bytes"),
        kind,
    )


def _summed(
    begin_ps: int,
    static_bytes: float,
    times: list[Ints],
    activations: list[Floats],
    working: list[Floats],
) -> Held:
    """Add changes up in the order of their times, one entry for each time."""
    when = np.concatenate([np.array([begin_ps]), *times])
    rows = np.argsort(when, kind="stable")
    changed = when[rows]
    last = np.append(changed[1:] > changed[:-1], True)
    held = [
        # Sums of what comes and goes are off by rounding.
        np.maximum(np.cumsum(np.concatenate([np.zeros(1), *each])[rows])[last], 0.0)
        for each in (activations, working)
    ]
    return Held(changed[last], static_bytes, held[0], held[1])
