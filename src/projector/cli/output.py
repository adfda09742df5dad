"""Where commands write: results on standard output, everything else on standard error."""

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from projector.cli.options import flag, option
from projector.envelope import envelope, to_json
from projector.errors import ConfigError, ProjectorError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from projector.config.job import Job
    from projector.frames import Frame
    from projector.measure.process import Worker
    from projector.report.document import Document
    from projector.report.figures.pictures import Picture
    from projector.searches.result import SearchResult
    from projector.sweeps.result import SweepResult

SUCCESS, WRONG_INPUT, DOES_NOT_FIT, OUT_OF_TIME, INTERRUPTED = 0, 2, 3, 4, 130


@dataclass(frozen=True, slots=True)
class Printer:
    """What a command prints besides its result."""

    as_json: bool = flag("Print one JSON object and nothing else.", names="--json")
    quiet: bool = flag("Print no warnings and no progress.")

    def say(self, message: str) -> None:
        """Write one line to standard error, unless it is to be quiet."""
        if not self.quiet:
            say(message)

    @property
    def progress(self) -> Callable[[str], None] | None:
        """What tells of progress, if anything does."""
        return None if self.quiet else say

    def wrote(self, *paths: str | Path | None) -> None:
        """Name written files, those that were asked for."""
        for path in paths:
            if path is not None:
                self.say(f"wrote {path}")

    def warn(self, warnings: Iterable[str]) -> None:
        """Write warnings."""
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        width = shutil.get_terminal_size().columns if is_terminal else None
        for warning in warnings:
            text = f"warning: {warning}"
            # Files and other programs get one line each.
            self.say(text if width is None else textwrap.fill(text, width, break_on_hyphens=False))

    def show(
        self,
        result: Mapping[str, Any],
        report: "Callable[[dict[str, Any]], Iterable[Document | RenderableType]]",
        warnings: Iterable[str] = (),
        *files: str | Path | None,
    ) -> None:
        """Write what is no projection: its JSON object, or its report, warnings and files."""
        if self.as_json:
            print_plain(result)
            return
        print_report(report(dict(result)))
        self.warn(warnings)
        self.wrote(*files)

    def warn_beside_report(self, warnings: Iterable[str]) -> None:
        """Write warnings, unless the JSON object has them."""
        if not self.as_json:
            self.warn(warnings)


CSV = option("FILE.csv", "Write all rows of the table as CSV.", names="--csv")
"""Option of what ranks or sweeps."""

ALLOW_RISK = flag("Rank what is at risk too: its peak fits, but not the upper end of its band.")
"""Option of `search` and `sweep`."""


def print_json(result: Mapping[str, Any]) -> None:
    """Write one JSON object."""
    write(to_json(result))


