"""Totals of a validated table: coverage and errors, whole and by group; as a file and as JSON."""

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.config.bands import SHARES
from projector.envelope import told
from projector.files import written_whole
from projector.projection.bands import FITS, VERDICTS
from projector.validate.first import first_results
from projector.validate.kind import Outcome, kind_of
from projector.validate.names import device_name, model_name, precision_name, vendor_name
from projector.validate.run import Line, Result, Table, Validation, validate
from projector.validate.words import columns_of, said

CLOSE_TO_LIMIT = 0.97
"""Share of the limit from which a measured run of memory counts as close to it."""

SMALLEST_GROUP = 5
"""Fewest projected rows of a group in `group_mean_ape`."""

GROUPINGS: dict[str, Callable[[Result], str]] = {
    "vendor": lambda result: vendor_name(result.device),
    "device": lambda result: device_name(result.device),
    "model": lambda result: model_name(result.model),
    "precision": lambda result: precision_name(result.precision),
    "source": lambda result: result.origin or result.source,
    "phase": lambda result: result.phase,
    "mark": lambda result: result.outcome.mark if result.projected else "",
    "by": lambda result: result.group,
}
"""Key of each grouping, one name for all spellings of a thing; ``by`` are the columns that the
caller named."""

AS_NAMED = "as named"
"""Behind a group of ``by``: the same rows with the kernels that they name."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Coverage and errors of a set of rows; errors are fractions, None without projected rows."""

    total_rows: int
    rows: int
    """Eligible rows."""
    projected: int
    median_ape: float | None
    p90_ape: float | None
    mean_ape: float | None
    geomean_ratio: float | None
    coverage_68: float | None = None
    """Share of the rows with a band that lie in that for 68 %; None without any."""
    coverage_90: float | None = None
    left_out: Mapping[str, Any] | None = None
    """Errors and coverage by their names where neither constants nor bands have seen the source of
    a row."""


def errors_of(ratio: Floats) -> dict[str, Any]:
    """Return errors of projected over measured times by name; no mean of ratios that reach 0."""
    error = np.abs(ratio - 1.0)
    return {
        "median_ape": float(np.median(error)),
        "p90_ape": float(np.percentile(error, 90.0)),
        "mean_ape": float(np.mean(error)),
        "geomean_ratio": float(np.exp(np.mean(np.log(ratio)))) if np.all(ratio > 0.0) else None,
    }


def totals(results: Iterable[Result]) -> Totals:
    """Return the totals of some rows."""
    rows = list(results)
    eligible = sum(result.eligible for result in rows)
    shown = [result.outcome for result in rows if result.projected]
    if not shown:
        return Totals(len(rows), eligible, 0, None, None, None, None)
    return Totals(
        total_rows=len(rows),
        rows=eligible,
        projected=len(shown),
        **errors_of(np.array([each.ratio for each in shown])),
        **_coverages(shown),
        left_out=_left_out(shown),
    )


