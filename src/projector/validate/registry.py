"""The kinds of measurement tables, by name; each is loaded when it is asked for."""

from importlib import import_module

from projector.errors import ConfigError
from projector.validate.kind import Kind

_HOMES = {
    "training_throughput": "projector.validate.training",
    "memory": "projector.validate.memory",
    "gemm_measured": "projector.validate.gemm",
    "moe_measured": "projector.validate.moe",
    "attention_measured": "projector.validate.attention",
    "collectives_measured": "projector.validate.collectives",
    "serving_measured": "projector.validate.serving",
    "param_counts": "projector.validate.param_counts",
}

KINDS = tuple(_HOMES)


def kind_of(name: str) -> Kind:
    """Return a kind of table."""
    home = _HOMES.get(name)
    if home is None:
        msg = f"unknown kind of table {name!r}; known: {', '.join(KINDS)}"
        raise ConfigError(msg, key="kind", value=name, allowed=list(KINDS))
    kind: Kind = import_module(home).KIND
    return kind
