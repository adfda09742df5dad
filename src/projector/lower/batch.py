"""A batch of jobs: which sections each of them has."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Ints
from projector.config.cluster import ClusterConfig
from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.run import RunConfig
from projector.config.training import TrainingConfig
from projector.lower.cluster_columns import ClusterColumns
from projector.lower.columns import SectionTable
from projector.lower.sections import ModelColumns, ParallelismColumns, RunColumns, TrainingColumns


class Sections(NamedTuple):
    """The distinct sections of a batch."""

    model: SectionTable[ModelConfig]
    parallelism: SectionTable[ParallelismConfig]
    training: SectionTable[TrainingConfig]
    cluster: SectionTable[ClusterConfig]
    run: SectionTable[RunConfig]


SECTIONS = Sections._fields


@dataclass(frozen=True, eq=False)
class JobBatch:
    """Jobs, each as five rows of the tables of sections."""

    sections: Sections
    index: Ints
    """int64[5, jobs]: row of each section, in the order of `SECTIONS`."""
    job: Callable[[int], Job]
    """Returns one of the jobs."""

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

    @cached_property
    def model(self) -> ModelColumns:
        """Architectures."""
        return ModelColumns(self.sections.model, self.index[0])

    @cached_property
    def parallelism(self) -> ParallelismColumns:
        """Splits."""
        return ParallelismColumns(self.sections.parallelism, self.index[1])

    @cached_property
    def training(self) -> TrainingColumns:
        """Steps."""
        return TrainingColumns(self.sections.training, self.index[2])

    @cached_property
    def cluster(self) -> ClusterColumns:
        """Clusters."""
        return ClusterColumns(self.sections.cluster, self.index[3])

    @cached_property
    def run(self) -> RunColumns:
        """Whole runs."""
        return RunColumns(self.sections.run, self.index[4])
