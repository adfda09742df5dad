"""A search: the best configurations, their trade-offs, and illegal ones."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.projection.bands import COVERED, FITS, VERDICTS, WORDS
from projector.report.document import Column, Document, Section, Table, words
from projector.report.figures.pareto import distinct, read_front, set_fields
from projector.report.figures.rows import configuration, merged, sample, shared
from projector.report.pages import figures as page_figures
from projector.report.pages.page import check_page, write_page
from projector.report.terminal.grid import Pasted, assignments, gib
from projector.searches.ranking import NAMES, TIME, UNITS, Configuration
from projector.searches.result import SearchResult
from projector.units import to_gib, to_ms

SHOWN_PARETO = 10
"""Points of the front that a terminal lists."""

LARGE = 100.0
"""Values from here on are written without decimals."""

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp")

RANKED = 300
"""Configurations of the table of a page."""

MOST_EQUAL = 4
"""Configurations that are read for each row of that table, for those that equal others."""

SAMPLE = 4_000
"""Configurations of the cloud; fewer are all there."""


def search_report(result: SearchResult) -> Document:
    """Return the report of a search for a terminal."""
    job = result.job
    title = (
        f"{job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}, global batch "
        f"{job.training.global_batch_size:,}, sequence {job.training.seq_length:,}"
    )
    counts = (
        f"{result.evaluated:,} legal configurations in {result.seconds:.1f} s: {counts_of(result)}"
    )
    lines = []
    if result.ruled_out:
        lines.append(
            f"{result.ruled_out:,} more are proven to be slower than the best, or not to fit; "
            "their orders were not planned"
        )
    if result.stopped:
        known = ""
        if result.left_out_s is not None and result.best:
            gain = result.best[0].iteration_time_s / result.left_out_s - 1.0
            known = "; none is faster than the first"
            known += f" by more than {gain:.1%}" if gain > 0.0 else ""
        lines.append(f"STOPPED, {result.stopped}: {result.left_out:,} were left out{known}")
    head: list[RenderableType] = [
        Text(title, style="bold"),
        *(Padding(Text(line), (0, 0, 0, 2)) for line in (counts, *lines)),
        Text(),
    ]
    if not result.best:
        text = Text("NOTHING FITS", style="bold red")
        head += [text.append(f"  {nothing_ranked(result)}", style="not bold default"), Text()]
        for sentence, overrides in ways_out(result):
            head += [Text(sentence), *([Pasted(overrides)] if overrides else []), Text()]
    return Document(title, counts, [*_best(result), *_pareto(result), *_illegal(result)], head)


def write_search_page(result: SearchResult, path: str | Path) -> None:
    """Write a search as one interactive page that works offline; it appears whole or not at all."""
    check_page(path)
    job = result.job
    title = f"Search: {job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}"
    lead = (
        f"{result.evaluated:,} legal configurations: {counts_of(result)}. Global batch "
        f"{job.training.global_batch_size:,}, sequence {job.training.seq_length:,}."
    )
    band = result.uncertainty
    if band["relative"] is not None:
        lead += f" Times to ±{100.0 * band['relative']:.0f} %: {band['basis']}."
    write_page(path, Document(title, lead, [_ranked(result), _picture(result), *_illegal(result)]))


def counts_of(result: SearchResult) -> str:
    """Say how many configurations fit, are at risk, and leave too little memory."""
    return (
        f"{result.fitting:,} fit, {result.at_risk:,} are at risk, {result.too_large:,} leave too "
        f"little memory"
    )


def nothing_ranked(result: SearchResult) -> str:
    """Say why nothing is ranked, and what would rank something."""
    if result.stopped:
        return f"The search was stopped, {result.stopped}: nothing that was looked at is ranked."
    if not result.evaluated:
        kept = ", ".join(result.limits.fixed)
        return f"No configuration is legal{f' with the value given for {kept}' if kept else ''}."
    if not result.at_risk:
        return "No configuration leaves enough memory."
    one = result.at_risk == 1
    return (
        f"{result.at_risk:,} {'configuration is' if one else 'configurations are'} at risk: the "
        f"projected peak fits, the upper end of its band does not. --allow-risk ranks "
        f"{'it' if one else 'them'}."
    )


def ways_out(result: SearchResult) -> list[tuple[str, str]]:
    """Return the closest layout and the least devices that would do, each with its overrides."""
    found = []
    near, least = result.closest, result.least
    if near is not None:
        usable = near.peak_bytes + near.headroom_bytes
        text = (
            f"The closest has a peak of {gib(near.peak_bytes)} GiB (to {gib(near.peak_high_bytes)}"
            f"), and {gib(usable)} are usable:"
        )
        found.append((text, command_of(result, near)))
    if least is not None:
        text = f"{least.gpus:,} GPUs on {least.nodes:,} hosts would do, the least that were tried:"
        found.append((text, assignments(result.least_overrides)))
    elif not result.stopped:
        found.append(("No number of hosts that was tried would do.", ""))
    return found


def command_of(result: SearchResult, candidate: Configuration) -> str:
    """Return the overrides that turn the job that was searched into a configuration."""
    return assignments(result.overrides(candidate))


def _reached(result: SearchResult, places: Sequence[int]) -> dict[str, Column]:
    shown = [result.configurations[place] for place in places]
    rates = [_rate(result, each) for each in shown]
    columns = {
        "place": Column("#", [place + 1 for place in places]),
        "group": Column("group", [result.groups[place] for place in places]),
        "rate": Column("tokens/s/GPU", rates, "{:,.0f}".format, 1,
                       short="tok/s/GPU"),
        "value": _values(result, shown),
        "mfu": Column("MFU %", [_mfu_percent(result, place) for place in places],
                      "{:.1f} %".format, 1, short="MFU"),
        "peak": Column("peak GiB", [to_gib(each.peak_bytes) for each in shown], _gib, 2),
        "high": Column("to GiB", [to_gib(each.peak_high_bytes) for each in shown], _gib, 2),
    }  # fmt: skip
    if result.objective == TIME:
        del columns["value"]
    return columns


_gib = "{:,.2f}".format


def _values(result: SearchResult, shown: Sequence[Configuration]) -> Column:
    """Return the column of the objective: of the rate where that is time."""
    if result.objective == TIME:
        return Column("tokens/s/GPU", [_rate(result, each) for each in shown], "{:,.0f}".format)
    unit = UNITS[result.objective]
    return Column(unit, [each.value for each in shown], _digits, 0 if unit == "USD" else 1)


def _best(result: SearchResult) -> list[Section]:
    steps = result.best
    if not steps:
        return []
    reached = _reached(result, range(len(steps)))
    columns = [
        reached.pop("place"),
        reached.pop("group"),
        *(Column(name.upper(), [step.degrees[name] for step in steps], "{:,}".format)
          for name in DEGREES),
        Column("MBS", [step.job.training.micro_batch_size for step in steps]),
        words("recompute", [step.job.training.recompute.granularity for step in steps]),
        Column("ZeRO", [step.job.parallelism.sharding_stage for step in steps]),
        words("schedule", [step.schedule for step in steps]),
        *reached.values(),
    ]  # fmt: skip
    if result.limits.allow_risk:
        risk = ["" if step.memory.verdict == FITS else "yes" for step in steps]
        columns.append(words("risk", risk))
    title = "Fastest" if result.objective == TIME else f"Least {NAMES[result.objective]}"
    closing: list[RenderableType] = [
        Text(),
        Text(groups_text(result)),
        Text(f"The first is limited by {steps[0].bound}."),
        Text("The first as overrides of the job:", style="dim"),
        Pasted(command_of(result, result.configurations[0])),
    ]
    table = Table(columns, {0: "bold"}, gap=1)
    note = f"to GiB: where the {COVERED} % band of the peak ends"
    return [Section(title, table=table, note=note, closing=closing)]


def _ranked(result: SearchResult) -> Section:
    """Return the best of a page; layouts that are equal in time and memory are one row."""
    if not result.configurations:
        told = " ".join(f"{text} {overrides}".strip() for text, overrides in ways_out(result))
        return Section("Ranked", f"Nothing fits. {nothing_ranked(result)} {told}")
    every = result.configurations
    keys = [
        np.array([getattr(each, name) for each in every[: MOST_EQUAL * RANKED]], np.float64)
        for name in ("iteration_time_s", "peak_bytes", "value")
    ]
    equal = distinct(*keys)[1][:RANKED]
    places = [same[0] for same in equal]
    shown = [every[place] for place in places]
    reached = _reached(result, places)
    mfu = reached.pop("mfu")
    in_full = [result.best[place] if place < len(result.best) else None for place in places]
    bubbles = [100.0 * step.bubble_fraction if step else None for step in in_full]
    settings = [merged([set_fields(every[row].overrides) for row in same]) for same in equal]
    common = shared(settings)
    columns = [
        reached.pop("place"),
        reached.pop("group"),
        words("configuration", [_but(each, common) for each in settings]),
        Column("overrides", [command_of(result, each) for each in shown], kind="copied"),
        *reached.values(),
        Column("step ms", [to_ms(each.iteration_time_s) for each in shown], digits=1),
        Column("free GiB", [to_gib(each.headroom_bytes) for each in shown], digits=2),
        words("verdict", [WORDS[each.verdict] for each in shown]),
        mfu,
        Column("bubble %", bubbles, digits=1),
    ]
    best = "fastest" if result.objective == TIME else f"best by {NAMES[result.objective]}"
    text = f"The {len(equal):,} {best} of {len(every):,} that are ranked"
    if len(result.best) < len(equal):
        text += f", the first {len(result.best)} of them projected in full (bubble)"
    if any(len(same) > 1 for same in equal):
        text += "; layouts that are equal in time and memory stand once, with all their settings"
    if common and len(equal) > 1:
        text += f". All have {configuration(common)}"
    text += f". {groups_text(result)} The band of the peak holds {COVERED} % of comparable runs"
    return Section("Ranked", f"{text}. A click on a head sorts.", Table(columns))


def _but(settings: Mapping[str, Any], common: Collection[str]) -> str:
    """Write a configuration without what is common to all; degrees of one go without saying."""
    return configuration(
        {name: value for name, value in settings.items()
         if name not in common and not (name.startswith("parallelism.") and value in (1, False))}
    ) or "data parallel only"  # fmt: skip


def _mfu_percent(result: SearchResult, index: int) -> float | None:
    """Return the MFU of a configuration by the job's FLOP and peak: it goes with 1 / step."""
    if not result.best:
        return None
    known = result.best[min(index, len(result.best) - 1)]
    ratio = known.iteration_time_s / result.configurations[index].iteration_time_s
    return 100.0 * known.mfu * ratio


