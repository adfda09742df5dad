"""``projector serve``."""

from typing import TYPE_CHECKING, Any

import click

from projector.cli import first_order
from projector.cli.job_options import fidelity_option, output_options
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    interpret_at_first,
    print_json,
    print_report,
    print_warnings,
)
from projector.cli.pictures import say_written

if TYPE_CHECKING:
    from projector.serving.projection import ServingProjection


LOAD = (
    "batch",
    "context",
    "output",
    "rate_per_s",
    "requests",
    "ttft_ms",
    "tpot_ms",
    "percentile",
    "usd_per_gpu_hour",
)
"""Options of the load; the others are of the deployment."""


@click.command("serve")
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--config", metavar="FILE", help="Serving file: a deployment and its load.")
@click.option("--model", metavar="NAME", help="Model: a shipped name or a file.")
@click.option("--device", metavar="D", help="Device: a shipped name or a file.")
@click.option("--tp", type=int, metavar="N", help="Tensor-parallel devices.")
@click.option("--pp", type=int, metavar="N", help="Pipeline stages.")
@click.option("--dtype", metavar="TYPE", help="Type of the linear layers' operands.")
@click.option("--weights", metavar="TYPE", help="Type that weights are stored in.")
@click.option("--batch", type=int, metavar="N", help="Sequences that generate at once.")
@click.option("--context", type=int, metavar="N", help="Tokens of a prompt; 2048 by default.")
@click.option("--output", type=int, metavar="N", help="Tokens that are generated for a prompt.")
@click.option("--rate", "rate_per_s", type=float, metavar="R", help="Requests a second: simulate.")
@click.option("--requests", type=int, metavar="N", help="Requests to simulate; 1000 by default.")
@click.option("--ttft-ms", type=float, metavar="T", help="Promised time to the first token.")
@click.option("--tpot-ms", type=float, metavar="T", help="Promised time of a further token.")
@click.option("--percentile", type=float, metavar="P", help="Users it holds for; 99 by default.")
@click.option("--usd-per-gpu-hour", type=float, metavar="X", help="Rent: cost of generated tokens.")
@click.option("--front", is_flag=True, help="Try every split and batch, up to --gpus devices.")
@click.option("--gpus", type=int, metavar="N", help="Most devices of a front; default: a node.")
@click.option("--plot", metavar="FIGURE.png|.svg|.pdf", help="Draw the front.")
@click.option("--html", metavar="FILE.html", help="Write one page that works offline.")
@fidelity_option
@output_options
def command(
    assignments: tuple[str, ...],
    config: str | None,
    *,
    front: bool,
    gpus: int | None,
    plot: str | None,
    html: str | None,
    fidelity: str,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Project how a deployment serves a model: latencies, throughput, memory.

    The prefill of prompts gives the time to the first token (TTFT), a decode step of the batch the
    time of each further one (TPOT). Requests are equal; without --output prompts take no part of
    the throughput. Without --batch the answer is the knee of throughput against speed, over --tp
    too where it is left out. With --rate requests are simulated one by one, and promised times
    give the replicas that keep them. KEY=VALUE sets a field of the deployment or of its load, for
    example kv_cache_bytes=1 or load.prompts=4.

    Exit code 3: the batch does not fit; it is projected all the same.

    \b
    Examples:
      projector serve --model llama3.1_70b --device h100 --tp 8 --batch 64 --context 4096
      projector serve --model deepseek_v3 --device h200 --front --gpus 32 --dtype fp8 --html f.html
      projector serve --model llama3.1_8b --device h100 --output 256 --rate 20 --ttft-ms 500
      projector serve --config examples/serve_llama70b.yaml --output 512
    """  # noqa: D301  click looks for the backspace
    from projector.config.load import parse_override

    given = {f"load.{name}" if name in LOAD else name: value for name, value in options.items()}
    changes = {name: value for name, value in given.items() if value is not None}
    changes |= dict(parse_override(text) for text in assignments)
    if first_order.is_asked(fidelity):
        shown = {"front": front or None, "gpus": gpus, "plot": plot, "html": html}
        first_order.refuse_options(shown)
        return first_order.serve(config, changes, as_json=as_json, quiet=quiet)
    _check_files(plot, html)
    interpret_at_first(quiet=quiet)
    from projector.serving.api import project_case
    from projector.serving.read import read_case

    result = project_case(read_case(config, changes), front=front, gpus=gpus)
    _write_files(result, plot, html, quiet=quiet)
    if as_json:
        print_json(result.to_dict())
    else:
        from projector.report.serve import serve_report

        print_report([serve_report(result)])
        print_warnings(result.warnings, quiet=quiet)
    return SUCCESS if result.fits else DOES_NOT_FIT


def _check_files(plot: str | None, html: str | None) -> None:
    """Refuse files that could not be written, before anything is projected."""
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    if html is not None:
        from projector.report.pages.page import check_page

        check_page(html)


def _write_files(
    result: "ServingProjection", plot: str | None, html: str | None, *, quiet: bool
) -> None:
    """Draw the front, and write the page."""
    if plot is not None:
        from projector.report.serve import write_front

        write_front(result, plot)
        say_written(plot, quiet=quiet)
    if html is not None:
        from projector.report.serve import write_serve_page

        write_serve_page(result, html)
        say_written(html, quiet=quiet)
