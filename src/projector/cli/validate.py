"""``projector validate``."""

from typing import Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import announce_compilation, plain_envelope, print_json, print_report


@click.command("validate")
@click.argument("kind")
@click.argument("file", metavar="FILE.csv")
@click.option("--out", metavar="OUT.csv", help="Write the table with the outcome of each row.")
@click.option("--plot", metavar="FIGURE.png|.svg|.pdf", help="Draw predictions, ratios and errors.")
@click.option(
    "--by",
    metavar="COLUMN,...",
    default="",
    help="Columns of the table to group by; of source the name, of doubt whether there is one.",
)
@output_options
def command(
    kind: str, file: str, out: str | None, plot: str | None, by: str, as_json: bool, quiet: bool
) -> None:
    """Project every row of a measurement table and compare.

    KIND is training_throughput, memory, gemm_measured, moe_measured, attention_measured,
    collectives_measured, serving_measured or param_counts. Rows that a kind does not cover, and
    rows that cannot be projected, are counted with a reason. The exit code is 0 whenever the file
    itself could be read.
    """
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    announce_compilation(quiet=quiet)
    from projector.validate.totals import results_object, summary, write_results

    columns = [name.strip() for name in by.split(",") if name.strip()]
    validation = write_results(kind, file, out, columns)
    if plot is not None:
        from projector.report.figures.measurements import write_figure

        write_figure(validation, plot)
    totals = summary(validation)
    if as_json:
        result: dict[str, Any] = {**plain_envelope(), **results_object(validation, totals)}
        print_json(result)
        return
    from projector.report.terminal.validate import validation_report

    print_report(validation_report(validation, totals))
