"""What orders of a planned schedule may hold, and what none of them can undercut.

The activations that each rank has room for bound an order. A search plans no order that cannot
matter.

A planned order depends on times and memory, and takes milliseconds to find. A bound on every order
takes microseconds, all jobs of a batch together. It is proven from what every order must keep to:

- A rank runs all its operations one at a time, and its first is an F of its first stage, which no
  microbatch reaches before it has passed all stages ahead.
- A B of its last stage needs the F's of all stages, and the B's behind it; every B and W of the
  rank comes after that.
- The last of the F's and B's of a rank is a B of its first stage, as the B of an earlier stage
  follows that of a later one. The B's of the stages ahead follow it one by one, then a W.
- A microbatch is held from its F to its B, and a share of it until its W. Between lie at least the
  F's and B's of all stages behind. What all microbatches are held for, added up, cannot exceed the
  span of the rank times what the rank may hold.

Transfers are left out, which only makes a bound smaller.

Shape suffixes
    N   jobs whose stages are placed alike
    S   virtual stages of one copy of the model
    pp  ranks
Units: int64 picoseconds where names say so, else seconds and bytes in float64.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.grouping import concatenated_ranges, offsets
from projector.kernels.planning import ROUNDING
from projector.kernels.step import COMPUTE_TERMS, PS
from projector.projection.memory_columns import (
    allocator_columns,
    devices_of,
    rank_bytes,
    reserve_bytes,
    room_for_activations,
)
from projector.projection.schedules import Setting
from projector.projection.step import StepInputs
from projector.schedule import registry


class Room(NamedTuple):
    """Bytes of activations of all ranks of n jobs, one job after the other."""

    offset: Ints
    """int64[n + 1]: first rank of each job."""
    kind: Ints
    """int64[ranks]: kind of each rank, among those of all replicas."""
    family: Ints
    """int64[ranks]: family of the job."""
    least_bytes: Floats
    """float64[ranks]: what one microbatch leaves in all chunks of a rank."""
    most_bytes: Floats
    """float64[ranks]: what a rank may hold, ``least_bytes`` in any case."""


def activation_room(inputs: StepInputs, jobs: Ints) -> Room:
    """Return the room of some jobs, int64[n].

    Where a microbatch alone does not fit, an order is planned as if it did: such a job is projected
    in full, as one that does not fit. Where a job says how many microbatches a rank may hold at
    most, it may hold no more than these leave, either.
    """
    replicas = inputs.replicas
    batch, columns = replicas.workloads.batch, replicas.workloads.jobs
    replica = replicas.of_job.take(jobs)
    ranks = replicas.columns.pp.take(replica)
    rank = concatenated_ranges(replicas.rank_offset.take(replica), ranks)
    family = replicas.family.take(jobs).repeat(ranks)
    saved_bytes = replicas.per_rank(inputs.costs.saved_bytes.take(replicas.stage))
    kind, least_bytes = replicas.rank_kind.take(rank), saved_bytes.take(rank)
    pending = batch.training.most_pending.take(family)
    stated_bytes = np.where(pending > 0, pending * least_bytes, np.inf)
    room_bytes = room_for_activations(batch, columns, inputs.state, family, kind)
    most_bytes = np.maximum(least_bytes, np.minimum(room_bytes, stated_bytes))
    return Room(offsets(ranks), kind, family, least_bytes, most_bytes)


SLACK = 1.0 - 1e-9
"""Bounds in floats give way by this much, far more than their sums can be rounded."""


class Floors(NamedTuple):
    """Bounds on the results of n jobs with planned orders, float64[n] each."""

    iteration_s: Floats
    """No order makes a step shorter."""
    peak_bytes: Floats
    """No order holds less on the fullest rank."""
    usable_bytes: Floats
    """The most that the fullest rank may allocate."""


class _Times(NamedTuple):
    """Times of the virtual stages of jobs, int64[N, S], picoseconds."""

    forward: Ints
    """The shortest F."""
    backward: Ints
    """The shortest B."""
    weight: Ints
    """The shortest W."""
    forwards: Ints
    """All F's of a step."""
    backwards: Ints
    weights: Ints


