"""Reports of `projector trace`: summary, operations, launch, overlap, gap, comparison."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from projector.config.resources import hardware_table
from projector.report.terminal.grid import DIM, Fitting, Grid, below, listing, percent, section
from projector.trace.counter_join import FUNCTION, spelled
from projector.units import NANOSECOND

if TYPE_CHECKING:
    from projector.projection.comparison import Pair
    from projector.validate.traces.api import GapResult
    from projector.validate.traces.result import Factor, TraceComparison, Unmatched

_CALL = re.compile(r"\w+\(")
"""A function with its arguments; ``Memcpy HtoD (Host -> Device)`` is none."""

_PURPOSE = re.compile(
    r"\b(\w+?)(?:_kernel_cuda|_cuda_kernel|_kernel_impl)\b|\b(\w*Functor\w*|\w+_functor|\w+Ops)\b"
)
"""How templates of PyTorch name the function that they wrap."""


def ms(time_ns: float) -> str:
    """Format nanoseconds as milliseconds, with fewer decimals where there are more digits."""
    value = time_ns / 1e6
    decimals = next((n for least, n in ((1000, 1), (10, 2)) if abs(value) >= least), 3)
    return f"{value:,.{decimals}f}"


def short(name: str) -> str:
    """Return a name as a table shows it, folded where it is long and never cut.

    Of a C++ function, also a mangled one, it is the last part of its name and what its template is
    for, as in ``elementwise_kernel<direct_copy>``; everything else stays whole.
    """
    if "::" in name and ("<" in name or "(" in name):
        plain = name.replace("(anonymous namespace)::", "")
        head = re.findall(r"\w+", _outside_templates(plain).split("(")[0])[-1:]
        found = (first or second for first, second in _PURPOSE.findall(plain))
        inside = next((word for word in found if word != "gpu"), "")
        name = f"{head[0]}<{inside}>" if head and inside else (head or [name])[0]
    elif name.startswith("_Z"):
        name = spelled(name, FUNCTION)
    elif _CALL.match(name):
        name = name.split("(")[0]
    return name.removeprefix("torch::autograd::")


def _outside_templates(text: str) -> str:
    depth, kept = 0, []
    for char in text:
        depth += char == "<"
        if not depth:
            kept.append(char)
        depth -= char == ">" and depth > 0
    return "".join(kept) or text


def us(time_ns: float | None) -> str:
    """Format nanoseconds as microseconds; nothing where they are not known."""
    if time_ns is None:
        return ""
    value = time_ns / 1e3
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:,.3g}"


def share(part: float, whole: float) -> str:
    """Format a share as percent; nothing where there is no whole."""
    return percent(part / whole) if whole else ""


def title(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return what was read: ranks, devices, events, iterations, clocks."""
    files = shown["files"]
    events = sum(each["events"] for each in files)
    line = Text("Trace", style="bold")
    ranks = f"{len(files)} ranks" if len(files) > 1 else f"rank {files[0]['rank']}"
    devices = sorted({name for each in files for name in each["devices"]})
    where = f" on {', '.join(devices)}" if devices else ""
    line.append(f"  {ranks}{where}: {events:,} events", style="not bold")
    numbers = shown["iterations"]
    told = "no iterations" if not numbers else f"iterations {runs_of(numbers)}"
    if shown["frameworks"]:
        told += f"; {', '.join(name.upper() for name in shown['frameworks'])}"
    aligned = [each for each in shown["clocks"] if each["collectives"]]
    if aligned:
        apart = max(each["spread_ns"] for each in aligned)
        told += f"\nclocks aligned on collectives, which end within {us(apart)} us of each other"
    return [line, *below(told)]


