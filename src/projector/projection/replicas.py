"""Replicas: pipelines beside others of their kind, sharing gradients, parameters and states.

Jobs that differ in nothing but the number of microbatches have the same replicas. Which
stages and ranks are alike is found once for all replicas that share a placement.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints, bits
from projector.kernels.collective_algorithms import ALL_REDUCE, SEND_RECV
from projector.kernels.collectives import collective_time_columns
from projector.kernels.grouping import concatenated_ranges, group_rows, offsets, segment_sums
from projector.kernels.replicas import Patterns, spread_segments
from projector.lower.batch import JobBatch, JobColumns
from projector.lower.placement import Blocks, place_pairs
from projector.lower.workload_columns import padded_vocab
from projector.lower.workloads import Workloads
from projector.projection.schedules import NAMES, Placements, place_replicas
from projector.schedule.order import Placement


def find_patterns(
    workloads: Workloads, pipeline: Ints, placements: Placements
) -> tuple[Patterns, Ints]:
    """Return the patterns of some replicas, and that of each."""
    # Stages are alike in the same places where the layout is one.
    first, pattern = group_rows(placements.of, workloads.layout.take(pipeline))
    parts = []
    for row in first.tolist():
        begin, end = workloads.stage_offset[pipeline[row] :][:2].tolist()
        placement = placements.unique[int(placements.of[row])]
        parts.append(_pattern(placement, tuple(workloads.stage_like[begin:end].tolist())))
    columns: dict[str, Any] = {
        name: offsets(np.concatenate([np.diff(column) for column in values]))
        if name.endswith("_first")
        else np.concatenate(values)
        for name, values in zip(Patterns._fields, zip(*parts, strict=True), strict=True)
    }
    return Patterns(**columns), pattern


@lru_cache(maxsize=512)
def _pattern(placement: Placement, stage_like: tuple[int, ...]) -> Patterns:
    like = np.array(stage_like, np.int64)
    is_first = like == np.arange(len(like))
    held = placement.model_stage
    first_rank, rank_kind = group_rows(like[held], placement.joins_ends.astype(np.int64))
    return Patterns(
        stage_first=np.array([0, len(like)]),
        stage_kind=(np.cumsum(is_first) - 1)[like],
        # The first copy stands for all: each has ranks of its own.
        stage_rank=placement.rank_of[: len(like)],
        kind_first=np.array([0, is_first.sum()]),
        kind_stage=np.flatnonzero(is_first),
        rank_first=np.array([0, len(held)]),
        rank_kind=rank_kind,
        rank_kind_first=np.array([0, len(first_rank)]),
        joins_ends=placement.joins_ends[first_rank],
        held_first=np.arange(len(first_rank) + 1) * held.shape[1],
        held_stage=held[first_rank].ravel(),
        chunk_first=np.array([0, held.size]),
        chunk_stage=held.ravel(),
    )


def _first(of_pattern: str) -> cached_property[Ints]:
    """Declare where what patterns have begins in replicas, int64[replicas + 1]."""

    def first(replicas: "Replicas") -> Ints:
        begins: Ints = getattr(replicas.patterns, of_pattern)
        return offsets(np.diff(begins).take(replicas.pattern))

    return cached_property(first)


@dataclass(frozen=True, eq=False)
class Replicas:
    """The distinct replicas of a batch.

    Most stages of a pipeline are alike, and so are the ranks that hold the same kinds of stages:
    ``kind_*`` and ``rank_kind_*`` count those that differ, replica after replica.
    """

    workloads: Workloads
    jobs: JobBatch
    """A job of each replica, which represents all."""
    columns: JobColumns
    of_job: Ints
    """int64[jobs]: replica of each job of the batch."""
    family: Ints
    """int64[jobs]: family of each, a row of the workloads' batch."""
    pipeline: Ints
    """int64[replicas]."""
    fabric: Ints
    """int64[replicas]."""
    placements: Placements
    patterns: Patterns
    pattern: Ints
    """int64[replicas]: which of these each has."""

    def __len__(self) -> int:
        return len(self.pipeline)

    @cached_property
    def row_first(self) -> Ints:
        """int64[replicas]: first stage of the pipeline of each."""
        return self.workloads.stage_offset.take(self.pipeline)

    stage_offset = _first("stage_first")
    """int64[replicas + 1]: first stage of each replica, of one copy of its model."""
    rank_offset = _first("rank_first")
    """int64[replicas + 1]: first rank of each replica."""
    chunk_first = _first("chunk_first")
    """int64[replicas + 1]: first chunk of each replica."""
    first_kind = _first("kind_first")
    """int64[replicas + 1]: first kind of stage of each replica."""
    first_rank_kind = _first("rank_kind_first")
    """int64[replicas + 1]: first kind of rank of each replica."""

    def _spread(self, first: Ints, values: Ints, more: Ints) -> Ints:
        """Return what patterns have, replica after replica, counted from ``more``."""
        return spread_segments(first, values, self.pattern, more)

    @cached_property
    def stage_kind(self) -> Ints:
        """int64[stages]: the kind of each stage."""
        own = self.patterns
        return self._spread(own.stage_first, own.stage_kind, self.first_kind)

    @cached_property
    def stage(self) -> Ints:
        """int64[stages]: the same stage in the pipeline."""
        return concatenated_ranges(self.row_first, np.diff(self.stage_offset))

    @cached_property
    def kind_row(self) -> Ints:
        """int64[kinds]: a stage of each kind in the pipeline."""
        return self._spread(self.patterns.kind_first, self.patterns.kind_stage, self.row_first)

    @cached_property
    def rank_kind(self) -> Ints:
        """int64[ranks]: the kind of each rank."""
        own = self.patterns
        return self._spread(own.rank_first, own.rank_kind, self.first_rank_kind)

    @cached_property
    def chunk_stage(self) -> Ints:
        """int64[chunks]: stage that each chunk holds, rank after rank."""
        own = self.patterns
        return self._spread(own.chunk_first, own.chunk_stage, self.stage_offset)

    @cached_property
    def run_offset(self) -> Ints:
        """int64[kinds + 1]: first run of equal layers of each kind of stage."""
        return offsets(np.diff(self.workloads.run_offset).take(self.kind_row))

    @cached_property
    def run(self) -> Ints:
        """int64[runs]: the same run in the pipeline."""
        first = self.workloads.run_offset.take(self.kind_row)
        return concatenated_ranges(first, np.diff(self.run_offset))

    @cached_property
    def of_run(self) -> Ints:
        """int64[runs]: replica of each run."""
        kinds = np.repeat(np.arange(len(self)), np.diff(self.first_kind))
        return np.repeat(kinds, np.diff(self.run_offset))

    @cached_property
    def of_rank_kind(self) -> Ints:
        """int64[kinds of ranks]: replica of each kind of rank."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_rank_kind))

    @cached_property
    def directions(self) -> Ints:
        """int64[replicas]: copies of the model that run at once."""
        copies = np.array([placement.directions for placement in self.placements.unique], np.int64)
        return copies[self.placements.of]

    @cached_property
    def joins_ends(self) -> Flags:
        """bool[kinds of ranks]: whether a rank holds the first stage of its model and the last."""
        kinds = concatenated_ranges(
            self.patterns.rank_kind_first.take(self.pattern), np.diff(self.first_rank_kind)
        )
        return self.patterns.joins_ends.take(kinds)

    def placement(self, replica: int) -> Placement:
        """Return where the stages of one replica live."""
        return self.placements.unique[int(self.placements.of[replica])]

    def per_rank(self, values: Floats) -> Floats:
        """Sum float64[stages] over the chunks of each rank: float64[ranks]."""
        chunks = np.diff(self.chunk_first) // self.columns.pp
        return segment_sums(offsets(chunks.repeat(self.columns.pp)), values[self.chunk_stage])

    def alike(self, *columns: Ints) -> tuple["Replicas", Ints]:
        """Return one replica for all that agree in their structure and in some int64[replicas].

        What is made of their structure alone is then made once for all machines. Beside them
        stands which of them each replica is like, int64[replicas].
        """
        structures = self.workloads.structures
        if len(structures.workloads.first) == len(self.workloads.first):
            # Replicas with pipelines of their own differ already.
            return self, np.arange(len(self))
        structure, jobs = structures.of_pipeline.take(self.pipeline), self.jobs
        degrees = self.columns
        first, of_replica = group_rows(
            structure,
            jobs.parallelism.replica_key,
            jobs.training.replica_key,
            self.placements.of,
            *(degrees.place, degrees.vpp, degrees.micro_batch, degrees.seq, degrees.zero_stage),
            *columns,
        )
        one_for_all = replace(
            self,
            jobs=jobs.take(first),
            columns=self.columns.take(first),
            of_job=of_replica.take(self.of_job),
            pipeline=self.pipeline[first],
            fabric=self.fabric[first],
            placements=self.placements._replace(of=self.placements.of[first]),
            pattern=self.pattern[first],
        )
        return one_for_all, of_replica

    def ranks(self, replica: int) -> slice:
        """Return the ranks of one replica."""
        return slice(int(self.rank_offset[replica]), int(self.rank_offset[replica + 1]))

    def kinds_of_ranks(self, replica: int) -> Ints:
        """Return the kind of each rank of one replica, int64[pp]."""
        return self.rank_kind[self.ranks(replica)]


def find_replicas(workloads: Workloads, schedule: Ints, family: Ints) -> Replicas:
    """Find what families share; ``schedule`` int64[families] is a position in `NAMES`."""
    batch, degrees = workloads.batch, workloads.jobs
    first, of_family = group_rows(
        workloads.pipeline,
        workloads.fabric,
        # They decide where groups lie.
        *(degrees.gpus, degrees.domain, degrees.pod, degrees.zone),
        batch.parallelism.replica_key,
        batch.training.replica_key,
        schedule,
    )
    columns, pipeline = degrees.take(first), workloads.pipeline[first]
    placements = place_replicas(list(NAMES), schedule[first], columns.pp, columns.vpp)
    patterns, pattern = find_patterns(workloads, pipeline, placements)
    return Replicas(
        workloads=workloads,
        jobs=batch.take(first),
        columns=columns,
        of_job=of_family.take(family),
        family=family,
        pipeline=pipeline,
        fabric=workloads.fabric[first],
        placements=placements,
        patterns=patterns,
        pattern=pattern,
    )


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """What activations take from one pipeline rank to another."""

    bytes: Floats
    """float64[replicas]: one message."""
    first: Ints
    """int64[replicas]: first row of each replica; many share theirs."""
    latency_s: Floats
    """float64[rows, 2]: from each virtual stage, in model order, to the next and the one before."""
    near: Flags
    """bool[rows, 2]: whether it stays within a scale-up domain."""

    def latencies_s(self, replica: int, stages: int) -> Floats:
        """Return those of one replica, float64[stages, 2]."""
        return self.latency_s[self.first[replica] :][:stages]

    def restored(self, share: float) -> "PointToPoint":
        """Return messages that take ``share`` times as long where they stay within a domain."""
        return replace(self, latency_s=np.where(self.near, share, 1.0) * self.latency_s)


def cost_p2p(replicas: Replicas) -> PointToPoint:
    """Cost the messages between virtual stages, within a domain or between nodes."""
    columns, jobs = replicas.columns, replicas.jobs
    tokens = columns.micro_batch * columns.seq // columns.cp
    split = np.where(jobs.parallelism.splits_sequence == 1, columns.tp, 1)
    num_bytes = np.asarray(
        2.0 * (tokens // split) * jobs.model.hidden * (columns.pp > 1), np.float64
    )
    fabric = replicas.fabric
    # Few replicas differ in all that messages depend on.
    first, like = group_rows(
        replicas.placements.of, columns.stage_stride, columns.domain, columns.pod, columns.zone,
        columns.gpus, fabric, bits(num_bytes),
    )  # fmt: skip
    placements = Placements(replicas.placements.unique, replicas.placements.of.take(first))
    # A second copy of the model has stages of its own.
    rank = placements.of_replicas(lambda placement: placement.rank_of)[:, None]
    other = placements.of_replicas(lambda placement: placement.neighbour)
    chunks = np.diff(replicas.chunk_first).take(first)
    owner = np.repeat(first, chunks)[:, None]
    owner, rank = (np.broadcast_to(each, other.shape).ravel() for each in (owner, rank))
    local, span = pair_places(columns.take(owner), rank, other.ravel())
    seconds, _ = collective_time_columns(
        SEND_RECV, num_bytes[owner], 2, local, fabric[owner], replicas.workloads.fabrics, span
    )
    latency_s = np.where(rank == other.ravel(), 0.0, seconds).reshape(other.shape)
    near = (local == 2).reshape(other.shape)
    return PointToPoint(num_bytes, offsets(chunks).take(like), latency_s, near)


def pair_places(columns: JobColumns, rank: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return local members (1 or 2) and span codes of pairs of pipeline ranks."""
    blocks = Blocks(columns.domain, columns.pod, columns.zone, columns.gpus)
    place = place_pairs(rank, other, columns.stage_stride, columns.pp, blocks)
    return place.local, place.span


