"""First-order projections of jobs as users see them: memory, step and run.

What has no meaning without tiles and replays is absent: stages, modules, collectives one by one,
recomputed FLOP, the band.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from projector.config._base import Config
from projector.config.first_order import FIRST_ORDER, FirstOrderConfig, FirstOrderDevice
from projector.config.first_order_job import AnyJob
from projector.config.prices import Price, load_prices
from projector.envelope import T, Told, envelope, told
from projector.errors import ConfigError
from projector.first_order.equations import time_to_train_s
from projector.first_order.training import TrainingResults, device_of, train
from projector.runs.cost import Ownership, owned_shares, owned_usd_per_gpu_hour
from projector.units import DAY, GIB, HOUR, MEGA, MILLISECOND, TERA, to_gib, to_ms

LISTED = "listed"
"""Where a job lets the dated prices of ``hardware/prices.yaml`` stand in for its own."""


@dataclass(frozen=True, slots=True)
class FirstOrderRun:
    """A whole run: its steps alone, without warm-up, failures, checkpoints and stragglers."""

    tokens: float
    days: float
    gpu_hours: float
    cost_usd: float | None
    """None without a price."""
    owned_multiplier: float | None
    """Cost of ownership over capex; None where the fleet is not owned."""

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of a run that exist at this fidelity."""
        found = asdict(self)
        if self.owned_multiplier is None:
            found.pop("owned_multiplier")
        return found


def run_of_steps(job: AnyJob, step_s: float) -> FirstOrderRun:
    """Project the run that a job states, from the seconds of a step."""
    tokens, device = tokens_of(job), device_of(job)
    tokens_per_step = job.training.global_batch_size * job.training.seq_length
    seconds = float(time_to_train_s(tokens, tokens_per_step, step_s))
    gpu_hours = seconds / HOUR * job.cluster.gpus
    price, multiplier = _rent(job, device), None
    if job.run.cost.owned.enabled:
        price, multiplier = _ownership(job, device)
    return FirstOrderRun(
        tokens=tokens,
        days=seconds / DAY,
        gpu_hours=gpu_hours,
        cost_usd=None if price is None else gpu_hours * price,
        owned_multiplier=multiplier,
    )


def tokens_of(job: AnyJob) -> float:
    """Return the tokens of a run, stated as they are, in sequences or in whole steps."""
    run, training = job.run, job.training
    if run.tokens is not None:
        return run.tokens
    samples = run.samples
    if run.steps is not None:
        samples = float(run.steps * training.global_batch_size)
    if samples is None:
        msg = "run.tokens: a run needs the tokens to train"
        raise ConfigError(msg, key="run.tokens", allowed="a number above 0")
    return samples * training.seq_length


def _rent(job: AnyJob, device: FirstOrderDevice) -> float | None:
    """Return USD of an hour: stated, or the dated one where the job asks for it."""
    cost = job.run.cost
    if cost.usd_per_gpu_hour is not None or cost.prices != LISTED:
        return cost.usd_per_gpu_hour
    return _listed(load_prices().rental_usd_per_gpu_hour, device)


def _listed(prices: Mapping[str, Price], device: FirstOrderDevice) -> float | None:
    return prices[device.name].value if device.name in prices else None


def _ownership(job: AnyJob, device: FirstOrderDevice) -> tuple[float | None, float | None]:
    """Return USD an hour and the multiplier of capex (Roofline methodology, 5; `runs.cost`)."""
    owned, energy = job.run.cost.owned, job.run.energy
    capex = owned.capex_usd_per_gpu or device.capex_usd
    if capex is None and job.run.cost.prices == LISTED:
        capex = _listed(load_prices().capex_usd_per_gpu, device)
    if capex is None or device.tdp_w is None:
        return None, None

    def either(section: Config, name: str) -> Any:
        stated = getattr(section, name)
        return np.array([getattr(load_prices().owned, name).value if stated is None else stated])

    fleet = Ownership(
        capex_usd=np.array([capex]),
        system_share=either(owned, "system_share"),
        lifetime_years=either(owned, "lifetime_years"),
        utilisation=either(owned, "utilisation"),
        tdp_w=np.array([device.tdp_w]),
        cooling_usd_per_w=either(owned, "cooling_usd_per_w"),
        real_estate_usd_per_w=either(owned, "real_estate_usd_per_mw") / MEGA,
        facility_once=np.array([owned.facility == "once"]),
        staff_share=either(owned, "staff_share_per_year"),
    )
    average_w = device.tdp_w * either(energy, "pue")
    usd_per_kwh = either(energy, "usd_per_kwh")
    hour = owned_usd_per_gpu_hour(fleet, average_w, usd_per_kwh)
    return float(hour[0]), float(owned_shares(fleet, average_w, usd_per_kwh).multiplier[0])


