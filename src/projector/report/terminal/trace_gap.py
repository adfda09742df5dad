"""The gap between theory and measurement."""

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.report.terminal.tables import add_row, grid, section
from projector.report.terminal.trace import ms, short
from projector.trace.measures.gap import FACTORS, REST
from projector.validate.traces.api import GapResult

SMALL_NS = 10_000
"""Times below this have too few digits as milliseconds."""

MANY = 20
"""Operations that a terminal shows."""


_SHORT = {"instruction": "instr.", "utilisation": "utilis.", "frequency": "freq."}
"""Names of factors above their columns."""


def _theory(time_ns: float) -> str:
    """Format milliseconds; small ones keep two digits, as they are divided by."""
    return ms(time_ns) if time_ns >= SMALL_NS else f"{time_ns / 1e6:.2g}"


def gap_report(found: GapResult) -> list[RenderableType]:
    """Return the report of `projector trace gap`."""
    columns = (*FACTORS, REST)
    short_names = [_SHORT.get(name, name) for name in columns]
    table = grid("=operation", "=phase", "theory ms", "actual ms", "ratio", *short_names)
    for each in found.operations[:MANY]:
        theory = _theory(each.theory_ns) if each.theory_ns else ""
        ratio = f"{each.ratio:.2f}" if each.ratio else ""
        cells = [f"{each.factors[name]:.2f}" if name in each.factors else "" for name in columns]
        add_row(table, short(each.operation, 30), each.phase, theory, ms(each.actual_ns), ratio,
                *cells)  # fmt: skip
    note = "mean of the steps; theory times all factors is the actual time"
    if found.device:
        note += f"; peaks of {found.device}"
    if len(found.operations) > MANY:
        note += f"; {len(found.operations) - MANY} more in --json"
    missing = dict.fromkeys(text for each in found.operations for text in each.missing)
    lines: list[RenderableType] = section("Gap", note, table)
    if missing:
        text = f"not known, and so part of the rest: {'; '.join(missing)}"
        lines.append(Padding(Text(text, style="dim"), (0, 0, 1, 2)))
    return lines
