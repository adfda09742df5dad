"""``projector benchmark``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    announce_compilation,
    plain_envelope,
    print_json,
    print_report,
    print_warnings,
    say,
)
from projector.cli.pictures import say_written
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.measure.bench.cases import BenchKind, Case
    from projector.measure.bench.session import Session
    from projector.validate.beside import Benchmark

Command = Callable[..., Any]


@click.group("benchmark")
def command() -> None:
    """Measure single operations on this machine, and show beside them what the model says.

    Operations run on torch (extra `torch`) in a process of their own: on a GPU if torch sees one,
    of NVIDIA or AMD, else on the CPU. `--out` writes a table that `projector validate` and
    `projector calibrate` read. The same command again continues a list that was interrupted.
    docs/benchmark.md says how. To measure the layers of a job, see `projector performance
    --benchmark-gpus`.
    """


_DTYPE = click.option(
    "--dtype", "dtypes", default="bf16", show_default=True, metavar="T,T,...", help="Matrix types."
)
_CSV = click.option("--csv", "table", metavar="FILE.csv", help="List of shapes, one a line.")

_COMMON = (
    click.option(
        "--device",
        metavar="NAME",
        help="Profile of the model to compare with, a shipped name or a file. Without it, that of "
        "the GPU, if it ships.",
    ),
    click.option(
        "--backend",
        default="auto",
        show_default=True,
        metavar="auto|cpu|cuda",
        help="What runs it; cuda is torch's name for GPUs of both vendors.",
    ),
    click.option("--out", metavar="OUT.csv", help="Table to write while measuring, or to go on."),
    click.option("--overwrite", is_flag=True, help="Drop the rows that --out has already."),
    click.option("--plot", metavar="FIGURE.png|.svg|.pdf", help="Draw measured and modelled."),
    click.option(
        "--repeats", default=11, show_default=True, metavar="N", help="Timed runs of each case."
    ),
    click.option("--threads", type=int, metavar="N", help="Threads of a CPU; all by default."),
    click.option(
        "--lock-clocks",
        "lock_mhz",
        type=float,
        metavar="MHZ",
        help="Lock the clock of the GPU while measuring. Takes an administrator's rights.",
    ),
    click.option(
        "--timeout-s",
        default=600.0,
        show_default=True,
        metavar="S",
        help="Longest time of one process of up to 16 cases.",
    ),
)


def _common(command: Command) -> Command:
    """Add the options that all lists have."""
    for option in reversed(_COMMON):
        command = option(command)
    return output_options(command)


@command.command("gemm")
@_CSV
@click.option("--sizes", default="", metavar="SIZES", help="Of each of M, N, K not given.")
@click.option("--m", default="", metavar="SIZES", help="Rows of A and C.")
@click.option("--n", default="", metavar="SIZES", help="Columns of B and C.")
@click.option("--k", default="", metavar="SIZES", help="Columns of A, rows of B.")
@_DTYPE
@click.option("--batch", default=1, show_default=True, metavar="N", help="Problems in one launch.")
@click.option("--groups", default=0, metavar="N", help="Groups of a grouped GEMM, M rows each.")
@click.option("--layout", default="tn", show_default=True, metavar="tn|nn|nt", help="A, then B.")
@click.option("--pad/--no-pad", default=True, show_default=True, help="Pad extents to 16 bytes.")
@_common
def gemm(
    table: str | None,
    sizes: str,
    m: str,
    n: str,
    k: str,
    dtypes: str,
    *,
    batch: int,
    groups: int,
    layout: str,
    pad: bool,
    **options: Any,
) -> None:
    """Measure matrix multiplications C[M, N] = A[M, K] @ B[K, N].

    A list has the columns m, n and k, and batch, groups and dtype where rows differ from the
    options. Without one, --m, --n and --k are swept, and --sizes stands for those that are not
    given. Sizes are N,N,..., LOW:HIGH (doubling), LOW:HIGH:xF or LOW:HIGH:STEP. Rows go into a
    table gemm_measured.
    """
    _check_plot(options["plot"])
    _check_list(table, options["out"])
    from projector.measure.bench.lists import GemmOptions, gemm_list

    asked = GemmOptions(table, sizes, m, n, k, dtypes, batch, groups, layout, pad)
    _run("gemm", gemm_list(asked), **options)


@command.command("attention")
@_CSV
@click.option("--sizes", default="", metavar="SIZES", help="Lengths: 512:16384, ...")
@click.option("--batch", default=1, show_default=True, metavar="N", help="Sequences.")
@click.option("--heads", default=32, show_default=True, metavar="N", help="Query heads.")
@click.option("--kv-heads", type=int, metavar="N", help="Key heads; the query heads by default.")
@click.option("--head-dim", default=128, show_default=True, metavar="N", help="Width of a key.")
@click.option("--v-head-dim", type=int, metavar="N", help="Width of a value; head-dim by default.")
@click.option("--window", default=0, metavar="N", help="Keys that a query sees; 0: all.")
@click.option("--causal/--full", default=True, help="Whether later keys are masked.")
@click.option(
    "--pass", "passes", default="fwd,bwd", show_default=True, metavar="P,P", help="fwd, bwd."
)
@click.option(
    "--kernel",
    default="flash",
    show_default=True,
    metavar="flash|sdpa|math",
    help="Kernel of torch: its flash one, its own choice, or plain GEMMs.",
)
@_DTYPE
@_common
def attention(table: str | None, sizes: str, dtypes: str, **options: Any) -> None:
    """Measure attention, forward and backward apart.

    A list has the columns batch, heads and seq, and kv_heads, head_dim, v_head_dim, window and
    dtype where rows differ from the options; `projector attention` reads the same lists. Rows go
    into a table attention_measured.
    """
    _check_plot(options["plot"])
    _check_list(table, options["out"])
    from projector.measure.bench.lists import AttentionOptions, attention_list

    names = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "window", "causal", "passes")
    own = {name: options.pop(name) for name in names}
    kernel = options.pop("kernel")
    asked = AttentionOptions(table, sizes, dtypes=dtypes, backend=kernel, **own)
    _run("attention", attention_list(asked), **options)


@command.command("collective")
@click.argument("operations", nargs=-1, metavar="[OP]...")
@click.option("--ranks", default=2, show_default=True, metavar="N", help="Processes, one a GPU.")
@click.option(
    "--sizes", default="1KiB:64MiB:x4", show_default=True, metavar="SIZES", help="Whole buffers."
)
@_common
def collective(operations: tuple[str, ...], ranks: int, sizes: str, **options: Any) -> None:
    """Measure collectives among the GPUs of this machine, or among processes on a CPU.

    OP is all_reduce, all_gather, reduce_scatter, all_to_all or send_recv; all of them by default.
    The time is that of the slowest rank. Sizes are those of whole buffers, as `projector
    collective` counts them. Rows go into a table collectives_measured.
    """
    _check_plot(options["plot"])
    from projector.measure.bench.cases import MEASURED_COLLECTIVES, collective_cases
    from projector.measure.bench.sizes import read_sizes, whole_bytes

    read = read_sizes("sizes", sizes, whole_bytes)
    cases = collective_cases(operations or MEASURED_COLLECTIVES, read, ranks)
    _run("collective", cases, ranks=ranks, **options)


@command.command("memory")
@click.option(
    "--sizes",
    default="64KiB:1GiB",
    show_default=True,
    metavar="SIZES",
    help="Bytes that a copy reads and writes together.",
)
@_common
def memory(sizes: str, **options: Any) -> None:
    """Measure copies within the memory of the device, from caches to memory.

    A copy of N bytes reads N/2 and writes N/2. The largest sizes give the rate of the memory, the
    smaller ones those of the caches.
    """
    _check_plot(options["plot"])
    from projector.measure.bench.cases import copy_cases
    from projector.measure.bench.sizes import read_sizes, whole_bytes

    _run("memory", copy_cases(read_sizes("sizes", sizes, whole_bytes)), **options)


@command.command("clock")
@_DTYPE
@click.option("--seconds", default=5.0, show_default=True, metavar="S", help="Length of the load.")
@_common
def clock(dtypes: str, seconds: float, **options: Any) -> None:
    """Measure the clock, power and rate that the device sustains under GEMMs of each type."""
    _check_plot(options["plot"])
    from projector.measure.bench.cases import clock_cases
    from projector.measure.bench.lists import types_of

    _run("clock", clock_cases(types_of(dtypes), seconds), **options)


def _check_plot(plot: str | None) -> None:
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)


def _check_list(table: str | None, out: str | None) -> None:
    """Refuse to write results over the list that they are measured from."""
    if table is not None and out is not None and Path(table).resolve() == Path(out).resolve():
        msg = f"out: {out} is the list that is measured; name another file"
        raise ConfigError(msg, key="out", value=out, allowed="another file")


def _run(
    kind: "BenchKind",
    cases: "list[Case]",
    *,
    device: str | None,
    out: str | None,
    plot: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure a list, and show what is there, also of one that is interrupted."""
    from projector.measure.bench.session import begin, settings_of
    from projector.validate.beside import benchmark_of

    overwrite, lock_mhz = options.pop("overwrite"), options.pop("lock_mhz")
    session = begin(
        kind,
        cases,
        device=device,
        out=out,
        overwrite=overwrite,
        settings=settings_of(**options),
        lock_mhz=lock_mhz,
        say=None if quiet else say,
    )
    print_warnings(session.warnings, quiet=quiet)
    warned = len(session.warnings)
    try:
        session.go()
    except BaseException:
        _stopped(session, out, quiet=quiet or as_json)
        raise
    print_warnings(session.warnings[warned:], quiet=quiet)
    if session.device:
        announce_compilation(quiet=quiet)
    benchmark = benchmark_of(session)
    if plot is not None:
        from projector.report.figures.benchmark import write_benchmark_figure

        write_benchmark_figure(benchmark, plot)
        say_written(plot, quiet=quiet)
    if out is not None:
        say_written(out, quiet=quiet)
    if as_json:
        print_json({**plain_envelope(), **benchmark.to_dict(), "warnings": session.warnings})
        return
    _show(benchmark)


def _show(benchmark: "Benchmark") -> None:
    from projector.report.terminal.benchmark import benchmark_report

    print_report(benchmark_report(benchmark))


def _stopped(session: "Session", out: str | None, *, quiet: bool) -> None:
    """Show what was measured until a list was interrupted, and how it is continued."""
    from projector.validate.beside import benchmark_of

    measuring = session.measuring
    left, total = len(measuring.todo()), len(measuring.cases)
    if total > left and not quiet:
        _show(benchmark_of(session, model=False))
    kept = f"kept in {out}; the same command continues" if out else "lost without --out"
    say(f"stopped: {total - left} of {total} measured, {kept}")
