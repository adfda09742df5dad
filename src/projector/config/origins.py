"""Whose numbers a device has: its own, those of another device or of its family, or assumed."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from projector.config.device import Device
from projector.config.device_file import TAKEN

OWN, ASSUMED = "its own", "assumed"

_OF_FAMILY = re.compile(r"(\w+ family): ")
_IN_TEXT = re.compile(rf"{TAKEN}(?:the )?([A-Z]\w*(?: family)?)")
_ASSUMED = re.compile(r"\b(assumed|not verified)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Origins:
    """Fields of a device by whose number they have."""

    fields: Mapping[str, tuple[str, ...]]
    """`OWN`, `ASSUMED`, or the name of a device or family -> dotted fields with a source."""

    @property
    def borrowed(self) -> dict[str, tuple[str, ...]]:
        """Fields that are neither the device's own nor assumed, by whose they are."""
        return {
            owner: fields for owner, fields in self.fields.items() if owner not in {OWN, ASSUMED}
        }

    @property
    def assumed(self) -> tuple[str, ...]:
        """Fields that nobody measured or states."""
        return self.fields.get(ASSUMED, ())


def origins_of(device: Device) -> Origins:
    """Sort the fields of a device that have a source by whose number they are."""
    return _origins(tuple(device.sources.items()))


@lru_cache(maxsize=64)
def _origins(sources: tuple[tuple[str, str], ...]) -> Origins:
    fields: dict[str, list[str]] = defaultdict(list)
    for field, text in sources:
        fields[owner_of(text)].append(field)
    order = sorted(fields, key=lambda owner: ({OWN: 0, ASSUMED: 2}.get(owner, 1), owner))
    return Origins({owner: tuple(fields[owner]) for owner in order})


def owner_of(text: str) -> str:
    """Return whose number one is that has this source.

    What was assumed of another device is assumed; an estimate does not get better by being taken
    over.
    """
    if _ASSUMED.search(text):
        return ASSUMED
    if text.startswith(TAKEN):
        return text.removeprefix(TAKEN).partition(": ")[0]
    found = _OF_FAMILY.match(text) or _IN_TEXT.search(text)
    return found[1] if found else OWN
