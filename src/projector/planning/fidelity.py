"""The two models that a plan may ask: tiles, or the closed forms of the first order."""

from collections.abc import Mapping, Sequence
from typing import Any

from projector.config.bands import Band
from projector.config.first_order import FIRST_ORDER
from projector.config.first_order_job import AnyJob, load_first_order_job
from projector.config.formats.emit.emitted import check_model
from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.first_order import results
from projector.first_order.layouts import UNSPLIT, fastest_layout, legal_layouts
from projector.operations.counts import count_model
from projector.planning.choice import Choice, RunFigures, first_order_figures, run_figures
from projector.projection import api
from projector.projection.bands import FITS
from projector.projection.known import KnownPipelines
from projector.projection.performance import PerformanceProjection
from projector.searches import ranking
from projector.searches.candidates import KnownSections, candidates
from projector.searches.exploration import explore
from projector.searches.limits import PLACED, Limits, Watch
from projector.units import TERA

SHARDED: dict[str, Any] = {
    "cluster.nodes": 1,
    **{f"parallelism.{name}": 1 for name in ("tp", "pp", "vpp", "cp", "ep")},
    "parallelism.etp": None,
    "parallelism.dp": None,
    "parallelism.zero_stage": 3,
    "parallelism.fsdp": False,
    "training.micro_batch_size": 1,
    "training.schedule": "auto",
}
"""A layout whose ranks hold one copy of the states together."""

STATES = ("weights_bytes", "gradients_bytes", "optimizer_bytes")


class Tiles:
    """The tile models."""

    def __init__(self, formats: Sequence[str] = ()) -> None:
        self._limits = Limits(allow_risk=True, formats=tuple(formats))
        self._limits.check()
        self._pipelines, self._sections = KnownPipelines(), KnownSections()

    def load(self, source: Any, overrides: Mapping[str, Any]) -> Job:
        """Read a job of an architecture that the frameworks have."""
        job = load_job(source, overrides)
        check_model(job, self._limits.formats)
        return job

    def parameters(self, job: AnyJob) -> int:
        """Return the parameters of a model."""
        return count_model(_tiled(job)).parameters_total

    def flop_and_peak(self, job: AnyJob) -> tuple[float, float]:
        """Return FLOP of one sequence, and FLOP/s of one device at its peak."""
        job = _tiled(job)
        device, precision = job.cluster.device, job.training.precision
        if precision not in device.matrix_flop_per_clk_per_cu:
            # A projection says what is missing.
            api.project_memory(job)
        return count_model(job).flop_per_sequence, device.peak_tflops(precision) * TERA

    def states_and_room(self, job: AnyJob) -> tuple[float, float]:
        """Return bytes of one copy of the states, and what one device may hold."""
        memory = api.project_memory(load_job(_tiled(job), SHARDED))
        state_bytes = sum(float(getattr(memory.stages[0], name)) for name in STATES)
        return state_bytes * job.cluster.gpus_per_node, memory.usable_bytes

    def offers(self, job: AnyJob, nodes: int) -> tuple[int, list[Choice]]:
        """Search a size: how many layouts, the fastest that fits, before it one at risk."""
        base = load_job(_tiled(job), {"cluster.nodes": nodes, **dict.fromkeys(PLACED)})
        self._pipelines.make_room()
        proposed = candidates(base, self._limits, self._sections)
        goal = ranking.Goal(self._limits, ranking.TIME, 1)
        found = explore(proposed, goal, Watch(), known=self._pipelines)
        layouts = _worth_showing(ranking.ranked(found.configurations, self._limits))
        steps = api.project_jobs([load_job(base, each.overrides) for each in layouts])
        return len(found.configurations), [
            _tiled_choice(each, step) for each, step in zip(layouts, steps, strict=True)
        ]

    def run(self, job: AnyJob) -> RunFigures:
        """Return what the run of a job takes."""
        run = api.project_performance(_tiled(job)).run
        assert run is not None
        return run_figures(run)


def _tiled(job: AnyJob) -> Job:
    assert isinstance(job, Job)
    return job


def _tiled_choice(layout: ranking.Configuration, step: PerformanceProjection) -> Choice:
    memory = step.memory
    assert step.run is not None
    return _choice(
        step,
        overrides=layout.overrides,
        run=run_figures(step.run),
        **{name: getattr(memory, name) for name in _PEAKS},
        usable_bytes=memory.usable_bytes,
        verdict=memory.verdict,
        band=step.band,
    )


