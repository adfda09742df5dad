"""Traces of ROCm's profilers: rocprofv3 (JSON and CSV), rocprof 1 and 2 (CSV, and 1's Chrome JSON).

They know devices, queues and calls of HIP, and nothing of the framework: no operators, no modules,
and annotations only where the program marked ranges with ROCTX. Their stamps are nanoseconds since
the machine was started, the same clock for all processes of it.
"""

import gzip
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from projector.arrays import Ints
from projector.distribution import install_command
from projector.errors import ConfigError
from projector.trace import events as ev
from projector.trace import profiler_tables as tables
from projector.trace.events import NONE, Problem, RankTrace
from projector.trace.sources import Notes, Source

HEAD_BYTES = 65_536
_TOOL = re.compile(r'^\s*\{\s*"rocprofiler-sdk-tool"')
_CHROME = re.compile(r'^\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}')
_HEADING = ("kernel", "function", "direction")


def format_of(path: Path) -> str:
    """Return ``rocprofv3 json``, ``rocprof json`` or ``csv`` of a trace, else nothing."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".csv"):
        return "csv" if _csv_kind(read_head(path)) else ""
    head = read_head(path)
    if _TOOL.match(head):
        return "rocprofv3 json"
    return "rocprof json" if _CHROME.match(head) else ""


def read_head(path: Path) -> str:
    """Return the first characters of a file, plain or gzip; nothing if it cannot be read."""
    try:
        with Source(path, Notes()) as source:
            return source.read(HEAD_BYTES)[:HEAD_BYTES].decode("utf-8-sig", "replace")
    except ConfigError:
        return ""


def _csv_kind(head: str) -> str:
    lines = head.splitlines()
    headings = lines[0].replace('"', "").split(",") if lines else []
    empty = np.zeros(0, np.int64)
    return kind_of(tables.Table("", tuple(headings), tuple(empty for _ in headings), empty, ()))


def kind_of(table: tables.Table) -> str:
    """Return ``kernels``, ``calls`` or ``copies``, nothing for what is no part of a trace."""
    if not table.has("start_ns", "end_ns") or table.has("counter"):
        return ""
    if table.has("direction"):
        return "copies"
    if table.has("function"):
        return "calls"
    return "kernels" if table.has("kernel") else ""


def group_files(paths: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Return each trace's files: the CSVs of a process, alike but for ``_kernel_trace.csv``."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        name = path.name.removesuffix(".gz")
        stem = name.removesuffix(".csv")
        if stem != name:
            endings = tables.load_formats().file_endings.value
            ending = next((each for each in endings if stem.endswith(each)), "")
            name = "csv:" + stem.removesuffix(ending).rstrip("_") if ending else name
        groups.setdefault((path.parent, name), []).append(path)
    return [tuple(files) for files in groups.values()]


def read_rocprof(paths: Sequence[Path]) -> list[RankTrace]:
    """Return the traces of a JSON or of a process's CSVs, whose ranks are not known."""
    which = format_of(paths[0])
    if which == "rocprofv3 json":
        return read_tool(paths[0])
    if which == "rocprof json":
        return [read_chrome(paths[0])]
    return [_read_csv(paths)]


def _read_csv(paths: Sequence[Path]) -> RankTrace:
    rows = tables.Rows()
    problems: list[Problem] = []
    modern = False
    for path in paths:
        table = tables.read_table(path, heading=_HEADING)
        problems += table.problems
        modern = modern or table.has("correlation")
        _take(table, rows)
    return rows.trace(
        path=str(paths[0]), which="rocprofv3" if modern else "rocprof", problems=problems
    )


def _take(table: tables.Table, rows: tables.Rows) -> None:
    which = kind_of(table)
    if which == "kernels":
        _take_kernels(table, rows)
    elif which == "copies":
        _take_copies(table, rows)
    elif which == "calls":
        _take_calls(table, rows)


def _take_kernels(table: tables.Table, rows: tables.Rows) -> None:
    """Take dispatches: of `rocprofv3`'s kernel trace, or of results of older ones."""
    stream = table.ints("stream")
    if np.isin(stream, (0, NONE)).all():
        # Streams are 0 unless they were asked for; queues tell apart what may run together.
        stream = table.ints("queue")
    rows.add(
        kind=ev.KERNEL,
        names=[name.removesuffix(".kd") for name in table.text("kernel") or ()],
        process=table.ints("device"),
        thread=stream,
        detail=rows.grids(_work_items(table, "grid"), _work_items(table, "block")),
        **_spans(table),
    )


def _spans(table: tables.Table) -> dict[str, Any]:
    return {n: table.ints(n) for n in ("start_ns", "end_ns", "correlation")} | {"table": table}


