"""The scalars of results, declared once: columns of a sweep and ``--json`` follow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels.grouping import group_rows
from projector.lower.batch import JobBatch
from projector.lower.stages import LayerSettings, LayerSplit
from projector.operations.counts import ModelCounts, count_model
from projector.projection.bound import Coded, bounds
from projector.projection.breakdown import BREAKDOWN
from projector.projection.device_memory import DeviceMemory
from projector.projection.documented import DocumentedTotals, documented_forms, documented_gib
from projector.projection.evaluate import Evaluation
from projector.projection.verdict import VERDICTS, Factors, memory_factors, verdict_codes
from projector.units import TERA, to_gib, to_ms

Column = Floats | Ints | Flags | Coded

BOOL, INT, FLOAT, TEXT = "bool", "int", "float", "text"
"""Kinds of scalars."""

OK, DOES_NOT_FIT = "ok", "does_not_fit"
STATUS = "status"
"""Column that says which of both a row is."""


class Counts(NamedTuple):
    """`ModelCounts` of each job."""

    parameters_total: Ints
    parameters_active: Ints
    parameters_trained: Ints
    flop_per_sequence: Floats

    def of(self, row: int) -> ModelCounts:
        """Return those of one job."""
        return ModelCounts(*(column[row].item() for column in self))


class Results:
    """What scalars of a batch are computed from; what several need is computed once."""

    def __init__(self, evaluation: Evaluation) -> None:
        """Compute nothing yet."""
        self.evaluation = evaluation
        self.steps = evaluation.steps
        self.jobs = evaluation.jobs
        self.cluster = evaluation.batch.cluster
        self.runs: Any = None
        """`RunProjections`, once somebody has asked `project_runs` for them."""

    def columns(self) -> dict[str, Column]:
        """Return every scalar of `SCALARS`, one entry for each job."""
        return {scalar.name: scalar.column(self) for scalar in SCALARS}

    def row(self, row: int) -> Mapping[str, Any]:
        """Return every scalar of one job."""
        return _Row(self, row)

    @cached_property
    def _first_jobs(self) -> JobBatch:
        return self.evaluation.workloads.first_jobs()

    @cached_property
    def lists(self) -> dict[str, list[Any]]:
        """The columns as lists, texts written out."""
        return {
            name: [column.texts[code] for code in column.code.tolist()]
            if isinstance(column, Coded)
            else column.tolist()
            for name, column in self.columns().items()
        }

    @property
    def tokens_per_s_per_gpu(self) -> Floats:
        """Trained tokens per second and device."""
        tokens = self.evaluation.global_batch * 1.0 * self.jobs.seq
        return np.asarray(tokens / self.steps.iteration_s / self.jobs.gpus)

    @cached_property
    def model_flop(self) -> Floats:
        """Matrix FLOP the model needs for one step, no recomputation, causal attention halved."""
        return self.counts.flop_per_sequence * self.evaluation.global_batch

    @cached_property
    def recompute_flop(self) -> Floats:
        """Matrix FLOP that recomputation repeats in one step, over all devices."""
        ranks = self.jobs.gpus // self.jobs.pp
        costs, pipeline = self.evaluation.inputs.costs, self.evaluation.pipeline_of_job
        return ranks * self.evaluation.microbatches * costs.recompute_flop[pipeline]

    @cached_property
    def tflops_per_gpu(self) -> Floats:
        """Needed TFLOP/s of each device, the numerator of MFU."""
        return self.model_flop / self.steps.iteration_s / self.jobs.gpus / TERA

    @cached_property
    def mfu(self) -> Floats:
        """Share of the dense datasheet peak of the training precision."""
        dtype = self.evaluation.batch.training.dtype
        peak_tflops = self.cluster.peak_tflops[np.arange(len(dtype)), dtype]
        return np.asarray(self.tflops_per_gpu / peak_tflops)

    @property
    def hfu(self) -> Floats:
        """MFU with the recomputed FLOP."""
        return self.mfu * (1.0 + self.recompute_flop / self.model_flop)

    @property
    def bubble_fraction(self) -> Floats:
        """Idle time of the busiest pipeline rank relative to its work.

        (PP - 1) / (VPP * M) for equal stages. Other ranks idle longer where stages are uneven,
        which is no bubble.
        """
        return np.maximum(0.0, self.steps.pipeline_s / self.steps.busiest_s - 1.0)

    @property
    def schedule(self) -> Coded:
        """Names of the schedules."""
        names = [setting.name for setting in self.evaluation.settings]
        return Coded(self.evaluation.setting_of_job, names)

    @property
    def bound(self) -> Coded:
        """What limits each step."""
        return bounds(self.steps, self.jobs.pp, self.evaluation.microbatches)

    @property
    def memory(self) -> DeviceMemory:
        """What of its device each job may use."""
        return self.evaluation.device_memory

    @property
    def usable_bytes(self) -> Floats:
        """What a rank may allocate."""
        return self.memory.usable_bytes

    @cached_property
    def headroom_bytes(self) -> Floats:
        """What is left at the peak; negative where a job does not fit."""
        return self.usable_bytes - self.steps.peak_bytes

    @property
    def fits(self) -> Flags:
        """Whether the peak stays below the usable memory."""
        return self.headroom_bytes >= 0.0

    @cached_property
    def memory_factors(self) -> Factors:
        """Both ends of the band of each peak, relative to it."""
        return memory_factors(self.evaluation.batch)

    @property
    def peak_low_bytes(self) -> Floats:
        """Lower end of the band of each peak."""
        return self.steps.peak_bytes * self.memory_factors.low

    @property
    def peak_high_bytes(self) -> Floats:
        """Upper end of the band of each peak."""
        return self.steps.peak_bytes * self.memory_factors.high

    @cached_property
    def verdict(self) -> Coded:
        """What the band of the peak says about the usable memory."""
        code = verdict_codes(self.steps.peak_bytes, self.memory_factors, self.usable_bytes)
        return Coded(code, list(VERDICTS))

    @cached_property
    def counts(self) -> Counts:
        """What the models have and need."""
        workloads, jobs = self.evaluation.workloads, self._first_jobs
        training = jobs.training
        first, group = group_rows(
            jobs.model.index,
            training.seq,
            training.layout_key,
            training.adapter_key,
            np.where(training.adapted == 1, jobs.parallelism.ep, 1),
        )
        firsts = workloads.first[first].tolist()
        counts: list[ModelCounts] = [count_model(workloads.batch.job(row)) for row in firsts]
        of_job = group[self.evaluation.pipeline_of_job]
        return Counts(
            np.array([model.parameters_total for model in counts], np.int64)[of_job],
            np.array([model.parameters_active for model in counts], np.int64)[of_job],
            np.array([model.parameters_trained for model in counts], np.int64)[of_job],
            np.array([model.flop_per_sequence for model in counts], np.float64)[of_job],
        )

    @cached_property
    def documented(self) -> DocumentedTotals[Ints, Floats]:
        """The closed forms that Primus documents."""
        workloads, jobs = self.evaluation.workloads, self.jobs
        batch, columns = self._first_jobs, workloads.jobs.take(workloads.first)
        model, split, training = batch.model, batch.parallelism, batch.training
        first, group = group_rows(
            model.index, split.layout_key, training.layout_key, columns.tp, columns.ep
        )
        forms = [
            documented_forms(
                model.of(row),
                int(columns.tp[row]),
                int(columns.ep[row]),
                LayerSplit.of(split.of(row)),
                LayerSettings.of(training.of(row)),
            )
            for row in first.tolist()
        ]
        total, per_rank, per_token = np.array(forms, np.int64).T[:, group]
        tokens = columns.micro_batch * columns.seq // columns.tp // columns.cp
        of_job = self.evaluation.pipeline_of_job
        states_gib, activation_gib = documented_gib(
            per_rank[of_job],
            (tokens * per_token)[of_job],
            jobs.gpus,
            jobs.ep,
            jobs.pp,
            jobs.vpp,
            self.evaluation.microbatches,
        )
        return DocumentedTotals(
            parameters_total=total[of_job],
            parameters_per_rank=per_rank[of_job],
            param_optimizer_gib=states_gib,
            activation_gib=activation_gib,
            total_gib=states_gib + activation_gib,
        )


class _Row(Mapping[str, Any]):
    """Scalars of one job; the batch is read, and let go, when the first is asked for."""

    def __init__(self, results: Results, row: int) -> None:
        self._results: Results | None = results
        self._row = row
        self._known: dict[str, Any] = {}

    def _values(self) -> dict[str, Any]:
        if self._results is not None:
            self._known = {name: values[self._row] for name, values in self._results.lists.items()}
            self._results = None
        return self._known

    def __getitem__(self, name: str) -> Any:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return repr(self._values())

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Write plain values."""
        return dict, (self._values(),)


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