def runs_of(numbers: list[int]) -> str:
    """Write 3, 4, 5, 8 as 3-5, 8."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


# Operations of traces as tables: durations, launch overhead, overlap.
MANY = 30
"""Rows that a terminal shows."""

OUTSIDE = "(no operation)"
"""What stands for an empty name."""

WIDE = 10.0
"""Spreads beyond this share of the median have no digits."""

ROOM_OF_KERNELS = 40
"""Characters of names of kernels, for which columns are dropped: some have hundreds."""

_FOLDED = ("operation", "kernel", "group")
"""Names that may be long."""

_TYPES = {"communication": "comm.", "collective": "comm."}


Rows = Sequence[Mapping[str, Any]]


class _Column(NamedTuple):
    head: str
    cell: Callable[[Mapping[str, Any]], str]
    kept: bool = True
    """Whether it also stands in a narrow terminal."""


def operations_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace operations`."""
    rows = shown["operations"]
    rate = _Column("TFLOP/s", lambda row: _known(row["tflop_per_s"], ",.3g"))
    columns = (
        _Column("count", _count, kept=False),
        _Column("share", lambda row: percent(row["share"])),
        _Column("ms", _median_of("duration_ns")),
        _Column("spread", lambda row: _spread(row["duration_ns"]), kept=False),
        *([rate] if any(row["tflop_per_s"] is not None for row in rows[:MANY]) else []),
        _Column("launch", _median_of("launch_ns")),
        _Column("overlap", lambda row: _percent(row["overlap"])),
    )
    note = f"ms of one iteration of one rank: median, spread of the quartiles{_more(rows)}"
    return section(f"By {shown['by'][0]}", note, _fitting(rows, shown["by"], columns))


