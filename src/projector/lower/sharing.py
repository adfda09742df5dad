"""Which fields of a section decide what jobs share.

Jobs share a pipeline where their sections agree in every field but those that are left out here,
each with the reason why a pipeline cannot depend on it. They share a replica where they share the
pipeline and agree in the fields that a replica looks at besides. A field that is added to a section
is therefore compared until somebody shows that it need not be. Architectures are compared as whole
objects. What a whole run takes beside its steps (`RunConfig`) changes neither pipelines nor
replicas, so jobs that differ in it alone share everything. Jobs that differ in it and in the
global batch alone are a family (see ``lower/families.py``).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from projector.config._base import Config
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig

Key = Callable[[Any], Hashable]
"""Reads what is compared of a section."""

_GATHERS = "shards and gathers between replicas; a pipeline is one of them"
_REDUCES = "what gradients are sent as, and how; a pipeline accumulates its own"
_UPDATES = "the update follows the last microbatch"
_SENDS = "ranks of a pipeline meet in the replay, which follows the costs of its stages"
_ORDER = "decides the order, which is found for each job"
_USABLE = "usable memory is a column of its own, compared where an order is planned for it"
_SHOWN = "shown in reports alone"
_DECIDES = "sets the defaults of other fields, which are compared"
_PLACES = "where groups of a layer lie is compared beside it"


class Sharing(NamedTuple):
    """What of one kind of section pipelines, replicas and neither look at."""

    section: type[Config]
    replica: Mapping[str, str]
    """Fields that a replica looks at and its pipeline does not -> why."""
    job: Mapping[str, str]
    """Fields that neither looks at -> why."""
    as_object: tuple[str, ...] = ()
    """Nested sections that are equal where they are one object: to compare them takes longer than
    to cost equal ones twice, to the same result."""
    recorded: tuple[str, ...] = ()
    """Nested sections of which a record that is compared beside them holds all that matters."""
    own: Mapping[str, str] = MappingProxyType({})
    """Fields in which even jobs of one family differ -> why."""
    seen: Mapping[str, Key] = MappingProxyType({})
    """Fields of ``replica`` that have no effect beside some others -> what a replica sees."""

    def pipeline_key(self) -> Key:
        """Return what reads everything that a pipeline may depend on."""
        names = [*field_names(self.section, self.as_object)]
        left_out = [*self.replica, *self.job, *self.own]
        for name in left_out:
            _check(name, names, self.section)
        return _reader([name for name in names if name not in left_out], self.as_object)

    def family_key(self) -> Key:
        """Return what reads everything that tells families apart."""
        names = [*field_names(self.section, self.as_object)]
        for name in self.own:
            _check(name, names, self.section)
        return _reader([name for name in names if name not in self.own], self.as_object)

    def apart_key(self) -> Key:
        """Return what reads the same but for the sections of which records are compared."""
        whole = {*self.as_object, *self.recorded}
        left_out = {*self.replica, *self.job, *self.own, *whole}
        names = field_names(self.section, whole)
        return _reader([name for name in names if name not in left_out], ())

    def replica_key(self) -> Key:
        """Return what reads the fields that a replica looks at besides those of its pipeline."""
        names = [*field_names(self.section, self.as_object)]
        for name in self.replica:
            _check(name, names, self.section)
        read = _reader([name for name in self.replica if name not in self.seen], self.as_object)
        seen = [of for name, of in self.seen.items() if name in self.replica]
        return lambda section: (read(section), *(of(section) for of in seen))


PARALLELISM = Sharing(
    ParallelismConfig,
    replica={
        "zero_stage": _GATHERS,
        "fsdp_reshard_after_forward": _GATHERS,
        "fsdp_forward_prefetch": _GATHERS,
        "fsdp_backward_prefetch": _GATHERS,
        "overlap_param_gather": _GATHERS,
        "overlap_grad_reduce": _REDUCES,
        "ddp_bucket_size": _REDUCES,
        "overlap_p2p_comm": _SENDS,
        "rank_order": _PLACES,
        "num_distributed_optimizer_instances": _GATHERS,
        "sharding_group_size": _GATHERS,
    },
    job={
        "dp": "checked against the cluster, which decides it",
        "microbatch_group_size_per_vp_stage": _ORDER,
    },
    seen={
        # Only what is updated apart is gathered; each layer of ZeRO 3 is, beside the compute.
        "overlap_param_gather": lambda split: (
            split.sharding_stage in (1, 2) and split.overlap_param_gather
        ),
        # From ZeRO 2 on every backward reduces, beside its compute.
        "overlap_grad_reduce": lambda split: split.sharding_stage < 2 and split.overlap_grad_reduce,
    },
)

TRAINING = Sharing(
    TrainingConfig,
    replica={
        "grad_reduce_dtype": _REDUCES,
        "fp8_param_gather": _GATHERS,
        "optimizer.name": _UPDATES,
        "optimizer.master_weights": _UPDATES,
        "optimizer.moment_dtype": _UPDATES,
        "optimizer.update_bytes": _UPDATES,
        "optimizer.offload_fraction": _UPDATES,
    },
    job={
        "framework": _DECIDES,
        "attention_kernel": "chooses the record of a device, which is compared beside it",
        "schedule": "compared under the name it resolves to",
        "zero_bubble_max_pending_backward": _ORDER,
        "schedule_solver_work": _ORDER,
        "optimizer_post_validation": "decides the order, and how the step of each job ends",
    },
    own={
        "global_batch_size": "decides the number of microbatches, each of which costs the same",
    },
)

CLUSTER = Sharing(
    ClusterConfig,
    replica={},
    job={
        "nodes": "the number of devices is compared beside it",
        "memory_reserve_gib": _USABLE,
        "fragmentation": _USABLE,
        "software.allocator.expandable_segments": _USABLE,
        "software.allocator.idle_share": _USABLE,
        "software.allocator.pinned_share": _USABLE,
        "software.step_overhead_ms": "added to the step of each job",
        "variation.device_spread": "added to the step of each job",
        "network.name": _SHOWN,
        "network.sources": _SHOWN,
        "network.transport": _SHOWN,
    },
    as_object=("device",),
    recorded=("network",),
)

LINKS = tuple(
    name
    for name in Device.model_fields
    if name.startswith(("scale_up_", "in_network_", "collective_", "expert_exchange"))
)
"""Fields of a device that the records of its links are made from, and no other record."""

NOT_IN_RECORD = {
    **dict.fromkeys(LINKS, "in the records of its links"),
    "hbm_gib": _USABLE,
    "sources": _SHOWN,
}
"""Fields that the record of a device is not made from -> why."""


def device_key() -> Key:
    """Return what reads everything that the record of a device may be made from."""
    return _by_value([name for name in Device.model_fields if name not in NOT_IN_RECORD])


def links_key() -> Key:
    """Return what reads everything of a device that the records of its links are made from."""
    return _by_value(LINKS)


_PLAIN = frozenset({bool, int, float, str, type(None)})


def _by_value(names: Iterable[str]) -> Key:
    """Return what reads fields: numbers and words by value, other values by their identity."""
    read = attrgetter(*names)
    return lambda section: tuple(
        [value if type(value) in _PLAIN else id(value) for value in read(section)]
    )


def field_names(
    section: type[Config], whole: Iterable[str] = (), prefix: str = ""
) -> Iterator[str]:
    """Yield the dotted name of every field, those of nested sections unless they stay whole."""
    for name, field in section.model_fields.items():
        dotted, kind = f"{prefix}{name}", field.annotation
        if dotted not in whole and isinstance(kind, type) and issubclass(kind, Config):
            yield from field_names(kind, whole, f"{dotted}.")
        else:
            yield dotted


def _check(name: str, names: Iterable[str], section: type[Config]) -> None:
    if name not in names:
        raise ValueError(f"{section.__name__} has no field {name!r} that sharing could leave out")


def _reader(names: Iterable[str], as_object: Iterable[str]) -> Key:
    values = [name for name in names if name not in as_object]
    objects = [name for name in names if name in as_object]
    read = attrgetter(*values) if values else lambda _: ()
    if not objects:
        return read
    of = [attrgetter(name) for name in objects]
    return lambda section: (*(id(get(section)) for get in of), read(section))
