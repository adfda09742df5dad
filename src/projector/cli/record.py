"""``projector record``."""

from typing import TYPE_CHECKING, Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import plain_envelope, print_json, print_report, print_warnings, say

if TYPE_CHECKING:
    from projector.measure.record import Record


@click.command("record")
@click.argument("files", nargs=-1, required=True, metavar="FILE.json...")
@click.option(
    "--config", metavar="JOB.yaml", help="Check that the record holds for a job; else exit code 2."
)
@click.option(
    "--tables", metavar="FOLDER", help="Write the tables that validate and calibrate read."
)
@click.option(
    "--merge", "merged", metavar="OUT.json", help="Write several records of one benchmark as one."
)
@output_options
def command(
    files: tuple[str, ...],
    config: str | None,
    tables: str | None,
    merged: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show records of measurements, and write them as tables.

    `projector performance --save-benchmark` writes a record. Records of the same benchmark job are
    merged: if two have the same operation, the later file counts. Records of different jobs are
    shown one after the other, and share their tables. docs/records.md says what a record holds.
    """
    from projector.measure.record import load_record, merge_by_job, merge_records
    from projector.measure.summary import summary_of
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
    if as_json:
        rows = {name: len(table.rows) for name, table in found.tables.items()}
        result: dict[str, Any] = {
            **plain_envelope(), "records": summaries, "tables": rows, "left_out": found.left_out,
            "output": written, "warnings": warnings,
        }  # fmt: skip
        print_json(result)
        return
    from projector.report.terminal.record import record_report, tables_report

    for summary in summaries:
        print_report(record_report(summary))
    print_report(tables_report(found))
    print_warnings(warnings, quiet=quiet)
    if not quiet:
        for path in written:
            say(f"wrote {path}")


def _check(records: "list[Record]", config: str) -> list[str]:
    from projector.config.load import load_job

    job = load_job(config)
    return [warning for record in records for warning in record.check(job)]
