"""What orders of a planned schedule may hold, and what none of them can undercut.

The activations that each rank has room for bound an order. A search plans no order that cannot
matter.

A planned order depends on times and memory, and takes milliseconds to find. A bound on every order
takes microseconds, all jobs of a batch together. It is proven from what every order must keep to:

- A rank runs all its operations one at a time, and its first is an F of its first stage, which no
  microbatch reaches before it has passed all stages ahead, with the transfers between them.
- A B of its last stage needs the F's of all stages, and the B's behind it; every B and W of the
  rank comes after that. Before it, the rank runs no more F's than it has room for.
- Its last F is one of its last stage. Behind it lie the B's of all stages down to its first one,
  and no more B's and W's of the rank than free what it has room for.
- The last of the F's and B's of a rank is a B of its first stage, as the B of an earlier stage
  follows that of a later one. The B's of the stages ahead follow it one by one, then a W.
- A microbatch is held from its F until its B ends, and a share of it until its W ends. Between lie
  at least the F's and B's of all stages behind. What all microbatches are held for, added up,
  cannot exceed the span of the rank times what the rank may hold. And where k microbatches find
  room, the F of the k-th one from any other follows the B of that.

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
from projector.projection.step import StepInputs
from projector.schedule import registry
from projector.schedule.registry import Setting
from projector.schedule.replay.order_times import to_ps


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
    onward: Ints
    """From the start of an F to the end of that of the last stage."""
    returning: Ints
    """From the end of the last stage's F to the start of a B."""


