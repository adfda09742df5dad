"""What was sampled beside a run: utilisation of cores, clocks and power of devices.

Read are the JSON lines of our own recorder, ``mpstat -P ALL -o JSON``, ``sadf -j``, the CSV of
``nvidia-smi --query-gpu``, CSV and JSON of ``rocm-smi`` and ``amd-smi``, and CSVs with a column of
times and one for each core or device. Which logical cores share a physical one comes from the file
itself or from that of ``lscpu -p``.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.errors import ConfigError
from projector.trace.amd_samples import LAST_NS, is_amd, read_amd
from projector.trace.events import NONE, NS_PS, Problem, Samples
from projector.trace.profiler_tables import load_formats, numbers, open_text, plain, whole_numbers
from projector.trace.rocprof import read_head
from projector.trace.sources import named_files, rank_in

OWN_FORMAT = "projector samples"
OWN_ENDING = ".samples.jsonl"
MOST_CORES = 1 << 20
"""Logical cores of one machine; no larger number is one."""
S_NS = 1_000_000_000
LEAST_NS = 1_000_000_000 * S_NS
"""Smaller stamps are no times since 1970; rocprof counts from the start of the machine."""

ZONE_NS = 15 * 60 * S_NS
"""Clocks on walls differ by multiples of this."""

DAY_NS = 24 * 3600 * S_NS

READ = (
    "samples of `projector trace record`, `mpstat -P ALL -o JSON`, `sadf -j` or `sadf -d`, "
    "`nvidia-smi --query-gpu=timestamp,... --format=csv`, `rocm-smi` and `amd-smi` (--csv or "
    "--json, with times), `lscpu -p`, and CSVs with a time and a column a core or device"
)


@dataclass(frozen=True, slots=True)
class _Read:
    what: str
    time_ns: Ints
    values: Floats
    columns: tuple[str, ...]
    physical: Ints | None = None
    local: bool = False
    """Whether the times are those of a clock on a wall, of a zone that is not known."""


def read_samples(
    paths: Sequence[str | Path], *, zero_ns: int = 0, span_ns: int = 0
) -> tuple[Samples, ...]:
    """Return all that files, folders or patterns hold, one entry a quantity of a file.

    A file of ``lscpu -p`` among them says of the others which logical cores share a physical one.
    The zero of the trace is in ns since 1970; without it times are counted from the first sample.
    By the length of the trace, times of a clock on a wall find their zone.
    """
    maps: list[Ints] = []
    found: list[Samples] = []
    for path in sample_files(paths):
        cores = read_cores(path)
        if cores is not None:
            maps.append(cores)
            continue
        found += _read_file(path, zero_ns, span_ns)
    return tuple(_with_map(each, maps) for each in found)


def sample_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the files that files, folders and patterns stand for."""
    found = (named_files([each], "samples", partial(_inside, str(each))) for each in paths)
    return list(dict.fromkeys(path for files in found for path in files))


def _inside(given: str, folder: Path) -> list[Path]:
    inside = sorted(folder.glob(f"*{OWN_ENDING}"))
    if not inside:
        msg = f"samples: no file of {folder} ends in {OWN_ENDING}; name the files"
        raise ConfigError(msg, key="samples", value=given, allowed="files of samples")
    return inside


def read_cores(path: Path) -> Ints | None:
    """Return the physical core of each logical one (``lscpu -p``, `NONE` left out), else None."""
    lines = read_head(path).splitlines()
    heading = next((line for line in lines if line.startswith("# CPU,")), None)
    if heading is None:
        return None
    names = [name.strip().lower() for name in heading[1:].split(",")]
    if "core" not in names:
        return None
    places = {name: names.index(name) for name in ("cpu", "core", "socket") if name in names}
    physical: dict[tuple[str, str], int] = {}
    cores: dict[int, int] = {}
    for line in lines:
        fields = line.split(",")
        if line.startswith("#") or len(fields) <= max(places.values()):
            continue
        logical = fields[places["cpu"]]
        if not logical.isdigit() or int(logical) >= MOST_CORES:
            continue
        socket = fields[places["socket"]] if "socket" in places else ""
        key = (socket, fields[places["core"]])
        cores[int(logical)] = physical.setdefault(key, len(physical))
    return np.array([cores.get(n, NONE) for n in range(max(cores, default=-1) + 1)], np.int64)


