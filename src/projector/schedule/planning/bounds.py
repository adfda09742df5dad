"""What every zero-bubble schedule of one chunk a rank must keep to: windows, orders and a bound.

A stage takes the same time for every microbatch, so operations of one kind may as well run in the
order of their microbatches: renumber the i-th F, B and W that a rank starts as those of microbatch
i. When the i-th F of a stage starts, i F's have arrived from the stage before, so the dependency
that is new has arrived too; the same holds for B and W; and memory only counts operations. What
must precede an operation on its rank is then a *prefix* of each kind, and three numbers say it.

Shapes and units are those of `projector.schedule.planning.problem`.
"""

from itertools import permutations

import numpy as np

from projector.arrays import Ints
from projector.kernels import windows as kernels
from projector.schedule.order import BACKWARD, FORWARD
from projector.schedule.planning.problem import Operation, Problem

ROUNDING = 1e-12
"""Relative error of a sum of two products, with room to spare."""


class Windows:
    """Orders that are implied, earliest starts, and what must follow; they only ever tighten.

    A rank runs what must precede an operation before it, and what must succeed it after it, one at
    a time: of any set of operations, the earliest start plus all their work is a bound on what
    comes next. And where one order of two operations would end later than the objective may be, the
    other order is implied. Both are the usual arguments of job-shop scheduling (heads, tails and
    one-machine bounds: Carlier and Pinson, Management Science 35, 1989).

    Every rank must have room for one microbatch. ``sequence`` is all operations in the order of
    some legal schedule: any will do, that of a good one saves sweeps. After ``visits`` operations
    it is left at what is known so far, which is true at any time; a sweep looks at each operation.
    """

    def __init__(self, problem: Problem, sequence: list[Operation], visits: int = 2**62) -> None:
        pp, microbatches = problem.pp, problem.microbatches
        self.problem = problem
        latencies_ps = np.stack([problem.to_next_ps, problem.to_previous_ps])
        arrivals_ps = np.stack([np.roll(latencies_ps[0], 1), np.roll(latencies_ps[1], -1)])
        self.latencies_ps = arrivals_ps, latencies_ps
        """Of what F and B of each stage wait for, ``int64[2, pp]``; and of what waits for them."""
        self.sequence = np.array(sequence, np.int64).reshape(-1, 3)
        self.visits = visits
        """What is left of them."""
        self.before = np.zeros((pp, 3, microbatches, 3), np.int64)
        """How many operations of each kind must precede each operation on its rank."""
        self.start_ps = np.zeros((pp, 3, microbatches), np.int64)
        # No operation ends later than its rank does.
        self.tail_ps = np.zeros_like(self.start_ps) - problem.since_ps[:, np.newaxis, np.newaxis]
        """The objective is at least the end of an operation plus this; it can be negative."""
        number = np.arange(microbatches)
        for kind in range(3):
            self.before[:, kind, :, kind] = number
            self.before[:, kind, :, :kind] = number[:, np.newaxis] + 1
        for stage in range(pp):
            self._remember_memory(stage)
        self._close()
        self._sweep(None)

    @property
    def most_before(self) -> Ints:
        """How many operations of each kind may precede each operation; shaped as ``before``."""
        most = np.empty_like(self.before)
        number = np.arange(self.problem.microbatches)
        for stage in range(self.problem.pp):
            for kind in range(3):
                for other in range(3):
                    # An operation comes later for sure once this one must precede it.
                    most[stage, kind, :, other] = np.searchsorted(
                        self.before[stage, other, :, kind], number, side="right"
                    )
                most[stage, kind, :, kind] = number
        return most

    @property
    def undecided(self) -> int:
        """Pairs of operations of one rank that can still run in either order."""
        return int((self.most_before - self.before).sum()) // 2

    def lower_bound_ps(self) -> int:
        """Return a bound that the objective of no schedule is below.

        For any set of operations of one rank, the objective is at least their earliest start, plus
        their work, plus their least tail. The sets tried are all that a threshold of the starts
        and one of the tails cut out, which include the best.
        """
        bound = 0
        for stage in range(self.problem.pp):
            tail = self.tail_ps[stage].ravel()
            by_tail = np.argsort(-tail, kind="stable")
            tail = tail[by_tail]
            start = self.start_ps[stage].ravel()[by_tail]
            work = np.repeat(self.problem.duration_ps[stage], self.problem.microbatches)[by_tail]
            arguments = np.unique(start), start, work, tail, self.visits
            least, self.visits = kernels.least_objective(*arguments)
            bound = max(bound, least)
            if self.visits < 0:
                break
        return bound

    def tighten(self, objective_ps: int) -> bool:
        """Imply what all schedules of this objective have in common; False where there is none."""
        while True:
            if self.lower_bound_ps() > objective_ps:
                return False
            if self.visits <= 0:
                return True
            known = int(self.before.sum())
            self._imply(objective_ps)
            if not self._close():
                return False
            if int(self.before.sum()) == known:
                return True
            if not self._sweep(objective_ps):
                return False

    def _remember_memory(self, stage: int) -> None:
        """Imply the B's and W's without which an F finds no room."""
        problem = self.problem
        # Sums of the same size round differently; what may fit by that must not be ruled out.
        limit = problem.limit[stage] * (1.0 + ROUNDING)
        backward = weight = 0
        for number in range(problem.microbatches):
            # B's free most where each has its W behind it, W's where all others have their B.
            while problem.held(stage, number + 1 - backward, 0) > limit:
                backward += 1
            while problem.held(stage, 1, number - weight) > limit:
                weight += 1
            self.before[stage, FORWARD, number, BACKWARD:] = backward, weight

    def _imply(self, objective_ps: int) -> None:
        """Reverse the orders of two operations that would end too late."""
        count = np.arange(1, self.problem.microbatches + 1)
        for stage in range(self.problem.pp):
            start, tail = self.start_ps[stage], self.tail_ps[stage]
            duration = self.problem.duration_ps[stage]
            for kind, other in permutations(range(3), 2):
                both = duration[kind] + duration[other]
                late = start[kind][:, np.newaxis] + both + tail[other] > objective_ps
                column = self.before[stage, kind, :, other]
                np.maximum(column, np.where(late, count, 0).max(axis=1), out=column)

    def _close(self) -> bool:
        """Complete the orders of each rank by transitivity; return whether they have no cycle."""
        before = self.before
        stage = np.arange(self.problem.pp)[:, np.newaxis]
        number = np.arange(self.problem.microbatches)
        while True:
            known = int(before.sum())
            np.maximum.accumulate(before, axis=2, out=before)
            for kind in range(3):
                for through in range(3):
                    if through == kind:
                        continue
                    count = before[:, kind, :, through]
                    inherited = before[stage, through, np.maximum(count - 1, 0)]
                    inherited = np.where(count[..., np.newaxis] > 0, inherited, 0)
                    np.maximum(before[:, kind], inherited, out=before[:, kind])
            if any(np.any(before[:, kind, :, kind] > number) for kind in range(3)):
                return False
            if int(before.sum()) == known:
                return True

    def _sweep(self, objective_ps: int | None) -> bool:
        """Bring starts and tails up to the orders; False where that passes the objective.

        One pass is enough where the sequence agrees with the orders; where none can, passes go on
        until a time is too late.
        """
        # Nothing ends after this, and the objective counts from no later than the largest since.
        latest_ps = None
        if objective_ps is not None:
            latest_ps = objective_ps + int(self.problem.since_ps.max())
        microbatches = self.problem.microbatches
        own = np.eye(3, dtype=np.int64)[:, np.newaxis]
        ahead, behind = self.latencies_ps
        backwards = np.ascontiguousarray(self.sequence[::-1])
        later = self.most_before + own, np.full_like(self.before, microbatches)
        earlier = np.zeros_like(self.before), self.before
        for column, sequence, (first, last), latency_ps, step in (
            (self.start_ps, self.sequence, earlier, ahead, 1),
            (self.tail_ps, backwards, later, behind, -1),
        ):
            while True:
                known = column.copy()
                self.visits = kernels.pass_over(
                    sequence,
                    first,
                    last,
                    self.problem.duration_ps,
                    latency_ps,
                    step,
                    self.visits,
                    column,
                )
                if np.array_equal(known, column) or self.visits <= 0:
                    break
                if latest_ps is not None and int(column.max()) > latest_ps:
                    return False
        return True
