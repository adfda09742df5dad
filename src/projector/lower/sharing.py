"""Which fields of a section decide what jobs share.

Jobs share a pipeline where their sections agree in every field but those that say why a pipeline
cannot depend on them (`Shares`). They share a replica where they share the pipeline and agree in
the fields that a replica looks at besides. A field that is added to a section is therefore compared
until somebody shows that it need not be. Architectures are compared as whole objects. What a whole
run takes beside its steps (`RunConfig`) changes neither pipelines nor replicas, so jobs that differ
in it alone share everything. Jobs that differ in it and in the global batch alone are a family (see
``lower/batch.py``).
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from projector.config._base import Config, Shares
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig

Key = Callable[[Any], Hashable]
"""Reads what is compared of a section."""


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

    @classmethod
    def of(cls, section: type[Config], **more: Any) -> "Sharing":
        """Return what the fields of a section say of themselves."""
        found: dict[str, dict[str, str]] = {"pipeline": {}, "replica": {}, "family": {}}
        for name, field in _fields(section, more.get("as_object", ())):
            for shares in _shares(field):
                found[shares.what][name] = shares.why
        replica, job, own = found.values()
        return cls(section, replica, job, own=own, **more)

    def pipeline_key(self) -> Key:
        """Return what reads everything that a pipeline may depend on."""
        return self._key(self.as_object, self._known(*self.replica, *self.job, *self.own))

    def family_key(self) -> Key:
        """Return what reads everything that tells families apart."""
        return self._key(self.as_object, self._known(*self.own))

    def apart_key(self) -> Key:
        """Return what reads the same but for the sections of which records are compared."""
        whole = (*self.as_object, *self.recorded)
        return self._key(whole, {*self.replica, *self.job, *self.own, *whole})

    def replica_key(self) -> Key:
        """Return what reads the fields that a replica looks at besides those of its pipeline."""
        names = self._known(*self.replica)
        read = _reader([name for name in names if name not in self.seen], self.as_object)
        seen = [of for name, of in self.seen.items() if name in self.replica]
        return lambda section: (read(section), *(of(section) for of in seen))

    def _known(self, *names: str) -> tuple[str, ...]:
        """Return names of fields; one that the section does not have is refused."""
        known = {*field_names(self.section, self.as_object)}
        for name in names:
            if name not in known:
                msg = f"{self.section.__name__} has no field {name!r} that sharing could leave out"
                raise ValueError(msg)
        return names

    def _key(self, whole: Iterable[str], left_out: Container[str]) -> Key:
        names = field_names(self.section, whole)
        return _reader([name for name in names if name not in left_out], self.as_object)


def field_names(section: type[Config], whole: Iterable[str] = ()) -> Iterator[str]:
    """Yield the dotted name of every field, those of nested sections unless they stay whole."""
    return (name for name, _ in _fields(section, whole))


def _fields(
    section: type[Config], whole: Iterable[str], prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        dotted, kind = f"{prefix}{name}", field.annotation
        if dotted not in whole and isinstance(kind, type) and issubclass(kind, Config):
            yield from _fields(kind, whole, f"{dotted}.")
        else:
            yield dotted, field


def _shares(field: FieldInfo) -> list[Shares]:
    return [each for each in field.metadata if isinstance(each, Shares)]


def _reader(names: Iterable[str], as_object: Iterable[str]) -> Key:
    values = [name for name in names if name not in as_object]
    objects = [name for name in names if name in as_object]
    read = attrgetter(*values) if values else lambda _: ()
    if not objects:
        return read
    of = [attrgetter(name) for name in objects]
    return lambda section: (*(id(get(section)) for get in of), read(section))


PARALLELISM = Sharing.of(
    ParallelismConfig,
    seen={
        # Only what is updated apart is gathered; each layer of ZeRO 3 is, beside the compute.
        "overlap_param_gather": lambda split: (
            split.sharding_stage in (1, 2) and split.overlap_param_gather
        ),
        # From ZeRO 2 on every backward reduces, beside its compute.
        "overlap_grad_reduce": lambda split: split.sharding_stage < 2 and split.overlap_grad_reduce,
    },
)

TRAINING = Sharing.of(TrainingConfig)

CLUSTER = Sharing.of(ClusterConfig, as_object=("device",), recorded=("network",))

LINKS = tuple(
    name
    for name in Device.model_fields
    if name.startswith(("scale_up_", "in_network_", "collective_", "expert_exchange"))
)
"""Fields of a device that the records of its links are made from, and no other record."""

NOT_IN_RECORD = {
    **dict.fromkeys(LINKS, "in the records of its links"),
    **{name: each.why for name, field in Device.model_fields.items() for each in _shares(field)},
}
"""Fields that the record of a device is not made from -> why."""


_PLAIN = frozenset({bool, int, float, str, type(None)})


def _by_value(names: Iterable[str]) -> Key:
    """Return what reads fields: numbers and words by value, other values by their identity."""
    read = attrgetter(*names)
    return lambda section: tuple(
        [value if type(value) in _PLAIN else id(value) for value in read(section)]
    )


DEVICE_KEY = _by_value([name for name in Device.model_fields if name not in NOT_IN_RECORD])
"""Reads everything that the record of a device may be made from."""

LINKS_KEY = _by_value(LINKS)
"""Reads everything of a device that the records of its links are made from."""
