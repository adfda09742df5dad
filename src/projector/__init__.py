"""Projects memory and performance of large language model training on GPU clusters.

Everything public stands here and is loaded on first use, so that ``import projector`` stays
light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projector.config.formats.emit.emitted import emit_job
    from projector.config.job import Job
    from projector.config.load import load_job
    from projector.config.space_file import load_space
    from projector.errors import ProjectorError
    from projector.measure.record import Record, load_record
    from projector.measure.recorder import record_trace
    from projector.planning.plan import PlanResult, project_plan
    from projector.projection.api import project_jobs, project_memory, project_performance
    from projector.projection.memory import MemoryProjection
    from projector.projection.performance import PerformanceProjection
    from projector.projection.profiling import measure_job
    from projector.projection.timeline.build import build_timeline
    from projector.report.exports import write_memory_snapshot, write_timeline
    from projector.schedule.simulate import ScheduleResult, simulate_schedule
    from projector.searches.configurations import search
    from projector.searches.result import SearchResult
    from projector.serving.api import project_serving
    from projector.serving.projection import ServingProjection
    from projector.single.times import attention_time, collective_time, gemm_time
    from projector.sweeps.engine import sweep
    from projector.sweeps.result import SweepResult
    from projector.trace.analysis import TraceAnalysis, TraceResult, load_trace
    from projector.validate.traces.api import compare_trace, compare_traces, trace_gap
    from projector.validate.traces.gaps import GapResult
    from projector.validate.traces.result import TraceComparison

_HOMES = {
    "GapResult": "projector.validate.traces.gaps",
    "Job": "projector.config.job",
    "MemoryProjection": "projector.projection.memory",
    "PerformanceProjection": "projector.projection.performance",
    "PlanResult": "projector.planning.plan",
    "ProjectorError": "projector.errors",
    "Record": "projector.measure.record",
    "ServingProjection": "projector.serving.projection",
    "ScheduleResult": "projector.schedule.simulate",
    "SweepResult": "projector.sweeps.result",
    "SearchResult": "projector.searches.configurations",
    "TraceAnalysis": "projector.trace.analysis",
    "TraceComparison": "projector.validate.traces.result",
    "TraceResult": "projector.trace.analysis",
    "attention_time": "projector.single.times",
    "build_timeline": "projector.projection.timeline.build",
    "collective_time": "projector.single.times",
    "compare_trace": "projector.validate.traces.api",
    "compare_traces": "projector.validate.traces.api",
    "emit_job": "projector.config.formats.emit.emitted",
    "gemm_time": "projector.single.times",
    "load_job": "projector.config.load",
    "load_record": "projector.measure.record",
    "load_space": "projector.config.space_file",
    "load_trace": "projector.trace.analysis",
    "measure_job": "projector.projection.profiling",
    "project_jobs": "projector.projection.api",
    "project_memory": "projector.projection.api",
    "project_performance": "projector.projection.api",
    "project_plan": "projector.planning.plan",
    "project_serving": "projector.serving.api",
    "record_trace": "projector.measure.recorder",
    "search": "projector.searches.configurations",
    "simulate_schedule": "projector.schedule.simulate",
    "sweep": "projector.sweeps.engine",
    "trace_gap": "projector.validate.traces.api",
    "write_memory_snapshot": "projector.report.exports",
    "write_timeline": "projector.report.exports",
}

__all__ = [  # types first, then functions
    "GapResult",
    "Job",
    "MemoryProjection",
    "PerformanceProjection",
    "PlanResult",
    "ProjectorError",
    "Record",
    "ScheduleResult",
    "SearchResult",
    "ServingProjection",
    "SweepResult",
    "TraceAnalysis",
    "TraceComparison",
    "TraceResult",
    "attention_time",
    "build_timeline",
    "collective_time",
    "compare_trace",
    "compare_traces",
    "emit_job",
    "gemm_time",
    "load_job",
    "load_record",
    "load_space",
    "load_trace",
    "measure_job",
    "project_jobs",
    "project_memory",
    "project_performance",
    "project_plan",
    "project_serving",
    "record_trace",
    "search",
    "simulate_schedule",
    "sweep",
    "trace_gap",
    "write_memory_snapshot",
    "write_timeline",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name == "__version__":
        from projector.distribution import package_version

        return package_version()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'projector' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*_HOMES, "__version__"])