def planned_floors(inputs: StepInputs, settings: Sequence[Setting], setting_of_job: Ints) -> Floors:
    """Return what no order of jobs can undercut, all of whose schedules are planned."""
    jobs = np.arange(len(setting_of_job))
    room = activation_room(inputs, jobs)
    finish_s = np.empty(len(jobs))
    placement = inputs.replicas.placements.of.take(inputs.replicas.of_job)
    for number in np.unique(placement).tolist():
        alike = np.flatnonzero(placement == number)
        # Their schedule, which their placement belongs to, is one.
        setting = settings[setting_of_job[alike[0]]]
        microbatches = np.array([settings[i].microbatches for i in setting_of_job[alike].tolist()])
        finish_s[alike] = _finish_s(inputs, setting, microbatches, alike, room)
    return Floors(finish_s * SLACK, *_memory(inputs, room))


def _memory(inputs: StepInputs, room: Room) -> tuple[Floats, Floats]:
    """Return the least peak and the most that jobs may allocate.

    A rank holds all chunks of its first microbatch when the first B begins.
    """
    workloads, state = inputs.replicas.workloads, inputs.state
    first = room.offset[:-1]
    peak = np.maximum.reduceat(state.static_bytes[room.kind] + room.least_bytes, first)
    devices = devices_of(workloads.batch, reserve_bytes(workloads.batch, workloads.jobs))
    # More activations pin more. Which rank is the fullest depends on the order.
    least = allocator_columns(devices, room.family, rank_bytes(state), room.kind, room.least_bytes)
    return peak * SLACK, np.maximum.reduceat(least.usable, first) / SLACK


def _times(inputs: StepInputs, replica: Ints, microbatches: Ints, stages: int) -> _Times:
    stage = inputs.replicas.stage_offset[replica][:, None] + np.arange(stages)
    kind = inputs.replicas.stage_kind[stage]
    row = inputs.times.first_row[replica][:, None]
    first = inputs.first_forward_ps[np.where(row < 0, kind, row + np.arange(stages))]
    middle, backward, last, weight, last_weight = np.moveaxis(inputs.kind_ps[kind], 2, 0)
    count = microbatches[:, None]
    return _Times(
        forward=np.minimum(first, middle),
        backward=np.minimum(backward, last),
        weight=np.minimum(weight, last_weight),
        forwards=first + (count - 1) * middle,
        backwards=last + (count - 1) * backward,
        weights=last_weight + (count - 1) * weight,
    )


def _finish_s(
    inputs: StepInputs, setting: Setting, microbatches: Ints, jobs: Ints, room: Room
) -> Floats:
    """Bound the steps of jobs with one placement, float64[N]; ``microbatches`` are int64[N]."""
    replicas, batch = inputs.replicas, inputs.replicas.workloads.batch
    replica, family = replicas.of_job.take(jobs), replicas.family.take(jobs)
    placement = replicas.placement(int(replica[0]))
    assert placement.directions == 1, "a planned schedule has one copy of the model"
    held = placement.model_stage
    times = _times(inputs, replica, microbatches, held.size)
    pipeline = replicas.pipeline.take(replica)
    stage = replicas.stage_offset[replica][:, None] + np.arange(held.size)
    saved_bytes = inputs.costs.saved_bytes[replicas.stage[stage]]
    rank = room.offset[jobs][:, None] + np.arange(setting.pp)
    most_bytes = room.most_bytes[rank]
    most_held = registry.SCHEDULES[setting.name].most_held
    if most_held is not None:
        most_bytes = np.minimum(most_bytes, most_held(setting.pp) * room.least_bytes[rank])
    share = inputs.costs.weight_share[pipeline]
    spans = _spans_ps(times, held, microbatches, saved_bytes, share, most_bytes)
    apart = batch.training.post_validation.take(family)[:, None] == 1
    ends = np.where(apart, spans, _ends_ps(times, held, spans))
    begins = np.where(apart, 0, _before(times.forward))
    last = (begins + times.forwards + times.backwards + times.weights)[:, held]
    chunk = replicas.chunk_first[replica][:, None] + np.arange(held.size)
    tail_s = inputs.chunk_tail_s[chunk].reshape(last.shape)
    own = replicas.rank_offset[replica][:, None] + np.arange(setting.pp)
    sent_s = (last * PS + tail_s).max(axis=2)
    done_s = np.maximum(ends * PS, sent_s) + inputs.reduce_after_s[own]
    done_s[:, [0, -1]] += inputs.tied_s.take(replica)[:, None]
    update_s = inputs.optimizer_s[replicas.rank_kind[own]]
    after_s = (update_s + inputs.gather_after_s[own]).max(axis=1)
    compute_s = inputs.costs.categories_s[replicas.stage[stage], :COMPUTE_TERMS].sum(axis=2)
    least_s = microbatches * compute_s[:, held].sum(axis=2).min(axis=1)
    late_s = batch.straggler_share().take(family) * least_s
    overhead_s = batch.cluster.step_overhead_s.take(family)
    floor: Floats = done_s.max(axis=1) + after_s + overhead_s + late_s
    return floor


