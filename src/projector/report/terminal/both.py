"""Memory and performance of one job in one report, without repetition."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from projector.projection.performance import PerformanceProjection
from projector.report.terminal import memory, performance
from projector.report.terminal.job import configuration, filled_in, title, verdict
from projector.report.terminal.measured import anchored_memory, compared_benchmark, measurement
from projector.report.terminal.suggestions import Suggestion


def both_report(
    result: PerformanceProjection, suggestions: Sequence[Suggestion] = ()
) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    return [
        title(result.job),
        configuration(result.job, result.schedule),
        Text(),
        verdict(result.memory),
        performance.headline(result),
        performance.limit(result),
        memory.parameters(result.memory),
        Text(),
        *measurement(result.provenance.times),
        *memory.stages(result.memory),
        *anchored_memory(result.memory),
        *memory.components(result.memory),
        *memory.documented(result.memory),
        *performance.breakdown(result),
        *performance.communication(result),
        *compared_benchmark(result.comparison),
        *performance.alternatives(result),
        *performance.next_steps(result, suggestions),
        *filled_in(result.job, result.provenance),
    ]
