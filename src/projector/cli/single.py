"""Commands that time one kernel by itself: ``gemm``, ``attention`` and ``collective``."""

from dataclasses import asdict, dataclass

from projector.cli.options import argument, command, flag, option
from projector.cli.output import Printer, check_files, draw, interpret_at_first, write_csv


@dataclass(frozen=True)
class _Gemm:
    gpu: str = option(None, "Device: a shipped name or a file.", shown="h100")
    dtype: str = option(None, "Type of A and B.", shown="bf16")
    batch: int = option(None, "Equal problems in one launch.", shown=1)
    out_bytes: float = option(None, "Bytes of an element of C.", shown=2.0)
    layout: str = option(None, "nn, nt, tn or tt: A, then B.", shown="tn")
    model: str = option(None, "tile, ws_persistent or sol.", shown="tile")
    library: str = option(None, "GEMM library of the device.", shown="default")
    run: str = option(None, "training, loaded or short.", shown="training")
    tile: str | None = option(None, "Tile to use: 128x256, or with its cluster 128x256:2x1.")
    clock_mhz: float | None = option(None, "Lock the clock.")
    l2_hit_rate: float = option(None, "L2 hit rate of ws_persistent.", shown=0.0)


@command()
def gemm(
    *,
    extents: tuple[str, ...] = argument("[M N K]"),
    table: str | None = option(
        "FILE.csv", "Shapes: m, n, k, batch, library; measured_us to compare.", names="--csv"
    ),
    products: _Gemm,
    explain: bool = flag("Show every term and what the time is made of."),
    out: str | None = option("FILE.csv", "Write every shape with its time and terms."),
    plot: str | None = option("FIGURE.png|.svg|.pdf", "Draw the roofline, and the S-curve."),
    printer: Printer,
) -> None:
    """Time C[M, N] = A[M, K] @ B[K, N] on one device.

    Layouts name A and then B as BLAS does for column-major callers: t where K is contiguous in A,
    n where K is contiguous in B. The forward of a linear layer has tn, its input gradient nn and
    its weight gradient nt. Types of 8 bits or fewer need K to be contiguous in both; other layouts
    pay for a transposed copy.
    """
    check_files(plot, read=table, out=out)
    interpret_at_first(quiet=printer.quiet)
    from projector.report.terminal.single import gemm_report
    from projector.single.gemm import list_gemms

    gemms = list_gemms(extents, table, **asdict(products))
    write_csv(gemms, out, printer)
    draw(plot, "figures.roofline.gemm_figure", gemms)
    printer.show(gemms.to_dict(), lambda _: gemm_report(gemms, explain=explain))


@dataclass(frozen=True)
class _Attention:
    kv_heads: int | None = option("N", "Key heads; the query heads by default.")
    head_dim: int = option("N", "Width of a query and key.", default=128)
    v_head_dim: int | None = option("N", "Width of a value; head-dim by default.")
    window: int = option("N", "Keys that a query sees; 0: all.", default=0)
    causal: bool = option(
        None, "Whether later keys are masked.", default=True, names="--causal/--full"
    )
    backward: bool = flag("Time the backward instead of the forward.")
    gpu: str = option("NAME", "Device: a shipped name or a file.", default="h100")
    dtype: str = option("TYPE", "Type of Q, K and V.", default="bf16")
    impl: str = option("NAME", "Implementation by name.", default="default")
    clock_mhz: float | None = option("F", "Clock; replaces that of training.")
    run: str = option(None, "training, loaded or short.", shown="training")


@command()
def attention(
    *,
    shape: tuple[str, ...] = argument("[BATCH HEADS SEQ [SEQ_KV]]"),
    table: str | None = option("FILE", "Shapes, one a line.", names="--csv"),
    shapes: _Attention,
    packed: bool = flag("All shapes are documents of one kernel (varlen)."),
    explain: bool = flag("Show every term and what limits the time."),
    plot: str | None = option("FIGURE.png|.svg|.pdf", "Draw rates by length and a roofline."),
    printer: Printer,
) -> None:
    """Project attention kernels of given shapes.

    A shape is BATCH HEADS SEQ, with SEQ_KV where there are more keys than queries: a chunk or a
    context-parallel slice, whose queries are the last ones. A CSV file has the columns batch,
    heads and seq, and seq_kv, kv_heads, head_dim, v_head_dim and window where they differ from
    the options. ``projector hardware NAME --full`` lists the implementations.
    """
    check_files(plot)
    interpret_at_first(quiet=printer.quiet)
    from projector.report.terminal.single import attention_report, read_shapes
    from projector.single.attention import packed_time_s, project_attention

    columns = read_shapes(shape, table, asdict(shapes))
    projection = project_attention(**columns)
    together_s = packed_time_s(projection) if packed else None
    draw(plot, "figures.roofline.attention_figure", projection, columns)
    result = {**projection.to_dict(), "warnings": list(projection.warnings)}
    result["uncertainty"] = projection.uncertainty
    if together_s is not None:
        result["time_ms"] = together_s * 1e3
    printer.show(
        result,
        lambda _: attention_report(projection, explain=explain, packed_s=together_s),
        projection.warnings,
    )


@command()
def collective(
    *,
    operation: str = argument("OP"),
    size: str = option("N", "Buffer, e.g. 64MiB.", shown="1GiB", names="--bytes"),
    gpus: int = option("N", "Ranks of the group.", required=True),
    device: str = option("D", "A shipped name or a file.", shown="h100"),
    network: str | None = option("NAME", "Cluster network; the device's own by default."),
    stride: int = option("N", "Devices between two ranks.", shown=1),
    algorithm: str | None = option("A", "The only algorithm, whether or not the library has it."),
    mpi: bool = flag("Also time it by MPI, in a node whose file has its messages (mi250x)."),
    sweep: bool = flag("Also show sizes from 1 KiB to 16 GiB."),
    plot: str | None = option("FIGURE.png|.svg|.pdf", "Draw bandwidths and times by size."),
    printer: Printer,
) -> None:
    """Time a collective with every algorithm that can serve it.

    OP is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv or another name
    that an unknown one is answered with. The buffer is what every rank holds (all_reduce), the
    gathered output, the input of one rank (reduce_scatter, all_to_all) or the message. The bus
    bandwidth is that of nccl-tests. hypercube is halving_doubling and single_shot is direct.
    """
    check_files(plot)
    interpret_at_first(quiet=printer.quiet)
    from projector.config.formats.shape_table import byte_count
    from projector.report.terminal.network import collective_report
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
    draw(plot, "figures.collective.collective_figure", projection)
    told = projection.to_dict()
    if mpi:
        told["mpi_us"] = projection.mpi_us()
    printer.show(told, lambda _: collective_report(projection, told.get("mpi_us")))
