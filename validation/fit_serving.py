"""Constants of inference engines, fitted to published rows, in and out of sample.

``widening_share``: the instructions that widen narrow weights and that loads do not hide, as a
share of all of them. Host time of a step and of each of its sequences: of vLLM up to 0.11
(``step_us``, ``sequence_us``), of later vLLM and SGLang (``later_``), of TensorRT-LLM (``trt_``).
``expert_load``: pairs of the fullest part of experts over those of even routing. ``request_ms``: a
request at a server, beside its steps; ``handoff_ms``: between prefill and decode apart.
``latent_layer_us``: a layer of latent attention on AMD devices beside its kernels.

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
import re
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import minimize

from projector.arrays import Flags, Floats
from projector.config.engine import dequantising, engines
from projector.config.model_file import load_model
from projector.validate.kind import Row, Without
from projector.validate.names import model_name, source_of
from projector.validate.serving import (
    FITTED,
    WIDENING,
    engine_of,
    phase_of,
    project_without,
    why_not_eligible,
)

TABLE = Path(__file__).parent / "data" / "serving_measured.csv"
LEFT_OUT = Path(__file__).resolve().parents[1] / "hardware" / "left_out.yaml"
NAMES = (WIDENING, *FITTED)
PRIORS = {
    WIDENING: (0.3, 0.7), "step_us": (500.0, 0.5), "sequence_us": (15.0, 0.5),
    "later_step_us": (300.0, 0.5), "later_sequence_us": (5.0, 0.5),
    "trt_step_us": (300.0, 0.5), "trt_sequence_us": (5.0, 0.5),
    "expert_load": (1.5, 0.3), "request_ms": (25.0, 0.5), "handoff_ms": (60.0, 0.5),
    "latent_layer_us": (100.0, 0.7),
}  # fmt: skip
"""Centre, and standard deviation of the logarithm: a third of the instructions beside loads; half a
millisecond a step and 15 us a sequence, the order that profiles of vLLM's first scheduler show
(recalled, not verified); less of both where scheduling runs beside the device; half as many pairs
again; tens of milliseconds of HTTP, tokenising and messages. All but the first are assumed. The
widths of 0.5 were chosen with the left-out errors in sight: at 0.7 two sources alone moved the host
times too far."""

KNOTS = {
    WIDENING: (0.0, 0.1, 0.2, 0.4, 0.8, 1.6),
    "expert_load": (1.0, 1.5, 2.2, 3.2),
}
"""Values that rows are projected with; of the others none, and `FURTHEST` times the centre. Time is
linear in between."""

FURTHEST = 3.0

NOISE = 0.08
SOURCE_WEIGHT = 4.0
"""Independent observations that the rows of one source are worth."""

FEWEST_ROWS, FEWEST_SOURCES = 8, 2


class Table:
    """Projected times of rows over measured ones, as functions of the numbers."""

    def __init__(self) -> None:
        """Project every eligible row at the centres, and those that a number moves at its knots."""
        with TABLE.open(newline="", encoding="utf-8") as stream:
            self.rows: list[Row] = [r for r in csv.DictReader(stream) if not why_not_eligible(r)]
        centres = {name: PRIORS[name][0] for name in NAMES}
        self.base = self._ratios(self.rows, centres)
        self.knots, self.values = {}, {}
        engines_of = [engine_of(row) for row in self.rows]
        for name in NAMES:
            moved = [i for i, row in enumerate(self.rows) if _may_move(name, row, engines_of[i])]
            knots = KNOTS.get(name, (0.0, centres[name], FURTHEST * centres[name]))
            rows = [self.rows[i] for i in moved]
            found = np.repeat(self.base[:, None], len(knots), axis=1)
            for column, value in enumerate(knots):
                if value != centres[name]:
                    found[moved, column] = self._ratios(rows, {**centres, name: value})
            self.knots[name], self.values[name] = knots, found
            print(f"{name}: {len(moved)} rows at {knots}", flush=True)
        self.source = np.array([source_of(row["source"]) for row in self.rows])
        self.model = np.array([model_name(row["model"]) for row in self.rows])
        self.phase = np.array([phase_of(row) for row in self.rows])

    def _ratios(self, rows: list[Row], values: dict[str, float]) -> Floats:
        found = project_without(rows, [Without("", values)] * len(rows)) if rows else []
        return np.array([each.time_ratio or math.nan for each in found])

    def log_ratio(self, values: dict[str, float]) -> Floats:
        """Return the logarithm of projected over measured time."""
        total = self.base.copy()
        for name in NAMES:
            total += self._at(name, values[name]) - self._at(name, PRIORS[name][0])
        return np.log(np.maximum(total, 0.02 * self.base))

    def _at(self, name: str, value: float) -> Floats:
        knots = self.knots[name]
        at = min(max(int(np.searchsorted(knots, value)), 1), len(knots) - 1)
        low, high = knots[at - 1], knots[at]
        columns = self.values[name]
        share = (value - low) / (high - low)
        at_value: Floats = columns[:, at - 1] + share * (columns[:, at] - columns[:, at - 1])
        return at_value

    def tells(self, name: str, kept: Flags) -> Flags:
        """Return the rows that tell of a number."""
        found = self.values[name]
        return kept & (np.abs(found[:, -1] / found[:, 0] - 1.0) > 0.01)

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
            found = {name: PRIORS[name][0] * moved.get(name, 1.0) for name in NAMES}
            return {**found, "expert_load": max(1.0, found["expert_load"])}

        def loss(logs: Floats) -> float:
            error = self.log_ratio(values(logs)) / NOISE
            held = sum((log / PRIORS[n][1]) ** 2 for n, log in zip(free, logs, strict=True))
            return float(np.sum(weights * 2.0 * (np.sqrt(1.0 + error**2) - 1.0)) + held)

        found = minimize(loss, np.zeros(len(free)), method="Powell", options={"xtol": 1e-4})
        return {name: float(f"{value:.3g}") for name, value in values(found.x).items()}


def _may_move(name: str, row: Row, engine: str) -> bool:
    """Whether a row can tell of a number; others are not projected again."""
    notes = row["notes"] or ""
    if name == WIDENING:
        return bool(row["weights"])
    if name == "handoff_ms" and "disaggregated" not in notes:
        return False
    if name == "expert_load" and not re.search(r"\bep=(?!1\b)\d", notes):
        # TensorRT-LLM's table of maximum loads does not state it.
        unsaid = row["batch_or_concurrency"] == "unbounded" and engine in FITTED[name][1]
        return unsaid and load_model(row["model"]).moe is not None
    if name == "request_ms" and not re.search("ttft|latency", row["unit"].lower()):
        return False
    return engine in FITTED[name][1]


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
    shipped = {WIDENING: dequantising().exposed_share}
    shipped |= {name: getattr(engines()[of[0]], field) for name, (field, of) in FITTED.items()}
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
