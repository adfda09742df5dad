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
    help="What a row is: operation, layer, phase, type, class, kernel, iteration, rank, device, "
    "stream, group or recompute; several with commas, such as phase,type.",
)


@click.group("trace")
def command() -> None:
    """Explain a real run from its trace: where the time of every GPU went.

    PATH is a trace of PyTorch's profiler or of rocprof, plain or packed with gzip, or a folder with
    one file a rank. Record one with `record`, and begin with `summary`. docs/trace.md says what
    each number means.
    """


@command.command("summary", short_help="Show where the time of every rank went.")
@click.option(
    "--tokens",
    type=float,
    metavar="N",
    help="Tokens of an iteration of the whole job; adds tokens/s.",
)
@trace_options
def summary(tokens: float | None, **options: Any) -> None:
    """Show where the time of every rank went: compute, communication, copies, idle.

    The span of a rank is from its first activity to its last one. Four parts add up to it, to the
    nanosecond: compute, exposed communication (nothing computes meanwhile), exposed copies (nothing
    computes or communicates meanwhile) and idle time.
    """
    from projector.report.terminal.trace_summary import summary_report

    request = TraceRequest(**options)
    analysis = request.load()
    request.show(analysis.summary(tokens), summary_report, table=analysis)


@command.command("operations", short_help="Show how long every operation takes.")
@_BY
@row_options
def operations(by: str, **options: Any) -> None:
    """Show how long every operation takes in an iteration.

    The largest share comes first. A share is of the durations of all kernels, added over all
    iterations. Times are medians over the iterations of all ranks, so a single slow iteration
    changes the share and not the time. Launch is the time that nothing computes before the
    kernels. Overlap is the part of them that runs beside communication.
    """
    from projector.report.terminal.trace_tables import operations_report

    request = TraceRequest(**options)
    result = request.load().operations(by)
    request.show(result, operations_report)


@command.command("overlap", short_help="Show how much communication covers operations.")
@click.option("--cdf", is_flag=True, help="Add the curves to --json and --parquet.")
@row_options
def overlap(cdf: bool, **options: Any) -> None:
    """Show how much communication covers each operation, and how much longer it then takes.

    D0 is the duration of runs beside no communication, D50 that at which half of all overlap is
    reached. D50/D0 above 1 says that communication slows the operation down.
    """
    from projector.report.terminal.trace_tables import overlap_report

    request = TraceRequest(**options)
    result = request.load().overlap(cdf=cdf)
    request.show(result, overlap_report)


@command.command("launch", short_help="Show what launching kernels costs.")
@_BY
@row_options
def launch(by: str, **options: Any) -> None:
    """Show the bubbles before kernels: the host was late, or the launch was under way.

    A bubble is time between two kernels that compute. Preparation is the part before the host calls
    the launch, call the part after it. Communication and copies in a bubble do not shorten it.
    """
    from projector.report.terminal.trace_tables import launch_report

    request = TraceRequest(**options)
    result = request.load().launch(by)
    request.show(result, launch_report)


command.add_command(plot)
command.add_command(compare)
command.add_command(gap)
command.add_command(record)
