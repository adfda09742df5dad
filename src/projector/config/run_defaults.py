"""What a run assumes where its job says nothing: ``hardware/failures.yaml``."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from projector.config.resources import data_dir
from projector.config.yaml_file import read_yaml

FILE = "failures.yaml"


@cache
def _table() -> Mapping[str, Any]:
    return read_yaml(data_dir("hardware") / FILE, key=FILE)


@cache
def run_default(name: str) -> float:
    """Return the number that a run takes where it states none.

    Parameters
    ----------
    name : str
        Key of ``defaults`` in ``hardware/failures.yaml``; its unit is in the name.
    """
    return float(_table()["defaults"][name]["value"])


def run_default_source(name: str) -> str:
    """Return where a default comes from, in words."""
    table = _table()
    return str(table["sources"][table["defaults"][name]["source"]])
