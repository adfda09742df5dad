"""What adapters ask of the model and of the split."""

from typing import Protocol

import numpy as np

from projector.arrays import Flags, Ints
from projector.config.adapter import AdapterConfig, model_sites
from projector.config.job import Job
from projector.errors import ConfigError
from projector.lower.batch import JobBatch


class _Degrees(Protocol):
    """What is asked of the columns of jobs."""

    @property
    def tp(self) -> Ints: ...

    @property
    def etp(self) -> Ints: ...


def nowhere(batch: JobBatch, _columns: _Degrees) -> Flags:
    """Whether adapters stand beside nothing that the model has, bool[jobs]."""
    training = batch.training
    return np.asarray((training.adapted == 1) & (training.adapter_sites & batch.model.sites == 0))


def nowhere_error(job: Job) -> ConfigError:
    """Name the targets."""
    targets = list(_adapter(job).targets)
    key = "training.adapter.targets"
    msg = f"{key}: {job.model.name} has none of {', '.join(targets)}"
    allowed = f"names of {', '.join(sorted(model_sites(job.model)))}"
    return ConfigError(msg, key=key, value=targets, allowed=allowed)


def divided_rank(batch: JobBatch, columns: _Degrees) -> Flags:
    """Whether a rank does not divide over tensor parallelism, bool[jobs]."""
    training = batch.training
    uneven = training.adapter_rank % columns.tp != 0
    uneven_experts = training.adapter_expert_rank % np.maximum(1, columns.etp) != 0
    return np.asarray(uneven | (uneven_experts & (batch.model.is_moe == 1)))


def divided_rank_error(job: Job) -> ConfigError:
    """Name the rank and the degree."""
    adapter, split = _adapter(job), job.parallelism
    key, rank, degree, ranks = "training.adapter.rank", adapter.rank, "tp", split.tp
    if rank % ranks == 0:
        key, rank = "training.adapter.expert_rank", adapter.rank_of_experts
        degree, ranks = "etp", split.expert_tp
    msg = f"{key} ({rank}) must be a multiple of {degree} ({ranks}), over which A is divided"
    return ConfigError(msg, key=key, value=rank, allowed=f"a multiple of {ranks}")


def _adapter(job: Job) -> AdapterConfig:
    adapter = job.training.adapter
    assert adapter is not None
    return adapter
