"""Whole training runs: how long jobs train that state how much."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from projector.arrays import Floats
from projector.config.bands import Band
from projector.config.job import Job
from projector.config.run import run_default, run_default_source
from projector.envelope import Told, told
from projector.errors import ConfigError
from projector.projection import money as bills
from projector.projection.bands import time_band
from projector.projection.evaluate import Evaluation
from projector.projection.money import known
from projector.projection.results import Results
from projector.projection.terms import BREAKDOWN
from projector.runs import time as runtime
from projector.units import DAY, Numbers

_ATTENTION, _STRAGGLERS = map(BREAKDOWN.index, ("compute_attention", "stragglers"))

Columns = TypeVar("Columns", runtime.RunInputs, runtime.WarmUp)

_FORWARDS = 3.0
"""FLOP of a step without recomputation over those of its forward."""


def project_runs(source: Evaluation | Results) -> "RunProjections":
    """Project the runs of all evaluated jobs of a batch; those without tokens have NaN."""
    results = source if isinstance(source, Results) else Results(source)
    if results.runs is None:
        results.runs = RunProjections(results, run_inputs(results))
    runs: RunProjections = results.runs
    return runs


def run_inputs(results: Results) -> runtime.RunInputs:
    """Return what the time of runs follows from, a row for each job of a batch."""
    jobs, cluster = results.jobs, results.cluster
    run, training = results.evaluation.batch.run, results.evaluation.batch.training
    step_s = results.steps.iteration_s
    tokens_per_step = results.evaluation.global_batch.astype(np.float64) * jobs.seq
    nodes = cluster.nodes.astype(np.float64)
    kept_bytes = training.held_weight_bytes + training.state_bytes
    trained = results.counts.parameters_trained.take(results.evaluation.families.of_job)
    checkpoint_bytes = trained * kept_bytes
    interval_s = np.where(np.isnan(run.interval_steps), run.interval_s, run.interval_steps * step_s)
    return runtime.RunInputs(
        **{name: getattr(run, name) for name in _AS_STATED},
        step_s=step_s,
        tokens=_tokens(results),
        tokens_per_step=tokens_per_step,
        gpus=jobs.gpus.astype(np.float64),
        nodes=nodes,
        gpu_bytes_per_s=cluster.host_link_bytes_per_s,
        warm_up=_warm_up(results),
        evaluation_steps=_evaluation_steps(results),
        checkpoint_bytes=_stated_or(run.checkpoint_bytes, checkpoint_bytes),
        interval_s=interval_s,
        write_bytes_per_s=_stated_or(run.write_bytes_per_s, run.node_write_bytes_per_s * nodes),
        read_bytes_per_s=_stated_or(run.read_bytes_per_s, run.node_read_bytes_per_s * nodes),
    )


_AS_STATED = (
    "slowdown", "saves", "asynchronous", "checkpoint_overhead_s", "fails", "gpu_mtbf_s",
    "node_mtbf_s", "detection_s", "restart_s", "spare_nodes", "repair_s", "repaired_share",
)  # fmt: skip
"""Columns of runs that are those of the section ``run``."""


def _stated_or(stated: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(stated), other, stated)


def _tokens(results: Results) -> Floats:
    run, jobs = results.evaluation.batch.run, results.jobs
    samples = _stated_or(run.samples, run.steps * results.evaluation.global_batch)
    return _stated_or(run.tokens, samples * jobs.seq)


def _warm_up(results: Results) -> runtime.WarmUp:
    run, jobs, steps = results.evaluation.batch.run, results.jobs, results.steps
    # The slowest device is late by a share of its compute.
    per_batch_s = steps.busiest_s + steps.breakdown_s[:, _STRAGGLERS]
    return runtime.WarmUp(
        start_batch=run.start_batch,
        increment=run.batch_increment,
        samples=run.warm_up_samples,
        batch=results.evaluation.global_batch.astype(np.float64),
        round_samples=jobs.dp.astype(np.float64) * jobs.micro_batch,
        microbatch_s=per_batch_s / results.evaluation.microbatches,
        seq=jobs.seq.astype(np.float64),
    )


def _evaluation_steps(results: Results) -> Floats:
    """Return the time of evaluations in steps: the share of forwards in the FLOP of a pipeline."""
    run, steps = results.evaluation.batch.run, results.steps
    share = forward_of(steps.pipeline_s / steps.iteration_s, results)
    forward = _stated_or(run.forward_share, share)
    each = run.evaluation_iterations / run.evaluation_interval * forward
    return np.where(run.evaluates != 0, each, 0.0)


def forward_of(pipeline: Numbers, flop: Any) -> Numbers:
    """Return what of a pipeline's time is forward: its share of the matrix FLOP.

    ``flop`` has ``recompute_flop`` and ``model_flop`` of a step.
    """
    part: Numbers = pipeline / (_FORWARDS * (1.0 + flop.recompute_flop / flop.model_flop))
    return part


class RunProjections:
    """The runs of a batch: columns of all jobs, and the run of one."""

    def __init__(self, results: Results, inputs: runtime.RunInputs) -> None:
        self.results, self.inputs = results, inputs

    def __len__(self) -> int:
        return len(self.inputs.step_s)

    @cached_property
    def times(self) -> runtime.RunTimes:
        """Expected seconds by term."""
        return runtime.run_times(self.inputs)

    @cached_property
    def money(self) -> bills.RunMoney:
        """Energy and cost."""
        return bills.run_money(self.results.evaluation, self.times)

    def column(self, name: str) -> Floats:
        """Return one of `RUN_SCALARS`, one entry for each job."""
        return next(scalar.column(self) for scalar in RUN_SCALARS if scalar.name == name)

    def of(self, row: int) -> "RunProjection":
        """Return the run of one job."""
        job = self.results.evaluation.job(row)
        if not job.run.is_stated:
            msg = "run.tokens: the job does not say how much is trained"
            raise ConfigError(msg, key="run.tokens", allowed="tokens, steps or samples of the run")
        _check(job, self.times, row)
        inputs = row_of(self.inputs, row)
        share = float(self.results.steps.breakdown_s[row, _ATTENTION] / inputs.step_s[0])
        times = runtime.run_times(inputs)
        low, high = _band_days(time_band(job, share), inputs, times)
        bill = bills.bill_of(self.money, row, self.results.mfu, self.inputs.tokens)
        scalars = {scalar.name: float(scalar.column(self)[row]) for scalar in RUN_SCALARS}
        return RunProjection(job, inputs, times, scalars, low, high, bill)


def row_of(inputs: Columns, row: int) -> Columns:
    """Return one row of inputs, and of columns within them, as columns of one."""
    columns = {each.name: getattr(inputs, each.name) for each in fields(inputs)}
    rows: dict[str, Any] = {
        name: column[[row]] if isinstance(column, np.ndarray) else row_of(column, row)
        for name, column in columns.items()
    }
    return replace(inputs, **rows)


def _band_days(
    band: Band, inputs: runtime.RunInputs, times: runtime.RunTimes
) -> tuple[float | None, float | None]:
    """Return the 90 % band of one run in days."""
    limits = band.limits(90)
    if limits is None:
        return None, None
    low, high = (np.array([limit]) for limit in limits)
    spread = runtime.Spread(low, high, np.array([run_default("rate_log_spread")]))
    ends_s = runtime.band_of(runtime.simulate_runs(inputs, times, spread))
    days = [end_s / DAY if np.isfinite(end_s) else None for end_s in ends_s]
    return days[0], days[1]


def _check(job: Job, times: runtime.RunTimes, row: int) -> None:
    status = int(times.status[row])
    if status == runtime.OK:
        return
    if status == runtime.TOO_SHORT:
        in_steps = job.run.checkpoint.interval_steps is not None
        name = "interval_steps" if in_steps else "interval_s"
        least_s = float(times.write_s[row])
        msg = (
            f"run.checkpoint.{name}: {float(times.checkpoint_interval_s[row]):,.4g} s of training "
            f"lie between two checkpoints, and one takes {least_s:,.4g} s to write"
        )
        value = getattr(job.run.checkpoint, name)
        allowed = f"an interval of at least {least_s:,.4g} s"
        raise ConfigError(msg, key=f"run.checkpoint.{name}", value=value, allowed=allowed)
    key = "run.failures" if job.run.checkpoint.enabled else "run.checkpoint"
    msg = (
        f"{key}: the run never ends, failures come faster than it gets on; state checkpoints, "
        "faster storage, or a longer time between failures"
    )
    raise ConfigError(msg, key=key, value=None, allowed="a run that gets on")


_DEFAULTS = {
    "checkpoint": ("write_gb_per_s_per_node", "read_gb_per_s_per_node", "overhead_s"),
    "failures": (
        "gpu_mtbf_hours", "node_mtbf_hours", "detection_s", "restart_s", "repair_hours",
        "repaired_share",
    ),
    "stragglers": ("slowdown",),
}  # fmt: skip
"""Terms of a run, and their fields that ``hardware/failures.yaml`` fills in."""

_INSTEAD = {"write_gb_per_s_per_node": "write_gb_per_s", "read_gb_per_s_per_node": "read_gb_per_s"}
"""Fields of which another one takes the place."""


def assumptions_of(job: Job) -> list[str]:
    """Return what a run takes for granted that its job does not state, one sentence each."""
    run = job.run
    lines = [f"{name} left out" for name in ("evaluation",) if not run.evaluation.enabled]
    if run.warm_up.start_batch_size is None:
        lines.insert(0, "every step has the whole batch")
    for term, names in _DEFAULTS.items():
        section = getattr(run, term)
        if not section.enabled:
            lines.append(f"{term} left out")
            continue
        for name in names:
            instead = _INSTEAD.get(name)
            stated = instead is not None and getattr(section, instead) is not None
            if getattr(section, name) is None and not stated and not _unused(job, name):
                lines.append(f"run.{term}.{name} {run_default(name):g}: {run_default_source(name)}")
    if run.failures.enabled and run.failures.spare_nodes is None:
        lines.append("a spare node is always at hand")
    return lines


def _unused(job: Job, name: str) -> bool:
    """Whether a default has no effect, as what it belongs to is off."""
    failures = job.run.failures
    if name in {"repair_hours", "repaired_share"}:
        return failures.spare_nodes is None
    return name == "read_gb_per_s_per_node" and not failures.enabled


@dataclass(frozen=True, slots=True, repr=False)
class RunProjection:
    """How long one job trains, and why."""

    job: Job
    inputs: runtime.RunInputs
    """Columns of one row."""
    times: runtime.RunTimes
    """The same."""
    scalars: Mapping[str, float]
    """Every scalar of `RUN_SCALARS`, under the name of its column."""
    days_low: float | None
    """Lower end of the 90 % band: of the step time, of the rate of failures, and of when they come;
    None where the band of the step time is unknown."""
    days_high: float | None
    """Upper end; None also where the run may never end."""
    bill: bills.RunBill
    """Further energy and cost."""

    days = Told(float)
    """Expected wall clock."""
    gpu_hours = Told(float)
    """Hours of all reserved devices, stated spare nodes included."""
    energy_mwh = Told(float)
    """At the meter of the building."""
    co2_t = Told(float)
    """Emitted by the grid, in tonnes."""
    cost_usd = Told(known)
    """Rent, or what owned devices cost; None without a price."""
    goodput = Told(float)
    """Share of the wall clock in which steps are made that stay."""

    @property
    def tokens(self) -> float:
        """Tokens trained."""
        return float(self.inputs.tokens[0])

    @property
    def failures(self) -> float:
        """Expected interruptions."""
        return float(self.times.failures[0])

    @property
    def checkpoint_interval_s(self) -> float | None:
        """Work between two checkpoints; None where none is written."""
        return known(self.times.checkpoint_interval_s[0])

    @property
    def terms_days(self) -> dict[str, float]:
        """Days by term, which add up to `days`."""
        return {
            term.removesuffix("_s"): float(getattr(self.times, term)[0]) / DAY
            for term in runtime.TERMS
        }

    @property
    def assumptions(self) -> list[str]:
        """What the job does not state."""
        parts = (assumptions_of, bills.power_assumptions, bills.price_assumptions)
        return [line for lines_of in parts for line in lines_of(self.job)]

    def to_dict(self) -> dict[str, Any]:
        """Return the object ``run`` of ``performance --json``."""
        return {
            **told(self, "tokens days days_low days_high gpu_hours energy_mwh co2_t cost_usd"),
            **asdict(self.bill),
            **told(self, "goodput terms_days failures checkpoint_interval_s assumptions"),
        }

    def __repr__(self) -> str:
        band = ""
        if self.days_low is not None and self.days_high is not None:
            band = f" ({self.days_low:,.3g} to {self.days_high:,.3g})"
        return (
            f"RunProjection({self.tokens:.4g} tokens in {self.days:,.3g} days{band}, "
            f"{self.gpu_hours:,.0f} GPU-hours, goodput {self.goodput:.1%}, "
            f"{self.failures:,.3g} failures)"
        )


@dataclass(frozen=True, slots=True)
class RunScalar:
    """One number of a run as a column of a sweep."""

    name: str
    """Column of a sweep, key of ``run`` of ``performance --json``."""
    unit: str
    column: Callable[[RunProjections], Floats]
    """Returns it for each job; NaN counts as missing."""
    more_is_better: bool = False


RUN_SCALARS = (
    RunScalar("days", "days", lambda runs: runs.times.total_s / DAY),
    RunScalar("gpu_hours", "GPU-hours", lambda runs: runs.money.energy.gpu_hours),
    RunScalar("energy_mwh", "MWh", lambda runs: runs.money.energy.energy_kwh / bills.KWH_PER_MWH),
    RunScalar("co2_t", "t", lambda runs: runs.money.co2_kg / bills.KG_PER_TONNE),
    RunScalar("cost_usd", "USD", lambda runs: runs.money.cost_usd),
    RunScalar("goodput", "1", lambda runs: runs.times.goodput, True),
)
"""The columns of a sweep whose jobs state how much is trained."""


def run_columns(results: Results) -> dict[str, Floats]:
    """Return every column of `RUN_SCALARS`, one entry for each job."""
    runs = project_runs(results)
    return {scalar.name: scalar.column(runs) for scalar in RUN_SCALARS}
