"""What data parallelism shards, sends and overlaps, for every run of layers of a replica."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints, bits
from projector.kernels import stage_times as kernels
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from projector.kernels.collectives import collective_time_columns
from projector.kernels.grouping import group_rows
from projector.lower.placement import Place
from projector.operations.cost import WorkloadCosts, share_leaving
from projector.operations.linear import NF4_BYTES
from projector.projection.pipeline_costs import PipelineCosts
from projector.projection.replicas import Replicas, pair_places


@dataclass(frozen=True, eq=False)
class DataParallelCosts:
    """Collectives of the data-parallel groups, for one layer of each kind that is sent alike."""

    replicas: Replicas
    sharing: Ints
    """int64[replicas]: equal where they send equal layers alike."""
    layer: Ints
    """int64[runs of pipelines]: equal where layers have as much to send."""
    sent: kernels.SentLayers
    gather_bytes: Floats
    """float64[sent]: what one layer's gather moves into each rank."""
    reduce_bytes: Floats
    parts: "tuple[Part, ...]"
    """Of what there is: dense parameters, routed experts."""

    @cached_property
    def of_run(self) -> Ints:
        """int64[runs of replicas]: which of these a layer of each run is."""
        replicas = self.replicas
        return self.sent.row[self.sharing.take(replicas.of_run), self.layer.take(replicas.run)]


class Part(NamedTuple):
    """What one layer's dense parameters or routed experts add: of gathers, and of reductions."""

    time_s: Floats
    """float64[2, sent]"""
    bytes: Floats
    """float64[2, sent]"""
    algorithm: Ints
    """int64[2, sent]: -1 where nothing moves."""


def cost_data_parallel(replicas: Replicas, costs: WorkloadCosts) -> DataParallelCosts:
    """Cost the gathers and reductions of every layer that is sent in its own way.

    Dense parameters are reduced over DP * CP ranks, routed experts over the replicas of an
    expert, both over all directions of the pipeline. Below ZeRO 3 layers share buckets: a layer's
    time is its share of a bucket's. ZeRO 3 and FSDP gather and reduce layer by layer. Where what is
    sharded has several copies, a rank's shard of the gradients is summed over them after the
    reduce-scatter (hybrid sharding).
    """
    workloads, columns, training = replicas.workloads, replicas.columns, replicas.jobs.training
    groups = _groups(replicas)
    found = _distinct_layers(replicas, costs, groups)
    owner, workload = found.owner, found.workload
    fabric = replicas.fabric[owner]
    grad_bytes, weight_bytes = training.reduce_bytes[owner], training.weight_bytes[owner]
    stage = columns.zero_stage[owner]
    parts: list[Part] = []
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
        gather_s = gather_s * (gathered / np.maximum(gather_size, 1.0))
        moved = gathered * sent_bytes * gathers, trained * grad_bytes * (ranks * across.ranks > 1)
        parts.append(
            Part(
                np.stack([gather_s, reduce_s * share]),
                np.stack(moved),
                np.stack([gather_algorithm, reduce_algorithm]),
            )
        )
    gather_s, reduce_s = sum((part.time_s for part in parts), np.zeros((2, len(owner))))
    gather_bytes, reduce_bytes = sum((part.bytes for part in parts), np.zeros((2, len(owner))))
    rate, passes = found.rate[owner], found.copy_passes[owner]
    sent = kernels.SentLayers(
        row=found.row,
        gather_s=gather_s,
        reduce_s=reduce_s,
        gather_copy_s=passes[:, 0] * gather_bytes / rate,
        reduce_copy_s=passes[:, 1] * reduce_bytes / rate,
    )
    return DataParallelCosts(
        replicas, found.sharing, found.layer, sent, gather_bytes, reduce_bytes, tuple(parts)
    )


class _Layers(NamedTuple):
    owner: Ints
    """int64[sent]: a replica that sends it."""
    workload: Ints
    """int64[sent]"""
    row: Ints
    """int64[sharings, layers]: which of them each is."""
    sharing: Ints
    """int64[replicas]"""
    layer: Ints
    """int64[runs of pipelines]"""
    rate: Floats
    """float64[replicas]: bytes/s of copies."""
    copy_passes: Floats
    """float64[replicas, 2]: bytes moved for each byte that is gathered and reduced."""


def _distinct_layers(replicas: Replicas, costs: WorkloadCosts, groups: "_Groups") -> _Layers:
    workloads, columns, jobs = replicas.workloads, replicas.columns, replicas.jobs
    parameters = (
        costs.dense_parameters, costs.expert_parameters, costs.trained_dense,
        costs.trained_experts, costs.packed_parameters
    )  # fmt: skip
    first_layer, of_workload = group_rows(*map(bits, parameters))
    rates = (jobs.training.reduce_bytes, jobs.training.weight_bytes, jobs.parallelism.bucket)
    # Sections that are one say all of this at once.
    few, of_few = group_rows(
        jobs.parallelism.index, jobs.cluster.index, jobs.model.index, replicas.placements.of,
        *map(bits, rates[:2]),
    )  # fmt: skip
    rate = workloads.devices["elementwise_bytes_per_s"][workloads.device.take(replicas.pipeline)]
    passes = np.asarray(jobs.cluster.copy_passes).reshape(len(replicas), -1, 2)
    passes = passes[np.arange(len(replicas)), jobs.parallelism.fsdp]
    first, sharing = group_rows(
        replicas.fabric[few],
        columns.zero_stage[few],
        *(column[few] for pair in groups for place in pair for column in place),
        *(bits(each[few]) for each in (*rates, rate, passes)),
    )
    sharing = sharing.take(of_few)
    layer = of_workload.take(workloads.run_workload)
    used = np.zeros((len(first), len(first_layer)), np.bool_)
    used[sharing.take(replicas.of_run), layer.take(replicas.run)] = True
    owner, of_layer = np.nonzero(used)
    row = (np.cumsum(used) - 1).reshape(used.shape)
    return _Layers(
        few[first].take(owner), first_layer.take(of_layer), row, sharing, layer, rate, passes
    )


