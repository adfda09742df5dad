"""Reports of a step: its time, its memory, what was measured of them, the run around it."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.resources import hardware_table
from projector.measure.reduction import reduction_lines
from projector.planning.question import number
from projector.projection.bands import FITS, WORDS
from projector.projection.comparison import ComparedOperation, Comparison, Pair, errors
from projector.projection.memory import Component, MemoryProjection, StageMemoryProjection
from projector.projection.performance import ELSEWHERE, PerformanceProjection
from projector.projection.provenance import Origins
from projector.projection.run import RunProjection
from projector.projection.terms import LIMITS, MEMORY_TERMS
from projector.report.terminal import grid
from projector.report.terminal.grid import entries
from projector.report.terminal.job import (
    configuration,
    filled_in,
    risk,
    search_hint,
    title,
    verdict,
)
from projector.report.terminal.suggestions import Suggestion
from projector.units import HOUR

MAX_COLLECTIVES = 10
"""Collectives shown one by one; the others are summed."""


def performance_report(
    result: PerformanceProjection, suggestions: Sequence[Suggestion] = (), *, defaults: bool = False
) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    return [
        *_head(result),
        *run_lines(result.run),
        Text(),
        *measurement(result.provenance.times),
        *_step(result, suggestions, defaults=defaults),
    ]


def both_report(
    result: PerformanceProjection, suggestions: Sequence[Suggestion] = (), *, defaults: bool = False
) -> list[RenderableType]:
    """Return memory and performance of one job without repetition, in the order of printing."""
    return [
        *_head(result),
        parameters(result.memory),
        Text(),
        *measurement(result.provenance.times),
        *_memory(result.memory),
        *_step(result, suggestions, defaults=defaults),
    ]


def _head(result: PerformanceProjection) -> list[RenderableType]:
    unknown = result.band.unknown
    words = "one of yours narrows it (calibrate --from-run)"
    return [
        title(result.job),
        configuration(result.job, result.schedule),
        Text(),
        verdict(result.memory),
        headline(result),
        *([Text(f"wide: hardly any published run has {unknown}; {words}")] if unknown else []),
        limit(result),
    ]


def _step(
    result: PerformanceProjection, suggestions: Sequence[Suggestion], *, defaults: bool
) -> list[RenderableType]:
    return [
        *breakdown(result),
        *communication(result),
        *compared_benchmark(result.comparison),
        *alternatives(result),
        *next_steps(result, suggestions),
        *filled_in(result.job, result.provenance, listed=defaults),
    ]


def band(uncertainty: Mapping[str, Any]) -> str:
    """Return the band of a figure, e.g. `` ± 9 %``; empty if it is unknown."""
    relative = uncertainty["relative"]
    return f" ± {100.0 * relative:.0f} %" if relative is not None else ""


def headline(result: PerformanceProjection) -> grid.Entries:
    """Return the numbers that people ask for first."""
    figures = (
        f"{grid.milliseconds(result.iteration_time_s)} ms/step",
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU{band(result.uncertainty)}",
        f"{result.tflops_per_gpu:,.1f} TFLOP/s/GPU",
        f"MFU {grid.percent(result.mfu)} of {result.peak_tflops:,.0f} TFLOP/s",
        f"HFU {grid.percent(result.hfu)}",
    )
    return entries(figures, "bold")


def limit(result: PerformanceProjection) -> Text:
    """Name what limits the step."""
    text = f"limited by {result.bound}"
    if result.job.parallelism.pp > 1:
        busiest = result.scalars["busiest_stage"]
        text += f"; bubble {grid.percent(result.bubble_fraction)} of the work of stage {busiest}"
    return Text(text)


def breakdown(result: PerformanceProjection) -> list[RenderableType]:
    """Return where the step goes; the rows add up to the total."""
    origins = result.origins
    if result.comparison is not None:
        return compared_step(result.comparison, origins)
    marks = ["=from"] if origins else []
    table = grid.Grid("=term", "<", "ms", "share", *marks, "|")
    largest = max(result.breakdown_s.values())
    for name, seconds in result.breakdown_s.items():
        if seconds > 0.0:
            table.add_row(
                name,
                Text(LIMITS[name], grid.DIM),
                grid.milliseconds(seconds),
                grid.percent(seconds / result.iteration_time_s),
                *([mark(origins[name])] if origins else []),
                grid.bar(seconds / largest),
            )
    total = "total", "", grid.milliseconds(result.iteration_time_s), grid.percent(1.0)
    table.add_row(*total, *([""] if origins else []), "", style="bold")
    note = ""
    if result.job.parallelism.pp > 1:
        note = f"stage {result.ending_stage}, which ends it; pp_bubble: it waits for others"
    return grid.section("Time of one step", note, table)


def communication(result: PerformanceProjection) -> list[RenderableType]:
    """Return the collectives of the step, the longest first."""
    entries = sorted(result.communication.items(), key=lambda item: -item[1].time_s)
    waits_s = sum(entry.time_s for name, entry in entries if name.endswith(ELSEWHERE))
    entries = [item for item in entries if item[1].time_s > 0.0 and not item[0].endswith(ELSEWHERE)]
    rest = [entry for _, entry in entries[MAX_COLLECTIVES:]]
    table = grid.Grid.of("collectives", entries[:MAX_COLLECTIVES], giga=_giga)
    if rest:
        table.add_row(
            f"{len(rest)} shorter ones",
            "",
            _giga(sum(entry.bytes for entry in rest)),
            grid.milliseconds(sum(entry.time_s for entry in rest)),
            grid.milliseconds(sum(entry.exposed_s for entry in rest)),
            style=grid.DIM,
        )
    note = f"stage {result.ending_stage}; exposed: what lengthens the step"
    if waits_s:
        note += f"; {grid.milliseconds(waits_s)} ms more wait for others"
    return grid.listing("Communication of one GPU", note, table)


def _giga(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.2f}"


def alternatives(result: PerformanceProjection) -> list[RenderableType]:
    """Return the other schedules that were compared, if any were, and why some were not."""
    if not result.alternatives and not result.left_out:
        return []
    table = grid.Grid.of(
        "alternatives",
        (result, *result.alternatives),
        outcome=lambda other: Text("chosen") if other is result else risk(other.memory.verdict),
    )
    note = "bubble: idle time of the busiest stage over its work"
    left_out = grid.Grid.of("left_out", result.left_out)
    return [*grid.section("Schedules", note, table), *grid.listing("Left out", "", left_out)]


def next_steps(
    result: PerformanceProjection, suggestions: Sequence[Suggestion]
) -> list[RenderableType]:
    """Return changes that help, with the gain of each."""
    if not suggestions:
        return search_hint(result.memory)
    table = grid.Grid("=change", "tokens/s", "peak GiB", "=")
    stacked: list[RenderableType] = []
    for suggestion in suggestions:
        outcome = "trains differently" if suggestion.changes_training else ""
        if result.memory.verdict != FITS:
            still = "still " if suggestion.verdict == result.memory.verdict else ""
            outcome = f"{still}{WORDS[suggestion.verdict]}"
        speed = f"{grid.signed(suggestion.speed * 100)} %"
        peak = grid.signed(suggestion.peak_bytes / 2**30)
        table.add_row(suggestion.change, speed, peak, Text(outcome, style=grid.DIM))
        gains = [f"tokens/s {speed}", f"peak {peak} GiB", *([outcome] if outcome else [])]
        stacked += [grid.Pasted(suggestion.change), Padding(entries(gains, grid.DIM), (0, 0, 0, 4))]
    note = "each projected; append to the command"
    if not result.memory.fits:
        note += "; `projector search` ranks all layouts"
    title, beside = grid.section("What to try next", note, table)
    return [title, grid.Fitting(beside, Group(*stacked, Text()))]


# The report of `project_memory`.
ALL_STAGES = 8
"""Up to this many stages are shown one by one; beyond, equal neighbours are one row."""

DEPTH = 2
"""Levels of the module tree below a layer."""


def memory_report(result: MemoryProjection, *, defaults: bool = False) -> list[RenderableType]:
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
        *_memory(result),
        *filled_in(job, result.provenance, listed=defaults),
    ]


def _memory(result: MemoryProjection) -> list[RenderableType]:
    return [*stages(result), *anchored_memory(result), *components(result), *documented(result)]


def parameters(result: MemoryProjection) -> Text:
    """Return the size of the model."""
    total, active = result.counts.parameters_total, result.counts.parameters_active
    text = f"{grid.count(total)} parameters"
    if active != total:
        text += f", {grid.count(active)} active for a token"
    if result.job.training.adapter is not None:
        trained = grid.count(result.counts.parameters_trained)
        text += f"; {trained} in adapters, which alone are trained"
    return Text(text)


def stages(result: MemoryProjection) -> list[RenderableType]:
    """Return the memory of each pipeline rank, term by term."""
    table = grid.Grid(
        "stage", "params", *(term.head for term in MEMORY_TERMS), "peak", "chunks", gap=1
    )
    for first, last, stage in fold(result.stages, result.peak_stage):
        table.add_row(
            f"{first}" if first == last else f"{first}-{last}",
            grid.count(stage.parameters),
            *(grid.gib(term.of(stage)) for term in MEMORY_TERMS),
            grid.gib(stage.peak_bytes),
            str(stage.in_flight_microbatches),
            style="bold" if first <= result.peak_stage <= last else None,
        )
    return grid.section(
        "Memory of each stage", "GiB of one GPU; chunks: those whose activations are held", table
    )


def fold(
    rows: Sequence[StageMemoryProjection], peak_stage: int
) -> list[tuple[int, int, StageMemoryProjection]]:
    """Join equal neighbours of many stages, but the first, the last and the peak one."""
    folded: list[tuple[int, int, StageMemoryProjection]] = []
    unfolded = {0, len(rows) - 1, peak_stage}
    for index, row in enumerate(rows):
        may_join = len(rows) > ALL_STAGES and not unfolded & {index - 1, index}
        if may_join and _shown(folded[-1][2]) == _shown(row):
            folded[-1] = (folded[-1][0], index, folded[-1][2])
        else:
            folded.append((index, index, row))
    return folded


def components(result: MemoryProjection) -> list[RenderableType]:
    """Return the module tree: parameters of one rank, activations of one microbatch."""
    table = grid.Grid("=module", "parameters", "activations GiB")
    for component in result.components:
        _add_component(table, component, 0)
    return grid.section("Modules", "one GPU, one microbatch, nothing recomputed", table)


def documented(result: MemoryProjection) -> list[RenderableType]:
    """Return the closed forms that Primus documents, kept for comparison."""
    forms = result.documented
    if not forms.parameters_total:
        return []
    table = grid.Grid("=", "", header=False)
    table.add_row("parameters", forms.parameters_total)
    table.add_row("parameters of one rank", forms.parameters_per_rank)
    table.add_row("parameters and optimizer, GiB", f"{forms.param_optimizer_gib:,.2f}")
    table.add_row("activations, GiB", f"{forms.activation_gib:,.2f}")
    table.add_row("total, GiB", f"{forms.total_gib:,.2f}")
    parts = grid.Grid.of(
        "documented", forms.components.items(),
        parameters=lambda row: int(row[1]["parameters"]) or "-",
    )  # fmt: skip
    note = "coarse; the verdict does not use them"
    if result.job.training.adapter is not None:
        note = "they train every weight; the verdict does not use them"
    return [*grid.section("Documented closed forms", note, table), parts, Text()]


def _shown(stage: StageMemoryProjection) -> tuple[str, ...]:
    terms = (grid.gib(term.of(stage)) for term in MEMORY_TERMS)
    return (str(stage.parameters), *terms, str(stage.in_flight_microbatches))


def _add_component(table: grid.Grid, component: Component, depth: int) -> None:
    table.add_row(
        Text("  " * depth + component.name, style="bold" if depth == 0 else ""),
        component.parameters or "-",
        f"{component.activation_bytes / 2**30:,.3f}" if component.activation_bytes else "-",
        style=grid.DIM if depth == DEPTH else None,
    )
    if depth < DEPTH:
        for child in component.children:
            _add_component(table, child, depth + 1)


# What was measured, where each term comes from, and measured beside simulated.
MAX_OPERATIONS = 16
"""Operations shown one by one; the others are summed up."""

MAX_NAMES = 3
"""Operations named one by one that were not measured for the same reason."""

STYLES = {"measured": "green", "scaled": "yellow", "analytic": ""}

OF_STEP = "total"
"""Name of the sum among the pairs of a step."""


def mark(origin: str) -> Text:
    """Return the origin of a term as tables write it."""
    return Text(origin, style=STYLES.get(origin, ""))


def measurement(times: Origins | None) -> list[RenderableType]:
    """Say on what was measured, what was reduced for it, and why; nothing without a record."""
    if times is None:
        return []
    where = times.record["environment"]
    runtime = f", {where['backend'].upper()} {where['runtime']}" if where["runtime"] else ""
    note = f"torch {where['torch']}{runtime}"
    lines = "\n".join(reduction_lines(times.record["reduction"]))
    return [
        grid.heading(f"Measured on {where['ranks']} x {where['device']}", note),
        *grid.below(lines, style=grid.DIM),
    ]


def anchored_memory(result: MemoryProjection) -> list[RenderableType]:
    """Return what the peak is made of where it stands on a measured one."""
    anchor, compared = result.anchor, result.comparison
    if anchor is None:
        return []
    rows = (
        ("modelled peak", anchor.analytic_bytes, "analytic"),
        ("alive beyond the model", anchor.live_bytes, "scaled"),
        ("idle in the allocator", anchor.idle_bytes, "measured"),
        ("reserved peak", anchor.peak_bytes, ""),
        ("upper bound", anchor.upper_bytes, ""),
    )
    table = grid.Grid.of("anchored", rows, mark=mark)
    note = f"a step of the benchmark held {grid.gib(anchor.measured_bytes)} GiB"
    if compared is not None:
        note += f", and {grid.gib(compared['step'].simulated_bytes)} simulated"
    return grid.section("Peak, anchored on a measured one", note, table)


def compared_step(comparison: Comparison, origins: Mapping[str, str]) -> list[RenderableType]:
    """Return the terms of the restored target's step beside the simulated ones."""
    table = grid.Grid("=term", "<", "ms", "simulated", "sim/meas", "=from")
    for name, pair in comparison.target.items():
        if name == OF_STEP or pair.measured_s > 0.0 or pair.simulated_s > 0.0:
            cells = name, Text(LIMITS.get(name, ""), grid.DIM)
            style = "bold" if name == OF_STEP else None
            table.add_row(*cells, *_numbers(pair), mark(origins.get(name, "")), style=style)
    note = "restored from what was measured, beside the models alone"
    return grid.section("Time of one step", note, table)


