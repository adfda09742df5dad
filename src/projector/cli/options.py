"""Options of commands, told once: as the parameters of a command, or as the fields of a dataclass.

A command is a function under `command`. Each of its parameters has a default that `option`, `flag`
or `argument` made, or its type is a dataclass whose fields have such defaults. Name and type of an
option are those of its parameter or field.
"""

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, Literal, NamedTuple, get_args, get_origin

import click
from click.core import ParameterSource

from projector.errors import ConfigError, shown
from projector.units import read_amount

_DECLARED = "declared"
"""Key of the metadata of a field that is an option."""


class _Declared(NamedTuple):
    kind: type[click.Parameter]
    names: tuple[str, ...]
    settings: dict[str, Any]


class _Amount(click.ParamType):  # type: ignore[type-arg]  # old ones take no argument
    """A number that may have a letter behind it: 8k, 100M, 15T."""

    def __init__(self, plain: "click.ParamType[Any]") -> None:
        self.plain, self.name = plain, plain.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the letter; whole numbers take no fraction."""
        amount = read_amount(value, "" if param is None else param.name or "")
        if self.plain is click.INT and isinstance(amount, float):
            amount = int(amount) if amount.is_integer() else value
        return self.plain.convert(amount, param, ctx)


_AMOUNTS = {int: _Amount(click.INT), float: _Amount(click.FLOAT)}


def option(
    metavar: str | None,
    text: str | None,
    default: Any = None,
    *,
    shown: Any = None,
    names: str | tuple[str, ...] = (),
    **settings: Any,
) -> Any:
    """Declare an option with its help; ``names`` where they differ from that of the parameter.

    A type of ``tuple`` says that it may be repeated, ``bool`` that it is a flag, and ``Literal``
    what it may be. A default that is ``shown`` stands in the help too.
    """
    settings |= {"metavar": metavar, "help": text, "show_default": shown is not None}
    names = (names,) if isinstance(names, str) else names
    return _declare(click.Option, default if shown is None else shown, names, settings)


def flag(text: str, names: str | tuple[str, ...] = ()) -> Any:
    """Declare an option without a value."""
    return option(None, text, default=False, names=names)


def argument(metavar: str | None = None, default: Any = None, **settings: Any) -> Any:
    """Declare an argument: any number for a type of ``tuple``, or one, which may be None or not."""
    return _declare(click.Argument, default, (), {"metavar": metavar, **settings})


def _declare(
    kind: type[click.Parameter], default: Any, names: tuple[str, ...], settings: dict[str, Any]
) -> Any:
    return field(default=default, metadata={_DECLARED: _Declared(kind, names, settings)})


def group(*, without: Collection[str] = (), **instead: Any) -> Any:
    """Take a dataclass of options but for some, which keep their defaults, and others instead."""
    return field(metadata={"without": without, "instead": instead})


def command(
    parent: click.Group | None = None,
    *,
    more: str = "",
    cls: type[click.Command] = click.Command,
    **settings: Any,
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a function a command under its name, which a parent takes in.

    The docstring is its help, with ``more`` below; it returns its exit code, 0 where it has none.
    """

    def declare(function: Callable[..., int | None]) -> click.Command:
        options: list[click.Parameter] = []
        groups: dict[str, tuple[Any, list[str]]] = {}
        for parameter in inspect.signature(function).parameters.values():
            own = parameter.default.metadata if isinstance(parameter.default, Field) else {}
            if _DECLARED in own:
                options.append(_made(parameter.name, parameter.annotation, parameter.default))
                continue
            assert is_dataclass(parameter.annotation), f"{parameter} declares no options"
            without, instead = own.get("without", ()), own.get("instead", {})
            members = [each for each in fields(parameter.annotation) if each.name not in without]
            options += [
                _made(each.name, each.type, instead.get(each.name, each)) for each in members
            ]
            groups[parameter.name] = (parameter.annotation, [each.name for each in members])

        @functools.wraps(function)
        def call(**values: Any) -> int | None:
            for name, (kind, members) in groups.items():
                values[name] = kind(**{member: values.pop(member) for member in members})
            return function(**values)

        text = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{more}".strip()
        made = cls(function.__name__, callback=call, params=options, help=text, **settings)
        if parent is not None:
            parent.add_command(made)
        return made

    return declare


def _made(name: str, annotation: Any, told: Field[Any]) -> click.Parameter:
    kind, names, settings = told.metadata[_DECLARED]
    inner = get_args(annotation)
    optional, several = type(None) in inner, get_origin(annotation) is tuple
    plain = inner[0] if optional or several else annotation
    is_flag = plain is bool
    known = {} if told.default in (None, ()) and not is_flag else {"default": told.default}
    if get_origin(annotation) is Literal:
        known["type"] = click.Choice(inner)
    elif not is_flag:
        known["type"] = _AMOUNTS.get(plain, plain)
    if kind is click.Argument:
        number = {"nargs": -1} if several else {"required": not optional}
        return click.Argument([name], **{**known, **number, **settings})
    spelled = names or (f"--{name.replace('_', '-')}",)
    known |= {"multiple": several, "is_flag": is_flag or None}
    return click.Option([*spelled, name], **{**known, **settings})


def refuse_idle(*names: str, needs: str) -> None:
    """Refuse parameters that were given and have no effect; they are never ignored.

    ``needs`` says what would give them an effect, for example ``--sobol``.
    """
    context = click.get_current_context()
    for name in names:
        source = click.get_current_context().get_parameter_source(name)
        if source in {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}:
            idle = next(each for each in context.command.params if each.name == name)
            value: Any = context.params.get(name)
            text = max(idle.opts, key=len) if isinstance(idle, click.Option) else shown(value)
            msg = f"{text} has no effect here: it needs {needs}"
            raise ConfigError(msg, key=name, value=value, allowed=needs)
