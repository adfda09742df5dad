"""The degrees of jobs as columns: one row a job, every derived degree and where its groups lie."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from projector.arrays import Ints
from projector.config.job import Job
from projector.kernels.grouping import group_rows
from projector.lower.batch import JobBatch
from projector.lower.placement import Blocks, Runs, one_run, parts, place, strides, two_runs

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
    columns = _placed(groups, blocks)
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
        placed=placed,
        stage_stride=of_dense["pp"],
        **columns,
    )


def _placed(groups: Mapping[str, Runs], blocks: Blocks) -> dict[str, Ints]:
    """Return ``*_local`` and ``*_span`` of groups of some jobs, given the blocks of the jobs."""
    runs = Runs(*map(np.concatenate, zip(*groups.values(), strict=True)))
    found = place(runs, Blocks(*(np.tile(column, len(groups)) for column in blocks)))
    local, span = (np.split(column, len(groups)) for column in (found.local, found.span))
    return {
        **{f"{name}_local": column for name, column in zip(groups, local, strict=True)},
        **{f"{name}_span": column for name, column in zip(groups, span, strict=True)},
    }


def data_parallel(job: Job) -> int:
    """Data-parallel degree of the dense parameters."""
    split = job.parallelism
    return job.cluster.gpus // (split.tp * split.pp * split.cp)


def local_members(size: Any, stride: Any, domain: Any) -> Any:
    """Members of a group within one scale-up domain, ranks ``stride`` apart; integers or arrays."""
    return np.maximum(1, np.minimum(size, domain // stride))
