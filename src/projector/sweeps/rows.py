"""Points of a space become rows: the numbers of a projection, or the reason why there is none.

No job is made for each of the points. What a point sets in a section of its job depends on a few
axes, and so does every constraint and every computed field. Each is read once for each combination
of those axes and then looked up.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints, Ints32
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.device_fields import DeviceFields
from projector.config.framework import decides_defaults
from projector.config.job import Job
from projector.config.left_open import decides_chunks, states_chunks
from projector.config.load import Variants
from projector.config.network import Network
from projector.config.space import Expression, Space
from projector.errors import ProjectorError
from projector.kernels.grouping import best_of_groups
from projector.kernels.results import PEAK_GIB, TOKENS_PER_S
from projector.lower.batch import SECTIONS, JobBatch, Sections
from projector.lower.columns import SectionTable
from projector.projection.bands import FITS, VERDICTS
from projector.projection.evaluate import evaluate_possible, find_legal
from projector.projection.known import KnownPipelines
from projector.projection.results import FLOAT, RESULTS, STATUS, Column, Results, fitting, verdicts
from projector.projection.run import RUN_SCALARS, run_columns
from projector.sweeps.computed import Computed, one_by_one
from projector.sweeps.journal import Totals
from projector.sweeps.lookups import MOST_VALUES, Lookup, Lookups, computed_field
from projector.sweeps.store import Part, Plan, encode, write_draft
from projector.sweeps.table import Tables, arrow_column, count_text, sample, states_run

if TYPE_CHECKING:
    import pyarrow as pa

_DEVICE, _NETWORK = "cluster.device.", "cluster.network."

READ_OF_DEVICE = ("network", "architecture", "peak_clock_mhz")
"""Fields of a device that decide how the rest of its cluster is read: the usual network, defaults
of frameworks, and the limit of a stated clock."""


class PointBatch(NamedTuple):
    """Points of a space as jobs."""

    rows: Ints
    """int64[jobs]: position among the points asked for."""
    jobs: JobBatch
    columns: dict[str, tuple[Ints | Ints32, list[Any]]]
    """Field of an axis -> which value each job has, and the values."""
    left_out: list[tuple[ProjectorError | str, int]]
    """Why points are not legal jobs, as an error or the text of a broken constraint; how many."""


class PointReader:
    """Reads points of one space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._variants = Variants(space.base)
        self._devices: dict[tuple[tuple[str, str], ...], Device] = {}
        self._device_fields = DeviceFields()
        self._clusters: dict[tuple[Any, ...], tuple[ClusterConfig, Mapping[str, Any]]] = {}
        self._networks: dict[tuple[str | None, tuple[tuple[str, str], ...]], Network] = {}
        self._derived = {field: computed_field(space, field) for field in space.derived}
        constraints = [self._constraint(constraint) for constraint in space.constraints]
        self._fields_of = {name: self._read_by(name) for name in SECTIONS}
        self._sections = [
            self._lookup(fields, partial(self._section, name))
            for name, fields in self._fields_of.items()
        ]
        other = [field for field in space.fields if field.partition(".")[0] not in SECTIONS]
        shown = [*self._sections, *self._derived.values()]
        self._refusing = [*self._derived.values(), *constraints, *self._sections]
        self._refusing.append(self._lookup(other, self._other))
        self._broken = {
            number: f"constraint: {constraint.text}"
            for number, constraint in enumerate(space.constraints, len(self._derived))
        }
        self._lookups = Lookups(space, self._refusing, shown)
        self._tables = [_Table(name) for name in SECTIONS]

    def _constraint(self, constraint: Expression) -> Lookup:
        axes, derived = self.space.axes_of(self.space.reads(constraint))
        return Lookup(
            self.space,
            axes,
            Computed(
                self.space,
                constraint,
                lambda places: self.space.keeps(
                    constraint, self.space.overrides_at(places, derived)
                ),
                truth=True,
            ),
            is_legal=lambda value: value is True,
        )

    def _read_by(self, section: str) -> list[str]:
        decisive = (
            {field for field in self.space.fields if decides_defaults(field)}
            if section != "model" and self._variants.has_framework(self.space.fields)
            else set()
        )
        if section == "parallelism" and not any(map(states_chunks, self.space.fields)):
            decisive |= {*filter(decides_chunks, self.space.fields)}
        return [
            field
            for field in self.space.fields
            if field.partition(".")[0] == section or field in decisive
        ]

    def _lookup(self, fields: Sequence[str], compute: Callable[[dict[str, Any]], Any]) -> Lookup:
        axes, derived = self.space.axes_of(fields)
        return Lookup(
            self.space,
            axes,
            one_by_one(lambda places: compute(self.space.overrides_at(places, derived))),
        )

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

    def read(self, points: Ints) -> PointBatch:
        """Return some points, int64[points], as jobs."""
        rows, places, numbers, refused = self._lookups.choose(points)
        left_out: list[tuple[ProjectorError | str, int]] = []
        for number, value, count in refused:
            why = self._refusing[number].values[value]
            is_error = isinstance(why, ProjectorError)
            left_out.append((why if is_error else self._broken[number], count))
        sections, derived = numbers[: len(SECTIONS)], numbers[len(SECTIONS) :]
        return PointBatch(rows, self._batch(sections), self._columns(places, derived), left_out)

    def _batch(self, numbers: Ints) -> JobBatch:
        tables = Sections(
            *(
                table.of(lookup.values, getattr(self.space.base, table.name))
                for table, lookup in zip(self._tables, self._sections, strict=True)
            )
        )

        def job(row: int) -> Job:
            sections = {
                name: getattr(tables, name).items[numbers[position, row]]
                for position, name in enumerate(SECTIONS)
            }
            return self._variants.put_together(sections, self.space.fields)

        return JobBatch(tables, numbers, job)

    def _columns(self, places: Ints32, derived: Ints) -> dict[str, tuple[Ints | Ints32, list[Any]]]:
        columns: dict[str, tuple[Ints | Ints32, list[Any]]] = {}
        for number, axis in enumerate(self.space.axes):
            for position, name in enumerate(axis.fields):
                columns[name] = (places[number], [point[position] for point in axis.points])
        for (name, lookup), numbers in zip(self._derived.items(), derived, strict=True):
            columns[name] = (numbers, lookup.values)
        return columns


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


