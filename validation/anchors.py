"""What one run of a group says about the others: a calibration to it, judged on the rest.

A group shares source, model, device and precision. Every run of a group (with --anchors N: some
sets of N) is taken for a user's own; the errors are those of the other runs, by the first
derivatives of their log times. --record writes the band of such projections into
hardware/uncertainty.yaml.
"""

import argparse
import csv
import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import run_pairs as pairs
import yaml

from projector.arrays import Floats
from projector.calibrate.runs import Run, Slopes, slopes_of
from projector.config.constants import own_run_noise, own_run_parameters

TABLE = Path(__file__).parent / "data" / "training_throughput.csv"
BANDS = Path(__file__).resolve().parents[1] / "hardware" / "uncertainty.yaml"
FEWEST = 3
"""Runs of a group."""
MOST_SETS = 20
"""Sets of anchors that are drawn from a group."""
WORST = 10


class Judged(NamedTuple):
    """Errors of the logarithm of one group."""

    source: str
    name: str
    moe: bool
    before: Floats
    """float64[runs]: without an anchor."""
    after: Floats
    """float64[cases]: of each other run, for every set of anchors."""
    factor: Floats
    """The same, where every time is multiplied by the ratio of the anchors instead."""


def main() -> None:
    """Print the errors with and without anchors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write hardware/uncertainty.yaml")
    parser.add_argument("--anchors", type=int, default=1, metavar="N", help="runs fitted together")
    given = parser.parse_args()
    groups = judge(given.anchors)
    before = np.concatenate([group.before for group in groups])
    after = np.concatenate([group.after for group in groups])
    factor = np.concatenate([group.factor for group in groups])
    sources = sorted({group.source for group in groups})
    print(f"{len(groups)} groups of {len(sources)} sources, {len(before)} runs")
    print(f"without an anchor {_errors(before)}; with {given.anchors}: {_errors(after)}")
    print(f"with the mean ratio of the anchors as a factor on every time: {_errors(factor)}")
    print("| source | groups | without | with |\n|---|---|---|---|")
    for source in sources:
        own = [group for group in groups if group.source == source]
        cells = [np.concatenate([getattr(g, side) for g in own]) for side in ("before", "after")]
        print(f"| {source} | {len(own)} | {_errors(cells[0])} | {_errors(cells[1])} |")
    for kind, moe in (("dense", False), ("moe", True)):
        own = [group for group in groups if group.moe is moe]
        cells = [np.concatenate([getattr(g, side) for g in own]) for side in ("before", "after")]
        print(f"| {kind} | {len(own)} | {_errors(cells[0])} | {_errors(cells[1])} |")
    groups.sort(key=lambda group: -float(np.median(np.abs(group.after))))
    for group in groups[:WORST]:
        print(f"{group.source} {group.name}: {_errors(group.before)} -> {_errors(group.after)}")
    if given.record:
        record(groups)


def judge(anchors: int) -> list[Judged]:
    """Fit to every set of anchors of every group and return the errors of the others."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        runs = pairs.read_runs(list(csv.DictReader(file)))
    members: dict[tuple[str, ...], list[pairs.Run]] = defaultdict(list)
    for run in runs:
        job = run.job
        key = (run.source, job.model.name, job.cluster.device.name, job.training.precision)
        members[key].append(run)
    judged = []
    for (source, *name), some in sorted(members.items()):
        if len(some) >= max(FEWEST, anchors + 1):
            device = some[0].job.cluster.device
            own = [Run(run.job, run.measured_s, "own", str(run.line)) for run in some]
            slopes = slopes_of(own, own_run_parameters(device))
            sets = _sets(len(some), anchors)
            after = np.concatenate([_others(slopes, chosen) for chosen in sets])
            logs = slopes.log_ratio
            factor = [np.delete(logs, chosen) - logs[list(chosen)].mean() for chosen in sets]
            text = " ".join(name)
            moe = some[0].job.model.moe is not None
            judged.append(Judged(source, text, moe, logs, after, np.concatenate(factor)))
    return judged


def record(groups: list[Judged]) -> None:
    """Write the bands of calibrated profiles beside what the file holds."""
    text = BANDS.read_text(encoding="utf-8")
    head = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    kinds = {"dense": [g for g in groups if not g.moe], "moe": [g for g in groups if g.moe]}
    content = {**yaml.safe_load(text), "anchored": {k: _entry(some) for k, some in kinds.items()}}
    body = yaml.safe_dump(content, sort_keys=True, default_flow_style=None, width=100)
    BANDS.write_text(head + body, encoding="utf-8")


def _entry(groups: list[Judged]) -> dict[str, Any]:
    """Return a band; sources weigh the same from some runs on."""
    errors = np.concatenate([np.abs(group.after) for group in groups])
    cases: dict[str, int] = defaultdict(int)
    runs: dict[str, int] = defaultdict(int)
    for group in groups:
        cases[group.source] += len(group.after)
        runs[group.source] += len(group.before) - 1
    each = {source: min(1.0, runs[source] / pairs.FULL_WEIGHT) / n for source, n in cases.items()}
    weights = np.concatenate([np.full(len(g.after), each[g.source]) for g in groups])
    order = np.argsort(errors)
    shares = np.cumsum(weights[order]) / weights.sum()
    # The next group is one of n + 1 (conformal prediction for groups).
    extra = (len(groups) + 1) / len(groups)
    entry: dict[str, Any] = {"groups": len(groups), "runs": sum(len(g.before) for g in groups)}
    for share in (68, 90):
        place = int(np.searchsorted(shares, min(1.0, share / 100.0 * extra)))
        place = min(place, len(errors) - 1)
        entry[f"relative_{share}"] = round(float(np.expm1(errors[order][place])), 3)
    return entry


def _others(slopes: Slopes, anchors: tuple[int, ...]) -> Floats:
    weights = np.zeros(len(slopes.log_ratio))
    weights[list(anchors)] = 1.0
    left: Floats = slopes.residuals(slopes.solve(weights, own_run_noise()))[weights == 0.0]
    return left


def _sets(count: int, anchors: int) -> list[tuple[int, ...]]:
    if anchors == 1:
        return [(i,) for i in range(count)]
    everything = list(itertools.combinations(range(count), anchors))
    if len(everything) <= MOST_SETS:
        return everything
    chosen = np.random.default_rng(0).choice(len(everything), MOST_SETS, replace=False)
    return [everything[i] for i in chosen]


def _errors(logs: Floats) -> str:
    errors = 100.0 * np.abs(np.expm1(logs))
    return f"{np.median(errors):.1f} / {np.percentile(errors, 90):.1f} %"


if __name__ == "__main__":
    main()