def _step_term_ms(term: int) -> Callable[[Results], Floats]:
    return lambda results: to_ms(results.steps.breakdown_s[:, term])


PERFORMANCE_SCALARS = (
    Scalar("iteration_time_ms", FLOAT, "ms", lambda r: to_ms(r.steps.iteration_s)),
    Scalar("tokens_per_s_per_gpu", FLOAT, "tokens/s/GPU", lambda r: r.tokens_per_s_per_gpu, True),
    Scalar("tflops_per_gpu", FLOAT, "TFLOP/s/GPU", lambda r: r.tflops_per_gpu, True),
    Scalar("mfu", FLOAT, "1", lambda r: r.mfu, True),
    Scalar("hfu", FLOAT, "1", lambda r: r.hfu, True),
    Scalar("bubble_fraction", FLOAT, "1", lambda r: r.bubble_fraction),
    Scalar("busiest_stage", INT, "", lambda r: r.steps.busiest_rank),
    Scalar("schedule", TEXT, "", lambda r: r.schedule),
    Scalar("microbatches", INT, "", lambda r: r.evaluation.microbatches),
    Scalar("nodes", INT, "", lambda r: r.cluster.nodes),
    Scalar("gpus", INT, "", lambda r: r.jobs.gpus),
    Scalar("parallelism.tp", INT, "", lambda r: r.jobs.tp),
    Scalar("parallelism.pp", INT, "", lambda r: r.jobs.pp),
    Scalar("parallelism.vpp", INT, "", lambda r: r.jobs.vpp),
    Scalar("parallelism.cp", INT, "", lambda r: r.jobs.cp),
    Scalar("parallelism.ep", INT, "", lambda r: r.jobs.ep),
    Scalar("parallelism.etp", INT, "", lambda r: r.jobs.etp),
    Scalar("parallelism.dp", INT, "", lambda r: r.jobs.dp),
    *(
        Scalar(f"breakdown_ms.{name}", FLOAT, "ms", _step_term_ms(term))
        for term, name in enumerate(BREAKDOWN)
    ),
    Scalar("bound", TEXT, "", lambda r: r.bound),
)
"""What ``performance --json`` says, in its order."""