def launch_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace launch`."""
    ranks = Grid.of(
        "launch_ranks", shown["ranks"][:MANY], ms=ms,
        share=lambda row: share(row["launch_ns"]["median"], row["duration_ns"]["median"]),
    )  # fmt: skip
    rows = shown["operations"]
    columns = (
        _Column("count", _count, kept=False),
        _Column("launch ms", _median_of("launch_ns")),
        _Column("spread", lambda row: _spread(row["launch_ns"]), kept=False),
        _Column("preparation", _median_of("preparation_ns")),
        _Column("call", _median_of("call_ns")),
    )
    note = "ms of one iteration, median"
    table = _fitting(rows, shown["by"], columns)
    each = section(f"By {shown['by'][0]}", f"{note}{_more(rows)}", table)
    return [*section("Launch overhead", note, ranks), *each]


def overlap_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace overlap`."""
    rows = shown["operations"]
    columns = (
        _Column("compared", lambda row: f"{row['instances']:,}"),
        _Column("us", lambda row: us(row["duration_ns"]["median"])),
        _Column("overlap", lambda row: _percent(row["overlap"] and row["overlap"]["median"])),
        _Column("25-75 %", _quartiles, kept=False),
        _Column("correlation", lambda row: _known(row["correlation"], "+.2f"), kept=False),
        _Column("D50/D0", lambda row: _known(row["ratio"], ".3f")),
    )
    note = "share of an operation during which communication runs" + _more(rows)
    return section("Overlap", note, _fitting(rows, ("operation", "phase", "recompute"), columns))


def _fitting(rows: Rows, by: Sequence[str], columns: Sequence[_Column]) -> Fitting:
    """Return a table that drops columns where there is no room."""
    kept = [column for column in columns if column.kept]
    return Fitting(_table(rows, by, columns), _table(rows, by, kept))


def _table(rows: Rows, by: Sequence[str], columns: Sequence[_Column]) -> RenderableType:
    # What is recomputed is said beside the name.
    names = [name for name in by if name != "recompute"]
    heads = (f"{'<' if name in _FOLDED else '='}{name}" for name in names)
    table = Grid(*heads, *(column.head for column in columns))
    if "kernel" in names:
        table.columns[names.index("kernel")].roomy = ROOM_OF_KERNELS
    for row in rows[:MANY]:
        cells = [_cell(row[name], name) for name in names]
        cells[0] += " (again)" if row.get("recompute") else ""
        table.add_row(*cells, *(column.cell(row) for column in columns))
    return table


def _count(row: Mapping[str, Any]) -> str:
    return f"{row['activities']:,}"


def _median_of(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: ms(row[key]["median"])


def _quartiles(row: Mapping[str, Any]) -> str:
    spread = row["overlap"]
    return "" if spread is None else f"{_percent(spread['p25'])}-{_percent(spread['p75'])}"


def _known(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _cell(value: Any, name: str) -> str:
    if isinstance(value, int):
        return str(value) if value >= 0 else "outside"
    if name == "type":
        return _TYPES.get(str(value), str(value))
    return short(value) if value else OUTSIDE if name == "operation" else ""


def _spread(spread: Mapping[str, Any]) -> str:
    """Return half the distance of the quartiles as a share of the median."""
    if spread["samples"] < 2 or not spread["median"]:
        return ""
    relative = (spread["p75"] - spread["p25"]) / 2.0 / spread["median"]
    return f"±{percent(relative)}" if relative < WIDE else f">{percent(WIDE, 0)}"


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value, 0)


def _more(rows: Sequence[Any], most: int = MANY) -> str:
    return f"; {len(rows) - most} more in --json" if len(rows) > most else ""


# A run beside its projection, or beside another run.
COMPARED = 20
"""Operations that a terminal shows."""

UNMATCHED = 8
"""Unmatched operations that a terminal shows."""

SHOWN = 0.02
"""A factor nearer to 1 is left out of a line."""


def comparison_report(found: "TraceComparison") -> list[RenderableType]:
    """Return the report of `projector trace compare`."""
    names = found.names
    table = Grid("=term", f"{names.first} ms", f"{names.second} ms", "difference", "ratio")
    for name, pair in found.step.items():
        table.add_row(name, *_pair(pair))
    line = Text(found.title[:1].upper() + found.title[1:], style="bold")
    steps = "step" if found.iterations == 1 else "steps"
    ranks = "rank" if len(found.ranks) == 1 else "ranks"
    line.append(f"  {found.iterations} {steps} of {len(found.ranks)} {ranks}", style="not bold")
    first, second = found.names.first, found.names.second
    compared = (
        f"compared: {percent(found.matched_second)} of {second} and "
        f"{percent(found.matched_first)} of {first} time, durations added"
    )
    return [
        line,
        *below(compared),
        *section("Step", "what the device did; only what nothing hides", table),
        *_operations(found),
        *_unmatched(f"Only {names.second}", found.only_second),
        *_unmatched(f"Only {names.first}", found.only_first),
    ]


def _ms(seconds: float) -> str:
    return ms(seconds / NANOSECOND)


def _pair(pair: "Pair") -> tuple[str, str, str, str]:
    difference = pair.measured_s - pair.simulated_s
    slower = _compact(pair.measured_s / pair.simulated_s) if pair.simulated_s else ""
    sign = "+" if difference >= 0.0 else ""
    return _ms(pair.simulated_s), _ms(pair.measured_s), f"{sign}{_ms(difference)}", slower


def _operations(found: "TraceComparison") -> list[RenderableType]:
    from projector.validate.traces.result import MEANINGS

    names = found.names
    # Names of operations of the models tell their types.
    typed = ("=type",) * (names.first != "projected")
    table = Grid(
        "=operation", "=phase", *typed, names.first, names.second, "difference", "ratio", "<because"
    )
    for each in found.operations[:COMPARED]:
        kind = (_TYPES.get(each.kind, each.kind),) * len(typed)
        told = sorted(_told(each.factors), key=lambda factor: -factor.size)
        because = ", ".join(f"{factor.name} x{_compact(factor.value)}" for factor in told)
        table.add_row(short(each.operation), each.phase, *kind, *_pair(each.pair), Text(because))
    more = _more(found.operations, COMPARED)
    note = f"ms of a step; ratio: {names.second} over {names.first}{more}"
    used = {factor.name for each in found.operations[:COMPARED] for factor in _told(each.factors)}
    legend = "; ".join(f"{name}: {text}" for name, text in MEANINGS.items() if name in used)
    return [*section("Operations", note, table), *below(legend, style=DIM)]


def _told(factors: Sequence["Factor"]) -> list["Factor"]:
    return [factor for factor in factors if abs(factor.value - 1.0) > SHOWN]


def _compact(ratio: float) -> str:
    """Format a ratio with two decimals, a large one with none."""
    return f"{ratio:.2f}" if ratio < 100.0 else f"{ratio:,.0f}"


def _unmatched(title: str, entries: Sequence["Unmatched"]) -> list[RenderableType]:
    table = Grid.of(
        "unmatched", entries[:UNMATCHED], short=short, seconds=_ms,
        many=lambda runs: f"{runs:,.3g}" if runs < 1000.0 else f"{runs:,.0f}",
    )  # fmt: skip
    total = _ms(sum(each.time_s for each in entries))
    return listing(title, f"{total} ms of a step{_more(entries, UNMATCHED)}", table)


# The gap between theory and measurement.
SMALL_NS = 10_000
"""Times below this have too few digits as milliseconds."""

_SHORT = {"instruction": "instr.", "utilisation": "utilis.", "frequency": "freq."}
"""Names of factors above their columns."""


def gap_report(found: "GapResult") -> list[RenderableType]:
    """Return the report of `projector trace gap`."""
    from projector.trace.measures.gap import FACTORS, REST

    columns = (*FACTORS, REST)
    short_names = [_SHORT.get(name, name) for name in columns]
    table = Grid("=operation", "=phase", "theory ms", "actual ms", "ratio", *short_names)
    for each in found.operations[:COMPARED]:
        theory = ""
        if each.theory_ns:  # small ones keep two digits, as they are divided by
            few = each.theory_ns < SMALL_NS
            theory = f"{each.theory_ns / 1e6:.2g}" if few else ms(each.theory_ns)
        ratio = f"{each.ratio:.2f}" if each.ratio else ""
        cells = [f"{each.factors[name]:.2f}" if name in each.factors else "" for name in columns]
        table.add_row(short(each.operation), each.phase, theory, ms(each.actual_ns), ratio,
                *cells)  # fmt: skip
    note = "mean of the steps; theory times all factors is the actual time"
    if found.device:
        note += f"; peaks of {found.device}"
    note += _more(found.operations, COMPARED)
    missing = dict.fromkeys(text for each in found.operations for text in each.missing)
    lines: list[RenderableType] = section("Gap", note, table)
    if missing:
        text = f"not known, and so part of the rest: {'; '.join(missing)}"
        lines += below(text, style=DIM)
    return lines


# The report of `projector trace summary`.
SUMMARISED = 16
"""Rows of a section; JSON has all of them."""

DIFFERING = 5
"""Operations in which ranks differ most."""

_PARTS: Mapping[str, str] = hardware_table("report_words.yaml")["span_parts"]
"""What adds up to the span of a rank."""

_LISTS: Mapping[str, Sequence[str]] = hardware_table("report_words.yaml")["trace_lists"]
"""Title of a section, and the note beside it, by the name of its table."""

_KINDS_OF_WORK = ("gemm", "attention", "vector", "communication", "copy")
_PHASES = ("forward", "backward", "optimizer", "other")

_UNITS = {"clock_mhz": "MHz", "memory_clock_mhz": "MHz of memory", "power_w": "W"}


def summary_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace summary`."""
    sharding, gaps = shown["sharding"], shown["gaps"]
    exposed = [each for each in sharding if each["communication_ns"]["median"]]
    spreads = [each for each in shown["rank_spreads"] if each["ranks"] > 1]
    differing = [each for each in spreads if each["spread"] not in (None, 1.0)]
    return [
        *title(shown),
        *_ranks(shown["ranks"], "operators" if shown["on_host"] else "kernels"),
        *_iterations(shown["iteration_times"], shown["throughput"]),
        *_phases(shown["phases"]),
        *_listed("trace_communication", shown["communication"]),
        *_listed("trace_sharding", exposed, ranks=sharding),
        *_stragglers(shown["stragglers"]),
        *_listed("rank_spreads", differing, DIFFERING),
        *_listed("trace_links", shown["links"], DIFFERING),
        *_listed("trace_gaps", [each for each in gaps if each["gaps"]], ranks=gaps),
        *_beside(shown["cores"], shown["sampled"]),
    ]


