"""Reading traces: files, folders and patterns, of one rank or many."""

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from projector.errors import ConfigError
from projector.trace.counters import counter_files, counters_of_trace, read_counters
from projector.trace.events import NONE, NS_PS, Counters, Problem, RankTrace, Samples, Trace
from projector.trace.kineto import Reading, read_kineto
from projector.trace.pieces import LEAST_BYTES, MOST_WORKERS, Workers, open_events
from projector.trace.rocprof import format_of, group_files, read_rocprof
from projector.trace.samples import OWN_ENDING, read_samples, sample_files
from projector.trace.sources import BLOCK_BYTES, LEFT_OUT, Notes, Source, named_files

Progress = Callable[[int, int, int], None]
"""Called with the bytes read, the bytes to read and the events found."""

XPLANE = ".xplane.pb"
_XPLANES = (f"*{XPLANE}", f"plugins/profile/*/*{XPLANE}")
"""Where JAX leaves its protobufs in a folder."""

ENDINGS = (".json", ".json.gz")
TABLES = (".csv", ".csv.gz")
"""Ends of the names of files that are read of a folder."""

PACKED = 12
"""A packed trace is about a twelfth of its size."""

_RANK = re.compile(r"rank[_\-]?(\d+)|(?<=[.])(\d{1,5})(?=[.])", re.IGNORECASE)
"""Longer numbers between dots are processes or times."""
_FAR_NS = 1 << 52


Beside = TypeVar("Beside", Counters, Samples)


class NoTraceError(ConfigError):
    """A file that holds no trace."""


def load_trace(
    *paths: str | Path,
    counters: Sequence[str | Path] = (),
    samples: Sequence[str | Path] = (),
    progress: Progress | None = None,
    only: Iterable[int] | None = None,
) -> Trace:
    """Read the traces of a run, one file a rank, their times from one zero.

    What was wrong with the files, and what was left out of them, is in the ``problems`` of the
    trace. Without samples those count that our recorder wrote into a folder of the traces.
    """
    files = named_files(paths, "trace", _inside)
    counted = counter_files(counters)
    sampled = sample_files(
        samples or [folder for folder in map(Path, paths) if any(folder.glob(f"*{OWN_ENDING}"))]
    )
    told = _Told(progress, sum(map(_size, files)))
    readings: list[Reading] = []
    left: list[Problem] = []
    with Workers(_workers(files)) as workers:
        for group in group_files(files):
            try:
                if format_of(group[0]):
                    readings += [Reading(r, (), len(r.events)) for r in read_rocprof(group)]
                else:  # those of Kineto stand alone
                    readings.append(_read(group[0], workers, told))
            except NoTraceError as error:
                if any(files[path] for path in group):
                    raise
                why = error.message.removeprefix("trace: ")
                left.append(Problem(str(group[0]), "", f"{LEFT_OUT}{why}"))
            told.next(group)
    if not readings:
        folders = filter(Path.is_dir, map(Path, paths))
        planes = (p for folder in folders for pattern in _XPLANES for p in folder.glob(pattern))
        if not left and (plane := min(planes, default=None)) is not None:
            raise _no_trace(plane, _of_xplane(plane))
        msg = f"trace: no trace in {_listed(paths)}" + (f"; {left[0].text}" if left else "")
        raise ConfigError(msg, key="trace", value=_listed(paths), allowed="Kineto traces")
    trace = _join(_numbered(readings), left, only)
    return replace(
        trace,
        counters=_of_ranks(trace, (*map(counters_of_trace, trace.ranks), *_counted(counted))),
        samples=(*trace.samples, *_of_ranks(trace, _sampled(trace, sampled))),
    )


def _counted(paths: Iterable[Path]) -> Iterator[Counters]:
    """Yield the counters of files: tables, or traces of CUPTI's range profiler."""
    for path in paths:
        found: list[Counters] = []
        if path.name.endswith(ENDINGS) and not format_of(path):
            with Workers(_workers([path])) as workers, suppress(NoTraceError):
                rank = _read(path, workers, _Told(None, 0)).rank
                spoilt = tuple(problem for problem in rank.problems if problem.where)
                own = counters_of_trace(replace(rank, rank=_rank_told(rank)))
                found = [replace(own, problems=spoilt)] if own else []
        yield from found or read_counters(path)


def _rank_told(rank: RankTrace) -> int:
    """Return the number of a rank: its own, else that of its name, else `NONE`."""
    named = rank_of_name(Path(rank.path).name)
    return rank.rank if rank.rank >= 0 else NONE if named is None else named


def _of_ranks(trace: Trace, found: Iterable[Beside | None]) -> tuple[Beside, ...]:
    """Return what is of a rank that the trace has, or of no certain one."""
    ranks = {NONE, *(rank.rank for rank in trace.ranks)}
    return tuple(each for each in found if each is not None and each.rank in ranks)


def _sampled(trace: Trace, paths: Sequence[Path]) -> tuple[Samples, ...]:
    """Return what was sampled beside a run, from the zero of its first rank."""
    ends = (rank.events.start_ps + rank.events.duration_ps for rank in trace.ranks)
    last_ps = max((int(end.max()) for end in ends if len(end)), default=0)
    return read_samples(paths, zero_ns=trace.ranks[0].zero_ns, span_ns=last_ps // NS_PS)


def _listed(paths: Sequence[str | Path]) -> str:
    return ", ".join(map(str, paths)) or "nothing"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _workers(files: Iterable[Path]) -> int:
    """Return how many processes are worth their start, none for small files."""
    unpacked = sum(_size(path) * (PACKED if path.suffix == ".gz" else 1) for path in files)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST_WORKERS) if unpacked >= LEAST_BYTES else 0