MEMORY_SCALARS = (
    Scalar("parameters_total", INT, "", lambda r: r.counts.parameters_total),
    Scalar("parameters_active", INT, "", lambda r: r.counts.parameters_active),
    Scalar("parameters_trained", INT, "", lambda r: r.counts.parameters_trained),
    Scalar("device_memory_gib", FLOAT, "GiB", lambda r: to_gib(r.cluster.memory_bytes)),
    Scalar("usable_gib", FLOAT, "GiB", lambda r: to_gib(r.usable_bytes), True),
    Scalar("reserve_gib", FLOAT, "GiB", lambda r: to_gib(r.memory.reserve_bytes)),
    Scalar("allocator_gib", FLOAT, "GiB", lambda r: to_gib(r.memory.idle_bytes)),
    Scalar("peak_gib", FLOAT, "GiB", lambda r: to_gib(r.steps.peak_bytes)),
    Scalar("peak_gib_low", FLOAT, "GiB", lambda r: to_gib(r.peak_low_bytes)),
    Scalar("peak_gib_high", FLOAT, "GiB", lambda r: to_gib(r.peak_high_bytes)),
    Scalar("headroom_gib", FLOAT, "GiB", lambda r: to_gib(r.headroom_bytes), True),
    Scalar("fits", BOOL, "", lambda r: r.fits),
    Scalar("verdict", TEXT, "", lambda r: r.verdict),
    Scalar("peak_stage", INT, "", lambda r: r.steps.peak_rank),
    Scalar("documented.parameters_total", INT, "", lambda r: r.documented.parameters_total),
    Scalar("documented.parameters_per_rank", INT, "", lambda r: r.documented.parameters_per_rank),
    Scalar(
        "documented.param_optimizer_gib", FLOAT, "GiB", lambda r: r.documented.param_optimizer_gib
    ),
    Scalar("documented.activation_gib", FLOAT, "GiB", lambda r: r.documented.activation_gib),
    Scalar("documented.total_gib", FLOAT, "GiB", lambda r: r.documented.total_gib),
)
"""What ``memory --json`` says, in its order; ``performance --json`` repeats some of it."""

SCALARS = (
    *PERFORMANCE_SCALARS,
    *MEMORY_SCALARS,
    Scalar(STATUS, TEXT, "", lambda r: Coded(1 - r.fits, [OK, DOES_NOT_FIT])),
)
"""The columns of a sweep behind its axes; the last stands there alone."""

RESULTS = {scalar.name: scalar.kind for scalar in SCALARS}
"""Column -> kind."""


def result_columns(evaluation: Evaluation) -> dict[str, Column]:
    """Return every column of `RESULTS`, one entry for each job."""
    return Results(evaluation).columns()


def json_object(scalars: Mapping[str, Any], table: Sequence[Scalar]) -> dict[str, Any]:
    """Return the scalars of a table as ``--json`` nests them."""
    nested: dict[str, Any] = {}
    for scalar in table:
        group, dot, key = scalar.name.rpartition(".")
        (nested.setdefault(group, {}) if dot else nested)[key] = scalars[scalar.name]
    return nested
