"""What a reader of a foreign file hands on, before overrides are applied."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from projector.errors import ConfigError

Derived = Mapping[str, tuple[Any, str]]
"""Dotted field -> its value and where that comes from."""


class ReadJob(NamedTuple):
    """A job as a file of another tool describes it.

    A reader does not see the overrides of the user. What only they can decide stands in ``missing``
    and ``least_nodes`` and is settled by `projector.config.load` behind them.
    """

    data: dict[str, Any]
    """The native layout."""

    notes: tuple[str, ...] = ()
    """Warnings: what the file states and the projection does not follow."""

    origins: Mapping[str, str] = {}
    """Dotted field -> where its value came from, if the file does not state it."""

    ignored: tuple[str, ...] = ()
    """Settings of the file, as it writes them, that cannot change a projection."""

    missing: Mapping[str, ConfigError] = {}
    """Dotted field that the file leaves open -> the error where no override gives it either."""

    least_nodes: bool = False
    """Whether the file leaves the nodes open: the least number that holds the layout is taken."""

    derive: Callable[[dict[str, Any]], Derived] | None = None
    """Fields that follow from others: called with the native layout behind overrides and nodes,
    such as the batch of a file that states one data-parallel rank's. Given fields stay."""
