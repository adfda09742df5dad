"""``projector trace``."""

from typing import Any

import click

from projector.cli.trace_compare import command as compare
from projector.cli.trace_gap import command as gap
from projector.cli.trace_options import TraceRequest, row_options, trace_options
from projector.cli.trace_plot import command as plot
from projector.cli.trace_record import command as record

_BY = click.option(
    "--by",
    default="operation",
    show_default=True,
    metavar="NAME,...",
    help="operation, layer, phase, type, kernel, iteration, rank ...; several go together.",
)


@click.group("trace")
def command() -> None:
    """Explain a real run from its trace: where the time of every GPU went.

    PATH is a trace of PyTorch's profiler or of rocprof, plain or compressed, or a folder with one
    file a rank. docs/trace.md says how to record one and what each number means.
    """


@command.command("summary", short_help="Show where the time of every rank went.")
@click.option("--tokens", type=float, metavar="N", help="Tokens of an iteration of the whole job.")
@trace_options
def summary(tokens: float | None, **options: Any) -> None:
    """Show where the time of every rank went: compute, communication, copies, idle.

    Compute, communication that no compute hides, copies that neither hides and idle time add up
    to the span of a rank, to the nanosecond.
    """
    from projector.report.terminal.trace_summary import summary_report

    request = TraceRequest(**options)
    analysis = request.load()
    request.show(analysis.summary(tokens), summary_report)
    request.write(analysis)


@command.command("operations", short_help="Show how long every operation takes.")
@_BY
@row_options
def operations(by: str, **options: Any) -> None:
    """Show how long every operation takes in an iteration, what delays and what covers it.

    Durations of kernels that run at once are added, so that shares are shares of work. Medians and
    quartiles are those over the iterations of all ranks.
    """
    from projector.report.terminal.trace_tables import operations_report

    request = TraceRequest(**options)
    result = request.load().operations(by)
    request.show(result, operations_report)
    request.write(result)


@command.command("overlap", short_help="Show how much communication covers operations.")
@click.option("--cdf", is_flag=True, help="Add the curves to the JSON and to the table.")
@row_options
def overlap(cdf: bool, **options: Any) -> None:
    """Show how much communication covers each operation, and how much longer it then takes.

    D50/D0 is the duration at half of the overlap over the duration without any.
    """
    from projector.report.terminal.trace_tables import overlap_report

    request = TraceRequest(**options)
    result = request.load().overlap(cdf=cdf)
    request.show(result, overlap_report)
    request.write(result)


@command.command("launch", short_help="Show what launching kernels costs.")
@_BY
@row_options
def launch(by: str, **options: Any) -> None:
    """Show the bubbles before kernels: the host was late, or the launch was under way.

    Preparation is the time until the host calls, call the time from there to the start of the
    kernel. Communication in between counts as bubble.
    """
    from projector.report.terminal.trace_tables import launch_report

    request = TraceRequest(**options)
    result = request.load().launch(by)
    request.show(result, launch_report)
    request.write(result)


command.add_command(plot)
command.add_command(compare)
command.add_command(gap)
command.add_command(record)
