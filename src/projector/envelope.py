"""Keys that every JSON object of a projection carries."""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

SCHEMA_VERSION = 1


def envelope(warnings: Iterable[str], uncertainty: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that every JSON object of a projection carries."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": package_version(),
        "warnings": list(warnings),
        "uncertainty": uncertainty,
    }


@cache
def package_version() -> str:
    """Return the installed version of the package; looking it up reads its metadata from disk."""
    try:
        return version("projector")
    except PackageNotFoundError:
        return "unknown"
