"""Which schedule each job of a batch runs, and where that places the stages."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.arrays import Ints
from projector.errors import ProjectorError
from projector.kernels.grouping import concatenated_ranges, group_rows, offsets
from projector.lower.batch import Families, StepSizes
from projector.schedule import registry
from projector.schedule.order import Placement
from projector.schedule.registry import Setting

NAMES = tuple(registry.SCHEDULES)


class Schedules(NamedTuple):
    """What the jobs of a batch run."""

    of_job: Ints
    """int64[jobs]: setting of each job."""
    outcomes: list[Setting | ProjectorError]
    """Each setting, or why it cannot run."""
    name: Ints
    """int64[families]: position in `NAMES` of what its jobs run; -1 if none of them can run."""

    def settings(self) -> list[Setting]:
        """Return all settings, of a batch whose jobs can all run."""
        settings = [outcome for outcome in self.outcomes if isinstance(outcome, Setting)]
        assert len(settings) == len(self.outcomes), "a job that cannot run"
        return settings


def schedule_kinds(families: Families) -> Ints:
    """Return int64[families]: equal numbers where schedules differ in microbatches at most."""
    split = families.batch.parallelism
    _, kind = group_rows(
        families.batch.training.schedule_key, split.pp, split.vpp, split.group_size
    )
    return kind


def choose_schedules(families: Families, kind: Ints, sizes: StepSizes) -> Schedules:
    """Resolve the schedule of each job, of ``kind`` int64[families], and check that it can run."""
    training, split = families.batch.training, families.batch.parallelism
    first, of_size = group_rows(kind[sizes.family], sizes.microbatches)
    outcomes: list[Setting | ProjectorError] = []
    name_of_kind = np.full(int(kind.max(initial=-1)) + 1, -1, np.int64)
    for size in first.tolist():
        family, microbatches = int(sizes.family[size]), int(sizes.microbatches[size])
        pp, vpp, group = (int(of[family]) for of in (split.pp, split.vpp, split.group_size))
        try:
            setting = _setting(training.of(family).schedule, pp, vpp, microbatches, group or None)
        except ProjectorError as error:
            # Frames of a kept error would keep the whole batch.
            outcomes.append(error.with_traceback(None))
        else:
            # A name does not depend on the number of microbatches.
            name_of_kind[kind[family]] = NAMES.index(setting.name)
            outcomes.append(setting)
    return Schedules(of_size.take(sizes.of_job), outcomes, name_of_kind.take(kind))


_setting = lru_cache(maxsize=1 << 14)(registry.check)


class Placements(NamedTuple):
    """Where the stages of replicas live, placements that are equal once."""

    unique: tuple[Placement, ...]
    of: Ints
    """int64[n]: placement of each replica."""

    def of_replicas(self, read: Callable[[Placement], NDArray[Any]]) -> NDArray[Any]:
        """Return what ``read`` finds in the placement of each replica, one after the other."""
        parts = [read(placement) for placement in self.unique]
        sizes = np.array([len(values) for values in parts], np.int64)
        places = concatenated_ranges(offsets(sizes).take(self.of), sizes.take(self.of))
        return np.concatenate(parts).take(places, axis=0)


def place_replicas(names: list[str], code: Ints, pp: Ints, vpp: Ints) -> Placements:
    """Return the placement of each of n replicas, given the number of its schedule in ``names``."""
    first, of = group_rows(code, pp, vpp)
    unique = tuple(
        registry.placement(names[code[row]], int(pp[row]), int(vpp[row])) for row in first.tolist()
    )
    return Placements(unique, of)
