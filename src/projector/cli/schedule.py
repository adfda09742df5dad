"""``projector schedule``."""

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from projector.cli import output
from projector.cli.job import ALL_SCHEDULES, PRIMUS, JobRequest, config_option
from projector.cli.options import command, group, option
from projector.envelope import envelope
from projector.errors import ConfigError, ScheduleError

if TYPE_CHECKING:
    from projector.config.job import Job
    from projector.schedule.compare import ScheduleComparison

_LEFT_OUT = ("config", "schedule", "list_ignored", "defaults", *PRIMUS)


@dataclass(frozen=True, slots=True)
class _Numbers:
    pp: int | None = option("N", "Ranks of the pipeline.")
    vpp: int | None = option("N", "Chunks of each rank; 1 when left out.")
    microbatches: int | None = option("N", "Microbatches of a step.")
    f: str | None = option("S[,S...]", "Seconds of the forward of one chunk; 1 when left out.")
    b: str | None = option("S[,S...]", "Seconds of the gradient of its input; 1 when left out.")
    w: str | None = option("S[,S...]", "Seconds of the gradient of its weights; 1 when left out.")
    p2p: float | None = option("S", "Seconds from rank to rank; 0 when left out.")
    blocking_p2p: bool | None = option(None, "A rank that sends waits until its data has arrived.")
    memory_limit: float | None = option(
        "M", "Most microbatches that a rank may hold, all its chunks together."
    )
    group_size: int | None = option(
        "N", "Microbatches that a chunk takes before the next one, interleaved; PP when left out."
    )
    objective: str | None = option(
        "makespan|period", "What planned schedules minimise; makespan when left out."
    )


_OF_A_JOB = [
    each.name for each in fields(JobRequest) if each.name not in {*_LEFT_OUT, "assignments"}
]
_SECTIONS = {
    "A pipeline in numbers": [each.name for each in fields(_Numbers)],
    "The pipeline of a job": ["config", *_OF_A_JOB],
}


