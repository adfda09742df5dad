"""``projector compare``."""

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    announce_compilation,
    print_json,
    print_report,
    print_warnings,
)


@click.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@output_options
def command(
    first: str, second: str, assignments: tuple[str, ...], as_json: bool, quiet: bool
) -> int:
    """Show which terms move between the jobs of the files A and B, the largest first.

    KEY=VALUE overrides a field of both.
    """
    from projector.config.load import load_job, parse_override
    from projector.projection.api import project_jobs
    from projector.report.compare import Comparison, compare_report

    overrides = dict(parse_override(text) for text in assignments)
    jobs = [load_job(path, overrides) for path in (first, second)]
    announce_compilation(quiet=quiet)
    comparison = Comparison(*project_jobs(jobs))
    result = comparison.to_dict()
    if as_json:
        print_json(result)
    else:
        print_report(compare_report(comparison))
        print_warnings(result["warnings"], quiet=quiet)
    fit = comparison.first.memory.fits and comparison.second.memory.fits
    return SUCCESS if fit else DOES_NOT_FIT
