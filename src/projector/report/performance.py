"""The report of `project_performance`, for one screen."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from projector.projection.performance import LIMITS, PerformanceProjection
from projector.report.job import configuration, filled_in, title, verdict
from projector.report.suggestions import Suggestion
from projector.report.tables import (
    DIM,
    add_row,
    bar,
    gib,
    grid,
    heading,
    milliseconds,
    paragraph,
    percent,
    signed,
)

MAX_COLLECTIVES = 10
"""Collectives shown one by one; what follows is summed."""


def performance_report(
    result: PerformanceProjection, suggestions: Sequence[Suggestion] = ()
) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    parts: list[RenderableType] = [
        title(result.job),
        configuration(result.job, result.schedule),
        Text(),
        verdict(result.memory),
        headline(result),
        Text(),
        *breakdown(result),
        *communication(result),
        *alternatives(result),
        *next_steps(result, suggestions),
        *filled_in(result.provenance),
    ]
    return parts


def headline(result: PerformanceProjection) -> Text:
    """Return the numbers that people ask for first."""
    line = Text()
    for text in (
        f"{milliseconds(result.iteration_time_s)} ms a step",
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU",
        f"{result.tflops_per_gpu:,.1f} TFLOP/s/GPU",
        f"MFU {percent(result.mfu)}",
        f"HFU {percent(result.hfu)}",
    ):
        line.append("   " if line else "")
        line.append(text.replace(" ", "\u00a0"), style="bold")
    return line


def breakdown(result: PerformanceProjection) -> list[RenderableType]:
    """Return where the step goes; the rows add up to the total."""
    table = grid("<term", "<", "ms", "share", "<")
    largest = max(result.breakdown_s.values())
    for name, seconds in result.breakdown_s.items():
        if seconds > 0.0:
            add_row(
                table,
                name,
                Text(LIMITS[name], style=DIM),
                milliseconds(seconds),
                percent(seconds / result.iteration_time_s),
                Text(bar(seconds / largest, cells=20), style="cyan"),
            )
    add_row(
        table, "total", "", milliseconds(result.iteration_time_s), percent(1.0), "", style="bold"
    )
    note = f"limited by {result.bound}"
    if result.job.parallelism.pp > 1:
        note += f"; bubble {percent(result.bubble_fraction)} of the work"
    return [heading("Time of one step", note), table]


def communication(result: PerformanceProjection) -> list[RenderableType]:
    """Return the collectives of the step, the longest first."""
    entries = sorted(result.communication.items(), key=lambda item: -item[1].time_s)
    entries = [item for item in entries if item[1].time_s > 0.0]
    if not entries:
        return []
    table = grid("<collective", "<algorithm", "GB", "ms", "exposed ms")
    for name, entry in entries[:MAX_COLLECTIVES]:
        add_row(
            table,
            name,
            entry.algorithm,
            f"{entry.bytes / 1e9:,.2f}",
            milliseconds(entry.time_s),
            milliseconds(entry.exposed_s),
        )
    rest = [entry for _, entry in entries[MAX_COLLECTIVES:]]
    if rest:
        add_row(
            table,
            f"{len(rest)} shorter ones",
            "",
            f"{sum(entry.bytes for entry in rest) / 1e9:,.2f}",
            milliseconds(sum(entry.time_s for entry in rest)),
            milliseconds(sum(entry.exposed_s for entry in rest)),
            style=DIM,
        )
    return [heading("Communication of one GPU", "of the stage that ends the step"), table]


def alternatives(result: PerformanceProjection) -> list[RenderableType]:
    """Return the other schedules that were compared, if any were."""
    if not result.alternatives:
        return []
    table = grid("<schedule", "ms", "peak GiB", "<")
    for other in (result, *result.alternatives):
        add_row(
            table,
            other.schedule,
            milliseconds(other.iteration_time_s),
            gib(other.memory.peak_bytes),
            "chosen" if other is result else "" if other.memory.fits else "does not fit",
        )
    return [heading("Schedules"), table]


def next_steps(
    result: PerformanceProjection, suggestions: Sequence[Suggestion]
) -> list[RenderableType]:
    """Return changes that help, with what each of them gives."""
    if not suggestions:
        return []
    table = grid("<change", "tokens/s", "peak GiB", "<")
    for each in suggestions:
        outcome = "" if each.fits else "still does not fit"
        if each.fits and not result.memory.fits:
            outcome = "fits"
        add_row(
            table,
            each.change,
            f"{signed(each.speed * 100)} %",
            signed(each.peak_bytes / 2**30),
            Text(outcome, style=DIM),
        )
    return [heading("What to try next", "each projected; append to the command"), table]


def no_suggestions() -> RenderableType:
    """Return the line for a job that no known change improves."""
    return paragraph("no change among those tried helps", style=DIM)
