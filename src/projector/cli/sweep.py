"""``projector sweep``."""

from typing import TYPE_CHECKING

import click

from projector.cli.given import refuse_idle
from projector.cli.job_options import output_options
from projector.cli.output import (
    ALLOW_RISK,
    DOES_NOT_FIT,
    SUCCESS,
    compiling_steps,
    plain_envelope,
    print_json,
    print_report,
    print_warnings,
    say,
)
from projector.cli.pictures import read_pictures, say_written, write_pictures
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.config.space import Space
    from projector.sweeps.result import SweepResult


@click.command("sweep")
@click.argument("space", metavar="SPACE")
@click.option("--out", metavar="PATH", help="Folder of the Parquet dataset.")
@click.option(
    "--engine",
    default="local",
    show_default=True,
    metavar="local|dask",
    help="Where to compute: in processes of this machine, or on a Dask cluster.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS|FILE",
    help="Dask cluster: tcp://HOST:PORT or a scheduler file; one starts here when left out.",
)
@click.option(
    "--dry-run", is_flag=True, help="Project a sample and estimate the time of the whole sweep."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing sweep at PATH.")
@click.option("--allow-risk", is_flag=True, help=ALLOW_RISK)
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Processes, this one included; one for each processor when left out. Results do not "
    "depend on it.",
)
@click.option(
    "--plot",
    "plots",
    multiple=True,
    metavar="KIND=FIGURE",
    help="Draw pareto, scaling or heatmap:AXIS,AXIS[,COLUMN] as .png, .svg or .pdf; may be "
    "repeated.",
)
@click.option("--html", metavar="FILE.html", help="Write one interactive page that works offline.")
@output_options
@click.pass_obj
def command(
    alone: bool | None,
    space: str,
    out: str | None,
    engine: str,
    scheduler: str | None,
    dry_run: bool,
    overwrite: bool,
    allow_risk: bool,
    workers: int | None,
    plots: tuple[str, ...],
    html: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Project every job of a space.

    SPACE is a file with a base job, axes and constraints. The same command continues an
    unfinished sweep at PATH and leaves a finished one as it is. Rows are in the order of the
    space, whether they fit or not. Without --out only the summary and the figures remain. These
    rank the jobs with the verdict `fits`: the upper end of the band of their peak fits.

    Exit code 3: no point of the space is a legal job.

    \b
    Examples:
      projector sweep space.yaml --out rows.parquet --plot pareto=front.png --html rows.html
      projector sweep space.yaml --plot heatmap:tp,pp=tp_pp.svg --plot heatmap:tp,nodes,mfu=mfu.svg
    """  # noqa: D301  click looks for the backspace
    if out is None:
        refuse_idle("overwrite", needs="--out PATH")
    if dry_run and (plots or html is not None):
        msg = "--plot and --html need the rows, of which --dry-run computes none"
        raise ConfigError(msg, key="dry_run", value=True, allowed=False)
    if alone:
        from projector.sweeps.workers import take_over

        take_over()
    pictures = read_pictures(plots, html, "OF_SWEEP")
    from projector.sweeps.space import read_space

    job_space = read_space(space)
    if pictures:
        from projector.report.figures.pictures import check_pictures

        pictures = check_pictures(pictures, job_space)
    if dry_run:
        return _dry_run(job_space, workers, engine, scheduler, as_json=as_json)
    from projector.report.terminal.progress import SweepProgress
    from projector.sweeps.engine import sweep

    try:
        with compiling_steps(quiet=quiet), SweepProgress(quiet=quiet) as progress:
            result = sweep(
                job_space,
                out,
                overwrite=overwrite,
                workers=workers,
                engine=engine,
                scheduler=scheduler,
                progress=progress,
                allow_risk=allow_risk,
            )
    except KeyboardInterrupt:
        if out is not None:
            say(f"interrupted; the same command continues {out}")
        raise
    write_pictures(pictures, result, quiet=quiet)
    if html is not None:
        from projector.report.sweep import write_sweep_page

        write_sweep_page(result, html)
        say_written(html, quiet=quiet)
    _print(result, job_space, as_json=as_json)
    print_warnings(result.warnings, quiet=quiet)
    return SUCCESS if result.rows else DOES_NOT_FIT


def _print(result: "SweepResult", space: "Space", *, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict())
    else:
        from projector.report.sweep import sweep_report

        print_report(sweep_report(result, space.fields))


def _dry_run(
    space: "Space", workers: int | None, engine: str, scheduler: str | None, *, as_json: bool
) -> int:
    from projector.sweeps.engine import estimate

    estimated = estimate(space, workers, engine=engine, scheduler=scheduler)
    if as_json:
        print_json({**plain_envelope(), **estimated.to_dict(), "fields": list(space.fields)})
    else:
        from projector.report.sweep import estimate_report

        print_report([estimate_report(estimated, space.fields)])
    return SUCCESS
