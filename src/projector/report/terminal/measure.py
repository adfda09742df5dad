"""Reports of `record`, `probe`, `calibrate` and `benchmark`: what was measured, and where."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from projector.calibrate.probed import Probed
from projector.calibrate.profile import Calibration, Change, Fitted, OwnCalibration
from projector.config.resources import hardware_table
from projector.measure.bench.rows import Measured
from projector.measure.probe import threads_of
from projector.measure.tables import Tables
from projector.report.terminal.grid import DIM, Grid, below, listing, percent, section
from projector.units import KIB, MICROSECOND, TERA
from projector.validate.beside import Benchmark, number_of, shape_of

_STATUSES: Mapping[str, str] = hardware_table("report_words.yaml")["statuses"]
_TIMES = ("forward", "backward", "optimizer", "total", "time")


def record_report(summary: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report on one record, as `projector.measure.record.summary_of` sums it up."""
    return [*_title(summary), *_layers(summary), *_longest(summary)]


def _title(summary: Mapping[str, Any]) -> list[RenderableType]:
    where = summary["environment"]
    ranks = where["ranks"]
    line = Text("Record", style="bold")
    line.append(f"  {summary['model']} {summary['precision']} on ", style="not bold")
    line.append(f"{ranks} x {where['device']}" if ranks > 1 else where["device"])
    runtime = {"cuda": "CUDA", "rocm": "ROCm"}.get(where["backend"], "")
    found = {
        "torch": where["torch"],
        runtime: where["runtime"],
        "driver": where["driver"],
        **where["libraries"],
    }
    versions = ", ".join(f"{name} {text}" for name, text in found.items() if name and text)
    lines = [f"profile {summary['device']}; {versions}", *summary["reduction"]]
    return [line, *below(*lines)]


def _layers(summary: Mapping[str, Any]) -> list[RenderableType]:
    rows = [(each["layer"], each) for each in summary["layers"]]
    if summary["step"] is not None:
        rows.append(("step of one layer each", summary["step"]))
    rows += [(f"clock under {each['dtype']}", each) for each in summary["clocks"]]
    table = Grid("=layer", "=part", "ms", "spread", "MHz", "W", "peak GiB", "<by")
    for name, outcome in rows:
        times = [(part, outcome["times"].get(part)) for part in _TIMES]
        known = [(part, timing) for part, timing in times if timing is not None]
        for position, (part, timing) in enumerate(known or [("", None)]):
            first = position == 0
            cells = _cells(timing, outcome["numbers"] if first else {})
            by = outcome["backend"]
            if outcome["status"] != "ok":
                by = ": ".join(filter(None, (_STATUSES[outcome["status"]], outcome["message"])))
            table.add_row(name if first else "", part, *cells, by if first else "")
    return listing("Layers", "median ± half of the distance between the quartiles", table)


def _cells(timing: Mapping[str, Any] | None, numbers: Mapping[str, Any]) -> list[str]:
    peak = numbers.get("peak_allocated_gib")
    clock_mhz, power_w = numbers.get("clock_mhz"), numbers.get("power_w")
    median = spread = ""
    if timing is not None:
        clock_mhz, power_w = timing["clock_mhz"] or clock_mhz, timing["power_w"] or power_w
        median = f"{timing['median_ms']:,.4g}"
        if timing["median_ms"]:
            half_ms = (timing["high_ms"] - timing["low_ms"]) / 2.0
            spread = f"±{percent(half_ms / timing['median_ms'])}"
    return [
        median,
        spread,
        _plain(clock_mhz),
        _plain(power_w),
        "" if peak is None else f"{peak:,.4g}",
    ]


def _longest(summary: Mapping[str, Any]) -> list[RenderableType]:
    rows = [
        (each, *_cells(next(iter(each["times"].values()), None), {})[:2])
        for each in summary["longest"]
    ]
    table = Grid.of("longest", rows)
    counted = ", ".join(
        f"{count:,} {_STATUSES[status]}" for status, count in summary["operations"].items()
    )
    note = f"the longest of {counted}"
    if summary["unsettled"]:
        note += f"; {summary['unsettled']:,} timings did not settle"
    return listing("Operations", note, table)


def tables_report(tables: Tables) -> list[RenderableType]:
    """Return how many rows each table has, and what has no table."""
    rows = [(name, len(found.rows)) for name, found in tables.tables.items()]
    table = Grid.of("measurement_tables", rows)
    left_out = "; ".join(f"{count:,} {why}" for why, count in tables.left_out.items())
    return [
        *section("Measurement tables", "for projector validate and calibrate", table),
        *below(left_out and f"In no table: {left_out}"),
    ]


# Report of a probe.
WORST = 8
"""Times that are shown because they differ most."""


def probe_report(probed: Probed) -> list[RenderableType]:
    """Return what was fitted, how well it holds, and where it holds least."""
    environment = probed.probe.environment
    fields = Grid.of("probed_fields", probed.fields, error=partial(_error, none="at a bound"))
    times = Grid.of("probed_errors", probed.errors().items())
    rows = sorted(probed.rows, key=lambda row: max(row.ratio, 1.0 / row.ratio))
    worst = Grid.of(
        "probed_times", rows[: -WORST - 1 : -1], us=lambda time_s: f"{1e6 * time_s:,.1f}"
    )
    note = f"{environment.backend}{threads_of(environment)}, torch {environment.torch}"
    return [
        *section(environment.device, note, fields),
        *section("How well it holds", "of what was measured for the fit", times),
        *section("Where it holds least", "", worst),
    ]


def _error(field: Any, none: str = "-") -> str:
    return none if field.standard_error is None else f"{field.standard_error:.2g}"


# Report of a calibration.
def report_of(calibration: Calibration | OwnCalibration) -> list[RenderableType]:
    """Return the report of either kind of calibration."""
    if isinstance(calibration, OwnCalibration):
        return own_report(calibration)
    return calibration_report(calibration)


def own_report(calibration: OwnCalibration) -> list[RenderableType]:
    """Return how far each constant moved, and the runs before and after."""
    fields = Grid.of(
        "own_fields",
        calibration.fields,
        style=lambda field: None if field.seen else DIM,
        moved=lambda field: f"{field.shift:+.2f}" if field.seen else "-",
        still_open=lambda field: (
            f"{100.0 * field.width_left:.0f} %" if field.seen else "no run depends on it"
        ),
    )
    runs = Grid.of(
        "own_runs",
        calibration.runs,
        ms=lambda time_s: f"{1e3 * time_s:,.1f}",
        off_before=lambda run: f"{100.0 * (run.before_s / run.measured_s - 1.0):+.1f}",
        off_after=lambda run: f"{100.0 * (run.after_s / run.measured_s - 1.0):+.1f}",
    )
    note = "moved in widths of the prior; share of the prior's width that the runs leave open"
    return [
        *section(f"{calibration.base.device}: own runs", note, fields),
        *section("Time of one step", "projected before and after", runs),
    ]


def calibration_report(calibration: Calibration) -> list[RenderableType]:
    """Return the fitted fields, and the errors before and after."""
    fitted = calibration.fitted
    fields = Grid.of("fitted_fields", calibration.fields, error=_error, folds=_folds, where=_where)
    changes: dict[str, Change | None] = {"fitted": fitted}
    changes |= {f"fold {i}, fitted without it": fold for i, fold in enumerate(calibration.folds, 1)}
    changes |= {"all folds": calibration.cross_validation, "put aside": calibration.holdout}
    known = [(name, change) for name, change in changes.items() if change is not None]
    note = f"{fitted.rows:,} rows of {fitted.groups:,} groups of {calibration.table}"
    return [
        *section(f"{calibration.base.device}: {calibration.kind}", note, fields),
        *section("Errors of the time", "shipped, then fitted", Grid.of("fitted_errors", known)),
        *listing("Left out", "", Grid.of("counted", calibration.left_out.items())),
    ]


