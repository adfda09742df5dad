"""Many devices that differ in some fields, each value of a field read once for all of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from projector.config.device import Device
from projector.config.device_file import read_device
from projector.config.load import expanded, set_field
from projector.errors import ConfigError

_DEVICE = "cluster.device"

MOST_PARTS = 1 << 17
"""Values of fields that are kept; beyond, it begins anew."""

_READ_FIRST = {
    "architecture", "attention_family", "expert_family", "extends", "gemm_family", "kind", "scales",
    "sources",
}  # fmt: skip
"""Fields that decide how others are read."""


class _Alone(Device):
    """A device whose fields are legal, each by itself."""

    def check(self) -> None:
        """Check nothing that fields have in common."""


class _Part(NamedTuple):
    value: Any
    sources: dict[str, str] | None
    """Where its numbers come from; None where that is as if it were not replaced."""


class DeviceFields:
    """Devices that are others with some fields replaced.

    A device is what its fields are: but for those of `_READ_FIRST`, none changes how another is
    read. What they must have in common is checked of every device.
    """

    def __init__(self) -> None:
        self._bases: dict[int | str, tuple[Any, Device | None]] = {}
        self._parts: dict[tuple[int | str, str], _Part | None] = {}

    def replaced(self, given: Any, fields: Mapping[str, Any]) -> Device | None:
        """Return a device with some fields replaced, as a job that states them has it.

        ``given`` is what the job says of its device, ``fields`` are dotted from the device on. None
        where all of it has to be read at once, perhaps to say what is wrong.
        """
        values: dict[str, dict[str, Any]] = {}
        for field, value in fields.items():
            values.setdefault(field.partition(".")[0], {})[field] = value
        base = None if values.keys() & _READ_FIRST else self._base(given)
        if base is None:
            return None
        changed, sources = dict[str, Any](), base.sources
        for name, of_field in values.items():
            part = self._part(given, base, name, of_field)
            if part is None:
                return None
            changed[name] = part.value
            if part.sources is not None:
                sources = {**_without(sources, name), **part.sources}
        # Shared, as the value of a field is: nothing changes a device.
        device = base.model_copy(update={**changed, "sources": sources})
        try:
            device.check()
        except ConfigError:
            return None
        return device

    def _base(self, given: Any) -> Device | None:
        """Return the device without replaced fields, None where they do not stand alone."""
        key = _key(given)
        if key not in self._bases:
            alone = _read(given, {})
            device = None
            if alone is not None:
                device = Device.model_construct(alone.model_fields_set, **alone.__dict__)
            # A device is kept: its identity must not pass to another one.
            self._bases[key] = given, device
        return self._bases[key][1]

    def _part(
        self, given: Any, base: Device, name: str, of_field: Mapping[str, Any]
    ) -> _Part | None:
        """Return a field of a device, None where others change with it."""
        key = _key(given), repr(of_field)
        if key not in self._parts:
            if len(self._parts) > MOST_PARTS:
                self._parts.clear()
            device = _read(given, of_field)
            part = None
            if device is not None and _rest(device, name) == _rest(base, name):
                same = device.sources == base.sources
                own = {at: text for at, text in device.sources.items() if _is_of(at, name)}
                part = _Part(getattr(device, name), None if same else own)
            self._parts[key] = part
        return self._parts[key]


def _key(given: Any) -> int | str:
    return id(given) if isinstance(given, Device) else repr(given)


def _read(given: Any, fields: Mapping[str, Any]) -> _Alone | None:
    """Return a device with some fields replaced, None where one is illegal."""
    data: dict[str, Any] = {"cluster": {"device": expanded(_DEVICE, given)}}
    try:
        for field, value in fields.items():
            set_field(data, f"{_DEVICE}.{field}", value)
        return read_device(data["cluster"]["device"], _DEVICE, _Alone)
    except ConfigError:
        return None


def _rest(device: Device, name: str) -> tuple[dict[str, Any], set[str]]:
    """Return all of a device but one field: values, sources and what was stated."""
    rest = {field: value for field, value in device.__dict__.items() if field != name}
    rest["sources"] = _without(device.sources, name)
    return rest, device.model_fields_set - {name}


def _without(sources: Mapping[str, str], name: str) -> dict[str, str]:
    return {at: text for at, text in sources.items() if not _is_of(at, name)}


def _is_of(source: str, name: str) -> bool:
    return f"{source}.".startswith(f"{name}.")
