"""The page of a search."""

from pathlib import Path

import numpy as np

from projector.projection.provenance import uncertainty
from projector.report.figures.pareto import read_front
from projector.report.figures.rows import configuration, sample
from projector.report.pages import figures as page_figures
from projector.report.pages.page import Section, Table, check_page, write_page
from projector.report.terminal.search import command_of
from projector.searches.configurations import Configuration, SearchResult
from projector.units import to_gib, to_ms

RANKED = 300
"""Configurations of the table."""

SAMPLE = 4_000
"""Configurations of the cloud; fewer are all there."""

_DIGITS = {"tokens/s/GPU": 1, "step ms": 1, "peak GiB": 2, "free GiB": 2, "MFU %": 1, "bubble %": 1}


def write_search_page(found: SearchResult, path: str | Path) -> None:
    """Write a search as one interactive page that works offline; it appears whole or not at all.

    Raises
    ------
    ConfigError
        If `check_page` refuses the path, or the file cannot be written.
    """
    check_page(path)
    job = found.job
    title = f"Search: {job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}"
    lead = (
        f"{found.evaluated:,} legal configurations: {len(found.configurations):,} fit, "
        f"{found.too_large:,} leave too little memory. Global batch "
        f"{job.training.global_batch_size:,}, sequence {job.training.seq_length:,}."
    )
    band = uncertainty(job, "time")
    if band["relative"] is not None:
        lead += f" Times to ±{100.0 * band['relative']:.0f} %: {band['basis']}."
    write_page(path, title, lead, [*_ranked(found), _pareto(found), *_illegal(found)])


def _ranked(found: SearchResult) -> list[Section]:
    if not found.configurations:
        return [Section("Ranked", "Nothing fits.")]
    shown = found.configurations[:RANKED]
    heads = [
        "#",
        "tokens/s/GPU",
        "step ms",
        "peak GiB",
        "free GiB",
        "MFU %",
        "bubble %",
        "configuration",
        "overrides",
    ]
    rows = []
    for place, each in enumerate(shown):
        step = found.best[place] if place < len(found.best) else None
        rows.append(
            [
                place + 1,
                _rate(found, each),
                to_ms(each.iteration_time_s),
                to_gib(each.peak_bytes),
                to_gib(each.headroom_bytes),
                100.0 * step.mfu if step else "",
                100.0 * step.bubble_fraction if step else "",
                _name(each),
                command_of(each),
            ]
        )
    text = f"The {len(shown):,} fastest of {len(found.configurations):,} that fit"
    if len(found.best) < len(shown):
        text += f", the first {len(found.best)} of them projected in full"
    return [Section("Ranked", f"{text}. A click on a head sorts.", Table(heads, rows, _DIGITS))]


def _rate(found: SearchResult, each: Configuration) -> float:
    training = found.job.training
    tokens = training.global_batch_size * training.seq_length
    return tokens / each.iteration_time_s / found.job.cluster.gpus


def _name(each: Configuration) -> str:
    return configuration(
        {name: value for name, value in each.overrides.items() if value is not None}
    )


def _pareto(found: SearchResult) -> Section:
    front = read_front(found)
    chosen = sample(len(found.configurations), SAMPLE)
    these = [found.configurations[row] for row in chosen.tolist()]
    figure = page_figures.pareto(
        front,
        np.array([_rate(found, each) for each in these], np.float64),
        np.array([to_gib(each.peak_bytes) for each in these], np.float64),
        np.ones(len(these), np.bool_),
        [_name(each) for each in these],
    )
    text = f"The front has {len(front.rate):,} configurations that no other beats in both."
    if len(these) < len(found.configurations):
        text += (
            f" Of all {len(found.configurations):,} a sample of {len(these):,} is drawn, chosen at "
            "random, the same each time; the front is there in full."
        )
    return Section("Speed against memory", text, figures=[("", figure)])


def _illegal(found: SearchResult) -> list[Section]:
    if not found.illegal:
        return []
    ranked = sorted(found.illegal.items(), key=lambda item: -item[1])
    rows = [[count, key] for key, count in ranked]
    return [Section("Cannot exist", "", Table(["configurations", "field that refuses"], rows))]
