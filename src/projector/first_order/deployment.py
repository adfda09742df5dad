"""Reading a deployment for closed forms from a serving file and from options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.config.first_order import FirstOrderConfig
from projector.config.yaml_file import beside, read_yaml
from projector.errors import ConfigError
from projector.first_order.serving import FirstOrderServing, project_serving

FIELDS = {
    "model": "model",
    "device": "device",
    "cluster.device": "device",
    "cluster.gpu": "device",
    "tp": "tp",
    "pp": "pp",
    "dtype": "dtype",
    "weights": "weights",
    "kv_cache_bytes": "cache_element_bytes",
    "load.batch": "batch",
    "load.context": "context",
    "load.output": "output",
}
"""Dotted field of a deployment -> argument of `project_serving`."""

CONSTANT = "first_order."


def project_deployment(
    source: str | Path | None, changes: Mapping[str, Any]
) -> tuple[FirstOrderServing, list[str]]:
    """Project a serving file and options in closed form.

    Parameters
    ----------
    source : str, Path or None
        A serving file; what closed forms have no use for is named in a warning.
    changes : mapping
        Dotted field -> value; a field that closed forms have no use for is an error.
    """
    stated = {} if source is None else _flat(read_yaml(source))
    ignored = sorted(name for name in stated if not _is_used(name))
    for name, value in changes.items():
        if not _is_used(name):
            msg = f"{name} has no meaning in closed forms; leave it or --fidelity out"
            raise ConfigError(msg, key=name, value=value, allowed=sorted(FIELDS))
    merged = {**stated, **changes}
    given = {FIELDS[name]: value for name, value in merged.items() if name in FIELDS}
    if source is not None:
        folder = Path(source).parent
        given |= {
            name: beside(given[name], folder) for name in ("model", "device") if name in given
        }
    for name, example in (("model", "llama3.1_70b"), ("device", "tpu_v5p")):
        if given.get(name) is None:
            msg = f"{name}: is required; name one, for example {example}"
            raise ConfigError(msg, key=name, allowed=f"a {name} name")
    constants = {
        name.removeprefix(CONSTANT): value
        for name, value in merged.items()
        if name.startswith(CONSTANT)
    }
    config = FirstOrderConfig.parse(constants, path="first_order")
    kept = {name: value for name, value in given.items() if value is not None}
    result = project_serving(kept.pop("model"), kept.pop("device"), **kept, first_order=config)
    unused = [f"{name} has no meaning in closed forms and is not used" for name in ignored]
    return result, [*result.warnings, *unused]


def _is_used(name: str) -> bool:
    return name in FIELDS or name.startswith(CONSTANT)


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted fields; models and devices stay whole."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if name in {"cluster", "load", "first_order"} and isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat
