"""The report of `projector trace summary`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.report.terminal.tables import add_row, grid, percent, section
from projector.report.terminal.trace import ms, share, short, title, us

MANY = 16
"""Rows of a section; JSON has all of them."""

FEW = 5
"""Operations in which ranks differ most."""

_PARTS = (
    ("compute_ns", "compute"),
    ("exposed_communication_ns", "exposed comm."),
    ("exposed_memcpy_ns", "exposed copies"),
    ("idle_ns", "idle"),
)
"""What adds up to the span of a rank."""

_TYPES = ("gemm", "attention", "vector", "communication", "copy")
_PHASES = ("forward", "backward", "optimizer", "other")

_UNITS = {"clock_mhz": "MHz", "memory_clock_mhz": "MHz of memory", "power_w": "W"}

Rows = Sequence[Mapping[str, Any]]


def summary_report(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return the report of `projector trace summary`."""
    return [
        *title(shown),
        *_ranks(shown["ranks"], "operators" if shown["on_host"] else "kernels"),
        *_iterations(shown["iteration_times"], shown["throughput"]),
        *_phases(shown["phases"]),
        *_communication(shown["communication"]),
        *_sharding(shown["sharding"]),
        *_stragglers(shown["stragglers"]),
        *_rank_spreads(shown["rank_spreads"]),
        *_gaps(shown["gaps"]),
        *_beside(shown["cores"], shown["sampled"]),
    ]


def _ranks(ranks: Rows, counted: str) -> list[RenderableType]:
    table = grid("rank", "span ms", *(name for _, name in _PARTS), counted)
    for each in ranks[:MANY]:
        span = each["span_ns"]
        add_row(
            table,
            _place(each, ranks),
            ms(span),
            *(share(each[key], span) for key, _ in _PARTS),
            f"{each[counted]:,}",
        )
    return section("Ranks", f"shares of the span, which they add up to{_more(ranks)}", table)


def _iterations(iterations: Rows, throughput: Mapping[str, Any] | None) -> list[RenderableType]:
    known = [each for each in iterations if each["iteration"] >= 0]
    if not known:
        return []
    table = grid("rank", "count", "ms", *(name for _, name in _PARTS), "launch")
    places = list(dict.fromkeys((each["rank"], each["device"]) for each in known))
    keys = ("span_ns", *(key for key, _ in _PARTS), "launch_ns")
    for place in places[:MANY]:
        own = [each for each in known if (each["rank"], each["device"]) == place]
        medians = (float(np.median([each[key] for each in own])) for key in keys)
        add_row(table, _place(own[0], known), str(len(own)), *map(ms, medians))
    note = f"ms of one, median; launch overhead lies in the other parts{_more(places)}"
    parts = section("An iteration", note, table)
    if throughput is not None:
        rate, slowest = throughput["tokens_per_s"], throughput["slowest"]
        named = ", ".join(f"rank {each['rank']} in {each['iterations']}" for each in slowest[:4])
        text = f"{rate['median']:,.0f} tokens/s by the slowest rank of each iteration ({named})"
        parts.append(Padding(Text(text), (0, 0, 1, 2)))
    return parts


def _phases(phases: Rows) -> list[RenderableType]:
    if not phases:
        return []
    cells = {(each["phase"], each["type"]): each for each in phases}
    types = [name for name in _TYPES if any(key[1] == name for key in cells)]
    table = grid("=phase", *types, "launch", "share")
    for phase in _PHASES:
        row = [cells.get((phase, name)) for name in types]
        found = [each for each in row if each is not None]
        if found:
            add_row(
                table,
                phase,
                *("" if each is None else ms(each["duration_ns"]["median"]) for each in row),
                ms(sum(each["launch_ns"]["median"] for each in found)),
                percent(sum(each["share"] for each in found)),
            )
    return section("Phases and types", "ms of kernels in an iteration of a rank, median", table)


def _communication(rows: Rows) -> list[RenderableType]:
    if not rows:
        return []
    table = grid("<collective", "<group", "count", "MiB", "ms", "exposed", "us each", "GB/s")
    for each in rows[:MANY]:
        rate = each["bytes_per_s"]
        add_row(
            table,
            short(each["collective"], 32),
            short(each["group"], 24),
            f"{each['kernels']:,}",
            "" if each["bytes"] is None else f"{each['bytes'] / 2**20:,.3g}",
            ms(each["iteration_ns"]["median"]),
            ms(each["exposed_ns"]["median"]),
            us(each["kernel_ns"]["median"]),
            "" if rate is None else f"{rate / 1e9:,.3g}",
        )
    note = f"ms of an iteration of a rank, median; counted over all of them{_more(rows)}"
    return section("Communication", note, table)