class _Told:
    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress, self._total_bytes = progress, total_bytes
        self._before_bytes, self._before, self._events = 0, 0, 0

    def __call__(self, read_bytes: int, events: int) -> None:
        """Tell how far the file at hand is."""
        self._events = events
        if self._progress is not None:
            self._progress(
                self._before_bytes + read_bytes, self._total_bytes, self._before + events
            )

    def next(self, files: Iterable[Path]) -> None:
        """Go on behind some files."""
        self._before_bytes += sum(map(_size, files))
        self._before += self._events
        self._events = 0


def _read(path: Path, workers: Workers, told: _Told) -> Reading:
    if path.name.endswith(XPLANE):
        raise _no_trace(path, _of_xplane(path))
    notes = Notes()
    with Source(path, notes) as source:
        first = source.read(BLOCK_BYTES)
        if not first.strip():
            raise _no_trace(path, "is empty")
        opening = open_events(source, first, notes)
        if opening is None:
            raise _no_trace(path, "holds no list of events (traceEvents)")
        reading = read_kineto(source, opening, notes, workers, told)
    if not len(reading.rank.events):
        problems = reading.rank.problems
        why = f" ({problems[0].text})" if problems else ""
        raise _no_trace(path, f"holds no events of a profiler{why}")
    return reading


def _of_xplane(path: Path) -> str:
    """Say what to read instead of a protobuf of JAX."""
    beside = sorted(path.parent.glob("*trace.json.gz"))
    instead = (
        f"name {beside[0]}, which lies beside it"
        if beside
        else "record with jax.profiler.trace(FOLDER, create_perfetto_trace=True) and name the "
        "perfetto_trace.json.gz that it writes beside it"
    )
    return f"is a protobuf of JAX (XLA), which is not read; {instead}"


def _no_trace(path: Path, why: str) -> NoTraceError:
    return NoTraceError(
        f"trace: {path} {why}", key="trace", value=str(path), allowed="a Kineto trace"
    )


def _numbered(readings: list[Reading]) -> list[Reading]:
    """Give a rank to each file: its own, that of its name, or the next one that is free."""
    found: dict[int, Reading] = {}
    for reading in readings:
        number = reading.rank.rank
        if number >= 0 and number in found:
            both = f"{found[number].rank.path} and {reading.rank.path}"
            msg = f"trace: {both} are both of rank {number}; name one file for each rank"
            raise ConfigError(msg, key="trace", value=both, allowed="one file a rank")
        if number >= 0:
            found[number] = reading
    unnumbered = [reading for reading in readings if reading.rank.rank < 0]
    files = Counter(reading.rank.path for reading in unnumbered)
    free = (number for number in itertools.count() if number not in found)
    for reading in unnumbered:
        named = rank_of_name(Path(reading.rank.path).name)
        taken = named is None or named in found or files[reading.rank.path] > 1
        found[next(free) if taken or named is None else named] = reading
    return [
        reading._replace(
            rank=replace(reading.rank, rank=number),
            samples=tuple(replace(samples, rank=number) for samples in reading.samples),
        )
        for number, reading in sorted(found.items())
    ]


def _join(readings: list[Reading], left: list[Problem], only: Iterable[int] | None) -> Trace:
    wanted = None if only is None else set(only)
    kept = [r for r in readings if wanted is None or r.rank.rank in wanted]
    if not kept:
        ranks = [r.rank.rank for r in readings]
        few = ", ".join(map(str, ranks[:20])) + (" ..." if len(ranks) > 20 else "")
        msg = f"ranks: {sorted(wanted or ())} are not among those of the trace: {few}"
        raise ConfigError(msg, key="ranks", value=sorted(wanted or ()), allowed=ranks)
    zero_ns = min(reading.rank.zero_ns for reading in kept)
    if any(reading.rank.zero_ns - zero_ns > _FAR_NS for reading in kept):
        first = kept[0].rank
        text = "the clocks of the ranks are far apart; each rank has a zero of its own"
        left = [*left, Problem(first.path, "", text)]
    else:
        kept = [_shifted(reading, zero_ns) for reading in kept]
    first, *others = (reading.rank for reading in kept)
    first = replace(first, problems=(*first.problems, *left))
    return Trace(
        ranks=(first, *others), samples=tuple(s for reading in kept for s in reading.samples)
    )


def _shifted(reading: Reading, zero_ns: int) -> Reading:
    shift_ps = (reading.rank.zero_ns - zero_ns) * NS_PS
    if not shift_ps:
        return reading
    rank = reading.rank
    events = replace(rank.events, start_ps=rank.events.start_ps + shift_ps)
    links = tuple(
        replace(
            link, forward_ps=link.forward_ps + shift_ps, backward_ps=link.backward_ps + shift_ps
        )
        for link in rank.links
    )
    samples = tuple(replace(s, time_ps=s.time_ps + shift_ps) for s in reading.samples)
    moved: RankTrace = replace(rank, events=events, links=links, zero_ns=zero_ns)
    return reading._replace(rank=moved, samples=samples)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if _is_trace(path))
    except OSError as error:
        msg = f"trace: {folder} cannot be read ({error.strerror or error})"
        raise ConfigError(msg, key="trace", value=str(folder), allowed="a folder") from None


def _is_trace(path: Path) -> bool:
    if path.name.endswith(TABLES):
        return bool(format_of(path))
    return path.name.endswith(ENDINGS) and path.is_file()


def rank_of_name(name: str) -> int | None:
    """Return the rank that the name of a file tells, such as ``rank3`` or ``trace.3.json``."""
    match = _RANK.search(name)
    return int(match[1] or match[2]) if match else None
