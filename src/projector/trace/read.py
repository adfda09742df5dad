"""Reading traces: files, folders and patterns, of one rank or many."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from projector.errors import ConfigError
from projector.trace.events import Trace
from projector.trace.kineto import read_kineto

Progress = Callable[[int, int, int], None]
"""Called with the bytes read, the bytes to read and the events found."""

_ENDINGS = (".json", ".json.gz")
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
    ranks = []
    for place, path in enumerate(files):
        rank = read_kineto(path)
        if rank.rank < 0:
            named = rank_of_name(path.name)
            rank = replace(rank, rank=place if named is None else named)
        if wanted is None or rank.rank in wanted:
            ranks.append(rank)
    return Trace(ranks=tuple(sorted(ranks, key=lambda r: r.rank)))


def trace_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the files that paths, folders and patterns stand for."""
    found: list[Path] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.name.endswith(_ENDINGS))
        elif path.exists():
            found.append(path)
        elif any(char in str(given) for char in "*?["):
            found += sorted(Path().glob(str(given)))
        else:
            msg = f"trace: {given} does not exist"
            raise ConfigError(msg, key="trace", value=str(given), allowed="a file or a folder")
    return list(dict.fromkeys(found))


def rank_of_name(name: str) -> int | None:
    """Return the rank that the name of a file tells, such as ``rank3`` or ``trace.3.json``."""
    match = _RANK.search(name)
    return int(match[1] or match[2]) if match else None