def _with_map(samples: Samples, maps: Sequence[Ints]) -> Samples:
    """Give cores the map of ``lscpu``, where their own file had none."""
    if samples.what != "cpu_percent" or samples.physical_core is not None or not maps:
        return samples
    numbered = [_number_in(name) for name in samples.columns]
    cores = maps[0]
    if not numbered or min(numbered) < 0 or max(numbered) >= len(cores):
        return samples
    return replace(samples, physical_core=cores[np.array(numbered, np.int64)])


def _number_in(name: str) -> int:
    found = re.search(r"\d+", name)
    return int(found[0]) if found else NONE


def _read_file(path: Path, zero_ns: int, span_ns: int) -> list[Samples]:
    problems: list[Problem] = []
    head = read_head(path).lstrip()
    rank = rank_in(path.name)
    try:
        first = json.loads(head.splitlines()[0]) if head.startswith("{") else None
    except ValueError:
        first = None
    if isinstance(first, dict) and first.get("format") == OWN_FORMAT:
        read = _own(path, first, problems)
        rank = first["rank"] if isinstance(first.get("rank"), int) else rank
    elif is_amd(head):
        found = read_amd(path, problems)
        read = []
        for what, values in found.values.items():
            told = np.flatnonzero(~np.isnan(values))
            devices = [found.devices[row] for row in told.tolist()]
            read.append(_spread(what, found.time_ns[told], values[told], devices, local=False))
    elif head.startswith("{"):
        read = _sysstat(path, problems)
    else:
        read = _csv(path, problems)
    if not read and not path.name.endswith(OWN_ENDING):
        why = f" ({problems[-1].text})" if problems else ""
        msg = f"samples: {path} holds no samples that are known{why}; {READ} are read"
        raise ConfigError(msg, key="samples", value=str(path), allowed=READ)
    if not read:  # a recorder that was killed
        problems.append(Problem(str(path), "", "no samples that are known, nothing read"))
        none = np.zeros((0, 0))
        read = [_Read("", np.zeros(0, np.int64), none, ())]
    return [_placed(path, each, zero_ns, span_ns, rank, problems) for each in read]


def _placed(
    path: Path, read: _Read, zero_ns: int, span_ns: int, rank: int, problems: list[Problem]
) -> Samples:
    told, time_ns = list(problems), read.time_ns
    if len(time_ns) and zero_ns < LEAST_NS:
        zero_ns = int(time_ns[0])
        told.append(Problem(str(path), "", "no clock of the trace is known; first sample at zero"))
    if len(time_ns) and read.local:
        shift = zone_shift(time_ns, zero_ns, span_ns)
        if shift:
            text = f"taken as of a zone {shift / 3600 / S_NS:+g} hours from UTC, as the trace is"
            told.append(Problem(str(path), "", text))
        time_ns = time_ns - shift
    inside = np.abs(time_ns - zero_ns) < (1 << 63) // NS_PS - 1
    if not inside.all():
        told.append(Problem(str(path), "", "samples more than 106 days from the trace, left out"))
    time_ns, values = time_ns[inside], read.values[inside]
    order = np.argsort(time_ns, kind="stable")
    if read.what == "cpu_percent":
        # One rank writes them for all ranks of its machine.
        rank = NONE
    return Samples(
        path=str(path), what=read.what, time_ps=(time_ns[order] - zero_ns) * NS_PS,
        values=values[order], columns=read.columns, physical_core=read.physical, rank=rank,
        problems=tuple(told),
    )  # fmt: skip


