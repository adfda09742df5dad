"""Sweeping a space: chunk after chunk, by several processes, into a folder or into memory."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projector.errors import ConfigError, UnsupportedError
from projector.sweeps.result import Chunk, SweepResult
from projector.sweeps.rows import Batch, column_kinds, project_points
from projector.sweeps.space import Space, SpaceLike, axis_kinds, read_space, sample
from projector.sweeps.store import Plan, Store, Totals, is_begun
from projector.sweeps.workers import Crew

if TYPE_CHECKING:
    from distributed import Client

    from projector.sweeps.cluster import Cluster

ENGINES = LOCAL, DASK = "local", "dask"
"""Who projects: processes of this machine, or a Dask cluster."""

BATCH_POINTS = 256
"""Points projected together: enough that operators are costed once for many, few enough that all
workers have something to do."""

FEW_POINTS = 4 * BATCH_POINTS
"""Fewer points than this are projected before further processes have started."""

MANY_POINTS = 1_000_000
"""From here on the time is estimated before anything is computed."""

LONGEST_DAYS = 30.0
"""A sweep that takes longer is refused: it would outlive most machines' next restart, and is more
often a slip in the axes than a wish."""

MOST_WORKERS = 1024

_SAMPLE, _SAMPLE_BATCH, _SAMPLE_SECONDS = 512, 64, 4.0
_DAY = 86_400.0

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
    """Points of the sample that fit."""
    seconds: float
    """Time of the whole space with the given workers."""
    infeasible: dict[str, int]
    """Reason -> points of the sample left out for it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the names of the attributes."""
        return asdict(self)


def sweep(
    space: SpaceLike,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    workers: int | None = None,
    engine: str = LOCAL,
    scheduler: "str | Path | Client | None" = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Project every point of a space.

    Parameters
    ----------
    space : Space, mapping, str or Path
        A space, or anything that ``load_space`` reads.
    out : str or Path, optional
        Folder of the Parquet dataset. The same call continues an unfinished sweep and leaves a
        finished one as it is. Without, the rows stay in memory.
    overwrite : bool
        Whether a sweep that is at ``out`` goes first.
    workers : int, optional
        Processes; one for each processor when left out. Rows do not depend on it.
    engine : str
        ``local``, or ``dask`` for a cluster of `Dask <https://www.dask.org>`_ (extra ``dask``).
        Rows do not depend on it.
    scheduler : str, Path or Client, optional
        Where the Dask cluster is: an address (``tcp://HOST:PORT``), a scheduler file or a client.
        When left out, one is started on this machine for this call.
    progress : callable, optional
        Called after every batch with the points done and to do in this call, and the rows found.

    Raises
    ------
    ProjectorError
        If there is no such space, it takes too long, ``out`` cannot be written or holds something
        else, a worker dies, or there is no such cluster. Finished chunks are kept.
    """
    found = read_space(space)
    with _cluster(engine, scheduler, workers) as cluster:
        return _sweep(found, out, overwrite, _workers(workers), cluster, progress)


def _sweep(
    found: Space,
    out: str | Path | None,
    overwrite: bool,
    crew: int,
    cluster: "Cluster | None",
    progress: Progress | None,
) -> SweepResult:
    if cluster is not None:
        crew = cluster.workers
    axes = axis_kinds(found)
    plan = Plan.of(found, column_kinds(axes))
    if out is None:
        _refuse_endless(found, crew)
        chunks: list[Chunk] = []
        totals = Totals()
        begun = time.perf_counter()
        for chunk in _chunks(found, axes, plan, range(plan.chunks), crew, cluster, progress):
            chunks.append(chunk)
            totals.add(chunk[2])
        seconds = time.perf_counter() - begun
        return SweepResult(plan, totals, seconds, totals.rows, chunks=chunks)
    if not isinstance(out, str | Path):
        msg = f"out is a folder, got {out!r}"
        raise ConfigError(msg, key="out", value=out, allowed="a path")
    target = Path(out)
    if overwrite or not is_begun(target):
        _refuse_endless(found, crew)
    with closing(Store(target, plan, overwrite=overwrite)) as store:
        before = store.totals.rows
        seconds = 0.0
        if not store.finished:
            begun = time.perf_counter()
            todo = _Todo(store)
            for number, table, counts in _chunks(found, axes, plan, todo, crew, cluster, progress):
                store.put(number, table, counts)
            seconds = time.perf_counter() - begun
        return SweepResult(
            plan,
            store.totals,
            seconds,
            store.totals.rows - before,
            output=str(out),
            warnings=tuple(store.warnings),
        )


def estimate(
    space: SpaceLike,
    workers: int | None = None,
    *,
    engine: str = LOCAL,
    scheduler: "str | Path | Client | None" = None,
) -> Estimate:
    """Project a sample of a space to say how long all of it takes, with the workers of `sweep`.

    The sample is projected here, so that workers are taken to be as fast as this machine.
    """
    found = read_space(space)
    with _cluster(engine, scheduler, workers) as cluster:
        crew = _workers(workers) if cluster is None else cluster.workers
    return _estimate(found, crew, _SAMPLE)


