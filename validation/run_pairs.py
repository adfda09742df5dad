"""Pairs of published runs that differ in a setting: how well the ratio of their times is known.

What a source, a model and a device have in common is off by the same factor in both runs of a pair
and cancels. What is left is the error of the response to the setting.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from conformal import weighted_quantile

from projector.arrays import Floats
from projector.config.job import Job
from projector.projection.bands import SETTINGS, changed_settings, name_of
from projector.validate import training
from projector.validate.jobs import JobRow
from projector.validate.kind import Row, read_cases
from projector.validate.names import source_of

ONE = "one"
"""All pairs that differ in a single setting, together."""

FEWEST_PAIRS, FEWEST_SOURCES = 20, 2
"""A setting with less has no band of its own alone."""

SOME_PAIRS = 8
"""From these on its band is at least as wide as its own pairs ask for."""

FULL_WEIGHT = 10
"""Independent differences from which on a source weighs as much as any other."""


DECIDING = 1.1
"""A change of the time for a token by this factor is one that people decide by."""


@dataclass(frozen=True, slots=True)
class Run:
    """A published run and its projection."""

    line: int
    """Position among the rows that were given."""
    source: str
    group: tuple[str, ...]
    """What all runs of a pair share, the document included."""
    job: Job
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs of a group that differ."""

    first: Run
    second: Run
    settings: tuple[str, ...]
    """What differs, by name; several stand in the order of `projector.projection.bands`."""

    @property
    def name(self) -> str:
        """The setting, or ``several``."""
        return name_of(self.settings)

    @property
    def log_error(self) -> float:
        """Logarithm of the projected over the measured ratio of times; tokens cancel."""
        first, second = self.first, self.second
        return float(
            np.log(second.predicted_s / second.measured_s)
            - np.log(first.predicted_s / first.measured_s)
        )

    @property
    def log_change(self) -> float:
        """Logarithm of the measured ratio of the times that a device needs for a token."""
        first, second = (run.measured_s / _tokens(run.job) for run in (self.first, self.second))
        return float(np.log(second / first))


@dataclass(frozen=True, slots=True)
class Spread:
    """Errors of a ratio over pairs, as fractions."""

    pairs: int
    sources: int
    differences: int
    """Independent ones: a group of n runs has at most n - 1."""
    median: float
    p90: float
    relative_68: float
    relative_90: float
    decided: int
    """Pairs whose measured times for a token differ by over `DECIDING`."""
    right: int
    """Those of them of which the projection, too, calls the faster one faster."""


def read_runs(rows: Sequence[Row]) -> list[Run]:
    """Project the eligible rows without doubt; those that cannot be projected are left out."""
    counted = [
        (line, row)
        for line, row in enumerate(rows)
        if not training.why_not_eligible(row) and not (row.get("doubt") or "").strip()
    ]
    entries = read_cases((row for _, row in counted), training.read_row)
    jobs = {entry.reader.key: entry.job for entry in entries if not isinstance(entry, str)}
    found = training.evaluate_all(jobs)
    runs = []
    for (line, _), entry in zip(counted, entries, strict=True):
        evaluated = entry if isinstance(entry, str) else found[entry.reader.key]
        if isinstance(entry, str) or isinstance(evaluated, str):
            continue
        evaluation, place = evaluated
        predicted_s = float(evaluation.steps.iteration_s[place])
        source, job = source_of(entry.reader.source), evaluation.job(place)
        group = _group(entry.reader, source)
        runs.append(Run(line, source, group, job, entry.measured, predicted_s))
    return runs