def _work_items(table: tables.Table, what: str) -> Ints:
    """Return int64[rows, 3], the extents of a grid or of a group."""
    if table.has(f"{what}_x"):
        return np.stack([table.ints(f"{what}_{axis}") for axis in "xyz"], axis=1)
    whole = table.ints(what)
    known = np.where(whole == NONE, NONE, 1)
    return np.stack([whole, known, known], axis=1)


def _take_copies(table: tables.Table, rows: tables.Rows) -> None:
    directions = table.text("direction") or ()
    source, target = table.ints("source_device"), table.ints("target_device")
    sizes = table.ints("bytes").tolist()
    to_host = np.array(["DEVICE_TO_HOST" in each for each in directions], bool)
    rows.add(
        kind=ev.COPY,
        names=tables.copy_names(directions),
        process=np.where(to_host, source, target),
        thread=table.ints("stream"),
        detail=np.array([rows.fact(bytes=size) if size > 0 else NONE for size in sizes], np.int64),
        **_spans(table),
    )


def _take_calls(table: tables.Table, rows: tables.Rows) -> None:
    """Take calls of HIP as launches and marked ranges as annotations."""
    domains = table.text("domain") or [""] * len(table)
    names = list(table.text("function") or ())
    known = {domain: tables.call_kind(domain) for domain in dict.fromkeys(domains)}
    rows.skipped.update(domain for domain in domains if known[domain] == NONE)
    kinds = np.array([known[domain] for domain in domains], np.int64)
    if kernels := table.text("kernel"):
        # The second rocprof writes dispatches among the calls.
        names = [kernel or name for kernel, name in zip(kernels, names, strict=True)]
        kinds[np.array([bool(kernel) for kernel in kernels])] = ev.KERNEL
    rows.add(
        kind=kinds,
        names=names,
        process=table.ints("process"),
        thread=table.ints("thread"),
        keep=kinds != NONE,
        **_spans(table),
    )


ROOT = "rocprofiler-sdk-tool"
GPU = 2
"""Type of an agent that is a GPU (``ROCPROFILER_AGENT_TYPE_GPU``)."""

_COUNTED = "callback_records.counter_collection"


@dataclass(slots=True)
class Process:
    """What the file says of one process."""

    rows: dict[str, "array[int]"] = field(
        default_factory=lambda: {name: array("Q") for name in tables.load_formats().tool_records}
    )
    texts: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {name: [] for name in tables.load_formats().tool_texts}
    )
    counted: list[tuple[int, int, float]] = field(default_factory=list)
    """Record, handle of the counter and its value."""

    def columns(self, section: str) -> dict[str, Ints]:
        """Return the numbers of records of a section as int64, by their path."""
        names = tables.load_formats().tool_records[section]
        table = np.frombuffer(self.rows[section], np.uint64).reshape(-1, len(names))
        return {name: table[:, i].astype(np.int64) for i, name in enumerate(names)}

    def words(self, section: str, key: str, *values: str) -> dict[Any, str]:
        """Return a table of what keys stand for: the first value that is there."""
        return {
            entry[key]: str(next((entry[v] for v in values if entry.get(v)), ""))
            for entry in self.texts[section]
            if key in entry
        }


def read_processes(path: Path, problems: list[Problem]) -> list[Process]:
    """Return what a file says of each process; damage ends it and is told of."""
    try:
        import ijson
    except ImportError:
        install = install_command("trace")
        msg = f"reading the JSON of rocprofv3 needs ijson: {install}"
        raise ConfigError(msg, key="trace", value=str(path), allowed=install) from None
    found: list[Process] = []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        try:
            _fill(ijson.parse(stream), found)
        except (ijson.JSONError, EOFError, OSError, UnicodeError, ValueError) as error:
            text = f"{' '.join(str(error).split())}; what stands before it was read"
            problems.append(Problem(str(path), f"about byte {_place(stream):,}", text[:300]))
    return found


def _place(stream: IO[bytes] | gzip.GzipFile) -> int:
    try:
        return int(stream.tell())
    except (OSError, EOFError, ValueError):
        return 0


def _slots() -> tuple[dict[str, tuple[str, int]], dict[str, tuple[str, str]], dict[str, str]]:
    item, formats = f"{ROOT}.item", tables.load_formats()
    numbers = {
        f"{item}.{section}.item.{name}": (section, place)
        for section, names in formats.tool_records.items()
        for place, name in enumerate(names)
    }
    ends = {
        f"{item}.{section}.item": section
        for section in (*formats.tool_records, *formats.tool_texts)
    }
    ends[f"{item}.metadata"] = "metadata"
    texts = {
        f"{item}.{section}{'' if section == 'metadata' else '.item'}.{name}": (section, name)
        for section, names in formats.tool_texts.items()
        for name in names
    }
    texts |= {f"{path}.item": slot for path, slot in texts.items()}
    return numbers, texts, ends