def _rate(result: SearchResult, candidate: Configuration) -> float:
    training = result.job.training
    tokens = training.global_batch_size * training.seq_length
    return tokens / candidate.iteration_time_s / result.job.cluster.gpus


def groups_text(result: SearchResult) -> str:
    """Say how many configurations are as fast as the fastest, as far as can be told."""
    same = result.groups.count(1)
    first = "fastest" if result.objective == TIME else "first"
    if same == 1:
        return f"No other configuration is within the noise of the {first}."
    return (
        f"Group 1: {same:,} configurations that differ from the {first} by less than the noise of "
        f"a comparison. Choose among them by memory, or measure."
    )


def _pareto(result: SearchResult) -> list[Section]:
    """Show the cost of less memory: evenly chosen points of the front."""
    front = result.pareto
    if len(front) < 2:
        return []
    last = len(front) - 1
    places = sorted({round(last * k / (SHOWN_PARETO - 1)) for k in range(SHOWN_PARETO)})
    shown = [front[place] for place in places]
    columns = [
        Column("peak GiB", [to_gib(each.peak_bytes) for each in shown], _gib),
        _values(result, shown),
        Column("of the best", [100.0 * (front[0].value / each.value) for each in shown],
               "{:.1f} %".format),
        words("configuration", [_short(each.overrides) for each in shown]),
    ]  # fmt: skip
    name = NAMES[result.objective]
    note = f"{len(front)} configurations that no other beats in both"
    title = f"{name[:1].upper()}{name[1:]} against memory"
    return [Section(title, table=Table(columns), note=note)]


