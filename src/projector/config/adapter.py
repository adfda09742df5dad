"""Adapters: small matrices that are trained beside weights that stay as they are."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from projector.config._base import Config, Count, Positive
from projector.config.model import ModelConfig
from projector.config.model_file import read_json
from projector.config.resources import SPELLINGS, settings_of
from projector.errors import ConfigError, UnsupportedError

SITES: Final = (
    "qkv", "q", "k", "v", "proj", "q_down", "q_up", "kv_down", "kv_up", "fc1", "gate", "up", "fc2",
)  # fmt: skip
"""Linear layers that an adapter may stand beside; ``qkv`` and ``fc1`` are one adapter beside what
``q``, ``k``, ``v`` and ``gate``, ``up`` have one each beside."""

_FUSED: Final = {"qkv": ("q", "k", "v"), "fc1": ("gate", "up")}

_EVERY: Final = tuple(site for site in SITES if site not in _FUSED)

_TABLE: Final = settings_of("adapters")

TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    name: (site,) for site, names in _TABLE["modules"].items() for name in names.split()
} | {"all-linear": _EVERY}
"""Name of a module -> the linear layers it stands for."""

MEGATRON_TARGETS: Final = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Modules that Megatron-Bridge and Primus put adapters beside where nothing is stated."""

KINDS: Final[Mapping[str, Mapping[str, Any]]] = _TABLE["kinds"]
"""Kind of adapter -> what it sets where nothing is stated."""


class AdapterConfig(Config):
    """Low-rank adapters: beside a frozen ``W`` of a layer ``B A`` is trained."""

    kind: Literal["lora"] = "lora"
    """``lora``; ``qlora`` is short for one over a base in ``nf4``, ``canonical_lora`` for one with
    adapters of their own beside Q, K, V, gate and up."""
    rank: int = Field(default=32, gt=0, le=1 << 20)
    """Width between ``A`` and ``B``; Megatron-Bridge takes 32 where nothing is stated."""
    alpha: Positive | None = None
    """Scale of what an adapter adds, times its rank. Changes no projection."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the input of an adapter, or of its output, that is dropped."""
    dropout_position: Literal["pre", "post"] = "pre"
    """Before ``A``, or behind ``B``."""
    targets: tuple[str, ...] = MEGATRON_TARGETS
    """Modules that have an adapter, by the names of Megatron or of Hugging Face."""
    expert_rank: Count | None = Field(default=None, le=1 << 20)
    """Rank beside routed experts; none given means ``rank``."""
    expert_adapters: Literal["shared", "each"] = "shared"
    """One adapter beside all experts of a rank, as Megatron-Bridge has it, or one beside each."""
    base_precision: Literal["nf4"] | None = None
    """Storage of the frozen linear layers: 4 bits (``nf4``), made 16 bits for each use. None given
    means the type of training."""
    aliases: ClassVar = SPELLINGS["adapter"]

    @model_validator(mode="before")
    @classmethod
    def _of_other_files(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        key = "peft_scheme" if "kind" not in data and "peft_scheme" in data else "kind"
        name = str(data.get(key, "lora")).lower()
        if name not in KINDS:
            why = _TABLE["other_kinds"].get(name)
            if why:
                msg = f"{name} is not modelled: {why}"
                raise UnsupportedError(msg, key=key, value=data[key], allowed=sorted(KINDS))
            msg = f"unknown kind of adapter {data[key]!r}; known: {', '.join(sorted(KINDS))}"
            raise ConfigError(msg, key=key, value=data[key], allowed=sorted(KINDS))
        stated = {cls.aliases.get(str(given), given) for given in data}
        missing = {field: value for field, value in KINDS[name].items() if field not in stated}
        return {**data, **missing, key: "lora"}

    @field_validator("targets", mode="before")
    @classmethod
    def _one_target(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("targets", mode="after")
    @classmethod
    def _targets_are_known(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        known = sorted(TARGETS)
        for name in targets:
            if name not in TARGETS:
                msg = f"no adapter can stand beside {name!r}; known: {', '.join(known)}"
                raise UnsupportedError(msg, value=name, allowed=known)
        if not targets:
            raise ConfigError("names no module", value=[], allowed=known)
        sites = sites_of(targets)
        for fused, parts in _FUSED.items():
            both = [name for name in targets if sites & {fused, *parts} & {*TARGETS[name]}]
            if fused in sites and sites & {*parts}:
                msg = f"{', '.join(both)} name one layer as a whole and in parts"
                raise ConfigError(msg, value=both, allowed="the whole, or its parts")
        return targets

    @cached_property
    def sites(self) -> frozenset[str]:
        """The linear layers that have an adapter, of `SITES`."""
        return sites_of(self.targets)

    @property
    def rank_of_experts(self) -> int:
        """Rank beside routed experts."""
        return self.expert_rank or self.rank


def sites_of(targets: Iterable[str]) -> frozenset[str]:
    """Return the linear layers that some of `TARGETS` stand for."""
    return frozenset(site for name in targets for site in TARGETS[name])


def model_sites(model: ModelConfig) -> frozenset[str]:
    """Return the linear layers that a model has, of `SITES`."""
    mla = model.mla
    if mla is None:
        attention = {"qkv", "q", "k", "v"}
    elif mla.q_lora_rank:
        attention = {"q_down", "q_up", "kv_down", "kv_up"}
    else:
        attention = {"q", "kv_down", "kv_up"}
    return frozenset({*attention, "proj", "fc1", "up", "fc2", *(["gate"] if model.gated else [])})


def adapter_data(value: Any) -> Any:
    """Return ``training.adapter`` as a mapping: it states a kind, a file of PEFT, or a mapping."""
    if value is False:
        return None
    if isinstance(value, str):
        value = read_json(Path(value)) if value.endswith(".json") else {"kind": value}
    return read_peft(value) if isinstance(value, Mapping) and "peft_type" in value else value


def refuse_adapter(adapter: AdapterConfig | None, why: str) -> None:
    """Refuse a job with adapters where they are not modelled."""
    if adapter is not None:
        msg = f"training.adapter is not modelled here: {why}"
        raise UnsupportedError(msg, key="training.adapter", value=adapter.kind, allowed="none")


# The ``adapter_config.json`` of Hugging Face's PEFT.

_PEFT_FIELDS: Final = ("r", "lora_alpha", "lora_dropout", "target_modules")

_PEFT_DEFAULTS: Final = {"rank": 8, "expert_adapters": "each"}
"""What PEFT has where a file says nothing: its rank, and an adapter beside each module."""


def read_peft(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``training.adapter`` that a file of PEFT describes."""
    kind = data["peft_type"]
    adapter: dict[str, Any] = {"kind": kind}
    if str(kind).upper() != "LORA":
        return adapter
    harmless, refused = _TABLE["peft_harmless"].split(), _TABLE["peft_refused"]
    for key, value in data.items():
        off = value in (None, False, 0, "none") or value in ({}, [], ())
        if key in _PEFT_FIELDS:
            if value is not None:
                adapter[AdapterConfig.aliases[key]] = value
        elif key == "bias":
            if not off:
                _refuse_peft(key, value, "biases are frozen")
        elif key not in harmless and not off:
            _refuse_peft(key, value, refused.get(key, "it is not known"))
    if "targets" not in adapter:
        msg = "names no module: PEFT then takes those of a table by model"
        raise ConfigError(msg, key="target_modules", allowed="a list of modules")
    return {**_PEFT_DEFAULTS, **adapter}


def _refuse_peft(key: str, value: Any, why: str) -> None:
    raise UnsupportedError(f"{key} is not modelled: {why}", key=key, value=value, allowed=None)