def zone_shift(time_ns: Ints, zero_ns: int, span_ns: int) -> int:
    """Return what local times are ahead of UTC, so that they meet a trace.

    Zones differ by quarters of an hour, of which the one nearest to UTC is taken that lets the
    middle of the samples lie nearest to the middle of the trace. 0 if the samples meet the trace as
    they are.
    """
    first, last = int(time_ns.min()), int(time_ns.max())
    if first <= zero_ns + span_ns and last >= zero_ns:
        return 0
    apart = (first + last) // 2 - (zero_ns + span_ns // 2)
    shift = round(apart / ZONE_NS) * ZONE_NS
    return shift if abs(shift) <= DAY_NS else 0


def _own(path: Path, head: Mapping[str, Any], problems: list[Problem]) -> list[_Read]:
    """Read our own: a line of what is sampled, then a line a sample."""
    columns = head.get("columns")
    if not isinstance(columns, dict):
        problems.append(Problem(str(path), "line 1", "it names no columns"))
        return []
    found: dict[str, list[tuple[int, list[float]]]] = {name: [] for name in columns}
    with open_text(path) as stream:
        for line, text in enumerate(stream, 1):
            if line == 1 or not text.strip():
                continue
            try:
                entry = json.loads(text)
                time_ns = _stamp(entry)
                taken = {
                    name: _floats(entry[name], columns[name]) for name in columns if name in entry
                }
            except (ValueError, KeyError, TypeError, OverflowError):
                problems.append(Problem(str(path), f"line {line:,}", "no sample, left out"))
                continue
            for name, values in taken.items():
                found[name].append((time_ns, values))
    physical = head.get("physical_core")
    return [
        _Read(
            name,
            np.array([time_ns for time_ns, _ in rows], np.int64),
            np.array([row for _, row in rows], np.float64).reshape(len(rows), len(columns[name])),
            tuple(map(str, columns[name])),
            _physical(physical, len(columns[name])) if name == "cpu_percent" else None,
        )
        for name, rows in found.items()
        if rows
    ]


def _stamp(entry: Mapping[str, Any]) -> int:
    time_ns = int(entry["time_ns"])
    if not 0 < time_ns < LAST_NS:
        raise ValueError(f"{time_ns} ns is no time of this century")
    return time_ns


def _floats(values: Any, labels: Sequence[Any]) -> list[float]:
    row = [np.nan if value is None else float(value) for value in values]
    if len(row) != len(labels):
        raise ValueError(f"{len(row)} values of {len(labels)}")
    return row


def _physical(given: Any, count: int) -> Ints | None:
    if isinstance(given, list) and len(given) == count and all(isinstance(n, int) for n in given):
        return np.array(given, np.int64)
    return None


