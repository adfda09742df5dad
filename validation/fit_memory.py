"""Constants of memory, fitted to published rows, in and out of sample.

One number is fitted: the share of activations and working sets that a caching allocator whose
segments do not grow holds in idle blocks (``cluster.software.allocator.idle_share``). Rows of
reserved and device memory tell of it. Everything else is counted, or has a source of its own.

The residual of a row is the logarithm of its projected over its measured memory, under a soft-L1
loss with the width of `NOISE`. Every source weighs the same, and equal configurations of a source
count once. A prior holds the share near what freed blocks of other sizes leave by the allocator's
rules. Out of sample each source, or device, is projected with the share fitted to the others.

``--record`` writes the shares of every fit that leaves one out to ``hardware/left_out.yaml``.
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import yaml

from projector.arrays import Flags, Floats
from projector.config.cluster import AllocatorConfig
from projector.validate import memory
from projector.validate.kind import OK, Row, Without
from projector.validate.names import device_of, source_of

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).parent / "data" / "memory.csv"
LEFT_OUT = ROOT / "hardware" / "left_out.yaml"
FIELD = "cluster.software.allocator.idle_share"
HEAD = """\
# Fitted constants, fitted again without one source or one device: the rows of that source are then
# projected with constants that have not seen them. Written by validation/fit_training.py --record
# (training), validation/fit_memory.py (memory) and validation/fit_serving.py (serving); names are
# those of the parameters.
"""

PRIOR, LOG_WIDTH = 0.1, 0.7
NOISE = 0.04
FEWEST_ROWS, FEWEST_SOURCES = 8, 2
SOURCE_WEIGHT = 4.0
"""Independent observations that the rows of one source are worth."""

SHARES = np.exp(np.linspace(np.log(0.005), np.log(1.0), 400))


KNOTS = np.array([0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0])
"""Shares that rows are projected with; between them memory is linear, but where a device fills."""


class Table:
    """Projected rows, by the share."""

    def __init__(self) -> None:
        """Project every eligible row with each of `KNOTS`."""
        with TABLE.open(newline="", encoding="utf-8") as stream:
            rows: list[Row] = [
                row for row in csv.DictReader(stream) if not memory.why_not_eligible(row)
            ]
        found = [_project(rows, float(share)) for share in KNOTS]
        kept = [place for place, each in enumerate(found[0]) if each.status == OK]
        measured = [found[0][place].measured or 0.0 for place in kept]
        self.ratio = np.array([[each[place].ratio or 0.0 for each in found] for place in kept])
        self.source = np.array([source_of(rows[place]["source"]) for place in kept])
        self.device = np.array([device_of(rows[place]["gpu"]) for place in kept])
        self.sure = np.array([not (rows[place].get("doubt") or "").strip() for place in kept])
        # Rows that differ in nothing that decides memory count as one.
        parts = zip(self.source, self.ratio[:, 0], measured, strict=True)
        self.key = np.array([f"{source} {ratio:.9f} {value:.4f}" for source, ratio, value in parts])

    def log_ratio(self, share: float) -> Floats:
        """Return the logarithm of projected over measured memory."""
        place = int(np.clip(np.searchsorted(KNOTS, share) - 1, 0, len(KNOTS) - 2))
        low, high = KNOTS[place], KNOTS[place + 1]
        part = (share - low) / (high - low)
        return np.log((1.0 - part) * self.ratio[:, place] + part * self.ratio[:, place + 1])

    def weights(self, kept: Flags) -> Floats:
        """Return the weight of each row: sources alike, and equal configurations once."""
        kept = kept & self.sure & (self.ratio[:, -1] > 1.01 * self.ratio[:, 0])
        weights = np.zeros(len(kept))
        for source in set(self.source[kept]):
            rows = np.flatnonzero(kept & (self.source == source))
            _, group, count = np.unique(self.key[rows], return_inverse=True, return_counts=True)
            weights[rows] = min(SOURCE_WEIGHT, len(count)) / len(count) / count[group]
        return weights

    def supported(self, kept: Flags) -> bool:
        """Whether enough rows of enough sources tell of the share."""
        told = self.weights(kept) > 0.0
        rows, sources = len(set(self.key[told])), len(set(self.source[told]))
        return rows >= FEWEST_ROWS and sources >= FEWEST_SOURCES

    def fit(self, kept: Flags) -> float:
        """Return the fitted share, the prior's centre where too few rows tell of it."""
        if not self.supported(kept):
            return PRIOR
        weights = self.weights(kept)
        losses = [
            np.sum(weights * 2.0 * (np.sqrt(1.0 + (self.log_ratio(share) / NOISE) ** 2) - 1.0))
            + (np.log(share / PRIOR) / LOG_WIDTH) ** 2
            for share in SHARES.tolist()
        ]
        return float(f"{SHARES[int(np.argmin(losses))]:.3g}")


def _project(rows: Sequence[Row], share: float) -> list[memory.Outcome]:
    return memory.project(rows, [Without("", {FIELD: share})] * len(rows))


def errors(log_ratio: Floats) -> str:
    """Return median, 90th percentile in percent, and the geometric mean of projected / measured."""
    error = 100.0 * np.abs(np.exp(log_ratio) - 1.0)
    mean = np.exp(np.mean(log_ratio))
    return f"{np.median(error):.1f} / {np.percentile(error, 90.0):.1f}, {mean:.3f}"


def left_out(table: Table, labels: np.ndarray) -> tuple[dict[str, float], Floats]:
    """Return the share without each label, and the residual of each row without its own."""
    fitted = {str(name): table.fit(labels != name) for name in sorted(set(labels))}
    residual = np.empty(len(labels))
    for name, share in fitted.items():
        mine = labels == name
        residual[mine] = table.log_ratio(share)[mine]
    return fitted, residual


def record(fits: dict[str, dict[str, float]]) -> None:
    """Write the shares beside the constants of other scripts."""
    found = yaml.safe_load(LEFT_OUT.read_text(encoding="utf-8")) if LEFT_OUT.is_file() else {}
    found["memory"] = {
        what: {name: {FIELD: share} for name, share in shares.items()}
        for what, shares in fits.items()
    }
    LEFT_OUT.write_text(HEAD + yaml.safe_dump(found, sort_keys=True), encoding="utf-8")


def main(show: Callable[[str], None] = print) -> None:
    """Fit, print shares and errors, and record them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the left-out shares")
    given = parser.parse_args()
    table = Table()
    everything = np.ones(len(table.source), np.bool_)
    share, shipped = table.fit(everything), AllocatorConfig().idle_share
    told = table.weights(everything) > 0.0
    show(f"{FIELD}: {share:g} (shipped {shipped:g}, prior {PRIOR:g}), {len(set(table.key[told]))} "
         f"configurations of {', '.join(sorted(set(table.source[told])))}")  # fmt: skip
    show(f"at the prior       {errors(table.log_ratio(PRIOR))}")
    show(f"in sample          {errors(table.log_ratio(share))}")
    fits = {}
    for what, labels in (("source", table.source), ("device", table.device)):
        fits[what], residual = left_out(table, labels)
        show(f"one {what} left out {errors(residual)}")
        for name, value in fits[what].items():
            mine = labels == name
            show(f"    {name}: {value:g}, {int(mine.sum())} rows, {errors(residual[mine])}")
    if given.record:
        record(fits)


if __name__ == "__main__":
    main()