@dataclass(frozen=True, slots=True)
class _Todo:
    """The chunks that a store does not have, as it was when asked."""

    store: Store

    def __iter__(self) -> Iterator[int]:
        return self.store.todo()


def _chunks(
    space: Space,
    axes: dict[str, str],
    plan: Plan,
    todo: Iterable[int],
    workers: int,
    cluster: "Cluster | None",
    progress: Progress | None,
) -> Iterator[Chunk]:
    """Yield the chunks of ``todo`` in order, as tables."""
    import pyarrow as pa

    schema = plan.schema()
    points = sum(len(plan.chunk(number)) for number in todo)
    tasks = (batch for number in todo for batch in _batches(plan.chunk(number)))
    with ExitStack() as stack:
        batches: Iterator[Batch]
        least = -(-points // BATCH_POINTS)
        if cluster is not None:
            batches = stack.enter_context(cluster.crew(space, axes, least)).project(tasks)
        elif workers > 1 and points > FEW_POINTS:
            batches = stack.enter_context(Crew(min(workers, least), space, axes)).project(tasks)
        else:
            batches = (project_points(space, axes, batch) for batch in tasks)
        done = rows = 0
        for number in todo:
            counts = Totals()
            columns: dict[str, list[object]] = {name: [] for name in plan.kinds}
            for _ in _batches(plan.chunk(number)):
                batch = next(batches)
                counts.add(Totals(batch.points, batch.rows, batch.fit, batch.infeasible))
                for name, values in batch.columns.items():
                    columns[name].extend(values)
                done, rows = done + batch.points, rows + batch.rows
                if progress is not None:
                    progress(done, points, rows)
            yield number, pa.Table.from_pydict(columns, schema), counts


def _batches(chunk: range) -> Iterator[range]:
    return (chunk[begin : begin + BATCH_POINTS] for begin in range(0, len(chunk), BATCH_POINTS))


def _cluster(
    engine: str, scheduler: "str | Path | Client | None", workers: int | None
) -> AbstractContextManager["Cluster | None"]:
    """Return the cluster that ``engine`` asks for; None for the processes of this machine."""
    if engine not in ENGINES:
        msg = f"engine: {engine!r} is not available in this version; legal: {', '.join(ENGINES)}"
        raise UnsupportedError(msg, key="engine", value=engine, allowed=list(ENGINES))
    if engine == LOCAL:
        if scheduler is not None:
            msg = f"scheduler: only the engine {DASK} has one; leave it out, or take engine {DASK}"
            raise ConfigError(msg, key="scheduler", value=str(scheduler), allowed="nothing")
        return nullcontext()
    if scheduler is not None and workers is not None:
        msg = f"workers: a cluster that is running has its own; leave out {workers}"
        raise ConfigError(msg, key="workers", value=workers, allowed="nothing")
    from projector.sweeps.cluster import Cluster

    return Cluster(scheduler, _workers(workers))


def _workers(workers: int | None) -> int:
    if workers is None:
        known = getattr(os, "sched_getaffinity", None)
        return max(1, len(known(0)) if known is not None else os.cpu_count() or 1)
    if isinstance(workers, bool) or not isinstance(workers, int):
        msg = f"workers: a number of processes, got {workers!r}"
        raise ConfigError(msg, key="workers", value=workers, allowed="an integer >= 1")
    if not 1 <= workers <= MOST_WORKERS:
        msg = f"workers: 1 to {MOST_WORKERS} processes, got {workers}"
        raise ConfigError(msg, key="workers", value=workers, allowed=f"1 to {MOST_WORKERS}")
    return workers


def _refuse_endless(space: Space, workers: int) -> None:
    """Refuse a space that takes more than `LONGEST_DAYS`, by a small sample."""
    if space.size < MANY_POINTS:
        return
    days = _estimate(space, workers, _SAMPLE_BATCH).seconds / _DAY
    if days > LONGEST_DAYS:
        length = f"{days:,.0f} days" if days < 1000.0 else f"{days / 365.25:,.0f} years"
        msg = (
            f"axes: the space has {space.size:,} points, about {length} with {workers} workers; "
            f"at most {LONGEST_DAYS:g} days are begun. Shorten axes or split the space"
        )
        raise ConfigError(msg, key="axes", value=space.size, allowed=f"{LONGEST_DAYS:g} days")


def _estimate(space: Space, workers: int, most: int) -> Estimate:
    points = sample(space, most)
    axes = axis_kinds(space)
    counts = Totals()
    seconds = 0.0
    # What is loaded and compiled at first is not what the others take.
    project_points(space, axes, points[:_SAMPLE_BATCH])
    for begin in range(0, len(points), _SAMPLE_BATCH):
        begun = time.perf_counter()
        batch = project_points(space, axes, points[begin : begin + _SAMPLE_BATCH])
        seconds += time.perf_counter() - begun
        counts.add(Totals(batch.points, batch.rows, batch.fit, batch.infeasible))
        if seconds > _SAMPLE_SECONDS:
            break
    each = seconds / max(1, counts.points)
    return Estimate(
        points=space.size,
        sampled=counts.points,
        legal=counts.rows,
        fit=counts.fit,
        seconds=each * space.size / min(workers, max(1, space.size // FEW_POINTS + 1)),
        infeasible=counts.infeasible,
    )
