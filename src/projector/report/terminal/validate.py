"""The scoreboard of one measurement table."""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from projector.projection.verdict import WORDS
from projector.report.terminal.tables import DIM, add_row, grid, heading, percent, section
from projector.validate.run import Result, Validation

WORST = 10
"""Rows that the report lists by error."""

LONGEST = 14
"""Groups of one kind that the report lists; of those that the user names, all."""

_SHOWN = {
    "vendor": "By vendor",
    "device": "By device",
    "precision": "By precision",
    "source": "By source",
    "mark": "By origin of the settings",
    "by": "By the columns named",
}
_PARTS = {
    "without_doubt": "without doubtful rows",
    "dense": "dense models",
    "moe": "experts",
    "tuned": "kernels of tuners, chosen",
    "tuned_as_named": "the same, as named",
}


def validation_report(validation: Validation, totals: Mapping[str, Any]) -> list[RenderableType]:
    """Return totals, groups, failures and the worst rows."""
    parts: list[RenderableType] = []
    table = _grid(totals)
    _add(table, "all rows", totals)
    for key, name in _PARTS.items():
        if key in totals:
            _add(table, name, totals[key])
    parts += section(f"{validation.kind}: {validation.path}", _note(totals), table)
    parts += _verdicts(totals)
    for key, title in _SHOWN.items():
        groups = {name: group for name, group in totals["groups"][key].items() if group["rows"]}
        if not groups or (len(groups) == 1 and key == "mark"):
            continue
        table = _grid(totals)
        shown = len(groups) if key == "by" else LONGEST
        for name, group in list(groups.items())[:shown]:
            _add(table, name, group)
        rest = len(groups) - shown
        parts += section(title, f"{rest} more in --json" if rest > 0 else "", table)
    parts += _counted("Not eligible", totals["not_eligible"])
    parts += _failed(validation, totals["failures"])
    return parts + _worst(validation)


def _verdicts(totals: Mapping[str, Any]) -> list[RenderableType]:
    """Return what the jobs of measured memory are told; all of them ran."""
    if "verdicts" not in totals:
        return []
    table = grid("<", *WORDS.values(), "close to the limit", "of them fits")
    for key, name in (("in_sample", "in-sample"), ("left_out", "sources left out")):
        add_row(table, name, *(f"{number:,}" for number in totals["verdicts"][key].values()))
    return section("Verdicts", "all these runs ran", table)


def _note(totals: Mapping[str, Any]) -> str:
    mean = totals["group_mean_ape"]
    if mean is None:
        return ""
    parts = ["errors of the time", f"mean over groups {percent(mean)}"]
    for name, key in (("sources", "in_sample"), ("sources left out", "left_out")):
        found = totals["over_sources"][key]
        if found is not None:
            worst = f"{found['worst']} {percent(found['worst_median_ape'])}"
            parts.append(f"mean over {name} {percent(found['mean_of_medians'])}, worst {worst}")
    return "; ".join(parts)


def _grid(totals: Mapping[str, Any]) -> Any:
    left_out = _LEFT_OUT if totals["left_out"] else ()
    return grid("<", "rows", "eligible", "projected", *_ERRORS, *left_out)


_ERRORS = ("median / p90", "ratio", "in bands")
"""Errors, and the share of rows that lie in their bands for 68 and 90 %."""

_LEFT_OUT = ("left out", "ratio", "in bands")
"""The same with constants and bands that have not seen the source of a row."""


def _add(table: Any, name: str, totals: Mapping[str, Any]) -> None:
    blank = [""] * (len(table.columns) - 4 - len(_ERRORS))
    add_row(
        table,
        name,
        f"{totals['total_rows']:,}",
        f"{totals['rows']:,}",
        f"{totals['projected']:,}",
        *_errors(totals),
        *(_errors(totals["left_out"]) if totals["left_out"] else blank),
    )


def _errors(totals: Mapping[str, Any]) -> list[str]:
    ratio = totals["geomean_ratio"]
    return [
        _pair(totals["median_ape"], totals["p90_ape"], 1),
        "-" if ratio is None else f"{ratio:.3f}",
        _pair(totals["coverage_68"], totals["coverage_90"], 0),
    ]


def _pair(first: float | None, second: float | None, digits: int) -> str:
    """Return two shares as percent."""
    if first is None or second is None:
        return "-"
    return f"{100.0 * first:.{digits}f} / {100.0 * second:.{digits}f} %"


def _counted(title: str, counts: Mapping[str, int]) -> list[RenderableType]:
    if not counts:
        return []
    table = grid("rows", "<why")
    for why, number in list(counts.items())[:LONGEST]:
        add_row(table, f"{number:,}", why)
    rest = len(counts) - LONGEST
    return section(title, f"{rest} more reasons in --json" if rest > 0 else "", table)


def _failed(validation: Validation, counts: Mapping[str, int]) -> list[RenderableType]:
    """Return why rows could not be projected, and the first line of each kind of mistake."""
    first: dict[str, int] = {}
    for result in validation.results:
        if result.eligible and not result.projected:
            first.setdefault(result.status, result.line)
    return _counted(
        "Eligible, not projected", {f"line {first[why]}: {why}": n for why, n in counts.items()}
    )


def _worst(validation: Validation) -> list[RenderableType]:
    projected = [result for result in validation.results if result.projected]
    if not projected:
        return [heading("No row could be projected"), Text()]
    projected.sort(key=_badness, reverse=True)
    table = grid("line", "<model", "<device", "<precision", "predicted", "measured", "ratio")
    table.add_column("note", style=DIM, overflow="fold")
    for result in projected[:WORST]:
        outcome = result.outcome
        note = "; ".join(filter(None, [result.doubt and f"doubt: {result.doubt}", outcome.note]))
        table.add_row(
            str(result.line),
            result.model,
            result.device,
            result.precision,
            _number(outcome.predicted),
            _number(outcome.measured),
            f"{outcome.ratio:.3f}",
            note,
        )
    return section("Worst rows", "", table)


def _badness(result: Result) -> float:
    return result.ape or 0.0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
