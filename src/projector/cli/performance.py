"""``projector performance``."""

from typing import Any

import click

from projector.cli import first_order
from projector.cli.job_options import JobRequest, fidelity_option, job_options, output_options
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    print_json,
    print_report,
    print_warnings,
    say,
)
from projector.cli.pictures import read_pictures, write_pictures
from projector.errors import UnsupportedError

PROFILING_MODES = ("simulate",)
"""Where times come from; only the analytic models in this version."""


@click.command("performance")
@job_options
@click.option(
    "--profiling-mode",
    default="simulate",
    metavar="simulate",
    help="Where times come from: the analytic models.",
)
@click.option(
    "--timeline",
    metavar="FILE",
    help="Write the pipeline as a trace for ui.perfetto.dev, compressed if named .gz.",
)
@click.option(
    "--plot",
    "plots",
    multiple=True,
    metavar="KIND=FIGURE",
    help="Draw the operations under the roofs of the device (roofline), or what the interval "
    "between checkpoints costs a run (interval), as .png, .svg or .pdf.",
)
@fidelity_option
@output_options
def command(
    as_json: bool,
    quiet: bool,
    profiling_mode: str,
    timeline: str | None,
    plots: tuple[str, ...],
    fidelity: str,
    **request: Any,
) -> int:
    """Project the time of one training step, and where it goes.

    KEY=VALUE overrides a field of the job file, for example parallelism.tp=4.

    Exit code 3: the projected peak does not fit; the projection is printed all the same. A warning
    says where a job is at risk: the limit lies within the band of its peak. This does not change
    the exit code.
    """
    check_profiling_mode(profiling_mode)
    if first_order.is_asked(fidelity):
        first_order.refuse_options({"timeline": timeline, "plot": plots or None})
        return first_order.performance(JobRequest(**request), as_json=as_json, quiet=quiet)
    pictures = read_pictures(plots, None, "OF_JOB")
    if timeline is not None:
        from projector.report.timeline import check_timeline

        check_timeline(timeline)
    result = JobRequest(**request).project_performance(quiet=quiet)
    if timeline is not None:
        from projector.report.terminal.job import short_title
        from projector.report.timeline import write_timeline

        write_timeline(result.pipeline, timeline, short_title(result.job))
    write_pictures(pictures, result.job, quiet=quiet)
    if as_json:
        print_json(result.to_dict())
    else:
        from projector.report.terminal.performance import performance_report
        from projector.report.terminal.suggestions import suggest

        print_report(performance_report(result, suggest(result)))
        print_warnings(result.warnings, quiet=quiet)
    if timeline is not None and not quiet:
        say(f"wrote {timeline}; ui.perfetto.dev opens it")
    return SUCCESS if result.memory.fits else DOES_NOT_FIT


def check_profiling_mode(mode: str) -> None:
    """Refuse a mode that this version does not have."""
    if mode not in PROFILING_MODES:
        known = ", ".join(PROFILING_MODES)
        msg = f"profiling_mode: {mode!r} is not available in this version; legal: {known}"
        raise UnsupportedError(msg, key="profiling_mode", value=mode, allowed=list(PROFILING_MODES))
