"""What data parallelism shards, sends and overlaps, for every run of layers of a replica."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from projector.arrays import Array, Flags, Floats, Ints
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from projector.kernels.collectives import collective_time_columns
from projector.kernels.grouping import concatenated_ranges, group_rows, offsets, segment_sums
from projector.kernels.step import gathered_forwards, overlapped_stages
from projector.lower.codes import number_codes
from projector.lower.placement import Place
from projector.operations.cost import WorkloadCosts, share_leaving
from projector.operations.linear import NF4_BYTES
from projector.projection.pipeline_costs import PipelineCosts
from projector.projection.replicas import Replicas


@dataclass(frozen=True, slots=True)
class DataParallelCosts:
    """Collectives of the data-parallel groups, for one layer of each run of the replicas."""

    gather_s: Floats
    """float64[runs]: all-gather of one layer's weights."""
    reduce_s: Floats
    """float64[runs]: reduction of one layer's gradients."""
    gather_copy_s: Floats
    """float64[runs]: copies of gathered weights, in the stream of the compute."""
    reduce_copy_s: Floats
    """float64[runs]: copies of gradients before they are reduced."""
    gather_bytes: Floats
    """float64[runs]: what one layer's gather moves into each rank."""
    reduce_bytes: Floats
    gather_algorithm: Ints
    """int64[runs]: of the dense part; -1 where nothing moves."""
    reduce_algorithm: Ints


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Durations of the stages of replicas, float64[kinds] but for the first forward."""

    first_forward_s: Floats
    """float64[stages]: forward of the first microbatch; it depends on the stages before."""
    forward_s: Floats
    """Every other forward."""
    backward_s: Floats
    """Every backward but the last: input and weight gradient together."""
    last_backward_s: Floats
    exposed_first_s: Floats
    """float64[stages]: what data parallelism adds to the first forward."""
    exposed_each_s: Floats
    """What it adds to another forward and to a backward, together."""
    exposed_last_s: Floats
    """What it adds to the last backward."""
    tail_s: Floats
    """Gradient traffic left when the last backward has ended."""
    reduce_after_s: Floats
    """Gradient traffic that waits for the rank's last backward."""
    gather_after_s: Floats
    """Parameter gather that nothing overlaps."""


def cost_data_parallel(replicas: Replicas, costs: WorkloadCosts) -> DataParallelCosts:
    """Cost the gathers and reductions of every run of layers.

    Dense parameters are reduced over DP * CP ranks, routed experts over the replicas of an
    expert, both over all directions of the pipeline. Below ZeRO 3 layers share buckets: a layer's
    time is its share of a bucket's. ZeRO 3 and FSDP gather and reduce layer by layer. Where what is
    sharded has several copies, a rank's shard of the gradients is summed over them after the
    reduce-scatter (hybrid sharding).
    """
    sent, workloads = _sent(replicas, costs), replicas.workloads
    copied = _copy_passes(replicas).take(replicas.of_run, axis=0)
    rate = workloads.devices["elementwise_bytes_per_s"][workloads.device[replicas.pipeline]]
    rate = rate.take(replicas.of_run)
    return DataParallelCosts(
        **sent,
        gather_copy_s=copied[:, 0] * sent["gather_bytes"] / rate,
        reduce_copy_s=copied[:, 1] * sent["reduce_bytes"] / rate,
    )


