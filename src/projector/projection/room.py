"""What planned orders may hold: the activations that each rank of a job has room for."""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.grouping import concatenated_ranges, offsets
from projector.projection.device_memory import room_for_activations
from projector.projection.step import StepInputs


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
