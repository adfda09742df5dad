"""Constants of training, fitted to published runs by class, in and out of sample.

Fits the parameters of ``hardware/training.yaml`` to all eligible runs without doubt. The residual
of a run is the logarithm of its projected over its measured time, under a soft-L1 loss. Every
source weighs the same, equal configurations of a source count once, and priors hold each constant
near what was known before; classes that are alike share most of what is unknown about them. A
parameter needs `FEWEST_ROWS` rows of `FEWEST_SOURCES` sources, else it follows those. Out of
sample, each source (or device) is projected with constants fitted to the others.

``--record`` writes the values to ``hardware/training.yaml``, those of every fit that leaves one
source or device out to ``hardware/left_out.yaml``, and the table of constants to
``docs/scoreboard.md``. The fit is linear about the present values, so a second run ends it.
"""

import argparse
import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from projector.arrays import Flags, Floats
from projector.calibrate.runs import NOISE, Run, Slopes, run_weights, slopes_of
from projector.config.constants import Parameter, training_parameters
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.validate import training
from projector.validate.first import entries
from projector.validate.jobs import JobRow
from projector.validate.kind import Row
from projector.validate.names import device_of, source_of

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).parent / "data" / "training_throughput.csv"
CONSTANTS = ROOT / "hardware" / "training.yaml"
LEFT_OUT = ROOT / "hardware" / "left_out.yaml"
RECORDED = Path(__file__).with_name("first_projection.csv")
PAGE = ROOT / "docs" / "scoreboard.md"
BEGIN, END = "<!-- constants -->\n", "<!-- end of constants -->\n"

FEWEST_ROWS, FEWEST_SOURCES = 8, 2
DIGITS = 3
MOVES = 0.03
"""Share of the change of a parameter by which a row's time changes that depends on it: a twentieth
of a step waits for the slowest rank of its experts."""
SOURCE_WEIGHT = 4.0
"""Independent observations that the runs of one source are worth: most of their error is a bias of
the source, its model, device and precision, which more rows do not average out."""

HEAD = """\
# Fitted constants, fitted again without one source or one device: the rows of that source are then
# projected with constants that have not seen them. Written by validation/fit_training.py --record
# (training), validation/fit_memory.py (memory) and validation/fit_serving.py (serving); names are
# those of the parameters.
"""


class Table(NamedTuple):
    """Eligible rows as runs, and what groups them."""

    runs: list[Run]
    source: np.ndarray
    device: np.ndarray
    """Stem of the device's file."""
    moe: Flags
    amd: Flags
    doubt: Flags


def read() -> Table:
    """Read every row that can be projected."""
    with TABLE.open(newline="", encoding="utf-8") as stream:
        rows: list[Row] = list(csv.DictReader(stream))
    runs, facts = [], []
    # Rows with a first projection are not fitted yet: line 1 of a table is its header.
    new = entries(RECORDED, "training_throughput")
    for line, row in enumerate(rows, 2):
        if line in new or training.why_not_eligible(row):
            continue
        try:
            reader = JobRow(row)
            job, seconds = load_job(reader.job()), training.step_time(row, reader)
        except (ValueError, ProjectorError):
            continue
        source, device = source_of(row["source"]), device_of(row["gpu"])
        runs.append(Run(job, seconds, source, reader.key))
        vendor = job.cluster.device.vendor
        facts.append((source, device, job.model.moe is not None, vendor == "amd", row["doubt"]))
    source, device, moe, amd, doubt = zip(*facts, strict=True)
    return Table(
        runs, np.array(source), np.array(device), np.array(moe), np.array(amd),
        np.array([bool(text.strip()) for text in doubt]),
    )  # fmt: skip


class Fitted(NamedTuple):
    """A fit in and out of sample."""

    table: Table
    linear: Slopes
    used: Floats
    """float64[rows]: weight in the fit; 0 for rows with a doubt."""
    point: Floats
    without: dict[str, dict[str, Floats]]
    """``source`` or ``device`` -> its name -> coordinates fitted to the others."""

    def left_out(self, what: str) -> Floats:
        """Return the log ratio of each row by constants that have not seen its group."""
        labels = getattr(self.table, what)
        result = np.zeros(len(labels))
        for name, point in self.without[what].items():
            mine = labels == name
            result[mine] = self.linear.residuals(point)[mine]
        return result