class _Sectioned(click.Command):
    """A command whose help lists its two kinds of input separately."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        ungrouped = {
            str(parameter.name): parameter
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
        }
        sections = {
            title: [ungrouped.pop(name) for name in names] for title, names in _SECTIONS.items()
        }
        for title, parameters in {**sections, "Options": list(ungrouped.values())}.items():
            records = [
                record for parameter in parameters if (record := parameter.get_help_record(ctx))
            ]
            with formatter.section(title):
                formatter.write_dl(records)


@command(cls=_Sectioned)
def schedule(
    *,
    numbers: _Numbers,
    config: str | None = config_option(required=False),
    request: JobRequest = group(without=_LEFT_OUT),
    algorithm: str = option(
        "auto|all|NAME",
        "Schedules to run.",
        shown=ALL_SCHEDULES,
        names=("--algorithm", "--pipeline-schedule-algorithm"),
    ),
    plot: str | None = option(
        "FIGURE.png|.svg|.pdf", "Draw the fastest schedule that fits as a Gantt chart."
    ),
    timeline: str | None = option(
        "FILE", "Write that schedule as a trace for ui.perfetto.dev, compressed if named .gz."
    ),
    printer: output.Printer,
) -> int:
    """Compare pipeline schedules: time, bubble and memory, the fastest that fits first.

    Give a pipeline in numbers or by a job. Times are those of one chunk and one microbatch: one
    number, or pp * vpp of them in model order. A schedule that needs another number of chunks gets
    it: single numbers are divided so that a rank does the same work, and the layers of a job are
    laid out anew. KEY=VALUE overrides a field of the job.

    Exit code 3: nothing fits, or no schedule can run.

    \b
    Examples:
      projector schedule --pp 8 --microbatches 32 --f 1 --b 1.2 --w 0.8 --memory-limit 8
      projector schedule --pp 4 --vpp 2 --microbatches 16 --algorithm interleaved --plot gantt.svg
      projector schedule --config job.yaml parallelism.vpp=1 --timeline trace.json.gz
    """  # noqa: D301  click looks for the backspace
    _check_input(numbers, config, request)
    output.check_files(plot, timeline=timeline)
    job = None
    if config is not None:
        job = replace(request, config=config).load()
        output.interpret_at_first(quiet=printer.quiet)
        from projector.projection.performance import compare_job_schedules

        comparison = compare_job_schedules(job, algorithm)
    else:
        times = {name: _seconds(name, getattr(numbers, name)) for name in ("f", "b", "w")}
        output.interpret_at_first(quiet=printer.quiet)
        from projector.schedule.compare import compare_schedules

        assert numbers.pp is not None
        assert numbers.microbatches is not None
        comparison = compare_schedules(
            numbers.pp,
            1 if numbers.vpp is None else numbers.vpp,
            numbers.microbatches,
            **times,
            p2p=numbers.p2p or 0.0,
            memory_limit=numbers.memory_limit,
            algorithm=algorithm,
            group_size=numbers.group_size,
            overlap_p2p=not numbers.blocking_p2p,
            objective=numbers.objective or "makespan",  # type: ignore[arg-type]  # checked there
        )
    # First, so that standard output has the result or the error of a file, never both.
    _write(comparison, job, plot, timeline, printer)
    _print(comparison, job, printer)
    return output.SUCCESS if comparison.fits else output.DOES_NOT_FIT


def _check_input(numbers: _Numbers, config: str | None, request: JobRequest) -> None:
    given = {name: value for name, value in asdict(numbers).items() if value is not None}
    if config is not None:
        if given:
            name, value = next(iter(given.items()))
            msg = (
                f"{_option(name)} cannot be given with --config: the job has it; "
                "leave one of the two out"
            )
            raise ConfigError(msg, key=name, value=value)
        return
    changes = [_option(name) for name in _OF_A_JOB if getattr(request, name) is not None]
    if changes or request.assignments:
        change = changes[0] if changes else request.assignments[0]
        msg = f"{change} changes a job, but there is none; add --config FILE"
        raise ConfigError(msg, key="config", allowed="a job file")
    for name in ("pp", "microbatches"):
        if name not in given:
            msg = f"{_option(name)} is missing; give --pp and --microbatches, or a job by --config"
            raise ConfigError(msg, key=name, allowed="an integer >= 1")


def _seconds(name: str, text: str | None) -> float | list[float]:
    if text is None:
        return 1.0
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        rule = "one number or pp * vpp of them, with commas between"
        msg = f"{_option(name)} must be {rule}, not {text!r}"
        raise ScheduleError(msg, key=name, value=text, allowed=rule) from None
    return numbers if len(numbers) > 1 else numbers[0]


def _print(comparison: "ScheduleComparison", job: "Job | None", printer: output.Printer) -> None:
    if not printer.as_json:
        from projector.report.terminal.schedule import schedule_report

        output.print_report(schedule_report(comparison, job))
    elif job is None:
        output.print_plain(comparison.to_dict())
    if job is None:
        return
    from projector.projection.provenance import provenance_of

    provenance = provenance_of(job)
    if printer.as_json:
        head = envelope(provenance.warnings, _band(comparison, job))
        output.print_json({**head, **comparison.to_dict()})
    else:
        printer.warn(provenance.warnings)


def _band(comparison: "ScheduleComparison", job: "Job") -> dict[str, Any]:
    """Return the band of the best schedule's step, or of the job's where none can run."""
    from projector.projection.api import project_performance
    from projector.projection.bands import uncertainty
    from projector.projection.performance import under_schedule

    if comparison.best is None:
        return uncertainty(job, "time")
    return project_performance(under_schedule(job, comparison.best.schedule)).uncertainty


def _write(
    comparison: "ScheduleComparison",
    job: "Job | None",
    plot: str | None,
    timeline: str | None,
    printer: output.Printer,
) -> None:
    paths = [path for path in (plot, timeline) if path is not None]
    if not paths:
        return
    best = comparison.best
    if best is None or best.run is None:
        printer.warn([f"no schedule can run: {' and '.join(paths)} not written"])
        return
    title = ""
    if job is not None:
        from projector.report.terminal.job import short_title

        title = short_title(job)

    run = best.run
    output.draw(plot, "figures.gantt.gantt_figure", run, title)
    if timeline is not None:
        from projector.report.timeline import write_timeline

        write_timeline(run, timeline, title)
    printer.say(f"wrote {' and '.join(paths)}: {best.schedule}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
