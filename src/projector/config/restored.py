"""Assumptions about what a record does not say: ``hardware/measured.yaml``."""

from projector.config import resources
from projector.config._base import Config, NotNegative
from projector.config.yaml_file import read_yaml

FILE = "measured.yaml"


class RestoredMemory(Config):
    """How far memory that was restored from a record may be off."""

    margin: NotNegative
    """Share of what no measured step held that the upper bound adds."""


def restored_memory() -> RestoredMemory:
    """Return what is assumed of restored memory."""
    table = read_yaml(resources.data_dir("hardware") / FILE, key=FILE)["memory"]
    values = {name: entry["value"] for name, entry in table.items()}
    return RestoredMemory.parse(values, path=f"{FILE}: memory")
