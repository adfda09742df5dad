"""Reading a device: its file, what it extends, what its families have, and whose numbers it has."""

import re
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from projector.config import resources
from projector.config._base import SOURCED, is_mapping, merge, of_fields, source_table
from projector.config.device import Device
from projector.config.device_kernels import Evidence
from projector.config.inherited import scaled
from projector.config.resources import hardware_table, once_by_name, stated_and_base
from projector.config.yaml_file import MOST_EXTENDS, base_of, read_yaml
from projector.errors import ConfigError

TAKEN = "taken from "
"""How the source of a number begins that a device has from another one: ``taken from NAME: …``."""

FIRST_ORDER_DEVICES = "hardware/first_order"
"""Folder of devices that only the first-order model knows."""

FIRST_ORDER_KIND = "first_order"
"""What their files say as ``kind``."""

ATTENTION, MEMORY, TRAINING = "attention.yaml", "memory.yaml", "training.yaml"
"""Tables of ``hardware/`` by family or architecture."""

OTHER_FAMILY = "other"
"""Entry of ``hardware/training.yaml`` for architectures that it does not list."""

YAML = (".yaml", ".yml")
"""Endings of the files of devices."""

D = TypeVar("D", bound=Device)
"""A device, of a kind that checks more or less."""


@once_by_name
def load_device(name: str | Path | Mapping[str, Any], *, key: str = "cluster.device") -> Device:
    """Return a device by shipped name, by path of a YAML file, or from a mapping.

    A file or mapping with ``extends: NAME`` starts from that device and overrides it field by
    field. A file that a file extends is found from the folder of the one that says so. A shipped
    device is read once in a process.
    """
    return read_device(name, key, Device)


def read_device(name: str | Path | Mapping[str, Any], key: str, kind: type[D]) -> D:
    """Return a device as `load_device` does, of one kind."""
    return kind.parse(_whole_data(name, key, ()), path=key)


def _whole_data(
    name: str | Path | Mapping[str, Any], key: str, chain: tuple[str, ...]
) -> dict[str, Any]:
    """Return a device's data with what its families have, all of it scaled to its own rates."""
    found = _device_data(name, key, chain)
    scales = found.pop("scales", True)
    data = _with_architecture(found, MEMORY, hardware_table(MEMORY).keys() - {"sources"})
    data = _with_family(data, "expert_family", "experts.yaml", key)
    data = _with_family(data, "gemm_family", "gemm.yaml", key)
    data = _with_architecture(data, TRAINING, hardware_table(TRAINING)["families"], OTHER_FAMILY)
    data = _with_family(data, "attention_family", ATTENTION, key)
    own, base, chain = stated_and_base(name, "hardware", key=key, chain=chain, suffixes=YAML)
    if base is None:
        return data
    whole = _of_shipped if isinstance(base, str) and not base.endswith(YAML) else _whole_data
    return scaled(data, own, whole(base, key, chain), scales=scales is not False)


_of_shipped = cache(_whole_data)


def _device_data(
    name: str | Path | Mapping[str, Any], key: str, chain: tuple[str, ...]
) -> dict[str, Any]:
    # What a mapping extends is looked at next.
    if (not isinstance(name, Mapping) or "kind" in name) and is_first_order(name, key):
        called = name.get("name", "this device") if isinstance(name, Mapping) else name
        refuse_first_order(str(called), key)
    if not isinstance(name, str | Path | Mapping):
        msg = f"{key}: a device is a name, a file or a mapping, got {name!r}"
        raise ConfigError(msg, key=key, value=name, allowed="a name, a file or a mapping")
    data, base, chain = stated_and_base(name, "hardware", key=key, chain=chain, suffixes=YAML)
    if base is None:
        return data
    taken = _taken_from(_device_data(base, key, chain))
    return merge({name: value for name, value in taken.items() if name != "scales"}, data)


