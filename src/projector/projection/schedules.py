"""Which schedule each job of a batch runs, and where that places the stages."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.arrays import Ints
from projector.errors import ProjectorError
from projector.kernels.grouping import concatenated_ranges, group_rows, offsets
from projector.lower.batch import JobBatch
from projector.lower.jobs import JobColumns
from projector.schedule import registry
from projector.schedule.order import Order
from projector.schedule.placement import Placement

NAMES = tuple(registry.SCHEDULES)


class Setting(NamedTuple):
    """A schedule and the sizes it runs with."""

    name: str
    pp: int
    vpp: int
    microbatches: int
    group_size: int | None

    @property
    def planned(self) -> bool:
        """Whether the order depends on times and memory."""
        return registry.SCHEDULES[self.name].planned

    def order(self) -> Order:
        """Return the order of a schedule that is not planned."""
        return registry.build(
            self.name, self.pp, self.vpp, self.microbatches, None, self.group_size
        )


class Schedules(NamedTuple):
    """What the jobs of a batch run."""

    of_job: Ints
    """int64[jobs]: setting of each job."""
    outcomes: list[Setting | ProjectorError]
    """Each setting, or why it cannot run."""

    def settings(self) -> list[Setting]:
        """Return all settings, of a batch whose jobs can all run."""
        settings = [outcome for outcome in self.outcomes if isinstance(outcome, Setting)]
        assert len(settings) == len(self.outcomes), "a job that cannot run"
        return settings


def choose_schedules(batch: JobBatch, columns: JobColumns) -> Schedules:
    """Resolve the schedule of each job and check that it can run."""
    asked = batch.training.schedule_key
    group_size = batch.parallelism.group_size
    keys = (asked, columns.pp, columns.vpp, columns.microbatches, group_size)
    first, of_job = group_rows(*keys)
    outcomes: list[Setting | ProjectorError] = []
    for row in first.tolist():
        pp, vpp, microbatches = (int(column[row]) for column in keys[1:4])
        group = int(group_size[row]) or None
        try:
            entry = registry.check(batch.training.of(row).schedule, pp, vpp, microbatches, group)
        except ProjectorError as error:
            outcomes.append(error)
        else:
            outcomes.append(Setting(entry.name, pp, vpp, microbatches, group))
    return Schedules(of_job, outcomes)


class Placements(NamedTuple):
    """Where the stages of replicas live, placements that are equal once."""

    unique: tuple[Placement, ...]
    of: Ints
    """int64[n]: placement of each replica."""

    def of_replicas(self, read: Callable[[Placement], NDArray[Any]]) -> NDArray[Any]:
        """Return what ``read`` finds in the placement of each replica, one after the other."""
        parts = [read(placement) for placement in self.unique]
        sizes = np.array([len(values) for values in parts], np.int64)
        return np.concatenate(parts)[concatenated_ranges(offsets(sizes)[self.of], sizes[self.of])]


def place_replicas(names: list[str], code: Ints, pp: Ints, vpp: Ints) -> Placements:
    """Return the placement of each of n replicas, given the number of its schedule in ``names``."""
    first, of = group_rows(code, pp, vpp)
    unique = tuple(
        registry.placement(names[code[row]], int(pp[row]), int(vpp[row])) for row in first.tolist()
    )
    return Placements(unique, of)
