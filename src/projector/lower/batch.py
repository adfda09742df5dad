"""A batch of jobs: which sections each of them has."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.config.job import Job
from projector.lower.sections import (
    SectionTable,
    cluster_table,
    model_table,
    parallelism_table,
    training_table,
)

Ints = NDArray[np.int64]

TABLES: dict[str, Callable[[Sequence[Any]], SectionTable]] = {
    "model": model_table,
    "parallelism": parallelism_table,
    "training": training_table,
    "cluster": cluster_table,
}
"""Name of a section -> what makes a table of such sections."""

SECTIONS = tuple(TABLES)


class Sections(NamedTuple):
    """The distinct sections of a batch."""

    model: SectionTable
    parallelism: SectionTable
    training: SectionTable
    cluster: SectionTable


class SectionColumns:
    """Fields of one section of every job, under the names of `projector.lower.sections`."""

    def __init__(self, table: SectionTable, index: Ints) -> None:
        """Keep the table, and the row of it that each job has."""
        self.table, self.index = table, index
        self._kept: dict[str, NDArray[Any]] = {}

    def __getattr__(self, name: str) -> NDArray[Any]:
        """Return int64 or float64[jobs]."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._kept:
            try:
                column = self.table.column(name)
            except KeyError:
                raise AttributeError(name) from None
            self._kept[name] = self._of_jobs(column)
        return self._kept[name]

    def part(self, name: str) -> Ints:
        """Return int64[jobs]: equal numbers where jobs are equal in a part of the section."""
        return self._of_jobs(self.table.part(name))

    def _of_jobs(self, column: NDArray[Any]) -> NDArray[Any]:
        if len(column) == 1 and column.ndim == 1:
            found = np.full(len(self.index), column[0])
        else:
            found = column.take(self.index, axis=0)
        # What several read nobody may write.
        found.setflags(write=False)
        return found

    def of(self, row: int) -> Any:
        """Return the section of one job."""
        return self.table.items[self.index[row]]


@dataclass(frozen=True, eq=False)
class JobBatch:
    """Jobs, each as four rows of the tables of sections."""

    sections: Sections
    index: Ints
    """int64[4, jobs]: row of each section, in the order of `SECTIONS`."""
    job: Callable[[int], Job]
    """Returns one of the jobs."""

    def __len__(self) -> int:
        """Return the number of jobs."""
        return int(self.index.shape[1])

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> "JobBatch":
        """Return the batch of some jobs; sections are shared where they are the same object."""
        tables, index = [], np.empty((len(SECTIONS), len(jobs)), np.int64)
        for place, (name, make) in enumerate(TABLES.items()):
            known: dict[Hashable, int] = {}
            items: list[Any] = []
            for row, job in enumerate(jobs):
                item = getattr(job, name)
                number = known.setdefault(id(item), len(items))
                if number == len(items):
                    items.append(item)
                index[place, row] = number
            tables.append(make(items))
        return cls(Sections(*tables), index, tuple(jobs).__getitem__)

    def take(self, rows: Ints) -> "JobBatch":
        """Return some of the jobs."""
        return JobBatch(self.sections, self.index[:, rows], lambda row: self.job(int(rows[row])))

    @cached_property
    def model(self) -> SectionColumns:
        """Architectures."""
        return SectionColumns(self.sections.model, self.index[0])

    @cached_property
    def parallelism(self) -> SectionColumns:
        """Splits."""
        return SectionColumns(self.sections.parallelism, self.index[1])

    @cached_property
    def training(self) -> SectionColumns:
        """Steps."""
        return SectionColumns(self.sections.training, self.index[2])

    @cached_property
    def cluster(self) -> SectionColumns:
        """Clusters."""
        return SectionColumns(self.sections.cluster, self.index[3])
