"""Commands that project jobs: ``memory``, ``performance``, ``both`` and ``compare``."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from projector.cli import job, output
from projector.cli.options import argument, command, option
from projector.envelope import envelope
from projector.errors import ConfigError, ProjectorError
from projector.files import made_folder, not_written

if TYPE_CHECKING:
    from rich.console import RenderableType

    from projector.projection.memory import MemoryProjection
    from projector.projection.performance import PerformanceProjection

View = Literal["memory", "performance", "both"]

_OF_A_JOB = """\
KEY=VALUE overrides a field of the job file: parallelism.tp=4, or tp=4 in short.

Exit code 3: the job does not fit, not even the lower end of the band of its peak; the projection
is printed all the same. A job at risk, whose band holds the limit, exits 0 with a warning.
"""


@dataclass(frozen=True, slots=True)
class StepFiles:
    """Files of a projected step that other tools open."""

    timeline: str | None = option(
        "FILE|FOLDER/",
        "Write the whole step as a trace for ui.perfetto.dev and for `projector trace`, "
        "compressed if named .gz; into a folder, one file a rank, as PyTorch's profiler does.",
    )
    memory_snapshot: str | None = option(
        "FILE", "Write what the step allocates, for pytorch.org/memory_viz."
    )
    chakra: str | None = option(
        "FOLDER",
        "Write the step as execution traces of Chakra, step.N.et for each device, for ASTRA-sim.",
    )

    def check(self) -> None:
        """Refuse files that could not be written, before anything is projected for them."""
        if self.timeline is not None:
            from projector.report.exports import check_step_timeline

            check_step_timeline(self.timeline)
        if self.chakra is not None and any(made_folder(self.chakra, key="chakra").iterdir()):
            raise not_written(Path(self.chakra), "it is not empty; name a new folder", key="chakra")
        output.check_files(memory_snapshot=self.memory_snapshot)
        if self.timeline is not None and self.timeline == self.memory_snapshot:
            msg = f"memory_snapshot: {self.timeline} is the file of --timeline; name another one"
            raise ConfigError(
                msg, key="memory_snapshot", value=self.memory_snapshot, allowed="a file of its own"
            )

    def write(self, result: "PerformanceProjection") -> None:
        """Write what was asked for; the step is laid out once."""
        if self.chakra is not None:
            from projector.report.chakra import write_chakra

            write_chakra(result, self.chakra)
        if self.timeline is None and self.memory_snapshot is None:
            return
        from projector.projection.timeline.build import build_timeline
        from projector.report.exports import step_detail, write_memory_snapshot, write_timeline

        step = build_timeline(result, step_detail(result, self.timeline))
        if self.timeline is not None:
            write_timeline(result, self.timeline, timeline=step)
        if self.memory_snapshot is not None:
            write_memory_snapshot(result, self.memory_snapshot, timeline=step)

    def tell(self, printer: output.Printer) -> None:
        """Say what was written."""
        if self.timeline is not None:
            what = "a file a rank" if Path(self.timeline).is_dir() else "ui.perfetto.dev opens it"
            printer.say(f"wrote {self.timeline}; {what}")
        if self.memory_snapshot is not None:
            printer.say(f"wrote {self.memory_snapshot}; pytorch.org/memory_viz opens it")
        if self.chakra is not None:
            printer.say(f"wrote {self.chakra}; ASTRA-sim reads it")


@command(more=_OF_A_JOB)
def memory(
    *,
    request: job.JobRequest,
    profiling: job.ProfilingRequest,
    emit: tuple[str, ...] = job.EMIT,
    fidelity: str = job.FIDELITY,
    printer: output.Printer,
) -> int:
    """Project the memory of every pipeline stage, term by term."""
    return _project("memory", request, profiling, emit, fidelity, printer)


@command(more=_OF_A_JOB)
def performance(
    *,
    request: job.JobRequest,
    profiling: job.ProfilingRequest,
    files: StepFiles,
    plots: tuple[str, ...] = option(
        "KIND=FIGURE",
        "Draw the operations under the roofs of the device (roofline), or what the interval "
        "between checkpoints costs a run (interval), as .png, .svg or .pdf.",
        names="--plot",
    ),
    emit: tuple[str, ...] = job.EMIT,
    fidelity: str = job.FIDELITY,
    printer: output.Printer,
) -> int:
    """Project the time of one training step, and where it goes."""
    return _project("performance", request, profiling, emit, fidelity, printer, files, plots)


@command(more=_OF_A_JOB)
def both(
    *,
    request: job.JobRequest,
    profiling: job.ProfilingRequest,
    emit: tuple[str, ...] = job.EMIT,
    fidelity: str = job.FIDELITY,
    printer: output.Printer,
) -> int:
    """Project memory, then performance, of one job."""
    return _project("both", request, profiling, emit, fidelity, printer)


def _project(
    view: View,
    request: job.JobRequest,
    profiling: job.ProfilingRequest,
    emit: tuple[str, ...],
    fidelity: str,
    printer: output.Printer,
    files: StepFiles | None = None,
    plots: tuple[str, ...] = (),
) -> int:
    files = files or StepFiles()
    profiling.check()
    if job.is_first_order(fidelity):
        job.refuse_options(
            **asdict(files),
            plot=plots or None,
            emit=emit or None,
            defaults=request.defaults or None,
        )
        profiling.refuse_measuring()
        return _first_order(view, request, printer)
    pictures = output.read_pictures(plots, None, "OF_JOB")
    files.check()
    emission = job.Emission.of(emit)
    profiling.begin()
    quiet = printer.quiet
    step = None if view == "memory" else request.project_performance(profiling, quiet=quiet)
    memory = request.project_memory(profiling, quiet=quiet) if step is None else step.memory
    result = memory if step is None else step
    emitted = emission.of_job(result.job)
    if step is not None:
        files.write(step)
        output.write_pictures(pictures, step.job, printer)
    if printer.as_json:
        whole = result.to_dict() if step is None or view != "both" else _both_to_dict(step)
        output.print_json(emission.add_to(whole, emitted))
    elif not emission.on_output:
        output.print_report(_report(memory, step, view, defaults=request.defaults))
    if not printer.as_json:
        printer.warn(result.warnings)
        emission.show(emitted, result.job, printer)
    files.tell(printer)
    return output.exit_code(memory.verdict)


def _both_to_dict(step: "PerformanceProjection") -> dict[str, Any]:
    head = envelope(step.warnings, step.uncertainty)
    return {**head, "memory": step.memory.to_dict(), "performance": step.to_dict()}


def _report(
    memory: "MemoryProjection",
    step: "PerformanceProjection | None",
    view: View,
    *,
    defaults: bool,
) -> "Iterable[RenderableType]":
    from projector.report.terminal.step import both_report, memory_report, performance_report

    if step is None:
        return memory_report(memory, defaults=defaults)
    from projector.report.terminal.suggestions import suggest

    # A change would need its own measurement, so models alone are no neighbour of one.
    suggestions = suggest(step) if step.record is None else ()
    report = both_report if view == "both" else performance_report
    return report(step, suggestions, defaults=defaults)


def _first_order(view: View, request: job.JobRequest, printer: output.Printer) -> int:
    if request.schedule == job.ALL_SCHEDULES:
        msg = "schedule: all schedules are compared by replay; leave out --fidelity"
        raise ConfigError(msg, key="schedule", value=job.ALL_SCHEDULES, allowed="--fidelity tiles")
    if request.gpu_clock_mhz is not None:
        msg = "gpu_clock_mhz: closed forms have no clock; they take the peaks of datasheets"
        raise ConfigError(msg, key="gpu_clock_mhz", value=request.gpu_clock_mhz)
    from projector.first_order.results import project_performance

    (step,) = project_performance([request.load_first_order()])
    from projector.report.terminal import first_order as report

    found: dict[View, Any] = {
        "memory": (step.memory.to_dict, lambda _: report.memory_report(step.memory)),
        "performance": (step.to_dict, lambda _: report.performance_report(step)),
        "both": (step.both_to_dict, lambda _: report.both_report(step)),
    }
    told, shown = found[view]
    printer.show(told(), shown, step.memory.warnings)
    return output.SUCCESS if step.memory.fits else output.DOES_NOT_FIT


@command()
def compare(
    *,
    first: str = argument("A"),
    second: str = argument("B"),
    assignments: tuple[str, ...] = job.ASSIGNMENTS,
    printer: output.Printer,
) -> int:
    """Show which terms differ between the jobs of the files A and B, the largest first.

    KEY=VALUE overrides a field of both jobs.

    Exit code 3: at least one of them does not fit; at risk is no failure.
    """
    from projector.config.load import load_job, parse_override
    from projector.projection.api import project_performance
    from projector.report.terminal.compare import Comparison, compare_report

    overrides = dict(parse_override(text) for text in assignments)
    jobs = []
    for path in (first, second):
        with _naming(path):
            jobs.append(load_job(path, overrides))
    output.interpret_at_first(quiet=printer.quiet)
    results = []
    for path, loaded in zip((first, second), jobs, strict=True):
        with _naming(path):
            results.append(project_performance(loaded))
    comparison = Comparison(*results)
    result = comparison.to_dict()
    printer.show(result, lambda _: compare_report(comparison), result["warnings"])
    return output.exit_code(comparison.first.memory.verdict, comparison.second.memory.verdict)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file, of the two, that an error is about."""
    try:
        yield
    except ProjectorError as error:
        if path in error.message:
            raise
        raise type(error)(
            f"{path}: {error.message}", key=error.key, value=error.value, allowed=error.allowed
        ) from None
