"""Commands that measure: ``benchmark`` on this machine, and ``record`` of what was measured."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from projector.cli import output
from projector.cli.options import argument, command, flag, option

if TYPE_CHECKING:
    from projector.measure.bench.cases import BenchKind, Case
    from projector.measure.bench.session import Session
    from projector.measure.record import Record


@click.group("benchmark")
def benchmark() -> None:
    """Measure single operations on this machine, and show beside them what the model says.

    Operations run on torch (extra `torch`) in a process of their own: on a GPU if torch sees one,
    of NVIDIA or AMD, else on the CPU. `--out` writes a table that `projector validate` and
    `projector calibrate` read. The same command again continues a list that was interrupted.
    docs/benchmark.md says how. To measure the layers of a job, see `projector performance
    --benchmark-gpus`.
    """


_DTYPE = option("T,T,...", "Matrix types.", shown="bf16", names="--dtype")
_CSV = option("FILE.csv", "List of shapes, one a line.", names="--csv")


@dataclass(frozen=True)
class _Common:
    device: str | None = option(
        "NAME",
        "Profile of the model to compare with, a shipped name or a file. Without it, that of "
        "the GPU, if it ships.",
    )
    backend: str = option(
        "auto|cpu|cuda",
        "What runs it; cuda is torch's name for GPUs of both vendors.",
        shown="auto",
    )
    out: str | None = option("OUT.csv", "Table to write while measuring, or to go on.")
    overwrite: bool = flag("Drop the rows that --out has already.")
    plot: str | None = option("FIGURE.png|.svg|.pdf", "Draw measured and modelled.")
    repeats: int = option("N", "Timed runs of each case.", shown=11)
    threads: int | None = option("N", "Threads of a CPU; all by default.")
    lock_mhz: float | None = option(
        "MHZ",
        "Lock the clock of the GPU while measuring. Takes an administrator's rights.",
        names="--lock-clocks",
    )
    timeout_s: float = option(
        "S", "Longest time of up to 16 cases, measured together.", shown=600.0
    )

    def check(self, table: str | None = None) -> None:
        """Refuse a figure that could not be written, and results over the list that is measured."""
        output.check_files(self.plot, read=table, out=self.out)


@command(benchmark)
def gemm(
    *,
    table: str | None = _CSV,
    sizes: str = option("SIZES", "Of each of M, N, K not given.", default=""),
    m: str = option("SIZES", "Rows of A and C.", default=""),
    n: str = option("SIZES", "Columns of B and C.", default=""),
    k: str = option("SIZES", "Columns of A, rows of B.", default=""),
    dtypes: str = _DTYPE,
    batch: int = option("N", "Problems in one launch.", shown=1),
    groups: int = option("N", "Groups of a grouped GEMM, M rows each.", default=0),
    layout: str = option("tn|nn|nt", "A, then B.", shown="tn"),
    pad: bool = option(None, "Pad extents to 16 bytes.", shown=True, names="--pad/--no-pad"),
    printer: output.Printer,
    common: _Common,
) -> None:
    """Measure matrix multiplications C[M, N] = A[M, K] @ B[K, N].

    A list has the columns m, n and k, and batch, groups and dtype where rows differ from the
    options. Without one, --m, --n and --k are swept, and --sizes stands for those that are not
    given. Sizes are N,N,..., LOW:HIGH (doubling), LOW:HIGH:xF or LOW:HIGH:STEP. Rows go into a
    table gemm_measured.
    """
    common.check(table)
    from projector.measure.bench.lists import GemmOptions, gemm_list

    asked = GemmOptions(table, sizes, m, n, k, dtypes, batch, groups, layout, pad)
    _run("gemm", gemm_list(asked), common, printer)


@command(benchmark)
def attention(
    *,
    table: str | None = _CSV,
    sizes: str = option("SIZES", "Lengths: 512:16384, ...", default=""),
    batch: int = option("N", "Sequences.", shown=1),
    heads: int = option("N", "Query heads.", shown=32),
    kv_heads: int | None = option("N", "Key heads; the query heads by default."),
    head_dim: int = option("N", "Width of a key.", shown=128),
    v_head_dim: int | None = option("N", "Width of a value; head-dim by default."),
    window: int = option("N", "Keys that a query sees; 0: all.", default=0),
    causal: bool = option(
        None, "Whether later keys are masked.", default=True, names="--causal/--full"
    ),
    passes: str = option("P,P", "fwd, bwd.", shown="fwd,bwd", names="--pass"),
    kernel: str = option(
        "flash|cudnn|sdpa|math",
        "Kernel of torch: its flash one, that of cuDNN, its own choice, or plain GEMMs.",
        shown="flash",
    ),
    dtypes: str = _DTYPE,
    printer: output.Printer,
    common: _Common,
) -> None:
    """Measure attention, forward and backward apart.

    A list has the columns batch, heads and seq, and kv_heads, head_dim, v_head_dim, window and
    dtype where rows differ from the options; `projector attention` reads the same lists. Rows go
    into a table attention_measured.
    """
    common.check(table)
    from projector.measure.bench.lists import AttentionOptions, attention_list

    asked = AttentionOptions(
        table, sizes, batch, heads, kv_heads, head_dim, v_head_dim, window, causal, dtypes, passes,
        kernel,
    )  # fmt: skip
    _run("attention", attention_list(asked), common, printer)


@command(benchmark)
def collective(
    *,
    operations: tuple[str, ...] = argument("[OP]..."),
    ranks: int = option("N", "Processes, one a GPU.", shown=2),
    sizes: str = option("SIZES", "Whole buffers.", shown="1KiB:64MiB:x4"),
    printer: output.Printer,
    common: _Common,
) -> None:
    """Measure collectives among the GPUs of this machine, or among processes on a CPU.

    OP is all_reduce, all_gather, reduce_scatter, all_to_all or send_recv; all of them by default.
    The time is that of the slowest rank. Sizes are those of whole buffers, as `projector
    collective` counts them. Rows go into a table collectives_measured.
    """
    common.check()
    from projector.measure.bench.cases import MEASURED_COLLECTIVES, collective_cases
    from projector.measure.bench.lists import read_sizes, whole_bytes

    read = read_sizes("sizes", sizes, whole_bytes)
    cases = collective_cases(operations or MEASURED_COLLECTIVES, read, ranks)
    _run("collective", cases, common, printer, ranks=ranks)


@command(benchmark)
def memory(
    *,
    sizes: str = option(
        "SIZES", "Bytes that a copy reads and writes together.", shown="64KiB:1GiB"
    ),
    printer: output.Printer,
    common: _Common,
) -> None:
    """Measure copies within the memory of the device, from caches to memory.

    A copy of N bytes reads N/2 and writes N/2. The largest sizes give the rate of the memory, the
    smaller ones those of the caches.
    """
    common.check()
    from projector.measure.bench.cases import copy_cases
    from projector.measure.bench.lists import read_sizes, whole_bytes

    _run("memory", copy_cases(read_sizes("sizes", sizes, whole_bytes)), common, printer)


@command(benchmark)
def clock(
    *,
    dtypes: str = _DTYPE,
    seconds: float = option("S", "Length of the load.", shown=5.0),
    printer: output.Printer,
    common: _Common,
) -> None:
    """Measure the clock, power and rate that the device sustains under GEMMs of each type."""
    common.check()
    from projector.measure.bench.cases import clock_cases
    from projector.measure.bench.lists import types_of

    _run("clock", clock_cases(types_of(dtypes), seconds), common, printer)


def _run(
    kind: "BenchKind",
    cases: "list[Case]",
    common: _Common,
    printer: output.Printer,
    *,
    ranks: int = 1,
) -> None:
    """Measure a list, and show what is there, also of one that is interrupted."""
    from projector.measure.bench.session import begin, settings_of
    from projector.validate.beside import benchmark_of

    worker = output.keep_worker()
    session = begin(
        kind,
        cases,
        device=common.device,
        out=common.out,
        overwrite=common.overwrite,
        settings=settings_of(
            backend=common.backend,
            ranks=ranks,
            threads=common.threads,
            repeats=common.repeats,
            timeout_s=common.timeout_s,
        ),
        lock_mhz=common.lock_mhz,
        say=printer.progress,
    )
    printer.warn(session.warnings)
    warned = len(session.warnings)
    try:
        session.go()
    except BaseException:
        _stopped(session, common.out, quiet=printer.quiet or printer.as_json)
        raise
    worker.dismiss()
    printer.warn(session.warnings[warned:])
    if session.device:
        output.announce_compilation(quiet=printer.quiet)
    benchmark = benchmark_of(session)
    from projector.report.terminal.measure import benchmark_report

    output.draw(common.plot, "figures.benchmark.benchmark_figure", benchmark)
    printer.wrote(common.plot, common.out)
    shown = {**benchmark.to_dict(), "warnings": session.warnings}
    printer.show(shown, lambda _: benchmark_report(benchmark))


def _stopped(session: "Session", out: str | None, *, quiet: bool) -> None:
    measuring = session.measuring
    left, total = len(measuring.todo()), len(measuring.cases)
    if total > left and not quiet:
        from projector.report.terminal.measure import benchmark_report
        from projector.validate.beside import benchmark_of

        output.print_report(benchmark_report(benchmark_of(session, model=False)))
    kept = f"kept in {out}; the same command continues" if out else "lost without --out"
    output.say(f"stopped: {total - left} of {total} measured, {kept}")


@command()
def record(
    *,
    files: tuple[str, ...] = argument("FILE.json...", required=True),
    config: str | None = option(
        "JOB.yaml", "Check that the record holds for a job; else exit code 2."
    ),
    tables: str | None = option("FOLDER", "Write the tables that validate and calibrate read."),
    merged: str | None = option(
        "OUT.json", "Write several records of one benchmark as one.", names="--merge"
    ),
    printer: output.Printer,
) -> None:
    """Show records of measurements, and write them as tables.

    `projector performance --save-benchmark` writes a record. Records of the same benchmark job are
    merged: if two have the same operation, the later file counts. Records of different jobs are
    shown one after the other, and share their tables. docs/records.md says what a record holds.
    """
    from projector.measure.record import load_record, merge_by_job, merge_records, summary_of
    from projector.measure.tables import joined, tables_of, write_tables

    loaded = [load_record(file) for file in files]
    records = merge_by_job(loaded) if merged is None else [merge_records(loaded)]
    warnings = [] if config is None else _check(records, config)
    found = joined([tables_of(record) for record in records])
    written = [str(path) for path in write_tables(found, tables)] if tables else []
    if merged is not None:
        records[0].save(merged)
        written.append(merged)
    summaries = [summary_of(record) for record in records]
    from projector.report.terminal.measure import record_report, tables_report

    shown = {
        "records": summaries,
        "tables": {name: len(table.rows) for name, table in found.tables.items()},
        "left_out": found.left_out,
        "output": written,
        "warnings": warnings,
    }
    parts = [part for summary in summaries for part in record_report(summary)]
    printer.show(shown, lambda _: [*parts, *tables_report(found)], warnings, *written)


def _check(records: "list[Record]", config: str) -> list[str]:
    from projector.config.load import load_job

    job = load_job(config)
    return [warning for record in records for warning in record.check(job)]
