"""A batch of jobs as columns: their sections, degrees, places of groups, and families.

A family are jobs that differ in their global batch, and in what a whole run takes, alone. All but
the number of microbatches is the same for it: its degrees, where its groups lie, the work of its
layers, its memory besides activations. A job is a family and a global batch.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.cluster import ClusterConfig
from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.run import RunConfig
from projector.config.training import TrainingConfig
from projector.kernels.grouping import group_looked_up, group_rows
from projector.lower.cluster_columns import ClusterColumns, largest_of_normals
from projector.lower.columns import SectionTable
from projector.lower.placement import Blocks, Runs, one_run, parts, place, strides, two_runs
from projector.lower.sections import ModelColumns, ParallelismColumns, RunColumns, TrainingColumns


class Sections(NamedTuple):
    """The distinct sections of a batch."""

    model: SectionTable[ModelConfig]
    parallelism: SectionTable[ParallelismConfig]
    training: SectionTable[TrainingConfig]
    cluster: SectionTable[ClusterConfig]
    run: SectionTable[RunConfig]


SECTIONS = Sections._fields


class JobBatch:
    """Jobs, each as five rows of the tables of sections."""

    def __init__(self, sections: Sections, index: Ints, job: Callable[[int], Job]) -> None:
        """Keep the sections, the rows of each job, and what returns one of the jobs.

        ``index`` is int64[5, jobs]: the row of each section, in the order of `SECTIONS`.
        """
        self.sections, self.index, self.job = sections, index, job
        self.model = ModelColumns(sections.model, index[0])
        self.parallelism = ParallelismColumns(sections.parallelism, index[1])
        self.training = TrainingColumns(sections.training, index[2])
        self.cluster = ClusterColumns(sections.cluster, index[3])
        self.run = RunColumns(sections.run, index[4])

    def __len__(self) -> int:
        """Return the number of jobs."""
        return int(self.index.shape[1])

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> "JobBatch":
        """Return the batch of some jobs; sections are shared where they are the same object."""
        tables, index = [], np.empty((len(SECTIONS), len(jobs)), np.int64)
        for position, name in enumerate(SECTIONS):
            known: dict[Hashable, int] = {}
            items: list[Any] = []
            for row, job in enumerate(jobs):
                item = getattr(job, name)
                number = known.setdefault(id(item), len(items))
                if number == len(items):
                    items.append(item)
                index[position, row] = number
            tables.append(SectionTable(items))
        return cls(Sections(*tables), index, tuple(jobs).__getitem__)

    def take(self, rows: Ints) -> "JobBatch":
        """Return some of the jobs."""
        index = self.index.take(rows, axis=1)
        return JobBatch(self.sections, index, lambda row: self.job(int(rows[row])))

    def straggler_share(self) -> Floats:
        """Return the share of its compute that each job waits for slower devices, float64[jobs].

        Its step ends with the slowest of all, each layer of experts with that of its EP ranks.
        """
        first, of_job = group_rows(self.parallelism.ep)
        largest = np.array([largest_of_normals(ep) for ep in self.parallelism.ep[first].tolist()])
        late: Floats = self.cluster.straggler_share + self.cluster.layer_spread * largest[of_job]
        return late


PLACED = ("tp", "cp", "ep", "etp")
"""Groups of layers."""


class JobColumns:
    """Degrees of each job, int64[jobs] each, which its family shares.

    ``*_local`` counts the members of a group that share one scale-up domain, ``*_span`` says how
    the group lies beyond it (see ``lower/placement.py``).
    """

    tp: Ints
    pp: Ints
    vpp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    dp: Ints
    edp: Ints
    """Replicas of each expert: world / (etp * ep * pp)."""
    gpus: Ints
    domain: Ints
    """Devices of one scale-up domain."""
    pod: Ints
    """Devices of one pod; 0 is all."""
    zone: Ints
    """Devices of one zone; 0 is all."""
    micro_batch: Ints
    seq: Ints
    tp_local: Ints
    tp_span: Ints
    cp_local: Ints
    cp_span: Ints
    ep_local: Ints
    ep_span: Ints
    etp_local: Ints
    etp_span: Ints
    copies: Ints
    """Copies of what is sharded over data parallelism."""
    shard_local: Ints
    """Of the group that shares one of them: dp * cp / copies."""
    shard_span: Ints
    edp_local: Ints
    edp_span: Ints
    """The same of experts: edp / copies."""
    copies_local: Ints
    """Of one rank of every copy."""
    copies_span: Ints
    expert_copies_local: Ints
    expert_copies_span: Ints
    place: Ints
    """Equal numbers where all that `_places` derives is equal; of one batch."""
    placed: Ints
    """Equal numbers where the groups of layers, `PLACED`, lie alike; of one batch."""
    stage_stride: Ints
    """Ranks from one pipeline stage to the next."""
    zero_stage: Ints

    def __init__(self, **columns: Ints) -> None:
        """Keep some of the columns; others are found when they are asked for."""
        self.__dict__.update(columns)

    def take(self, rows: Ints) -> "JobColumns":
        """Return some of the jobs; a column is gathered when it is asked for."""
        return _TakenColumns(self, rows)

    def taken(self, name: str, rows: Ints) -> Ints:
        """Return a column of some of the jobs."""
        column: Ints = getattr(self, name)
        return column.take(rows)


class _TakenColumns(JobColumns):
    """Some of the jobs of other columns, beside columns of their own."""

    def __init__(self, source: JobColumns, rows: Ints, **own: Ints) -> None:
        super().__init__(**own)
        self._source, self._rows = source, rows

    def __getattr__(self, name: str) -> Ints:
        if name not in JobColumns.__annotations__:
            raise AttributeError(name)
        column = self._source.taken(name, self._rows)
        # Found there from now on.
        self.__dict__[name] = column
        return column

    def taken(self, name: str, rows: Ints) -> Ints:
        known: Ints | None = self.__dict__.get(name)
        return (
            self._source.taken(name, self._rows.take(rows)) if known is None else known.take(rows)
        )


def job_columns(batch: JobBatch) -> JobColumns:
    """Derive every degree; where a job breaks a rule, its degrees mean nothing."""
    split, training, cluster = batch.parallelism, batch.training, batch.cluster
    first, of_job = group_rows(split.place_key, cluster.place_key, batch.model.is_moe)
    return _TakenColumns(
        _places(batch.take(first)),
        of_job,
        vpp=split.vpp,
        micro_batch=training.micro_batch,
        seq=training.seq,
        zero_stage=split.zero_stage,
    )


def _places(batch: JobBatch) -> JobColumns:
    """Derive the degrees that say where groups lie, and where they do."""
    split, cluster = batch.parallelism, batch.cluster
    tp, pp, cp, ep = split.tp, split.pp, split.cp, split.ep
    etp = np.where(batch.model.is_moe == 1, split.expert_tp, 1)
    gpus, blocks = cluster.gpus, Blocks(cluster.domain, cluster.pod, cluster.zone, cluster.gpus)
    dp = np.maximum(1, gpus // (tp * pp * cp))
    edp = np.maximum(1, gpus // (etp * ep * pp))
    one = np.ones_like(dp)
    dense = {"tp": tp, "cp": cp, "ep": one, "dp": dp, "pp": pp}
    expert = {"tp": etp, "cp": one, "ep": ep, "dp": edp, "pp": pp}
    of_dense, of_expert = strides(split.order, dense), strides(split.order, expert)
    ranks = dp * cp
    stated = np.maximum(1, ranks // np.maximum(1, split.sharding_ranks))
    copies = np.where(split.sharding_ranks > 0, stated, split.optimizer_copies)
    shared = two_runs((dp, of_dense["dp"]), (cp, of_dense["cp"]))
    shard, across = parts(shared, np.maximum(1, ranks // copies))
    edp_shard, expert_across = parts(one_run(edp, of_expert["dp"]), np.maximum(1, edp // copies))
    groups = {
        "tp": one_run(tp, of_dense["tp"]),
        "cp": one_run(cp, of_dense["cp"]),
        "ep": one_run(ep, of_expert["ep"]),
        "etp": one_run(etp, of_expert["tp"]),
        "shard": shard,
        "edp": edp_shard,
        "copies": across,
        "expert_copies": expert_across,
    }
    runs = Runs(*map(np.concatenate, zip(*groups.values(), strict=True)))
    found = place(runs, Blocks(*(np.tile(column, len(groups)) for column in blocks)))
    local, span = (np.split(column, len(groups)) for column in (found.local, found.span))
    columns = {
        **{f"{name}_local": column for name, column in zip(groups, local, strict=True)},
        **{f"{name}_span": column for name, column in zip(groups, span, strict=True)},
    }
    _, placed = group_rows(
        *(columns[f"{name}_{of}"] for name in PLACED for of in ("local", "span"))
    )
    return JobColumns(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp,
        dp=dp,
        edp=edp,
        gpus=gpus,
        domain=blocks.domain,
        pod=blocks.pod,
        zone=blocks.zone,
        copies=copies,
        place=np.arange(len(batch)),
        placed=placed,
        stage_stride=of_dense["pp"],
        **columns,
    )


def data_parallel(job: Job) -> int:
    """Data-parallel degree of the dense parameters."""
    split = job.parallelism
    return job.cluster.gpus // (split.tp * split.pp * split.cp)


def local_members(size: Any, stride: Any, domain: Any) -> Any:
    """Members of a group within one scale-up domain, ranks ``stride`` apart; integers or arrays."""
    return np.maximum(1, np.minimum(size, domain // stride))


@dataclass(frozen=True, eq=False)
class Families:
    """The families of the jobs of a batch."""

    batch: JobBatch
    """One job of each family, which represents all."""
    of_job: Ints
    """int64[jobs]: family of each job."""

    @classmethod
    def of(cls, jobs: JobBatch) -> "Families":
        """Find the families of some jobs; where none has two jobs, this costs next to nothing."""
        sections, index = jobs.sections, jobs.index
        training = sections.training.key(TrainingColumns.family_key) if len(jobs) > 1 else None
        merges = training is not None and (
            len(sections.run.items) > 1 or int(training.max()) + 1 < len(training)
        )
        if training is None or not merges:
            return cls(jobs, np.arange(len(jobs)))
        sizes = (len(sections.model.items), len(sections.parallelism.items))
        numbers = [*map(np.arange, sizes), training, np.arange(len(sections.cluster.items))]
        first, of_job = group_looked_up([*index[:4]], numbers)
        return cls(jobs if len(first) == len(jobs) else jobs.take(first), of_job)

    def __len__(self) -> int:
        """Return the number of families."""
        return len(self.batch)

    @cached_property
    def are_jobs(self) -> bool:
        """Whether each job is a family of its own, in the order of the jobs."""
        return len(self) == len(self.of_job) and bool(
            np.array_equal(self.of_job, np.arange(len(self)))
        )

    def take(self, rows: Ints) -> tuple["Families", Ints]:
        """Return the families of some of the jobs, and which of all families they are."""
        of_job = self.of_job.take(rows)
        used = np.zeros(len(self), np.bool_)
        used[of_job] = True
        kept = np.flatnonzero(used)
        if len(kept) == len(self):
            return Families(self.batch, of_job), kept
        return Families(self.batch.take(kept), (np.cumsum(used) - 1).take(of_job)), kept


class StepSizes(NamedTuple):
    """How many samples and microbatches a step has, sizes that are equal for a kind of job once."""

    of_job: Ints
    """int64[jobs]: size of the step of each job."""
    family: Ints
    """int64[sizes]: a family that has it."""
    global_batch: Ints
    """int64[sizes]"""
    microbatches: Ints
    """int64[sizes]: of one data-parallel rank."""
    uneven: Flags
    """bool[sizes]: whether the global batch is no whole number of microbatches for every rank."""


def step_sizes(jobs: JobBatch, families: Families, round_samples: Ints, kind: Ints) -> StepSizes:
    """Return the sizes of steps, for each kind of family apart.

    ``round_samples`` are samples of one microbatch of all data-parallel ranks, ``kind`` numbers
    from 0 on, both int64[families].
    """
    first_kind, kind = group_rows(round_samples, kind)
    sizes, batch_code = np.unique(
        jobs.sections.training.column(TrainingColumns.global_batch), return_inverse=True
    )
    code = (kind * len(sizes)).take(families.of_job)
    code += batch_code.take(jobs.index[2])
    used, of_job = number_codes(code, len(first_kind) * len(sizes))
    family = first_kind[used // len(sizes)]
    global_batch, samples = sizes[used % len(sizes)], round_samples[family]
    return StepSizes(
        of_job, family, global_batch, global_batch // samples, global_batch % samples != 0
    )


def number_codes(code: Ints, size: int) -> tuple[Ints, Ints]:
    """Return the distinct ones of some codes, and the position of each code among them.

    Codes lie from 0 on, below ``size``. Where that is not much larger than their number they rise
    in the result.
    """
    if size > 4 * len(code) + 64:
        first, number = group_rows(code)
        return code.take(first), number
    used = np.zeros(size, np.bool_)
    used[code] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1).take(code)
