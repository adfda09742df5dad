"""Measured beside projected on the processor at hand: small training jobs on its own profile.

``probed_cpu.py`` probes this machine, measures the jobs of ``probed_cpu.yaml`` on it (operations,
layers, a step of one layer of each kind, and the step of the whole model) and projects them with
the profile. Probe and jobs take turns, so that drift meets both alike. ``--record`` writes the
profile, a table and a page beside it. The machine must be idle: a busy one is measured as busy.
"""

import argparse
import csv
import io
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from projector.calibrate.probed import Probed, fit_probe
from projector.config._base import merge
from projector.config.job import Job
from projector.config.load import load_job
from projector.lower.stages import KINDS
from projector.measure.probe import identify, plan_probe, threads_of, whole_step
from projector.measure.process import run_task
from projector.measure.programs import LAYER_KINDS, lower_job, record_of, task_of
from projector.measure.record import Record
from projector.measure.reduction import Reduction, reduce_job
from projector.measure.task import (
    Answer,
    Environment,
    LayerProgram,
    OperationProgram,
    Outcome,
    Pace,
    Sparing,
    StepProgram,
    Task,
    Timing,
)
from projector.projection.api import project_performance

HERE = Path(__file__).parent
SETTINGS = HERE / "probed_cpu.yaml"
PROFILE = HERE / "probed_cpu_profile.yaml"
TABLE = HERE / "probed_cpu.csv"
PAGE = HERE / "probed_cpu.md"

LEAST_SHARE = 0.01
"""Of a step, below which an operation is left out of the page."""

FAR = 0.2
"""Error of an operation from which on the page says why."""


class Row(NamedTuple):
    """One time, measured and projected."""

    job: str
    what: str
    """``total`` of the whole model, its ``restored`` step, ``step``, ``layer`` or ``operation``."""
    layer: str
    name: str
    phase: str
    shape: str
    runs: float
    """How often a step of the whole model runs it."""
    measured_us: float
    low_us: float
    high_us: float
    projected_us: float

    @property
    def ratio(self) -> float:
        """Projected over measured."""
        return self.projected_us / self.measured_us if self.measured_us else float("nan")


@dataclass(frozen=True, slots=True)
class Measured:
    """One job, measured and projected."""

    name: str
    environment: Environment
    rows: tuple[Row, ...]

    @property
    def total(self) -> Row:
        """The step of the whole model."""
        return next(row for row in self.rows if row.what == "total")


def settings() -> dict[str, Any]:
    """Return what ``probed_cpu.yaml`` says."""
    data: dict[str, Any] = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    return data


def jobs_of(device: Any) -> dict[str, Job]:
    """Return the jobs on a device, by name."""
    given = settings()
    common = merge(given["common"], {"cluster": {"device": device}})
    return {name: load_job(merge(common, job)) for name, job in given["jobs"].items()}


def task_for(reduction: Reduction, pace: Pace, threads: int | None) -> Task:
    """Return what is measured of a job: its benchmark, and last the step of the whole model."""
    task = task_of(reduction, "cpu", pace)
    kept = [
        program
        for program in task.programs
        if isinstance(program, OperationProgram | LayerProgram | StepProgram)
    ]
    whole = whole_step(reduction.job)
    return task.model_copy(update={"programs": [*kept, whole], "threads": threads})


def compare(name: str, job: Job, record: Record, whole: Outcome) -> Measured:
    """Put everything that was measured of a job beside what the profile says of it.

    Parameters
    ----------
    record : Record
        Of its benchmark job.
    whole : Outcome
        The step of the whole model.
    """
    if whole.status != "ok":
        msg = f"{name}: the step of the whole model has no time: {whole.message}"
        raise SystemExit(msg)
    simulated = project_performance(job, profiling_mode="simulate")
    restored = project_performance(job, records=record, profiling_mode="both")
    rows = [
        _row(name, "total", whole.times["total"], simulated.iteration_time_s),
        _row(name, "restored", whole.times["total"], restored.iteration_time_s),
        *_parts(name, job, restored),
    ]
    return Measured(name, record.environment, tuple(rows))


def _row(job: str, what: str, timing: Timing, projected_s: float) -> Row:
    us = 1e6
    return Row(
        job, what, "", what, "", "", 1.0, us * timing.median_s, us * timing.low_s,
        us * timing.high_s, us * projected_s,
    )  # fmt: skip


