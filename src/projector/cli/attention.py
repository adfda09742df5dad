"""``projector attention``."""

from typing import Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    interpret_at_first,
    plain_envelope,
    print_json,
    print_report,
    print_warnings,
)


@click.command("attention")
@click.argument("shape", nargs=-1, metavar="[BATCH HEADS SEQ [SEQ_KV]]")
@click.option("--csv", "table", metavar="FILE", help="Shapes, one a line.")
@click.option("--kv-heads", type=int, metavar="N", help="Key heads; the query heads by default.")
@click.option("--head-dim", type=int, default=128, metavar="N", help="Width of a query and key.")
@click.option("--v-head-dim", type=int, metavar="N", help="Width of a value; head-dim by default.")
@click.option("--window", type=int, default=0, metavar="N", help="Keys that a query sees; 0: all.")
@click.option("--causal/--full", default=True, help="Whether later keys are masked.")
@click.option("--backward", is_flag=True, help="Time the backward instead of the forward.")
@click.option("--gpu", default="h100", metavar="NAME", help="Device: a shipped name or a file.")
@click.option("--dtype", default="bf16", metavar="TYPE", help="Type of Q, K and V.")
@click.option("--impl", default="default", metavar="NAME", help="Implementation by name.")
@click.option("--clock-mhz", type=float, metavar="F", help="Clock; replaces that of training.")
@click.option("--run", default="training", show_default=True, help="training, loaded or short.")
@click.option("--packed", is_flag=True, help="All shapes are documents of one kernel (varlen).")
@click.option("--explain", is_flag=True, help="Show every term and what limits the time.")
@click.option("--plot", metavar="FIGURE.png|.svg|.pdf", help="Draw rates by length and a roofline.")
@output_options
def command(
    shape: tuple[str, ...],
    table: str | None,
    plot: str | None,
    explain: bool,
    packed: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Project attention kernels of given shapes.

    A shape is BATCH HEADS SEQ, with SEQ_KV where there are more keys than queries: a chunk or a
    context-parallel slice, whose queries are the last ones. A CSV file has the columns batch,
    heads and seq, and seq_kv, kv_heads, head_dim, v_head_dim and window where they differ from
    the options. ``projector hardware NAME`` lists the implementations.
    """
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    interpret_at_first(quiet=quiet)
    from projector.report.terminal.attention import attention_report, read_shapes

    columns = read_shapes(shape, table, options)
    from projector.single.attention import packed_time_s, project_attention

    projection = project_attention(**columns)
    together_s = packed_time_s(projection) if packed else None
    if plot is not None:
        from projector.report.figures.attention import write_attention_figure

        write_attention_figure(projection, columns, plot)
    if as_json:
        result = {**plain_envelope(), **projection.to_dict(), "warnings": list(projection.warnings)}
        result["uncertainty"] = projection.uncertainty
        if together_s is not None:
            result["time_ms"] = together_s * 1e3
        print_json(result)
        return
    print_report(attention_report(projection, explain=explain, packed_s=together_s))
    print_warnings(projection.warnings, quiet=quiet)
