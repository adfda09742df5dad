"""First-order projections of one job as users see them.

What has no meaning without tiles and replays is absent: stages, modules, collectives one by one,
recomputed FLOP, the band.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from projector.config.first_order import FIRST_ORDER
from projector.config.first_order_device import FirstOrderDevice
from projector.config.first_order_job import AnyJob
from projector.envelope import envelope
from projector.first_order.columns import device_of
from projector.first_order.run import FirstOrderRun, run_of_steps
from projector.first_order.training import TrainingResults
from projector.units import GIB, MILLISECOND, TERA, to_gib, to_ms

UNKNOWN_BAND: dict[str, Any] = {"relative": None}
"""No band is made for this fidelity."""

OTHER_SCHEDULES = (
    "the first-order model knows the bubble of 1F1B and of its interleaved form; {schedule!r} is "
    "taken for {taken}"
)


@dataclass(frozen=True, slots=True, repr=False)
class FirstOrderMemory:
    """Whether a job fits, by closed forms."""

    job: AnyJob
    results: TrainingResults
    row: int

    @property
    def device(self) -> FirstOrderDevice:
        """The device as this model sees it."""
        return device_of(self.job)

    @property
    def parameters_total(self) -> int:
        """All parameters."""
        return int(self.results.columns.parameters[self.row])

    @property
    def parameters_active(self) -> int:
        """What a token meets."""
        return int(self.results.columns.active_parameters[self.row])

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

    @property
    def peak_bytes(self) -> float:
        """All terms together."""
        return float(self.results.peak_bytes[self.row])

    @property
    def device_memory_bytes(self) -> float:
        """Memory of the device; nothing is reserved."""
        return float(self.results.columns.memory_bytes[self.row])

    @property
    def fits(self) -> bool:
        """Whether the peak is at most the memory of the device."""
        return bool(self.results.fits[self.row])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may not be as it was meant."""
        return (*self.job.notes, *_schedule_warnings(self.job))

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector memory --fidelity first-order --json`` prints."""
        return {
            **envelope(self.warnings, UNKNOWN_BAND),
            "ignored_settings": list(self.job.ignored),
            "fidelity": FIRST_ORDER,
            "parameters_total": self.parameters_total,
            "parameters_active": self.parameters_active,
            "device_memory_gib": to_gib(self.device_memory_bytes),
            "peak_gib": to_gib(self.peak_bytes),
            "fits": self.fits,
            "terms_gib": {name: to_gib(value) for name, value in self.terms_bytes.items()},
            "provenance": provenance(self.job),
        }

    def __repr__(self) -> str:
        """Say whether it fits, in one line."""
        return (
            f"FirstOrderMemory({_short(self.job)}: {'fits' if self.fits else 'does not fit'}, "
            f"{to_gib(self.peak_bytes):.2f} of {to_gib(self.device_memory_bytes):.2f} GiB)"
        )

    def _repr_html_(self) -> str:
        return _terms_table(repr(self), self.terms_bytes, "GiB", GIB)


@dataclass(frozen=True, slots=True, repr=False)
class FirstOrderPerformance:
    """How long one step takes, by closed forms."""

    job: AnyJob
    results: TrainingResults
    row: int

    @property
    def memory(self) -> FirstOrderMemory:
        """Memory of the same job."""
        return FirstOrderMemory(self.job, self.results, self.row)

    @property
    def device(self) -> FirstOrderDevice:
        """The device as this model sees it."""
        return device_of(self.job)

    @property
    def iteration_time_s(self) -> float:
        """Seconds of a step."""
        return float(self.results.iteration_s[self.row])

    @property
    def breakdown_s(self) -> dict[str, float]:
        """Terms that add up to the step."""
        return {name: float(value[self.row]) for name, value in self.results.breakdown_s.items()}

    @property
    def gpus(self) -> int:
        """Devices of the job."""
        return self.job.cluster.gpus

    @property
    def tokens_per_step(self) -> float:
        """Tokens of a step."""
        return float(self.results.columns.tokens_per_step[self.row])

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Trained tokens per second and device."""
        return self.tokens_per_step / self.iteration_time_s / self.gpus

    @property
    def tflops_per_gpu(self) -> float:
        """TFLOP/s of each device, 6 N for each token."""
        return float(self.results.model_flop[self.row]) / self.iteration_time_s / self.gpus / TERA

    @property
    def mfu(self) -> float:
        """The same over the peak: the derate, less what communication and bubble leave of it."""
        return self.tflops_per_gpu * TERA / float(self.results.columns.peak_flop_per_s[self.row])

    @property
    def bubble_fraction(self) -> float:
        """(P - 1) / (v m)."""
        return float(self.results.bubble_fraction[self.row])

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

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may not be as it was meant."""
        return self.memory.warnings

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector performance --fidelity first-order --json`` prints."""
        run = self.run
        return {
            **envelope(self.warnings, UNKNOWN_BAND),
            "ignored_settings": list(self.job.ignored),
            "fidelity": FIRST_ORDER,
            "iteration_time_ms": to_ms(self.iteration_time_s),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "bubble_fraction": self.bubble_fraction,
            "schedule": self.schedule,
            "microbatches": int(self.results.columns.microbatches[self.row]),
            "nodes": self.job.cluster.nodes,
            "gpus": self.gpus,
            "parallelism": self.degrees,
            "breakdown_ms": {name: value / MILLISECOND for name, value in self.breakdown_s.items()},
            "memory": {"peak_gib": to_gib(self.memory.peak_bytes), "fits": self.memory.fits},
            "bound": self.bound,
            **({} if run is None else {"run": run.to_dict()}),
            "provenance": provenance(self.job),
        }

    def both_to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector both --fidelity first-order --json`` prints."""
        head = envelope(self.warnings, UNKNOWN_BAND)
        return {**head, "memory": self.memory.to_dict(), "performance": self.to_dict()}

    def __repr__(self) -> str:
        """Give the step in one line."""
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


def provenance(job: AnyJob) -> dict[str, Any]:
    """Return how the numbers of a projection were obtained."""
    device = device_of(job)
    return {
        "times": FIRST_ORDER,
        "memory": FIRST_ORDER,
        "constants": job.first_order.model_dump(),
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