def _parts(name: str, job: Job, projection: Any) -> Iterator[Row]:
    comparison = projection.comparison
    layers = _layers(job)
    for part, pair in comparison.step.items():
        measured, projected = 1e6 * pair.measured_s, 1e6 * pair.simulated_s
        yield Row(name, "step", "", part, "", "", 1.0, measured, measured, measured, projected)
    for each in comparison.layers:
        measured, projected = 1e6 * each.pair.measured_s, 1e6 * each.pair.simulated_s
        yield Row(
            name, "layer", each.layer, each.layer, each.phase, "", layers[each.layer], measured,
            measured, measured, projected,
        )  # fmt: skip
    for each in comparison.operations:
        yield Row(
            name, "operation", each.layer, each.key.label, each.key.phase, each.shape,
            each.runs * layers[each.layer], 1e6 * each.pair.measured_s, 1e6 * each.low_s,
            1e6 * each.high_s, 1e6 * each.pair.simulated_s,
        )  # fmt: skip


def _layers(job: Job) -> dict[str, float]:
    """Return how many layers of each kind a job has."""
    workloads = lower_job(job).workloads
    counts: dict[str, float] = {}
    for place, count in zip(workloads.run_workload, workloads.run_count, strict=True):
        kind = LAYER_KINDS[KINDS[int(workloads.columns.kind[place])]]
        counts[kind] = counts.get(kind, 0.0) + float(count)
    return counts


def why(row: Row, reasons: Sequence[Mapping[str, Any]]) -> str:
    """Return why such an operation differs, the first reason that fits."""
    return next(
        str(each["why"])
        for each in reasons
        if re.fullmatch(each["label"], row.name) and row.phase in each["phases"]
    )