def _picture(result: SearchResult) -> Section:
    """Return speed against memory of a sample, and the front in full."""
    front = read_front(result)
    chosen = sample(len(result.configurations), SAMPLE)
    drawn = [result.configurations[row] for row in chosen.tolist()]
    figure = page_figures.pareto(
        front,
        np.array([_rate(result, candidate) for candidate in drawn], np.float64),
        np.array([to_gib(candidate.peak_bytes) for candidate in drawn], np.float64),
        np.array([VERDICTS.index(candidate.verdict) for candidate in drawn], np.int64),
        [configuration(set_fields(candidate.overrides)) for candidate in drawn],
    )
    text = f"The front has {len(front.rate):,} configurations that no other beats in both."
    if front.knee_text:
        text += f" {front.knee_text[:1].upper()}{front.knee_text[1:]}."
    if len(drawn) < len(result.configurations):
        text += (
            f" Of all {len(result.configurations):,} a sample of {len(drawn):,} is drawn, chosen "
            "at random, the same each time; the front is there in full."
        )
    return Section("Speed against memory", text, figures=[("", lambda: figure)])


def _digits(value: float) -> str:
    """Write USD, MWh or tonnes: whole numbers where they are large."""
    return f"{value:,.0f}" if value >= LARGE else f"{value:,.3g}"


def _short(overrides: Mapping[str, Any]) -> str:
    recompute = overrides["training.recompute"]
    degrees = {name: overrides[f"parallelism.{name}"] for name in ("tp", "pp", "vpp", "cp", "ep")}
    texts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1] or ["dp only"]
    texts.append(f"mbs{overrides['training.micro_batch_size']}")
    texts.append(f"zero{overrides['parallelism.zero_stage']}")
    texts.append(str(recompute["granularity"] if isinstance(recompute, Mapping) else recompute))
    return " ".join(texts)


def _illegal(result: SearchResult) -> list[Section]:
    if not result.illegal:
        return []
    ranked = sorted(result.illegal.items(), key=lambda item: -item[1])
    fields = words("field that refuses", [key for key, _ in ranked])
    counts = Column("configurations", [count for _, count in ranked], "{:,}".format)
    return [Section("Cannot exist", table=Table([fields, counts]))]
