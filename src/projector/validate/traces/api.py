"""Runs beside projections from Python; the gap between theory and measurement of a run."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Ints
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.device_kernels import MATRIX_TYPES
from projector.config.job import Job
from projector.config.load import load_job
from projector.envelope import envelope
from projector.errors import ConfigError
from projector.measure.devices import profile_of
from projector.projection.api import JobLike
from projector.trace.activity import ATTENTION, GEMM, Activities
from projector.trace.analysis import TraceAnalysis, load_trace
from projector.trace.groups import group
from projector.trace.measures.gap import Needed, OperationGap, operation_gaps
from projector.trace.work import Works, works_of
from projector.units import MEGA, TERA
from projector.validate.traces import compare
from projector.validate.traces.result import TraceComparison
from projector.validate.traces.sides import clock_of, counted_kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class GapResult:
    """Gaps of a run, as `projector trace gap` shows them."""

    operations: tuple[OperationGap, ...]
    """The largest gap in time first."""
    device: str
    """Name of the profile whose peaks are taken; empty if none is known."""
    joined: dict[str, Any] | None
    """What of the counters could be joined."""
    warnings: tuple[str, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The operations, one mapping each."""
        return [each.to_dict() for each in self.operations]

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``--json`` prints."""
        found = {"device": self.device, "counters": self.joined, "operations": self.rows}
        return envelope(self.warnings) | found


def gap_of(
    analysis: TraceAnalysis, job: Job | None = None, device: str | None = None, dtype: str = ""
) -> GapResult:
    """Return why products and attention of a run take longer than their FLOP at the peak.

    A job gives names, FLOP and the device; `device` is another profile, `dtype` the matrix type of
    products whose operands the trace does not tell.
    """
    if dtype and dtype not in MATRIX_TYPES:
        msg = f"dtype: there is no {dtype!r}; known: {', '.join(MATRIX_TYPES)}"
        raise ConfigError(msg, key="dtype", value=dtype, allowed=list(MATRIX_TYPES))
    profile = _profile(analysis, job, device)
    warnings = list(analysis.warnings)
    if job is not None:
        compared = compare.Compared(analysis, job)
        activities, works, steps = compared.activities, compared.works, compared.steps
        needed, of = _of_job(compared, profile)
        warnings += compared.warnings
    else:
        activities = compare.whole_steps(analysis.in_time)
        works = works_of(activities)
        steps = group(activities.rank, activities.iteration).count
        needed, of = _of_trace(activities, works, steps, profile, dtype)
    if profile is None:
        warnings.append("the device is not known: name its profile with --device")
    counted, joined = counted_kernels(analysis, activities, profile)
    found = operation_gaps(
        activities, of, needed, steps=steps, counted=counted,
        clock_hz=clock_of(activities, np.arange(len(activities)), analysis.trace.samples),
        peak_clock_hz=profile.peak_clock_mhz * MEGA if profile is not None else 0.0,
    )  # fmt: skip
    return GapResult(
        operations=tuple(found),
        device=profile.name if profile is not None else "",
        joined=joined,
        warnings=tuple(warnings),
    )


def _profile(analysis: TraceAnalysis, job: Job | None, device: str | None) -> Device | None:
    if device is not None:
        return load_device(device)
    if job is not None:
        return job.cluster.device
    names = [name for rank in analysis.trace.ranks for name in rank.devices]
    known = next((file for name in names if (file := profile_of(name))), None)
    return load_device(known) if known is not None else None


def _peak(profile: Device | None, dtype: str) -> float:
    """Return the dense datasheet peak of a matrix type; 0 where either is not known."""
    named = [name for name in MATRIX_TYPES if name == dtype]
    return profile.peak_tflops(named[0]) * TERA if profile is not None and named else 0.0


def _of_job(compared: compare.Compared, profile: Device | None) -> tuple[list[Needed], Ints]:
    flop: dict[int, float] = defaultdict(float)
    kinds: dict[int, tuple[str, str]] = {}
    place = {name: number for number, name in enumerate(compared.matching.names)}
    for row in compared.expected.rows:
        if row.kind in ("gemm", "attention") and row.key is not None:
            number = place[row.name]
            flop[number] += row.runs * row.flop
            kinds[number] = (row.kind, row.key.dtype)
    numbers = list(kinds)
    needed = [
        Needed(
            operation=compared.matching.names[number].label,
            phase=compared.matching.names[number].phase,
            type=kinds[number][0],
            flop=flop[number],
            flop_from="job",
            peak_flop_per_s=_peak(profile, kinds[number][1]),
        )
        for number in numbers
    ]
    row_of = np.full(len(compared.matching.names) + 1, -1, np.int64)
    row_of[numbers] = np.arange(len(numbers))
    return needed, row_of[compared.matching.of]


def _of_trace(
    activities: Activities, works: Works, steps: int, profile: Device | None, dtype: str
) -> tuple[list[Needed], Ints]:
    # Transposes around a convolution and the like have no theory.
    rows = np.flatnonzero(np.isin(activities.type, (GEMM, ATTENTION)) | works.main)
    same, keys = compare.by_operation(activities, rows)
    of = np.full(len(activities), -1, np.int64)
    of[rows] = same.of
    flop = np.bincount(of[rows], works.flop()[rows], same.count) / steps
    types = _types(works, of, same.count, dtype)
    needed = [
        Needed(
            operation=key.operation,
            phase=key.phase,
            type=key.kind,
            flop=float(flop[number]),
            flop_from="extents" if flop[number] > 0.0 else "",
            peak_flop_per_s=_peak(profile, types[number]),
        )
        for number, key in enumerate(keys)
    ]
    return needed, of


def _types(works: Works, of: Ints, groups: int, dtype: str) -> list[str]:
    """Return the matrix type of most FLOP of each operation, what is assumed where none is told."""
    votes: list[dict[str, float]] = [defaultdict(float) for _ in range(groups)]
    rows = np.flatnonzero((of >= 0) & works.main)
    if len(rows):
        same = group(of[rows], works.of[rows])
        columns = (column.tolist() for column in (*same.keys, same.sizes()))
        for number, work, count in zip(*columns, strict=True):
            if works.works[work].dtype:
                votes[number][works.works[work].dtype] += count * works.works[work].flop()
    return [max(vote, key=lambda name: vote[name]) if vote else dtype for vote in votes]


RunLike = TraceAnalysis | str | Path


def _loaded(run: RunLike) -> TraceAnalysis:
    return run if isinstance(run, TraceAnalysis) else load_trace(run)


def compare_trace(run: RunLike, job: JobLike) -> TraceComparison:
    """Put a run beside the projection of its job, operation by operation.

    Args:
        run (TraceAnalysis, str or Path): Of `load_trace`, with what is selected of it; or a trace
            that it reads.
        job (Job, mapping, str or Path): What ran, or anything that `load_job` reads.

    Raises:
        ProjectorError: If the trace holds nothing, or the job cannot exist.
    """
    return compare.Compared(_loaded(run), load_job(job)).result()


def compare_traces(first: RunLike, second: RunLike) -> TraceComparison:
    """Put two runs side by side, operation by operation.

    Args:
        first, second (TraceAnalysis, str or Path): Such as one job under FSDP 1 and 2.

    Raises:
        ConfigError: If a trace holds nothing.
    """
    return compare.compare_runs(_loaded(first), _loaded(second))


def trace_gap(
    run: RunLike, job: JobLike | None = None, *, device: str | None = None, dtype: str = ""
) -> GapResult:
    """Say why matrix products and attention of a run take longer than their FLOP at the peak.

    Args:
        run (TraceAnalysis, str or Path): With its counters and samples, where `load_trace` was
            given any.
        job (Job, mapping, str or Path, optional): What ran: it gives names, FLOP and the device.
        device (str, optional): Profile of the device; that of the job, or the one that the trace
            names, unless given.
        dtype (str): Matrix type, where the trace does not tell it.

    Raises:
        ProjectorError: If the trace holds nothing, or job, device or type do not exist.
    """
    return gap_of(_loaded(run), load_job(job) if job is not None else None, device, dtype)
