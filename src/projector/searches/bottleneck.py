"""What bounds a step: every second of it belongs to one of five classes.

Three tables define the classes. A map says which of them bounds the step over two fields of a job.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.config.job import Job
from projector.config.load import load_job
from projector.envelope import told
from projector.errors import ConfigError, ProjectorError
from projector.kernels import attention, gemm
from projector.kernels.grouping import segment_sums
from projector.operations.table import ATTENTION, GEMM, TP_COMM
from projector.operations.work import repeated_rows
from projector.projection.evaluate import Evaluation
from projector.projection.terms import BREAKDOWN
from projector.searches.fields import Lever, check_factor, levers_of, project
from projector.units import to_ms

CLASSES = ("compute", "memory", "communication", "latency", "bubble")
"""What a step waits for: matrix and vector units; data out of caches and memory; links; kernel
starts, the host and other fixed costs; other pipeline ranks."""

COMPUTE, MEMORY, COMMUNICATION, LATENCY, BUBBLE = range(5)

CLASS_OF_TERM = {
    "compute_gemm": COMPUTE,
    "compute_attention": COMPUTE,
    "compute_other": MEMORY,
    "tp_comm": COMMUNICATION,
    "cp_comm": COMMUNICATION,
    "ep_comm": COMMUNICATION,
    "pp_bubble": BUBBLE,
    "pp_comm": COMMUNICATION,
    "dp_comm": COMMUNICATION,
    "optimizer": MEMORY,
    "launch": LATENCY,
    "stragglers": COMPUTE,
}
"""Class of each term of the breakdown; kernels of GEMMs and attention go by their limiter."""

CLASS_OF_GEMM = {
    "compute": COMPUTE,
    "l2_fill": MEMORY,
    "l2": MEMORY,
    "memory": MEMORY,
    "overhead": LATENCY,
    "issue": COMPUTE,
    "epilogue": COMPUTE,
}

CLASS_OF_ATTENTION = {
    "matrix": COMPUTE,
    "softmax": COMPUTE,
    "memory": MEMORY,
    "atomics": MEMORY,
    "overhead": LATENCY,
}

COMPUTE_TERMS = TP_COMM
"""The first terms of the breakdown are compute and consist of kernels."""


def class_seconds(evaluation: Evaluation) -> Floats:
    """Return the seconds of each job's step by class, on the rank that ends it.

    float64[jobs, len(CLASSES)], which adds up to the step. A GEMM or an attention kernel belongs
    wholly to the class of its limiter; other operators wait for memory. Each compute term is
    divided as the kernels of that rank are.
    """
    breakdown_s = evaluation.steps.breakdown_s
    seconds = np.zeros((len(breakdown_s), len(CLASSES)))
    for term in range(COMPUTE_TERMS, len(BREAKDOWN)):
        seconds[:, CLASS_OF_TERM[BREAKDOWN[term]]] += breakdown_s[:, term]
    mix_s = _ending_ranks(evaluation)
    total_s = mix_s.sum(axis=2)
    for term in range(COMPUTE_TERMS):
        has_kernels = total_s[:, term] > 0.0
        share = mix_s[:, term] / np.where(has_kernels, total_s[:, term], 1.0)[:, None]
        seconds += breakdown_s[:, term][:, None] * share
        unsplit = np.where(has_kernels, 0.0, breakdown_s[:, term])
        seconds[:, CLASS_OF_TERM[BREAKDOWN[term]]] += unsplit
    return seconds


def class_shares(seconds: Floats) -> dict[str, float]:
    """Return the share of a step that each class has, from seconds float64[len(CLASSES)]."""
    return dict(zip(CLASSES, (seconds / seconds.sum()).tolist(), strict=True))


def _ending_ranks(evaluation: Evaluation) -> Floats:
    """Return one microbatch on the rank that ends each job, ``float64[jobs, terms, classes]``."""
    workloads, replicas = evaluation.workloads, evaluation.inputs.replicas
    kernels_s = _kernel_seconds(evaluation)[workloads.run_workload]
    kernels_s *= workloads.run_count[:, None, None]
    rank = replicas.rank_offset[replicas.of_job] + evaluation.steps.ending_rank
    time_s = np.empty((len(rank), *kernels_s.shape[1:]))
    for term in range(kernels_s.shape[1]):
        for class_index in range(kernels_s.shape[2]):
            stages = segment_sums(workloads.run_offset, kernels_s[:, term, class_index])
            time_s[:, term, class_index] = replicas.per_rank(stages[replicas.stage])[rank]
    return time_s


def _kernel_seconds(evaluation: Evaluation) -> Floats:
    """Return the compute of one layer of each workload, ``float64[workloads, terms, classes]``."""
    table, rows = evaluation.table, evaluation.rows
    compute = np.flatnonzero(table.category < COMPUTE_TERMS)
    workload = table.workload[compute]
    # Recomputed operations run in the forward and again in the backward.
    records = evaluation.workloads.rows
    runs = 1.0 + repeated_rows(table, evaluation.workloads)[compute]
    slot = workload * COMPUTE_TERMS + table.category[compute]
    kind = table.kind[compute]
    limiter = rows.detail[compute]
    kernel_class = np.full(len(kind), MEMORY, np.int64)
    for code, bounds, classes in (
        (GEMM, gemm.BOUNDS, CLASS_OF_GEMM),
        (ATTENTION, attention.BOUNDS, CLASS_OF_ATTENTION),
    ):
        limited = (kind == code) & (limiter >= 0)
        kernel_class[limited] = np.array([classes[bound] for bound in bounds])[limiter[limited]]
    slot = slot * len(CLASSES) + kernel_class
    size = len(records) * COMPUTE_TERMS * len(CLASSES)
    seconds = np.bincount(slot, runs * rows.exposed_s[compute], size)
    return seconds.astype(np.float64).reshape(len(records), COMPUTE_TERMS, len(CLASSES))


RANGE = 4.0
MOST_RANGE = 1000.0
POINTS, MOST_POINTS = 17, 101


@dataclass(frozen=True, slots=True)
class Cell:
    """One job of a map."""

    iteration_time_s: float
    shares: Mapping[str, float]
    """Share of the step that each class has."""

    @property
    def bound(self) -> str:
        """The class with the largest share."""
        return max(self.shares, key=lambda name: self.shares[name])


@dataclass(frozen=True, slots=True)
class MapAxis:
    """A field and the values it takes, rising."""

    field: str
    value: float
    """Value in the job; for fields that move together, that of the first field, as in `values`."""
    values: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"field": self.field, "value": self.value, "values": list(self.values)}


@dataclass(frozen=True, slots=True)
class BottleneckMap:
    """A grid of jobs that differ in two fields."""

    job: Job
    x: MapAxis
    y: MapAxis
    cells: tuple[tuple[Cell | None, ...], ...]
    """One tuple for each value of y; None marks an illegal job."""
    infeasible: Mapping[str, int]
    """Reason -> number of illegal cells."""

    def to_dict(self) -> dict[str, Any]:
        """Return the value of ``map`` in ``--json``; rows are values of y, illegal jobs null."""
        return {
            **told(self, "x y"),
            "classes": list(CLASSES),
            "bound": self._grid(lambda cell: cell.bound),
            "iteration_time_ms": self._grid(lambda cell: to_ms(cell.iteration_time_s)),
            "shares": self._grid(lambda cell: dict(cell.shares)),
            "infeasible": dict(self.infeasible),
        }

    def _grid(self, read: Callable[[Cell], Any]) -> list[list[Any]]:
        return [[None if cell is None else read(cell) for cell in row] for row in self.cells]


def bottleneck_map(
    job: Job | Mapping[str, Any] | str,
    fields: Sequence[str],
    *,
    factor: float = RANGE,
    points: int = POINTS,
) -> BottleneckMap:
    """Project a job over two of its fields and say what bounds each step.

    Fields are dotted, of the x and the y axis; several that move together are joined by ``+``. They
    go from value / factor to value * factor in even steps of the logarithm; whole numbers are
    halved and doubled as often as that allows. ``points`` is odd, so that the job's own values are
    among them.
    """
    factor = check_factor("range", factor, MOST_RANGE, least=1.0)
    if points % 2 == 0 or not 3 <= points <= MOST_POINTS:
        msg = f"points must be an odd number from 3 to {MOST_POINTS}, got {points!r}"
        raise ConfigError(msg, key="points", value=points, allowed=f"odd, 3 to {MOST_POINTS}")
    if len(fields) != 2:
        msg = f"map takes two fields, got {len(fields)}: {', '.join(fields)}"
        raise ConfigError(msg, key="map", value=list(fields), allowed="FIELD,FIELD")
    base = load_job(job)
    x, y = levers_of(base, fields)
    steps_x, steps_y = _factors(x, factor, points), _factors(y, factor, points)
    overrides = [{**x.times(right), **y.times(up)} for up in steps_y for right in steps_x]
    outcomes = project(base, overrides, _cells)
    reasons = Counter(
        outcome.message for outcome in outcomes if isinstance(outcome, ProjectorError)
    )
    if reasons.total() == len(outcomes):
        msg = f"map: no cell is a legal job: {next(iter(reasons))}"
        raise ConfigError(msg, key="map", value=list(fields), allowed="fields that can be varied")
    cells = [None if isinstance(outcome, ProjectorError) else outcome for outcome in outcomes]
    width = len(steps_x)
    return BottleneckMap(
        job=base,
        x=_axis(x, steps_x),
        y=_axis(y, steps_y),
        cells=tuple(tuple(cells[begin : begin + width]) for begin in range(0, len(cells), width)),
        infeasible=dict(reasons),
    )


def _factors(lever: Lever, factor: float, points: int) -> list[float]:
    """Return factors around 1; integers only move by powers of two, to stay divisible."""
    if not lever.whole:
        half = points // 2
        return [factor ** (step / half) for step in range(-half, half + 1)]
    most = int(np.log2(factor) + 1e-9)
    factors: list[float] = []
    for power in range(-most, most + 1):
        moved = lever.times(2.0**power)
        exact = all(
            moved[field] == value * 2.0**power
            for field, value in zip(lever.fields, lever.values, strict=True)
        )
        if exact:
            factors.append(2.0**power)
    return factors


def _axis(lever: Lever, factors: Sequence[float]) -> MapAxis:
    values = tuple(float(lever.times(factor)[lever.fields[0]]) for factor in factors)
    return MapAxis(lever.name, float(lever.value), values)


def _cells(evaluation: Evaluation) -> list[Cell]:
    times = evaluation.steps.iteration_s.tolist()
    seconds = class_seconds(evaluation)
    return [
        Cell(time, class_shares(job_seconds))
        for time, job_seconds in zip(times, seconds, strict=True)
    ]
