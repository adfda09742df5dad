"""``projector gemm``."""

from typing import TYPE_CHECKING, Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import interpret_at_first, plain_envelope, print_json, print_report

if TYPE_CHECKING:
    from projector.single.gemm_list import GemmList


@click.command("gemm")
@click.argument("extents", nargs=-1, metavar="[M N K]")
@click.option("--csv", "table", metavar="FILE.csv", help="Shapes: columns m, n, k, and batch.")
@click.option("--gpu", default="h100", show_default=True, help="Device: a shipped name or a file.")
@click.option("--dtype", default="bf16", show_default=True, help="Type of A and B.")
@click.option("--batch", default=1, show_default=True, help="Equal problems in one launch.")
@click.option("--out-bytes", default=2.0, show_default=True, help="Bytes of an element of C.")
@click.option("--layout", default="tn", show_default=True, help="nn, nt, tn or tt: A, then B.")
@click.option("--model", default="tile", show_default=True, help="tile, ws_persistent or sol.")
@click.option("--library", default="default", show_default=True, help="GEMM library of the device.")
@click.option("--run", default="training", show_default=True, help="training, loaded or short.")
@click.option("--tile", help="Tile to use: 128x256, or with its cluster 128x256:2x1.")
@click.option("--clock-mhz", type=float, help="Lock the clock.")
@click.option("--l2-hit-rate", default=0.0, show_default=True, help="L2 hit rate of ws_persistent.")
@click.option("--explain", is_flag=True, help="Show every term and what the time is made of.")
@click.option("--plot", metavar="FIGURE.png|.svg|.pdf", help="Draw the shapes under the roofline.")
@output_options
def command(
    extents: tuple[str, ...],
    table: str | None,
    plot: str | None,
    explain: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Time C[M, N] = A[M, K] @ B[K, N] on one device.

    Layouts name A and then B as BLAS does for column-major callers: t where K is contiguous in A,
    n where K is contiguous in B. The forward of a linear layer has tn, its input gradient nn and
    its weight gradient nt. Types of 8 bits or fewer need K to be contiguous in both; other layouts
    pay for a transposed copy.
    """
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    interpret_at_first(quiet=quiet)
    from projector.single.gemm_list import list_gemms

    gemms = list_gemms(extents, table, **options)
    if plot is not None:
        from projector.report.figures.gemm import write_gemm_figure

        write_gemm_figure(gemms, plot)
    if as_json:
        print_json({**plain_envelope(), **gemms.to_dict()})
        return
    _print(gemms, explain=explain)


def _print(gemms: "GemmList", *, explain: bool) -> None:
    from projector.report.terminal.gemm import gemm_report

    print_report(gemm_report(gemms, explain=explain))
