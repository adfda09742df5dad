"""What a published row says of ZeRO, FSDP and the groups that share states."""

import re
from typing import Any, NamedTuple

_STAGE = re.compile(r"zero[-_ ]?(?:stage[-_ ]?)?([0-3])(?!\d)")
_GROUP = (
    # Ranks that share the states, beside those that hold copies of them.
    r"shard\w*[-_ :=(]*(?:degree|size|group)?[-_ :=]*(\d+)",
    r"(\d+)[ -]*(?:way )?shard",
    r"group(?: of| size)?[ :=]*(\d+)",
    r"(?:zero1|over|within)[ :=(]*(\d+)",
    r"(?<![\w.-])(\d+)(?: ?[x*] ?\d+)?\b",
)
"""Spellings of the ranks of a group; the first that applies."""
_FSDP = r"fsdp|hsdp|full[_ ]shard|hybrid[_ ]shard|shard_grad_op|dp_shard|parallel_shard"
_GENERATION = re.compile(r"(fsdp|zero)[-_ ]?(?:stage[-_ ]?|v)?[0-3](?!\d)")


class Sharding(NamedTuple):
    """States that data-parallel ranks share, and between which of them."""

    stage: int | None
    """ZeRO stage; None where the text names none."""
    is_fsdp: bool
    """Whether FSDP or HSDP shards weights layer by layer."""
    keeps_weights: bool
    """Whether gathered weights are kept after the forward."""
    group: int
    """Ranks that share one copy, 0 where the text gives none."""
    within_node: bool
    """Whether the ranks of a node share one copy."""


def sharding_of(text: str) -> Sharding:
    """Read texts such as ``FSDP2 32``, ``HSDP 8x4``, ``zero3 group 64`` or ``ZeRO-1 (zero1=8)``.

    Megatron-FSDP names its strategies: ``optim`` is ZeRO 1, ``optim_grads`` ZeRO 2, and
    ``optim_grads_params`` FSDP.
    """
    lowered = text.lower()
    keeps = "shard_grad_op" in lowered or "shard_zero2" in lowered
    stated = None if keeps else _STAGE.search(lowered)
    stage = int(stated[1]) if stated else None
    megatron = re.search(r"\boptim(_grads)?(_params)?\b", lowered)
    if megatron and stage is None:
        stage = 3 if megatron[2] else 2 if megatron[1] else 1
    if re.search(r"no[_ ]shard|^ddp\b(?!.*optimizer)|^none\b", lowered):
        stage = 0
    names_fsdp = bool(re.search(_FSDP, lowered))
    is_fsdp = names_fsdp and stage in {None, 3}
    hybrid = bool(re.search(r"hsdp|hybrid", lowered))
    group = _group(lowered)
    inside = re.search(r"(?:within|intra|inside|in)[- ]?(?:a |one |the )?node", lowered)
    return Sharding(
        stage=stage,
        is_fsdp=is_fsdp,
        keeps_weights=keeps,
        group=group,
        within_node=not group and bool(inside or hybrid),
    )


def sharding_fields(sharding: Sharding, generation: int, ranks: int, node: int) -> dict[str, Any]:
    """Return the fields of ``parallelism`` that a text of `sharding_of` sets.

    ``generation`` is that of FSDP, 1 or 2. ``ranks`` are those of data and context parallelism, and
    ``node`` those of them on one node.
    """
    out: dict[str, Any] = {}
    if sharding.is_fsdp:
        out["fsdp"] = generation
        out["fsdp_reshard_after_forward"] = not sharding.keeps_weights
    else:
        out["zero_stage"] = 1 if sharding.stage is None else sharding.stage
    group = sharding.group or (node if sharding.within_node else 0)
    if 1 < group < ranks and ranks % group == 0 and out.get("zero_stage") != 0:
        out["sharding_group_size"] = group
    return out


def _group(lowered: str) -> int:
    bare = _GENERATION.sub(r"\1", lowered)
    copies = re.search(r"replic\w*[-_ :=(]*(?:degree|size)?[-_ :=]*\d+", bare)
    rest = bare.replace(copies[0], "") if copies else bare
    for spelling in _GROUP:
        found = re.search(spelling, rest)
        if found and int(found[1]) > 0:
            return int(found[1])
    return 0
