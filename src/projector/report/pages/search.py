"""The page of a search."""

from pathlib import Path

import numpy as np

from projector.projection.verdict import COVERED, VERDICTS, WORDS
from projector.report.figures.pareto import read_front
from projector.report.figures.rows import configuration, sample
from projector.report.pages import figures as page_figures
from projector.report.pages.page import Section, Table, check_page, write_page
from projector.report.terminal.search import command_of, counts_of, groups_text, nothing_ranked
from projector.searches.configurations import Configuration, SearchResult
from projector.searches.objectives import NAMES, TIME, UNITS
from projector.units import to_gib, to_ms

RANKED = 300
"""Configurations of the table."""

SAMPLE = 4_000
"""Configurations of the cloud; fewer are all there."""

_LOW, _HIGH = f"{COVERED} %: from", f"{COVERED} %: to"

_DIGITS = {
    _LOW: 2,
    _HIGH: 2,
    "tokens/s/GPU": 1,
    "step ms": 1,
    "USD": 0,
    "MWh": 1,
    "t CO2": 1,
    "peak GiB": 2,
    "free GiB": 2,
    "MFU %": 1,
    "bubble %": 1,
}


def write_search_page(result: SearchResult, path: str | Path) -> None:
    """Write a search as one interactive page that works offline; it appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_page` refuses the path, or the file cannot be written.
    """
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
    write_page(path, title, lead, [*_ranked(result), _pareto(result), *_illegal(result)])


def _ranked(result: SearchResult) -> list[Section]:
    if not result.configurations:
        return [Section("Ranked", f"Nothing fits. {nothing_ranked(result)}")]
    shown = result.configurations[:RANKED]
    heads = [
        "#",
        "group",
        "tokens/s/GPU",
        "step ms",
        *_objective(result),
        "peak GiB",
        _LOW,
        _HIGH,
        "free GiB",
        "verdict",
        "MFU %",
        "bubble %",
        "configuration",
        "overrides",
    ]
    rows = []
    for index, candidate in enumerate(shown):
        step = result.best[index] if index < len(result.best) else None
        rows.append(
            [
                index + 1,
                result.groups[index],
                _rate(result, candidate),
                to_ms(candidate.iteration_time_s),
                *(candidate.value for _ in _objective(result)),
                to_gib(candidate.peak_bytes),
                to_gib(candidate.peak_low_bytes),
                to_gib(candidate.peak_high_bytes),
                to_gib(candidate.headroom_bytes),
                WORDS[candidate.verdict],
                100.0 * step.mfu if step else "",
                100.0 * step.bubble_fraction if step else "",
                _name(candidate),
                command_of(candidate),
            ]
        )
    best = "fastest" if result.objective == TIME else f"best by {NAMES[result.objective]}"
    text = f"The {len(shown):,} {best} of {len(result.configurations):,} that are ranked"
    if len(result.best) < len(shown):
        text += f", the first {len(result.best)} of them projected in full"
    text += f". {groups_text(result)} The band of the peak holds {COVERED} % of comparable runs"
    return [Section("Ranked", f"{text}. A click on a head sorts.", Table(heads, rows, _DIGITS))]


def _objective(result: SearchResult) -> list[str]:
    """Return the head of the column of the objective; time has one already."""
    return [] if result.objective == TIME else [UNITS[result.objective]]


def _rate(result: SearchResult, candidate: Configuration) -> float:
    training = result.job.training
    tokens = training.global_batch_size * training.seq_length
    return tokens / candidate.iteration_time_s / result.job.cluster.gpus


def _name(candidate: Configuration) -> str:
    return configuration(
        {name: value for name, value in candidate.overrides.items() if value is not None}
    )


def _pareto(result: SearchResult) -> Section:
    front = read_front(result)
    chosen = sample(len(result.configurations), SAMPLE)
    drawn = [result.configurations[row] for row in chosen.tolist()]
    figure = page_figures.pareto(
        front,
        np.array([_rate(result, candidate) for candidate in drawn], np.float64),
        np.array([to_gib(candidate.peak_bytes) for candidate in drawn], np.float64),
        np.array([VERDICTS.index(candidate.verdict) for candidate in drawn], np.int64),
        [_name(candidate) for candidate in drawn],
    )
    text = f"The front has {len(front.rate):,} configurations that no other beats in both."
    if len(drawn) < len(result.configurations):
        text += (
            f" Of all {len(result.configurations):,} a sample of {len(drawn):,} is drawn, chosen "
            "at random, the same each time; the front is there in full."
        )
    return Section("Speed against memory", text, figures=[("", figure)])


def _illegal(result: SearchResult) -> list[Section]:
    if not result.illegal:
        return []
    ranked = sorted(result.illegal.items(), key=lambda item: -item[1])
    rows = [[count, key] for key, count in ranked]
    return [Section("Cannot exist", "", Table(["configurations", "field that refuses"], rows))]