_Groups = tuple[tuple[Place, Place], tuple[Place, Place]]


def _groups(replicas: Replicas) -> _Groups:
    """Return who shards, and who holds the same shard (all directions), densely and of experts."""
    columns, directions = replicas.columns, replicas.directions
    ranks = columns.dp * columns.cp // columns.copies
    expert_ranks = columns.edp // columns.copies
    together = np.ones_like(directions)
    if (directions > 1).any():
        # Where no rank leaves its domain for the one that holds its stages' other copy, domains
        # hold both. Elsewhere they are counted once.
        local, _ = pair_places(columns, np.zeros_like(columns.pp), columns.pp - 1)
        together = np.where(directions > 1, local, 1)
    return (
        (
            Place(ranks * directions, columns.shard_local * together, columns.shard_span),
            Place(columns.copies, columns.copies_local, columns.copies_span),
        ),
        (
            Place(expert_ranks * directions, columns.edp_local * together, columns.edp_span),
            Place(columns.copies, columns.expert_copies_local, columns.expert_copies_span),
        ),
    )


def stage_times(
    replicas: Replicas, costs: PipelineCosts, parallel: DataParallelCosts
) -> kernels.StageTimes:
    """Put compute and data-parallel traffic of each stage beside each other.

    What overlaps slows the compute beside it by the device's ``comm_compute_slowdown``, and takes
    longer itself by ``compute_comm_slowdown``. `time_stages` says what waits for what.
    """
    split, flags, beside = replicas.jobs.parallelism, pass_flags(replicas), slowdowns(replicas)
    kinds, stages = int(replicas.first_kind[-1]), int(replicas.stage_offset[-1])
    kind_s, first_row = np.empty((kernels.KIND_TIMES, kinds)), np.empty(len(replicas), np.int64)
    first_s, exposed_s = np.empty((2, kinds + stages))
    workloads = replicas.workloads
    rows = kernels.time_stages(
        kernels.PassReplicas(
            pattern=replicas.pattern,
            pipeline=replicas.pipeline,
            row_first=replicas.row_first,
            sharing=parallel.sharing,
            flags=flags.bits(),
            forward_ahead=split.forward_ahead,
            backward_ahead=split.backward_ahead,
            slowdown=beside.compute,
            longer=beside.collectives,
        ),
        replicas.patterns,
        kernels.PassLayers(
            workloads.run_offset,
            workloads.run_count,
            parallel.layer,
            np.ascontiguousarray(costs.forward_s),
            np.ascontiguousarray(costs.backward_s),
            np.ascontiguousarray(costs.input_s),
            np.ascontiguousarray(costs.weight_s),
        ),
        parallel.sent,
        np.full(len(workloads.first), -1),
        kind_s,
        first_s,
        exposed_s,
        first_row,
    )
    return kernels.StageTimes._make([*kind_s, first_s[:rows], exposed_s[:rows], first_row])


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
    splits: Flags
    """Whether gradients of the weights are operations of their own."""

    def bits(self) -> Ints:
        """Return the same as bits of one number, int64[replicas]."""
        bits = np.zeros(len(self.every_gather), np.int64)
        for bit, flags in enumerate(self):
            bits |= flags.astype(np.int64) << bit
        return bits

    @property
    def ahead(self) -> Flags:
        """Whether the first forward alone waits for gathers, which run from its start on."""
        return np.asarray(self.overlaps_gather & ~self.every_gather)


def pass_flags(replicas: Replicas) -> PassFlags:
    """Return when each replica gathers and reduces."""
    split, zero = replicas.jobs.parallelism, replicas.columns.zero_stage
    placements = replicas.placements
    every_gather = np.asarray(zero >= 3)
    return PassFlags(
        every_gather,
        np.asarray(zero >= 2),
        (split.overlap_param_gather == 1) | every_gather,
        np.asarray(split.overlap_grad_reduce == 1),
        np.asarray(split.regathers == 1),
        np.array([each.splits_backward for each in placements.unique], np.bool_)[placements.of],
    )


class Slowdowns(NamedTuple):
    """What compute and collectives take longer beside each other, float64[replicas]."""

    compute: Floats
    """By which share compute takes longer."""
    collectives: Floats
    """How many times as long collectives take."""


def slowdowns(replicas: Replicas) -> Slowdowns:
    """Return what the dense parameters' collectives and compute do to each other."""
    slowdown = np.asarray(replicas.jobs.cluster.slowdown)
    shard, across = _groups(replicas)[0]
    # Of the bytes that a rank sends, those between copies are as many as its own shard.
    within = 1.0 - 1.0 / shard.ranks
    between = (across.ranks > 1) / shard.ranks
    leaving = (
        within * share_leaving(shard.ranks, shard.local)
        + between * share_leaving(across.ranks, across.local)
    ) / np.maximum(within + between, 1e-9)
    compute = (1.0 - leaving) * slowdown[:, 0] + leaving * slowdown[:, 1]
    return Slowdowns(compute, 1.0 + slowdown[:, 2])


def bucket_parameters(stated: Floats, ranks: Ints) -> Floats:
    """Return a gradient bucket's parameters: those stated, or Megatron's max(40 M, 1 M * ranks)."""
    return np.where(stated > 0, stated, np.maximum(40e6, 1e6 * ranks))