def _sent(replicas: Replicas, costs: WorkloadCosts) -> dict[str, Array]:
    """Return the columns of `DataParallelCosts` that are of collectives."""
    workloads, columns, training = replicas.workloads, replicas.columns, replicas.jobs.training
    owner, workload, of_run = _distinct_layers(replicas, costs)
    fabric = replicas.fabric[owner]
    grad_bytes, weight_bytes = training.reduce_bytes[owner], training.weight_bytes[owner]
    stage = columns.zero_stage[owner]
    names = ("gather_s", "reduce_s", "gather_bytes", "reduce_bytes")
    sums = {name: np.zeros(len(owner)) for name in names}
    algorithms: dict[str, Ints] = {}
    groups = _groups(replicas)
    whole = costs.dense_parameters + costs.expert_parameters
    packed = (costs.packed_parameters / np.maximum(whole, 1.0))[workload]
    # All weights are gathered to be used, or those that were updated.
    sent_bytes = weight_bytes * (1.0 - packed) + NF4_BYTES * packed
    sent_bytes = np.where(stage >= 3, sent_bytes, weight_bytes)
    for position, (parameters, trained) in enumerate(
        (
            (costs.dense_parameters[workload], costs.trained_dense[workload]),
            (costs.expert_parameters[workload], costs.trained_experts[workload]),
        )
    ):
        if position and not parameters.any():
            continue
        shard, across = (each.take(owner) for each in groups[position])
        ranks = shard.ranks
        bucket = bucket_parameters(replicas.jobs.parallelism.bucket[owner], ranks)
        gathered = np.where(stage >= 3, parameters, trained)
        gather_size = np.where(stage >= 3, gathered, np.maximum(gathered, bucket))
        size = np.where(stage >= 3, trained, np.maximum(trained, bucket))
        share = trained / np.maximum(size, 1.0)
        gathers = (stage >= 1) & (ranks > 1)
        operation = np.where(stage >= 1, REDUCE_SCATTER, ALL_REDUCE)
        gather_s, gather_algorithm = collective_time_columns(
            ALL_GATHER, gather_size * sent_bytes * gathers, ranks, shard.local, fabric,
            workloads.fabrics, shard.span,
        )  # fmt: skip
        reduce_s, reduce_algorithm = collective_time_columns(
            operation, size * grad_bytes, ranks, shard.local, fabric, workloads.fabrics, shard.span
        )
        summed_s, _ = collective_time_columns(
            ALL_REDUCE, size / ranks * grad_bytes, across.ranks, across.local, fabric,
            workloads.fabrics, across.span,
        )  # fmt: skip
        reduce_s += summed_s
        sums["gather_s"] += gather_s * (gathered / np.maximum(gather_size, 1.0))
        sums["reduce_s"] += reduce_s * share
        sums["gather_bytes"] += gathered * sent_bytes * gathers
        sums["reduce_bytes"] += trained * grad_bytes * (ranks * across.ranks > 1)
        if position == 0:
            algorithms = {"gather": gather_algorithm, "reduce": reduce_algorithm}
    return {
        **{name: values.take(of_run) for name, values in sums.items()},
        "gather_algorithm": algorithms["gather"].take(of_run),
        "reduce_algorithm": algorithms["reduce"].take(of_run),
    }


def _distinct_layers(replicas: Replicas, costs: WorkloadCosts) -> tuple[Ints, Ints, Ints]:
    """Return replica and workload of each layer that is sent in its own way, and that of each run.

    Layers are sent alike where they have equal parameters, and their replicas shard and send alike
    on one fabric.
    """
    workloads, columns, jobs = replicas.workloads, replicas.columns, replicas.jobs
    parameters = (
        costs.dense_parameters, costs.expert_parameters, costs.trained_dense,
        costs.trained_experts, costs.packed_parameters,
    )  # fmt: skip
    first_layer, layer = group_rows(
        *(np.ascontiguousarray(each).view(np.int64) for each in parameters)
    )
    rates = (jobs.training.reduce_bytes, jobs.training.weight_bytes, jobs.parallelism.bucket)
    first_replica, sharing = group_rows(
        replicas.fabric,
        columns.zero_stage,
        *(column for pair in _groups(replicas) for place in pair for column in place),
        *(each.view(np.int64) for each in rates),
    )
    of_run = layer.take(workloads.run_workload.take(replicas.run))
    code = sharing.take(replicas.of_run) * len(first_layer) + of_run
    distinct, number = number_codes(code, len(first_replica) * len(first_layer))
    replica, of_layer = np.divmod(distinct, len(first_layer))
    return first_replica.take(replica), first_layer.take(of_layer), number


def _groups(replicas: Replicas) -> tuple[tuple[Place, Place], tuple[Place, Place]]:
    """Return who shards, and who holds the same shard, of dense parameters and of experts.

    Copies of the model that run in several directions share what their ranks shard.
    """
    columns, directions = replicas.columns, replicas.directions
    ranks = columns.dp * columns.cp // columns.copies
    expert_ranks = columns.edp // columns.copies
    return (
        (
            Place(ranks * directions, columns.shard_local, columns.shard_span),
            Place(columns.copies, columns.copies_local, columns.copies_span),
        ),
        (
            Place(expert_ranks * directions, columns.edp_local, columns.edp_span),
            Place(columns.copies, columns.expert_copies_local, columns.expert_copies_span),
        ),
    )


def _copy_passes(replicas: Replicas) -> Floats:
    """Return float64[replicas, 2]: bytes moved for each byte that is gathered and reduced."""
    passes = np.asarray(replicas.jobs.cluster.copy_passes).reshape(len(replicas), -1, 2)
    return passes[np.arange(len(replicas)), replicas.jobs.parallelism.fsdp]


