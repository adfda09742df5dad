"""Hardware counters of kernels, and what follows from them: utilisation, cycles, FLOP, bytes.

Read are files of rocprofv3, rocprof, rocprofiler-compute, ncu and CUPTI's range profiler. Tables
have two layouts: one row a counter of a dispatch, or one row a dispatch with a column for each
counter. All become `Counters`, a row a dispatch, in the order of dispatch on each device. The
equations of metrics are data, in ``hardware/trace_counters.yaml``, each with its source.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config._base import Config
from projector.config.device import Device
from projector.config.resources import shipped_table
from projector.errors import ConfigError
from projector.trace import profiler_tables as tables
from projector.trace import rocprof
from projector.trace.events import NONE, NS_PS, Counters, Problem, RankTrace
from projector.trace.groups import group
from projector.trace.kineto_events import load_event_names
from projector.trace.names import Cited
from projector.trace.sources import named_files, rank_in

_MERGED = "pmc_perf"
_PASSES = re.compile(r"results_pmc_perf.*\.csv")
_EXTENTS = re.compile(r"\d+")
_TABLES = (".csv", ".csv.gz", ".txt", ".log")


def counter_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the files of counters that files, folders and patterns stand for."""
    return list(named_files(paths, "counters", _inside))


def _inside(folder: Path) -> list[Path]:
    """Return the files of a folder; ``pmc_perf.csv`` of rocprofiler-compute holds all others."""
    inside = sorted(file for file in folder.rglob("*") if _holds_counters(file))
    merged = {file.parent for file in inside if file.name.startswith(_MERGED)}
    return [file for file in inside if file.parent not in merged or not _PASSES.match(file.name)]


