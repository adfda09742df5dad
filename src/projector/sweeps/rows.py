"""Points of a space become rows: what a projection says in numbers, or why there is none."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from projector.config.job import Job
from projector.config.load import Variants
from projector.errors import ProjectorError
from projector.projection.evaluate import check_exists, evaluate
from projector.projection.performance import PerformanceProjection, performance_projection
from projector.projection.step import BREAKDOWN
from projector.sweeps.space import BOOL, FLOAT, INT, TEXT, Space, cell
from projector.units import to_gib, to_ms

OK, DOES_NOT_FIT = "ok", "does_not_fit"

LONGEST_REASON = 200
"""Characters of a reason."""


def _term(name: str) -> Callable[[PerformanceProjection], float]:
    return lambda result: to_ms(result.breakdown_s[name])


def _degree(name: str) -> Callable[[PerformanceProjection], int]:
    return lambda result: result.degrees[name]


def _documented(name: str) -> Callable[[PerformanceProjection], float]:
    return lambda result: result.memory.documented.to_dict()[name]


_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")

RESULTS: dict[str, tuple[str, Callable[[PerformanceProjection], Any]]] = {
    "iteration_time_ms": (FLOAT, lambda result: to_ms(result.iteration_time_s)),
    "tokens_per_s_per_gpu": (FLOAT, lambda result: result.tokens_per_s_per_gpu),
    "tflops_per_gpu": (FLOAT, lambda result: result.tflops_per_gpu),
    "mfu": (FLOAT, lambda result: result.mfu),
    "hfu": (FLOAT, lambda result: result.hfu),
    "bubble_fraction": (FLOAT, lambda result: result.bubble_fraction),
    "busiest_stage": (INT, lambda result: result.busiest_stage),
    "schedule": (TEXT, lambda result: result.schedule),
    "microbatches": (INT, lambda result: result.microbatches),
    "nodes": (INT, lambda result: result.job.cluster.nodes),
    "gpus": (INT, lambda result: result.gpus),
    **{f"parallelism.{name}": (INT, _degree(name)) for name in _DEGREES},
    **{f"breakdown_ms.{name}": (FLOAT, _term(name)) for name in BREAKDOWN},
    "bound": (TEXT, lambda result: result.bound),
    "parameters_total": (INT, lambda result: result.memory.counts.parameters_total),
    "parameters_active": (INT, lambda result: result.memory.counts.parameters_active),
    "device_memory_gib": (FLOAT, lambda result: to_gib(result.memory.device_memory_bytes)),
    "usable_gib": (FLOAT, lambda result: to_gib(result.memory.usable_bytes)),
    "peak_gib": (FLOAT, lambda result: to_gib(result.memory.peak_bytes)),
    "headroom_gib": (FLOAT, lambda result: to_gib(result.memory.headroom_bytes)),
    "fits": (BOOL, lambda result: result.memory.fits),
    "peak_stage": (INT, lambda result: result.memory.peak_stage),
    **{
        f"documented.{name}": (kind, _documented(name))
        for name, kind in (
            ("parameters_total", INT),
            ("parameters_per_rank", INT),
            ("param_optimizer_gib", FLOAT),
            ("activation_gib", FLOAT),
            ("total_gib", FLOAT),
        )
    },
    "status": (TEXT, lambda result: OK if result.memory.fits else DOES_NOT_FIT),
}
"""Column -> kind and where it stands in a projection, under the keys of ``--json``.

What ``performance --json`` says of memory stands there under the keys of ``memory --json``."""


@dataclass(slots=True)
class Batch:
    """Rows of some points of a space, in order."""

    points: int
    columns: dict[str, list[Any]]
    infeasible: dict[str, int] = field(default_factory=dict)
    """Reason -> points left out for it."""

    @property
    def rows(self) -> int:
        """Points that are jobs."""
        return len(self.columns["status"])

    @property
    def fit(self) -> int:
        """Rows that fit."""
        return sum(self.columns["fits"])


def column_kinds(axes: Mapping[str, str]) -> dict[str, str]:
    """Return every column with its kind: axes first; an axis that results repeat stands once."""
    return {**axes, **{name: kind for name, (kind, _) in RESULTS.items()}}


def project_points(space: Space, axes: Mapping[str, str], points: Sequence[int]) -> Batch:
    """Project points of a space; what can be no job is counted by reason.

    Parameters
    ----------
    space : Space
        Where the points are.
    axes : mapping
        Field -> kind, of `axis_kinds`.
    points : sequence of int
        Their numbers.
    """
    batch = Batch(len(points), {name: [] for name in column_kinds(axes)})
    kept: list[Mapping[str, Any]] = []
    jobs: list[Job] = []
    variants = Variants(space.base)
    for point in points:
        try:
            overrides = space.overrides(point)
            broken = space.excluded(overrides)
            if broken is not None:
                _count(batch, f"constraint: {broken}")
                continue
            job = variants.job(overrides)
            # An illegal job would take its whole batch with it.
            check_exists(job)
        except ProjectorError as error:
            _count(batch, reason_of(error))
            continue
        kept.append(overrides)
        jobs.append(job)
    for overrides, values in zip(kept, _values(jobs), strict=True):
        if isinstance(values, ProjectorError):
            _count(batch, reason_of(values))
            continue
        cells = {name: cell(name, kind, overrides.get(name)) for name, kind in axes.items()}
        for name, value in (cells | values).items():
            batch.columns[name].append(value)
    return batch


def reason_of(error: ProjectorError) -> str:
    """Say why a point is no job, in words that are the same for all points like it.

    Numbers become ``N`` and what follows a semicolon, the way out, is left away.
    """
    text = error.message.split("; ", maxsplit=1)[0]
    if error.key and not text.startswith(error.key):
        text = f"{error.key}: {text}"
    text = _LIST.sub("N, ...", _NUMBER.sub("N", " ".join(text.split())))
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."


_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)")
_LIST = re.compile(r"\bN(?:, N)+\b")


def _count(batch: Batch, reason: str) -> None:
    batch.infeasible[reason] = batch.infeasible.get(reason, 0) + 1


def _values(jobs: Sequence[Job]) -> list[dict[str, Any] | ProjectorError]:
    """Return the results of each job, or why there are none; halves find who is at fault."""
    if not jobs:
        return []
    try:
        evaluation = evaluate(jobs)
    except ProjectorError as error:
        if len(jobs) == 1:
            return [error]
        middle = len(jobs) // 2
        return _values(jobs[:middle]) + _values(jobs[middle:])
    return [_read(performance_projection(evaluation, row)) for row in range(len(jobs))]


def _read(result: PerformanceProjection) -> dict[str, Any]:
    values = {name: read(result) for name, (_, read) in RESULTS.items()}
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            values[name] = None
    return values