def stage_times(
    replicas: Replicas, costs: PipelineCosts, parallel: DataParallelCosts
) -> StageTimes:
    """Put compute and data-parallel traffic of each stage beside each other.

    Notes
    -----
    ZeRO 3 and FSDP gather in every forward and backward and reduce in every backward, ZeRO 2
    reduces in every backward. Below ZeRO 3 only the first forward waits for parameters, which all
    ranks gather from the start of the step on; below ZeRO 2 only the last backward sends
    gradients, whose remainder is the stage's tail. What overlaps slows the compute beside it by
    the device's ``comm_compute_slowdown``, and takes longer itself by ``compute_comm_slowdown``.
    Copies around the collectives of FSDP take their turn with the compute.
    """
    split, flags = replicas.jobs.parallelism, pass_flags(replicas)
    forward_s, backward_s = costs.forward_s[replicas.run], costs.backward_s[replicas.run]
    every_gather, every_reduce, overlaps_gather, overlaps_reduce, regathers = flags
    pass_of = Passes(replicas)
    nothing = np.zeros(len(forward_s))
    plain_f, plain_b = pass_of.total(forward_s), pass_of.total(backward_s)
    gather, reduce = parallel.gather_s, parallel.reduce_s
    ahead_f, ahead_b = split.forward_ahead, split.backward_ahead
    copies_f = parallel.gather_copy_s
    copies_b = parallel.reduce_copy_s + np.where(regathers[replicas.of_run], copies_f, 0.0)

    def select(flags: Flags, values: Floats) -> Floats:
        return np.where(flags[replicas.of_run], values, 0.0)

    ahead = flags.ahead
    every_f, _ = pass_of.run(
        forward_s + copies_f, select(every_gather, gather), nothing, ahead_f, every_gather,
        backward=False,
    )  # fmt: skip
    first_f = np.where(
        ahead[replicas.of_stage],
        pass_of.run_ahead(forward_s, select(ahead, gather)),
        every_f[replicas.stage_kind],
    )
    again = every_gather & regathers
    gathered_again = select(again, gather)
    every_b, every_tail = pass_of.run(
        backward_s + copies_b, gathered_again, select(every_reduce, reduce), ahead_b,
        again | every_reduce, backward=True,
    )  # fmt: skip
    # The last backward is like any other unless it alone sends gradients.
    alone = overlaps_reduce & ~every_reduce
    last_b, last_tail = pass_of.run(
        backward_s + copies_b, gathered_again, select(alone, reduce), ahead_b, alone, backward=True
    )
    is_alone = alone[replicas.of_kind]
    last_b = np.where(is_alone, last_b, every_b)
    last_tail = np.where(is_alone, last_tail, every_tail)
    # With a reduction in every backward the next operation waits for it.
    waits = every_reduce[replicas.of_kind]
    every_b = every_b + np.where(waits, every_tail, 0.0)
    last_b = last_b + np.where(waits, last_tail, 0.0)
    after = flags.reduces_after
    return StageTimes(
        first_forward_s=first_f,
        forward_s=every_f,
        backward_s=every_b,
        last_backward_s=last_b,
        exposed_first_s=first_f - plain_f[replicas.stage_kind],
        exposed_each_s=(every_f - plain_f) + (every_b - plain_b),
        exposed_last_s=last_b - plain_b,
        tail_s=np.where(waits, 0.0, last_tail),
        reduce_after_s=pass_of.total(select(after, reduce)),
        gather_after_s=pass_of.total(select(~overlaps_gather, gather)),
    )


class PassFlags(NamedTuple):
    """When replicas gather and reduce, bool[replicas]."""

    every_gather: Flags
    """In every forward and backward."""
    every_reduce: Flags
    """In every backward."""
    overlaps_gather: Flags
    overlaps_reduce: Flags
    regathers: Flags
    """Whether weights are freed behind the forward."""

    @property
    def ahead(self) -> Flags:
        """Whether the first forward alone waits for gathers, which run from its start on."""
        return np.asarray(self.overlaps_gather & ~self.every_gather)

    @property
    def reduces_after(self) -> Flags:
        """Whether gradients are reduced when the last backward has ended."""
        return np.asarray(~self.overlaps_reduce & ~self.every_reduce)

    @property
    def all(self) -> tuple[Flags, ...]:
        """Every one, those that follow from the others last."""
        return (*self, self.ahead, self.reduces_after)


def pass_flags(replicas: Replicas) -> PassFlags:
    """Return when each replica gathers and reduces."""
    split, zero = replicas.jobs.parallelism, replicas.columns.zero_stage
    every_gather = np.asarray(zero >= 3)
    return PassFlags(
        every_gather,
        np.asarray(zero >= 2),
        (split.overlap_param_gather == 1) | every_gather,
        np.asarray(split.overlap_grad_reduce == 1),
        np.asarray(split.regathers == 1),
    )


