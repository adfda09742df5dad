"""What figures call the fields and columns that their axes show: words with units.

The dotted name of a field is what a user types; a picture is shown to people who never type it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from projector.config._base import Label
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.network import Network
from projector.config.parallelism import ParallelismConfig
from projector.config.resources import hardware_table
from projector.config.training import TrainingConfig
from projector.report.figures.figure import short_number

TIMES = "\N{MULTIPLICATION SIGN}"

HARDWARE = ("cluster.device.", "cluster.network.")
"""Beginnings of fields that are numbers of a chip or of its links."""


class Words(NamedTuple):
    """Name of a number and its unit, empty where it has none."""

    name: str
    unit: str = ""

    @property
    def label(self) -> str:
        """Both, as an axis shows them."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


_TABLE = hardware_table("report_words.yaml")

UNITS: Mapping[str, str] = _TABLE["units"]
"""End of a name -> unit; the first that matches counts."""


FIELDS: dict[str, Words] = {
    **{
        name: Words(
            label.name,
            label.unit or next((unit for end, unit in UNITS.items() if name.endswith(end)), ""),
        )
        for section in (Device, Network, ParallelismConfig, TrainingConfig, ClusterConfig)
        for name, field in section.model_fields.items()
        for label in field.metadata
        if isinstance(label, Label)
    },
    **{name: Words(**words) for name, words in _TABLE["columns"].items()},
}
"""Last part of a dotted name -> words; other names are spelled out with the tables around."""

CAPITALS: Mapping[str, str] = _TABLE["capitals"]

_GROUPS = ("cluster", "device", "network", "software", "parallelism", "training", "model", "run")
"""Sections that are not named: the words of their fields stand alone."""


def words_of(field: str) -> Words:
    """Return the words of a dotted field or a column; of several joined by ``+`` of all."""
    parts = [_words(part) for part in field.split("+")]
    units = list(dict.fromkeys(part.unit for part in parts))
    if len(parts) == 1 or len(units) > 1:
        return Words(" + ".join(part.label if len(parts) > 1 else part.name for part in parts),
                     parts[0].unit if len(parts) == 1 else "")  # fmt: skip
    return Words(" + ".join(part.name for part in parts), units[0])


def label_of(field: str) -> str:
    """Return the label of an axis that shows a field or a column."""
    return words_of(field).label


def labels_of(fields: Sequence[str]) -> list[str]:
    """Return a label for each field; where words would be the same the dotted names stand."""
    labels = [label_of(field) for field in fields]
    return [
        label if labels.count(label) == 1 else f"{label} ({field})"
        for field, label in zip(fields, labels, strict=True)
    ]


def _words(field: str) -> Words:
    parts = field.split(".")
    if parts[0] == "breakdown_ms":
        return Words(f"{_spelled(parts[-1])} of a step", "ms")
    if parts[-1] in FIELDS:
        return FIELDS[parts[-1]]
    if len(parts) > 1 and parts[-2] in FIELDS:
        # A rate for each type: the last part is the type.
        name, unit = FIELDS[parts[-2]]
        return Words(f"{_spelled(parts[-1])} {name}", unit)
    named = [part for part in parts if part not in _GROUPS] or parts[-1:]
    for end, unit in UNITS.items():
        if named[-1].endswith(end) and named[-1] != end:
            named[-1] = named[-1].removesuffix(end)
            return Words(_spelled(" ".join(named)), unit)
    return Words(_spelled(" ".join(named)))


def _spelled(name: str) -> str:
    return " ".join(CAPITALS.get(word, word) for word in name.replace("_", " ").split())


class Ticks(NamedTuple):
    """What stands at the values of an axis, and the label below them."""

    texts: list[str]
    label: str


def relative_ticks(field: str, values: Sequence[Any], base: float | None) -> Ticks | None:
    """Return a number of hardware as multiples of the base chip's, None where there is none."""
    numbers = all(isinstance(value, int | float) for value in values)
    if not field.startswith(HARDWARE) or not numbers or not base or base <= 0.0:
        return None
    name, unit = words_of(field)
    own = " ".join(part for part in (short_number(base), unit) if part)
    return Ticks([multiple(value / base) for value in values], f"{name} (1{TIMES} = {own})")


def multiple(factor: float) -> str:
    """Write a factor: ``0.5x``."""
    return f"{factor:.3g}{TIMES}"


def base_value(base: Any, field: str) -> float | None:
    """Return the number that a base job, as plain values, has in a dotted field."""
    value = base
    for part in field.partition("+")[0].split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        # A number with its source beside it.
        value = value.get("value")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None
