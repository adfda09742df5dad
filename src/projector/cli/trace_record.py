"""``projector trace record``."""

import sys

import click

from projector.cli.job_options import output_options
from projector.cli.output import SUCCESS, plain_envelope, print_json, say


@click.command(
    "record", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option(
    "--out", default="traces", show_default=True, metavar="FOLDER", help="Folder for the traces."
)
@click.option(
    "--warmup",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Iterations to leave out.",
)
@click.option(
    "--active",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Iterations to record after these.",
)
@click.option("--stacks", is_flag=True, help="Record Python stacks too, which slows the run.")
@click.option(
    "--no-modules", is_flag=True, help="Leave modules unnamed: better with torch.compile."
)
@click.option("--overwrite", is_flag=True, help="Replace a recording that is in the folder.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@output_options
def command(
    out: str,
    warmup: int,
    active: int,
    stacks: bool,
    no_modules: bool,
    overwrite: bool,
    command: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> int:
    """Run a training command and record some of its iterations.

    COMMAND is the training run, such as `python train.py --steps 30` or
    `torchrun --nproc-per-node 8 train.py`. Options of this command come before it; put `--` between
    them where the command begins with an option. An iteration ends with a step of the optimizer.
    docs/trace_recording.md shows the two
    lines that record a loop without this command.
    """
    from projector.measure.launch import record_command

    options = ["--warmup", str(warmup), "--active", str(active), *["--stacks"] * stacks]
    options += ["--no-modules"] * no_modules
    # Standard output is for our JSON alone.
    output = sys.stderr if as_json else None
    left = record_command(command, out, options, overwrite=overwrite, output=output)
    if as_json:
        print_json({**plain_envelope(), **left._asdict()})
        return SUCCESS
    if not quiet:
        for path in (*left.traces, *left.samples):
            say(f"wrote {path}")
        if left.counters is not None:
            say(f"{left.counters} collects hardware counters in a second run")
        say(f"projector trace summary {out} shows what is in them")
    return SUCCESS
