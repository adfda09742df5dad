"""Sweeping a space: chunk after chunk, by several processes, into a folder or into memory."""

import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.config.space import Space
from projector.errors import (
    ConfigError,
    OutOfMemoryError,
    UnsupportedError,
    check_working_folder,
)
from projector.kernels._helpers import helpers_of_a_script
from projector.kernels._interpreted import interpreting, is_interpreting
from projector.sweeps import table
from projector.sweeps.journal import Totals
from projector.sweeps.places import check_answer, folder_of, in_store, is_shared
from projector.sweeps.result import SweepResult
from projector.sweeps.rows import Projector
from projector.sweeps.store import Part, Plan, Store, chunk_points, is_begun
from projector.sweeps.workers import project_side_by_side, start_ahead
from projector.units import DAY, unwrapped

if TYPE_CHECKING:
    from distributed import Client

    from projector.sweeps.cluster import Cluster

ENGINES = LOCAL, DASK = "local", "dask"
"""Who projects: processes of this machine, or a Dask cluster."""

MANY_POINTS = 1_000_000
"""From here on further processes start at once. Where orders are planned, the time is estimated
before anything is computed."""

ENDLESS_POINTS = 100_000_000
"""From here on it is estimated of any space. Points of the shipped spaces take 1 to 30 microseconds
each: those of a smaller space would have to take a thousand times as long to be refused."""

LEAST_ROOM_BYTES = 512 << 20
"""Address space that reading and writing of small sweeps takes."""

LONGEST_DAYS = 30.0
"""A sweep that takes longer is refused: it would outlive most machines' next restart, and is more
often a slip in the axes than a wish."""

MOST_WORKERS = 1024

_SAMPLE, _SMALL_SAMPLE = 512, 64
_SAMPLES = 1, 8, 32, 128
_LONG_S = 2.5
"""A sample that takes as long, such as one of simulated loads, is not followed by a larger one."""

_QUICK_S = 2.0
"""A sample that takes no longer is followed by one chunk as a whole, which tells the rate."""

Progress = Callable[[int, int, int], None]
"""Called with the points done, the points to do in this call, and the rows found."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sample of a space suggests."""

    points: int
    sampled: int
    legal: int
    """Points of the sample that are jobs."""
    fit: int
    """Points of the sample that fit with the band of their memory."""
    at_risk: int
    """Points of the sample whose peak fits, but not the upper end of its band."""
    seconds: float
    """Time of the whole space with the given workers."""
    infeasible: dict[str, int]
    """Reason -> points of the sample left out for it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the names of the attributes."""
        return asdict(self)


def sweep(
    space: table.SpaceLike,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    verify: bool = False,
    workers: int | None = None,
    engine: str = LOCAL,
    scheduler: "str | Path | Client | None" = None,
    progress: Progress | None = None,
    allow_risk: bool = False,
) -> SweepResult:
    """Project every point of a space.

    Args:
        space (Space, mapping, str or Path): A space, or anything that ``load_space`` reads.
        out (str or Path, optional): Folder of the Parquet dataset, or ``s3://bucket/folder`` (extra
            ``cloud``). The same call continues an unfinished sweep and leaves a finished one as it
            is. Without, the rows stay in memory.
        overwrite (bool): Whether a sweep that is at ``out`` goes first.
        verify (bool): Whether finished parts are read whole, and computed again where a checksum is
            wrong.
        workers (int, optional): Processes, this one included; one for each processor when left out.
            Rows do not depend on it.
        engine (str): ``local``, or ``dask`` for a cluster of `Dask <https://www.dask.org>`_ (extra
            ``dask``). Rows do not depend on it.
        scheduler (str, Path or Client, optional): Where the Dask cluster is: an address
            (``tcp://HOST:PORT``), a scheduler file or a client. When left out, one is started on
            this machine for this call.
        progress (callable, optional): Called after every chunk with the points done and to do in
            this call, and the rows found.
        allow_risk (bool): Whether the result also ranks rows at risk, as ``allow_risk`` of
            `SweepResult`; the rows are the same.

    Raises:
        ProjectorError: If the space does not exist or takes too long, ``out`` cannot be written or
            holds something else, a worker dies, or the cluster does not exist. Finished chunks are
            kept.
    """
    check_working_folder()
    _check_room()
    loaded = table.load_space(space)
    crew = _workers(workers)
    with _cluster(engine, scheduler, workers) as cluster, ExitStack() as stack:
        is_long = cluster is None and loaded.size >= MANY_POINTS
        stack.enter_context(helpers_of_a_script(crew - 1 if is_long else 0))
        result = _sweep(
            loaded,
            out,
            crew,
            cluster,
            progress,
            {"overwrite": overwrite, "verify": verify},
        )
    result.allow_risk = allow_risk
    result.warnings = (*loaded.notes, *result.warnings)
    return result


