"""The scoreboard of one measurement table."""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from projector.report.terminal.tables import DIM, add_row, grid, heading, percent, section
from projector.validate.run import Result, Validation

WORST = 10
"""Rows that the report lists by error."""

LONGEST = 14
"""Groups of one kind that the report lists; of those that the user names, all."""

_SHOWN = {
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
    table = _grid()
    _add(table, "all rows", totals)
    for key, name in _PARTS.items():
        if key in totals:
            _add(table, name, totals[key])
    parts += section(f"{validation.kind}: {validation.path}", _note(totals), table)
    for key, title in _SHOWN.items():
        groups = {name: group for name, group in totals["groups"][key].items() if group["rows"]}
        if not groups or (len(groups) == 1 and key == "mark"):
            continue
        table = _grid()
        shown = len(groups) if key == "by" else LONGEST
        for name, group in list(groups.items())[:shown]:
            _add(table, name, group)
        rest = len(groups) - shown
        parts += section(title, f"{rest} more in --json" if rest > 0 else "", table)
    parts += _counted("Not eligible", totals["not_eligible"])
    parts += _failed(validation, totals["failures"])
    return parts + _worst(validation)


def _note(totals: Mapping[str, Any]) -> str:
    mean = totals["group_mean_ape"]
    groups = "" if mean is None else f", mean over groups {percent(mean)}"
    return f"errors of the time{groups}" if groups else ""


def _grid() -> Any:
    return grid("<", "rows", "eligible", "projected", "median", "p90", "mean", "ratio")


def _add(table: Any, name: str, totals: Mapping[str, Any]) -> None:
    add_row(
        table,
        name,
        f"{totals['total_rows']:,}",
        f"{totals['rows']:,}",
        f"{totals['projected']:,}",
        *(_share(totals[key]) for key in ("median_ape", "p90_ape", "mean_ape")),
        "-" if totals["geomean_ratio"] is None else f"{totals['geomean_ratio']:.3f}",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


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
