"""``projector memory``."""

from typing import Any

import click

from projector.cli import first_order
from projector.cli.emit import Emission, emit_option
from projector.cli.job_options import (
    JobRequest,
    fidelity_option,
    job_options,
    output_options,
    primus_options,
)
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    print_json,
    print_report,
    print_warnings,
)
from projector.cli.profiling import profiling_options, take_profiling


@click.command("memory")
@job_options
@primus_options
@profiling_options
@emit_option
@fidelity_option
@output_options
def command(
    as_json: bool, quiet: bool, fidelity: str, emit: tuple[str, ...], **request: Any
) -> int:
    """Project the memory of every pipeline stage, term by term.

    KEY=VALUE overrides a field of the job file: parallelism.tp=4, or tp=4 in short.

    Exit code 3: the projected peak does not fit; the projection is printed all the same. A warning
    says where a job is at risk: the limit lies within the band of its peak. This does not change
    the exit code.
    """
    profiling = take_profiling(request)
    profiling.check()
    if first_order.is_asked(fidelity):
        first_order.refuse_options({"emit": emit or None})
        first_order.refuse_measuring(profiling.measuring)
        return first_order.memory(JobRequest(**request), as_json=as_json, quiet=quiet)
    emission = Emission.of(emit)
    result = JobRequest(**request).project_memory(quiet=quiet, profiling=profiling)
    emitted = emission.of_job(result.job)
    if as_json:
        print_json(emission.add_to(result.to_dict(), emitted))
    elif not emission.on_output:
        from projector.report.terminal.memory import memory_report

        print_report(memory_report(result))
    if not as_json:
        print_warnings(result.warnings, quiet=quiet)
        emission.show(emitted, quiet=quiet)
    return SUCCESS if result.fits else DOES_NOT_FIT
