"""The scalars of results, declared once: columns of a sweep and ``--json`` follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Flags, Floats, Ints, Ints32
from projector.kernels import results as kernels
from projector.kernels.grouping import group_rows
from projector.kernels.memory import Devices, RankBytes
from projector.lower.batch import JobBatch, JobColumns
from projector.lower.stages import LayerSettings, LayerSplit
from projector.operations.counts import ModelCounts, count_model
from projector.projection import provenance
from projector.projection.bands import VERDICTS, memory_factors, verdict_codes
from projector.projection.evaluate import Evaluation
from projector.projection.terms import BREAKDOWN, LIMITS
from projector.units import GIB, to_gib


class Coded(NamedTuple):
    """A column of few different values."""

    code: Ints | Ints32
    """int[n]: position in ``values``."""
    values: list[str] | Array

    def expanded(self) -> Array:
        """Return the values one by one."""
        return np.asarray(self.values).take(self.code)

    def to_list(self) -> list[Any]:
        """Return the same as Python has them."""
        values: list[Any] = self.expanded().tolist()
        return values


Column = Array | Coded
"""What jobs have: one value each, or codes of few."""

BOOL, INT, FLOAT, TEXT = "bool", "int", "float", "text"
"""Kinds of scalars."""

OK, DOES_NOT_FIT = "ok", "does_not_fit"
STATUS = "status"
"""Column that says which of both a row is."""


class Counts(NamedTuple):
    """`ModelCounts` of each family."""

    parameters_total: Ints
    parameters_active: Ints
    parameters_trained: Ints
    flop_per_sequence: Floats

    def of(self, family: int) -> ModelCounts:
        """Return those of one family."""
        return ModelCounts(*(column[family].item() for column in self))


def _number(which: int) -> Callable[["Results"], Floats]:
    return lambda results: results.number(which)


def _bytes(which: int) -> cached_property[Floats]:
    return cached_property(lambda results: results.number(which) * GIB)


class Results:
    """What scalars of a batch are computed from; what several need is computed once."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.steps = evaluation.steps
        self.jobs = evaluation.jobs
        self.cluster = evaluation.batch.cluster
        self.runs: Any = None
        """`RunProjections`, once somebody has asked `project_runs` for them."""

    def columns(self) -> dict[str, Column]:
        """Return every scalar of `SCALARS`, one entry for each job."""
        return {scalar.name: scalar.column(self) for scalar in SCALARS}

    def take(self, rows: Ints) -> "Results":
        """Return those of some jobs; what families share is not computed again."""
        taken = Results(self.evaluation.take(rows))
        taken.counts, taken._shared = self.counts, self._shared
        return taken

    def row(self, row: int) -> dict[str, Any]:
        """Return every scalar of one job."""
        return {name: values[row] for name, values in self.lists.items()}

    @cached_property
    def lists(self) -> dict[str, list[Any]]:
        """The columns as lists, texts written out."""
        return {
            name: column.to_list() if isinstance(column, Coded) else column.tolist()
            for name, column in self.columns().items()
        }

    @property
    def degrees(self) -> JobColumns:
        """Degrees of each family."""
        return self.evaluation.workloads.jobs

    @property
    def family_batch(self) -> JobBatch:
        """A job of each family."""
        return self.evaluation.families.batch

    @cached_property
    def _first_jobs(self) -> JobBatch:
        return self.evaluation.workloads.first_jobs()

    def of_families(self, values: Array) -> Column:
        """Return what families have as a column of their jobs."""
        families = self.evaluation.families
        return values if families.are_jobs else Coded(families.of_job, values)

    @cached_property
    def rows(self) -> kernels.ResultColumns:
        """Every number that the jobs of a family do not share."""
        return self.steps.results(self._rated)

    def number(self, which: int) -> Floats:
        """Return one of its numbers, of those in `kernels.results`."""
        return self.rows.column(which)

    @cached_property
    def ranking(self) -> kernels.ResultColumns:
        """Those of them that say which of some jobs is the best."""
        return self.steps.results(self._rated, ranking=True)

    @property
    def _rated(self) -> kernels.Rated:
        evaluation = self.evaluation
        return kernels.Rated(evaluation.global_batch, evaluation.microbatches, *self._shared)

    @cached_property
    def _shared(self) -> tuple[Floats, Devices, RankBytes]:
        """What results of families and of ranks follow from."""
        evaluation, inputs, degrees = self.evaluation, self.evaluation.inputs, self.degrees
        dtype, peaks = self.family_batch.training.dtype, self.family_batch.cluster.peak_tflops
        families = np.empty((kernels.RATED_NUMBERS, len(dtype)))
        families[kernels.GPUS], families[kernels.SEQ] = degrees.gpus, degrees.seq
        families[kernels.STAGE_GPUS] = degrees.gpus // degrees.pp
        families[kernels.FLOP] = self.counts.flop_per_sequence
        pipeline = evaluation.workloads.pipeline
        families[kernels.AGAIN_FLOP] = inputs.costs.recompute_flop.take(pipeline)
        families[kernels.DATASHEET_TFLOPS] = peaks[np.arange(len(dtype)), dtype]
        families[kernels.LOW], families[kernels.HIGH] = memory_factors(self.family_batch)
        few = kernels.FEW_MICROBATCHES * degrees.pp
        families[kernels.FEW_BELOW] = np.where(degrees.pp > 1, few, 0)
        return families, evaluation.devices, inputs.held

    model_flop = cached_property(_number(kernels.MODEL_FLOP))
    """Matrix FLOP the model needs for one step, no recomputation, causal attention halved."""
    recompute_flop = cached_property(_number(kernels.RECOMPUTE_FLOP))
    """Matrix FLOP that recomputation repeats in one step, over all devices."""
    mfu = cached_property(_number(kernels.MFU))
    """Share of the dense datasheet peak of the training precision."""

    @property
    def schedule(self) -> Coded:
        """Names of the schedules."""
        names = [setting.name for setting in self.evaluation.settings]
        return Coded(self.evaluation.setting_of_job, names)

    @property
    def microbatches(self) -> Coded:
        """Microbatches of one data-parallel rank in one step."""
        counts = [setting.microbatches for setting in self.evaluation.settings]
        return Coded(self.evaluation.setting_of_job, np.array(counts, np.int64))

    @property
    def bound(self) -> Coded:
        """What limits each step."""
        pp = self.degrees.pp.take(self.evaluation.families.of_job)
        numbers = {
            kernels.FEW: (self.evaluation.microbatches, pp),
            kernels.UNEVEN: (self.rows.busiest_rank, self.number(kernels.LATE_PERCENT)),
        }
        return bounds(self.rows.limit, numbers)

    headroom_bytes = _bytes(kernels.HEADROOM_GIB)
    """What is left at the peak; negative where a job does not fit."""
    peak_low_bytes = _bytes(kernels.PEAK_GIB_LOW)
    """Lower end of the band of each peak."""
    peak_high_bytes = _bytes(kernels.PEAK_GIB_HIGH)
    """Upper end of the band of each peak."""

    @cached_property
    def fits(self) -> Flags:
        """Whether the peak stays below the usable memory."""
        return fitting(self.rows)

    @property
    def status(self) -> Coded:
        """Whether a row is a job that fits."""
        return Coded(self.fits.view(np.int8).astype(np.int32), [DOES_NOT_FIT, OK])

    @property
    def verdict(self) -> Coded:
        """What the band of the peak says about the usable memory."""
        return Coded(verdicts(self.rows), list(VERDICTS))

    @cached_property
    def counts(self) -> Counts:
        """What the models of the families have and need."""
        workloads, jobs = self.evaluation.workloads, self._first_jobs
        training = jobs.training
        first, group = group_rows(
            jobs.model.index,
            training.seq,
            training.packed,
            training.layout_key,
            training.adapter_key,
            np.where(training.adapted == 1, jobs.parallelism.ep, 1),
        )
        firsts = workloads.first[first].tolist()
        counts: list[ModelCounts] = [count_model(workloads.batch.job(row)) for row in firsts]
        of_family = group.take(workloads.pipeline)
        return Counts(
            np.array([model.parameters_total for model in counts], np.int64)[of_family],
            np.array([model.parameters_active for model in counts], np.int64)[of_family],
            np.array([model.parameters_trained for model in counts], np.int64)[of_family],
            np.array([model.flop_per_sequence for model in counts], np.float64)[of_family],
        )

    @cached_property
    def documented(self) -> dict[str, Column]:
        """The closed forms that Primus documents, by the names of `DocumentedMemory`."""
        evaluation, degrees = self.evaluation, self.degrees
        total, per_rank, bytes_per_token = self._documented_forms()
        states_gib = provenance.documented_states_gib(
            per_rank, degrees.gpus, degrees.ep, degrees.pp
        )
        tokens = degrees.micro_batch * degrees.seq // degrees.tp // degrees.cp
        sizes = [(each.pp, each.vpp, each.microbatches) for each in evaluation.settings]
        counted = provenance.documented_microbatches(*np.array(sizes, np.int64).reshape(-1, 3).T)
        of_job = evaluation.families.of_job
        microbatch_bytes = (tokens * bytes_per_token).take(of_job)
        activation_gib = to_gib(microbatch_bytes * counted.take(evaluation.setting_of_job))
        return {
            "parameters_total": self.of_families(total),
            "parameters_per_rank": self.of_families(per_rank),
            "param_optimizer_gib": self.of_families(states_gib),
            "activation_gib": activation_gib,
            "total_gib": states_gib.take(of_job) + activation_gib,
        }

    def _documented_forms(self) -> Ints:
        """Return `documented_forms` of the families, int64[3, families]."""
        workloads = self.evaluation.workloads
        batch, columns = self._first_jobs, workloads.jobs.take(workloads.first)
        model, split, training = batch.model, batch.parallelism, batch.training
        first, group = group_rows(
            model.index, split.layout_key, training.layout_key, columns.tp, columns.ep
        )
        forms = [
            provenance.documented_forms(
                model.of(row),
                int(columns.tp[row]),
                int(columns.ep[row]),
                LayerSplit.of(split.of(row)),
                LayerSettings.of(training.of(row)),
            )
            for row in first.tolist()
        ]
        return np.array(forms, np.int64)[group.take(workloads.pipeline)].T