UNKNOWN_BAND: dict[str, Any] = {"relative": None}
"""No band is made for this fidelity."""

OTHER_SCHEDULES = (
    "the first-order model knows the bubble of 1F1B and of its interleaved form; {schedule!r} is "
    "taken for {taken}"
)


class _OfRow(Told[T]):
    """A column of the results of a batch as an attribute of one of its jobs."""

    def __get__(self, projection: Any, owner: type | None = None) -> T:
        """Return the value of the job; of the class, the attribute itself."""
        if projection is None:
            return self  # type: ignore[return-value]
        return self._read(attrgetter(self._column)(projection.results)[projection.row])


@dataclass(frozen=True, slots=True, repr=False)
class FirstOrderProjection:
    """One job among those of a batch."""

    job: AnyJob
    results: TrainingResults
    row: int

    @property
    def device(self) -> FirstOrderDevice:
        """The device as this model sees it."""
        return device_of(self.job)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may not be as it was meant."""
        return (*self.job.notes, *_schedule_warnings(self.job))

    def _framed(self, names: str, **figures: Any) -> dict[str, Any]:
        """Return figures between what every object of this fidelity begins and ends with."""
        return {
            **envelope(self.warnings, UNKNOWN_BAND),
            "ignored_settings": list(self.job.ignored),
            "fidelity": FIRST_ORDER,
            **told(self, names),
            **figures,
            "provenance": provenance(self.device, self.job.first_order),
        }


@dataclass(frozen=True, slots=True, repr=False)
class FirstOrderMemory(FirstOrderProjection):
    """Whether a job fits, by closed forms."""

    parameters_total = _OfRow(int, "columns.parameters")
    """All parameters."""
    parameters_active = _OfRow(int, "columns.active_parameters")
    """What a token meets."""
    peak_bytes = _OfRow(float)
    """All terms together."""
    device_memory_bytes = _OfRow(float, "columns.memory_bytes")
    """Memory of the device; nothing is reserved."""
    fits = _OfRow(bool)
    """Whether the peak is at most the memory of the device."""

    @property
    def terms_bytes(self) -> dict[str, float]:
        """What one rank holds, by term; all ranks are alike."""
        states = self.results.states
        return {
            "weights": float(states.weights[self.row]),
            "gradients": float(states.gradients[self.row]),
            "optimizer": float(states.optimizer[self.row]),
            "activations": float(self.results.activations[self.row]),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector memory --fidelity first-order --json`` prints."""
        return self._framed(
            "parameters_total parameters_active device_memory_gib peak_gib fits terms_gib"
        )

    def __repr__(self) -> str:
        return (
            f"FirstOrderMemory({_short(self.job)}: {'fits' if self.fits else 'does not fit'}, "
            f"{to_gib(self.peak_bytes):.2f} of {to_gib(self.device_memory_bytes):.2f} GiB)"
        )

    def _repr_html_(self) -> str:
        return _terms_table(repr(self), self.terms_bytes, "GiB", GIB)