def table_text(found: Sequence[Measured]) -> str:
    """Return all rows as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*Row._fields, "ratio"])
    for each in found:
        for row in each.rows:
            numbers = (f"{value:.6g}" for value in (*row[6:], row.ratio))
            writer.writerow([*row[:6], *numbers])
    return buffer.getvalue()


def page_text(probed: Probed, found: Sequence[Measured]) -> str:
    """Return the page: environment, totals, layers, and operations that differ with the reason."""
    environment, given = probed.probe.environment, settings()
    lines = [
        "# A probed processor, measured and projected",
        "",
        (
            "Written by `validation/probed_cpu.py --record`; every number is in "
            "`validation/probed_cpu.csv`, the profile in `validation/probed_cpu_profile.yaml`."
        ),
        "",
        (
            f"{environment.device}{threads_of(environment)}, torch {environment.torch}. "
            f"Medians of {given['pace']['repeats']}; probe and jobs in turns."
        ),
        "",
        "| job | step measured ms | quartiles | projected ms | over measured | restored ms |",
        "|---|---|---|---|---|---|",
    ]
    for each in found:
        total = each.total
        restored = next(row for row in each.rows if row.what == "restored")
        lines.append(
            f"| {each.name} | {total.measured_us / 1e3:.1f} | {total.low_us / 1e3:.1f} to "
            f"{total.high_us / 1e3:.1f} | {total.projected_us / 1e3:.1f} | {total.ratio:.3f} | "
            f"{restored.projected_us / 1e3:.1f} |"
        )
    lines += [
        "",
        (
            "The measured step is that of the whole model; the projection knows the profile alone, "
            "and the restored one the layers that were measured one by one."
        ),
        "",
        "The fit that made the profile, on other sizes:",
        "",
    ]
    lines += [
        f"- {what}: {rows} times, median error {median:.1%}, projected over measured {mean:.2f}"
        for what, (rows, median, mean) in probed.errors().items()
    ]
    for each in found:
        lines += ["", f"## {each.name}", "", *_layer_lines(each), "", *_operation_lines(each)]
    return "\n".join(lines) + "\n"


def _layer_lines(measured: Measured) -> Iterator[str]:
    yield "| part | measured ms | projected ms | projected / measured |"
    yield "|---|---|---|---|"
    for row in measured.rows:
        if row.what in ("step", "layer"):
            name = f"{row.name} {row.phase}" if row.what == "layer" else f"step: {row.name}"
            yield (
                f"| {name} | {row.measured_us / 1e3:.3f} | {row.projected_us / 1e3:.3f} | "
                f"{row.ratio:.2f} |"
            )


def _operation_lines(measured: Measured) -> Iterator[str]:
    given, step_us = settings(), measured.total.measured_us
    rows = [row for row in measured.rows if row.what == "operation"]
    weight = {row: row.runs * max(row.measured_us, row.projected_us) / step_us for row in rows}
    shown = [row for row in rows if weight[row] >= LEAST_SHARE]
    far = [row for row in shown if abs(row.ratio - 1.0) > FAR]
    near = sum(weight[row] for row in shown if row not in far)
    yield (
        f"Operations of at least {LEAST_SHARE:.0%} of the step. {len(shown) - len(far)} of them, "
        f"{near:.0%} of the step, are within {FAR:.0%}; these are not:"
    )
    yield ""
    yield "| operation | shape | share | projected / measured | why |"
    yield "|---|---|---|---|---|"
    for row in sorted(far, key=lambda row: -weight[row]):
        yield (
            f"| {row.name} {row.phase} | {row.shape} | {weight[row]:.1%} | {row.ratio:.2f} | "
            f"{why(row, given['reasons'])} |"
        )


def in_turns(tasks: Sequence[Task], pace: Pace) -> tuple[Task, list[list[int]]]:
    """Return one task of all programs, mixed, and where each task's own stand in it.

    What drifts on the machine so meets probe and jobs alike. As many programs take turns as fit
    the memory together, so they are mixed rather than one task after the other.
    """
    programs = [program for task in tasks for program in task.programs]
    order = list(range(len(programs)))
    random.Random(0).shuffle(order)  # noqa: S311  # the order of measurements
    place = {number: at for at, number in enumerate(order)}
    begins = list(accumulate((len(task.programs) for task in tasks), initial=0))
    mixed = [programs[number] for number in order]
    places = [[place[number] for number in range(*bounds)] for bounds in pairwise(begins)]
    return tasks[0].model_copy(update={"pace": pace, "programs": mixed}), places


def measure(threads: int | None = None) -> tuple[Probed, list[Measured]]:
    """Probe the processor, and measure and project every job, all in turns."""
    environment = identify("cpu", threads)
    probe = plan_probe(environment)
    # What is measured does not depend on the profile.
    before = jobs_of(probe.jobs[0].cluster.device)
    pace = Pace.model_validate(settings()["pace"])
    tasks = [probe.task, *(task_for(reduce_job(job, 1), pace, threads) for job in before.values())]
    task, places = in_turns(tasks, pace)
    print(f"measuring {len(task.programs)} programs on {environment.device} ...", flush=True)
    answer = run_task(task, progress=Sparing(print))
    answers = [
        answer.model_copy(update={"outcomes": [answer.outcomes[at] for at in own]})
        for own in places
    ]
    print("fitting the profile ...", flush=True)
    probed = fit_probe(probe, answers[0])
    found = []
    for (name, job), own, answered in zip(
        jobs_of(probed.data).items(), tasks[1:], answers[1:], strict=True
    ):
        record = record_of(reduce_job(job, 1), *_without_last(own, answered))
        found.append(compare(name, job, record, answered.outcomes[-1]))
    return probed, found


def _without_last(task: Task, answer: Answer) -> tuple[Task, Answer]:
    """Return what belongs to the benchmark job alone."""
    return (
        task.model_copy(update={"programs": task.programs[:-1]}),
        answer.model_copy(update={"outcomes": answer.outcomes[:-1]}),
    )


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, help="threads of torch; all cores unless stated")
    parser.add_argument("--record", action="store_true", help="write profile, table and page")
    options = parser.parse_args()
    probed, found = measure(options.threads)
    print(page_text(probed, found))
    if options.record:
        PROFILE.write_text(probed.text(), encoding="utf-8")
        TABLE.write_text(table_text(found), encoding="utf-8")
        PAGE.write_text(page_text(probed, found), encoding="utf-8")
    worst = max(abs(each.total.ratio - 1.0) for each in found)
    tolerance = settings()["tolerance"]
    print(f"largest error of a total: {worst:.1%}, allowed {tolerance:.0%}")
    raise SystemExit(0 if worst <= tolerance else 1)


if __name__ == "__main__":
    main()