LONGEST_REASON = 200

LEARNED = 32
"""One in so many points of a chunk's number teaches what most chunks need, in an eighth of its
time."""


@dataclass(slots=True)
class Batch:
    """Rows of some points of a space, in order."""

    points: int
    table: "pa.Table"
    infeasible: dict[str, int] = field(default_factory=dict)
    """Reason -> points left out for it."""

    @property
    def rows(self) -> int:
        """Points that are jobs."""
        return len(self.table)

    @property
    def fit(self) -> int:
        """Rows whose projected peak fits."""
        return sum(chunk.true_count for chunk in self.table.column("fits").chunks)

    @property
    def at_risk(self) -> int:
        """Rows whose projected peak fits, but not the upper end of its band."""
        return self.fit - count_text(self.table.column("verdict"), FITS)


def column_kinds(axes: Mapping[str, str], *, runs: bool = False) -> dict[str, str]:
    """Return every column with its kind: axes first; an axis that results repeat is listed once.

    With ``runs``, those of `states_run`, the columns of a run stand before the last one.
    """
    kinds = {**axes, **RESULTS}
    if runs:
        last = kinds.pop(STATUS)
        kinds |= {scalar.name: FLOAT for scalar in RUN_SCALARS} | {STATUS: last}
    return kinds


class Projector:
    """Projects points of one space; what one chunk has taught serves the next."""

    def __init__(self, space: Space, axes: Mapping[str, str]) -> None:
        """Begin with nothing known; ``axes`` are those of `axis_kinds`."""
        self._reader = PointReader(space)
        self._choices = space.choices
        self._runs = states_run(space)
        self._tables = Tables(column_kinds(axes, runs=self._runs))
        self._known = KnownPipelines()

    def project(self, points: Ints, *, best: bool = True) -> Batch:
        """Project some points, int64[points]; what can be no job is counted by reason.

        Unless ``best`` is false, of the choices of a point only the best is a row; points rise.
        """
        import pyarrow as pa

        self._known.make_room()
        batch = self._reader.read(points)
        reasons: dict[str, int] = {}
        for why, count in batch.left_out:
            _count(reasons, why if isinstance(why, str) else reason_of(why), count)
        tables, merits = [], list[Merits]()
        if len(batch.rows):
            legal = find_legal(batch.jobs)
            possible = np.arange(len(batch.rows))
            if legal.errors:
                refused = np.bincount(legal.refused + 1, minlength=len(legal.errors) + 1)[1:]
                for error, count in zip(legal.errors, refused.tolist(), strict=True):
                    if count:
                        _count(reasons, reason_of(error), count)
                possible = np.flatnonzero(legal.refused < 0)
            all_possible = len(possible) == len(batch.rows)
            keeps_best = best and self._choices > 1
            for part, evaluation in evaluate_possible(
                batch.jobs if all_possible else batch.jobs.take(possible),
                legal if all_possible else legal.take(possible),
                lambda error: _count(reasons, reason_of(error), 1),
                self._known,
            ):
                rows, results = possible[part], Results(evaluation)
                if keeps_best:
                    all_merits = Merits.of(results, points[batch.rows[rows]] // self._choices)
                    kept = all_merits.best()
                    merits.append(all_merits.take(kept))
                    rows, results = rows[kept], results.take(kept)
                tables.append(self._tables.table(batch.columns, rows, self._columns(results)))
        whole = pa.concat_tables(tables or [pa.Table.from_batches([], self._tables.schema)])
        if len(merits) > 1:
            # What was evaluated apart has a best row each.
            whole = whole.take(arrow_column(Merits.joined(merits).best()))
        return Batch(len(points), whole, dict(sorted(reasons.items())))

    def _columns(self, results: Results) -> Mapping[str, Column]:
        columns = results.columns()
        return columns | run_columns(results) if self._runs else columns


class Merits(NamedTuple):
    """What of rows decides which of a group is the best."""

    group: Ints
    fits: Flags
    safe: Flags
    """Fits with the band of its memory."""
    rate: Floats
    """Tokens per second and device."""
    peak: Floats

    @classmethod
    def of(cls, results: Results, group: Ints) -> "Merits":
        """Read results of rows whose groups are known."""
        ranking = results.ranking
        safe = verdicts(ranking) == VERDICTS.index(FITS)
        rate, peak = ranking.column(TOKENS_PER_S), ranking.column(PEAK_GIB)
        return cls(group, fitting(ranking), safe, rate, peak)

    @classmethod
    def joined(cls, parts: "Sequence[Merits]") -> "Merits":
        """Return those of several parts, one after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def take(self, rows: Ints) -> "Merits":
        """Return those of some rows."""
        columns: tuple[Any, ...] = self
        return Merits(*(column[rows] for column in columns))

    def best(self) -> Ints:
        """Return the best row of each group, in the order of the groups, which may be mixed.

        What fits with the band of its memory goes before what is at risk, and that before what does
        not fit. Of rows that fit or are at risk the fastest by tokens per second and device is the
        best, of others the one that needs least memory; then what leaves more memory, then the
        first.
        """
        if (np.diff(self.group) < 0).any():
            order = np.argsort(self.group, kind="stable")
            return order[self.take(order).best()]
        best = np.empty(len(self.group), np.int64)
        return best[: best_of_groups(*self, best)]


class Sweeper:
    """Projects the chunks of one sweep."""

    def __init__(
        self, space: Space, axes: Mapping[str, str], chunk_points: int, drafts: Path | None = None
    ) -> None:
        """Begin with nothing known; rows go to ``drafts``, of a `Store`, or parts carry them."""
        self.drafts, self._space = drafts, space
        kinds = column_kinds(axes, runs=states_run(space))
        self._plan = Plan.of(space, kinds, chunk_points)
        self._projector = Projector(space, axes)
        self._schema = self._plan.schema()

    def learn(self) -> None:
        """Project a few points from everywhere and keep nothing but what they teach."""
        count = -(-self._plan.chunk_points // LEARNED)
        self._projector.project(np.sort(sample(self._space, count)), best=False)

    def writing(self, drafts: Path) -> "Sweeper":
        """Return one that knows the same and writes rows there."""
        other = copy.copy(self)
        other.drafts = drafts
        return other

    def part(self, chunk: int) -> Part:
        """Project one chunk."""
        points = self._plan.chunk(chunk)
        batch = self._projector.project(np.arange(points.start, points.stop))
        totals = Totals(batch.points, batch.rows, batch.fit, batch.infeasible, batch.at_risk)
        content = encode(batch.table, self._schema)
        if self.drafts is None or not content:
            return Part(chunk, bytes(content), totals)
        return Part(chunk, b"", totals, write_draft(self.drafts, chunk, content))


def reason_of(error: ProjectorError) -> str:
    """Say why a point is no legal job, without numbers and way out: alike for all like it."""
    text = error.message.split("; ", maxsplit=1)[0]
    if error.key and not text.startswith(error.key):
        text = f"{error.key}: {text}"
    text = _LIST.sub("N, ...", _NUMBER.sub("N", " ".join(text.split())))
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."


_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)")
_LIST = re.compile(r"\bN(?:, N)+\b")


def _count(reasons: dict[str, int], reason: str, count: int) -> None:
    reasons[reason] = reasons.get(reason, 0) + count
