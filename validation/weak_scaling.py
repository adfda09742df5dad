"""How throughput falls where only the number of GPUs grows: published series and projections.

A series is the rows of one document that are alike in everything but the number of GPUs and the
global batch, with the same batch on each GPU and at least three sizes. Its slope is the change of
tokens per second and GPU for every doubling, from a straight line through the logarithms.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats
from projector.config.cluster import VariationConfig
from projector.errors import ProjectorError
from projector.validate import training
from projector.validate.jobs import JobRow
from projector.validate.kind import Row

TABLE = Path(__file__).parent / "data" / "training_throughput.csv"
ALIKE = (
    *("model", "gpu", "precision", "seq_len", "micro_batch", "tp", "pp", "vpp", "cp", "ep"),
    *("fsdp_zero", "recompute", "num_layers"),
)
FEWEST = 3
"""Sizes of a series."""

PRIOR, PRIOR_WIDTH = 0.015, 0.01
"""Spread of equal devices that is published (see `VariationConfig`), and how far it may be off:
the largest of its clusters has 0.041."""

SERIES_NOISE = 0.006
"""Standard deviation of the slopes of alike series of one source."""


class Series(NamedTuple):
    """Rows that differ in the number of GPUs."""

    source: str
    name: str
    gpus: Floats
    measured_s: Floats
    projected_s: Floats

    def slope(self, seconds: Floats) -> float:
        """Return the relative change of the rate for every doubling."""
        return -float(np.polyfit(np.log2(self.gpus), np.log(seconds), 1)[0])


def all_series(spread: float | None = None) -> list[Series]:
    """Project every series, with another spread of the devices if one is given."""
    jobs: dict[str, dict[str, Any]] = {}
    groups: dict[tuple[str, ...], list[tuple[JobRow, float]]] = defaultdict(list)
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for row in rows:
        if training.why_not_eligible(row) or not (row.get("global_batch") or "").strip():
            continue
        try:
            reader = JobRow(row)
            job, seconds = reader.job(), training.step_time(row, reader)
        except (ValueError, ProjectorError):
            continue
        if spread is not None:
            other = {"variation": VariationConfig(device_spread=spread)}
            job["cluster"] = job["cluster"].model_copy(update=other)
        jobs[reader.key] = job
        each = f"{reader.global_batch / reader.gpus:.6g}"
        key = (reader.source.split(" / ")[0].split()[0], each, *(reader.text(c) for c in ALIKE))
        groups[key].append((reader, seconds))
    groups = {k: v for k, v in groups.items() if len({r.gpus for r, _ in v}) >= FEWEST}
    wanted = {reader.key for members in groups.values() for reader, _ in members}
    found = training.evaluate_all({key: job for key, job in jobs.items() if key in wanted})
    return [_series(key, members, found) for key, members in sorted(groups.items())]


def _series(key: tuple[str, ...], members: list[tuple[JobRow, float]], found: Any) -> Series:
    members = sorted(members, key=lambda member: member[0].gpus)
    times = []
    for reader, _ in members:
        evaluation, row = found[reader.key]
        times.append(float(evaluation.steps.iteration_s[row]))
    return Series(
        key[0],
        " ".join(key[2:5]),
        np.array([float(reader.gpus) for reader, _ in members]),
        np.array([seconds for _, seconds in members]),
        np.array(times),
    )


def fit_spread(left_out: str = "") -> float:
    """Return the spread that the slopes and the published one make likely.

    Sources weigh the same; `left_out` is not looked at. The slope is linear in the spread.
    """
    without, with_prior = all_series(0.0), all_series(PRIOR)
    weighted, pull = 1.0 / PRIOR_WIDTH**2, PRIOR / PRIOR_WIDTH**2
    sources = {series.source for series in without} - {left_out}
    for source in sources:
        pairs = [
            (first, second)
            for first, second in zip(without, with_prior, strict=True)
            if first.source == source
        ]
        # The median of a source stands for it: single series fall off by a bad run.
        gain = np.median([(b.slope(b.projected_s) - a.slope(a.projected_s)) for a, b in pairs])
        gain /= PRIOR
        rest = np.median([a.slope(a.measured_s) - a.slope(a.projected_s) for a, _ in pairs])
        weighted += gain**2 / SERIES_NOISE**2
        pull += gain * rest / SERIES_NOISE**2
    return float(pull / weighted)


def main() -> None:
    """Print every series, and with ``--fit`` the spread of devices that they support."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the spread of the devices")
    parser.add_argument("--spread", type=float, help="another spread than the default")
    given = parser.parse_args()
    if given.fit:
        print(f"all sources: {fit_spread():.4f}")
        for source in sorted({series.source for series in all_series()}):
            print(f"without {source}: {fit_spread(source):.4f}")
        return
    found = all_series(given.spread)
    print("| source | series | GPUs | measured, % | projected, % |\n|---|---|---|---|---|")
    slopes = []
    for series in found:
        slopes.append([100.0 * series.slope(s) for s in (series.measured_s, series.projected_s)])
        gpus = f"{series.gpus[0]:.0f} to {series.gpus[-1]:.0f}"
        measured, projected = slopes[-1]
        print(f"| {series.source} | {series.name} | {gpus} | {measured:.2f} | {projected:.2f} |")
    for name, middle in (("median", np.median), ("mean", np.mean)):
        measured, projected = middle(np.array(slopes), axis=0)
        print(f"| {name} of {len(found)} | | | {measured:.2f} | {projected:.2f} |")


if __name__ == "__main__":
    main()