def is_first_order(name: Any, key: str, depth: int = 0) -> bool:
    """Whether a name, a file or a mapping is of a device that only the first-order model knows."""
    if isinstance(name, Mapping):
        # Whoever reads a circle says that it is one.
        if "kind" in name or "extends" not in name or depth > MOST_EXTENDS:
            return name.get("kind") == FIRST_ORDER_KIND
        return is_first_order(name["extends"], key, depth + 1)
    if isinstance(name, Path) or (isinstance(name, str) and name.endswith(YAML)):
        data = read_yaml(name, key=key)
        base = base_of(data, name)
        return is_first_order(data if base is None else {**data, "extends": base}, key, depth)
    if not isinstance(name, str) or resources.normalise(name) in resources.index("hardware"):
        return False
    return resources.normalise(name) in resources.index(FIRST_ORDER_DEVICES)


def refuse_first_order(called: str, key: str) -> NoReturn:
    """Raise `ConfigError` for a device that has no compute units."""
    msg = (
        f"{key}: {called} is known to the first-order model alone (peak rates, memory, links; no "
        "compute units): add --fidelity first-order, or take a device with compute units"
    )
    raise ConfigError(msg, key=key, value=called, allowed="--fidelity first-order")


def _taken_from(base: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device's data for one that extends it: every source says whose number it is."""
    owner = base.get("name", "another device")
    return _told(base, lambda text: text if text.startswith(TAKEN) else f"{TAKEN}{owner}: {text}")


@cache
def _of_family(file: str, name: str) -> Mapping[str, Any]:
    """Return what a family has for its devices: every source says that it is the family's."""
    table = hardware_table(file)
    if file == TRAINING:
        data = table["families"][name]
    elif file == ATTENTION:
        kernels = table[name]["kernels"]
        data = {"attention": kernels[table[name]["default"]], "attention_kernels": kernels}
    else:
        data = table[name]
    return _told({**data, "sources": table["sources"]}, lambda text: f"{name} family: {text}")


def _told(data: Mapping[str, Any], tell: Callable[[str], str]) -> dict[str, Any]:
    """Return data with its sources written out, since what is laid over it may reuse their keys."""
    table = source_table(data)

    def written(value: Any) -> Any:
        if is_mapping(value):
            if "value" in value and value.keys() <= SOURCED:
                text = table.get(str(value.get("source")), value.get("source") or "unsourced")
                return {**value, "source": tell(str(text))}
            return {name: written(item) for name, item in value.items()}
        return [written(item) for item in value] if isinstance(value, list) else value

    fields = {name: written(value) for name, value in data.items() if name != "sources"}
    of_menus = {key: tell(str(text)) for key, text in of_fields(Device, table).items()}
    return {**fields, "sources": of_menus}


def _with_family(data: dict[str, Any], field: str, file: str, key: str) -> dict[str, Any]:
    """Return a device's data over what its family, named in ``field``, has in ``file``."""
    name = _value(data, field)
    if name is None:
        return data
    known = sorted(hardware_table(file).keys() - {"sources", "shared", "bands"})
    if not isinstance(name, str) or name not in known:
        msg = f"{key}.{field}: unknown family {name!r}; known: {', '.join(known)}"
        raise ConfigError(msg, key=f"{key}.{field}", value=name, allowed=known)
    return merge(_of_family(file, name), data)


def _value(data: Mapping[str, Any], field: str) -> Any:
    value = data.get(field)
    return value.get("value") if isinstance(value, Mapping) else value


def _with_architecture(
    data: dict[str, Any], file: str, listed: Container[str], other: str | None = None
) -> dict[str, Any]:
    """Return a device's data over what a file has for its architecture, or for any ``other``."""
    name = _value(data, "architecture")
    name = name if isinstance(name, str) and name in listed else other
    return data if name is None else merge(_of_family(file, name), data)


def attention_band(evidence: Evidence) -> float:
    """Return the relative error that 68 % of attentions stay within that are known like this."""
    return float(hardware_table(ATTENTION)["bands"][evidence]["value"])


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
    """Return whose number one of this source is; estimates stay ones when they are taken over."""
    if _ASSUMED.search(text):
        return ASSUMED
    if text.startswith(TAKEN):
        return text.removeprefix(TAKEN).partition(": ")[0]
    found = _OF_FAMILY.match(text) or _IN_TEXT.search(text)
    return found[1] if found else OWN