def fit_table(table: Table, parameters: Sequence[Parameter]) -> Fitted:
    """Fit the parameters to the table, to all rows and without each source and device."""
    linear = slopes_of(table.runs, parameters)
    without: dict[str, dict[str, Floats]] = {}
    for what in ("source", "device"):
        labels = getattr(table, what)
        without[what] = {
            name: solve(table, linear, weights_of(table, labels != name)) for name in set(labels)
        }
    used = weights_of(table, ~table.doubt)
    return Fitted(table, linear, used, solve(table, linear, used), without)


def weights_of(table: Table, kept: Flags) -> Floats:
    """Return the weight of each row of those that are kept and without doubt."""
    rows = np.flatnonzero(kept & ~table.doubt)
    weights = np.zeros(len(table.runs))
    weights[rows] = run_weights([table.runs[row] for row in rows], SOURCE_WEIGHT)
    return weights


def support(table: Table, linear: Slopes, weights: Floats) -> list[tuple[int, list[str]]]:
    """Return the distinct configurations and the sources that each parameter moves.

    A row counts where its time moves by at least a tenth of the change of the parameter.
    """
    found = []
    for column in range(len(linear.parameters)):
        moved = (weights > 0.0) & (np.abs(linear.slopes[:, column]) >= MOVES)
        keys = {(table.runs[row].source, table.runs[row].configuration)
                for row in np.flatnonzero(moved)}  # fmt: skip
        found.append((len(keys), sorted({source for source, _ in keys})))
    return found


def solve(table: Table, linear: Slopes, weights: Floats) -> Floats:
    """Return the fitted coordinates.

    Rows that move a parameter with too little support are not fitted; it then follows those that
    are alike.
    """
    used = weights.copy()
    for column, (rows, sources) in enumerate(support(table, linear, weights)):
        if rows < FEWEST_ROWS or len(sources) < FEWEST_SOURCES:
            used[np.abs(linear.slopes[:, column]) >= MOVES] = 0.0
    return linear.solve(used, NOISE)


def groups(table: Table) -> dict[str, Flags]:
    """Return the groups that errors are told of, without doubt."""
    sure = ~table.doubt
    return {
        "all": sure,
        "dense": sure & ~table.moe,
        "mixture of experts": sure & table.moe,
        "NVIDIA": sure & ~table.amd,
        "AMD": sure & table.amd,
    }


def errors(log_ratio: Floats, kept: Flags) -> str:
    """Return median and 90th percentile of the errors, in percent."""
    error = 100.0 * np.abs(np.exp(log_ratio[kept]) - 1.0)
    return f"{np.median(error):.1f} / {np.percentile(error, 90.0):.1f}"


def report(fitted: Fitted) -> list[str]:
    """Return the errors of each group: at the priors, in sample, and out of sample."""
    linear, table = fitted.linear, fitted.table
    shown = {
        "at the priors": linear.residuals(np.zeros(len(linear.parameters))),
        "in sample": linear.residuals(fitted.point),
        "one source left out": fitted.left_out("source"),
        "one device left out": fitted.left_out("device"),
    }
    lines = [f"| group | rows | {' | '.join(shown)} |", "|---|---|" + "---|" * len(shown)]
    for name, kept in groups(table).items():
        cells = " | ".join(errors(log_ratio, kept) for log_ratio in shown.values())
        lines.append(f"| {name} | {kept.sum()} | {cells} |")
    of_source = []
    for log_ratio in shown.values():
        error = np.abs(np.exp(log_ratio) - 1.0)
        medians = [
            float(np.median(error[(table.source == name) & ~table.doubt]))
            for name in set(table.source[~table.doubt])
        ]
        of_source.append(f"{100.0 * np.mean(medians):.1f} / {100.0 * max(medians):.1f}")
    lines.append(f"| sources: mean / worst of their medians | | {' | '.join(of_source)} |")
    return lines