def write(text: str) -> None:
    """Write to standard output, escaping what its encoding cannot hold."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def say(message: str) -> None:
    """Write one line to standard error, if the process has one."""
    if sys.stderr is not None:
        print(message, file=sys.stderr, flush=True)  # noqa: T201  # the command's output


def print_plain(result: Mapping[str, Any]) -> None:
    """Write the JSON object of what is no projection, with the keys that every object has."""
    print_json({**envelope(), **result})


def print_report(parts: "Iterable[Document | RenderableType]") -> None:
    """Write a report laid out for the terminal."""
    from projector.report.terminal.console import render

    write(render(*parts))


def print_error(error: click.ClickException | ProjectorError, *, as_json: bool) -> None:
    """Write one message to standard error, and with ``--json`` its object to standard output."""
    record = error.to_dict() if isinstance(error, ProjectorError) else _usage(error)
    message = record["error"]
    say(f"error: {message}")
    if as_json:
        print_json(record)


def exit_code(*verdicts: str) -> int:
    """Return the exit code of jobs by the verdicts on their memory; at risk is no failure."""
    return DOES_NOT_FIT if "does_not_fit" in verdicts else SUCCESS


def check_files(
    plot: str | None = None,
    html: str | None = None,
    read: str | None = None,
    **files: str | Path | None,
) -> None:
    """Refuse files that could not be written, or are ``read``, before anything is computed."""
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    if html is not None:
        from projector.report.pages.page import check_page

        check_page(html)
    for key, path in files.items():
        if path is not None:
            from projector.files import check_place

            check_place(path, key=key)
            if read is not None and Path(read).resolve() == Path(path).resolve():
                msg = f"{key}: {path} is the file that is read; name another file"
                raise ConfigError(msg, key=key, value=str(path), allowed="another file")


def write_csv(result: "Frame", path: str | None, printer: Printer) -> None:
    """Write the rows of a result if a file is named, and name it."""
    if path is not None:
        result.to_csv(path)
        printer.wrote(path)


def draw(path: str | None, figure: str, *shown: Any) -> None:
    """Draw a figure, ``module.function`` of `projector.report`, if a file was named.

    It is loaded only then: what it imports takes a third of the start of a small command.
    """
    if path is not None:
        from projector.report.figures.figure import save_figure

        module, _, name = figure.rpartition(".")
        made = getattr(import_module(f"projector.report.{module}"), name)
        save_figure(path, lambda: made(*shown))


def write_page(path: str | None, document: "Callable[[], Document]") -> None:
    """Write a report as a page that works offline, if a file for it was named."""
    if path is not None:
        from projector.report.pages import page

        page.write_page(path, document())


def read_pictures(plots: tuple[str, ...], html: str | None, kinds: str) -> "tuple[Picture, ...]":
    """Check the requested ``KIND=FIGURE`` and the page before anything is computed.

    ``kinds`` names the kinds of this command in `projector.report.figures.pictures`.
    """
    check_files(html=html)
    if not plots:
        return ()
    from projector.report.figures import pictures

    return pictures.read_pictures(plots, getattr(pictures, kinds))


def write_pictures(
    pictures: "tuple[Picture, ...]", result: "SweepResult | SearchResult | Job", printer: Printer
) -> None:
    """Draw the pictures and name each file."""
    if not pictures:
        return
    from projector.report.figures import pictures as report

    report.write_pictures(pictures, result)
    for picture in pictures:
        printer.wrote(picture.path)


def announce_compilation(*, quiet: bool) -> None:
    """Announce that the first run compiles, if no kernel is compiled as its sources are now."""
    if not quiet and _nothing_is_compiled():
        _announce()


def keep_worker() -> "Worker":
    """Have one process run all that the command measures, to its end or until it is dismissed."""
    from projector.measure.process import kept_worker

    return click.get_current_context().with_resource(kept_worker())


def interpret_at_first(*, quiet: bool) -> None:
    """Run kernels as Python that are not compiled, to the end of the command.

    They are compiled after the command (`projector.compiling.background`), which this announces
    where no kernel is compiled.
    """
    from projector.kernels._interpreted import interpreting

    click.get_current_context().with_resource(interpreting())
    if quiet or not _nothing_is_compiled():
        return
    from projector.compiling.background import is_possible

    if is_possible():
        say("kernels are compiled in the background, once; until then commands take longer")


def _nothing_is_compiled() -> bool:
    from projector.kernels import _cache

    files = _cache.kernel_files()
    modules = {name.split("-")[0].rpartition(".")[0] for name in files}
    return not any(_cache.is_compiled(module, files) for module in modules)


def _announce() -> None:
    from projector.kernels import _cache

    if fault := _cache.cache_fault():
        say(
            f"compiling kernels, as in every run while {fault}; "
            "PROJECTOR_CACHE_DIR names another folder ..."
        )
    else:
        say("compiling kernels for this machine, once; this takes 15 to 95 s of processor time ...")


@contextmanager
def compiling_steps(*, quiet: bool) -> Iterator[None]:
    """Where kernels of a step are not compiled, let helpers compile them beside the block.

    Announces it, and says afterwards what was compiled.
    """
    from projector.kernels import _cache

    files = _cache.kernel_files()
    if _cache.steps_are_compiled(files):
        yield
        return
    if not quiet:
        _announce()
    if not _cache.cache_is_writable():
        yield
        return
    from projector.kernels._helpers import helpers_of_a_step
    from projector.kernels._interpreted import interpreting

    begin = time.perf_counter()
    with helpers_of_a_step(), interpreting():
        yield
    seconds = time.perf_counter() - begin
    new = _cache.kernel_files() - files
    names = sorted({name.split("-")[0].split(".")[-1] for name in new})
    if names and not quiet:
        say(f"compiled {len(names)} kernels in {seconds:.1f} s: {', '.join(names)}")


def compiling_load() -> AbstractContextManager[None]:
    """Where the kernel of loads is not compiled, let a helper compile it beside the block."""
    from projector.kernels import _cache

    if _cache.is_compiled("projector.kernels.serving_load", _cache.kernel_files()):
        return nullcontext()
    from projector.compiling.helpers import helper_of_a_load

    return helper_of_a_load()


_INSTEAD = {
    ("search", "max_tp"): "tp=8 keeps one degree; without it each that a node holds is tried",
    ("serve", "nodes"): "--tp and --pp say how many devices, --gpus how many a search may take",
}
"""What does what is asked for, by command and name of an option that it does not have."""


def _instead_of(error: click.NoSuchOption) -> str:
    """Return what does it: another way, or an override, where the command takes these."""
    from projector.config.names import is_field, job_field

    if error.ctx is None:
        return ""
    command, name = error.ctx.command, error.option_name.lstrip("-").replace("-", "_")
    if told := _INSTEAD.get((command.name or "", name)):
        return told
    field = job_field(name)
    takes = command.name != "serve" and any(each.name == "assignments" for each in command.params)
    return f"write {name}=VALUE, which sets {field}" if takes and is_field(field) else ""


def _usage(error: click.ClickException) -> dict[str, Any]:
    message = error.format_message().rstrip(".")
    key, allowed = "", None
    if isinstance(error, click.NoSuchOption):
        key, allowed = error.option_name, error.possibilities
        if instead := _instead_of(error):
            message, allowed = f"No such option {key!r}: {instead}", [instead]
    elif isinstance(error, click.BadParameter) and error.param is not None:
        key = error.param.opts[0] if error.param.opts else str(error.param.name)
    context = getattr(error, "ctx", None)
    if context is not None:
        message = f"{message} (see '{context.command_path} --help')"
    return {
        "error": message,
        "key": key,
        "value": None,
        "allowed": list(allowed) if allowed else None,
    }
