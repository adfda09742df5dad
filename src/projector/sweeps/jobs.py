"""Points of a space of jobs: which are legal, and the numbers of their projections.

No job is made for each of the points: `points.py` reads each section once.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.device_fields import DeviceFields
from projector.config.framework import decides_defaults
from projector.config.job import Job
from projector.config.left_open import decides_chunks, states_chunks
from projector.config.load import Variants
from projector.config.network import Network
from projector.config.space import Space
from projector.errors import ProjectorError
from projector.kernels.grouping import group_looked_up
from projector.kernels.results import PEAK_GIB, TOKENS_PER_S
from projector.lower.batch import SECTIONS, JobBatch, Sections
from projector.lower.cluster_columns import ClusterColumns
from projector.lower.columns import SectionTable
from projector.projection.bands import FITS, VERDICTS
from projector.projection.evaluate import Legal, evaluate_legal, evaluate_possible, find_legal
from projector.projection.known import KnownPipelines
from projector.projection.results import Column, Results, fitting, verdicts
from projector.projection.run import run_columns
from projector.sweeps.lookups import MOST_VALUES
from projector.sweeps.points import PointBatch, PointReader
from projector.sweeps.table import states_run

_DEVICE, _NETWORK = "cluster.device.", "cluster.network."

READ_OF_DEVICE = ("network", "architecture", "peak_clock_mhz")
"""Fields of a device that decide how the rest of its cluster is read: the usual network, defaults
of frameworks, and the limit of a stated clock."""


class JobReader(PointReader):
    """Reads points of a space of jobs."""

    def __init__(self, space: Space) -> None:
        self._variants = Variants(space.base)
        self._devices: dict[tuple[tuple[str, str], ...], Device] = {}
        self._device_fields = DeviceFields()
        self._clusters: dict[tuple[Any, ...], tuple[ClusterConfig, Mapping[str, Any]]] = {}
        self._networks: dict[tuple[str | None, tuple[tuple[str, str], ...]], Network] = {}
        self._tables = [_Table(name) for name in SECTIONS]
        self._fields_of = {name: self._read_by(space, name) for name in SECTIONS}
        others = [field for field in space.fields if field.partition(".")[0] not in SECTIONS]
        sections = [(self._fields_of[name], partial(self._section, name)) for name in SECTIONS]
        super().__init__(space, sections, [(others, self._other)])

    def _read_by(self, space: Space, section: str) -> list[str]:
        decisive = (
            {field for field in space.fields if decides_defaults(field)}
            if section != "model" and self._variants.has_framework(space.fields)
            else set()
        )
        if section == "parallelism" and not any(map(states_chunks, space.fields)):
            decisive |= {*filter(decides_chunks, space.fields)}
        return [
            field
            for field in space.fields
            if field.partition(".")[0] == section or field in decisive
        ]

    def _section(self, name: str, overrides: Mapping[str, Any]) -> Any:
        stated: Mapping[str, Any] = {
            field: value for field, value in overrides.items() if field in self._fields_of[name]
        }
        if name == "cluster" and stated and name not in stated:
            return self._of_device(self._with_network(self._with_device(stated)))
        return self._variants.section(name, stated) if stated else getattr(self.space.base, name)

    def _with_device(self, stated: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the fields of a device by the device, one object for all its clusters."""
        said = {field: value for field, value in stated.items() if f"{field}.".startswith(_DEVICE)}
        if not said:
            return stated
        key = tuple((field, repr(value)) for field, value in said.items())
        device = self._devices.get(key)
        if device is None:
            device = self._device(said)
            if device is None:
                return stated
            if len(self._devices) > MOST_VALUES:
                self._devices.clear()
            self._devices[key] = device
        rest = {field: value for field, value in stated.items() if field not in said}
        return {_DEVICE[:-1]: device, **rest}

    def _device(self, said: Mapping[str, Any]) -> Device | None:
        """Return the device of a cluster with some of its fields, None where it has none."""
        fields = {field.removeprefix(_DEVICE): value for field, value in said.items()}
        given = fields.pop(_DEVICE[:-1], self.space.base.cluster.device)
        device = self._device_fields.replaced(given, fields) if fields else None
        if device is not None:
            return device
        cluster = self._cluster(said)
        return None if cluster is None else cluster.device

    def _with_network(self, stated: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the fields of a network by the network, read once for devices that have it."""
        said = {field: value for field, value in stated.items() if field.startswith(_NETWORK)}
        if not said or _NETWORK[:-1] in stated:
            return stated
        device = stated.get(_DEVICE[:-1])
        if device is not None and not isinstance(device, Device):
            return stated
        # The device of the base keeps the network of the base.
        own = self.space.base.cluster.device
        usual = None if device is None or device is own else device.network
        key = usual, tuple((field, repr(value)) for field, value in said.items())
        network = self._networks.get(key)
        if network is None:
            with_device = said if device is None else {_DEVICE[:-1]: device, **said}
            cluster = self._cluster(with_device)
            if cluster is None:
                return stated
            if len(self._networks) > MOST_VALUES:
                self._networks.clear()
            network = self._networks[key] = cluster.network
        rest = {field: value for field, value in stated.items() if field not in said}
        return {**rest, _NETWORK[:-1]: network}

    def _of_device(self, stated: Mapping[str, Any]) -> ClusterConfig:
        """Return a cluster, read once for all devices that agree in `READ_OF_DEVICE`."""
        device = stated.get(_DEVICE[:-1])
        if not isinstance(device, Device):
            return self._read_cluster(stated)
        rest = (
            (field, id(value) if isinstance(value, Network) else repr(value))
            for field, value in stated.items()
            if value is not device
        )
        key = *(getattr(device, name) for name in READ_OF_DEVICE), *rest
        known = self._clusters.get(key)
        if known is not None:
            return known[0].model_copy(update={"device": device})
        if len(self._clusters) > MOST_VALUES:
            self._clusters.clear()
        # What is stated is kept: the identity of a network must not pass to another one.
        self._clusters[key] = self._read_cluster(stated), stated
        return self._clusters[key][0]

    def _read_cluster(self, stated: Mapping[str, Any]) -> ClusterConfig:
        cluster: ClusterConfig = self._variants.section("cluster", stated)
        return cluster

    def _cluster(self, stated: Mapping[str, Any]) -> ClusterConfig | None:
        """Return a cluster with nothing else than this, None where something else is needed."""
        try:
            return self._read_cluster(stated)
        except ProjectorError:
            return None

    def _other(self, overrides: Mapping[str, Any]) -> None:
        """Raise what fields outside of the sections break; they change no result."""
        stated = {
            field: value
            for field, value in overrides.items()
            if field.partition(".")[0] not in SECTIONS
        }
        self._variants.job(stated)

    def jobs(self, batch: PointBatch) -> JobBatch:
        """Return points as jobs."""
        tables = Sections(
            *(
                table.of(lookup.values, getattr(self.space.base, table.name))
                for table, lookup in zip(self._tables, self.sections, strict=True)
            )
        )

        def job(row: int) -> Job:
            sections = {
                name: getattr(tables, name).items[batch.numbers[position, row]]
                for position, name in enumerate(SECTIONS)
            }
            return self._variants.put_together(sections, self.space.fields)

        return JobBatch(tables, batch.numbers, job)


class _Table:
    """The table of what a look-up of sections has found, which grows with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: list[Any] | None = None
        self._table: SectionTable[Any]

    def of(self, values: list[Any], base: Any) -> SectionTable[Any]:
        """Return the table of these values, a list that only grows.

        An error has no fields. The base takes its row, but no job uses it.
        """
        known = len(self._table.items) if values is self._values else 0
        more = [base if isinstance(value, ProjectorError) else value for value in values[known:]]
        if not known:
            self._values, self._table = values, SectionTable(more)
        elif more:
            self._table.grow(more)
        return self._table


class JobRows:
    """Results of jobs, and what decides which of them is the best."""

    def __init__(self, results: Results, *, runs: bool) -> None:
        self._results, self._runs = results, runs

    def take(self, rows: Ints) -> "JobRows":
        """Return those of some jobs."""
        return JobRows(self._results.take(rows), runs=self._runs)

    def columns(self) -> Mapping[str, Column]:
        """Return every column of results."""
        columns = self._results.columns()
        return columns | run_columns(self._results) if self._runs else columns

    def merits(self) -> tuple[Flags, Flags, Floats, Floats]:
        """Return the columns of `Merits` behind the first."""
        ranking = self._results.ranking
        safe = verdicts(ranking) == VERDICTS.index(FITS)
        return fitting(ranking), safe, ranking.column(TOKENS_PER_S), ranking.column(PEAK_GIB)


class JobPoints:
    """Projects points of a space of jobs; what one chunk has taught serves the next."""

    def __init__(self, space: Space) -> None:
        """Begin with nothing known."""
        self.reader = JobReader(space)
        self._runs = states_run(space)
        self._known = KnownPipelines()

    def evaluated(
        self, batch: PointBatch, refuse: Callable[[ProjectorError, int], None], group: Ints | None
    ) -> Iterator[tuple[Ints, JobRows]]:
        """Yield rows of a batch with their results; what is no legal job is refused.

        Rows whose memory says that they are not the best of their ``group`` are left out.
        """
        self._known.make_room()
        jobs = self.reader.jobs(batch)
        legal = find_legal(jobs)
        possible = np.arange(len(batch.rows))
        if legal.errors:
            refused = np.bincount(legal.refused + 1, minlength=len(legal.errors) + 1)[1:]
            for error, count in zip(legal.errors, refused.tolist(), strict=True):
                if count:
                    refuse(error, count)
            possible = np.flatnonzero(legal.refused < 0)
        for kept in (self._hopeful(jobs, legal, possible, group), possible):
            errors: list[ProjectorError] = []
            all_of_them = len(kept) == len(jobs)
            chosen = (jobs, legal) if all_of_them else (jobs.take(kept), legal.take(kept))
            found = evaluate_possible(*chosen, errors.append, self._known)
            # Where one of the hopeful has no times, all that were left out might be the best.
            if not errors or len(kept) == len(possible):
                break
        for error in errors:
            refuse(error, 1)
        for part, evaluation in found:
            yield kept[part], JobRows(Results(evaluation), runs=self._runs)

    def _hopeful(self, jobs: JobBatch, legal: Legal, rows: Ints, group: Ints | None) -> Ints:
        """Return those of some rows that may be the best of their group.

        One job tells the memory of all like it, which no rate changes unless orders are planned.
        """
        if group is None or any(getattr(each, "planned", False) for each in legal.schedules[1]):
            return rows
        sections, table = jobs.index.take(rows, axis=1), jobs.cluster.table
        keys = table.key(ClusterColumns.memory_key), table.key(ClusterColumns.band_key)
        first, kind = group_looked_up(
            [*sections[:3], *2 * [sections[3]]], [None, None, None, *keys]
        )
        if 32 * len(first) >= len(rows):  # they would cost more than they save, or there are none
            return rows
        try:
            each = evaluate_legal(jobs.take(rows[first]), legal.take(rows[first]), self._known)
        except ProjectorError:
            return rows
        fits, safe, _, peak = JobRows(Results(each), runs=False).merits()
        # As in `Merits.best`: 3 is safe, 2 fits, others go by their peaks.
        order = np.where(fits, 2.0 + safe, -peak).take(kind)
        begin = np.flatnonzero(np.diff(group.take(rows), prepend=-1))
        best = np.fmax.reduceat(order, begin).repeat(np.diff(begin, append=len(rows)))
        return rows[~(order < best)]
