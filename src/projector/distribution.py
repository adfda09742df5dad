"""The name under which the package is installed; the import and the command are `projector`."""

from functools import cache
from typing import Final

DISTRIBUTION: Final = "llm-projector"
"""On no package index yet; there ``projector`` belongs to another project."""


@cache
def installed_version(distribution: str) -> str:
    """Return the version of a distribution, ``""`` where it is not installed."""
    # A third of the time of --help, which does not say it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def package_version() -> str:
    """Return the installed version of the package; looking it up reads its metadata from disk."""
    return installed_version(DISTRIBUTION) or "unknown"


def install_command(*extras: str) -> str:
    """Say what installs the package with some of its optional extras."""
    return f"pip install '.[{','.join(extras)}]' in a clone of the repository"
