"""What a shell completes: files, names of models and devices, and the values of an option."""

import re
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

_FILES = re.compile(r"FILE|FIGURE|PATH|FOLDER|SPACE|TRACE|OUT\b|\.(csv|json|yaml|parquet|html|sh)")
"""Metavars of parameters that name a file."""

_MODELS = {"model"}
_DEVICES = {"device", "devices", "gpu", "gpu_arch", "base"}
_SCHEDULES = {"schedule", "schedules", "algorithm"}
"""Parameters that take the name of something shipped, or a file of one's own."""


def complete(command: click.Command) -> click.Command:
    """Let the parameters of a command, and of those below it, complete their values."""
    for parameter in command.params:
        # click takes it only where a parameter is made.
        parameter._custom_shell_complete = _values  # noqa: SLF001
    for below in getattr(command, "commands", {}).values():
        complete(below)
    return command


def _values(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    metavar = parameter.metavar or ""
    names = dict.fromkeys([*_shipped(context, parameter), *_choices(metavar)])
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    if not found and (names or _FILES.search(metavar)):
        return [CompletionItem(incomplete, type="file")]
    return found


def _choices(metavar: str) -> Iterator[str]:
    yield from (word for word in metavar.split("|") if re.fullmatch(r"[a-z0-9_-]+", word))


def _shipped(context: click.Context, parameter: click.Parameter) -> list[str]:
    from projector.config import resources

    kind = context.info_name if isinstance(parameter, click.Argument) else None
    if kind in {"models", "hardware"}:
        return list(resources.shipped(str(kind)))
    for kind, names in (("models", _MODELS), ("hardware", _DEVICES)):
        if parameter.name in names:
            return list(resources.shipped(kind))
    if parameter.name not in _SCHEDULES:
        return []
    from projector.schedule.registry import SCHEDULES

    return ["auto", *SCHEDULES]
