"""``projector trace``: what a real run did, from its trace."""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from projector.cli import output
from projector.cli.options import argument, command, flag, group, option
from projector.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from projector.config.job import Job
    from projector.report.trace_runs import Runs
    from projector.trace.analysis import TraceAnalysis, TraceResult
    from projector.validate.traces.result import TraceComparison


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A trace as the command line describes it."""

    paths: tuple[str, ...] = argument("PATH...", required=True)
    counters: tuple[str, ...] = option(
        "FILE",
        "Hardware counters of a second run of the same program, for gap and compare; may be "
        "repeated.",
        default=(),
    )
    samples: tuple[str, ...] = option(
        "FILE",
        "Cores, clocks or power, sampled beside the run, for summary, plot, gap and compare; "
        "may be repeated.",
        default=(),
    )
    ranks: str | None = option("N,N-N", "Ranks to look at; all by default.")
    iterations: str | None = option("N,N-N", "Iterations to look at; all by default.")
    skip_warmup: int = option(
        "N", "Leave out the first N iterations, and what lies outside iterations.", default=0
    )
    phases: tuple[str, ...] = option(
        "NAME",
        "forward, backward, optimizer or other; may be repeated.",
        default=(),
        names="--phase",
    )
    types: tuple[str, ...] = option(
        "NAME",
        "gemm, attention, vector (other computing), communication or copy; may be repeated.",
        default=(),
        names="--type",
    )
    parquet: str | None = option("FILE", "Write the rows as a Parquet file.")

    def load(self, printer: output.Printer) -> "TraceAnalysis":
        """Read the trace, after everything else that the command line says was checked."""
        from projector.report.terminal.progress import ReadingProgress
        from projector.trace.analysis import load_trace
        from projector.trace.select import Selection, numbers

        output.check_files(parquet=self.parquet)
        selection = Selection(
            ranks=None if self.ranks is None else numbers(self.ranks, "ranks"),
            iterations=None if self.iterations is None else numbers(self.iterations, "iterations"),
            skip_warmup=self.skip_warmup,
            phases=self.phases or None,
            types=self.types or None,
        )
        with ReadingProgress(quiet=printer.quiet) as progress:
            analysis = load_trace(
                *self.paths,
                counters=self.counters,
                samples=self.samples,
                ranks=selection.ranks,
                progress=progress,
            )
        return analysis.with_selection(selection)

    def show(
        self,
        result: "TraceResult",
        report: "Callable[[dict[str, Any]], list[RenderableType]]",
        printer: output.Printer,
        table: "TraceAnalysis | None" = None,
    ) -> None:
        """Print a result as JSON or as a report, with its warnings on standard error.

        The table of ``--parquet``, by default the result, is written first: where that fails,
        standard output has the error alone.
        """
        if self.parquet is not None:
            (result if table is None else table).write_parquet(self.parquet)
        printer.show(result.to_dict(), report, result.warnings, self.parquet)

    def write_rows(self, rows: "Sequence[Mapping[str, Any]]") -> None:
        """Write rows as the table of ``--parquet``, if it was asked for."""
        if self.parquet is not None:
            from projector.trace.parquet import row_table, write_parquet

            write_parquet(row_table(rows), self.parquet)


_BY = option(
    "NAME,...",
    "What a row is: operation, layer, phase, type, class, kernel, iteration, rank, device, "
    "stream, group or recompute; several with commas, such as phase,type.",
    shown="operation",
)

_KINDS = ("phases", "types")
_WITHOUT_KINDS = group(without=_KINDS)
"""Of commands whose rows are their own."""


@click.group("trace")
def trace() -> None:
    """Explain a real run from its trace: where the time of every GPU went.

    PATH is a trace of PyTorch's profiler or of rocprof, plain or packed with gzip, or a folder with
    one file a rank. Record one with `record`, and begin with `summary`. docs/trace.md says what
    each number means.
    """


@command(trace, short_help="Show where the time of every rank went.")
def summary(
    *,
    tokens: float | None = option("N", "Tokens of an iteration of the whole job; adds tokens/s."),
    request: TraceRequest = group(
        without=_KINDS, parquet=option("FILE", "Write every activity as a Parquet file.")
    ),
    printer: output.Printer,
) -> None:
    """Show where the time of every rank went: compute, communication, copies, idle.

    The span of a rank is from its first activity to its last one. Four parts add up to it, to the
    nanosecond: compute, exposed communication (nothing computes meanwhile), exposed copies (nothing
    computes or communicates meanwhile) and idle time.
    """
    from projector.report.terminal.trace import summary_report

    analysis = request.load(printer)
    request.show(analysis.summary(tokens), summary_report, printer, table=analysis)


@command(trace, short_help="Show how long every operation takes.")
def operations(*, by: str = _BY, request: TraceRequest, printer: output.Printer) -> None:
    """Show how long every operation takes in an iteration.

    The largest share comes first. A share is of the durations of all kernels, added over all
    iterations. Times are medians over the iterations of all ranks, so a single slow iteration
    changes the share and not the time. Launch is the time that nothing computes before the
    kernels. Overlap is the part of them that runs beside communication.
    """
    from projector.report.terminal.trace import operations_report

    request.show(request.load(printer).operations(by), operations_report, printer)


@command(trace, short_help="Show how much communication covers operations.")
def overlap(
    *,
    cdf: bool = flag("Add the curves to --json and --parquet."),
    request: TraceRequest,
    printer: output.Printer,
) -> None:
    """Show how much communication covers each operation, and how much longer it then takes.

    D0 is the duration of runs beside no communication, D50 that at which half of all overlap is
    reached. D50/D0 above 1 says that communication slows the operation down.
    """
    from projector.report.terminal.trace import overlap_report

    request.show(request.load(printer).overlap(cdf=cdf), overlap_report, printer)


@command(trace, short_help="Show what launching kernels costs.")
def launch(*, by: str = _BY, request: TraceRequest, printer: output.Printer) -> None:
    """Show the bubbles before kernels: the host was late, or the launch was under way.

    A bubble is time between two kernels that compute. Preparation is the part before the host calls
    the launch, call the part after it. Communication and copies in a bubble do not shorten it.
    """
    from projector.report.terminal.trace import launch_report

    request.show(request.load(printer).launch(by), launch_report, printer)


@command(trace)
def plot(
    *,
    request: TraceRequest = group(without=("parquet",)),
    printer: output.Printer,
    plots: tuple[str, ...] = option(
        "KIND=FIGURE", "Draw one picture as .png, .svg or .pdf; may be repeated.", names="--plot"
    ),
    out: str | None = option("FOLDER", "Draw every picture that the trace can fill, as PNG."),
    html: str | None = option("PAGE", "Write all of them as one page that works offline."),
) -> None:
    """Draw a trace: phases, overlap, launch overhead, ranks.

    Name at least one of --plot, --out and --html. Each KIND of picture answers a question:

    \b
    breakdown  what does an iteration do, by phase and type of operation?
    cdf        do runs beside communication take longer? the curve of D50
    overlap    the same, each run as a point: duration against overlap
    launch     which operations wait for the host, or for their launch?
    ranks      does a rank compute, wait or idle more than the others?
    cores      how many cores of the host are used?
    clocks     do clock, power and memory of the devices change during the run?
    """  # noqa: D301  click looks for the backspace
    from projector.report.figures.figure import check_figure
    from projector.report.figures.pictures import read_pictures
    from projector.report.figures.trace import DRAWN, write_trace_picture

    if not plots and out is None and html is None:
        msg = "say what to draw: --plot KIND=FIGURE, --out FOLDER or --html PAGE"
        raise ConfigError(msg, key="plot", allowed=[f"{kind}=FIGURE" for kind in DRAWN])
    wanted = read_pictures(plots, list(DRAWN))
    output.check_files(html=html)
    with nullcontext() if out is None else _folder(out):
        if out is not None:
            check_figure(Path(out) / "breakdown.png")
        analysis = request.load(printer)
    written, left_out = [], {}
    for picture in wanted:
        write_trace_picture(picture.kind, analysis, picture.path)
        written.append(picture.path)
    for kind in DRAWN if out is not None else ():
        path = str(Path(out or "") / f"{kind}.png")
        try:
            write_trace_picture(kind, analysis, path)
        except ConfigError as error:
            left_out[kind] = str(error)
        else:
            written.append(path)
    if html is not None:
        from projector.report.pages.trace import trace_document

        output.write_page(html, lambda: trace_document(analysis))
        written.append(html)
    if printer.as_json:
        output.print_plain({"output": written, "left_out": left_out, "warnings": analysis.warnings})
        return
    for why in left_out.values():
        printer.say(why)
    printer.wrote(*written)
    printer.warn(analysis.warnings)


@contextmanager
def _folder(out: str) -> Iterator[None]:
    """Make a folder, which is not left behind if there is nothing to write into it."""
    new = [each for each in (Path(out), *Path(out).parents) if not each.exists()]
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be made: {error.strerror}", key="out", value=out) from None
    try:
        yield
    except BaseException:
        for each in new:
            with suppress(OSError):
                each.rmdir()
        raise


@command(trace)
def compare(
    *,
    config: str | None = option("JOB.yaml", "Job that ran; without it traces are compared."),
    tables: str | None = option(
        "FOLDER",
        "Write what was measured as tables for `projector calibrate`: products, attention, "
        "collectives, and the step of --config.",
    ),
    plot: str | None = option(
        "FIGURE", "Draw traces side by side as one .png, .svg or .pdf picture."
    ),
    html: str | None = option("PAGE", "Write traces side by side as one page that works offline."),
    request: TraceRequest = _WITHOUT_KINDS,
    printer: output.Printer,
) -> None:
    """Show where a run differs from its projection, or from other runs, and why.

    With --config every PATH is a trace of one run of that job, and KEY=VALUE among the paths
    overrides a field of the job. Without it each PATH is a run of its own, a file or a folder, such
    as one job under FSDP 1 and 2; NAME=PATH says what it is called. Of two runs the largest
    difference comes first, with the factors that explain it; their product is the ratio. What could
    not be matched is listed for both sides. Three to ten runs stand side by side: breakdown,
    overlap, clock and power.
    """
    for key, value in (("tables", tables),) if config is None else (("plot", plot), ("html", html)):
        if value is not None:
            other = "with its job; name it with --config" if config is None else "without --config"
            msg = f"{key}: it is written of {'a run ' if config is None else 'runs '}{other}"
            allowed = "--config JOB.yaml" if config is None else "no --config"
            raise ConfigError(msg, key=key, value=value, allowed=allowed)
    if config is not None:
        comparison: TraceComparison | Runs = _with_job(config, tables, request, printer)
    else:
        comparison = _several(request, plot, html, printer)
    request.write_rows(comparison.rows)
    from projector.report import trace_runs
    from projector.report.terminal.trace import comparison_report

    printer.show(
        comparison.to_dict(),
        lambda _: (
            [trace_runs.runs_document(comparison)]
            if isinstance(comparison, trace_runs.Runs)
            else comparison_report(comparison)
        ),
        comparison.warnings,
        request.parquet,
    )


def job_and_paths(config: str, paths: tuple[str, ...]) -> "tuple[Job, tuple[str, ...]]":
    """Return the job, with what KEY=VALUE among the paths changes, and the paths."""
    from projector.config.load import load_job, parse_override

    changes = [text for text in paths if "=" in text and not _is_file(text)]
    left = tuple(text for text in paths if text not in changes)
    job = load_job(config, dict(parse_override(text) for text in changes))
    if not left:
        msg = "trace: name the trace of a run besides the job"
        raise ConfigError(msg, key="trace", value=list(paths), allowed="PATH...")
    return job, left


def _is_file(text: str) -> bool:
    """Whether there is such a file; a long KEY=VALUE cannot be the name of one."""
    try:
        return Path(text).exists()
    except OSError:
        return False


def _with_job(
    config: str, tables: str | None, request: TraceRequest, printer: output.Printer
) -> "TraceComparison":
    from projector.validate.traces.compare import Compared
    from projector.validate.traces.tables import tables_of_run, write_run

    job, paths = job_and_paths(config, request.paths)
    analysis = replace(request, paths=paths).load(printer)
    output.interpret_at_first(quiet=printer.quiet)
    comparison = Compared(analysis, job).result()
    if tables is not None:
        found = tables_of_run(analysis, job.cluster.device.name)
        printer.wrote(*write_run(found, tables, config, comparison.step["total"].measured_s))
        for why, count in found.left_out.items():
            printer.say(f"left out: {count:,} x {why}")
    return comparison


def _several(
    request: TraceRequest, plot: str | None, html: str | None, printer: output.Printer
) -> "TraceComparison | Runs":
    """Compare traces of the command line; what was asked for is drawn of two as of more."""
    from projector.report.trace_runs import MOST_RUNS, Run, Runs, runs_document
    from projector.validate.traces.compare import compare_runs

    named = [_named(text) for text in request.paths]
    if not 2 <= len(named) <= MOST_RUNS:
        msg = (
            f"trace: from 2 to {MOST_RUNS} traces are compared, or one with the job of --config; "
            f"{len(named)} {'is' if len(named) == 1 else 'are'} named"
        )
        allowed = f"2 to {MOST_RUNS} PATHs"
        raise ConfigError(msg, key="trace", value=list(request.paths), allowed=allowed)
    output.check_files(plot, html)
    read = [replace(request, paths=(path,)).load(printer) for _, path in named]
    if len(read) == 2 and plot is None and html is None:
        return compare_runs(*read)
    names = _apart([name for name, _ in named])
    found = Runs(tuple(Run.of(*each) for each in zip(names, read, strict=True)))
    output.draw(plot, "trace_runs.runs_picture", found)
    output.write_page(html, lambda: runs_document(found))
    printer.wrote(plot, html)
    return compare_runs(*read) if len(read) == 2 else found


def _named(text: str) -> tuple[str, str]:
    """Return what a run is called, and where its trace is; NAME=PATH says both."""
    name, equals, path = text.partition("=")
    if equals and name and path and not _is_file(text):
        if not _is_file(path) and not has_magic(path):
            msg = f"trace: {path} of {text} does not exist; fields of a job need --config"
            raise ConfigError(msg, key="trace", value=text, allowed="NAME=PATH")
        return name, path
    return Path(text).name.removesuffix(".gz").removesuffix(".json") or text, text


def _apart(names: list[str]) -> list[str]:
    told: list[str] = []
    for name in names:
        free = (f"{name} {number}" for number in itertools.count(1))
        wanted = itertools.chain([name] if names.count(name) == 1 else [], free)
        told.append(next(each for each in wanted if each not in {*told, *names} - {name}))
    return told


@command(trace)
def gap(
    *,
    config: str | None = option("JOB.yaml", "Job that ran: it gives operations, FLOP and device."),
    device: str | None = option(
        "NAME", "Profile of the device; that of the job or trace by default."
    ),
    dtype: str = option("TYPE", "Matrix type, where the trace does not tell it.", default=""),
    plot: str | None = option(
        "FIGURE", "Draw the factors of each operation, as .png, .svg or .pdf."
    ),
    request: TraceRequest = _WITHOUT_KINDS,
    printer: output.Printer,
) -> None:
    """Show why matrix products and attention take longer than their FLOP at the peak rate.

    Five factors explain it: FLOP beyond those that are needed, idle matrix units, communication
    beside the operation, the clock, and a rest. The first two need counters of a second run
    (--counters). The clock needs counters or sampled clocks (--samples). FLOP come from the job,
    else from the shapes in the trace. With --config, KEY=VALUE among the paths overrides a field
    of the job.
    """
    from projector.report.terminal.trace import gap_report
    from projector.validate.traces.api import gap_of

    output.check_files(plot)
    job = None
    if config is not None:
        job, paths = job_and_paths(config, request.paths)
        request = replace(request, paths=paths)
    analysis = request.load(printer)
    if job is not None:
        output.interpret_at_first(quiet=printer.quiet)
    found = gap_of(analysis, job, device, dtype)
    # Files first: where one cannot be written, standard output has the error alone.
    if plot is not None and not any(each.theory_ns for each in found.operations):
        msg = "the picture of the gap has nothing to show: no theoretical duration is known"
        raise ConfigError(msg, key="plot", value=plot, allowed="--config or --device")
    title = f"Theory and measurement{f' on {found.device}' if found.device else ''}"
    output.draw(plot, "figures.trace.gap_figure", found.operations, title)
    request.write_rows(found.rows)
    files = (plot, request.parquet)
    printer.show(found.to_dict(), lambda _: gap_report(found), found.warnings, *files)


@command(trace, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def record(
    *,
    out: str = option("FOLDER", "Folder for the traces.", shown="traces"),
    warmup: int = option("N", "Iterations to leave out.", shown=10, type=click.IntRange(min=1)),
    active: int = option(
        "N", "Iterations to record after these.", shown=10, type=click.IntRange(min=1)
    ),
    stacks: bool = flag("Record Python stacks too, which slows the run."),
    no_modules: bool = flag("Leave modules unnamed: better with torch.compile."),
    overwrite: bool = flag("Replace a recording that is in the folder."),
    command: tuple[str, ...] = argument(type=click.UNPROCESSED, required=True),
    printer: output.Printer,
) -> None:
    """Run a training command and record some of its iterations.

    COMMAND is the training run, such as `python train.py --steps 30` or
    `torchrun --nproc-per-node 8 train.py`. Options of this command come before it; put `--` between
    them where the command begins with an option. An iteration ends with a step of the optimizer.
    docs/trace_recording.md shows the two
    lines that record a loop without this command.
    """
    from projector.measure.launch import record_command

    options = ["--warmup", str(warmup), "--active", str(active), *["--stacks"] * stacks]
    options += ["--no-modules"] * no_modules
    # Standard output is for our JSON alone.
    stream = sys.stderr if printer.as_json else None
    left = record_command(command, out, options, overwrite=overwrite, output=stream)
    if printer.as_json:
        output.print_plain(left._asdict())
        return
    printer.wrote(*left.traces, *left.samples)
    if left.counters is not None:
        printer.say(f"{left.counters} collects hardware counters in a second run")
    printer.say(f"projector trace summary {out} shows what is in them")
