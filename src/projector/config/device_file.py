"""Reading a device: its file, what it extends, and what its architecture and families have."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from projector.config import resources
from projector.config.device import Device
from projector.config.device_kernels import Evidence
from projector.config.sections import hardware_table
from projector.config.sourced import SOURCED, is_field, merge, source_table
from projector.config.yaml_file import MOST_EXTENDS, base_of, extended, read_yaml
from projector.errors import ConfigError

TAKEN = "taken from "
"""How the source of a number begins that a device has from another one: ``taken from NAME: …``."""

FIRST_ORDER = "hardware/first_order"
"""Folder of devices that only the first-order model knows."""

FIRST_ORDER_KIND = "first_order"
"""What their files say as ``kind``."""

OTHER_FAMILY = "other"
"""Entry of ``hardware/training.yaml`` for architectures that it does not list."""

D = TypeVar("D", bound=Device)
"""A device, of a kind that checks more or less."""


def load_device(name: str | Path | Mapping[str, Any], *, key: str = "cluster.device") -> Device:
    """Return a device by shipped name, by path of a YAML file, or from a mapping.

    A file or mapping with ``extends: NAME`` starts from that device and overrides it field by
    field. A file that a file extends is found from the folder of the one that says so. A shipped
    device is read once in a process.

    Raises
    ------
    ConfigError
        For an unknown name (with the nearest ones) or an invalid field.
    """
    if isinstance(name, str) and not name.endswith((".yaml", ".yml")):
        return _shipped(name, key)
    return read_device(name, key, Device)


@lru_cache(maxsize=128)
def _shipped(name: str, key: str) -> Device:
    """Return a shipped device, read once: it takes milliseconds, and functions go by name."""
    return read_device(name, key, Device)


def read_device(name: str | Path | Mapping[str, Any], key: str, kind: type[D]) -> D:
    """Return a device as `load_device` does, of one kind."""
    data = _with_memory(_device_data(name, key, ()))
    data = _with_expert_family(data, key)
    data = _with_training(_with_gemm_family(data, key))
    return kind.parse(_with_family(data, key), path=key)


def _device_data(
    name: str | Path | Mapping[str, Any], key: str, chain: tuple[str, ...]
) -> dict[str, Any]:
    chain = extended(chain, name, key=key)
    # What a mapping extends is looked at next.
    own = not isinstance(name, Mapping) or "kind" in name
    if own and is_first_order(name, key):
        called = name.get("name", "this device") if isinstance(name, Mapping) else name
        refuse_first_order(str(called), key)
    if isinstance(name, Mapping):
        data = dict(name)
        base = data.pop("extends", None)
    elif isinstance(name, Path) or str(name).endswith((".yaml", ".yml")):
        data = read_yaml(name, key=key)
        base = base_of(data, name)
    elif isinstance(name, str):
        data = dict(resources.contents(resources.find("hardware", name, key=key)))
        base = data.pop("extends", None)
    else:
        msg = f"{key}: a device is a name, a file or a mapping, got {name!r}"
        raise ConfigError(msg, key=key, value=name, allowed="a name, a file or a mapping")
    if base is None:
        return data
    return merge(_taken_from(_device_data(base, key, chain)), data)


def is_first_order(name: Any, key: str, depth: int = 0) -> bool:
    """Whether a name, a file or a mapping is of a device that only the first-order model knows."""
    if isinstance(name, Mapping):
        # Whoever reads a circle says that it is one.
        if "kind" in name or "extends" not in name or depth > MOST_EXTENDS:
            return name.get("kind") == FIRST_ORDER_KIND
        return is_first_order(name["extends"], key, depth + 1)
    if isinstance(name, Path) or (isinstance(name, str) and name.endswith((".yaml", ".yml"))):
        data = read_yaml(name, key=key)
        base = base_of(data, name)
        return is_first_order(data if base is None else {**data, "extends": base}, key, depth)
    if not isinstance(name, str) or resources.normalise(name) in resources.index("hardware"):
        return False
    return resources.normalise(name) in resources.index(FIRST_ORDER)


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


def _of_family(name: str, data: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a family has for its devices: every source says that it is the family's."""
    return _told({**data, "sources": table["sources"]}, lambda text: f"{name} family: {text}")


