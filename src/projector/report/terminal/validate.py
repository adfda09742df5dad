"""The scoreboard of one measurement table."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.resources import hardware_table
from projector.projection.bands import WORDS
from projector.report.terminal.grid import DIM, Fitting, Grid, heading, listing, percent, section
from projector.validate.run import Result, Validation

WORST = 10
"""Rows that the report lists by error."""

LONGEST = 14
"""Groups of one kind that the report lists; of those that the user names, all."""

_SHOWN: Mapping[str, str] = hardware_table("report_words.yaml")["validation_groups"]
_PARTS: Mapping[str, str] = hardware_table("report_words.yaml")["validation_parts"]


def validation_report(validation: Validation, totals: Mapping[str, Any]) -> list[RenderableType]:
    """Return totals, groups, failures and the worst rows."""
    parts: list[RenderableType] = []
    shown = {"all rows": totals}
    shown |= {name: totals[key] for key, name in _PARTS.items() if key in totals}
    parts.append(heading(f"{validation.kind}: {validation.path}"))
    parts += [Padding(Text(line, style=DIM), (0, 0, 0, 2)) for line in _notes(totals)]
    parts.append(Padding(_scores(shown), (0, 0, 1, 2)))
    parts += _verdicts(totals)
    for key, title in _SHOWN.items():
        groups = {name: group for name, group in totals["groups"][key].items() if group["rows"]}
        if not groups or (len(groups) == 1 and key == "mark"):
            continue
        most = len(groups) if key == "by" else LONGEST
        rest = len(groups) - most
        table = _scores(dict(list(groups.items())[:most]))
        parts += section(title, f"{rest} more in --json" if rest > 0 else "", table)
    parts += _counted("Not eligible", totals["not_eligible"])
    counts = totals["failures"]
    first: dict[str, int] = {}
    for result in validation.results:
        if result.eligible and not result.projected:
            first.setdefault(result.status, result.line)
    parts += _counted(
        "Eligible, not projected", {f"line {first[why]}: {why}": n for why, n in counts.items()}
    )
    return parts + _worst(validation)


def _verdicts(totals: Mapping[str, Any]) -> list[RenderableType]:
    """Return what the jobs of measured memory are told; all of them ran."""
    if "verdicts" not in totals:
        return []
    table = Grid("<", *WORDS.values(), "close to the limit", "of them fits")
    for key, name in (("in_sample", "in-sample"), ("left_out", "left out")):
        table.add_row(name, *totals["verdicts"][key].values())
    return section("Verdicts", "all these runs ran", table)


def _notes(totals: Mapping[str, Any]) -> list[str]:
    """Return how many rows there are, and means of which every group or source is one part."""
    rows = (totals["total_rows"], totals["rows"], totals["projected"])
    notes = ["{:,} rows, {:,} eligible, {:,} projected".format(*rows)]
    mean = totals["group_mean_ape"]
    if mean is None:
        return notes
    notes.append(f"mean over groups: error {percent(mean)}")
    for name, key in (("sources", "in_sample"), ("sources left out", "left_out")):
        found = totals["over_sources"][key]
        if found is not None:
            worst = f"{found['worst']} {percent(found['worst_median_ape'])}"
            median = percent(found["mean_of_medians"])
            notes.append(f"mean over {name}: median error {median}, worst {worst}")
    return notes


def _scores(groups: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """Return a table of groups, whose layout follows the width of the terminal."""
    # A line for each group, and one below with its sources left out.
    table = Grid("<", "projected", *_ERRORS)
    for name, group in groups.items():
        table.add_row(name, _projected(group), *_errors(group))
        if group["left_out"]:
            table.add_row("  source left out", "", *_errors(group["left_out"]), style=DIM)
    return Fitting(_wide_scores(groups), table)


def _wide_scores(groups: Mapping[str, Mapping[str, Any]]) -> Grid:
    """Return one line for each group, with its sources left out beside."""
    has_left_out = any(group["left_out"] for group in groups.values())
    table = Grid("<", "projected", *_ERRORS, *(_LEFT_OUT if has_left_out else ()))
    blank = [""] * (len(_LEFT_OUT) if has_left_out else 0)
    for name, group in groups.items():
        left_out = _errors(group["left_out"]) if group["left_out"] else blank
        table.add_row(name, _projected(group), *_errors(group), *left_out)
    return table


def _projected(group: Mapping[str, Any]) -> str:
    return f"{group['projected']:,} of {group['rows']:,}"


_ERRORS = ("median / p90", "ratio", "in bands")
"""Errors, and the share of rows that lie in their bands for 68 and 90 %."""

_LEFT_OUT = ("left out", "ratio", "in bands")
"""The same with constants and bands that have not seen the source of a row."""


def _errors(totals: Mapping[str, Any]) -> list[str]:
    ratio = totals["geomean_ratio"]
    return [
        _pair(totals["median_ape"], totals["p90_ape"], 1),
        "-" if ratio is None else f"{ratio:.3f}",
        _pair(totals["coverage_68"], totals["coverage_90"], 0),
    ]


def _pair(first: float | None, second: float | None, digits: int) -> str:
    if first is None or second is None:
        return "-"
    return f"{100.0 * first:.{digits}f} / {100.0 * second:.{digits}f} %"


def _counted(title: str, counts: Mapping[str, int]) -> list[RenderableType]:
    table = Grid.of("counted", list(counts.items())[:LONGEST])
    rest = len(counts) - LONGEST
    return listing(title, f"{rest} more reasons in --json" if rest > 0 else "", table)


def _worst(validation: Validation) -> list[RenderableType]:
    projected = [result for result in validation.results if result.projected]
    if not projected:
        return [heading("No row could be projected"), Text()]
    projected.sort(key=lambda result: result.ape or 0.0, reverse=True)
    worst = projected[:WORST]
    notes = Grid("line", "<note")
    for result in worst:
        if note := _note(result):
            notes.add_row(str(result.line), note, style=DIM)
    below: list[RenderableType] = [Text(), notes] if notes else []
    narrow = Group(_worst_rows(worst, with_notes=False), *below)
    return section("Worst rows", "", Fitting(_worst_rows(worst, with_notes=True), narrow))


def _worst_rows(worst: Sequence[Result], *, with_notes: bool) -> Grid:
    name = "worst_rows" if with_notes else "worst_rows_without_notes"
    return Grid.of(name, worst, number=_number, told=lambda result: Text(_note(result), DIM))


def _note(result: Result) -> str:
    return "; ".join(filter(None, [result.doubt and f"doubt: {result.doubt}", result.outcome.note]))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"
