"""What a job leaves open: its nodes, and the chunks of a rank that its schedule brings along."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from projector.config._base import Config
from projector.config.first_order import devices_of_a_node
from projector.config.model import ModelConfig
from projector.config.model_file import model_data
from projector.config.names import native_names
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig, chunks_of, schedule_name
from projector.errors import ConfigError

ORIGIN = "the least that the layout needs"


def least_nodes(data: dict[str, Any], origins: dict[str, str]) -> list[str]:
    """Set ``cluster.nodes`` to the least number that fits; warn where it takes more than one."""
    cluster = data.setdefault("cluster", {})
    if not isinstance(cluster, Mapping):
        return []
    try:
        split = ParallelismConfig.parse(data.get("parallelism") or {}, path="parallelism")
        each = devices_of_a_node(cluster)
        nodes = split.least_nodes(each, experts=_has_experts(data.get("model")))
    except ConfigError:
        # Whoever parses the job meets the same error and names its place.
        return []
    data["cluster"] = {**cluster, "nodes": nodes}
    origins["cluster.nodes"] = ORIGIN
    if nodes == 1:
        return []
    return [f"{nodes} nodes of {each} were taken, {ORIGIN}; cluster.nodes sets another number"]


def _has_experts(model: Any) -> bool:
    if isinstance(model, ModelConfig):
        return model.moe is not None
    return model_data(model).get("moe") is not None


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
    """Give the schedule of a native layout the chunks a rank that it needs.

    That is where they are not stated: chunks of the file count as stated for a schedule of the
    file, those of an override (``stated``, native parts of fields) for every schedule. ``origins``
    gains the reason. Returned is a warning where chunks of the file give way.
    """
    overridden = set(stated)
    training, split = data.get("training"), data.get("parallelism")
    split = {} if split is None else split
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
