"""``projector init``."""

from pathlib import Path

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    interpret_at_first,
    plain_envelope,
    print_json,
    print_warnings,
    say,
    write,
)
from projector.errors import ConfigError


@click.command("init")
@click.option("--output", metavar="FILE", help="File to write; standard output when left out.")
@click.option("--model", default="llama3.1_8b", show_default=True, metavar="NAME")
@click.option("--device", default="mi300x", show_default=True, metavar="NAME")
@click.option(
    "--nodes", type=int, metavar="N", help="Hosts; left out, the least on which a layout fits."
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@output_options
def command(
    output: str | None,
    model: str,
    device: str,
    nodes: int | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a commented job file: every field explained, with its default.

    The file can be projected as it is. Its job fits: where the default layout does not, a small
    search chooses one that does. If none does on --nodes, a warning says how many would do.
    """
    interpret_at_first(quiet=quiet)
    from projector.report.job_file import fitting_job_file

    text, note = fitting_job_file(model, device, nodes)
    if output is not None:
        _write(Path(output), text, force=force)
        if not quiet:
            say(f"wrote {output}; next: projector performance --config {output}")
    if as_json:
        warnings = {"warnings": [note] if note else []}
        print_json({**plain_envelope(), **warnings, "output": output, "text": text})
    elif output is None:
        write(text)
    print_warnings([note] if note else [], quiet=quiet)


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write a file that does not exist yet, or any with ``force``."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        msg = f"output: {path} exists; choose another file, or overwrite it with --force"
        raise ConfigError(msg, key="output", value=str(path), allowed="a new file") from None
    except OSError as error:
        msg = f"output: {path} cannot be written: {error.strerror or error}"
        raise ConfigError(msg, key="output", value=str(path), allowed="a writable file") from None
