"""``projector schedule``."""

from typing import TYPE_CHECKING, Any

import click

from projector.cli.job_options import (
    ALL_SCHEDULES,
    JobRequest,
    optional_job_options,
    output_options,
)
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    interpret_at_first,
    plain_envelope,
    print_json,
    print_report,
    print_warnings,
    say,
)
from projector.errors import ConfigError, ScheduleError

if TYPE_CHECKING:
    from projector.config.job import Job
    from projector.schedule.compare import ScheduleComparison

_NUMBERS = (
    "pp",
    "vpp",
    "microbatches",
    "f",
    "b",
    "w",
    "p2p",
    "blocking_p2p",
    "memory_limit",
    "group_size",
    "objective",
)
_OF_A_JOB = (
    "config",
    "target_nodes",
    "gpu_arch",
    "gpu_clock_mhz",
    "hardware_config",
    "micro_batch_size",
    "global_batch_size",
)
_SECTIONS = {"A pipeline in numbers": _NUMBERS, "The pipeline of a job": _OF_A_JOB}


class _Sectioned(click.Command):
    """A command whose help lists its two kinds of input separately."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options section by section."""
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


@click.command("schedule", cls=_Sectioned)
@click.option("--pp", type=int, metavar="N", help="Ranks of the pipeline.")
@click.option("--vpp", type=int, metavar="N", help="Chunks of each rank; 1 when left out.")
@click.option("--microbatches", type=int, metavar="N", help="Microbatches of a step.")
@click.option(
    "--f", metavar="S[,S...]", help="Seconds of the forward of one chunk; 1 when left out."
)
@click.option(
    "--b", metavar="S[,S...]", help="Seconds of the gradient of its input; 1 when left out."
)
@click.option(
    "--w", metavar="S[,S...]", help="Seconds of the gradient of its weights; 1 when left out."
)
@click.option("--p2p", type=float, metavar="S", help="Seconds from rank to rank; 0 when left out.")
@click.option(
    "--blocking-p2p",
    is_flag=True,
    default=None,
    help="A rank that sends waits until its data has arrived.",
)
@click.option(
    "--memory-limit",
    type=float,
    metavar="M",
    help="Most microbatches that a rank may hold, all its chunks together.",
)
@click.option(
    "--group-size",
    type=int,
    metavar="N",
    help="Microbatches that a chunk takes before the next one, interleaved; PP when left out.",
)
@click.option(
    "--objective",
    metavar="makespan|period",
    help="What planned schedules minimise; makespan when left out.",
)
@optional_job_options
@click.option(
    "--algorithm",
    "--pipeline-schedule-algorithm",
    "algorithm",
    default=ALL_SCHEDULES,
    show_default=True,
    metavar="auto|all|NAME",
    help="Schedules to run.",
)
@click.option(
    "--plot",
    metavar="FIGURE.png|.svg|.pdf",
    help="Draw the fastest schedule that fits as a Gantt chart.",
)
@click.option(
    "--timeline",
    metavar="FILE",
    help="Write that schedule as a trace for ui.perfetto.dev, compressed if named .gz.",
)
@output_options
def command(
    algorithm: str,
    plot: str | None,
    timeline: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
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
    _check_input(given)
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    if timeline is not None:
        from projector.report.timeline import check_timeline

        check_timeline(timeline)
    job = None
    if given["config"] is not None:
        job = _job(given)
        interpret_at_first(quiet=quiet)
        from projector.projection.job_pipeline import compare_job_schedules

        comparison = compare_job_schedules(job, algorithm)
    else:
        comparison = _compare(given, algorithm, quiet=quiet)
    # First, so that standard output has the result or the error of a file, never both.
    _write(comparison, job, plot, timeline, quiet=quiet)
    warnings = _print(comparison, job, as_json=as_json)
    print_warnings(warnings, quiet=quiet or as_json)
    return SUCCESS if comparison.fits else DOES_NOT_FIT


def _check_input(given: dict[str, Any]) -> None:
    """Refuse a mixture of numbers and a job, and neither."""
    numbers = [name for name in _NUMBERS if given[name] is not None]
    of_a_job = [name for name in _OF_A_JOB if given[name] is not None]
    if given["config"] is not None and numbers:
        option = _option(numbers[0])
        msg = f"{option} cannot be given with --config: the job has it; leave one of the two out"
        raise ConfigError(msg, key=numbers[0], value=given[numbers[0]])
    if given["config"] is None and (of_a_job or given["assignments"]):
        argument = _option(of_a_job[0]) if of_a_job else given["assignments"][0]
        msg = f"{argument} changes a job, but there is none; add --config FILE"
        raise ConfigError(msg, key="config", allowed="a job file")
    for name in ("pp", "microbatches"):
        if given["config"] is None and given[name] is None:
            msg = f"{_option(name)} is missing; give --pp and --microbatches, or a job by --config"
            raise ConfigError(msg, key=name, allowed="an integer >= 1")


def _compare(given: dict[str, Any], algorithm: str, *, quiet: bool) -> "ScheduleComparison":
    times = {name: _seconds(name, given[name]) for name in ("f", "b", "w")}
    interpret_at_first(quiet=quiet)
    from projector.schedule.compare import compare_schedules

    return compare_schedules(
        given["pp"],
        1 if given["vpp"] is None else given["vpp"],
        given["microbatches"],
        **times,
        p2p=given["p2p"] or 0.0,
        memory_limit=given["memory_limit"],
        algorithm=algorithm,
        group_size=given["group_size"],
        overlap_p2p=not given["blocking_p2p"],
        objective=given["objective"] or "makespan",
    )


def _job(given: dict[str, Any]) -> "Job":
    names = ("assignments", *_OF_A_JOB)
    return JobRequest(**{name: given[name] for name in names}).load()


def _seconds(name: str, text: str | None) -> float | list[float]:
    """Read one number or several."""
    if text is None:
        return 1.0
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        rule = "one number or pp * vpp of them, with commas between"
        msg = f"{_option(name)} must be {rule}, not {text!r}"
        raise ScheduleError(msg, key=name, value=text, allowed=rule) from None
    return numbers if len(numbers) > 1 else numbers[0]


def _print(
    comparison: "ScheduleComparison", job: "Job | None", *, as_json: bool
) -> tuple[str, ...]:
    """Print the comparison and return the warnings; JSON already contains them."""
    envelope: dict[str, Any] = plain_envelope()
    warnings: tuple[str, ...] = ()
    if job is not None:
        from projector.projection.provenance import envelope as envelope_of
        from projector.projection.provenance import provenance_of

        provenance = provenance_of(job)
        warnings = provenance.warnings
        if as_json:
            envelope = envelope_of(provenance, _band(comparison, job))
    if as_json:
        print_json({**envelope, **comparison.to_dict()})
    else:
        from projector.report.terminal.schedule import schedule_report

        print_report(schedule_report(comparison, job))
    return warnings


def _band(comparison: "ScheduleComparison", job: "Job") -> dict[str, Any]:
    """Return the band of the best schedule's step, or of the job's where none can run."""
    from projector.projection.api import project_performance
    from projector.projection.bands import uncertainty
    from projector.projection.job_pipeline import under_schedule

    if comparison.best is None:
        return uncertainty(job, "time")
    return project_performance(under_schedule(job, comparison.best.schedule)).uncertainty


def _write(
    comparison: "ScheduleComparison",
    job: "Job | None",
    plot: str | None,
    timeline: str | None,
    *,
    quiet: bool,
) -> None:
    """Write figure and trace of the best schedule."""
    paths = [path for path in (plot, timeline) if path is not None]
    if not paths:
        return
    best = comparison.best
    if best is None or best.run is None:
        print_warnings([f"no schedule can run: {' and '.join(paths)} not written"], quiet=quiet)
        return
    title = ""
    if job is not None:
        from projector.report.terminal.job import short_title

        title = short_title(job)
    if plot is not None:
        from projector.report.figures.gantt import write_gantt

        write_gantt(best.run, plot, title)
    if timeline is not None:
        from projector.report.timeline import write_timeline

        write_timeline(best.run, timeline, title)
    if not quiet:
        say(f"wrote {' and '.join(paths)}: {best.schedule}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