def _told(data: Mapping[str, Any], tell: Callable[[str], str]) -> dict[str, Any]:
    """Return data with its sources written out and told anew.

    A key would not do: what is laid over the data may call a source of its own by it.
    """
    table = source_table(data)

    def written(value: Any) -> Any:
        if isinstance(value, Mapping):
            if "value" in value and value.keys() <= SOURCED:
                text = table.get(str(value.get("source")), value.get("source") or "unsourced")
                return {**value, "source": tell(str(text))}
            return {name: written(item) for name, item in value.items()}
        return [written(item) for item in value] if isinstance(value, list) else value

    fields = {name: written(value) for name, value in data.items() if name != "sources"}
    of_menus = {key: tell(str(text)) for key, text in table.items() if is_field(Device, key)}
    return {**fields, "sources": of_menus}


def _family(
    data: Mapping[str, Any], field: str, file: str, key: str
) -> tuple[str | None, Mapping[str, Any]]:
    """Return the family that a field names and the file that describes it; None without one."""
    name = data.get(field)
    name = name.get("value") if isinstance(name, Mapping) else name
    if name is None:
        return None, {}
    table = hardware_table(file)
    known = sorted(table.keys() - {"sources", "shared", "bands"})
    if not isinstance(name, str) or name not in known:
        msg = f"{key}.{field}: unknown family {name!r}; known: {', '.join(known)}"
        raise ConfigError(msg, key=f"{key}.{field}", value=name, allowed=known)
    return name, table


def _with_memory(data: dict[str, Any]) -> dict[str, Any]:
    """Return a device's data over what drivers and libraries of its architecture keep in memory.

    An architecture that nothing is known of has the defaults of `Device`.
    """
    name = data.get("architecture")
    name = name.get("value") if isinstance(name, Mapping) else name
    table = hardware_table("memory.yaml")
    if not isinstance(name, str) or name not in table or name == "sources":
        return data
    return merge(_of_family(name, table[name], table), data)


def _with_expert_family(data: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a device's data over the layers of experts of its family, if it has one."""
    name, table = _family(data, "expert_family", "experts.yaml", key)
    if name is None:
        return data
    return merge(_of_family(name, table[name], table), data)


def _with_gemm_family(data: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a device's data over the GEMM libraries and constants of its family, if it has one."""
    name, table = _family(data, "gemm_family", "gemm.yaml", key)
    if name is None:
        return data
    return merge(_of_family(name, table[name], table), data)


def _with_training(data: dict[str, Any]) -> dict[str, Any]:
    """Return a device's data over what a training step costs on its architecture."""
    table = hardware_table("training.yaml")
    name = data.get("architecture")
    name = name.get("value") if isinstance(name, Mapping) else name
    known = isinstance(name, str) and name in table["families"]
    family = str(name) if known else OTHER_FAMILY
    constants = {"sources": table["sources"], **table["families"][family]}
    return merge(_of_family(family, constants, table), data)


def _with_family(data: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a device's data over the attention kernels of its family, if it has one."""
    name, table = _family(data, "attention_family", "attention.yaml", key)
    if name is None:
        return data
    kernels = table[name]["kernels"]
    family = {
        "attention": kernels[table[name]["default"]],
        "attention_kernels": kernels,
    }
    return merge(_of_family(name, family, table), data)


def attention_band(evidence: Evidence) -> float:
    """Return the relative error that 68 % of attentions stay within that are known like this."""
    bands = hardware_table("attention.yaml")["bands"]
    return float(bands[evidence]["value"])