def _holds_counters(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    if not path.is_file():
        return False
    if name.endswith(".json"):
        if rocprof.format_of(path) == "rocprofv3 json":
            return "counter" in name
        return any(category in rocprof.read_head(path) for category in load_event_names().counted)
    if not name.endswith(_TABLES):
        return False
    return any(_is_heading(line) for line in rocprof.read_head(path).splitlines()[:64])


def _is_heading(line: str) -> bool:
    fields = [field.strip(' "') for field in line.split(",")]
    known = {tables.quantity_of(field) for field in fields}
    if "kernel" not in known or "function" in known:
        return False
    return "counter" in known or any(field and not tables.quantity_of(field) for field in fields)


def read_counters(path: Path) -> list[Counters]:
    """Return the counters of a CSV or of rocprofv3's JSON, one for each process in it."""
    folders = (parent.name for parent in list(path.parents)[:3])
    named = map(rank_in, (path.name, *folders))
    rank = next((rank for rank in named if rank != NONE), NONE)
    if rocprof.format_of(path) == "rocprofv3 json":
        problems: list[Problem] = []
        processes = rocprof.read_processes(path, problems)
        told = tuple(problems)
        return [_of_process(path, rank, process, told) for process in processes]
    table = tables.read_table(path, heading=("kernel",))
    if not table.has("kernel"):
        problem = Problem(str(path), "", "no kernels with counters in it, nothing read")
        none = np.zeros(0, np.int64)
        return [
            Counters(
                path=str(path), kernel=(), device=none, grid=none, duration_ps=none, values={},
                rank=rank, problems=(*table.problems, problem),
            )
        ]  # fmt: skip
    if table.has("counter", "counter_value"):
        return [_of_long(table, rank)]
    return [_of_wide(table, rank)]


def counters_of_details(details: Sequence[Mapping[str, Any]], of: Ints) -> dict[str, Floats]:
    """Return counters that details hold, float64[of] by name, NaN without; `of` are rows or -1."""
    counted = [detail.get("counters", {}) for detail in (*details, {})]
    names = dict.fromkeys(name for found in counted for name in found)
    return {
        name: np.array([found.get(name, np.nan) for found in counted])[of] for name in names
    }  # fmt: skip


def counters_of_trace(trace: RankTrace) -> Counters | None:
    """Return the counters of a trace of CUPTI's range profiler; None of any other trace."""
    events = trace.events
    values = counters_of_details(trace.details, events.detail)
    if not values:
        return None
    rows = np.flatnonzero(np.isfinite(np.stack([*values.values()])).any(axis=0))
    rows = rows[np.lexsort((events.start_ps[rows], events.process[rows]))]
    unknown = np.full(len(rows), NONE, np.int64)
    return Counters(
        path=trace.path,
        kernel=[trace.names[name] for name in events.name[rows].tolist()],
        device=events.process[rows],
        grid=unknown,
        duration_ps=unknown,
        values={name: each[rows] for name, each in values.items()},
        rank=trace.rank,
    )


def _of_long(table: tables.Table, rank: int) -> Counters:
    """Put together the rows of each dispatch.

    Rows of one counter add up, as instances of it on several dies do; Nsight Compute repeats a
    metric in every section that shows it, so there the last one stands.
    """
    order = table.ints("dispatch" if table.has("dispatch") else "correlation")
    same = group(table.ints("device"), table.ints("process"), order)
    first, dispatch = same.first, same.of
    column = table.column("counter_value")
    amounts = tables.numbers([] if column is None else column)
    units = table.text("counter_unit")
    if units is not None:
        amounts = amounts * np.array([_factor(unit) for unit in units])
    names = list(table.text("counter") or ())
    place = {name: i for i, name in enumerate(dict.fromkeys(names))}
    which = np.array([place[name] for name in names], np.int64)
    values: dict[str, Floats] = {}
    for name, i in place.items():
        rows = which == i
        values[name] = np.full(len(first), np.nan)
        if table.has("section"):
            values[name][dispatch[rows]] = amounts[rows]
        else:
            values[name][dispatch[rows]] = 0.0
            np.add.at(values[name], dispatch[rows], amounts[rows])
    return _counters(table.take(first), rank, values)


def _of_wide(table: tables.Table, rank: int) -> Counters:
    """Take each column that describes nothing as a counter."""
    units: Mapping[str, str] = {}
    dispatch = table.column("dispatch")
    if len(table) and isinstance(dispatch, list) and not dispatch[0].strip():
        # The raw page of Nsight Compute has a row of units below its heading.
        units = {
            name: str(column[0]) for name, column in zip(table.headings, table.columns, strict=True)
        }
        table = table.take(np.arange(1, len(table)))
    table = table.take(np.lexsort((table.ints("dispatch"), table.ints("device"))))
    values: dict[str, Floats] = {}
    for heading, column in zip(table.headings, table.columns, strict=True):
        if not heading or tables.quantity_of(heading):
            continue
        amounts = tables.numbers(column)
        if np.isfinite(amounts).any():
            values[heading] = amounts * _factor(units.get(heading, ""))
    return _counters(table, rank, values)


@cache
def _factor(unit: str) -> float:
    known = tables.load_formats().units.get(tables.plain(unit))
    return known.value if known else 1.0


def _counters(table: tables.Table, rank: int, values: Mapping[str, Floats]) -> Counters:
    return Counters(
        path=table.path,
        kernel=[name.removesuffix(".kd") for name in table.text("kernel") or ()],
        device=table.ints("device"),
        grid=_threads(table),
        duration_ps=_durations(table, values),
        values=values,
        rank=rank,
        problems=table.problems,
    )


def _threads(table: tables.Table) -> Ints:
    """Return the work items of each dispatch: AMD's number, or groups ``(108, 1, 1)`` of NVIDIA."""
    grid, block = table.column("grid"), table.text("block")
    if grid is None:
        return np.full(len(table), NONE, np.int64)
    if isinstance(grid, np.ndarray):
        return grid
    if block is None or not any("(" in text for text in grid):
        return tables.whole_numbers(grid)
    threads = (_product(g) * _product(b) for g, b in zip(grid, block, strict=True))
    return np.array([n if n < 1 << 63 else NONE for n in threads], np.int64)


@lru_cache(maxsize=4096)
def _product(text: str) -> int:
    return math.prod(map(int, _EXTENTS.findall(text)))


def _durations(table: tables.Table, values: Mapping[str, Floats]) -> Ints:
    if table.has("start_ns", "end_ns"):
        duration_ns = table.ints("end_ns") - table.ints("start_ns")
    elif table.has("duration_ns"):
        duration_ns = table.ints("duration_ns")
    else:
        measured = next((values[name] for name in values if name.startswith(_TIMES)), None)
        if measured is None:
            return np.full(len(table), NONE, np.int64)
        duration_ns = np.where(np.isfinite(measured), np.rint(measured), NONE).astype(np.int64)
    return np.where(duration_ns >= 0, duration_ns * NS_PS, NONE)


_TIMES = ("gpu__time_duration", "Duration")


def _of_process(
    path: Path, rank: int, process: rocprof.Process, problems: tuple[Problem, ...]
) -> Counters:
    column = process.columns("callback_records.counter_collection")
    info = {name.rpartition("dispatch_info.")[2]: each for name, each in column.items()}
    count = len(info["kernel_id"])
    handles = process.words("counters", "id.handle", "name")
    values: dict[str, Floats] = {}
    for record, handle, amount in process.counted:
        if record < count:
            name = handles.get(handle, f"counter {handle}")
            values.setdefault(name, np.full(count, np.nan))
            so_far = values[name][record]
            values[name][record] = amount if np.isnan(so_far) else so_far + amount
    agents = rocprof.agent_numbers(process)
    device = [agents.get(handle, handle) for handle in info["agent_id.handle"].tolist()]
    start, end = (column[f"dispatch_data.{which}_timestamp"] for which in ("start", "end"))
    order = np.lexsort((info["dispatch_id"], device))
    kernel = rocprof.kernel_names(process, info["kernel_id"])
    grid = info["grid_size.x"] * info["grid_size.y"] * info["grid_size.z"]
    return Counters(
        path=str(path),
        kernel=[kernel[row] for row in order.tolist()],
        device=np.array(device, np.int64)[order],
        grid=np.where(grid > 0, grid, NONE)[order],
        duration_ps=np.where(end > start, (end - start) * NS_PS, NONE)[order],
        values={name: each[order] for name, each in values.items()},
        rank=rank,
        problems=problems,
    )


_SIGNS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide,
}  # fmt: skip