def _before(times_ps: Ints) -> Ints:
    """Return the sum over the stages ahead of each, int64[N, S]."""
    before: Ints = np.cumsum(times_ps, axis=1) - times_ps
    return before


def _behind(times_ps: Ints) -> Ints:
    """Return the sum over the stages behind each, int64[N, S]."""
    behind: Ints = times_ps.sum(axis=1, keepdims=True) - np.cumsum(times_ps, axis=1)
    return behind


def _spans_ps(
    times: _Times,
    held: Ints,
    microbatches: Ints,
    saved_bytes: Floats,
    share: Floats,
    most_bytes: Floats,
) -> Ints:
    """Bound the time from the start of each rank to its end, int64[N, pp].

    Ranks hold stages, ``held`` int64[pp, chunks]. From its F on a microbatch leaves ``saved_bytes``
    float64[N, S] in a stage, of which a ``share`` float64[N] stays from B until W. A rank may hold
    ``most_bytes`` float64[N, pp].
    """
    work = (times.forwards + times.backwards + times.weights)[:, held].sum(axis=2)
    # From the start of an F of a stage to the start of its B.
    turn = times.forward + _behind(times.forward) + _behind(times.backward)
    first, last = held.min(axis=1), held.max(axis=1)
    returning = _behind(times.backward)
    to_first_backward = (turn - returning)[:, first] + returning[:, last]
    behind = to_first_backward + (times.backwards + times.weights)[:, held].sum(axis=2)
    most_bytes = most_bytes * ROUNDING
    kept = saved_bytes * (turn + share[:, None] * times.backward)
    by_memory = _ratio(kept[:, held].sum(axis=2), most_bytes)
    # Of one chunk a whole number of microbatches is held.
    at_once = np.floor(_ratio(most_bytes[..., None], saved_bytes[:, held]) / SLACK)
    by_number = _ratio(turn[:, held].astype(np.float64), at_once).max(axis=2)
    longest = microbatches[:, None] * np.maximum(by_memory, by_number) * SLACK
    spans: Ints = np.maximum(np.maximum(work, behind), np.floor(longest).astype(np.int64))
    return spans


def _ratio(dividend: Floats, divisor: Floats) -> Floats:
    """Return 0, which bounds nothing, where a divisor is 0."""
    shape = np.broadcast_shapes(dividend.shape, divisor.shape)
    return np.divide(dividend, divisor, out=np.zeros(shape), where=divisor > 0.0)


def _ends_ps(times: _Times, held: Ints, spans_ps: Ints) -> Ints:
    """Bound the end of each rank, counted from the first start of any, int64[N, pp]."""
    first = held.min(axis=1)
    begins = _before(times.forward)[:, first]
    ends = begins + spans_ps
    # The last B of a rank, and those of the stages ahead, on their ranks, that follow it.
    work = (times.forwards + times.backwards)[:, held].sum(axis=2)
    to_first_backward = (
        times.forward.sum(axis=1, keepdims=True) + _behind(times.backward)[:, held.max(axis=1)]
    )
    last_backward = np.maximum(
        begins + work, to_first_backward + times.backwards[:, held].sum(axis=2)
    )
    ahead = _before(times.backward)[:, first]
    by_stage = np.argsort(first)
    # Of the ranks whose first stage is behind, the one whose chain ends last.
    latest = np.maximum.accumulate((last_backward + ahead)[:, by_stage[::-1]], axis=1)[:, ::-1]
    follows = latest - ahead[:, by_stage] + times.weight[:, first[by_stage]]
    latest_ends: Ints = np.empty_like(ends)
    latest_ends[:, by_stage] = np.maximum(ends[:, by_stage], follows)
    return latest_ends
