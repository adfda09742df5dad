"""Settings in which two jobs differ.

What two jobs have in common (model, device, framework) is off by about as much in both, so the
ratio of their step times is known better than either. How well depends on what differs.
"""

from collections.abc import Collection, Mapping
from typing import Any

from projector.config.job import Job
from projector.lower.batch import data_parallel

SEVERAL = "several"
"""Name of pairs that differ in more than one setting."""

SWITCHES = "switches"
"""Every setting of parallelism or training that has no name of its own."""

MOST_TOKENS = 2.0
"""Longer sequences come in smaller microbatches: these go with them where the tokens of a
microbatch stay within this factor."""

_NAMED = {
    "tp": ("parallelism.tp",),
    "pp": ("parallelism.pp",),
    "vpp": ("parallelism.vpp",),
    "cp": ("parallelism.cp", "parallelism.cp_comm_type"),
    "ep": ("parallelism.ep",),
    "sharding": ("parallelism.zero_stage", "parallelism.fsdp", "parallelism.sharding_group_size"),
    "micro_batch": ("training.micro_batch_size",),
    "global_batch": ("training.global_batch_size",),
    "sequence": ("training.seq_length",),
    "gpus": ("cluster.nodes", "cluster.gpus_per_node"),
    "precision": ("training.precision", "training.fp8_", "training.first_last_layers_bf16"),
    "recompute": ("training.recompute",),
    "schedule": ("training.schedule", "training.zero_bubble_", "training.optimizer_post_"),
}
"""Setting -> its dotted fields, or what they begin with."""

SETTINGS = (*_NAMED, SWITCHES)
"""Settings of which one or more differ in a pair."""

_FOLLOWS = {
    "parallelism.etp": ("tp", "ep"),
    "parallelism.sequence_parallel": ("tp",),
    "parallelism.tp_comm_overlap": ("tp",),
    "parallelism.account_for_": ("pp", "vpp"),
    "parallelism.decoder_": ("pp", "vpp"),
    "parallelism.pipeline_model_parallel_layout": ("pp", "vpp"),
    "parallelism.fsdp_": ("sharding",),
    "parallelism.overlap_": ("gpus", "tp", "pp", "cp", "sharding"),
    "training.schedule": ("pp", "vpp"),
    "parallelism.vpp": ("pp",),
}
"""Fields that count only where none of these settings differs: they go with them."""

_DERIVED = ("parallelism.dp", "model.max_position_embeddings", "cluster.network.")
"""Fields that follow from others, or that hardly change a step."""


def changed_settings(first: Job, second: Job) -> tuple[str, ...] | None:
    """Return the settings in which two jobs differ, in the order of `SETTINGS`.

    A global batch that follows from another setting counts with it: the same number of
    microbatches, of tokens, or of sequences on each device. None where model, device, framework or
    software differ, so that nothing cancels.
    """
    fields = _changed_fields(first, second)
    if fields is None:
        return None
    changed = {*settings_of(fields)}
    if "sequence" in changed and _tokens_stay(first, second):
        changed.discard("micro_batch")
    if changed - {"global_batch"} and _batch_follows(first, second):
        changed.discard("global_batch")
    return tuple(name for name in SETTINGS if name in changed)


def settings_of(fields: Collection[str]) -> tuple[str, ...]:
    """Return the settings that dotted fields of parallelism and training belong to, in order."""
    changed = {_setting_of(field) for field in fields if not _of(field, _FOLLOWS)}
    for field in fields:
        owners = _of(field, _FOLLOWS)
        if owners and not changed.intersection(owners):
            changed.add(_setting_of(field))
    return tuple(name for name in SETTINGS if name in changed)


def name_of(settings: tuple[str, ...]) -> str:
    """Return the name of pairs that differ in these settings; ``""`` where none does."""
    return settings[0] if len(settings) == 1 else SEVERAL if settings else ""


def _changed_fields(first: Job, second: Job) -> list[str] | None:
    """Return the dotted fields that differ; None where they are of different machines or models."""
    if first.model.name != second.model.name or first.cluster.device != second.cluster.device:
        return None
    if (first.cluster.network != second.cluster.network) and (
        first.cluster.gpus == second.cluster.gpus
    ):
        return None
    fields = []
    for section in ("model", "parallelism", "training", "cluster"):
        one, other = getattr(first, section), getattr(second, section)
        exclude = {"device", "network"} if section == "cluster" else {"name", "source"}
        if one != other:
            fields += _differences(
                one.model_dump(exclude=exclude), other.model_dump(exclude=exclude), f"{section}."
            )
    fields = [field for field in fields if not field.startswith(_DERIVED)]
    alike = ("parallelism.", "training.", "cluster.nodes", "cluster.gpus_per_node")
    named = [field for field in fields if field.startswith(alike)]
    is_other = len(named) < len(fields) or any("framework" in field for field in named)
    return None if is_other else named


def _differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str) -> list[str]:
    fields: list[str] = []
    for name in dict.fromkeys([*first, *second]):
        one, other = first.get(name), second.get(name)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            fields += _differences(one, other, f"{prefix}{name}.")
        else:
            fields.append(f"{prefix}{name}")
    return fields


def _of(field: str, table: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return next((value for prefix, value in table.items() if field.startswith(prefix)), ())


def _setting_of(field: str) -> str:
    for name, prefixes in _NAMED.items():
        if any(field.startswith(prefix) for prefix in prefixes):
            return name
    return SWITCHES


def _tokens_stay(first: Job, second: Job) -> bool:
    one, other = (
        job.training.micro_batch_size * job.training.seq_length for job in (first, second)
    )
    return max(one, other) <= MOST_TOKENS * min(one, other)


def _batch_follows(first: Job, second: Job) -> bool:
    def counts(job: Job) -> tuple[float, ...]:
        training = job.training
        batch = training.global_batch_size
        replica = training.micro_batch_size * data_parallel(job)
        return batch / replica, float(batch * training.seq_length), batch / job.cluster.gpus

    return any(one == other for one, other in zip(counts(first), counts(second), strict=True))
