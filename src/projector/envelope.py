"""Keys that every JSON object of a projection carries."""

from collections.abc import Iterable
from typing import Any

from projector.distribution import package_version

SCHEMA_VERSION = 1


def envelope(warnings: Iterable[str], uncertainty: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that every JSON object of a projection carries."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": package_version(),
        "warnings": list(warnings),
        "uncertainty": uncertainty,
    }
