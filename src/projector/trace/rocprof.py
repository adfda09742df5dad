"""Traces of ROCm's profilers: rocprofv3 (JSON and CSV), rocprof 1 and 2 (CSV, and 1's Chrome JSON).

They know devices, queues and calls of HIP, and nothing of the framework: no operators, no modules,
and annotations only where the program marked ranges with ROCTX. Their stamps are nanoseconds since
the machine was started, the same clock for all processes of it.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from projector.arrays import Ints
from projector.errors import ConfigError
from projector.trace import events as ev
from projector.trace.csv_file import Table, load_formats, read_table
from projector.trace.events import NONE, Problem, RankTrace
from projector.trace.notes import Notes
from projector.trace.rocprof_json import read_chrome, read_tool
from projector.trace.rows import Rows, call_kind, copy_names
from projector.trace.sources import Source

HEAD_BYTES = 65_536
_TOOL = re.compile(r'^\s*\{\s*"rocprofiler-sdk-tool"')
_CHROME = re.compile(r'^\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}')
_HEADING = ("kernel", "function", "direction")


def format_of(path: Path) -> str:
    """Return which of these formats a file is of, nothing if it is of none.

    Returns
    -------
    str
        ``rocprofv3 json``, ``rocprof json``, ``csv`` of a trace, or nothing. Counters are no
        trace: their CSV is read by `projector.trace.counters`.
    """
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
    """Return what the heading of a CSV says that its rows are."""
    lines = head.splitlines()
    headings = lines[0].replace('"', "").split(",") if lines else []
    empty = np.zeros(0, np.int64)
    return kind_of(Table("", tuple(headings), tuple(empty for _ in headings), empty, ()))


def kind_of(table: Table) -> str:
    """Return ``kernels``, ``calls`` or ``copies``, nothing for what is no part of a trace."""
    if not table.has("start_ns", "end_ns") or table.has("counter"):
        return ""
    if table.has("direction"):
        return "copies"
    if table.has("function"):
        return "calls"
    return "kernels" if table.has("kernel") else ""


def group_files(paths: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Return the files of each trace: the CSVs of one process belong together.

    Those are named alike but for an ending such as ``_kernel_trace.csv``.
    """
    groups: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        name = path.name.removesuffix(".gz")
        stem = name.removesuffix(".csv")
        if stem != name:
            endings = load_formats().file_endings.value
            ending = next((each for each in endings if stem.endswith(each)), "")
            name = "csv:" + stem.removesuffix(ending).rstrip("_") if ending else name
        groups.setdefault((path.parent, name), []).append(path)
    return [tuple(files) for files in groups.values()]


def read_rocprof(paths: Sequence[Path]) -> list[RankTrace]:
    """Return the traces that some files hold.

    Parameters
    ----------
    paths : sequence of Path
        One JSON, or the CSVs of one process.

    Returns
    -------
    list of RankTrace
        One a process; a rank of -1 where no rank is known.
    """
    which = format_of(paths[0])
    if which == "rocprofv3 json":
        return read_tool(paths[0])
    if which == "rocprof json":
        return [read_chrome(paths[0])]
    return [_read_csv(paths)]


def _read_csv(paths: Sequence[Path]) -> RankTrace:
    rows = Rows()
    problems: list[Problem] = []
    modern = False
    for path in paths:
        table = read_table(path, heading=_HEADING)
        problems += table.problems
        which = kind_of(table)
        modern = modern or table.has("correlation")
        if which == "kernels":
            _take_kernels(table, rows)
        elif which == "copies":
            _take_copies(table, rows)
        elif which == "calls":
            _take_calls(table, rows)
    return rows.trace(
        path=str(paths[0]), which="rocprofv3" if modern else "rocprof", problems=problems
    )


def _take_kernels(table: Table, rows: Rows) -> None:
    """Take dispatches: of `rocprofv3`'s kernel trace, or of results of older ones."""
    stream = table.ints("stream")
    if not (stream > 0).any():
        # Streams are 0 unless they were asked for; queues tell apart what may run together.
        stream = table.ints("queue")
    rows.add(
        kind=ev.KERNEL,
        names=[name.removesuffix(".kd") for name in table.text("kernel") or ()],
        start_ns=table.ints("start_ns"),
        end_ns=table.ints("end_ns"),
        process=table.ints("device"),
        thread=stream,
        correlation=table.ints("correlation"),
        detail=rows.grids(_work_items(table, "grid"), _work_items(table, "block")),
        table=table,
    )


def _work_items(table: Table, what: str) -> Ints:
    """Return int64[rows, 3], the extents of a grid or of a group."""
    if table.has(f"{what}_x"):
        return np.stack([table.ints(f"{what}_{axis}") for axis in "xyz"], axis=1)
    whole = table.ints(what)
    known = np.where(whole == NONE, NONE, 1)
    return np.stack([whole, known, known], axis=1)


def _take_copies(table: Table, rows: Rows) -> None:
    directions = table.text("direction") or ()
    source, target = table.ints("source_device"), table.ints("target_device")
    to_host = np.array(["DEVICE_TO_HOST" in each for each in directions], bool)
    rows.add(
        kind=ev.COPY,
        names=copy_names(directions),
        start_ns=table.ints("start_ns"),
        end_ns=table.ints("end_ns"),
        process=np.where(to_host, source, target),
        thread=table.ints("stream"),
        correlation=table.ints("correlation"),
        table=table,
    )


def _take_calls(table: Table, rows: Rows) -> None:
    """Take calls of HIP as launches and marked ranges as annotations."""
    domains = table.text("domain") or [""] * len(table)
    names = list(table.text("function") or ())
    kernels = table.text("kernel")
    if kernels is not None:
        # The second rocprof writes dispatches among the calls.
        names = [kernel or name for kernel, name in zip(kernels, names, strict=True)]
    kinds = np.array(
        [
            ev.KERNEL if kernels and kernels[row] else call_kind(domain)
            for row, domain in enumerate(domains)
        ],
        np.int64,
    )
    for domain in set(domains):
        if call_kind(domain) == NONE:
            rows.skipped[domain] += sum(each == domain for each in domains)
    rows.add(
        kind=kinds,
        names=names,
        start_ns=table.ints("start_ns"),
        end_ns=table.ints("end_ns"),
        process=table.ints("process"),
        thread=table.ints("thread"),
        correlation=table.ints("correlation"),
        table=table,
        keep=kinds != NONE,
    )
