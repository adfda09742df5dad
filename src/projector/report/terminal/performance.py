"""The report of `project_performance`, for one screen."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.projection.bands import FITS, WORDS
from projector.projection.performance import ELSEWHERE, PerformanceProjection
from projector.projection.terms import LIMITS
from projector.report.terminal.job import (
    configuration,
    filled_in,
    risk,
    search_hint,
    title,
    verdict,
)
from projector.report.terminal.lines import Entries, Pasted, entries
from projector.report.terminal.measured import (
    compared_benchmark,
    compared_step,
    mark,
    measurement,
)
from projector.report.terminal.run import run_lines
from projector.report.terminal.suggestions import Suggestion
from projector.report.terminal.tables import (
    DIM,
    Fitting,
    add_row,
    bar,
    gib,
    grid,
    milliseconds,
    percent,
    section,
    signed,
)

MAX_COLLECTIVES = 10
"""Collectives shown one by one; the others are summed."""


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
        limit(result),
        *run_lines(result.run),
        Text(),
        *measurement(result.provenance.times),
        *breakdown(result),
        *communication(result),
        *compared_benchmark(result.comparison),
        *alternatives(result),
        *next_steps(result, suggestions),
        *filled_in(result.job, result.provenance),
    ]
    return parts


def band(uncertainty: Mapping[str, Any]) -> str:
    """Return the band of a figure, e.g. `` ± 9 %``; empty if it is unknown."""
    relative = uncertainty["relative"]
    return f" ± {100.0 * relative:.0f} %" if relative is not None else ""


def headline(result: PerformanceProjection) -> Entries:
    """Return the numbers that people ask for first."""
    figures = (
        f"{milliseconds(result.iteration_time_s)} ms/step",
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU{band(result.uncertainty)}",
        f"{result.tflops_per_gpu:,.1f} TFLOP/s/GPU",
        f"MFU {percent(result.mfu)}",
        f"HFU {percent(result.hfu)}",
    )
    return entries(figures, "bold")


def limit(result: PerformanceProjection) -> Text:
    """Name what limits the step."""
    text = f"limited by {result.bound}"
    if result.job.parallelism.pp > 1:
        busiest = result.scalars["busiest_stage"]
        text += f"; bubble {percent(result.bubble_fraction)} of the work of stage {busiest}"
    return Text(text)


def breakdown(result: PerformanceProjection) -> list[RenderableType]:
    """Return where the step goes; the rows add up to the total."""
    origins = result.origins
    if result.comparison is not None:
        return compared_step(result.comparison, origins)
    marks = ["=from"] if origins else []
    table = grid("=term", "<", "ms", "share", *marks, "|")
    largest = max(result.breakdown_s.values())
    for name, seconds in result.breakdown_s.items():
        if seconds > 0.0:
            add_row(
                table,
                name,
                Text(LIMITS[name], DIM),
                milliseconds(seconds),
                percent(seconds / result.iteration_time_s),
                *([mark(origins[name])] if origins else []),
                bar(seconds / largest),
            )
    total = "total", "", milliseconds(result.iteration_time_s), percent(1.0)
    add_row(table, *total, *([""] if origins else []), "", style="bold")
    note = ""
    if result.job.parallelism.pp > 1:
        note = f"stage {result.ending_stage}, which ends it; pp_bubble: it waits for others"
    return section("Time of one step", note, table)


def communication(result: PerformanceProjection) -> list[RenderableType]:
    """Return the collectives of the step, the longest first."""
    entries = sorted(result.communication.items(), key=lambda item: -item[1].time_s)
    waits_s = sum(entry.time_s for name, entry in entries if name.endswith(ELSEWHERE))
    entries = [item for item in entries if item[1].time_s > 0.0 and not item[0].endswith(ELSEWHERE)]
    if not entries:
        return []
    table = grid("=collective", "<algorithm", "GB", "ms", "exposed ms")
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
    note = f"stage {result.ending_stage}; exposed: what lengthens the step"
    if waits_s:
        note += f"; {milliseconds(waits_s)} ms more wait for others"
    return section("Communication of one GPU", note, table)


def alternatives(result: PerformanceProjection) -> list[RenderableType]:
    """Return the other schedules that were compared, if any were, and why some were not."""
    if not result.alternatives and not result.left_out:
        return []
    table = grid("=schedule", "vpp", "ms", "bubble", "peak GiB", "<")
    for other in (result, *result.alternatives):
        add_row(
            table,
            other.schedule,
            str(other.degrees["vpp"]),
            milliseconds(other.iteration_time_s),
            percent(other.bubble_fraction),
            gib(other.memory.peak_bytes),
            Text("chosen") if other is result else risk(other.memory.verdict),
        )
    note = "bubble: idle time of the busiest stage over its work"
    parts = section("Schedules", note, table)
    if result.left_out:
        left_out = grid("=schedule", "<why")
        for name, reason in result.left_out:
            add_row(left_out, name, reason)
        parts += section("Left out", "", left_out)
    return parts


def next_steps(
    result: PerformanceProjection, suggestions: Sequence[Suggestion]
) -> list[RenderableType]:
    """Return changes that help, with the gain of each."""
    if not suggestions:
        return search_hint(result.memory)
    table = grid("=change", "tokens/s", "peak GiB", "=")
    stacked: list[RenderableType] = []
    for suggestion in suggestions:
        outcome = "trains differently" if suggestion.changes_training else ""
        if result.memory.verdict != FITS:
            still = "still " if suggestion.verdict == result.memory.verdict else ""
            outcome = f"{still}{WORDS[suggestion.verdict]}"
        speed = f"{signed(suggestion.speed * 100)} %"
        peak = signed(suggestion.peak_bytes / 2**30)
        add_row(table, suggestion.change, speed, peak, Text(outcome, style=DIM))
        gains = [f"tokens/s {speed}", f"peak {peak} GiB", *([outcome] if outcome else [])]
        stacked += [Pasted(suggestion.change), Padding(entries(gains, DIM), (0, 0, 0, 4))]
    note = "each projected; append to the command"
    if not result.memory.fits:
        note += "; `projector search` ranks all layouts"
    title, beside = section("What to try next", note, table)
    return [title, Fitting(beside, Group(*stacked, Text()))]