def _check_room() -> None:
    """Refuse a limit of address space in which Arrow would end the process, not raise an error."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return
    left = limit - pages * resource.getpagesize()
    if limit != resource.RLIM_INFINITY and left < LEAST_ROOM_BYTES:
        msg = (
            f"the limit of address space (ulimit -v) leaves {max(left, 0) // 2**20} MiB for a sweep"
        )
        allowed = f"{LEAST_ROOM_BYTES // 2**20} MiB or more"
        raise OutOfMemoryError(f"{msg}; allow {allowed}", key="memory", allowed=allowed)


def _sweep(
    space: Space,
    out: str | Path | None,
    crew: int,
    cluster: "Cluster | None",
    progress: Progress | None,
    of_store: Mapping[str, bool],
) -> SweepResult:
    if cluster is not None:
        crew = cluster.workers
    axes = table.axis_kinds(space)
    plan = Plan.of(space, table.column_kinds(axes, table.results_of(space)))
    leaders: list[dict[str, Any]] = []
    if out is None:
        _refuse_endless(space, plan, crew, local=cluster is None)
        parts: list[Part] = []
        totals = Totals()
        begun = time.perf_counter()
        for part in _parts(space, axes, plan, range(plan.chunks), crew, cluster, progress):
            parts.append(part)
            totals.add(part.totals)
            leaders += part.leaders
        seconds = time.perf_counter() - begun
        return SweepResult(plan, totals, seconds, totals.rows, parts=parts, leaders=leaders)
    if not isinstance(out, str | Path):
        raise ConfigError(f"out is a folder, got {out!r}", key="out", value=out, allowed="a path")
    target = folder_of(out)
    check_answer(target)
    if of_store["overwrite"] or not is_begun(target):
        _refuse_endless(space, plan, crew, local=cluster is None)
    with closing(Store(target, plan, **of_store)) as store:
        before = store.totals.rows
        seconds = 0.0
        if not store.finished:
            begun = time.perf_counter()
            todo = list(store.todo())
            made = _parts(space, axes, plan, todo, crew, cluster, progress, store.drafts)
            with closing(made):
                for part in made:
                    store.put(part)
                    leaders += part.leaders
            seconds = time.perf_counter() - begun
        return SweepResult(
            plan,
            store.totals,
            seconds,
            store.totals.rows - before,
            output=str(out),
            warnings=tuple(store.warnings),
            leaders=None if before else leaders,
        )


def estimate(
    space: table.SpaceLike,
    workers: int | None = None,
    *,
    engine: str = LOCAL,
    scheduler: "str | Path | Client | None" = None,
) -> Estimate:
    """Project a sample of a space to say how long all of it takes, with the workers of `sweep`.

    The sample is projected here, so that workers are taken to be as fast as this machine.
    """
    loaded = table.load_space(space)
    with _cluster(engine, scheduler, workers) as cluster:
        crew = _workers(workers) if cluster is None else cluster.workers
    return _estimate(loaded, crew, _SAMPLE)


def _parts(
    space: Space,
    axes: dict[str, str],
    plan: Plan,
    todo: Iterable[int],
    workers: int,
    cluster: "Cluster | None",
    progress: Progress | None,
    drafts: Path | None = None,
) -> Generator[Part, None, None]:
    """Yield the chunks of ``todo`` in order; see `project_side_by_side` for ``drafts``."""
    points = sum(len(plan.chunk(number)) for number in todo)
    chunks = -(-points // plan.chunk_points)
    with ExitStack() as stack:
        parts: Iterator[Part]
        if cluster is not None:
            place = drafts if is_shared(drafts) else None
            crew = cluster.crew(chunks, space, axes, plan.chunk_points, place)
            parts = stack.enter_context(crew).project(todo)
        else:
            is_long = points > MANY_POINTS or plan.is_slow
            drafts = None if in_store(drafts) else drafts
            made = project_side_by_side(
                todo, chunks, workers, space, axes, plan.chunk_points, drafts, is_long=is_long
            )
            parts = stack.enter_context(closing(made))
        done = rows = 0
        for part in parts:
            done, rows = done + part.totals.points, rows + part.totals.rows
            if progress is not None:
                progress(done, points, rows)
            yield part


def _cluster(
    engine: str, scheduler: "str | Path | Client | None", workers: int | None
) -> AbstractContextManager["Cluster | None"]:
    if engine not in ENGINES:
        msg = f"engine: {engine!r} is not available in this version; legal: {', '.join(ENGINES)}"
        raise UnsupportedError(msg, key="engine", value=engine, allowed=list(ENGINES))
    if engine == LOCAL:
        if scheduler is not None:
            msg = f"scheduler: only engine {DASK} uses one; leave it out, or set engine {DASK}"
            raise ConfigError(msg, key="scheduler", value=str(scheduler), allowed="nothing")
        return nullcontext()
    if scheduler is not None and workers is not None:
        msg = f"workers: a running cluster has its own workers; leave out {workers}"
        raise ConfigError(msg, key="workers", value=workers, allowed="nothing")
    from projector.sweeps.cluster import Cluster

    return Cluster(scheduler, _workers(workers))


def _workers(workers: int | None) -> int:
    workers = unwrapped(workers)
    if workers is None:
        known = getattr(os, "sched_getaffinity", None)
        workers = max(1, len(known(0)) if known is not None else os.cpu_count() or 1)
    elif isinstance(workers, bool) or not isinstance(workers, int):
        msg = f"workers: a number of processes, got {workers!r}"
        raise ConfigError(msg, key="workers", value=workers, allowed="an integer >= 1")
    elif not 1 <= workers <= MOST_WORKERS:
        msg = f"workers: 1 to {MOST_WORKERS} processes, got {workers}"
        raise ConfigError(msg, key="workers", value=workers, allowed=f"1 to {MOST_WORKERS}")
    # Daemons of multiprocessing, such as the workers of its own pool, may start no processes.
    return 1 if multiprocessing.current_process().daemon else workers


def _refuse_endless(space: Space, plan: Plan, workers: int, *, local: bool) -> None:
    """Refuse a space of more than `LONGEST_DAYS`, by a sample, while ``local`` workers start."""
    if space.size < MANY_POINTS:
        return
    if local and workers > 1:
        start_ahead(workers, plan.chunks)
    if space.size < ENDLESS_POINTS and not plan.is_slow:
        return
    days = _estimate(space, workers, _SMALL_SAMPLE, enough_days=LONGEST_DAYS).seconds / DAY
    if days > LONGEST_DAYS:
        length = f"{days:,.0f} days" if days < 1000.0 else f"{days / 365.25:,.0f} years"
        msg = (
            f"axes: the space has {space.size:,} points, about {length} with {workers} workers; "
            f"at most {LONGEST_DAYS:g} days are begun. Shorten axes or split the space"
        )
        raise ConfigError(msg, key="axes", value=space.size, allowed=f"{LONGEST_DAYS:g} days")


def _estimate(space: Space, workers: int, most: int, *, enough_days: float = 0.0) -> Estimate:
    """Project a sample; look no closer where it already shows less than ``enough_days``."""
    projector = Projector(space, table.axis_kinds(space))
    points = np.array(table.sample(space, most), np.int64)
    # Where kernels are not compiled yet, each sample compiles some; the second time it tells.
    times = 1 + is_interpreting()
    with interpreting(0.0):
        # The first point takes longer: it loads and compiles.
        projector.project(points[:1], best=False)
        for sampled in sorted({*(size for size in _SAMPLES if size < len(points)), len(points)}):
            for _ in range(times):
                begun = time.perf_counter()
                batch = projector.project(points[:sampled], best=False)
                seconds = time.perf_counter() - begun
            if seconds > _LONG_S:
                break
        point_s = seconds / max(1, sampled)
        chunk = min(chunk_points(space), space.size)
        crew = min(workers, -(-space.size // chunk))
        is_close = point_s * space.size / crew >= enough_days * DAY
        if is_close and seconds < _QUICK_S and chunk > sampled == len(points):
            middle = np.arange(chunk) + (space.size - chunk) // 2
            # Again: what the chunk taught serves most others.
            for _ in range(2):
                begun = time.perf_counter()
                projector.project(middle)
                point_s = (time.perf_counter() - begun) / chunk
    return Estimate(
        points=space.size,
        sampled=sampled,
        legal=batch.rows,
        fit=batch.fit - batch.at_risk,
        at_risk=batch.at_risk,
        seconds=point_s * space.size / crew,
        infeasible=batch.infeasible,
    )
