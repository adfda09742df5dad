"""The page of a search."""

from pathlib import Path
from typing import Any

import numpy as np

from projector.projection.bands import COVERED, VERDICTS, WORDS
from projector.report.document import Document, Section, Table
from projector.report.figures.front import distinct
from projector.report.figures.pareto import read_front
from projector.report.figures.rows import configuration, merged, sample
from projector.report.pages import figures as page_figures
from projector.report.pages.page import check_page, write_page
from projector.report.terminal.search import (
    command_of,
    counts_of,
    groups_text,
    nothing_ranked,
    ways_out,
)
from projector.searches.ranking import NAMES, TIME, UNITS, Configuration
from projector.searches.result import SearchResult
from projector.units import to_gib, to_ms

RANKED = 300
"""Configurations of the table."""

MOST_EQUAL = 4
"""Configurations that are read for each row of the table, for those that equal others."""

SAMPLE = 4_000
"""Configurations of the cloud; fewer are all there."""

_HIGH = f"{COVERED} %: to"

_DIGITS = {
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
    write_page(path, Document(title, lead, [*_ranked(result), _pareto(result), *_illegal(result)]))


def _ranked(result: SearchResult) -> list[Section]:
    if not result.configurations:
        told = " ".join(f"{text} {overrides}".strip() for text, overrides in ways_out(result))
        return [Section("Ranked", f"Nothing fits. {nothing_ranked(result)} {told}")]
    every = result.configurations
    # Layouts that are equal in time and memory are one row: what differs changes nothing.
    columns = [
        np.array([getattr(each, name) for each in every[: MOST_EQUAL * RANKED]], np.float64)
        for name in ("iteration_time_s", "peak_bytes", "value")
    ]
    _, equal = distinct(*columns)
    equal = equal[:RANKED]
    heads = [
        "#",
        "group",
        "tokens/s/GPU",
        "step ms",
        *_objective(result),
        "peak GiB",
        _HIGH,
        "free GiB",
        "verdict",
        "MFU %",
        "bubble %",
        "configuration",
        "overrides",
    ]
    rows = []
    for same in equal:
        index, candidate = same[0], every[same[0]]
        step = result.best[index] if index < len(result.best) else None
        rows.append(
            [
                index + 1,
                result.groups[index],
                _rate(result, candidate),
                to_ms(candidate.iteration_time_s),
                *(candidate.value for _ in _objective(result)),
                to_gib(candidate.peak_bytes),
                to_gib(candidate.peak_high_bytes),
                to_gib(candidate.headroom_bytes),
                WORDS[candidate.verdict],
                _mfu_percent(result, index),
                100.0 * step.bubble_fraction if step else "",
                configuration(merged([_set_fields(every[row]) for row in same])),
                command_of(result, candidate),
            ]
        )
    best = "fastest" if result.objective == TIME else f"best by {NAMES[result.objective]}"
    text = f"The {len(equal):,} {best} of {len(every):,} that are ranked"
    if len(result.best) < len(equal):
        text += f", the first {len(result.best)} of them projected in full (bubble)"
    if any(len(same) > 1 for same in equal):
        text += "; layouts that are equal in time and memory stand once, with all their settings"
    text += f". {groups_text(result)} The band of the peak holds {COVERED} % of comparable runs"
    return [Section("Ranked", f"{text}. A click on a head sorts.", Table.of(heads, rows, _DIGITS))]


def _mfu_percent(result: SearchResult, index: int) -> float | str:
    """Return the MFU of a configuration, also of one that is not projected in full.

    The FLOP of the model and the peak rate are those of the job: MFU goes with the inverse step.
    """
    if not result.best:
        return ""
    known = result.best[min(index, len(result.best) - 1)]
    ratio = known.iteration_time_s / result.configurations[index].iteration_time_s
    return 100.0 * known.mfu * ratio


def _objective(result: SearchResult) -> list[str]:
    """Return the head of the column of the objective; time has one already."""
    return [] if result.objective == TIME else [UNITS[result.objective]]


def _rate(result: SearchResult, candidate: Configuration) -> float:
    training = result.job.training
    tokens = training.global_batch_size * training.seq_length
    return tokens / candidate.iteration_time_s / result.job.cluster.gpus


def _name(candidate: Configuration) -> str:
    return configuration(_set_fields(candidate))


def _set_fields(candidate: Configuration) -> dict[str, Any]:
    return {name: value for name, value in candidate.overrides.items() if value is not None}


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
    if front.knee_text:
        text += f" {front.knee_text[:1].upper()}{front.knee_text[1:]}."
    if len(drawn) < len(result.configurations):
        text += (
            f" Of all {len(result.configurations):,} a sample of {len(drawn):,} is drawn, chosen "
            "at random, the same each time; the front is there in full."
        )
    return Section("Speed against memory", text, figures=[("", lambda: figure)])


def _illegal(result: SearchResult) -> list[Section]:
    if not result.illegal:
        return []
    ranked = sorted(result.illegal.items(), key=lambda item: -item[1])
    rows = [[count, key] for key, count in ranked]
    return [Section("Cannot exist", "", Table.of(["configurations", "field that refuses"], rows))]
