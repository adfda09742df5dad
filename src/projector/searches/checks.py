"""Arguments that several searches share."""

from typing import Any

from projector.errors import ConfigError
from projector.units import unwrapped


def check_top(top: Any) -> None:
    """Refuse a number of results that is no count."""
    top = unwrapped(top)
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        msg = f"top must be an integer of at least 1, got {top!r}"
        raise ConfigError(msg, key="top", value=top, allowed=">= 1")
