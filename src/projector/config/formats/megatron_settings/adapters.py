"""Settings of adapters: the mapping ``lora`` of Primus, as Megatron-Bridge has it."""

from collections.abc import Mapping
from typing import Any, Final

from projector.config.formats.megatron_settings.settings import Settings
from projector.config.formats.megatron_settings.values import flag, integer

TAKEN_OVER: Final = frozenset({"lora", "peft"})
"""Settings that say what has adapters."""

_FIELDS: Final = {
    "dim": "rank",
    "alpha": "alpha",
    "dropout": "dropout",
    "dropout_position": "dropout_position",
    "target_modules": "targets",
    "peft_scheme": "kind",
}
"""Key of the mapping -> our field."""

_HARMLESS: Final = frozenset(
    {"enabled", "lora_A_init_method", "lora_B_init_method", "lora_dtype", "_target_"}
)
"""Keys that change neither what is trained nor what it costs."""

_CLASSES: Final = {"LoRA": "lora", "CanonicalLoRA": "canonical_lora", "DoRA": "dora"}
"""Class of Megatron-Bridge -> kind of adapter."""

_REFUSED: Final = {
    "a2a_experimental": "outputs of adapters are gathered",
    "exclude_modules": "modules are named, not left out",
}
"""Keys that make another training of it -> what is modelled."""


def adapter(settings: Settings) -> None:
    """Set the adapters; a mapping that is not enabled has none."""
    for name in sorted(TAKEN_OVER):
        value = settings.stated.get(name)
        if value in (None, False, {}):
            continue
        if not isinstance(value, Mapping):
            settings.fail(name, " is a mapping of settings", value=value, allowed="a mapping")
        enabled = value.get("enabled", True)
        if flag(f"{settings.spell(name)}.enabled", enabled):
            settings.put("training.adapter", _read(settings, name, value), name)


def _read(settings: Settings, name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    adapter: dict[str, Any] = {}
    target = str(stated.get("_target_", "")).rpartition(".")[2]
    if target:
        adapter["kind"] = _CLASSES.get(target, target)
    for key, value in stated.items():
        if key in _FIELDS:
            adapter[_FIELDS[key]] = value
        elif key == "normalize_moe_lora":
            if value:
                adapter["expert_rank"] = _expert_rank(settings, name, stated)
        elif key not in _HARMLESS and value:
            why = _REFUSED.get(key, "it is not known")
            settings.refuse(name, f".{key} is not modelled: {why}", value=value)
    return {field: value for field, value in adapter.items() if value is not None}


def _expert_rank(settings: Settings, name: str, stated: Mapping[str, Any]) -> int:
    """Return the rank beside routed experts, divided by how many of them a token visits."""
    moe = {**(settings.base_section("moe") or {}), **settings.native("model").get("moe", {})}
    dim = stated.get("dim")
    rank = 32 if dim is None else integer(f"{settings.spell(name)}.dim", dim)
    topk = max(1, int(moe.get("router_topk", 1)))
    if rank % topk:
        text = f".dim ({rank}) is divided by the {topk} experts of a token (normalize_moe_lora)"
        settings.fail(name, text, value=rank, allowed=f"a multiple of {topk}")
    return rank // topk