def _ranks(ranks: Rows, counted: str) -> list[RenderableType]:
    table = Grid("rank", "span ms", *_PARTS.values(), counted)
    for each in ranks[:SUMMARISED]:
        span = each["span_ns"]
        shares = (share(each[key], span) for key in _PARTS)
        table.add_row(_place(each, ranks), ms(span), *shares, each[counted])
    note = f"shares of the span, which they add up to{_more(ranks, SUMMARISED)}"
    return section("Ranks", note, table)


def _iterations(iterations: Rows, throughput: Mapping[str, Any] | None) -> list[RenderableType]:
    known = [each for each in iterations if each["iteration"] >= 0]
    if not known:
        return []
    table = Grid("rank", "count", "ms", *_PARTS.values(), "launch")
    places = list(dict.fromkeys((each["rank"], each["device"]) for each in known))
    keys = ("span_ns", *_PARTS, "launch_ns")
    for place in places[:SUMMARISED]:
        own = [each for each in known if (each["rank"], each["device"]) == place]
        medians = (float(np.median([each[key] for each in own])) for key in keys)
        table.add_row(_place(own[0], known), str(len(own)), *map(ms, medians))
    note = f"ms of one, median; launch overhead lies in the other parts{_more(places, SUMMARISED)}"
    parts = section("An iteration", note, table)
    if throughput is not None:
        rate, slowest = throughput["tokens_per_s"], throughput["slowest"]
        named = ", ".join(f"rank {each['rank']} in {each['iterations']}" for each in slowest[:4])
        text = f"{rate['median']:,.0f} tokens/s by the slowest rank of each iteration ({named})"
        parts += below(text)
    return parts


