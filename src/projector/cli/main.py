"""The ``projector`` command: finds a subcommand, runs it, turns errors into exit codes."""

import atexit
import difflib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click

from projector.cli.output import DOES_NOT_FIT, INTERRUPTED, SUCCESS, WRONG_INPUT, print_error, say
from projector.errors import OutOfMemoryError, ProjectorError, check_working_folder

CANNOT_WRITE = 1
OUT_OF_MEMORY = 1
BROKEN_PIPE = 141
"""Exit code that a shell reports when the reader of a command stops."""

COMPLETING = "_PROJECTOR_COMPLETE"
"""Variable of the environment by which a shell asks for completions."""

GC_THRESHOLD = 200_000
"""New objects between two garbage collections."""


COMMANDS = {
    "memory": ("project", "Project the memory of every pipeline stage."),
    "performance": ("project", "Project the time of one training step."),
    "both": ("project", "Project memory, then performance."),
    "compare": ("project", "Show which terms differ between two jobs."),
    "sweep": ("sweep", "Project every job or deployment of a space."),
    "search": ("search", "Rank every legal configuration of a job."),
    "plan": ("plan", "Rank clusters for a training run: days, money, layouts."),
    "sensitivity": ("sensitivity", "Rank the effect of each hardware number on a step."),
    "serve": ("serve", "Project how a deployment serves a model."),
    "app": ("app", "Drag sliders of a job and see memory, time and verdict follow."),
    "rl": ("rl", "Project a step of reinforcement learning."),
    "schedule": ("schedule", "Compare pipeline schedules, draw and trace one."),
    "gemm": ("single", "Time matrix multiplications, term by term."),
    "attention": ("single", "Project attention kernels of given shapes."),
    "collective": ("single", "Time a collective with every algorithm that can serve it."),
    "topology": ("topology", "Show a node as a graph: routes, matrices, drawing."),
    "validate": ("validate", "Compare projections with a measurement table."),
    "probe": ("profiles", "Measure this machine and write its device profile."),
    "calibrate": ("profiles", "Fit a device to a measurement table."),
    "benchmark": ("measure", "Measure single operations on this machine."),
    "record": ("measure", "Show measurements that were kept, and export them."),
    "trace": ("trace", "Explain a real run from its trace."),
    "init": ("shipped", "Write a commented job file."),
    "models": ("shipped", "List the shipped models, or show one."),
    "hardware": ("shipped", "List the shipped devices, or show one."),
    "schema": ("shipped", "Print the JSON schema of a file or of a --json output."),
    "warmup": ("warmup", "Compile all kernels, so that later runs start fast."),
}
"""Subcommands: the file that has each as a function, and what it does."""

GROUPS = {
    "Project": "memory performance both compare",
    "Choose": "search plan app sweep sensitivity",
    "Serve": "serve rl",
    "Kernels, links and schedules": "gemm attention collective topology schedule",
    "Measure and traces": "trace benchmark record probe calibrate validate",
    "Tables": "init models hardware schema warmup",
}
"""Subcommands in the order of the help."""


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called, and not for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        del ctx
        return " ".join(GROUPS.values()).split()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one subcommand."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        home, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"projector.cli.{home}"), cmd_name)
        if COMPLETING not in os.environ:
            return command
        from projector.cli.completion import complete

        return complete(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand, naming the nearest where there is none."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without importing them."""
        del ctx
        widest = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:{widest}}", COMMANDS[name][1]) for name in names.split()]
                )


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    if value and not ctx.resilient_parsing:
        from projector.distribution import package_version

        click.echo(f"projector {package_version()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Project memory and speed of large language model training on GPU clusters.

    Large numbers may end with k, M, B (1e9) or T: 8k, 100M, 15T. 8k tokens of a sequence are 8,192.

    Exit codes: 0 success, 1 the output cannot be written or memory ran out, 2 bad input, 3 the job
    does not fit (it is projected all the same), 4 the time that was given is over.
    """


def run(arguments: Sequence[str], *, alone: bool = False) -> int:
    """Run one command line and return its exit code; what is printed is flushed.

    Commands are told whether the process is theirs ``alone``.
    """
    if sys.stdout is None:
        say("error: standard output is closed")
        return CANNOT_WRITE
    try:
        code = _run(arguments, alone=alone)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        # Reading and writing files names the file; what is left is standard output.
        if error.filename is not None:
            raise
        _drop_output()
        say(f"error: standard output cannot be written: {error.strerror or error}")
        return CANNOT_WRITE
    return code


def _run(arguments: Sequence[str], *, alone: bool) -> int:
    try:
        code: Any = cli.main(
            list(arguments), prog_name="projector", standalone_mode=False, obj=alone
        )
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        return WRONG_INPUT
    except MemoryError as error:
        known = error if isinstance(error, OutOfMemoryError) else None
        told = known or OutOfMemoryError("memory ran out", allowed="more memory")
        print_error(told, as_json="--json" in arguments)
        return OUT_OF_MEMORY
    except (click.ClickException, ProjectorError) as error:
        print_error(error, as_json="--json" in arguments)
        return WRONG_INPUT
    except FileNotFoundError:
        # Some imports look for the working directory.
        try:
            check_working_folder()
        except ProjectorError as error:
            print_error(error, as_json="--json" in arguments)
            return WRONG_INPUT
        raise
    except (click.Abort, KeyboardInterrupt) as error:
        ended = error.__cause__ if isinstance(error, click.Abort) else error
        return ended.code if isinstance(ended, _Ended) else INTERRUPTED
    return code if isinstance(code, int) else SUCCESS


class _Ended(KeyboardInterrupt):
    """The system asks this process to end, which is done as if the user had interrupted it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number
        """Exit code that shells report for the signal."""


def _end_cleanly(number: int, frame: FrameType | None) -> NoReturn:
    """End workers and remove temporary files; a second signal, as ``timeout`` sends, is ignored."""
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise _Ended(number)


def _drop_output() -> None:
    """Keep Python from complaining once more when it flushes standard output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _compile_later() -> None:
    if "projector.kernels._interpreted" not in sys.modules:
        return
    from projector.kernels._interpreted import wanted_kernels

    wanted = wanted_kernels()
    if wanted:
        from projector.compiling.background import compile_in_background

        compile_in_background(wanted)


def main() -> None:
    """Entry point of the installed command."""
    code: int | None = None
    # Registered first, it runs last. Taking all modules apart would take 0.03 s.
    atexit.register(lambda: code is None or os._exit(code))
    # To find plugins, pydantic would read the metadata of all packages that are installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Most of a short run is importing, where the collector looks a lot and finds nothing.
    gc.set_threshold(GC_THRESHOLD)
    # Where colorama is, numba makes its messages bold, most of which nobody sees: 6 % of compiling.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Whoever starts it with nohup does not want to end it.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end_cleanly)
    code = run(sys.argv[1:], alone=True)
    if code in (SUCCESS, DOES_NOT_FIT):
        _compile_later()
    sys.exit(code)
