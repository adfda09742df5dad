"""Orders compiled for replay. None of this depends on time, and all of it is kept."""

from typing import Any

import numpy as np

from projector.arrays import Ints, Ints32
from projector.errors import ScheduleError
from projector.kernels import pipeline as kernels
from projector.kernels import pipeline_lanes
from projector.kernels.pipeline import Ends, Line, Replays
from projector.kernels.pipeline_lanes import LaneProgram
from projector.schedule.legality import check_complete
from projector.schedule.order import FORWARD, Order
from projector.schedule.replay.order_cache import kept_by_operations, of_order


@kept_by_operations(of_order)
def compile_line(order: Order) -> Line:
    """Compile an order for replay, or raise :class:`ScheduleError` where it cannot run."""
    check_complete(order)
    num_ops = len(order.kind)
    line = np.empty((num_ops, 4), np.int32)
    slot = np.empty(num_ops, np.int64)
    status = kernels.compile_line(
        order.rank_offset,
        order.kind,
        order.chunk,
        order.microbatch,
        order.stage_of,
        order.num_stages,
        order.microbatches,
        line,
        slot,
    )
    if status != kernels.OK:
        raise ScheduleError("this order is not a schedule: a rank waits for ever", key="schedule")
    # Rows of a rank are in its own order, so the last assignment is the last operation.
    last_backward = np.empty((order.pp, order.vpp), np.int64)
    (backward,) = np.nonzero(order.kind != FORWARD)
    last_backward[order.rank[backward], order.chunk[backward]] = slot[backward]
    used, uses = np.unique(line[:, kernels.DURATION].astype(np.int64), return_counts=True)
    compiled = Line(
        line=line,
        slot=slot,
        used=used,
        uses=uses,
        latency_uses=np.bincount(line[:, kernels.LATENCY], minlength=1 + 2 * order.stage_of.size),
        first_slot=slot[order.rank_offset[:-1]],
        last_slot=slot[order.rank_offset[1:] - 1],
        last_backward_slot=last_backward,
    )
    freeze(compiled)
    return compiled


@kept_by_operations(of_order)
def compile_lanes(order: Order) -> LaneProgram:
    """Compile an order for the replay of many configurations side by side."""
    line = compile_line(order)
    program = line_program(line, line.line, np.arange(1, len(line.line) + 1))
    kept = np.unique(
        np.concatenate([line.first_slot, line.last_slot, line.last_backward_slot.ravel()])
    )
    place = np.full(len(line.line) + 1, -1)
    place[0] = 0
    place[kept] = 1 + np.arange(len(kept))
    num_places = pipeline_lanes.allocate(program, place, 1 + len(kept))
    first_duration = line.line[line.first_slot - 1, kernels.DURATION]
    compiled = LaneProgram(
        program=program,
        num_places=num_places,
        used=line.used,
        uses=line.uses,
        first=place[line.first_slot],
        first_duration=np.searchsorted(line.used, first_duration),
        last=place[line.last_slot],
        last_backward=place[line.last_backward_slot],
    )
    freeze(compiled)
    return compiled


def line_program(line: Line, columns: Ints32, output: Ints) -> Ints32:
    """Return some operations of a line with the slot of their ends, ready for places.

    A dependency on the same rank is left out: its operation stands earlier in the order of the
    rank, so the previous operation ends no earlier.
    """
    program = np.empty((len(columns), 5), np.int32)
    program[:, :4] = columns
    alone = columns[:, kernels.LATENCY] == 0
    program[alone, kernels.DEPENDENCY] = columns[alone, kernels.PREVIOUS]
    # Of all durations only those that some operation has are brought into lanes.
    program[:, kernels.DURATION] = np.searchsorted(line.used, columns[:, kernels.DURATION])
    program[:, kernels.OUTPUT] = output
    return program


def empty_replays(pp: int, vpp: int, n: int) -> Replays:
    """Make room for the replays of n configurations."""
    ranks = (n, pp)
    return Replays(
        np.empty(ranks, np.int64),
        np.empty(ranks, np.int64),
        np.empty(ranks, np.int64),
        np.empty((n, pp, vpp), np.int64),
    )


def empty_ends(pp: int, vpp: int, n: int) -> Ends:
    """Make room for the ends of n replays, each with a row of its own."""
    ranks = (n, pp)
    return Ends(
        np.arange(n),
        np.zeros(n, np.int64),
        np.empty(ranks, np.int64),
        np.empty(ranks, np.int64),
        np.empty((n, pp, vpp), np.int64),
    )


def freeze(arrays: tuple[Any, ...]) -> None:
    """Guard what a cache hands to everyone."""
    for array in arrays:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
