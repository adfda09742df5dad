"""Constants that were fitted without one source or one device, as ``hardware/left_out.yaml`` has.

The scripts that fit constants write it with ``--record``.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from projector.config.resources import data_dir
from projector.config.yaml_file import read_yaml
from projector.validate.kind import Without

SOURCE, DEVICE = "source", "device"

_PART_OF = {"time": "training", "memory": "memory", "serving": "serving"}
"""Quantity -> its part of the file."""


def without(quantity: str, name: str, what: str = SOURCE) -> Without | None:
    """Return the constants that have not seen a source or a device.

    Parameters
    ----------
    quantity : str
        ``time``, ``memory`` or ``serving``.
    name : str
        Of the source (`projector.validate.names.source_of`), or of the device.
    what : str
        `SOURCE` or `DEVICE`.

    Returns
    -------
    Without or None
        None where nothing was fitted to it: the constants that ship have not seen it either.
    """
    values = _file().get(_PART_OF.get(quantity, ""), {}).get(what, {}).get(name)
    return None if values is None else Without(name, _plain(values))


def _plain(values: Mapping[str, Any]) -> dict[str, float]:
    """Return name -> value, whether or not a source stands beside the value."""
    return {
        name: float(value["value"] if isinstance(value, Mapping) else value)
        for name, value in values.items()
    }


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    path = data_dir("hardware") / "left_out.yaml"
    return read_yaml(path) if path.is_file() else {}