def compared_benchmark(comparison: Comparison | None) -> list[RenderableType]:
    """Return layers, the step and operations of the benchmark, measured and simulated."""
    if comparison is None:
        return []
    table = grid.Grid("=of the benchmark", "ms", "simulated", "sim/meas")
    for entry in comparison.layers:
        table.add_row(f"{entry.layer} {entry.phase}", *_numbers(entry.pair))
    for name, pair in comparison.step.items():
        table.add_row(f"step of one layer each, {name}", *_numbers(pair))
    parts = grid.section("Layers", "forward and backward as autograd runs them", table)
    return [*parts, *_operations(comparison.operations), *_missing(comparison)]


def _operations(operations: Sequence[ComparedOperation]) -> list[RenderableType]:
    if not operations:
        return []
    ranked = sorted(operations, key=lambda entry: -entry.pair.measured_s * entry.runs)
    table = grid.Grid("=operation", "=phase", "<shape", "ms", "simulated", "sim/meas")
    for entry in ranked[:MAX_OPERATIONS]:
        name = f"{entry.layer} {entry.key.label}"
        table.add_row(name, entry.key.phase, entry.shape, *_numbers(entry.pair))
    rest = ranked[MAX_OPERATIONS:]
    if rest:
        pairs = [(entry.pair.measured_s, entry.pair.simulated_s) for entry in rest]
        pair = Pair(*map(sum, zip(*pairs, strict=True)))
        table.add_row(f"{len(rest)} shorter ones", "", "", *_numbers(pair), style=grid.DIM)
    return grid.section("Operations", _summary(errors(entry.pair for entry in operations)), table)


