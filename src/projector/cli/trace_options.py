"""Options that the commands on traces share, and the trace that they name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from projector.cli.job_options import output_options
from projector.cli.output import print_json, print_report, print_warnings, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from projector.trace.analysis import TraceAnalysis, TraceResult

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A trace as the command line describes it."""

    paths: tuple[str, ...]
    counters: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    ranks: str | None = None
    iterations: str | None = None
    skip_warmup: int = 0
    phases: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    parquet: str | None = None
    as_json: bool = False
    quiet: bool = False

    def load(self) -> "TraceAnalysis":
        """Read the trace, after everything else that the command line says was checked."""
        from projector.report.terminal.progress import ReadingProgress
        from projector.trace.analysis import load_trace
        from projector.trace.select import Selection, numbers

        if self.parquet is not None:
            from projector.files import check_place

            check_place(self.parquet, key="parquet")
        selection = Selection(
            ranks=None if self.ranks is None else numbers(self.ranks, "ranks"),
            iterations=None if self.iterations is None else numbers(self.iterations, "iterations"),
            skip_warmup=self.skip_warmup,
            phases=self.phases or None,
            types=self.types or None,
        )
        with ReadingProgress(quiet=self.quiet) as progress:
            analysis = load_trace(
                *self.paths,
                counters=self.counters,
                samples=self.samples,
                ranks=selection.ranks,
                progress=progress,
            )
        return analysis.with_selection(selection)

    def show(
        self,
        result: "TraceResult",
        report: "Callable[[dict[str, Any]], list[RenderableType]]",
        table: "TraceAnalysis | None" = None,
    ) -> None:
        """Print a result as JSON or as a report, with its warnings on standard error.

        The table of ``--parquet``, by default the result, is written first: where that fails,
        standard output has the error alone.
        """
        if self.parquet is not None:
            (result if table is None else table).write_parquet(self.parquet)
        if self.as_json:
            print_json(result.to_dict())
            return
        print_report(report(result.to_dict()))
        print_warnings(result.warnings, quiet=self.quiet)
        self.tell_written()

    def write_rows(self, rows: "Sequence[Mapping[str, Any]]") -> None:
        """Write rows as the table of ``--parquet``, if it was asked for."""
        if self.parquet is not None:
            from projector.trace.parquet import row_table, write_parquet

            write_parquet(row_table(rows), self.parquet)

    def tell_written(self) -> None:
        """Name the table of ``--parquet`` on standard error."""
        if self.parquet is not None and not self.quiet and not self.as_json:
            say(f"wrote {self.parquet}")


_PATHS = click.argument("paths", nargs=-1, required=True, metavar="PATH...")

_READING = (
    click.option(
        "--counters",
        multiple=True,
        metavar="FILE",
        help="Hardware counters of a second run of the same program, for gap and compare; may be "
        "repeated.",
    ),
    click.option(
        "--samples",
        multiple=True,
        metavar="FILE",
        help="Cores, clocks or power, sampled beside the run, for summary, plot, gap and compare; "
        "may be repeated.",
    ),
)

_TIME = (
    click.option("--ranks", metavar="N,N-N", help="Ranks to look at; all by default."),
    click.option("--iterations", metavar="N,N-N", help="Iterations to look at; all by default."),
    click.option(
        "--skip-warmup",
        type=int,
        default=0,
        metavar="N",
        help="Leave out the first N iterations, and what lies outside iterations.",
    ),
)

_KIND = (
    click.option(
        "--phase",
        "phases",
        multiple=True,
        metavar="NAME",
        help="forward, backward, optimizer or other; may be repeated.",
    ),
    click.option(
        "--type",
        "types",
        multiple=True,
        metavar="NAME",
        help="gemm, attention, vector (other computing), communication or copy; may be repeated.",
    ),
)


def _parquet(what: str) -> Callable[[Any], Any]:
    return click.option("--parquet", metavar="FILE", help=f"Write {what} as a Parquet file.")


def trace_options(command: Command) -> Command:
    """Add the paths and what says which ranks and iterations count."""
    return _add(command, (_PATHS, *_READING, *_TIME, _parquet("every activity")))


def row_options(command: Command) -> Command:
    """Add the same, with phases and types, to a command whose rows they choose."""
    return _add(command, (_PATHS, *_READING, *_TIME, *_KIND, _parquet("the rows")))


def result_options(command: Command) -> Command:
    """Add the same as `trace_options` to a command whose rows are its own."""
    return _add(command, (_PATHS, *_READING, *_TIME, _parquet("the rows")))


def picture_options(command: Command) -> Command:
    """Add the same without the table, to a command that draws the rows they choose."""
    return _add(command, (_PATHS, *_READING, *_TIME, *_KIND))


def _add(command: Command, options: tuple[Callable[[Any], Any], ...]) -> Command:
    command = output_options(command)
    for option in reversed(options):
        command = option(command)
    return command