_LISTED = "operations"
_NUMBERS = frozenset({"id.handle", "type", "logical_node_id", "node_id", "kernel_id", "key", "pid"})
"""Of the short lists: what is a list of texts, and what are numbers; all else are texts."""


def _is_number(name: str, value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << (64 if name == "id.handle" else 63)


def _fill(tokens: Iterator[tuple[str, str, Any]], found: list[Process]) -> None:
    """Fill processes, which stand in `found` from their start, so that damage keeps them."""
    numbers, texts, ends = _slots()
    records = f"{ROOT}.item.{_COUNTED}.item.records.item"
    counter, amount = f"{records}.counter_id.handle", f"{records}.value"
    empty = {
        section: [0] * len(names) for section, names in tables.load_formats().tool_records.items()
    }
    row = {section: [*zeros] for section, zeros in empty.items()}
    process, handle = Process(), 0
    entry: dict[str, Any] = {}
    for prefix, event, value in tokens:
        slot = numbers.get(prefix)
        if slot is not None:
            if type(value) is int and 0 <= value < 1 << 64:
                row[slot[0]][slot[1]] = value
            continue
        word = texts.get(prefix)
        if word is not None:
            name = word[1]
            # A damaged file may have other types.
            if name == _LISTED:
                if event == "string" and prefix.endswith(".item"):
                    entry.setdefault(name, []).append(value)
            elif _is_number(name, value) if name in _NUMBERS else event == "string":
                entry[name] = value
        elif prefix == counter and event == "number":
            handle = int(value)
        elif prefix == amount and event == "number":
            record = len(process.rows[_COUNTED]) // len(empty[_COUNTED])
            process.counted.append((record, handle, float(value)))
        elif event == "end_map" and prefix in ends:
            section = ends[prefix]
            if section in empty:
                process.rows[section].extend(row[section])
                row[section] = [*empty[section]]
            else:
                process.texts[section].append(entry)
                entry = {}
        elif prefix == f"{ROOT}.item" and event == "start_map":
            process = Process()
            found.append(process)


def read_tool(path: Path) -> list[RankTrace]:
    """Return the trace of each process of rocprofv3's JSON."""
    problems: list[Problem] = []
    traces = []
    for process in read_processes(path, problems):
        rows = tables.Rows()
        for name in _SECTIONS:
            _take(_as_table(process, name), rows)
        names = tuple(
            str(agent.get("product_name", ""))
            for agent in process.texts["agents"]
            if agent.get("type") == GPU
        )
        traces.append(
            rows.trace(path=str(path), which="rocprofv3", problems=problems, devices=names)
        )
        problems = []
    if not traces:
        told = problems or [Problem(str(path), "", "no process in it, nothing read")]
        traces.append(tables.Rows().trace(path=str(path), which="rocprofv3", problems=told))
    return traces


def agent_numbers(process: Process) -> dict[int, int]:
    """Return the number of each agent's handle, as the CSVs give it."""
    return {
        int(agent["id.handle"]): int(agent.get("logical_node_id", agent.get("node_id", place)))
        for place, agent in enumerate(process.texts["agents"])
        if "id.handle" in agent
    }


def _agents(process: Process, handles: Ints) -> Ints:
    known = agent_numbers(process)
    # Handles are unsigned; the column holds the same bits.
    known = {handle - (1 << 64) if handle >> 63 else handle: n for handle, n in known.items()}
    distinct, place = np.unique(handles, return_inverse=True)
    numbers = np.array([known.get(int(each), int(each)) for each in distinct], np.int64)
    return numbers[place] if len(handles) else handles


def kernel_names(process: Process, kernel: Ints) -> list[str]:
    """Return the name of each dispatch, by the number of its kernel."""
    known = process.words("kernel_symbols", "kernel_id", "formatted_kernel_name", "kernel_name")
    return [known.get(each, f"kernel {each}").removesuffix(".kd") for each in kernel.tolist()]


def _names_of_calls(process: Process, column: Mapping[str, Ints]) -> tuple[list[str], list[str]]:
    known = [
        (str(entry.get("kind", "")), list(entry.get("operations", ())))
        for entry in process.texts["strings.buffer_records"]
    ]
    domains, names = [], []
    for kind, operation in zip(column["kind"].tolist(), column["operation"].tolist(), strict=True):
        domain, operations = known[kind] if kind < len(known) else (f"kind {kind}", [])
        domains.append(domain)
        names.append(
            operations[operation] if operation < len(operations) else f"{domain} {operation}"
        )
    return domains, names


_SECTIONS = ("kernel_dispatch", "memory_copy", "hip_api", "marker_api", "rccl_api")
_BEYOND_HEADINGS = re.compile(r"^dispatch_info\.|\.handle$|\.internal$")


def _as_table(process: Process, name: str) -> tables.Table:
    """Return the records of a section as the CSVs of rocprofv3 have them."""
    numbers = process.columns(f"buffer_records.{name}")
    columns: dict[str, tables.Column] = {_BEYOND_HEADINGS.sub("", n): c for n, c in numbers.items()}
    for agent in [each for each in numbers if each.endswith("agent_id.handle")]:
        columns[_BEYOND_HEADINGS.sub("", agent)] = _agents(process, numbers[agent])
    count = len(numbers["kind"])
    if name == "kernel_dispatch":
        columns["kernel_name"] = kernel_names(process, numbers["dispatch_info.kernel_id"])
    else:
        columns["kind"], names = _names_of_calls(process, numbers)
        if name == "marker_api":
            said = process.words("strings.marker_api", "key", "value")
            keys = numbers["correlation_id.internal"].tolist()
            names = [said.get(key, text) for key, text in zip(keys, names, strict=True)]
        columns["direction" if name == "memory_copy" else "function"] = names
        columns["process_id"] = np.zeros(count, np.int64)
    return tables.Table("", tuple(columns), tuple(columns.values()), np.zeros(count, np.int64), ())


_GPU_LABEL = re.compile(r"GPU(\d+)")


def read_chrome(path: Path) -> RankTrace:
    """Return the trace of rocprof 1's JSON for Chrome.

    All its numbers are texts. ``ts`` is a whole number of microseconds, so the stamps are taken
    from the arguments, which hold nanoseconds. Its arrows join calls to what runs on devices.
    """
    import json

    problems: list[Problem] = []
    rows = tables.Rows()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            document = json.loads(stream.read().decode("utf-8", "replace"))
        events = [each for each in document["traceEvents"] if isinstance(each, dict)]
    except (ValueError, EOFError, OSError, KeyError, TypeError) as error:
        problems.append(Problem(str(path), "", f"{error}; nothing read"))
        events = []
    labels = {
        str(each.get("pid")): str((each.get("args") or {}).get("name", ""))
        for each in events
        if each.get("ph") == "M"
    }
    spans = [
        each for each in events if each.get("ph") == "X" and isinstance(each.get("args"), dict)
    ]
    joined = _arrows(events)
    kinds = [_chrome_kind(labels.get(str(each.get("pid")), "")) for each in spans]
    kept = [(each, kind) for each, kind in zip(spans, kinds, strict=True) if kind != NONE]
    for each, kind in zip(spans, kinds, strict=True):
        if kind == NONE:
            rows.skipped[labels.get(str(each.get("pid")), "")] += 1
    _take_spans([each for each, _ in kept], np.array([k for _, k in kept], np.int64), joined, rows)
    return rows.trace(path=str(path), which="rocprof", problems=problems)


def _chrome_kind(label: str) -> int:
    if _GPU_LABEL.fullmatch(label):
        return ev.KERNEL
    word = tables.load_formats().chrome_processes.get(label)
    return NONE if word is None else ev.KINDS.index(word.value)


def _arrows(events: list[dict[str, Any]]) -> dict[tuple[str, str, str], int]:
    """Return the number of the arrow at each place: process, thread and stamp in us."""
    places: dict[tuple[str, str, str], int] = {}
    for each in events:
        if each.get("cat") == "DataFlow" and each.get("ph") in ("s", "t"):
            # 0 stands for none, and arrows are counted from 0.
            places[_place_of(each)] = int(each.get("id", 0)) + 1
    return places


def _place_of(event: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(event.get("pid")), str(event.get("tid")), str(event.get("ts"))


def _take_spans(
    spans: list[dict[str, Any]],
    kinds: Ints,
    joined: Mapping[tuple[str, str, str], int],
    rows: tables.Rows,
) -> None:
    args = [each["args"] for each in spans]

    def number(name: str) -> Ints:
        return tables.whole_numbers([str(each.get(name, "")) for each in args])

    on_device = np.isin(kinds, ev.ON_DEVICE)
    rows.add(
        kind=kinds,
        names=[str(each.get("name", "")).removesuffix(".kd") for each in spans],
        start_ns=number("BeginNs"),
        end_ns=number("EndNs"),
        process=np.where(on_device, number("dev-id"), number("pid")),
        thread=np.where(on_device, number("stream-id"), number("tid")),
        correlation=np.array([joined.get(_place_of(each), NONE) for each in spans], np.int64),
    )
