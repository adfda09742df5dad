"""Projects memory and performance of large language model training on GPU clusters.

Everything public stands here and is loaded on first use, so that ``import projector`` stays
light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projector.config.job import Job as Job
    from projector.config.load import load_job as load_job
    from projector.errors import ProjectorError as ProjectorError
    from projector.measure.record import Record as Record
    from projector.measure.record import load_record as load_record
    from projector.measure.recorder import record_trace as record_trace
    from projector.planning.plan import PlanResult as PlanResult
    from projector.planning.plan import project_plan as project_plan
    from projector.projection.api import emit_job as emit_job
    from projector.projection.api import project_jobs as project_jobs
    from projector.projection.api import project_memory as project_memory
    from projector.projection.api import project_performance as project_performance
    from projector.projection.memory import MemoryProjection as MemoryProjection
    from projector.projection.performance import PerformanceProjection as PerformanceProjection
    from projector.projection.profiling import measure_job as measure_job
    from projector.projection.timeline.build import build_timeline as build_timeline
    from projector.report.exports import write_memory_snapshot as write_memory_snapshot
    from projector.report.exports import write_timeline as write_timeline
    from projector.rl.step import RLProjection as RLProjection
    from projector.rl.step import project_rl as project_rl
    from projector.rl.step import search_rl as search_rl
    from projector.schedule.simulate import ScheduleResult as ScheduleResult
    from projector.schedule.simulate import simulate_schedule as simulate_schedule
    from projector.searches.configurations import search as search
    from projector.searches.result import SearchResult as SearchResult
    from projector.searches.serving import ServingSearch as ServingSearch
    from projector.searches.serving import search_serving as search_serving
    from projector.serving.api import project_serving as project_serving
    from projector.serving.projection import ServingProjection as ServingProjection
    from projector.single.attention import attention_time as attention_time
    from projector.single.collective import collective_time as collective_time
    from projector.single.gemm import gemm_time as gemm_time
    from projector.sweeps.engine import sweep as sweep
    from projector.sweeps.result import SweepResult as SweepResult
    from projector.sweeps.table import load_space as load_space
    from projector.trace.analysis import TraceAnalysis as TraceAnalysis
    from projector.trace.analysis import TraceResult as TraceResult
    from projector.trace.analysis import load_trace as load_trace
    from projector.validate.traces.api import GapResult as GapResult
    from projector.validate.traces.api import compare_trace as compare_trace
    from projector.validate.traces.api import compare_traces as compare_traces
    from projector.validate.traces.api import trace_gap as trace_gap
    from projector.validate.traces.result import TraceComparison as TraceComparison

_PUBLIC = {
    "projector.config.job": "Job",
    "projector.config.load": "load_job",
    "projector.errors": "ProjectorError",
    "projector.measure.record": "Record load_record",
    "projector.measure.recorder": "record_trace",
    "projector.planning.plan": "PlanResult project_plan",
    "projector.projection.api": "emit_job project_jobs project_memory project_performance",
    "projector.projection.memory": "MemoryProjection",
    "projector.projection.performance": "PerformanceProjection",
    "projector.projection.profiling": "measure_job",
    "projector.projection.timeline.build": "build_timeline",
    "projector.report.exports": "write_memory_snapshot write_timeline",
    "projector.rl.step": "RLProjection project_rl search_rl",
    "projector.schedule.simulate": "ScheduleResult simulate_schedule",
    "projector.searches.configurations": "search",
    "projector.searches.result": "SearchResult",
    "projector.searches.serving": "ServingSearch search_serving",
    "projector.serving.api": "project_serving",
    "projector.serving.projection": "ServingProjection",
    "projector.single.attention": "attention_time",
    "projector.single.collective": "collective_time",
    "projector.single.gemm": "gemm_time",
    "projector.sweeps.engine": "sweep",
    "projector.sweeps.result": "SweepResult",
    "projector.sweeps.table": "load_space",
    "projector.trace.analysis": "TraceAnalysis TraceResult load_trace",
    "projector.validate.traces.api": "GapResult compare_trace compare_traces trace_gap",
    "projector.validate.traces.result": "TraceComparison",
}
"""Names of each module; the imports above tell them to type checkers."""

_HOMES = {name: module for module, names in _PUBLIC.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name == "__all__":  # type checkers read it off the imports above
        return [*_HOMES]
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
    return [*_HOMES, "__version__"]
