"""The report of `project_memory`."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from projector.projection.memory import Component, MemoryProjection, StageMemoryProjection
from projector.projection.terms import MEMORY_TERMS
from projector.report.terminal.grid import Grid
from projector.report.terminal.job import (
    configuration,
    filled_in,
    search_hint,
    title,
    verdict,
)
from projector.report.terminal.measured import anchored_memory, measurement
from projector.report.terminal.tables import DIM, add_row, count, gib, grid, section

ALL_STAGES = 8
"""Up to this many stages are shown one by one; beyond, equal neighbours are one row."""

DEPTH = 2
"""Levels of the module tree below a layer."""


def memory_report(result: MemoryProjection) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    job = result.job
    return [
        title(job),
        configuration(job, result.schedule),
        Text(),
        verdict(result),
        parameters(result),
        Text(),
        *search_hint(result),
        *measurement(result.provenance.times),
        *stages(result),
        *anchored_memory(result),
        *components(result),
        *documented(result),
        *filled_in(job, result.provenance),
    ]


def parameters(result: MemoryProjection) -> Text:
    """Return the size of the model."""
    total, active = result.counts.parameters_total, result.counts.parameters_active
    text = f"{count(total)} parameters"
    if active != total:
        text += f", {count(active)} active for a token"
    if result.job.training.adapter is not None:
        text += f"; {count(result.counts.parameters_trained)} in adapters, which alone are trained"
    return Text(text)


def stages(result: MemoryProjection) -> list[RenderableType]:
    """Return the memory of each pipeline rank, term by term."""
    table = grid("stage", "params", *(term.head for term in MEMORY_TERMS), "peak", "chunks", gap=1)
    for first, last, stage in fold(result.stages, result.peak_stage):
        add_row(
            table,
            f"{first}" if first == last else f"{first}-{last}",
            count(stage.parameters),
            *(gib(term.of(stage)) for term in MEMORY_TERMS),
            gib(stage.peak_bytes),
            str(stage.in_flight_microbatches),
            style="bold" if first <= result.peak_stage <= last else None,
        )
    return section(
        "Memory of each stage", "GiB of one GPU; chunks: those whose activations are held", table
    )


def fold(
    rows: Sequence[StageMemoryProjection], peak_stage: int
) -> list[tuple[int, int, StageMemoryProjection]]:
    """Join neighbours with the same text, if there are many stages.

    The first, the last and the peak stage keep a row of their own.
    """
    folded: list[tuple[int, int, StageMemoryProjection]] = []
    unfolded = {0, len(rows) - 1, peak_stage}
    for index, row in enumerate(rows):
        previous = folded[-1] if folded else None
        joins = (
            len(rows) > ALL_STAGES
            and previous is not None
            and index not in unfolded
            and previous[1] not in unfolded
            and _shown(previous[2]) == _shown(row)
        )
        if joins and previous is not None:
            folded[-1] = (previous[0], index, previous[2])
        else:
            folded.append((index, index, row))
    return folded


def components(result: MemoryProjection) -> list[RenderableType]:
    """Return the module tree: parameters of one rank, activations of one microbatch."""
    table = grid("=module", "parameters", "activations GiB")
    for component in result.components:
        _add_component(table, component, 0)
    note = "one GPU, one microbatch, nothing recomputed"
    return section("Modules", note, table)


def documented(result: MemoryProjection) -> list[RenderableType]:
    """Return the closed forms that Primus documents, kept for comparison."""
    forms = result.documented
    table = grid("=", "", header=False)
    for name, value in (
        ("parameters", f"{forms.parameters_total:,}"),
        ("parameters of one rank", f"{forms.parameters_per_rank:,}"),
        ("parameters and optimizer, GiB", f"{forms.param_optimizer_gib:,.2f}"),
        ("activations, GiB", f"{forms.activation_gib:,.2f}"),
        ("total, GiB", f"{forms.total_gib:,.2f}"),
    ):
        add_row(table, name, value)
    parts = grid("=component", "parameters", "activations GiB")
    for name, figures in forms.components.items():
        parameters = int(figures["parameters"])
        add_row(
            parts,
            name,
            f"{parameters:,}" if parameters else "-",
            f"{figures['activation_gib']:,.4f}",
        )
    note = "coarse; the verdict does not use them"
    if result.job.training.adapter is not None:
        note = "they train every weight; the verdict does not use them"
    return [*section("Documented closed forms", note, table), parts, Text()]


def _shown(stage: StageMemoryProjection) -> tuple[str, ...]:
    terms = (gib(term.of(stage)) for term in MEMORY_TERMS)
    return (str(stage.parameters), *terms, str(stage.in_flight_microbatches))


def _add_component(table: Grid, component: Component, depth: int) -> None:
    name = Text("  " * depth + component.name, style="bold" if depth == 0 else "")
    add_row(
        table,
        name,
        f"{component.parameters:,}" if component.parameters else "-",
        f"{component.activation_bytes / 2**30:,.3f}" if component.activation_bytes else "-",
        style=DIM if depth == DEPTH else None,
    )
    if depth < DEPTH:
        for child in component.children:
            _add_component(table, child, depth + 1)
