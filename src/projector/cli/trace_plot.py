"""``projector trace plot``."""

from pathlib import Path
from typing import Any

import click

from projector.cli.output import plain_envelope, print_json, print_warnings, say
from projector.cli.trace_options import TraceRequest, picture_options
from projector.errors import ConfigError


@click.command("plot")
@picture_options
@click.option(
    "--plot",
    "plots",
    multiple=True,
    metavar="KIND=FIGURE",
    help="Draw one picture as .png, .svg or .pdf; may be repeated.",
)
@click.option("--out", metavar="FOLDER", help="Draw every picture that the trace can fill, as PNG.")
@click.option("--html", metavar="PAGE", help="Write all of them as one page that works offline.")
def command(plots: tuple[str, ...], out: str | None, html: str | None, **options: Any) -> None:
    """Draw a trace: phases, overlap, launch overhead, ranks.

    Name at least one of --plot, --out and --html. Each KIND of picture answers a question:

    \b
    breakdown  what does an iteration do, by phase and type of operation?
    cdf        do runs beside communication take longer? the curve of D50
    overlap    the same, each run as a point: duration against overlap
    launch     which operations wait for the host, or for their launch?
    ranks      does a rank compute, wait or idle more than the others?
    cores      how many cores of the host are used?
    clocks     do clock, power and memory of the devices change during the run?
    """  # noqa: D301  click looks for the backspace
    from projector.report.figures.figure import check_figure
    from projector.report.figures.trace.draw import (
        DRAWN,
        read_trace_pictures,
        write_trace_picture,
    )

    if not plots and out is None and html is None:
        msg = "say what to draw: --plot KIND=FIGURE, --out FOLDER or --html PAGE"
        raise ConfigError(msg, key="plot", allowed=[f"{kind}=FIGURE" for kind in DRAWN])
    wanted = read_trace_pictures(plots)
    if html is not None:
        from projector.report.pages.page import check_page

        check_page(html)
    if out is not None:
        check_figure(Path(_folder(out)) / "breakdown.png")
    request = TraceRequest(**options)
    analysis = request.load()
    written, left_out = [], {}
    for kind, path in wanted:
        write_trace_picture(kind, analysis, path)
        written.append(path)
    for kind in DRAWN if out is not None else ():
        path = str(Path(out or "") / f"{kind}.png")
        try:
            write_trace_picture(kind, analysis, path)
        except ConfigError as error:
            left_out[kind] = str(error)
        else:
            written.append(path)
    if html is not None:
        from projector.report.pages.trace import write_trace_page

        write_trace_page(analysis, html)
        written.append(html)
    _tell(request, written, left_out, analysis.warnings)


def _folder(out: str) -> str:
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be made: {error.strerror}", key="out", value=out) from None
    return out


def _tell(
    request: TraceRequest, written: list[str], left_out: dict[str, str], warnings: list[str]
) -> None:
    if request.as_json:
        found = {"output": written, "left_out": left_out, "warnings": warnings}
        print_json(plain_envelope() | found)
        return
    if not request.quiet:
        for why in left_out.values():
            say(why)
        for path in written:
            say(f"wrote {path}")
    print_warnings(warnings, quiet=request.quiet)
