"""``projector memory``."""

from typing import Any

import click

from projector.cli.job_options import JobRequest, job_options, output_options
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    print_json,
    print_report,
    print_warnings,
)


@click.command("memory")
@job_options
@output_options
def command(as_json: bool, quiet: bool, **request: Any) -> int:
    """Project the memory of every pipeline stage, term by term.

    KEY=VALUE overrides a field of the job file, for example parallelism.tp=4.

    Exit code 3: the projected peak does not fit; the projection is printed all the same. A warning
    says where a job is at risk: the limit lies within the band of its peak. This does not change
    the exit code.
    """
    result = JobRequest(**request).project_memory(quiet=quiet)
    if as_json:
        print_json(result.to_dict())
    else:
        from projector.report.terminal.memory import memory_report

        print_report(memory_report(result))
        print_warnings(result.warnings, quiet=quiet)
    return SUCCESS if result.fits else DOES_NOT_FIT
