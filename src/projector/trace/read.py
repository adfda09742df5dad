"""Reading traces: files, folders and patterns, of one rank or many."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from projector.errors import ConfigError
from projector.trace.events import RankTrace, Trace
from projector.trace.kineto import read_kineto
from projector.trace.rocprof import format_of, group_files, read_rocprof

Progress = Callable[[int, int, int], None]
"""Called with the bytes read, the bytes to read and the events found."""

_ENDINGS = (".json", ".json.gz")
_TABLES = (".csv", ".csv.gz")
_RANK = re.compile(r"rank[_\-]?(\d+)|[._\-](\d+)[._]", re.IGNORECASE)


def load_trace(
    *paths: str | Path,
    counters: Sequence[str | Path] = (),
    samples: Sequence[str | Path] = (),
    progress: Progress | None = None,
    only: Iterable[int] | None = None,
) -> Trace:
    """Read the traces of a run, one file a rank.

    Parameters
    ----------
    paths : str or Path
        Files, folders or patterns such as ``logs/*.json.gz``.
    counters : sequence of str or Path
        Files of hardware counters of the same run, repeated with serialised kernels.
    samples : sequence of str or Path
        Files of what was sampled beside the run: utilisation, clocks, power.
    progress : callable, optional
        Called with the bytes read, the bytes to read and the events found.
    only : iterable of int, optional
        Ranks to read; all if left out.

    Returns
    -------
    Trace
        The ranks, by rank.

    Raises
    ------
    ConfigError
        A path that is not there, or a file that is no trace.
    """
    _ = counters, samples, progress  # not read yet
    files = trace_files(paths)
    wanted = None if only is None else set(only)
    ranks: list[RankTrace] = []
    for group in group_files(files):
        found = read_rocprof(group) if format_of(group[0]) else [read_kineto(group[0])]
        for trace in found:
            number = trace.rank
            if number < 0:
                named = rank_of_name(group[0].name) if len(found) == 1 else None
                number = len(ranks) if named is None else named
            ranks.append(replace(trace, rank=number))
    ranks = [rank for rank in ranks if wanted is None or rank.rank in wanted]
    return Trace(ranks=tuple(sorted(ranks, key=lambda r: r.rank)))


def trace_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the files that paths, folders and patterns stand for."""
    found: list[Path] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if _is_trace(p))
        elif path.exists():
            found.append(path)
        elif any(char in str(given) for char in "*?["):
            found += sorted(Path().glob(str(given)))
        else:
            msg = f"trace: {given} does not exist"
            raise ConfigError(msg, key="trace", value=str(given), allowed="a file or a folder")
    return list(dict.fromkeys(found))


def _is_trace(path: Path) -> bool:
    """Whether a file of a folder is a trace; other tables than traces lie beside them."""
    if path.name.endswith(_TABLES):
        return bool(format_of(path))
    return path.name.endswith(_ENDINGS)


def rank_of_name(name: str) -> int | None:
    """Return the rank that the name of a file tells, such as ``rank3`` or ``trace.3.json``."""
    match = _RANK.search(name)
    return int(match[1] or match[2]) if match else None
