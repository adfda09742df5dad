"""``projector validate``."""

from projector.cli import output
from projector.cli.options import argument, command, option, refuse_idle


@command()
def validate(
    *,
    kind: str = argument(),
    file: str = argument("FILE.csv"),
    out: str | None = option("OUT.csv", "Write the table with the outcome of each row."),
    plot: str | None = option("FIGURE.png|.svg|.pdf", "Draw predictions, ratios and errors."),
    by: str = option(
        "COLUMN,...",
        "Columns of the table to group by; of source the name, of doubt whether there is one.",
        default="",
    ),
    normalise: str | None = option(
        "OUT.csv", "Only write the table with columns for what its words say, once for all."
    ),
    printer: output.Printer,
) -> None:
    """Project every row of a measurement table and compare.

    KIND is training_throughput, memory, gemm_measured, moe_measured, attention_measured,
    collectives_measured, serving_measured or param_counts. Rows that a kind does not cover, and
    rows that cannot be projected, are counted with a reason. The exit code is 0 whenever the file
    itself could be read.
    """
    if normalise is not None:
        refuse_idle("out", "plot", "by", needs="a command without --normalise")
        output.check_files(read=file, normalise=normalise)
        from projector.validate.totals import write_normalised

        written = write_normalised(kind, file, normalise)
        if printer.as_json:
            output.print_plain(written)
        added, rows = len(written["columns"]), written["rows"]
        printer.say(f"wrote {normalise}: {rows:,} rows, {added} new columns")
        return
    output.check_files(plot, read=file, out=out)
    output.announce_compilation(quiet=printer.quiet)
    from projector.report.terminal.validate import validation_report
    from projector.validate.totals import results_object, summary, write_results

    columns = [name.strip() for name in by.split(",") if name.strip()]
    validation = write_results(kind, file, out, columns)
    output.draw(plot, "figures.measurements.measurements_figure", validation)
    totals = summary(validation)
    result = results_object(validation, totals)
    printer.show(result, lambda _: validation_report(validation, totals))