def _summary(found: Mapping[str, Any]) -> str:
    if not found["count"]:
        return "each by itself"
    return (
        f"each by itself; of {found['count']}, simulated is off by "
        f"{grid.percent(found['median_ape'])} in the median, "
        f"{_ratio(found['geomean_ratio'])} on average"
    )


def _missing(comparison: Comparison) -> list[RenderableType]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in comparison.missing:
        reasons.setdefault((entry.status, entry.message), []).append(entry.name)
    table = grid.Grid("<not measured", "=status", "<why")
    for (status, message), names in reasons.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        shown = ", ".join(names[:MAX_NAMES])
        table.add_row(f"{shown}{more}", status.replace("_", " "), message)
    return grid.listing("Not measured", "the models stand for it", table)


def _numbers(pair: Pair) -> tuple[str, str, str]:
    measured, simulated = map(grid.milliseconds, (pair.measured_s, pair.simulated_s))
    return measured, simulated, _ratio(pair.ratio)


def _ratio(ratio: float | None) -> str:
    """Format simulated over measured, with two digits also where it is small."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio >= 0.1 or ratio == 0.0 else f"{ratio:.2g}"


# A whole training run, in the few lines that a report of a step has for it.
_MINUTE = 60.0

_WORDS: Mapping[str, str] = hardware_table("report_words.yaml")["run_terms"]
"""Terms whose name is no word."""


def run_lines(run: RunProjection | None) -> list[RenderableType]:
    """Return days, GPU-hours and what takes them; nothing for a job without tokens."""
    if run is None:
        return []
    parts = [
        f"{number(run.tokens)} tokens in {run.days:,.3g} days{_band(run)}",
        f"{run.gpu_hours:,.0f} GPU-hours",
        f"goodput {grid.percent(run.goodput)}",
    ]
    if run.energy_mwh is not None:
        parts.append(f"{_rounded(run.energy_mwh, 3)} MWh")
    if run.cost_usd is not None:
        parts.append(f"${run.cost_usd:,.0f}")
    return [Text(), entries(parts, "bold"), terms(run)]


def _band(run: RunProjection) -> str:
    if run.days_low is None:
        return ""
    if run.days_high is None:
        return f" (90 %: {run.days_low:,.3g} or more)"
    return f" (90 %: {run.days_low:,.3g} to {run.days_high:,.3g})"


def terms(run: RunProjection) -> Text:
    """Return the days of each term, and what interrupts the run."""
    taken = {name: days for name, days in run.terms_days.items() if days > 0.0}
    shown = [f"{_WORDS.get(name, name)} {days:,.3g}" for name, days in taken.items()]
    text = f"days: {', '.join(shown)}"
    if run.failures > 0.0:
        text += f"; {_rounded(run.failures, 2)} failures"
    if run.checkpoint_interval_s is not None:
        text += f"; a checkpoint every {duration(run.checkpoint_interval_s)}"
    return Text(text, style=grid.DIM)


def _rounded(value: float, digits: int) -> str:
    """Write a number with a few digits that count, and without an exponent."""
    return f"{float(f'{value:.{digits}g}'):,.15g}"


def duration(seconds: float) -> str:
    """Return a time as people say it: seconds, minutes or hours."""
    if seconds >= 2.0 * HOUR:
        return f"{seconds / HOUR:,.1f} hours"
    return f"{seconds / _MINUTE:.3g} minutes" if seconds >= 2.0 * _MINUTE else f"{seconds:,.0f} s"
