"""``projector performance``."""

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
from projector.cli.pictures import read_pictures, write_pictures
from projector.cli.profiling import profiling_options, take_profiling
from projector.cli.step_files import StepFiles


@click.command("performance")
@job_options
@primus_options
@profiling_options
@click.option(
    "--timeline",
    metavar="FILE",
    help="Write the whole step as a trace for ui.perfetto.dev and for `projector trace`, "
    "compressed if named .gz.",
)
@click.option(
    "--memory-snapshot",
    metavar="FILE",
    help="Write what the step allocates, for pytorch.org/memory_viz.",
)
@click.option(
    "--plot",
    "plots",
    multiple=True,
    metavar="KIND=FIGURE",
    help="Draw the operations under the roofs of the device (roofline), or what the interval "
    "between checkpoints costs a run (interval), as .png, .svg or .pdf.",
)
@emit_option
@fidelity_option
@output_options
def command(
    as_json: bool,
    quiet: bool,
    timeline: str | None,
    memory_snapshot: str | None,
    plots: tuple[str, ...],
    fidelity: str,
    emit: tuple[str, ...],
    **request: Any,
) -> int:
    """Project the time of one training step, and where it goes.

    KEY=VALUE overrides a field of the job file: parallelism.tp=4, or tp=4 in short.

    Exit code 3: the projected peak does not fit; the projection is printed all the same. A warning
    says where a job is at risk: the limit lies within the band of its peak. This does not change
    the exit code.
    """
    profiling = take_profiling(request)
    profiling.check()
    if first_order.is_asked(fidelity):
        first_order.refuse_options(
            {
                "timeline": timeline,
                "memory_snapshot": memory_snapshot,
                "plot": plots or None,
                "emit": emit or None,
            }
        )
        first_order.refuse_measuring(profiling.measuring)
        return first_order.performance(JobRequest(**request), as_json=as_json, quiet=quiet)
    pictures = read_pictures(plots, None, "OF_JOB")
    files = StepFiles(timeline, memory_snapshot)
    files.check()
    emission = Emission.of(emit)
    result = JobRequest(**request).project_performance(quiet=quiet, profiling=profiling)
    files.write(result)
    write_pictures(pictures, result.job, quiet=quiet)
    emitted = emission.of_job(result.job)
    if as_json:
        print_json(emission.add_to(result.to_dict(), emitted))
    elif not emission.on_output:
        from projector.report.terminal.performance import performance_report
        from projector.report.terminal.suggestions import suggest

        # A change would need its own measurement, so models alone are no neighbour of one.
        suggestions = suggest(result) if result.record is None else ()
        print_report(performance_report(result, suggestions))
    if not as_json:
        print_warnings(result.warnings, quiet=quiet)
        emission.show(emitted, quiet=quiet)
    files.tell(quiet=quiet)
    return SUCCESS if result.memory.fits else DOES_NOT_FIT
