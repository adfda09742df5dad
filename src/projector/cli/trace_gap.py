"""``projector trace gap``."""

from dataclasses import replace
from typing import Any

import click

from projector.cli.output import interpret_at_first, print_json, print_report, print_warnings
from projector.cli.pictures import say_written
from projector.cli.trace_compare import job_and_paths
from projector.cli.trace_options import TraceRequest, result_options


@click.command("gap")
@click.option(
    "--config", metavar="JOB.yaml", help="Job that ran: it gives operations, FLOP and device."
)
@click.option(
    "--device", metavar="NAME", help="Profile of the device; that of the job or trace by default."
)
@click.option(
    "--dtype", default="", metavar="TYPE", help="Matrix type, where the trace does not tell it."
)
@click.option(
    "--plot", metavar="FIGURE", help="Draw the factors of each operation, as .png, .svg or .pdf."
)
@result_options
def command(
    config: str | None, device: str | None, dtype: str, plot: str | None, **options: Any
) -> None:
    """Show why matrix products and attention take longer than their FLOP at the peak rate.

    Five factors explain it: FLOP beyond those that are needed, idle matrix units, communication
    beside the operation, the clock, and a rest. The first two need counters of a second run
    (--counters). The clock needs counters or sampled clocks (--samples). FLOP come from the job,
    else from the shapes in the trace. With --config, KEY=VALUE among the paths overrides a field
    of the job.
    """
    from projector.report.terminal.trace_gap import gap_report
    from projector.validate.traces.api import gap_of

    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    request, job = TraceRequest(**options), None
    if config is not None:
        job, paths = job_and_paths(config, request.paths)
        request = replace(request, paths=paths)
    analysis = request.load()
    if job is not None:
        interpret_at_first(quiet=request.quiet)
    found = gap_of(analysis, job, device, dtype)
    # Files first: where one cannot be written, standard output has the error alone.
    if plot is not None:
        from projector.report.figures.trace.gap import write_gap

        title = f"Theory and measurement{f' on {found.device}' if found.device else ''}"
        write_gap(found.operations, title, plot)
    request.write_rows(found.rows)
    if request.as_json:
        print_json(found.to_dict())
    else:
        print_report(gap_report(found))
        print_warnings(list(found.warnings), quiet=request.quiet)
    if plot is not None:
        say_written(plot, quiet=request.quiet or request.as_json)
    request.tell_written()