def _coverages(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Return the share of rows in each of their bands; None where no row has one."""
    found: dict[str, float | None] = {}
    for share in SHARES:
        held = [outcome.covered(share) for outcome in outcomes]
        known = [each for each in held if each is not None]
        found[f"coverage_{share}"] = float(np.mean(known)) if known else None
    return found


def _left_out(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    others = [each.left_out for each in outcomes if each.left_out is not None]
    projected = [each for each in others if each.ratio is not None and each.ratio > 0.0]
    if not projected:
        return None
    ratios = np.array([each.ratio for each in projected])
    return {"projected": len(projected), **errors_of(ratios), **_coverages(projected)}


@dataclass(frozen=True, slots=True)
class Sources:
    """Errors of a table where every source weighs the same, whatever its rows."""

    sources: int
    mean_of_medians: float
    worst: str
    """Source with the largest median error."""
    worst_median_ape: float


def over_sources(results: Iterable[Result], *, left_out: bool = False) -> Sources | None:
    """Return the mean over sources of their median errors, and the worst; None without rows.

    ``left_out`` takes the projections whose constants have not seen the source.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    for result in results:
        outcome = result.outcome.left_out if left_out else result.outcome
        if result.projected and outcome is not None and outcome.ratio is not None:
            errors[result.origin or result.source].append(abs(outcome.ratio - 1.0))
    if not errors:
        return None
    medians = {source: float(np.median(values)) for source, values in errors.items()}
    worst = max(medians, key=lambda source: (medians[source], source))
    return Sources(len(medians), float(np.mean([*medians.values()])), worst, medians[worst])


def by_group(results: Iterable[Result], key: Callable[[Result], str]) -> dict[str, Totals]:
    """Return the totals of each value of a key, largest group first; empty values are left out."""
    members: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        members[key(result)].append(result)
    members.pop("", None)
    groups = {value: totals(group) for value, group in members.items()}
    return dict(sorted(groups.items(), key=lambda item: (-item[1].rows, item[0])))


def group_mean_ape(results: Iterable[Result], *, has_precision: bool) -> float | None:
    """Return the mean of the medians of the groups device, precision and source.

    Groups of fewer than `SMALLEST_GROUP` projected rows do not count.
    """
    errors: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for result in results:
        if result.projected and result.ape is not None:
            precision = (result.precision,) if has_precision else ()
            errors[(result.device, *precision, result.source)].append(result.ape)
    medians = [float(np.median(group)) for group in errors.values() if len(group) >= SMALLEST_GROUP]
    return float(np.mean(medians)) if medians else None


def summary(validation: Validation) -> dict[str, Any]:
    """Return all totals of a table, as ``--json`` prints them."""
    results = validation.results
    certain = [result for result in results if not result.doubt]
    families = {
        family: _all_totals([r for r in results if r.family == family], validation)
        for family in ("dense", "moe")
        if any(r.family == family for r in results)
    }
    kernels = [each for result in results if (each := result.as_named) is not None]
    named = [result for result in results if result.as_named is not None]
    tuned = {"tuned": named, "tuned_as_named": kernels} if named else {}
    beside = [replace(each, group=f"{each.group}, {AS_NAMED}") for each in kernels if each.group]
    first = first_results(validation.kind, validation.path, results)
    lines = {result.line for result in first}
    firsts = {
        "first": first,
        "first_dense": [each for each in first if each.family == "dense"],
        "first_moe": [each for each in first if each.family == "moe"],
        "first_now": [each for each in results if each.line in lines],
    }
    ways = {"in_sample": False, "left_out": True}
    found = {name: over_sources(results, left_out=way) for name, way in ways.items()}
    return {
        **_all_totals(results, validation),
        "without_doubt": _all_totals(certain, validation),
        **families,
        **{name: _all_totals(each, validation) for name, each in tuned.items()},
        **{name: _all_totals(each, validation) for name, each in firsts.items() if each},
        "over_sources": {name: each and asdict(each) for name, each in found.items()},
        **_verdicts(results),
        "groups": {
            name: {
                value: asdict(group_totals)
                for value, group_totals in by_group(
                    [*results, *beside] if name == "by" else results, key
                ).items()
            }
            for name, key in GROUPINGS.items()
        },
        "not_eligible": dict(Counter(r.rule for r in results if r.rule).most_common()),
        "failures": dict(
            Counter(r.status for r in results if r.eligible and not r.projected).most_common()
        ),
    }


def _verdicts(results: Sequence[Result]) -> dict[str, Any]:
    """Return what jobs of measured memory are told, all of which ran; nothing of other tables."""
    shown = [result.outcome for result in results if result.projected and result.outcome.verdict]
    if not shown:
        return {}
    others = [each.left_out or each for each in shown]
    return {"verdicts": {"in_sample": _verdict_counts(shown), "left_out": _verdict_counts(others)}}


def _verdict_counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Count verdicts, and those of runs whose measured value lies close to the limit."""
    close = [each for each in outcomes if (each.of_limit or 0.0) >= CLOSE_TO_LIMIT]
    return {
        **{name: sum(each.verdict == name for each in outcomes) for name in VERDICTS},
        "close_to_limit": len(close),
        "close_to_limit_and_fits": sum(each.verdict == FITS for each in close),
    }


def _all_totals(results: Sequence[Result], validation: Validation) -> dict[str, Any]:
    mean = group_mean_ape(results, has_precision=validation.has_precision)
    return {**asdict(totals(results)), "group_mean_ape": mean}


BAND_COLUMNS = ("low_68", "high_68", "low_90", "high_90")
"""The bands of a row, in its unit."""

LEFT_OUT = "predicted_left_out"
"""Prediction with constants that have not seen the source of the row."""

RESULT_COLUMNS = (
    *("predicted", "measured", "ratio", "status", "mark", "rule", "note", "as_named"),
    *BAND_COLUMNS,
    LEFT_OUT,
)
"""Columns that ``--out`` adds: ``rule`` leaves a row out, ``mark`` is where settings came from,
``as_named`` the prediction for the kernel that a tuner named."""


def write_results(
    kind: str, path: str | Path, out: str | Path | None, by: Sequence[str] = ()
) -> Validation:
    """Validate a table and, with ``out``, write it with the outcome of each row.

    ``by`` names the columns whose text makes the group of a row.
    The file appears whole or not at all.
    """
    if out is None:
        return validate(kind, path, by=by)
    with (
        written_whole(Path(out), key="out") as stream,
        TextIOWrapper(stream, encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        columns: list[str] = []

        def begin(names: tuple[str, ...]) -> None:
            columns.extend(name for name in names if name not in RESULT_COLUMNS)
            writer.writerow([*columns, *RESULT_COLUMNS])

        def sink(line: Line, result: Result) -> None:
            other = result.outcome.left_out
            found = {**_shown(result), "rule": result.rule, LEFT_OUT: other and other.predicted}
            texts = [line.row.get(name, "") for name in columns]
            # None is written as an empty cell.
            writer.writerow([*texts, *(found[name] for name in RESULT_COLUMNS)])

        return validate(kind, path, sink, begin, by)


def write_normalised(kind: str, path: str | Path, out: str | Path) -> dict[str, Any]:
    """Write a table with the columns that stand for its words; return what ``--json`` prints.

    The columns that the table has stay as they are. The file appears whole or not at all.
    """
    table = Table(path, kind_of(kind).columns, kind)
    added = [name for name in columns_of(kind) if name not in table.columns]
    with (
        written_whole(Path(out), key="normalise") as stream,
        TextIOWrapper(stream, encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*table.columns, *added])
        rows = 0
        for line in table:
            rows += 1
            # A line that is no row stays one that is none.
            found = [] if line.error else [said(line.row, name) for name in added]
            writer.writerow([*(line.fields or [line.error]), *found])
    return {"kind": kind, "file": str(path), "out": str(out), "rows": rows, "columns": added}


def results_object(validation: Validation, totals: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that ``--json`` prints, without its envelope."""
    return {
        "kind": validation.kind,
        "file": validation.path,
        **totals,
        "results": [_object(result) for result in validation.results],
    }


def _object(result: Result) -> dict[str, Any]:
    other = result.outcome.left_out
    return {
        **told(result, "line model eligible"),
        **_shown(result),
        "left_out": other and {**told(other, "predicted ratio"), **_bands(other)},
    }


def _shown(result: Result) -> dict[str, Any]:
    outcome = result.outcome
    return {
        **told(outcome, "predicted measured ratio"),
        "status": result.status,
        "mark": outcome.mark if result.projected else None,
        **told(outcome, "note as_named"),
        **_bands(outcome),
    }


def _bands(outcome: Outcome) -> dict[str, float | None]:
    """Return both bands in the unit of the row; None where there is none."""
    sides: list[float | None] = []
    for share in SHARES:
        sides += outcome.limits(share) or (None, None)
    return dict(zip(BAND_COLUMNS, sides, strict=True))
