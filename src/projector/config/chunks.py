"""The chunks of a rank that a schedule of a pipeline brings along."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from projector.config._base import Config
from projector.config.names import native_names
from projector.config.parallelism import ParallelismConfig
from projector.config.schedule_names import chunks_of, schedule_name
from projector.config.training import TrainingConfig

_SCHEDULE = ("training", "schedule")
_CHUNKS = {
    ("parallelism",),
    ("parallelism", "vpp"),
    ("parallelism", "pipeline_model_parallel_layout"),
}
_COUNTS = {1: "one chunk", 2: "two chunks"}


def fit_chunks(
    data: dict[str, Any], origins: dict[str, str], stated: Iterable[tuple[str, ...]]
) -> list[str]:
    """Give a schedule the chunks a rank that it needs, where they are not stated.

    Chunks of the file count as stated for a schedule of the file, those of an override for every
    schedule.

    Parameters
    ----------
    data : dict
        The native layout with all overrides; ``parallelism`` may be replaced.
    origins : dict
        Dotted field -> where its value came from; gains the chunks.
    stated : iterable of tuple
        Fields that overrides state, as their native parts.

    Returns
    -------
    list of str
        A warning where chunks of the file give way.
    """
    overridden = set(stated)
    training, split = data.get("training"), data.get("parallelism") or {}
    if not isinstance(training, Mapping) or not isinstance(split, Mapping):
        return []
    asked = training.get(_key(training, "schedule", TrainingConfig))
    key = _key(split, "vpp", ParallelismConfig)
    before, ranks = split.get(key), split.get(_key(split, "pp", ParallelismConfig), 1)
    by_file = before is not None and _SCHEDULE not in overridden
    if not isinstance(asked, str) or not isinstance(before, int | None) or ranks == 1:
        return []
    if by_file or overridden & _CHUNKS:
        return []
    name = schedule_name(asked)
    given = 1 if before is None else before
    needed = chunks_of(name, given)
    if needed == given:
        return []
    why = f"schedule {name} has {_COUNTS[needed]} a rank"
    data["parallelism"] = {**split, key: needed}
    origins["parallelism.vpp"] = why
    return [] if before is None else [f"parallelism.vpp is {needed}, not {before}: {why}"]


@lru_cache(maxsize=1024)
def decides_chunks(dotted: str) -> bool:
    """Whether a dotted field says which schedule runs, which may bring chunks along."""
    return native_names(dotted) in {_SCHEDULE, _SCHEDULE[:1]}


@lru_cache(maxsize=1024)
def states_chunks(dotted: str) -> bool:
    """Whether a dotted field states the chunks of a rank, whatever the schedule."""
    return native_names(dotted) in _CHUNKS


def _key(section: Mapping[str, Any], field: str, owner: type[Config]) -> str:
    """Return how a section spells a field."""
    spelt = (name for name in section if owner.aliases.get(str(name).replace("-", "_")) == field)
    return field if field in section else next(spelt, field)
