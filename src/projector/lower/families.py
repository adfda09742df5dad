"""Families: jobs that differ in their global batch, and in what a whole run takes, alone.

Everything but the number of microbatches is the same for a whole family: its degrees, where its
groups lie, the work of its layers, its memory besides activations. A job is a family and a global
batch.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Ints
from projector.kernels.grouping import group_looked_up, group_rows
from projector.lower.batch import JobBatch
from projector.lower.sections import TrainingColumns


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

    Parameters
    ----------
    jobs, families
        A batch and its families.
    round_samples : int64[families]
        Samples of one microbatch of all data-parallel ranks.
    kind : int64[families]
        Numbers from 0 on.
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

    Parameters
    ----------
    code : int64[n]
        From 0 on, below ``size``. Where that is not much larger than n they rise in the result.
    """
    if size > 4 * len(code) + 64:
        first, number = group_rows(code)
        return code.take(first), number
    used = np.zeros(size, np.bool_)
    used[code] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1).take(code)