class Way(Cited):
    """One way to get a metric."""

    of: str


class Metric(Config):
    """A metric and the ways to get it, the best first."""

    unit: str
    about: str
    ways: list[Way]


class Metrics(Config):
    """``hardware/trace_counters.yaml``."""

    metrics: dict[str, Metric]
    collect: dict[str, list[list[str]]]
    """Vendor -> sets of counters, each collected in one run."""
    sources: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A metric of some kernels."""

    unit: str
    values: Floats
    """float64[kernels], NaN where its counters were not collected."""
    ways: tuple[str, ...]
    sources: tuple[str, ...]
    """Where each of `ways` comes from."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints: no values, but what they rest on."""
        return {
            "unit": self.unit, "kernels": int(np.isfinite(self.values).sum()),
            "ways": list(self.ways), "sources": list(self.sources), "notes": list(self.notes),
        }  # fmt: skip


load_metrics = shipped_table(Metrics, "trace_counters.yaml")


def derive(
    values: Mapping[str, Floats], *, device: Device | None = None, duration_ps: Ints | None = None
) -> dict[str, Derived]:
    """Return all metrics that follow from some counters, by name, but those without any value.

    `values` are float64[kernels] by name of the counter, NaN where one was not collected. Equations
    that need compute units and dies are left out without a device. `duration_ps` is that of the
    serialised kernels, -1 where it is not known.
    """
    known: dict[str, Any] = dict(values)
    if device is not None:
        known |= {
            "compute_units": device.compute_units, "dies": device.dies,
            "peak_clock_mhz": device.peak_clock_mhz,
        }  # fmt: skip
    if duration_ps is not None:
        known["duration_ns"] = np.where(duration_ps == NONE, np.nan, duration_ps / NS_PS)
    metrics = load_metrics().metrics
    found = {name: _derived(metric, known) for name, metric in metrics.items()}
    return {name: derived for name, derived in found.items() if derived is not None}


def _derived(metric: Metric, known: Mapping[str, Any]) -> Derived | None:
    values: Floats | None = None
    used: list[Way] = []
    for way in metric.ways:
        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                column = np.asarray(_value(ast.parse(way.of.strip(), mode="eval").body, known))
        except _MissingError:
            continue
        column = np.where(np.isfinite(column), column, np.nan)
        if values is None:
            values = np.full_like(column, np.nan)
        gaps = np.isnan(values) & ~np.isnan(column)
        if gaps.any():
            values = np.where(gaps, column, values)
            used.append(way)
    if values is None or not used:
        return None
    sources = load_metrics().sources
    return Derived(
        unit=metric.unit, values=values, ways=tuple(" ".join(way.of.split()) for way in used),
        sources=tuple(sources[way.source] for way in used),
        notes=tuple(way.note for way in used if way.note),
    )  # fmt: skip


class _MissingError(Exception):
    """A counter or a number of the device that is not there."""


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return what an equation gives; `_MissingError` without one of its counters."""
    match node:
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_value(left, known), _value(right, known))
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) | ast.Constant(value=str() as name):
            if name not in known:
                raise _MissingError(name)
            return known[name]
        case ast.Call(func=ast.Name(id="some"), args=parts):
            return _sum([_named(part) for part in parts], known)
        case ast.Call(func=ast.Name(id="all_of"), args=[first, last]):
            begin, end = _named(first), _named(last)
            return _sum([n for n in known if n.startswith(begin) and n.endswith(end)], known)
    msg = f"trace_counters.yaml: {ast.unparse(node)!r} is no part of an equation"
    raise ConfigError(msg, key="of", value=ast.unparse(node), allowed="counters, + - * /, some")


def _named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else str(getattr(node, "value", ""))


def _sum(names: list[str], known: Mapping[str, Any]) -> Floats:
    """Return the sum of the counters that were collected, NaN for kernels without any."""
    columns = [np.asarray(known[name], np.float64) for name in names if name in known]
    if not columns:
        raise _MissingError(", ".join(names))
    stacked = np.stack(columns)
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))
