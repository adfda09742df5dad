"""``projector sweep``."""

from typing import TYPE_CHECKING

import click

from projector.cli import output
from projector.cli.options import argument, command, flag, option, refuse_idle
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.config.space import Space


@command()
def sweep(
    *,
    space: str = argument("SPACE"),
    out: str | None = option("PATH", "Folder of the Parquet dataset; also s3://BUCKET/FOLDER."),
    engine: str = option(
        "local|dask",
        "Where to compute: in processes of this machine, or on a Dask cluster.",
        shown="local",
    ),
    scheduler: str | None = option(
        "ADDRESS|FILE",
        "Dask cluster: tcp://HOST:PORT or a scheduler file; one starts here when left out.",
    ),
    dry_run: bool = flag("Project a sample and estimate the time of the whole sweep."),
    overwrite: bool = flag("Replace an existing sweep at PATH."),
    verify: bool = flag(
        "Read the finished parts at PATH whole, and compute again those with a wrong checksum."
    ),
    allow_risk: bool = output.ALLOW_RISK,
    workers: int | None = option(
        "N",
        "Processes, this one included; one for each processor when left out. Results do not "
        "depend on it.",
    ),
    plots: tuple[str, ...] = option(
        "KIND=FIGURE",
        "Draw pareto, scaling or heatmap:AXIS,AXIS[,COLUMN] as .png, .svg or .pdf; may be "
        "repeated.",
        names="--plot",
    ),
    html: str | None = option("FILE.html", "Write one interactive page that works offline."),
    csv: str | None = output.CSV,
    printer: output.Printer,
) -> int:
    """Project every job or deployment of a space.

    SPACE is a file with a base (a job, or a serving file), axes and constraints. The same
    command continues an unfinished sweep at PATH and leaves a finished one as it is. Rows are in
    the order of the space, whether they fit or not. Without --out only the summary and the
    figures remain. These rank jobs whose peak fits with its band, and deployments that keep what
    they promise. Exit code 3: no point of the space is legal.

    \b
    Examples:
      projector sweep space.yaml --out rows.parquet --plot pareto=front.png --html rows.html
      projector sweep space.yaml --plot heatmap:tp,pp=tp_pp.svg --plot heatmap:tp,nodes,mfu=mfu.svg
    """  # noqa: D301  click looks for the backspace
    if out is None:
        refuse_idle("overwrite", "verify", needs="--out PATH")
    if dry_run and (plots or html is not None or csv is not None):
        msg = "--plot, --html and --csv need the rows, of which --dry-run computes none"
        raise ConfigError(msg, key="dry_run", value=True, allowed=False)
    if click.get_current_context().obj:  # the process is ours alone
        from projector.sweeps.workers import take_over

        take_over()
    pictures = output.read_pictures(plots, html, "OF_SWEEP")
    output.check_files(csv=csv)
    from projector.sweeps.table import load_space

    job_space = load_space(space)
    if pictures:
        from projector.report.figures.pictures import check_pictures

        pictures = check_pictures(pictures, job_space)
    if dry_run:
        return _dry_run(job_space, workers, engine, scheduler, printer)
    from projector.report.terminal.progress import SweepProgress
    from projector.sweeps.engine import sweep

    try:
        with (
            output.compiling_steps(quiet=printer.quiet),
            SweepProgress(quiet=printer.quiet) as progress,
        ):
            result = sweep(
                job_space,
                out,
                overwrite=overwrite,
                verify=verify,
                workers=workers,
                engine=engine,
                scheduler=scheduler,
                progress=progress,
                allow_risk=allow_risk,
            )
    except KeyboardInterrupt:
        if out is not None:
            output.say(f"interrupted; the same command continues {out}")
        raise
    output.write_pictures(pictures, result, printer)
    if html is not None:
        from projector.report.sweep import write_sweep_page

        write_sweep_page(result, html)
        printer.wrote(html)
    output.write_csv(result, csv, printer)
    if printer.as_json:
        output.print_json(result.to_dict())
    else:
        from projector.report.sweep import sweep_report

        output.print_report(sweep_report(result, job_space.fields))
    printer.warn(result.warnings)
    if out is not None and out.startswith("memory://"):
        printer.warn([f"{out} was the memory of this command, which ends: the rows are lost"])
    return output.SUCCESS if result.rows else output.DOES_NOT_FIT


def _dry_run(
    space: "Space", workers: int | None, engine: str, scheduler: str | None, printer: output.Printer
) -> int:
    from projector.report.sweep import estimate_report
    from projector.sweeps.engine import estimate

    with output.compiling_steps(quiet=printer.quiet):
        estimated = estimate(space, workers, engine=engine, scheduler=scheduler)
    shown = {**estimated.to_dict(), "fields": list(space.fields)}
    printer.show(shown, lambda _: [estimate_report(estimated, space.fields)])
    return output.SUCCESS