def fitting(rows: kernels.ResultColumns) -> Flags:
    """Return whether the peaks of jobs stay below the usable memory; a ranking is enough."""
    return rows.column(kernels.HEADROOM_GIB) >= 0.0


def verdicts(rows: kernels.ResultColumns) -> Ints32:
    """Return the places of the verdicts of jobs in `VERDICTS`; a ranking is enough."""
    of_band = (kernels.PEAK_GIB_LOW, kernels.PEAK_GIB_HIGH, kernels.USABLE_GIB)
    return verdict_codes(*map(rows.column, of_band))


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number or text of a result."""

    name: str
    """Column of a sweep and key of ``--json``; in front of a dot the key of the object it is in."""
    kind: str
    unit: str
    """Empty for counts and texts, ``1`` for shares."""
    column: Callable[[Results], Column]
    """Computes it for each job of a batch; a value that is not finite counts as missing."""
    more_is_better: bool = False
    """Whether people want it large; others they want small, or do not care."""


def _of_families(read: Callable[[Results], Array]) -> Callable[[Results], Column]:
    return lambda results: results.of_families(read(results))


def _documented(name: str, kind: str, unit: str) -> Scalar:
    return Scalar(f"documented.{name}", kind, unit, lambda results: results.documented[name])


def from_gib(gib: Any) -> float:
    """Return bytes; a power of two apart, so that nothing is rounded."""
    return float(gib) * GIB


PERFORMANCE_SCALARS = (
    Scalar("iteration_time_ms", FLOAT, "ms", _number(kernels.ITERATION_MS)),
    Scalar("tokens_per_s_per_gpu", FLOAT, "tokens/s/GPU", _number(kernels.TOKENS_PER_S), True),
    Scalar("tflops_per_gpu", FLOAT, "TFLOP/s/GPU", _number(kernels.TFLOPS), True),
    Scalar("mfu", FLOAT, "1", _number(kernels.MFU), True),
    Scalar("hfu", FLOAT, "1", _number(kernels.HFU), True),
    Scalar("bubble_fraction", FLOAT, "1", _number(kernels.BUBBLE_FRACTION)),
    Scalar("busiest_stage", INT, "", lambda r: r.rows.busiest_rank),
    Scalar("schedule", TEXT, "", lambda r: r.schedule),
    Scalar("microbatches", INT, "", lambda r: r.microbatches),
    Scalar("nodes", INT, "", _of_families(lambda r: r.family_batch.cluster.nodes)),
    Scalar("gpus", INT, "", _of_families(lambda r: r.degrees.gpus)),
    *(
        Scalar(f"parallelism.{name}", INT, "", _of_families(attrgetter(f"degrees.{name}")))
        for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
    ),
    *(
        Scalar(f"breakdown_ms.{name}", FLOAT, "ms", _number(kernels.BREAKDOWN_MS + term))
        for term, name in enumerate(BREAKDOWN)
    ),
    Scalar("bound", TEXT, "", lambda r: r.bound),
)
"""What ``performance --json`` says, in its order."""

MEMORY_SCALARS = (
    Scalar("parameters_total", INT, "", _of_families(lambda r: r.counts.parameters_total)),
    Scalar("parameters_active", INT, "", _of_families(lambda r: r.counts.parameters_active)),
    Scalar("parameters_trained", INT, "", _of_families(lambda r: r.counts.parameters_trained)),
    Scalar(
        "device_memory_gib",
        FLOAT,
        "GiB",
        _of_families(lambda r: to_gib(r.family_batch.cluster.memory_bytes)),
    ),
    Scalar("usable_gib", FLOAT, "GiB", _number(kernels.USABLE_GIB), True),
    Scalar("reserve_gib", FLOAT, "GiB", _of_families(lambda r: to_gib(r.evaluation.reserve_bytes))),
    Scalar("allocator_gib", FLOAT, "GiB", _number(kernels.ALLOCATOR_GIB)),
    Scalar("peak_gib", FLOAT, "GiB", _number(kernels.PEAK_GIB)),
    Scalar("peak_gib_low", FLOAT, "GiB", _number(kernels.PEAK_GIB_LOW)),
    Scalar("peak_gib_high", FLOAT, "GiB", _number(kernels.PEAK_GIB_HIGH)),
    Scalar("headroom_gib", FLOAT, "GiB", _number(kernels.HEADROOM_GIB), True),
    Scalar("fits", BOOL, "", lambda r: r.fits),
    Scalar("verdict", TEXT, "", lambda r: r.verdict),
    Scalar("peak_stage", INT, "", lambda r: r.rows.peak_rank),
    _documented("parameters_total", INT, ""),
    _documented("parameters_per_rank", INT, ""),
    _documented("param_optimizer_gib", FLOAT, "GiB"),
    _documented("activation_gib", FLOAT, "GiB"),
    _documented("total_gib", FLOAT, "GiB"),
)
"""What ``memory --json`` says, in its order; ``performance --json`` repeats some of it."""

SCALARS = (*PERFORMANCE_SCALARS, *MEMORY_SCALARS, Scalar(STATUS, TEXT, "", lambda r: r.status))
"""The columns of a sweep behind its axes; the last stands there alone."""

RESULTS = {scalar.name: scalar.kind for scalar in SCALARS}
"""Column -> kind."""


def json_object(scalars: Mapping[str, Any], table: Sequence[Scalar]) -> dict[str, Any]:
    """Return the scalars of a table as ``--json`` nests them."""
    nested: dict[str, Any] = {}
    for scalar in table:
        group, dot, key = scalar.name.rpartition(".")
        (nested.setdefault(group, {}) if dot else nested)[key] = scalars[scalar.name]
    return nested


TEXTS = (
    *(LIMITS[term] for term in BREAKDOWN),
    "too few microbatches ({} for {} pipeline stages)",
    "uneven pipeline stages: stage {} works {} % longer than the last to end",
)
"""What each limit is called, by its code (see `kernels.results`): terms of a step first."""


def bounds(limit: Ints32, numbers: Mapping[int, tuple[Array, Array]]) -> Coded:
    """Name what limits each of n steps, by its code; ``numbers`` [n] are those of its text."""
    code, texts = limit.copy(), list(TEXTS[: len(BREAKDOWN)])
    for kind, columns in numbers.items():
        rows = np.flatnonzero(limit == kind)
        of_rows = [column.take(rows).astype(np.int64) for column in columns]
        first, of_row = group_rows(*of_rows)
        code[rows] = len(texts) + of_row
        texts += [TEXTS[kind].format(*(column[row] for column in of_rows)) for row in first]
    return Coded(code, texts)