def _where(field: Fitted) -> str:
    if not field.seen:
        return "not seen"
    return f"at its {field.bound} bound" if field.bound else ""


def _folds(field: Fitted) -> str:
    if field.fold_least is None or field.fold_most is None:
        return ""
    return f"{field.fold_least:g} to {field.fold_most:g}"


# Measured operations as a table: time and spread, rate, and the model beside them.
MANY = 200
"""Rows that a table shows of a longer list."""

LONGEST = 300
"""Characters of a message about cases without a time."""

_KINDS: Mapping[str, Mapping[str, Any]] = hardware_table("report_words.yaml")["bench_kinds"]


def benchmark_report(benchmark: Benchmark) -> list[RenderableType]:
    """Return the table of a list, and the errors of the model over it."""
    where = benchmark.machine.environment
    note = f"{where.device}, torch {where.torch}, {benchmark.machine.clock}"
    if benchmark.device:
        note += f"; modelled as {benchmark.device}"
    table = _clock_table(benchmark) if benchmark.kind == "clock" else _table(benchmark)
    rest = len(benchmark.measured) - MANY
    if rest > 0:
        note += f"; {rest:,} more rows in --json"
    kind = _KINDS[benchmark.kind]
    parts = section(kind.get("table", kind["title"]), note, table)
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
            f"modelled over measured: {totals['geomean_ratio']:.2f} in the mean of "
            f"{totals['rows']}; error {percent(totals['median_ape'])} median, "
            f"{percent(totals['p90_ape'])} 90th percentile"
        )
    return [*parts, *below(*lines)]


def _table(benchmark: Benchmark) -> RenderableType:
    kind = _KINDS[benchmark.kind]
    columns = [*kind["columns"], "us", "spread", kind["short"]]
    clocked = any(each.spread.clock_mhz for each in benchmark.measured)
    columns += ["MHz"] if clocked else []
    columns += ["model us", "ratio"] if benchmark.modelled else []
    noted = any(_words(benchmark, row) for row in range(len(benchmark.measured)))
    table = Grid(*columns, *(["<"] if noted else []))
    for row, each in enumerate(benchmark.measured[:MANY]):
        times = _in(each.time_s, MICROSECOND), _spread(each), _in(each.rate, kind["unit"])
        cells = [*_shape(each), *times]
        if clocked:
            cells.append(f"{each.spread.clock_mhz:,.0f}" if each.spread.clock_mhz else "")
        if benchmark.modelled:
            there, ratio = benchmark.modelled[row], benchmark.ratio(row)
            cells += [_in(there.time_s, MICROSECOND), "" if ratio is None else f"{ratio:.2f}"]
        if noted:
            cells.append(_words(benchmark, row))
        table.add_row(*cells)
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
    table = Grid(*columns, "<")
    for row, each in enumerate(benchmark.measured):
        shape = shape_of(each.case)
        cells = [shape["dtype"], f"{shape['seconds']:g}"]
        cells += [_plain(number_of(each.row, name)) for name in ("clock_mhz", "power_w")]
        cells.append(_in(each.rate, TERA))
        if benchmark.modelled:
            there = benchmark.modelled[row]
            cells += [_plain(there.clock_mhz), _in(there.flop_per_s, TERA)]
        table.add_row(*cells, _words(benchmark, row))
    return table


def _in(value: float | None, unit: float) -> str:
    """Write a number in a unit in about four digits; nothing where it is not known."""
    if value is None:
        return ""
    number = value / unit
    if number >= 100.0:
        return f"{number:,.1f}" if number < 10_000.0 else f"{number:,.0f}"
    return f"{number:.2f}" if number >= 10.0 else f"{number:.3f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _bytes(value: float) -> str:
    """Write bytes in the largest binary unit that leaves a whole number."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        size = float(KIB**power)
        if value >= size and value % size == 0.0:
            return f"{value / size:,.0f} {unit}"
    return f"{value:,.0f} B"
