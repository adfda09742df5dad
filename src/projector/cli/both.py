"""``projector both``."""

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
)
from projector.cli.profiling import profiling_options, take_profiling


@click.command("both")
@job_options
@profiling_options
@fidelity_option
@output_options
def command(as_json: bool, quiet: bool, fidelity: str, **request: Any) -> int:
    """Project memory, then performance, of one job.

    KEY=VALUE overrides a field of the job file, for example parallelism.tp=4.

    Exit code 3: the projected peak does not fit; the projection is printed all the same. A warning
    says where a job is at risk: the limit lies within the band of its peak. This does not change
    the exit code.
    """
    profiling = take_profiling(request)
    profiling.check()
    if first_order.is_asked(fidelity):
        first_order.refuse_measuring(profiling.measuring)
        return first_order.both(JobRequest(**request), as_json=as_json, quiet=quiet)
    result = JobRequest(**request).project_performance(quiet=quiet, profiling=profiling)
    if as_json:
        from projector.projection.provenance import envelope

        parts = {"memory": result.memory.to_dict(), "performance": result.to_dict()}
        head = envelope(result.provenance, result.uncertainty)
        print_json({**head, "warnings": list(result.warnings), **parts})
    else:
        from projector.report.terminal.both import both_report
        from projector.report.terminal.suggestions import suggest

        suggestions = suggest(result) if result.record is None else ()
        print_report(both_report(result, suggestions))
        print_warnings(result.warnings, quiet=quiet)
    return SUCCESS if result.memory.fits else DOES_NOT_FIT