_PEAKS = ("peak_bytes", "peak_low_bytes", "peak_high_bytes")
_OF_A_STEP = "job iteration_time_s tokens_per_s_per_gpu mfu degrees schedule bound warnings"


def _choice(step: PerformanceProjection | results.FirstOrderPerformance, **further: Any) -> Choice:
    """Return a projected layout, with what its step does not say."""
    return Choice(**{name: getattr(step, name) for name in _OF_A_STEP.split()}, **further)


def _worth_showing(best_first: ranking.Evaluated) -> list[ranking.Configuration]:
    """Return the fastest layout that fits, before it one at risk that is faster beyond noise."""
    first = best_first[:1]
    fastest = ranking.fitting(best_first)[:1]
    if not fastest or first[0].verdict == FITS:
        return first
    given = fastest[0].overrides
    fields = [key for key, value in first[0].overrides.items() if given[key] != value]
    gain = fastest[0].iteration_time_s / first[0].iteration_time_s - 1.0
    return first + fastest if gain > ranking.pair_noise(fields) else fastest


class FirstOrder:
    """The closed forms of the first-order model; it has no bands, and knows no risk."""

    def load(self, source: Any, overrides: Mapping[str, Any]) -> AnyJob:
        """Read a job, on a device of either kind."""
        return load_first_order_job(source, overrides)

    def parameters(self, job: AnyJob) -> int:
        """Return the parameters of a model."""
        return self._sharded(job).memory.parameters_total

    def flop_and_peak(self, job: AnyJob) -> tuple[float, float]:
        """Return FLOP of one sequence, and FLOP/s of one device at its peak."""
        step = self._sharded(job)
        sequences = step.tokens_per_step / job.training.seq_length
        flop = float(step.results.model_flop[step.row]) / sequences
        return flop, float(step.results.columns.peak_flop_per_s[step.row])

    def states_and_room(self, job: AnyJob) -> tuple[float, float]:
        """Return bytes of one copy of the states, and what one device may hold."""
        step = self._sharded(job)
        state_bytes = float(step.results.states.total[step.row]) * step.gpus
        return state_bytes, step.memory.device_memory_bytes

    def offers(self, job: AnyJob, nodes: int) -> tuple[int, list[Choice]]:
        """Project all layouts of a grid; return their number and the fastest that fits."""
        sized = self.load(job, {"cluster.nodes": nodes})
        step = fastest_layout(sized)
        offers = [] if step is None else [_closed_choice(step)]
        return len(legal_layouts(sized)), offers

    def run(self, job: AnyJob) -> RunFigures:
        """Return what the run of a job takes."""
        return first_order_figures(_run_of(results.project_performance([job])[0]))

    def _sharded(self, job: AnyJob) -> results.FirstOrderPerformance:
        return results.project_performance([self.load(job, SHARDED)])[0]


NO_BAND = Band(None, None, None, None, 0, "the first-order model, which has no band")


def _run_of(step: results.FirstOrderPerformance) -> results.FirstOrderRun:
    return results.run_of_steps(step.job, step.iteration_time_s)


def _closed_choice(step: results.FirstOrderPerformance) -> Choice:
    overrides = {
        **UNSPLIT,
        **{f"parallelism.{name}": step.degrees[name] for name in ("tp", "pp", "ep")},
        "parallelism.zero_stage": step.job.parallelism.zero_stage,
        "training.recompute": step.job.training.recompute.granularity,
    }
    return _choice(
        step,
        overrides=overrides,
        run=first_order_figures(_run_of(step)),
        **dict.fromkeys(_PEAKS, step.memory.peak_bytes),
        usable_bytes=step.memory.device_memory_bytes,
        verdict=FITS,
        band=NO_BAND,
    )


Fidelity = Tiles | FirstOrder


def fidelity_named(name: str, formats: Sequence[str] = ()) -> Fidelity:
    """Return the model of a fidelity of `FIDELITIES`, for layouts that frameworks can run."""
    if name != FIRST_ORDER:
        return Tiles(formats)
    if formats:
        msg = "formats: closed forms know no layouts of a framework; leave out --fidelity"
        raise ConfigError(msg, key="formats", value=[*formats], allowed="--fidelity tiles")
    return FirstOrder()
