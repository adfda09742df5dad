"""Runs beside projections from Python."""

from pathlib import Path

from projector.config.load import load_job
from projector.projection.api import JobLike
from projector.trace.analysis import TraceAnalysis, load_trace
from projector.validate.traces.compare import compare_run, compare_runs
from projector.validate.traces.gaps import GapResult, gap_of
from projector.validate.traces.result import TraceComparison

RunLike = TraceAnalysis | str | Path


def _loaded(run: RunLike) -> TraceAnalysis:
    return run if isinstance(run, TraceAnalysis) else load_trace(run)


def compare_trace(run: RunLike, job: JobLike) -> TraceComparison:
    """Put a run beside the projection of its job, operation by operation.

    Parameters
    ----------
    run : TraceAnalysis, str or Path
        Of `load_trace`, with what is selected of it; or a trace that it reads.
    job : Job, mapping, str or Path
        What ran, or anything that `load_job` reads.

    Raises
    ------
    ProjectorError
        If the trace holds nothing, or the job cannot exist.
    """
    return compare_run(_loaded(run), load_job(job))


def compare_traces(first: RunLike, second: RunLike) -> TraceComparison:
    """Put two runs side by side, operation by operation.

    Parameters
    ----------
    first, second : TraceAnalysis, str or Path
        Such as one job under FSDP 1 and 2.

    Raises
    ------
    ConfigError
        If a trace holds nothing.
    """
    return compare_runs(_loaded(first), _loaded(second))


def trace_gap(
    run: RunLike, job: JobLike | None = None, *, device: str | None = None, dtype: str = ""
) -> GapResult:
    """Say why matrix products and attention of a run take longer than their FLOP at the peak.

    Parameters
    ----------
    run : TraceAnalysis, str or Path
        With its counters and samples, where `load_trace` was given any.
    job : Job, mapping, str or Path, optional
        What ran: it gives names, FLOP and the device.
    device : str, optional
        Profile of the device; that of the job, or the one that the trace names, unless given.
    dtype : str
        Matrix type, where the trace does not tell it.

    Raises
    ------
    ProjectorError
        If the trace holds nothing, or job, device or type do not exist.
    """
    return gap_of(_loaded(run), load_job(job) if job is not None else None, device, dtype)