@dataclass(frozen=True, slots=True, repr=False)
class FirstOrderPerformance(FirstOrderProjection):
    """How long one step takes, by closed forms."""

    @property
    def memory(self) -> FirstOrderMemory:
        """Memory of the same job."""
        return FirstOrderMemory(self.job, self.results, self.row)

    iteration_time_s = _OfRow(float, "iteration_s")
    """Seconds of a step."""
    tokens_per_step = _OfRow(float, "columns.tokens_per_step")
    """Tokens of a step."""
    bubble_fraction = _OfRow(float)
    """(P - 1) / (v m)."""

    @property
    def breakdown_s(self) -> dict[str, float]:
        """Terms that add up to the step."""
        return {name: float(value[self.row]) for name, value in self.results.breakdown_s.items()}

    @property
    def gpus(self) -> int:
        """Devices of the job."""
        return self.job.cluster.gpus

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Trained tokens per second and device."""
        return self.tokens_per_step / self.iteration_time_s / self.gpus

    @property
    def tflops_per_gpu(self) -> float:
        """TFLOP/s of each device, 6 N for each token."""
        return float(self.results.model_flop[self.row]) / self.iteration_time_s / self.gpus / TERA

    @property
    def peak_tflops(self) -> float:
        """Dense datasheet peak of the precision."""
        return float(self.results.columns.peak_flop_per_s[self.row]) / TERA

    @property
    def mfu(self) -> float:
        """Of the peak: the derate, less what communication and bubble leave of it."""
        return self.tflops_per_gpu / self.peak_tflops

    @property
    def schedule(self) -> str:
        """The schedule whose bubble is taken."""
        return _taken(self.job)

    @property
    def degrees(self) -> dict[str, int]:
        """Every parallel degree."""
        columns = self.results.columns
        names = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
        return {name: int(getattr(columns, name)[self.row]) for name in names}

    @property
    def run(self) -> FirstOrderRun | None:
        """The run that the job states, None where it states none."""
        if not self.job.run.is_stated:
            return None
        return run_of_steps(self.job, self.iteration_time_s)

    @property
    def bound(self) -> str:
        """The largest term of the step."""
        terms = self.breakdown_s
        return max(terms, key=lambda name: terms[name])

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector performance --fidelity first-order --json`` prints."""
        return self._framed(
            "iteration_time_ms tokens_per_s_per_gpu tflops_per_gpu mfu bubble_fraction schedule",
            microbatches=int(self.results.columns.microbatches[self.row]),
            nodes=self.job.cluster.nodes,
            gpus=self.gpus,
            parallelism=self.degrees,
            breakdown_ms={name: value / MILLISECOND for name, value in self.breakdown_s.items()},
            memory=told(self.memory, "peak_gib fits"),
            bound=self.bound,
            **({} if self.run is None else {"run": self.run.to_dict()}),
        )

    def both_to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector both --fidelity first-order --json`` prints."""
        head = envelope(self.warnings, UNKNOWN_BAND)
        return {**head, "memory": self.memory.to_dict(), "performance": self.to_dict()}

    def __repr__(self) -> str:
        return (
            f"FirstOrderPerformance({_short(self.job)}: {to_ms(self.iteration_time_s):,.1f} ms a "
            f"step, {self.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, MFU {self.mfu:.1%}, limited by "
            f"{self.bound}; first-order model, no tiles and no replay)"
        )

    def _repr_html_(self) -> str:
        return _terms_table(repr(self), self.breakdown_s, "ms", MILLISECOND)


def _terms_table(title: str, terms: Mapping[str, float], unit: str, scale: float) -> str:
    from projector.frames import html_table

    return html_table(title, [{"term": name, unit: value / scale} for name, value in terms.items()])


def provenance(device: FirstOrderDevice, constants: FirstOrderConfig) -> dict[str, Any]:
    """Return how the numbers of a projection were obtained."""
    return {
        "times": FIRST_ORDER,
        "memory": FIRST_ORDER,
        "constants": constants.model_dump(),
        "device": {"name": device.name, "sources": dict(device.sources)},
    }


def _taken(job: AnyJob) -> str:
    return "interleaved" if job.parallelism.vpp > 1 else "1f1b"


def _schedule_warnings(job: AnyJob) -> tuple[str, ...]:
    named, taken = job.training.schedule, _taken(job)
    if job.parallelism.pp == 1 or named in {"auto", "gpipe", "1f1b", "interleaved"}:
        return ()
    return (OTHER_SCHEDULES.format(schedule=named, taken=taken),)


def _short(job: AnyJob) -> str:
    return f"{job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}"


def project_memory(job: AnyJob) -> FirstOrderMemory:
    """Project the memory of a job in closed form."""
    return FirstOrderMemory(job, train([job]), 0)


def project_performance(jobs: Sequence[AnyJob]) -> list[FirstOrderPerformance]:
    """Project the steps of jobs in closed form; each equals that of the job alone."""
    if not jobs:
        return []
    results = train(jobs)
    return [FirstOrderPerformance(job, results, row) for row, job in enumerate(jobs)]
