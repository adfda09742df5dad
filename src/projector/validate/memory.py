"""Rows that state the memory of a device during training."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.projection.bands import classes_of, memory_band, verdict_of
from projector.units import to_gib
from projector.validate import training
from projector.validate.jobs import JobRow
from projector.validate.kind import OK, Kind, Outcome, Row, Without, above_zero, chosen, plain
from projector.validate.words import said

_COLUMNS = (*training.JOB_COLUMNS, "component", "mem_gib", "kind")


def _completed(row: Row) -> Row:
    """Return a row whose micro-batch is its local batch, where it states that alone.

    The local batch is what a data-parallel rank runs in a step (torchtitan); `JobRow` divides it
    into the microbatches of a pipeline.
    """
    if (row.get("micro_batch") or "").strip() or not (batch := said(row, "local_batch")):
        return row
    return {**row, "micro_batch": batch}


def why_not_eligible(row: Row) -> str:
    """Measured rows with micro-batch and sequence count."""
    kind = plain(row, "kind")
    if kind != "measured":
        return f"kind {kind or 'not stated'}, not measured"
    if reason := training.why_not_modelled(row):
        return reason
    row = _completed(row)
    for column, name in (("micro_batch", "micro-batch"), ("seq_len", "sequence length")):
        if not (row.get(column) or "").strip():
            return f"no {name}"
    return ""


def project(rows: Sequence[Row], without: Sequence[Without] | None = None) -> list[Outcome]:
    """Project rows; equal jobs, whose components differ, are projected once.

    ``without`` are the constants of each row, e.g. those that have not seen its source.
    """
    return training.project_rows(rows, without, _read, _outcome)


def _read(row: Row) -> training.ReadRow:
    reader = JobRow(_completed(row))
    job = reader.job()
    return training.ReadRow(reader, job, _measured(row, job["cluster"].device.hbm_gib))


def _outcome(found: training.ProjectedRow) -> Outcome:
    evaluation, place = found.evaluation, found.place
    # Allocated is the sum of our terms; reserved adds what the caching allocator keeps; the memory
    # that a driver's tool shows adds context and communicators too. A rank that is named counts,
    # the emptiest or the mean where that is asked for, and else the fullest.
    text, of = found.row.get("component") or "", said(found.row, "memory_of")
    if of not in {"allocated", "reserved", "device"}:
        why = f"component {text!r} is a part of the memory" if of else f"unknown component {text!r}"
        raise ValueError(why)
    held = evaluation.memory(place).peak_bytes
    if of != "allocated":
        held = held + evaluation.idle_bytes(place)
    if of == "device":
        held = held + float(evaluation.reserve_bytes[evaluation.family(place)])
    of_rank = chosen("memory_rank", said(found.row, "memory_rank"), _RANKS)
    predicted = to_gib(float(of_rank(held)))
    job = evaluation.job(place)
    peak = float(evaluation.steps.peak_bytes[place])
    usable = evaluation.usable_bytes(place)
    band = memory_band(job, found.without)
    return Outcome(
        status=OK,
        predicted=predicted,
        measured=found.measured,
        ratio=predicted / found.measured,
        mark=found.reader.mark,
        note="; ".join(found.reader.notes),
        band=band,
        classes=classes_of(job, "memory"),
        verdict=verdict_of(job, peak, usable, band).verdict,
        of_limit=found.measured / predicted * peak / usable,
    )


def _measured(row: Row, device_gib: float) -> float:
    """Return the measured GiB; a share of the device's memory is one of what its driver reports."""
    value = above_zero(row, "mem_gib")
    texts = f"{row.get('component') or ''} {row.get('unit_note') or ''}".lower()
    if value <= 1.0 and re.search(r"ratio|fraction|share", texts):
        return value * device_gib
    if value <= 100.0 and re.search(r"^[^;x]*(?:percent|%)\s*$", row.get("unit_note") or ""):
        return value / 100.0 * device_gib
    return value


_RANKS: dict[str, Callable[[Floats], Any]] = {
    "emptiest": np.min,
    "mean": np.mean,
    "last": lambda held: held[-1],
    "first": lambda held: held[0],
    "": np.max,
}
"""Rank that was measured -> what it holds of what all of them do."""

KIND = Kind(
    name="memory",
    doubt=training.doubt,
    columns=_COLUMNS,
    why_not_eligible=why_not_eligible,
    project=project,
    quantity="memory",
    project_without=project,
)
