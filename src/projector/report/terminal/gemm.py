"""Matrix multiplications as tables: times, and the parts of each time."""

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.report.terminal.tables import add_row, bar, grid, heading, section
from projector.single.gemm import GemmReport
from projector.single.gemm_list import GemmList
from projector.units import MICROSECOND, TERA

MANY = 200
"""Rows that a table shows of a longer list."""

_NAMES = {
    "start_s": "start of the kernel",
    "setup_s": "setup",
    "first_load_s": "first load",
    "matrix_s": "matrix pipe",
    "scale_s": "block scales on the vector units",
    "l2_fill_s": "loads into a compute unit",
    "issue_s": "least time of the steps",
    "wait_s": "waits of the steps",
    "epilogue_s": "epilogues that are waited for",
    "epilogues_s": "epilogues, one after another",
    "l2_s": "L2 as a whole",
    "memory_s": "memory",
    "load_s": "loads of a wave",
    "last_load_s": "loads of the last wave",
    "last_epilogue_s": "epilogue of the last wave",
    "loss_s": "overlap that is lost",
    "reduce_s": "reduction of a split K",
}

_FACTORS = {
    "ideal_s": "FLOP at the peak clock",
    "padding": "padding to tiles and clusters",
    "waves": "waves that are not full",
    "frequency": "clock below the peak",
    "utilisation": "everything else",
}


def gemm_report(gemms: GemmList, *, explain: bool) -> list[RenderableType]:
    """Return the table of times, and with ``explain`` every term of each GEMM."""
    case = gemms.case
    title = f"GEMM, {case.dtype}, {case.device.name}"
    note = f"model {case.model}, library {case.library}, run {case.run}, layout {gemms.layout}"
    if gemms.band.words:
        note += f"; times {gemms.band.words} for 68 %"
    table = grid("M", "N", "K", "batch", "us", "TFLOP/s", "=bound", "MHz", "W", "=kernel")
    for row, report in enumerate(gemms.reports[:MANY]):
        add_row(
            table,
            f"{report.m:,}",
            f"{report.n:,}",
            f"{report.k:,}",
            f"{report.batch:,}",
            _us(gemms.total_s(row)),
            f"{gemms.flop_per_s(row) / TERA:,.1f}",
            report.bound,
            f"{report.clock_mhz:,.0f}",
            f"{report.power_w:,.0f}" if report.power_w is not None else "",
            report.kernel,
        )
    rest = len(gemms.reports) - MANY
    if rest > 0:
        note += f"; {rest:,} more rows in --json"
    parts = section(title, note, table)
    if explain:
        for row, report in enumerate(gemms.reports[:MANY]):
            parts += _explained(report, gemms.copy_s[row], gemms.total_s(row))
    return parts


def _explained(report: GemmReport, copy_s: float, total_s: float) -> list[RenderableType]:
    seconds = {name: value for name, value in report.terms.items() if name.endswith("_s")}
    if copy_s:
        seconds["copy_s"] = copy_s
    longest = max(seconds.values(), default=0.0) or 1.0
    terms = grid("=term", "us", "|")
    for name, value in seconds.items():
        add_row(terms, _NAMES.get(name, "transposed copies"), _us(value), bar(value / longest))
    facts = grid("=", "", header=False)
    for name, value in report.terms.items():
        if not name.endswith("_s"):
            add_row(facts, name.replace("_", " "), f"{value:,.0f}")
    factors = grid("=made of", "")
    for name, value in report.factors.items():
        text = f"{_us(value)} us" if name == "ideal_s" else f"x {value:.3f}"
        add_row(factors, _FACTORS[name], text)
    if copy_s:
        add_row(factors, "transposed copies", f"+ {_us(copy_s)} us")
    size = f"{report.m:,} x {report.n:,} x {report.k:,}"
    limit = f"{_us(total_s)} us, bound by {report.bound}"
    words = [Padding(Text(each), (0, 0, 1, 2)) for each in report.explanation]
    return [
        heading(size, limit),
        *words,
        *section("Terms", "side by side or one after another", terms),
        *section("Counts", "", facts),
        *section("Time", "the product of", factors),
    ]


def _us(seconds: float) -> str:
    value = seconds / MICROSECOND
    return f"{value:,.1f}" if value >= 100.0 else f"{value:,.3f}"
