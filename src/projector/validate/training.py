"""Rows that time a training step: tokens per second and device, or seconds a step."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from projector.config.constants import Changes
from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.projection.bands import classes_of, time_band
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.terms import BREAKDOWN
from projector.validate import kind as kinds
from projector.validate.jobs import LORA, JobRow
from projector.validate.kind import Kind, number
from projector.validate.names import is_hybrid
from projector.validate.words import said

BATCH = 96
"""Jobs evaluated together."""

_SIZES = ("seq_len", "micro_batch", "global_batch", "tp", "pp", "vpp", "cp", "ep")
JOB_COLUMNS = ("model", "gpu", "n_gpus", "precision", *_SIZES)
"""Columns that describe the job of a row."""

_COLUMNS = (*JOB_COLUMNS, "task", "tokens_per_s_per_gpu", "step_time_s")

TASKS = {"", "pretrain", "pretraining", "sft", LORA}
"""Tasks whose sequences are full; fine-tuning packs them."""


def why_not_eligible(row: kinds.Row) -> str:
    """Training of transformers on text, with micro-batch, sequence and a time or a rate, counts."""

    def empty(column: str) -> bool:
        return not (row.get(column) or "").strip()

    task = (row.get("task") or "").strip().lower()
    if task not in TASKS:
        return f"task {task}, not training on text"
    if reason := why_not_modelled(row):
        return reason
    for column, name in (("micro_batch", "micro-batch"), ("seq_len", "sequence length")):
        if empty(column):
            return f"no {name}"
    if empty("tokens_per_s_per_gpu") and empty("step_time_s"):
        return "neither tokens per second nor step time"
    return ""


def why_not_modelled(row: kinds.Row) -> str:
    """Return what a job of ours does not have, ``""`` where it could be this row."""
    if said(row, "not_text") == "true":
        return "images or frozen parts beside the text"
    if said(row, "shared_batch") == "true":
        return "one batch shared by the ranks of an expert-parallel group"
    hybrid = "true" in (said(row, "hybrid_model"), said(row, "hybrid_run"))
    if hybrid and not is_hybrid(row.get("model") or ""):
        return "a hybrid model with layers that are not modelled"
    return ""


def project(
    rows: Sequence[kinds.Row], without: Sequence[kinds.Without] | None = None
) -> list[kinds.Outcome]:
    """Project rows, equal jobs once; ``without`` are the constants of each row."""
    return project_rows(rows, without, read_row, _outcome)


class ReadRow(NamedTuple):
    """What a row says."""

    reader: JobRow
    job: dict[str, Any]
    measured: float
    """Seconds of a step, or GiB."""


class ProjectedRow(NamedTuple):
    """A row and the job that was evaluated for it."""

    row: kinds.Row
    reader: JobRow
    measured: float
    evaluation: Evaluation
    place: int
    """Of the job in the evaluation."""
    without: str | None
    """Source that its constants, and thus its band, have not seen."""


def project_rows(
    rows: Sequence[kinds.Row],
    without: Sequence[kinds.Without] | None,
    read: Callable[[kinds.Row], ReadRow],
    outcome: Callable[[ProjectedRow], kinds.Outcome],
) -> list[kinds.Outcome]:
    """Project the jobs of rows, equal ones once; a row that cannot be projected gives the reason.

    ``read`` reads a row: its `ValueError` and `ProjectorError` are its reason to fail. ``outcome``
    compares a row with its job, and its `ValueError` is the same.
    """
    entries = kinds.read_cases(rows, read)
    constants: dict[str, kinds.Without] = {}
    for entry, other in zip(entries, without or (), strict=without is not None):
        if not isinstance(entry, str):
            entry.reader.key = f"{other.source}: {entry.reader.key}"
            constants[entry.reader.key] = other
    jobs = {entry.reader.key: entry.job for entry in entries if not isinstance(entry, str)}
    evaluated = evaluate_all(jobs, constants)

    def judged(pair: tuple[kinds.Row, ReadRow | str]) -> kinds.Outcome:
        row, entry = pair
        result = entry if isinstance(entry, str) else evaluated[entry.reader.key]
        if isinstance(entry, str) or isinstance(result, str):
            return kinds.failed(str(result))
        source = constants[entry.reader.key].source if constants else None
        return outcome(ProjectedRow(row, entry.reader, entry.measured, *result, source))

    found = kinds.read_cases(zip(rows, entries, strict=True), judged)
    return [kinds.failed(each) if isinstance(each, str) else each for each in found]


def read_row(row: kinds.Row) -> ReadRow:
    """Return the job of a row and the measured seconds of its step."""
    reader = JobRow(row)
    return ReadRow(reader, reader.job(), step_time(row, reader))


def step_time(row: kinds.Row, reader: JobRow) -> float:
    """Return the measured seconds of one step.

    The rate is what sources publish, and where both stand the step time was mostly derived from
    it; the row's derived fields decide.
    """
    seconds, rate = number(row, "step_time_s"), number(row, "tokens_per_s_per_gpu")
    derived = row.get("derived_fields") or ""
    if seconds is None or (rate is not None and "step_time_s" in derived):
        rate = kinds.above_zero(row, "tokens_per_s_per_gpu")
        return reader.global_batch * reader.seq / (rate * reader.gpus)
    seconds = kinds.above_zero(row, "step_time_s")
    if not (row.get("global_batch") or "").strip():
        raise ValueError("step_time_s needs global_batch")
    return seconds


def evaluate_all(
    jobs: dict[str, dict[str, Any]], constants: Mapping[str, kinds.Without] | None = None
) -> dict[str, tuple[Evaluation, int] | str]:
    """Evaluate jobs in batches; a job that cannot be projected gives the reason instead.

    Jobs and constants other than those that ship have the same keys.
    """
    results: dict[str, tuple[Evaluation, int] | str] = {}
    loaded = []
    changes = Changes()
    for key, data in jobs.items():
        try:
            job = load_job(data)
            if constants and key in constants:
                job = _with(job, constants[key].values, changes)
            loaded.append((key, job))
        except (ValueError, ProjectorError) as error:
            results[key] = str(error)
    # Jobs of one shape next to each other share most of their work.
    loaded.sort(key=lambda item: (item[1].model.name, item[1].cluster.device.name, item[0]))
    for begin in range(0, len(loaded), BATCH):
        batch = loaded[begin : begin + BATCH]
        found = kinds.halved([job for _, job in batch], _evaluate)
        results |= dict(zip((key for key, _ in batch), found, strict=True))
    return results


def _with(job: Job, values: Mapping[str, float], changes: Changes) -> Job:
    """Return a job with other constants: names of parameters, or dotted fields of the job."""
    fields = {name: value for name, value in values.items() if "." in name}
    job = changes.of(job, {name: value for name, value in values.items() if "." not in name})
    return load_job(job, fields) if fields else job


def _evaluate(jobs: Sequence[Job]) -> list[tuple[Evaluation, int]]:
    evaluation = evaluate(jobs)
    return [(evaluation, position) for position in range(len(jobs))]


def _outcome(found: ProjectedRow) -> kinds.Outcome:
    """Return a result in seconds where the row gives them, else in tokens per second."""
    rated = not re.search(r"\S", found.row.get("step_time_s") or "")
    reader, measured_s = found.reader, found.measured
    steps, job = found.evaluation.steps, found.evaluation.job(found.place)
    predicted_s = float(steps.iteration_s[found.place])
    attention_s = float(steps.breakdown_s[found.place, BREAKDOWN.index("compute_attention")])
    tokens = reader.global_batch * reader.seq / reader.gpus
    return kinds.Outcome(
        status=kinds.OK,
        predicted=tokens / predicted_s if rated else predicted_s,
        measured=tokens / measured_s if rated else measured_s,
        ratio=predicted_s / measured_s,
        mark=reader.mark,
        note="; ".join(reader.notes),
        is_rate=rated,
        band=time_band(job, attention_s / predicted_s, found.without),
        classes=classes_of(job),
    )


def doubt(row: kinds.Row) -> str:
    """Return why a row is doubtful beside what its table says."""
    is_test = said(row, "functional_test") == "true"
    return "a functional test, with deterministic kernels" if is_test else ""


KIND = Kind(
    name="training_throughput",
    doubt=doubt,
    columns=_COLUMNS,
    why_not_eligible=why_not_eligible,
    project=project,
    quantity="time",
    project_without=project,
)
