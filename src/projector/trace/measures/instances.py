"""Operations as they ran: one row each time, with what its kernels took and shared."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.trace.activity import COMPUTE, Activities
from projector.trace.measures.devices import in_iterations
from projector.trace.measures.numbers import Groups, group
from projector.trace.measures.times import KernelTimes, kernel_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Runs of operations, in the order of the table; columns of equal length."""

    row: Ints
    """Row of its first kernel in the table, which tells its rank, iteration, layer and name."""
    kernels: Ints
    kernel_ps: Ints
    """Its kernels, added up."""
    duration_ps: Ints
    """Its kernels and the bubbles between them."""
    launch_ps: Ints
    """The bubbles before each of its kernels, also the first."""
    preparation_ps: Ints
    call_ps: Ints
    overlap: Floats
    """Share of its kernels that communication covers; NaN where they take no time."""
    normalised: Floats
    """`kernel_ps` over the least of those alike on its device; NaN where that is none."""
    kind: Ints
    """Number of its kind on its device: those that do the same work agree in it."""
    alike: Ints
    """How many there are of its kind on its device, with itself."""

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.row)


def instances(
    activities: Activities, times: KernelTimes | None = None, where: Flags | None = None
) -> Instances:
    """Return each run of each operation that computes, as `operation_starts` delimits them.

    Runs are alike if they agree in operation, phase, recomputation, and in name and detail (which
    holds shapes) of their first kernel, and have as many kernels. What is compared with the least
    of its device, as in figure 8 of Chopper, is thus the same work.

    Parameters
    ----------
    activities : Activities
    times : KernelTimes, optional
        Those of the whole table, where they are at hand.
    where : bool[activities], optional
        Runs whose first kernel is not chosen are left out; by default those outside iterations.
    """
    times = kernel_times(activities) if times is None else times
    computing = np.flatnonzero(activities.klass == COMPUTE)
    number = np.cumsum(times.first[computing]) - 1
    row = computing[times.first[computing]]
    runs = Groups(number, (), row)

    kept = (in_iterations(activities) if where is None else where)[row]
    kernel_ps = runs.sums(times.duration_ps[computing])[kept]
    covered_ps = runs.sums(times.under_communication_ps[computing])[kept]
    bubble_ps = runs.sums(times.bubble_ps[computing])[kept]
    kernels, row = runs.sizes()[kept], row[kept]
    same = _alike(activities, row, kernels)
    least = same.least(kernel_ps)[same.of]
    return Instances(
        row=row,
        kernels=kernels,
        kernel_ps=kernel_ps,
        duration_ps=kernel_ps + runs.sums(times.inner_ps[computing])[kept],
        launch_ps=bubble_ps,
        preparation_ps=runs.sums(times.preparation_ps[computing])[kept],
        call_ps=runs.sums(times.call_ps[computing])[kept],
        overlap=_share(covered_ps, kernel_ps),
        normalised=_share(kernel_ps, least),
        kind=same.of,
        alike=same.sizes()[same.of],
    )


def _alike(activities: Activities, row: Ints, kernels: Ints) -> Groups:
    columns = ("rank", "device", "operation", "phase", "recompute", "name", "detail")
    return group(*(np.asarray(getattr(activities, c)[row], np.int64) for c in columns), kernels)


def _share(part: Ints, whole: Ints) -> Floats:
    result = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