def _sysstat(path: Path, problems: list[Problem]) -> list[_Read]:
    """Read the JSON of mpstat and of sadf, which differ in their times and names."""
    try:
        with open_text(path) as stream:
            document = json.load(stream)
        hosts = document["sysstat"]["hosts"]
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        problems.append(Problem(str(path), "", f"no JSON of mpstat or sadf: {error!r}"))
        return []
    found = []
    for host in hosts:
        date = str(host.get("date", host.get("file-date", "")))
        times, rows, physical = [], [], {}
        utc = False
        for entry in host.get("statistics", ()):
            loads = entry.get("cpu-load") or entry.get("cpu-load-all") or ()
            # A mapping, or of mpstat the time of the day.
            said = entry.get("timestamp")
            said = said if isinstance(said, dict) else {"time": said}
            stamp = time_of(f"{said.get('date', date)} {said.get('time', '')}")
            utc = bool(said.get("utc"))
            if stamp is None or not loads:
                problems.append(Problem(str(path), "", "an entry without time or cores, left out"))
                continue
            rows.append({str(load.get("cpu")): _busy(load) for load in loads})
            times.append(stamp)
            for load in loads:
                if load.get("core") not in (None, ""):
                    physical[str(load["cpu"])] = (str(load.get("socket")), str(load["core"]))
        if rows:
            # A day is added wherever the time of the day falls back.
            stamps = np.array(times, np.int64)
            stamps += np.cumsum(np.diff(stamps, prepend=stamps[:1]) < -DAY_NS // 2) * DAY_NS
            found.append(_cores(stamps, rows, physical, local=not utc))
    return found


def _busy(load: Mapping[str, Any]) -> float:
    """Return what a core was in use for, in percent: neither idle nor waiting for a disk."""
    try:
        idle = next(float(load[name]) for name in ("idle", "%idle") if name in load)
        waiting = next((float(load[n]) for n in ("iowait", "%iowait") if n in load), 0.0)
    except (StopIteration, TypeError, ValueError):
        return np.nan
    return max(0.0, 100.0 - idle - waiting)


_PATTERNS = (
    "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S",
    "%m/%d/%y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%m/%d/%y %I:%M:%S %p",
    "%m/%d/%Y %I:%M:%S %p", "%Y-%m-%d %I:%M:%S %p",
)  # fmt: skip


def time_of(text: str) -> int | None:
    """Return a date with a time, as tools write them, in ns since 1970; None if it is neither."""
    text = text.strip().removesuffix(" UTC").replace("T", " ", 1)
    for pattern in _PATTERNS:
        try:
            when = datetime.strptime(text, pattern).replace(tzinfo=UTC)
        except ValueError:
            continue
        return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    return None


def _cores(
    time_ns: Ints,
    rows: Sequence[Mapping[str, float]],
    physical: Mapping[str, tuple[str, str]],
    *,
    local: bool,
) -> _Read:
    """Return the table of cores; the average of all is left out where single ones are there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    single = sorted((name for name in names if name.isdigit()), key=int)
    columns = single or names
    values = np.array([[row.get(name, np.nan) for name in columns] for row in rows], np.float64)
    numbered: dict[tuple[str, str], int] = {}
    known = [numbered.setdefault(physical[n], len(numbered)) for n in columns if n in physical]
    whole = np.array(known, np.int64) if len(known) == len(columns) else None
    return _Read("cpu_percent", time_ns, values, tuple(f"cpu{n}" for n in columns), whole, local)


def _csv(path: Path, problems: list[Problem]) -> list[_Read]:
    """Read a CSV with a column of times; one that names the core or device makes it a long one."""
    with open_text(path) as stream:
        lines = [line.rstrip("\r\n") for line in stream if line.strip()]
    if len(lines) < 2:
        return []
    sign = ";" if lines[0].count(";") > lines[0].count(",") else ","
    headings = [field.strip(' "#') for field in lines[0].split(sign)]
    rows = []
    for line, text in enumerate(lines[1:], 2):
        fields = [field.strip(' "') for field in text.split(sign)]
        if len(fields) != len(headings):
            told = f"a row of {len(fields)} fields, not {len(headings)}, left out"
            problems.append(Problem(str(path), f"line {line:,}", told))
            continue
        rows.append(fields)
    if not rows:
        return []
    table = dict(zip(headings, (list(c) for c in zip(*rows, strict=True)), strict=True))
    times = _csv_times(table)
    if not table or times is None:
        return []
    time_ns, local = times
    good = time_ns > 0
    if not good.all():
        problems.append(Problem(str(path), "", f"{int((~good).sum()):,} rows without a time"))
    found = _long(table, time_ns, local) or _wide(table, time_ns, local)
    return [
        replace(each, time_ns=each.time_ns[each.time_ns > 0], values=each.values[each.time_ns > 0])
        for each in found
    ]


def _csv_times(table: Mapping[str, Sequence[str]]) -> tuple[Ints, bool] | None:
    """Return times in ns since 1970 and whether they are those of a clock on a wall."""
    scales = {"timens": 1, "timeus": 1e3, "timems": 1e6, "times": S_NS, "timestamp": S_NS,
              "time": S_NS, "epoch": S_NS}  # fmt: skip
    for heading, column in table.items():
        scale = scales.get(plain(heading))
        if scale is None:
            continue
        stamps = numbers(list(column))
        if np.isfinite(stamps).any():
            if scale == 1:
                whole = whole_numbers(list(column))
                return np.where((whole > 0) & (whole < LAST_NS), whole, 0), False
            good = (stamps > 0) & (stamps < LAST_NS / scale)
            whole_s = np.floor(np.where(good, stamps, 0.0))
            rest_ns = np.rint((np.where(good, stamps, 0.0) - whole_s) * scale)
            return (whole_s * scale).astype(np.int64) + rest_ns.astype(np.int64), False
        written = [time_of(text) or 0 for text in column]
        if any(written):
            return np.array(written, np.int64), not column[0].endswith("UTC")
    return None


def _quantity(heading: str) -> tuple[str, float]:
    """Return what a column holds and the factor to our unit; nothing for other columns."""
    words = load_formats().sampled
    key = plain(heading)
    for word, entry in words.items():
        if word in key:
            return entry.value, entry.factor
    return "", 1.0


def _long(table: Mapping[str, Sequence[str]], time_ns: Ints, local: bool) -> list[_Read]:
    which = next((table[h] for h in table if plain(h) in ("cpu", "index", "gpu", "device")), None)
    if which is None:
        return []
    if any(plain(heading) == "idle" for heading in table):
        loads = [
            dict(zip(map(plain, table), row, strict=True))
            for row in zip(*table.values(), strict=True)
        ]
        busy = np.array([_busy(load) for load in loads])
        labels = ["all" if name in ("-1", "all") else name for name in which]
        return [_spread("cpu_percent", time_ns, busy, labels, local)]
    found = []
    for heading, column in table.items():
        what, factor = _quantity(heading)
        if what:
            amounts = numbers([text.split(" ")[0] for text in column]) * factor
            found.append(_spread(what, time_ns, amounts, which, local))
    return found


def _spread(what: str, time_ns: Ints, amounts: Floats, labels: Sequence[str], local: bool) -> _Read:
    """Return a table of times and columns from one with a row for each of both."""
    distinct = sorted(set(labels), key=lambda name: (not name.isdigit(), name.zfill(8)))
    if what == "cpu_percent" and len(distinct) > 1:
        distinct = [name for name in distinct if name.isdigit()]
    columns = {name: i for i, name in enumerate(distinct)}
    if what != "cpu_percent":
        # Devices are asked one after the other: a new row begins when one comes again.
        round_of = _rounds([columns[name] for name in labels])
        stamps = time_ns[np.unique(round_of, return_index=True)[1]]
    else:
        stamps, round_of = np.unique(time_ns, return_inverse=True)
    values = np.full((len(stamps), len(distinct)), np.nan)
    for row, name, amount in zip(round_of.tolist(), labels, amounts.tolist(), strict=True):
        if name in columns:
            values[row, columns[name]] = amount
    prefix = "cpu" if what == "cpu_percent" else "device "
    named = tuple(f"{prefix}{name}" if name.isdigit() else name for name in distinct)
    return _Read(what, stamps.astype(np.int64), values, named, None, local)


def _rounds(columns: Iterable[int]) -> Ints:
    seen: set[int] = set()
    number, found = 0, []
    for column in columns:
        if column in seen:
            number, seen = number + 1, set()
        seen.add(column)
        found.append(number)
    return np.array(found, np.int64)


def _wide(table: Mapping[str, Sequence[str]], time_ns: Ints, local: bool) -> list[_Read]:
    groups: dict[str, list[str]] = {}
    for heading in table:
        is_core = re.fullmatch(r"(cpu|core)?\d+(percent)?", plain(heading))
        if what := "cpu_percent" if is_core else _quantity(heading)[0]:
            groups.setdefault(what, []).append(heading)
    found = []
    for what, headings in groups.items():
        factors = [1.0 if what == "cpu_percent" else _quantity(each)[1] for each in headings]
        columns = [numbers([text.split(" ")[0] for text in table[each]]) for each in headings]
        values = np.stack([c * f for c, f in zip(columns, factors, strict=True)], axis=1)
        names = (f"cpu{_number_in(h)}" if what == "cpu_percent" else h for h in headings)
        found.append(_Read(what, time_ns, values, tuple(names), None, local))
    return found
