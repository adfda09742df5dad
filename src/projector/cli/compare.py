"""``projector compare``."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    interpret_at_first,
    print_json,
    print_report,
    print_warnings,
)
from projector.errors import ProjectorError


@click.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@output_options
def command(
    first: str, second: str, assignments: tuple[str, ...], as_json: bool, quiet: bool
) -> int:
    """Show which terms differ between the jobs of the files A and B, the largest first.

    KEY=VALUE overrides a field of both jobs.

    Exit code 3: the projected peak of at least one of them does not fit.
    """
    from projector.config.load import load_job, parse_override
    from projector.projection.api import project_performance
    from projector.report.terminal.compare import Comparison, compare_report

    overrides = dict(parse_override(text) for text in assignments)
    jobs = []
    for path in (first, second):
        with _naming(path):
            jobs.append(load_job(path, overrides))
    interpret_at_first(quiet=quiet)
    results = []
    for path, job in zip((first, second), jobs, strict=True):
        with _naming(path):
            results.append(project_performance(job))
    comparison = Comparison(*results)
    result = comparison.to_dict()
    if as_json:
        print_json(result)
    else:
        print_report(compare_report(comparison))
        print_warnings(result["warnings"], quiet=quiet)
    fit = comparison.first.memory.fits and comparison.second.memory.fits
    return SUCCESS if fit else DOES_NOT_FIT


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file, of the two, that an error is about."""
    try:
        yield
    except ProjectorError as error:
        if path in error.message:
            raise
        message = f"{path}: {error.message}"
        raise type(error)(
            message, key=error.key, value=error.value, allowed=error.allowed
        ) from None