class Passes:
    """Runs the overlap kernels over all stages and adds the slowdown of what was hidden."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._count = replicas.workloads.run_count[replicas.run]
        slowdown = np.asarray(replicas.jobs.cluster.slowdown)
        shard, across = _groups(replicas)[0]
        # Of the bytes that a rank sends, those between copies are as many as its own shard.
        within = 1.0 - 1.0 / shard.ranks
        between = (across.ranks > 1) / shard.ranks
        leaving = (
            within * share_leaving(shard.ranks, shard.local)
            + between * share_leaving(across.ranks, across.local)
        ) / np.maximum(within + between, 1e-9)
        self.slowdown = (1.0 - leaving) * slowdown[:, 0] + leaving * slowdown[:, 1]
        # How much longer a collective takes while compute runs beside it.
        self.longer = 1.0 + slowdown[:, 2]
        # The first copy stands for all: each gathers on ranks of its own.
        self._rank_of_stage: Ints = replicas.placements.of_replicas(
            lambda placement: placement.rank_of[: placement.num_stages]
        )

    def total(self, values: Floats) -> Floats:
        """Sum one value a layer over the layers of each kind of stage."""
        return segment_sums(self._replicas.run_offset, values * self._count)

    def run(
        self,
        compute_s: Floats,
        gather_s: Floats,
        reduce_s: Floats,
        ahead: Ints,
        sends: Flags,
        *,
        backward: bool,
    ) -> tuple[Floats, Floats]:
        """Return durations and tails of each kind of stage.

        Parameters
        ----------
        compute_s, gather_s, reduce_s : float64[runs]
        ahead : int64[replicas]
            Layers that each gathers ahead.
        sends : bool[replicas]
            Whether a replica sends anything; the others compute alone.
        backward : bool
        """
        all_s, all_tail = self.total(compute_s), np.zeros(len(self._replicas.of_kind))
        kinds = np.flatnonzero(sends.take(self._replicas.of_kind))
        if not len(kinds):
            return all_s, all_tail
        first = self._replicas.run_offset.take(kinds)
        runs = self._replicas.run_offset.take(kinds + 1) - first
        offset, run = offsets(runs), concatenated_ranges(first, runs)
        compute_s, gather_s, reduce_s = (each.take(run) for each in (compute_s, gather_s, reduce_s))
        count, of_kind = self._count.take(run), self._replicas.of_kind.take(kinds)
        longer, plain = self.longer.take(of_kind), all_s.take(kinds)
        longer_run = longer.repeat(runs)
        duration, tail = np.empty(len(kinds)), np.empty(len(kinds))
        overlapped_stages(
            offset, count, compute_s, gather_s * longer_run, reduce_s * longer_run, backward,
            ahead.take(of_kind), duration, tail,
        )  # fmt: skip
        # What the compute waits for has nothing beside it.
        tail /= longer
        sent = segment_sums(offset, gather_s * count) + segment_sums(offset, reduce_s * count)
        # Rounding may leave the recurrence a hair off the plain sum; where nothing is sent
        # nothing is exposed, also beside other jobs that do send.
        exposed = np.where(sent > 0.0, np.maximum(duration - plain, 0.0), 0.0) / longer
        hidden = np.maximum(sent - exposed - tail, 0.0) * longer
        all_s[kinds] = plain + exposed + self.slowdown.take(of_kind) * hidden
        all_tail[kinds] = tail
        return all_s, all_tail

    def run_ahead(self, compute_s: Floats, gather_s: Floats) -> Floats:
        """Return what the first microbatch takes in each stage, behind gathers that run ahead."""
        replicas = self._replicas
        plain = self.total(compute_s)[replicas.stage_kind]
        if not gather_s.any():
            return plain
        gather_s = gather_s * self.longer[replicas.of_run]
        duration = np.empty(len(plain))
        ranks = int(self._rank_of_stage.max()) + 1
        gathered_forwards(
            replicas.stage_offset, self._rank_of_stage, replicas.stage_kind, replicas.run_offset,
            self._count, compute_s, gather_s, self.slowdown, np.empty(ranks), np.empty(ranks),
            duration,
        )  # fmt: skip
        # Where nothing is gathered nothing is added, whatever the rounding.
        gathers = (self.total(gather_s) > 0.0)[replicas.stage_kind]
        return np.where(gathers, np.maximum(duration, plain), plain)


def bucket_parameters(stated: Floats, ranks: Ints) -> Floats:
    """Return the parameters of a gradient bucket of ``ranks``; 0 is not stated.

    Without a size Megatron takes max(40 M, 1 M * ranks) (DistributedDataParallel).
    """
    return np.where(stated > 0, stated, np.maximum(40e6, 1e6 * ranks))
