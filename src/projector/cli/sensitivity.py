"""``projector sensitivity``."""

from typing import Any

import click

from projector.cli.job_options import JobRequest, job_options, output_options
from projector.cli.output import (
    SUCCESS,
    announce_compilation,
    print_json,
    print_report,
    print_warnings,
    say,
)


@click.command("sensitivity")
@job_options
@click.option(
    "--change",
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="A field is divided and multiplied by 1 + SHARE.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="DOTTED",
    help="Field to vary, may be repeated; all of the hardware when left out.",
)
@click.option("--top", default=15, show_default=True, metavar="N", help="Effects to show.")
@click.option("--plot", metavar="FIGURE.png|.svg|.pdf", help="Draw the effects as a tornado.")
@output_options
def command(
    change: float,
    fields: tuple[str, ...],
    top: int,
    plot: str | None,
    as_json: bool,
    quiet: bool,
    **request: Any,
) -> int:
    """Vary one number of the hardware at a time and rank what that does to the step of a job.

    The configuration of the job stays; ``search`` finds the best one for other hardware.

    \b
    Examples:
      projector sensitivity --config job.yaml --plot tornado.svg
      projector sensitivity --config job.yaml --change 1 --field cluster.device.hbm_peak_tb_per_s
    """  # noqa: D301  click looks for the backspace
    if plot is not None:
        from projector.report.figure import check_figure

        check_figure(plot)
    job = JobRequest(**request).load()
    announce_compilation(quiet=quiet)
    from projector.projection.provenance import envelope, provenance_of, uncertainty
    from projector.report.sensitivity import sensitivity_report, write_tornado
    from projector.searches.sensitivity import sensitivity

    found = sensitivity(job, change=change, fields=fields or None)
    if plot is not None:
        write_tornado(found, plot, top)
        if not quiet:
            say(f"wrote {plot}")
    provenance = provenance_of(found.job)
    if as_json:
        print_json({**envelope(provenance, uncertainty(found.job, "time")), **found.to_dict()})
    else:
        print_report(sensitivity_report(found, top))
    print_warnings(provenance.warnings, quiet=quiet or as_json)
    return SUCCESS
