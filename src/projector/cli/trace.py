"""``projector trace``."""

from typing import Any

import click

from projector.cli.trace_options import TraceRequest, trace_options


@click.group("trace")
def command() -> None:
    """Explain a real run from its trace: where the time of every GPU went.

    PATH is a trace of PyTorch's profiler or of rocprof, plain or compressed, or a folder with one
    file a rank. docs/trace.md says how to record one and what each number means.
    """


@command.command("summary")
@trace_options
def summary(**options: Any) -> None:
    """Show where the time of every rank went: compute, communication, copies, idle.

    Compute, communication that no compute hides, copies that neither hides and idle time add up
    to the span of a rank, to the nanosecond.
    """
    from projector.report.terminal.trace import summary_report

    request = TraceRequest(**options)
    analysis = request.load()
    request.show(analysis.summary(), summary_report)
    request.write(analysis)