def cost_optimizer(replicas: Replicas, owned: Floats, held: Floats) -> Floats:
    """Return the seconds of the update on each kind of rank: its states pass through memory once.

    Each owned parameter reads its gradient twice (norm and update), reads and writes master and
    moments, and writes its weight; a narrow type also quantises every weight row- and column-wise.
    Offloaded states move gradient and weight over the host link. A rank updates ``owned``
    parameters and stores ``held`` ones in full.
    """
    training, rank = replicas.jobs.training, replicas.of_rank_kind
    gradient, weight = training.gradient_bytes, training.weight_bytes
    per_owned = 2.0 * gradient + 2.0 * training.state_bytes + weight
    offloaded = training.optimizer_offload
    device = replicas.workloads.device[replicas.pipeline]
    rate = replicas.workloads.devices["hbm_bytes_per_s"][device]
    traffic = owned * (1.0 - offloaded)[rank] * per_owned[rank]
    traffic += held * training.quantise_bytes[rank]
    moved = owned * offloaded[rank] * (gradient + weight)[rank]
    link = replicas.jobs.cluster.host_link_bytes_per_s
    return np.asarray(traffic / rate[rank] + moved / link[rank])


def cost_tied_embeddings(replicas: Replicas) -> Floats:
    """Return the seconds of summing the gradients of an embedding's two copies; 0 without two."""
    if not replicas.jobs.model.tied.any():
        return np.zeros(len(replicas))
    columns = replicas.columns
    local, span = pair_places(columns, np.zeros_like(columns.pp), columns.pp - 1)
    seconds, _ = collective_time_columns(
        ALL_REDUCE, tied_embedding_bytes(replicas), 2, local, replicas.fabric,
        replicas.workloads.fabrics, span,
    )  # fmt: skip
    return seconds


def tied_embedding_bytes(replicas: Replicas) -> Floats:
    """Return the bytes of the gradients that two copies of an embedding sum, float64[replicas]."""
    columns, jobs = replicas.columns, replicas.jobs
    together = np.zeros(len(replicas), np.bool_)
    together[replicas.of_rank_kind[replicas.joins_ends]] = True
    tied = (jobs.model.tied == 1) & ~together & (jobs.training.adapted == 0)
    rows = -(-padded_vocab(jobs, columns) // columns.tp)
    return np.asarray(rows * jobs.model.hidden * jobs.training.reduce_bytes * tied)