def _phases(phases: Rows) -> list[RenderableType]:
    cells = {(each["phase"], each["type"]): each for each in phases}
    types = [name for name in _KINDS_OF_WORK if any(key[1] == name for key in cells)]
    table = Grid("=phase", *types, "launch", "share")
    for phase in _PHASES:
        row = [cells.get((phase, name)) for name in types]
        found = [each for each in row if each is not None]
        if found:
            table.add_row(
                phase,
                *("" if each is None else ms(each["duration_ns"]["median"]) for each in row),
                ms(sum(each["launch_ns"]["median"] for each in found)),
                percent(sum(each["share"] for each in found)),
            )
    return listing("Phases and types", "ms of kernels in an iteration of a rank, median", table)


def _listed(
    name: str, rows: Rows, most: int = SUMMARISED, ranks: Rows | None = None
) -> list[RenderableType]:
    """Return the first rows as a table; ranks are told apart from those that are listed."""
    title, note = _LISTS[name]
    table = Grid.of(
        name, rows[:most], ms=ms, us=us, short=short,
        place=lambda row: _place(row, rows if ranks is None else ranks),
        mib=lambda value: f"{value / 2**20:,.3g}", giga=lambda value: f"{value / 1e9:,.3g}",
        whole=_percent, named=lambda name: short(name) or "(outside operations)",
    )  # fmt: skip
    return listing(title, f"{note}{_more(rows, most)}", table)


def _stragglers(rows: Rows) -> list[RenderableType]:
    if len(rows) < 2:
        return []
    blank: dict[str, list[Mapping[str, Any]]] = {}
    for each in rows:
        if each["waiting_unknown"]:
            blank.setdefault(each["waiting_unknown"], []).append(each)
    unknown = (below(_blank(why, those, rows)) for why, those in blank.items())
    return [*_listed("stragglers", rows), *chain.from_iterable(unknown)]


def _blank(why: str, those: Rows, rows: Rows) -> str:
    if len(those) == len(rows):
        return f"Waits are not known: {why}."
    places = [_place(each, rows) for each in those]
    whole = all(place.isdecimal() for place in places)
    named = runs_of(sorted(map(int, places))) if whole else ", ".join(places)
    return f"Waits of rank{'s' * (len(those) > 1)} {named} are not known: {why}."


def _beside(cores: Rows, sampled: Rows) -> list[RenderableType]:
    rows: list[tuple[str, str, Mapping[str, Any]]] = []
    for each in cores:
        of = f"{each['cores']} logical cores"
        rows += [(f"{name} cores", of, each[name]) for name in ("active", "minimum")]
        if (physical := each["physical"]) is not None:
            rows.append(("active cores", f"{physical['cores']} physical cores", physical["active"]))
    for each in sampled[:SUMMARISED]:
        unit = _UNITS.get(str(each["what"]), str(each["what"]))
        rows.append((unit, str(each["column"]), each["spread"]))
    table = Grid.of("sampled", rows, quartiles=lambda of: f"{of['p25']:,.4g}-{of['p75']:,.4g}")
    return listing("Sampled beside the run", "", table)


def _place(row: Mapping[str, Any], rows: Rows) -> str:
    """Return the rank, with the device where a rank has several."""
    several = {each["device"] for each in rows if each["rank"] == row["rank"]}
    return f"{row['rank']}.{row['device']}" if len(several) > 1 else str(row["rank"])
