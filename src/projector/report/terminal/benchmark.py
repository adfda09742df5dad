"""Measured operations as a table: time and spread, rate, and the model beside them."""

from collections import Counter

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.measure.bench.rows import Measured
from projector.report.terminal.tables import add_row, grid, percent, section
from projector.units import GB, KIB, MICROSECOND, TERA
from projector.validate.beside import Benchmark, Modelled, number_of, shape_of

MANY = 200
"""Rows that a table shows of a longer list."""

LONGEST = 300
"""Characters of a message about cases without a time."""

_SHAPES = {
    "gemm": ("=type", "M", "N", "K", "batch"),
    "attention": ("=type", "=pass", "batch", "heads", "kv", "length", "d", "d_v"),
    "collective": ("=operation", "ranks", "bytes"),
    "memory": ("bytes",),
}
_RATES = {
    "gemm": ("TFLOP/s", TERA),
    "attention": ("TFLOP/s", TERA),
    "collective": ("bus GB/s", GB),
    "memory": ("GB/s", GB),
}
_TITLES = {
    "gemm": "GEMMs",
    "attention": "Attention",
    "collective": "Collectives",
    "memory": "Copies within memory",
    "clock": "Clock under load",
}


def benchmark_report(benchmark: Benchmark) -> list[RenderableType]:
    """Return the table of a list, and the errors of the model over it."""
    where = benchmark.machine.environment
    at = benchmark.machine.clock
    note = f"{where.device}, torch {where.torch}, {at}"
    if benchmark.device:
        note += f"; modelled as {benchmark.device}"
    table = _clock_table(benchmark) if benchmark.kind == "clock" else _table(benchmark)
    rest = len(benchmark.measured) - MANY
    if rest > 0:
        note += f"; {rest:,} more rows in --json"
    parts = section(_TITLES[benchmark.kind], note, table)
    lines = _lines(benchmark)
    if lines:
        parts.append(Padding(Text("\n".join(lines)), (0, 0, 1, 2)))
    return parts


def _table(benchmark: Benchmark) -> RenderableType:
    unit, scale = _RATES[benchmark.kind]
    columns = [*_SHAPES[benchmark.kind], "us", "spread", unit]
    clocked = any(each.spread.clock_mhz for each in benchmark.measured)
    columns += ["MHz"] if clocked else []
    columns += ["model us", "ratio"] if benchmark.modelled else []
    noted = any(_words(benchmark, row) for row in range(len(benchmark.measured)))
    table = grid(*columns, *(["<"] if noted else []))
    for row, each in enumerate(benchmark.measured[:MANY]):
        cells = [*_shape(each), *_times(each, scale)]
        if clocked:
            cells.append(f"{each.spread.clock_mhz:,.0f}" if each.spread.clock_mhz else "")
        if benchmark.modelled:
            there, ratio = benchmark.modelled[row], benchmark.ratio(row)
            cells.append(_us(there.time_s))
            cells.append("" if ratio is None else f"{ratio:.2f}")
        if noted:
            cells.append(_words(benchmark, row))
        add_row(table, *cells)
    return table


def _shape(each: Measured) -> list[str]:
    shape = shape_of(each.case)
    if each.case.kind == "gemm":
        grouped = " grouped" if shape["grouped"] else ""
        extents = [f"{shape[name]:,}" for name in ("m", "n", "k")]
        return [shape["dtype"], *extents, f"{shape['batch']:,}{grouped}"]
    if each.case.kind == "attention":
        names = ("batch", "heads", "kv_heads", "seq", "head_dim", "v_head_dim")
        return [shape["dtype"], shape["pass"], *(f"{shape[name]:,}" for name in names)]
    if each.case.kind == "collective":
        return [shape["operation"], f"{shape['ranks']}", _bytes(shape["bytes"])]
    return [_bytes(shape["bytes"])]


def _times(each: Measured, scale: float) -> list[str]:
    rate = each.rate
    return [
        _us(each.time_s),
        _spread(each),
        "" if rate is None else _significant(rate / scale),
    ]


def _spread(each: Measured) -> str:
    """Return half of what lies between the quartiles, as a share of the median."""
    low, high = each.spread.low_s, each.spread.high_s
    if low is None or high is None or not each.time_s:
        return ""
    return f"±{percent((high - low) / 2.0 / each.time_s)}"


def _words(benchmark: Benchmark, row: int) -> str:
    each = benchmark.measured[row]
    if each.status != "ok":
        return each.status.replace("_", " ")
    words = [] if each.spread.settled else ["not settled"]
    if each.case.asked:
        asked = each.case.asked
        words.append(f"padded from {asked['m']} x {asked['n']} x {asked['k']}")
    if benchmark.modelled and benchmark.modelled[row].why_not:
        words.append(f"not modelled: {benchmark.modelled[row].why_not}")
    return "; ".join(words)


def _clock_table(benchmark: Benchmark) -> RenderableType:
    columns = ["=type", "seconds", "MHz", "W", "TFLOP/s"]
    columns += ["model MHz", "model TFLOP/s"] if benchmark.modelled else []
    table = grid(*columns, "<")
    for row, each in enumerate(benchmark.measured):
        shape, rate = shape_of(each.case), each.rate
        cells = [shape["dtype"], f"{shape['seconds']:g}"]
        cells += [_plain(number_of(each.row, name)) for name in ("clock_mhz", "power_w")]
        cells.append("" if rate is None else _significant(rate / TERA))
        if benchmark.modelled:
            cells += _modelled_clock(benchmark.modelled[row])
        add_row(table, *cells, _words(benchmark, row))
    return table


def _modelled_clock(there: Modelled) -> list[str]:
    rate = there.flop_per_s
    return [_plain(there.clock_mhz), "" if rate is None else _significant(rate / TERA)]


def _lines(benchmark: Benchmark) -> list[str]:
    lines = []
    whys = Counter((each.status, each.message) for each in benchmark.measured)
    for (status, message), count in whys.items():
        if status != "ok":
            line = f"{count} {status.replace('_', ' ')}: {message}"
            lines.append(line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…")
    missing = benchmark.asked - len(benchmark.measured)
    if missing > 0:
        lines.append(f"not measured yet: {missing} of {benchmark.asked}")
    totals = benchmark.totals
    if totals is not None:
        lines.append(
            f"modelled over measured: {totals.geomean_ratio:.2f} in the mean of {totals.rows}; "
            f"error {percent(totals.median_ape)} median, {percent(totals.p90_ape)} 90th percentile"
        )
    return lines


def _us(seconds: float | None) -> str:
    return "" if seconds is None else _significant(seconds / MICROSECOND)


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _significant(value: float) -> str:
    """Write a number in about four digits."""
    if value >= 100.0:
        return f"{value:,.1f}" if value < 10_000.0 else f"{value:,.0f}"
    return f"{value:.2f}" if value >= 10.0 else f"{value:.3f}"


def _bytes(value: float) -> str:
    """Write bytes in the largest binary unit that leaves a whole number."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        size = float(KIB**power)
        if value >= size and value % size == 0.0:
            return f"{value / size:,.0f} {unit}"
    return f"{value:,.0f} B"
