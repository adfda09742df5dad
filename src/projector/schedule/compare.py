"""Every schedule on the same work: which can run, which fits, which is the fastest."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from projector.envelope import told
from projector.errors import ProjectorError
from projector.schedule.planning.costs import Objective
from projector.schedule.registry import SCHEDULES, check, refuse_long, resolve
from projector.schedule.replay.run import PipelineRun
from projector.schedule.simulate import pipeline_run, read_arguments
from projector.units import to_gib, to_ms

ALL = "all"
"""Stands for every schedule that can run."""

OK, DOES_NOT_FIT, NOT_APPLICABLE = "ok", "does_not_fit", "not_applicable"
_RANK = {OK: 0, DOES_NOT_FIT: 1, NOT_APPLICABLE: 2}


@dataclass(frozen=True, eq=False)
class Candidate:
    """One schedule of a comparison."""

    schedule: str
    vpp: int
    """Chunks of a rank that it runs with."""
    status: str
    """`OK`, `DOES_NOT_FIT` or `NOT_APPLICABLE`."""
    run: PipelineRun | None = None
    """None where the schedule cannot run; `reason` says why."""
    reason: str = ""
    iteration_s: float | None = None
    """Seconds of the whole training step, where a job is compared."""

    @property
    def time_s(self) -> float:
        """Seconds that candidates are ranked by: of the step, or of the pipeline alone."""
        if self.run is None:
            return float("inf")
        return self.run.makespan_s if self.iteration_s is None else self.iteration_s

    @property
    def peak(self) -> float:
        """Most that a rank holds: bytes of a job, else microbatches of all chunks of a rank."""
        return float("inf") if self.run is None else float(self.run.peak_bytes.max())

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as ``--json`` prints it; what is not known is null."""
        run = self.run
        in_bytes = run is not None and run.static_bytes is not None
        band = None if run is None else run.memory_band
        return {
            "status": self.status,
            "reason": self.reason or None,
            "vpp": self.vpp,
            "makespan_s": None if run is None else run.makespan_s,
            "period_s": None if run is None else run.period_s,
            "iteration_time_ms": None if self.iteration_s is None else to_ms(self.iteration_s),
            "bubble_fraction": None if run is None else run.bubble_fraction,
            "search": None if run is None or run.search is None else run.search.to_dict(),
            "peak_in_flight": None if run is None else run.peak_in_flight,
            "peak_microbatches": None if run is None or in_bytes else self.peak,
            "peak_gib": to_gib(self.peak) if in_bytes else None,
            "peak_gib_low": None if band is None else to_gib(band.low_bytes),
            "peak_gib_high": None if band is None else to_gib(band.high_bytes),
            "verdict": None if band is None else band.verdict,
        }


@dataclass(frozen=True, eq=False)
class ScheduleComparison:
    """Schedules of one pipeline, the fastest that fits first."""

    pp: int
    vpp: int
    """Chunks of a rank that the work was given in."""
    microbatches: int
    candidates: tuple[Candidate, ...]
    """Those that fit, those that do not, those that cannot run; each by time, then by memory."""

    @property
    def best(self) -> Candidate | None:
        """The fastest that fits; where none does the fastest; None where none can run."""
        first = self.candidates[0]
        return None if first.run is None else first

    @property
    def fits(self) -> bool:
        """Whether any schedule fits."""
        return self.candidates[0].status == OK

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector schedule --json`` prints, without its envelope."""
        return {
            **told(self, "pp vpp microbatches fits"),
            "best": self.best.schedule if self.fits and self.best is not None else None,
            "schedules": {candidate.schedule: candidate.to_dict() for candidate in self.candidates},
        }


def compare_schedules(
    pp: int,
    vpp: int = 1,
    microbatches: int = 1,
    f: ArrayLike = 1.0,
    b: ArrayLike = 1.0,
    w: ArrayLike = 1.0,
    p2p: float = 0.0,
    memory_limit: float | None = None,
    algorithm: str = ALL,
    group_size: int | None = None,
    overlap_p2p: bool = True,
    objective: Objective = "makespan",
) -> ScheduleComparison:
    """Run one schedule, or ``all`` of them, on the same work, as `simulate_schedule` does.

    With ``all``, and times that are one number each, a schedule that needs another number of chunks
    has the work of a rank in as many equal ones: a rank does the same, whatever the schedule. Times
    of single stages are run in the chunks they are given for.
    """
    if algorithm != ALL:
        check(algorithm, pp, vpp, microbatches, group_size)
    read_arguments(pp, vpp, microbatches, f, b, w, p2p, memory_limit, objective)
    splits = algorithm == ALL and all(np.ndim(value) == 0 for value in (f, b, w))

    def run(name: str, chunks: int) -> tuple[PipelineRun, None]:
        # Where nothing is split, this multiplies by exactly 1.
        chunk_f, chunk_b, chunk_w = (np.multiply(seconds, vpp / chunks) for seconds in (f, b, w))
        times = (chunk_f, chunk_b, chunk_w, p2p)
        further = (memory_limit, group_size, overlap_p2p, objective)
        return pipeline_run(name, pp, chunks, microbatches, *times, *further), None

    return compared(pp, vpp, microbatches, algorithm, run, splits=splits)


Run = Callable[[str, int], tuple[PipelineRun, float | None]]
"""Runs a schedule in a number of chunks; returns also the seconds of the step, for a job."""


def compared(
    pp: int, vpp: int, microbatches: int, algorithm: str, run: Run, *, splits: bool
) -> ScheduleComparison:
    """Run schedules, with ``splits`` in their chunks; the fastest that fits is the first."""
    names = SCHEDULES if algorithm == ALL else [resolve(algorithm, vpp).name]

    def tried(name: str, chunks: int) -> tuple[PipelineRun, float | None]:
        if algorithm == ALL:
            refuse_long(name, pp, microbatches)
        return run(name, chunks)

    candidates = [
        _candidate(name, SCHEDULES[name].chunks(vpp) if splits else vpp, tried, algorithm == ALL)
        for name in names
    ]
    candidates.sort(key=lambda each: (_RANK[each.status], each.time_s, each.peak))
    return ScheduleComparison(pp, vpp, microbatches, tuple(candidates))


def _candidate(name: str, vpp: int, run: Run, excuse: bool) -> Candidate:
    """Return what becomes of one schedule.

    With ``excuse`` one that cannot run becomes a candidate that says so; otherwise its error is
    raised. One whose memory is too small to plan anything does not fit, either way.
    """
    try:
        result, iteration_s = run(name, vpp)
    except ProjectorError as error:
        if error.key == "memory_limit":
            return Candidate(name, vpp, DOES_NOT_FIT, reason=error.message)
        # A step that is too long to count is a mistake in the numbers, whatever the schedule.
        if not excuse or error.key == "time":
            raise
        return Candidate(name, vpp, NOT_APPLICABLE, reason=error.message)
    status = OK if result.fits else DOES_NOT_FIT
    return Candidate(result.schedule, vpp, status, result, iteration_s=iteration_s)
