"""A whole training run, in the few lines that a report of a step has for it."""

from rich.console import RenderableType
from rich.text import Text

from projector.planning.question import number
from projector.projection.run import RunProjection
from projector.report.terminal.lines import Entries, entries
from projector.report.terminal.tables import DIM, percent
from projector.units import HOUR

_MINUTE = 60.0

_WORDS = {
    "compute": "steps",
    "warm_up": "warm-up",
    "lost_work": "lost work",
    "restart": "restarts",
    "spares": "waiting for spares",
    "checkpoint": "checkpoints",
}
"""Terms whose name is no word."""


def run_lines(run: RunProjection | None) -> list[RenderableType]:
    """Return days, GPU-hours and what takes them; nothing for a job without tokens."""
    if run is None:
        return []
    return [Text(), headline(run), terms(run)]


def headline(run: RunProjection) -> Entries:
    """Return the numbers that people ask for first."""
    parts = [
        f"{number(run.tokens)} tokens in {run.days:,.3g} days{_band(run)}",
        f"{run.gpu_hours:,.0f} GPU-hours",
        f"goodput {percent(run.goodput)}",
    ]
    if run.energy_mwh is not None:
        parts.append(f"{_rounded(run.energy_mwh, 3)} MWh")
    if run.cost_usd is not None:
        parts.append(f"${run.cost_usd:,.0f}")
    return entries(parts, "bold")


def _band(run: RunProjection) -> str:
    if run.days_low is None:
        return ""
    if run.days_high is None:
        return f" ({run.days_low:,.3g} or more)"
    return f" ({run.days_low:,.3g} to {run.days_high:,.3g})"


def terms(run: RunProjection) -> Text:
    """Return the days of each term, and what interrupts the run."""
    shown = [
        f"{_WORDS.get(name, name)} {days:,.3g}"
        for name, days in run.terms_days.items()
        if days > 0.0
    ]
    text = f"days: {', '.join(shown)}"
    if run.failures > 0.0:
        text += f"; {_rounded(run.failures, 2)} failures"
    if run.checkpoint_interval_s is not None:
        text += f"; a checkpoint every {duration(run.checkpoint_interval_s)}"
    return Text(text, style=DIM)


def _rounded(value: float, digits: int) -> str:
    """Write a number with a few digits that count, and without an exponent."""
    return f"{float(f'{value:.{digits}g}'):,.15g}"


def duration(seconds: float) -> str:
    """Return a time as people say it: seconds, minutes or hours."""
    if seconds >= 2.0 * HOUR:
        return f"{seconds / HOUR:,.1f} hours"
    if seconds >= 2.0 * _MINUTE:
        return f"{seconds / _MINUTE:.3g} minutes"
    return f"{seconds:,.0f} s"
