"""Options that were given but would have no effect: they are refused, never ignored."""

from typing import Any

import click
from click.core import ParameterSource

from projector.errors import ConfigError, shown


def is_given(name: str) -> bool:
    """Return whether the command line has a parameter, and not only its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source in {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}


def refuse_idle(*names: str, needs: str) -> None:
    """Refuse parameters of the command that were given.

    Parameters
    ----------
    *names : str
        Parameters as the command takes them, which have no effect as it was called.
    needs : str
        What would give them an effect, for example ``--sobol``.
    """
    context = click.get_current_context()
    for name in names:
        if is_given(name):
            option = next(each for each in context.command.params if each.name == name)
            value: Any = context.params.get(name)
            text = max(option.opts, key=len) if isinstance(option, click.Option) else shown(value)
            msg = f"{text} has no effect here: it needs {needs}"
            raise ConfigError(msg, key=name, value=value, allowed=needs)