def _sharding(rows: Rows) -> list[RenderableType]:
    known = [each for each in rows if each["communication_ns"]["median"]]
    if not known:
        return []
    names = {"filling_ns": "begin", "between_ns": "between", "emptying_ns": "end"}
    table = grid("rank", *names.values())
    for each in known[:MANY]:
        add_row(table, _place(each, rows), *(ms(each[key]["median"]) for key in names))
    note = "ms of an iteration: at its begin, between its matrix products, at its end"
    return section("Exposed communication", f"{note}{_more(known)}", table)


def _stragglers(rows: Rows) -> list[RenderableType]:
    if len(rows) < 2:
        return []
    table = grid("rank", "ms", "of median", "slowest in", "waits ms", "late us", "enters last")
    for each in rows[:MANY]:
        waiting, late = each["waiting_ns"], each["late_ns"]
        add_row(
            table,
            _place(each, rows),
            ms(each["compute_ns"]["median"]),
            "" if each["relative"] is None else percent(each["relative"]),
            str(each["slowest"]),
            "" if waiting is None else ms(waiting["median"]),
            "" if late is None else us(late["median"]),
            "" if each["last"] is None else percent(each["last"], 0),
        )
    note = f"computing of an iteration, median; waits in collectives{_more(rows)}"
    return section("Ranks against each other", note, table)


def _rank_spreads(rows: Rows) -> list[RenderableType]:
    known = [each for each in rows if each["ranks"] > 1 and each["spread"] not in (None, 1.0)]
    if not known:
        return []
    table = grid("<operation", "=phase", "ms", "slowest / fastest", "slowest rank", "fastest rank")
    for each in known[:FEW]:
        add_row(
            table,
            short(each["operation"], 36) or "(outside operations)",
            each["phase"],
            ms(each["median_ns"]),
            f"{each['spread']:.2f}",
            str(each["slowest"]),
            str(each["fastest"]),
        )
    more = f"; {len(known) - FEW} more in --json" if len(known) > FEW else ""
    return section("Operations that differ", f"ms of an iteration of a rank, medians{more}", table)


def _gaps(rows: Rows) -> list[RenderableType]:
    known = [each for each in rows if each["gaps"]]
    if not known:
        return []
    table = grid("rank", "idle ms", "host late", "called", "unknown", "longest", "<before")
    for each in known[:MANY]:
        longest = each["longest"][0]
        add_row(
            table,
            _place(each, rows),
            *(ms(each[key]) for key in ("idle_ns", "late_ns", "called_ns", "unknown_ns")),
            ms(longest["duration_ns"]),
            short(longest["after"], 36),
        )
    note = f"ms: before the call of what came next, after it, launch unknown{_more(known)}"
    return section("Idle time", note, table)


def _beside(cores: Rows, sampled: Rows) -> list[RenderableType]:
    if not cores and not sampled:
        return []
    table = grid("=sampled", "<of", "median", "25-75 %", "min", "max")
    for each in cores:
        of = f"{each['cores']} logical cores"
        for name in ("active", "minimum"):
            add_row(table, f"{name} cores", of, *_spread(each[name]))
        if each["physical"] is not None:
            physical = each["physical"]
            add_row(table, "active cores", f"{physical['cores']} physical cores",
                    *_spread(physical["active"]))  # fmt: skip
    for each in sampled[:MANY]:
        unit = _UNITS.get(str(each["what"]), str(each["what"]))
        add_row(table, unit, str(each["column"]),
                *_spread(each["spread"]))  # fmt: skip
    return section("Sampled beside the run", "", table)


def _spread(spread: Mapping[str, Any]) -> list[str]:
    low, high = f"{spread['p25']:,.4g}", f"{spread['p75']:,.4g}"
    return [f"{spread['median']:,.4g}", f"{low}-{high}", f"{spread['min']:,.4g}",
            f"{spread['max']:,.4g}"]  # fmt: skip


def _place(row: Mapping[str, Any], rows: Rows) -> str:
    """Return the rank, with the device where a rank has several."""
    several = {each["device"] for each in rows if each["rank"] == row["rank"]}
    return f"{row['rank']}.{row['device']}" if len(several) > 1 else str(row["rank"])


def _more(rows: Sequence[Any]) -> str:
    return f"; {len(rows) - MANY} more in --json" if len(rows) > MANY else ""