def planned_floors(
    inputs: StepInputs,
    settings: Sequence[Setting],
    setting_of_job: Ints,
    most_peak: Floats | None = None,
) -> Floors:
    """Return what no order of jobs can undercut, all of whose schedules are planned.

    ``most_peak`` float64[jobs] leaves out orders that hold more bytes than that.
    """
    jobs = np.arange(len(setting_of_job))
    room = activation_room(inputs, jobs)
    if most_peak is not None:
        left = most_peak.repeat(np.diff(room.offset)) - inputs.state.static_bytes[room.kind]
        most_bytes = np.minimum(room.most_bytes, left / SLACK)
        room = room._replace(most_bytes=np.maximum(room.least_bytes, most_bytes))
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
    middle, every, last, weight, last_weight = np.moveaxis(inputs.kind_ps[kind], 2, 0)
    count = microbatches[:, None]
    p2p = inputs.p2p
    latency = to_ps(p2p.latency_s[p2p.first[replica][:, None] + np.arange(stages)])
    forward, backward = np.minimum(first, middle), np.minimum(every, last)
    returned = backward + latency[..., 1]
    return _Times(
        forward=forward,
        backward=backward,
        weight=np.minimum(weight, last_weight),
        forwards=first + (count - 1) * middle,
        backwards=last + (count - 1) * every,
        weights=last_weight + (count - 1) * weight,
        onward=np.cumsum((forward + latency[..., 0])[:, ::-1], axis=1)[:, ::-1],
        returning=returned.sum(axis=1, keepdims=True) - np.cumsum(returned, axis=1),
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
    spans, last_backwards = _spans_ps(times, held, microbatches, saved_bytes, share, most_bytes)
    apart = batch.training.post_validation.take(family)[:, None] == 1
    ends = np.where(apart, spans, _ends_ps(times, held, spans, last_backwards))
    begins = np.where(apart, 0, times.onward[:, :1] - times.onward)
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


def _spans_ps(
    times: _Times,
    held: Ints,
    microbatches: Ints,
    saved_bytes: Floats,
    share: Floats,
    most_bytes: Floats,
) -> tuple[Ints, Ints]:
    """Bound the time from the start of each rank to its end, and to that of its last B.

    Both are int64[N, pp]. Ranks hold rising stages, ``held`` int64[pp, chunks]. From its F on a
    microbatch leaves ``saved_bytes`` float64[N, S] in a stage, of which a ``share`` float64[N]
    stays from B until W. A rank may hold ``most_bytes`` float64[N, pp].
    """
    forward, backward, weight, forwards, backwards, weights, onward, returning = (
        column[:, held] for column in times
    )
    saved, count = saved_bytes[:, held], microbatches[:, None, None]
    share, most_bytes = share[:, None, None], np.maximum(most_bytes, 1.0) * ROUNDING / SLACK
    first, last = np.s_[..., 0], np.s_[..., -1]
    to_first_backward = onward[first] + returning[last]
    split = (backwards + weights).sum(axis=2)
    # F's before the first B; B's and W's behind the last F.
    before = most_bytes * _ratio(forward, saved).max(axis=2)
    freeing = np.maximum(_ratio(backward + weight, saved), _ratio(weight, share * saved))
    behind = most_bytes * freeing.max(axis=2)
    other = np.maximum((count * forward).sum(axis=2) - before, 0.0).astype(np.int64)
    least = (count * (backward + weight)).sum(axis=2)  # What is longer of the last lies behind.
    between = other + np.maximum(least - behind, 0.0).astype(np.int64)
    # Only where an F is left does the last one follow the first B.
    to_last_forward = np.where(other > 0, to_first_backward + between, 0)
    from_last_forward = (onward - forward)[last] + (returning + backward)[first]
    # A microbatch in a chunk is held in the chunks before as well.
    at_once = np.floor(_ratio(most_bytes[..., None], np.cumsum(saved, axis=2)))
    at_once = np.clip(at_once, 1, count).astype(np.int64)
    # From the start of an F to the end of its B.
    turn = onward + returning + backward
    turns, more = np.divmod(count - 1, at_once)
    # Those of the chunks before begin and end the microbatch.
    by_turns = turns * turn + more * forward + turn[..., :1]
    last_backwards: Ints = np.maximum.reduce(
        [
            (forwards + backwards).sum(axis=2),
            to_first_backward + other + backwards.sum(axis=2),
            to_last_forward + from_last_forward,
            by_turns.max(axis=2),
        ]
    )
    kept = saved * (turn + share * weight)
    spans: Ints = np.maximum.reduce(
        [
            forwards.sum(axis=2) + split,
            to_first_backward + other + split,
            last_backwards + weight[first],
            np.floor((count * kept).sum(axis=2) / most_bytes).astype(np.int64),
        ]
    )
    return spans, last_backwards


def _ratio(dividend: Floats | Ints, divisor: Floats) -> Floats:
    """Return infinity, which bounds nothing, where a divisor is 0."""
    ratio = np.full(np.broadcast_shapes(dividend.shape, divisor.shape), np.inf)
    np.divide(dividend, divisor, out=ratio, where=divisor > 0.0)
    return ratio


def _ends_ps(times: _Times, held: Ints, spans_ps: Ints, last_backwards_ps: Ints) -> Ints:
    """Bound the end of each rank, counted from the first start of any, int64[N, pp].

    ``spans_ps`` and ``last_backwards_ps`` are those of `_spans_ps`.
    """
    first = held[:, 0]
    begins = (times.onward[:, :1] - times.onward)[:, first]
    # From the end of a B of the first stage that a rank holds to the end of that of the model.
    ahead = (times.returning[:, :1] - times.returning + times.backward[:, :1] - times.backward)[
        :, first
    ]
    by_stage = np.argsort(first)
    # Of the ranks whose first stage is behind, the one whose chain ends last.
    chains = (begins + last_backwards_ps + ahead)[:, by_stage[::-1]]
    latest = np.maximum.accumulate(chains, axis=1)[:, ::-1]
    follows = latest - ahead[:, by_stage] + times.weight[:, first[by_stage]]
    latest_ends: Ints = np.empty_like(spans_ps)
    latest_ends[:, by_stage] = np.maximum((begins + spans_ps)[:, by_stage], follows)
    return latest_ends
