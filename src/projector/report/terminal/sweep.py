"""Summary of a sweep, and an estimate from a sample."""

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from projector.projection.bands import COVERED, WORDS
from projector.report.terminal.lines import Pasted
from projector.report.terminal.tables import add_row, grid, heading, percent, plain, section
from projector.sweeps.engine import Estimate
from projector.sweeps.result import SweepResult

BEST = 5
"""Rows that the report lists."""

LONGEST = 10
"""Reasons that the report lists."""

MOST_AXES = 7
"""Axes that fit beside the results; more are written one below the other."""


def sweep_report(result: SweepResult, fields: Sequence[str]) -> list[RenderableType]:
    """Return counts, reasons and the best rows."""
    left_out = sum(result.infeasible.values())
    table = grid("<", "points")
    add_row(table, "fit", f"{result.fit:,}")
    add_row(table, "at risk", f"{result.at_risk:,}")
    add_row(table, "do not fit", f"{result.does_not_fit:,}")
    if result.not_best:
        add_row(table, "not the best", f"{result.not_best:,}")
    add_row(table, "left out", f"{left_out:,}")
    add_row(table, "together", f"{result.evaluated:,}")
    rate = result.rate_per_s
    note = f"{result.rows:,} rows"
    if rate is not None:
        note += f", {result.seconds:,.1f} s, {rate:,.0f} rows/s"
    elif result.output is not None:
        note += ", complete before"
    parts = section("Sweep", note, table)
    parts += _reasons("Left out", result.infeasible)
    parts += _best(result, fields)
    if result.output is not None:
        parts += [Pasted(f"Rows: {result.output}", indent=0), Text()]
    return parts


def estimate_report(estimate: Estimate, fields: Sequence[str]) -> list[RenderableType]:
    """Return the size of a space and the estimate from a sample."""
    table = grid("<", "<")
    add_row(table, "points", f"{estimate.points:,}")
    add_row(table, "axes", ", ".join(fields))
    counts = (("legal", estimate.legal), ("fit", estimate.fit), ("at risk", estimate.at_risk))
    for name, number in counts:
        share = number / estimate.sampled if estimate.sampled else 0.0
        text = f"{number:,} of {estimate.sampled:,} looked at ({percent(share)})"
        if estimate.sampled < estimate.points:
            text += f", about {share * estimate.points:,.0f} of all"
        add_row(table, name, text)
    add_row(table, "time", f"about {_duration(estimate.seconds)}")
    return section("Dry run", "nothing written", table) + _reasons("Left out", estimate.infeasible)


def _reasons(title: str, counts: Mapping[str, int]) -> list[RenderableType]:
    if not counts:
        return []
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    table = grid("points", "<why")
    for why, number in ranked[:LONGEST]:
        add_row(table, f"{number:,}", why)
    rest = len(ranked) - LONGEST
    return section(title, f"{rest} more reasons in --json" if rest > 0 else "", table)


def nothing_ranked(result: SweepResult) -> str:
    """Say why no row is ranked, and what would rank some."""
    if not result.rows:
        return "No point of the space is a legal job"
    if not result.at_risk:
        return "No row fits"
    rows = "1 row is" if result.at_risk == 1 else f"{result.at_risk:,} rows are"
    return f"No row fits with the band of its memory; {rows} at risk, which --allow-risk ranks"


def _best(result: SweepResult, fields: Sequence[str]) -> list[RenderableType]:
    rows = result.best(BEST)
    if not rows:
        return [heading(nothing_ranked(result)), Text()]
    numbers = ("tokens/s/GPU", "step ms", "peak GiB", "to GiB")
    verdict = ["=verdict"] if result.allow_risk else []
    if len(fields) <= MOST_AXES:
        table = grid(*numbers, *verdict, *(f"<{field.rsplit('.', 1)[-1]}" for field in fields))
    else:
        table = grid(*numbers, *verdict, "<axes")
    for row in rows:
        shown = [plain(row[field]) for field in fields]
        if len(fields) > MOST_AXES:
            pairs = zip(fields, shown, strict=True)
            shown = [", ".join(f"{field.rsplit('.', 1)[-1]}={text}" for field, text in pairs)]
        add_row(
            table,
            f"{row['tokens_per_s_per_gpu']:,.0f}",
            f"{row['iteration_time_ms']:,.1f}",
            *(f"{row[name]:,.1f}" for name in ("peak_gib", "peak_gib_high")),
            *([WORDS[row["verdict"]]] if verdict else []),
            *shown,
        )
    note = f"by tokens/s/GPU; to GiB: where the {COVERED} % band of the peak ends"
    return section("Best, those at risk too" if verdict else "Best that fit", note, table)


def _duration(seconds: float) -> str:
    for length, unit in ((86_400.0 * 365.25, "years"), (86_400.0, "days"), (3600.0, "hours")):
        if seconds >= 2.0 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds / 60.0:,.1f} minutes" if seconds >= 120.0 else f"{seconds:,.1f} s"
