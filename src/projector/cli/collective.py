"""``projector collective``."""

import click

from projector.cli.job_options import output_options
from projector.cli.output import interpret_at_first, plain_envelope, print_json, print_report


@click.command("collective")
@click.argument("operation", metavar="OP")
@click.option(
    "--bytes", "size", default="1GiB", show_default=True, metavar="N", help="Buffer, e.g. 64MiB."
)
@click.option("--gpus", type=int, required=True, metavar="N", help="Ranks of the group.")
@click.option(
    "--device", default="h100", show_default=True, metavar="D", help="A shipped name or a file."
)
@click.option("--network", metavar="NAME", help="Cluster network; the device's own by default.")
@click.option(
    "--stride", default=1, show_default=True, metavar="N", help="Devices between two ranks."
)
@click.option(
    "--algorithm", metavar="A", help="The only algorithm, whether or not the library has it."
)
@click.option("--sweep", is_flag=True, help="Also show sizes from 1 KiB to 16 GiB.")
@click.option("--plot", metavar="FIGURE.png|.svg|.pdf", help="Draw bandwidths and times by size.")
@output_options
def command(
    operation: str,
    size: str,
    gpus: int,
    device: str,
    network: str | None,
    stride: int,
    algorithm: str | None,
    plot: str | None,
    *,
    sweep: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Time a collective with every algorithm that can serve it.

    OP is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv or another name
    that an unknown one is answered with. The buffer is what every rank holds (all_reduce), the
    gathered output, the input of one rank (reduce_scatter, all_to_all) or the message. The bus
    bandwidth is that of nccl-tests. hypercube is halving_doubling and single_shot is direct.
    """
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    interpret_at_first(quiet=quiet)
    from projector.config.formats.shape_table import byte_count
    from projector.single.collective import project_collective

    projection = project_collective(
        operation,
        byte_count("bytes", size),
        gpus,
        device=device,
        network=network,
        stride=stride,
        algorithm=algorithm,
        sweep=sweep,
    )
    if plot is not None:
        from projector.report.figures.collective import write_collective_figure

        write_collective_figure(projection, plot)
    if as_json:
        print_json({**plain_envelope(), **projection.to_dict()})
        return
    from projector.report.terminal.collective import collective_report

    print_report(collective_report(projection))