def find_pairs(runs: Sequence[Run]) -> list[Pair]:
    """Return every pair of runs of a group that differ in at least one setting."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.group].append(run)
    pairs = []
    for members in groups.values():
        for first, second in itertools.combinations(members, 2):
            settings = changed_settings(first.job, second.job)
            if settings:
                pairs.append(Pair(first, second, settings))
    return pairs


def spreads(pairs: Sequence[Pair]) -> dict[str, Spread]:
    """Return the errors by setting, of all single settings together, and of several at once."""
    named: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        named[pair.name].append(pair)
        if len(pair.settings) == 1:
            named[ONE].append(pair)
    return {name: spread_of(some) for name, some in named.items()}


def spread_of(pairs: Sequence[Pair]) -> Spread:
    """Return the errors over some pairs.

    The bands are quantiles in which sources weigh the same, with the correction for a finite
    number of independent differences (conformal prediction).
    """
    errors = np.abs([pair.log_error for pair in pairs])
    weights = _weights(pairs)
    count = _differences(pairs)
    widths = [
        float(np.expm1(weighted_quantile(errors, weights, min(1.0, share * (count + 1) / count))))
        for share in (0.68, 0.90)
    ]
    decided = [pair for pair in pairs if abs(pair.log_change) > np.log(DECIDING)]
    right = [(pair.log_change + pair.log_error) * pair.log_change > 0.0 for pair in decided]
    return Spread(
        pairs=len(pairs),
        sources=len({pair.first.source for pair in pairs}),
        differences=count,
        median=float(np.expm1(np.median(errors))),
        p90=float(np.expm1(np.quantile(errors, 0.9))),
        relative_68=widths[0],
        relative_90=widths[1],
        decided=len(decided),
        right=sum(right),
    )


def bands(pairs: Sequence[Pair]) -> dict[str, Spread]:
    """Return what is known well enough to be a band: the pooled ones, and settings with rows.

    A setting with some pairs, but too few, has the wider of its own band and that of any one.
    """
    known = spreads(pairs)
    found = {}
    for name, spread in known.items():
        if name == ONE or (spread.pairs >= FEWEST_PAIRS and spread.sources >= FEWEST_SOURCES):
            found[name] = spread
        elif name in SETTINGS and spread.pairs >= SOME_PAIRS:
            found[name] = replace(
                spread,
                relative_68=max(spread.relative_68, known[ONE].relative_68),
                relative_90=max(spread.relative_90, known[ONE].relative_90),
            )
    return found


def coverage(pairs: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    """Return the shares of pairs within bands that were made without their source, by setting.

    Sources that leave no other pair behind are not scored.
    """
    inside: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for source in sorted({pair.first.source for pair in pairs}):
        known = bands([pair for pair in pairs if pair.first.source != source])
        for pair in pairs:
            band = known.get(pair.name) or known.get(ONE)
            if pair.first.source != source or band is None:
                continue
            error = float(np.expm1(abs(pair.log_error)))
            held = (error <= band.relative_68, error <= band.relative_90)
            inside[pair.name].append(held)
            if len(pair.settings) == 1:
                inside[ONE].append(held)
    shares = {name: np.mean(np.array(held), axis=0) for name, held in inside.items()}
    return {name: (float(share[0]), float(share[1])) for name, share in shares.items()}


def _tokens(job: Job) -> float:
    return job.training.global_batch_size * job.training.seq_length / job.cluster.gpus


def _group(reader: JobRow, source: str) -> tuple[str, ...]:
    text = f"{reader.source} {reader.flags}"
    release = re.search(r"\d\d\.\d\d[\w.]*(?= NeMo)|NeMo \d\d\.\d\d[\w.]*", text)
    document = " ".join(reader.source.split()[:2])
    kept = ("model", "num_layers", "gpu")
    return source, document, release[0] if release else "", *(reader.text(name) for name in kept)


def _differences(pairs: Sequence[Pair]) -> int:
    runs: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for pair in pairs:
        runs[pair.first.group] |= {pair.first.line, pair.second.line}
    return sum(len(lines) - 1 for lines in runs.values())


def _weights(pairs: Sequence[Pair]) -> Floats:
    """Weigh sources the same, those with few independent differences in proportion to them."""
    of_source: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        of_source[pair.first.source].append(pair)
    each = {
        source: min(1.0, _differences(some) / FULL_WEIGHT) / len(some)
        for source, some in of_source.items()
    }
    return np.array([each[pair.first.source] for pair in pairs])
