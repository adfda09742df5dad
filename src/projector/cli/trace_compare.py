"""``projector trace compare``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from projector.cli.output import interpret_at_first, print_json, print_report, print_warnings, say
from projector.cli.trace_options import TraceRequest, result_options
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.config.job import Job
    from projector.validate.traces.result import TraceComparison

_CONFIG = click.option(
    "--config", metavar="JOB.yaml", help="Job that ran; without it two traces are compared."
)


_TABLES = click.option(
    "--tables",
    metavar="FOLDER",
    help="Write what was measured as tables for `projector calibrate`: products, attention, "
    "collectives, and the step of --config.",
)


@click.command("compare")
@_CONFIG
@_TABLES
@result_options
def command(config: str | None, tables: str | None, **options: Any) -> None:
    """Show where a run differs from its projection, or from another run, and why.

    With --config every PATH is a trace of one run of that job, and KEY=VALUE among the paths
    overrides a field of the job. Without it there are two PATHs, a file or a folder each, such as
    one job under FSDP 1 and 2. The largest difference comes first, with the factors that explain
    it; their product is the ratio. What could not be matched is listed for both sides.
    """
    request = TraceRequest(**options)
    if tables is not None and config is None:
        msg = "tables: they are written of a run with its job; name it with --config"
        raise ConfigError(msg, key="tables", value=tables, allowed="--config JOB.yaml")
    comparison = _with_job(config, tables, request) if config is not None else _two(request)
    request.write_rows(comparison.rows)
    if request.as_json:
        print_json(comparison.to_dict())
    else:
        from projector.report.terminal.trace_compare import comparison_report

        print_report(comparison_report(comparison))
        print_warnings(list(comparison.warnings), quiet=request.quiet)
    request.tell_written()


def job_and_paths(config: str, paths: tuple[str, ...]) -> "tuple[Job, tuple[str, ...]]":
    """Return the job, with what KEY=VALUE among the paths changes, and the paths."""
    from projector.config.load import load_job, parse_override

    changes = [text for text in paths if "=" in text and not _is_file(text)]
    left = tuple(text for text in paths if text not in changes)
    job = load_job(config, dict(parse_override(text) for text in changes))
    if not left:
        msg = "trace: name the trace of a run besides the job"
        raise ConfigError(msg, key="trace", value=list(paths), allowed="PATH...")
    return job, left


def _is_file(text: str) -> bool:
    """Whether there is such a file; a long KEY=VALUE cannot be the name of one."""
    try:
        return Path(text).exists()
    except OSError:
        return False


def _with_job(config: str, tables: str | None, request: TraceRequest) -> "TraceComparison":
    from projector.validate.traces.compare import compare_run
    from projector.validate.traces.tables import tables_of_run, write_run

    job, paths = job_and_paths(config, request.paths)
    analysis = replace(request, paths=paths).load()
    interpret_at_first(quiet=request.quiet)
    comparison = compare_run(analysis, job)
    if tables is not None:
        found = tables_of_run(analysis, job.cluster.device.name)
        step_s = comparison.step["total"].measured_s
        written = write_run(found, tables, config, step_s)
        if not request.quiet:
            for path in written:
                say(f"wrote {path}")
            for why, count in found.left_out.items():
                say(f"left out: {count:,} x {why}")
    return comparison


def _two(request: TraceRequest) -> "TraceComparison":
    from projector.validate.traces.compare import compare_runs

    if len(request.paths) != 2:
        msg = (
            f"trace: two traces are compared, or one with the job of --config; "
            f"{len(request.paths)} are named"
        )
        raise ConfigError(msg, key="trace", value=list(request.paths), allowed="two PATHs")
    first, second = (replace(request, paths=(path,)).load() for path in request.paths)
    return compare_runs(first, second)
