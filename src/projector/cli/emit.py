"""``--emit``: the projected job, or the winner of a search, as the file of a framework."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from projector.cli.output import say, write
from projector.cli.pictures import say_written

if TYPE_CHECKING:
    from projector.config.formats.emit.emitted import Emitted
    from projector.config.job import Job

Command = TypeVar("Command", bound=Callable[..., Any])

KEY = "emit"


def emit_option(command: Command) -> Command:
    """Add ``--emit``; the command takes its texts as ``emit``."""
    return click.option(
        "--emit",
        multiple=True,
        metavar="FORMAT[=FILE]",
        help="Write the job as the configuration of a framework (megatron, primus, torchtitan, "
        "deepspeed): to a file, or to standard output in place of the report. Reading it again "
        "gives the same job.",
    )(command)


@dataclass(frozen=True, slots=True)
class Emission:
    """What ``--emit`` asks for: formats, each with its file or none for standard output."""

    wanted: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Emission":
        """Read the texts of the option, and refuse what could not be written."""
        wanted = []
        for text in texts:
            from projector.config.formats.emit.emitted import check_target

            name, equals, file = text.partition("=")
            check_target(name, file if equals else None)
            wanted.append((name, file if equals else None))
        return cls(tuple(wanted))

    @property
    def on_output(self) -> bool:
        """Whether a file takes the place of the report."""
        return any(file is None for _, file in self.wanted)

    def of_job(self, job: "Job") -> "list[Emitted]":
        """Return the files of a job, and write those that have a name."""
        if not self.wanted:
            return []
        from projector.config.formats.emit.emitted import emit_job
        from projector.files import write_whole

        emitted = [emit_job(job, name) for name, _ in self.wanted]
        for (_, file), each in zip(self.wanted, emitted, strict=True):
            if file is not None:
                write_whole(Path(file), each.text.encode(), key=KEY)
        return emitted

    def show(self, emitted: "list[Emitted]", *, quiet: bool) -> None:
        """Write to standard output what has no file, and report the others."""
        for (_, file), each in zip(self.wanted, emitted, strict=True):
            if file is None:
                write(each.text)
            else:
                say_written(file, quiet=quiet)
                _say_carried(file, each, quiet=quiet)

    def refuse(self, why: str) -> None:
        """Say on standard error that there is no job to write."""
        if self.wanted:
            say(f"--emit wrote nothing: {why}")

    def add_to(self, result: dict[str, Any], emitted: "list[Emitted]") -> dict[str, Any]:
        """Return a JSON object with the key ``emitted``, where anything was asked for."""
        if not self.wanted:
            return result
        files = [
            {"format": each.format, "file": file, "text": each.text, "carried": dict(each.carried)}
            for (_, file), each in zip(self.wanted, emitted, strict=False)
        ]
        return {**result, "emitted": files}


def _say_carried(file: str, emitted: "Emitted", *, quiet: bool) -> None:
    """Name the fields of layout and training that the file tells `projector` alone."""
    fields = [
        field
        for field in emitted.carried
        if field.startswith(("parallelism.", "training.")) and field not in _TOLD_ELSEWHERE
    ]
    if fields and not quiet:
        say(
            f"{file} carries {', '.join(fields)}, which {emitted.format} does not read; its run "
            f"may differ from the projection"
        )


_TOLD_ELSEWHERE = ("training.framework", "training.seq_length")
"""Carried fields that name the framework, or that the user's training script has."""