def constants(fitted: Fitted) -> list[str]:
    """Return the table of constants, and what each of them is worth."""
    linear, kinds = fitted.linear, groups(fitted.table)
    lines = [
        "| constant | rows | sources | prior | value | dense without it | experts without it |",
        "|---|---|---|---|---|---|---|",
    ]
    values = linear.values(fitted.point)
    for column, parameter in enumerate(linear.parameters):
        rows, sources = support(fitted.table, linear, fitted.used)[column]
        at_prior = fitted.point.copy()
        at_prior[column] = 0.0
        moved = linear.residuals(at_prior)
        width = math.hypot(parameter.log_width, parameter.alike_log_width)
        prior = f"{parameter.prior:g} ± {100.0 * width:.0f} %"
        cells = [errors(moved, kinds[name]) for name in ("dense", "mixture of experts")]
        value = f"{values[parameter.name]:.{DIGITS}g}"
        kept = rows >= FEWEST_ROWS and len(sources) >= FEWEST_SOURCES
        lines.append(
            f"| `{parameter.name}` | {rows} | {', '.join(sources)} | {prior} | "
            f"{value if kept else f'{value}, not fitted'} | {' | '.join(cells)} |"
        )
    return lines


def rounded(linear: Slopes, point: Floats) -> dict[str, float]:
    """Return the values as they are written."""
    return {name: float(f"{value:.{DIGITS}g}") for name, value in linear.values(point).items()}


def record_constants(values: Mapping[str, float]) -> None:
    """Write fitted values into the entries of the families that share them.

    Devices that compute in 16 bits alone have one value for both classes, and a family that nobody
    ran has the geometric mean of all.
    """
    text = CONSTANTS.read_text(encoding="utf-8")
    entries = yaml.safe_load(text)["parameters"]
    entries = {key: entry for key, entry in entries.items() if "architectures" in entry}
    mean = float(f"{math.exp(np.mean(np.log([values[key] for key in entries]))):.{DIGITS}g}")
    head, *families = re.split(r"^(?=  \w+:\n)", text.split("\nfamilies:\n")[1], flags=re.MULTILINE)
    before = text.split("\nfamilies:\n")[0]
    written = []
    for section in families:
        family = section
        name = section.strip().partition(":")[0]
        own = {
            entry["field"].rpartition(".")[2]: values[key]
            for key, entry in entries.items()
            if name in entry["architectures"]
        }
        for part in ("16_bit", "8_bit"):
            value = own.get(part, own.get("16_bit", mean))
            family = re.sub(rf"( {part}: {{value: )[\d.]+", rf"\g<1>{value:g}", family)
        written.append(family)
    CONSTANTS.write_text("\nfamilies:\n".join([before, head + "".join(written)]), encoding="utf-8")


def record_left_out(fitted: Fitted) -> None:
    """Write the constants of every fit that leaves something out, beside those of other scripts."""
    found = yaml.safe_load(LEFT_OUT.read_text(encoding="utf-8")) if LEFT_OUT.is_file() else {}
    before, found["training"] = found.get("training", {}), {}
    for what in ("source", "device"):
        # Fields of a job are constants of one source alone, written by hand: their priors.
        kept = {
            name: {field: value for field, value in values.items() if "." in field}
            for name, values in before.get(what, {}).items()
        }
        for name, point in fitted.without[what].items():
            kept[str(name)] = kept.get(str(name), {}) | rounded(fitted.linear, point)
        found["training"][what] = {name: values for name, values in kept.items() if values}
    LEFT_OUT.write_text(HEAD + yaml.safe_dump(found, sort_keys=True), encoding="utf-8")


def record_page(lines: Sequence[str]) -> None:
    """Write the tables between their marks."""
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    tail = rest.split(END)[1]
    body = "\n".join(lines)
    PAGE.write_text(f"{head}{BEGIN}\n{body}\n\n{END}{tail}", encoding="utf-8")


def main() -> None:
    """Fit, print errors and constants, and record them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="write values, left-out fits, tables")
    given = parser.parse_args()
    fitted = fit_table(read(), training_parameters())
    lines = [*constants(fitted), "", *report(fitted)]
    print("\n".join(lines))
    if given.record:
        record_constants(rounded(fitted.linear, fitted.point))
        record_left_out(fitted)
        record_page(lines)


if __name__ == "__main__":
    main()
