"""What pictures read of a sweep: columns chunk by chunk, its axes, workloads and names."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Ints
from projector.config.job import Job
from projector.config.resources import hardware_table
from projector.config.space import Expression
from projector.errors import ConfigError
from projector.report.figures.words import HARDWARE, words_of
from projector.report.terminal.grid import plain
from projector.report.terminal.job import short_title
from projector.sweeps.journal import Totals
from projector.sweeps.result import SweepResult, codes, rows_within
from projector.sweeps.store import Plan
from projector.sweeps.table import arrow_column

if TYPE_CHECKING:
    import pyarrow as pa


RATE, PEAK, GPUS, USABLE = "tokens_per_s_per_gpu", "peak_gib", "gpus", "usable_gib"
LOW, HIGH, VERDICT = "peak_gib_low", "peak_gib_high", "verdict"

FIRST_RESULTS = ("iteration_time_ms", "ttft_s")
"""First column after those of the axes, of jobs and of deployments."""

_SHORT: Mapping[str, str] = hardware_table("report_words.yaml")["short_fields"]

_FIRST = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero_stage", "micro_batch_size", "recompute")
"""Most telling axes of a configuration, in the order in which it is written."""


def axes_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of the axes, in the order of the space."""
    return tuple(takewhile(lambda name: name not in FIRST_RESULTS, columns))


def serves(result: SweepResult) -> bool:
    """Tell whether the rows are deployments under loads."""
    return FIRST_RESULTS[1] in result.columns


def resolve(name: str, known: Sequence[str], *, key: str) -> str:
    """Return the column that a name means: its own, or the only one with that last part."""
    name = name.strip()
    if name in known:
        return name
    matches = [column for column in known if column.rpartition(".")[2] == name]
    if len(matches) == 1:
        return matches[0]
    why = f"may be {' or '.join(matches)}" if matches else "is not available"
    msg = f"{key}: {name!r} {why}; there are {', '.join(known)}"
    raise ConfigError(msg, key=key, value=name, allowed=list(known))


def rows_at(
    result: SweepResult, columns: Sequence[str], row_numbers: Ints
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield some columns of the rows with these rising numbers, one chunk in memory at a time."""
    begin = 0
    for table in result.tables(columns):
        first, last = np.searchsorted(row_numbers, [begin, begin + len(table)]).tolist()
        if last > first:
            rows = table.take(row_numbers[first:last] - begin).to_pylist()
            yield from zip(row_numbers[first:last].tolist(), rows, strict=True)
        begin += len(table)


def sample(rows: int, most: int) -> Ints:
    """Return at most ``most`` random rows, rising; every so manieth would repeat an axis."""
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False).astype(np.int64))


def value_text(value: Any) -> str:
    """Write one value of an axis."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_integer else plain(value)


def configuration(fields: Mapping[str, Any]) -> str:
    """Write a configuration in one line: degrees first, then batch and memory, then the rest."""
    names = {field: field.rpartition(".")[2] for field in fields}
    order = sorted(
        fields,
        key=lambda field: _FIRST.index(names[field]) if names[field] in _FIRST else len(_FIRST),
    )
    return ", ".join(_setting(field, fields[field]) for field in order)


@dataclass(frozen=True, slots=True)
class Several:
    """Values of one field among rows that are equal in everything that a picture shows."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        """Name the values where they are few."""
        few = self.values[:MOST_SEVERAL]
        if len(few) < len(self.values):
            return f"any of {len(self.values)}"
        return " or ".join(value_text(value) for value in few)


MOST_SEVERAL = 3
"""Values that are named."""


def merged(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of equal rows as one: fields that differ among them have `Several`."""
    together: dict[str, Any] = {}
    for field, value in settings[0].items():
        values: list[Any] = []
        for each in settings:
            if not any(each.get(field) == known for known in values):
                values.append(each.get(field))
        together[field] = value if len(values) == 1 else Several(tuple(values))
    return together


def short_name(field: str) -> str:
    """Name a field for the head of a column: a code that everyone knows, or words."""
    return _SHORT.get(field.rpartition(".")[2]) or words_of(field).name


def _setting(field: str, value: Any) -> str:
    name = field.rpartition(".")[2]
    if isinstance(value, Several):
        return f"{short_name(field)} {value}"
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if name == "nodes":
        return f"{value_text(value)} {'node' if value == 1 else 'nodes'}"
    if name == "recompute" and isinstance(value, str):
        return f"{'no' if value == 'none' else value_text(value)} recompute"
    short = _SHORT.get(name)
    text = value_text(value)
    if short:
        return f"{short}{'' if len(short) < 4 else ' '}{text}"
    words, unit = words_of(field)
    return f"{words} {text} {unit}".rstrip()


def shared(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that have the same value in all of several configurations."""
    if not settings:
        return {}
    return {
        field: value
        for field, value in settings[0].items()
        if all(other.get(field) == value for other in settings[1:])
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return configurations without the fields that all of them share; a single one stays."""
    same = shared(settings) if len(settings) > 1 else {}
    return [
        {name: value for name, value in setting.items() if name not in same} for setting in settings
    ]


# What the axes of a sweep are to a picture: hardware, workloads, fields that are tied.
WORKLOAD = ("model", "training.seq_length", "load.context", "load.output")
"""Fields that say what is computed: jobs that differ in them are not better or worse, but other
workloads. A field of the model counts as well."""


def is_hardware(field: str) -> bool:
    """Tell whether a field is a number of a chip or of its links, or names them."""
    return field.startswith(HARDWARE) or field in {"cluster.device", "cluster.network"}


OTHER_JOBS = frozenset({
    "training.seq_length", "training.global_batch_size", "training.precision",
    "parallelism.dp",
})  # fmt: skip
"""Fields of parallelism and training that change what is trained, not how it is laid out."""


def is_layout(field: str) -> bool:
    """Tell whether a field says how a job is laid out on its devices, and nothing else."""
    return field.startswith(("parallelism.", "training.")) and field not in OTHER_JOBS


def is_workload(field: str) -> bool:
    """Tell whether a field says what is computed."""
    return field in WORKLOAD or field.startswith("model.")


def workload_fields(plan: Plan, axes: Sequence[str]) -> list[str]:
    """Return the axes whose values make several workloads of a sweep."""
    searched = plan.space.get("best_of") or ()
    return [
        field
        for field in axes
        if is_workload(field) and len(points_of(plan, field)) != 1 and field not in searched
    ]


def workload_name(values: Mapping[str, Any]) -> str:
    """Name a workload by the values of its fields."""
    parts = []
    for field, value in values.items():
        if field == "model":
            parts.append(str(value))
        elif field == "training.seq_length" and isinstance(value, int):
            parts.append(f"{value:,} tokens")
        else:
            parts.append(f"{words_of(field).name} {value}")
    return ", ".join(parts)


def tied_fields(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the fields that move together with each field: to one value belongs one of theirs.

    These are fields of one axis, which lists their values side by side, and fields that an
    expression computes from one other.
    """
    tied: dict[str, tuple[str, ...]] = {}
    for axis in plan_axes(plan):
        columns = dict(zip(axis["fields"], zip(*map(_hashable, axis["points"]), strict=True),
                           strict=False))  # fmt: skip
        for field, values in columns.items():
            fellows = tuple(
                other
                for other, others in columns.items()
                if other != field
                and len(set(values)) > 1
                and len(set(values)) == len(set(others)) == len(set(zip(values, others,
                                                                        strict=True)))
            )  # fmt: skip
            if fellows:
                tied[field] = fellows
    for field, other in _computed(plan):
        group = (other, *tied.get(other, ()))
        tied[field] = group
        for fellow in group:
            tied[fellow] = (*tied.get(fellow, ()), field)
    return tied


def _computed(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield fields computed from one axis alone, another value for each of its, with that axis."""
    derived = plan.space.get("derived")
    fields = [field for axis in plan_axes(plan) for field in axis["fields"]]
    for field, text in (derived if isinstance(derived, Mapping) else {}).items():
        expression = Expression(text, field)
        read = [name for name in fields if name in expression.names]
        read += [name for name in fields if name.rpartition(".")[2] in expression.names]
        if len(expression.names) != 1 or len(set(read)) != 1:
            continue
        (name,) = expression.names
        values = points_of(plan, read[0])
        try:
            results = {_hashable([expression({name: value})])[0] for value in values}
        except ConfigError:
            continue
        if len(values) > 1 and len(results) == len(values):
            yield field, read[0]


def untied(plan: Plan, fields: Sequence[str]) -> list[str]:
    """Return fields without those that are tied to an earlier one."""
    tied, kept = tied_fields(plan), list[str]()
    for field in fields:
        if not any(fellow in kept for fellow in tied.get(field, ())):
            kept.append(field)
    return kept


def axis_name(field: str, tied: Mapping[str, tuple[str, ...]]) -> str:
    """Return the words of an axis, with those of the fields that are tied to it."""
    return " = ".join(dict.fromkeys(words_of(each).name for each in (field, *tied.get(field, ()))))


def check_apart(plan: Plan, first: str, second: str, key: str) -> None:
    """Refuse two fields of one axis that move together: their map would be a diagonal."""
    if second in tied_fields(plan).get(first, ()):
        msg = f"{key}: {first} and {second} are tied, so that they are one axis; name another one"
        raise ConfigError(msg, key=key, value=[first, second], allowed="two axes that vary freely")


def device_name(base: Any) -> str:
    """Return the name of the device of a base job, as plain values."""
    cluster = base.get("cluster") if isinstance(base, Mapping) else None
    device = cluster.get("device") if isinstance(cluster, Mapping) else None
    return str(device.get("name", "")) if isinstance(device, Mapping) else str(device or "base")


def points_of(plan: Plan, field: str) -> list[Any]:
    """Return the distinct values that a space lists for a field, in its order."""
    values: dict[Any, Any] = {}
    for axis in plan_axes(plan):
        if field in axis["fields"]:
            place = axis["fields"].index(field)
            for point in axis["points"]:
                values.setdefault(_hashable(point)[place], point[place])
    return list(values.values())


def plan_axes(plan: Plan) -> list[Mapping[str, Any]]:
    """Return the axes of a space: fields, and points with a value of each."""
    axes = plan.space.get("axes")
    return axes if isinstance(axes, list) else []


def _hashable(point: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        value if isinstance(value, int | float | str | None) else repr(value) for value in point
    )


# How a sweep is called in figures and pages.
MOST_NAMED = 3
"""Models or devices that a title names; of more it tells the number."""


def title_of_sweep(result: SweepResult) -> str:
    """Name the models and the devices of a sweep."""
    base, axes = result.plan.space.get("base"), axes_of(result.columns)
    if not isinstance(base, Mapping):
        return "sweep"
    model = base.get("model")
    of_base = str(model.get("name", "")) if isinstance(model, Mapping) else ""
    names = [
        _named(result, axes, "model", of_base, "models"),
        _named(result, axes, "cluster.device", device_name(base), "devices"),
    ]
    return " on ".join(name for name in names if name) or "sweep"


def title_of_jobs(jobs: Sequence[Job]) -> str:
    """Name the models and devices of one or several jobs."""
    if len(jobs) == 1:
        return short_title(jobs[0])
    names = list(dict.fromkeys(job.model.name for job in jobs))
    devices = list(dict.fromkeys(job.cluster.device.name for job in jobs))
    return f"{_listed(names, 'models')} on {_listed(devices, 'devices')}"


def _listed(names: Sequence[str], plural: str) -> str:
    if len(names) > MOST_NAMED:
        return f"{len(names)} {plural}"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _named(
    result: SweepResult, axes: tuple[str, ...], field: str, of_base: str, plural: str
) -> str:
    if field not in axes:
        changed = any(axis.startswith(f"{field}.") for axis in axes)
        return f"variants of {of_base}" if of_base and changed else of_base
    names = [_name(value) for value in points_of(result.plan, field)]
    return plural if not names else _listed(names, plural)


def _name(value: Any) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else str(value)


# The rows of one workload of a sweep: speeds of different models cannot be compared.
MOST_WORKLOADS = 6
"""Workloads that have a picture of their own: each takes further readings of all rows."""


@dataclass(repr=False)
class OneWorkload(SweepResult):
    """A sweep of which only the rows of one workload are seen."""

    whole: SweepResult | None = None
    workload: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Field -> value that its rows have."""

    def tables(
        self,
        columns: Sequence[str] | None = None,
        rows: Ints | None = None,
        *,
        coded: Sequence[str] = (),
    ) -> Iterator["pa.Table"]:
        """Yield the rows of the workload chunk by chunk, as `SweepResult.tables` does."""
        assert self.whole is not None
        names, begin = self._names(columns), 0
        for table in self.whole.tables([*names, *self.workload], coded=coded):
            mask = np.ones(len(table), np.bool_)
            for name, value in self.workload.items():
                code, values = codes(table, name)
                own = np.array([each == value for each in values], np.bool_)
                mask &= own[code] if len(own) else False
            own_rows = np.flatnonzero(mask)
            end = begin + len(own_rows)
            if rows is not None:
                own_rows = own_rows[rows_within(rows, begin, end)]
            begin = end
            if len(own_rows):
                yield table.take(arrow_column(own_rows)).select(names)


def workloads_of(result: SweepResult) -> list[tuple[str, SweepResult]]:
    """Return each workload of a sweep with its name, in the order of rows; one is the sweep."""
    fields = workload_fields(result.plan, axes_of(result.columns))
    counts: dict[tuple[Any, ...], int] = {}
    for table in result.tables(fields) if fields else ():
        coded = [codes(table, name) for name in fields]
        stacked = np.column_stack([code for code, _ in coded])
        distinct, first, rows = np.unique(stacked, axis=0, return_index=True, return_counts=True)
        for place in np.argsort(first).tolist():
            key = tuple(
                values[code]
                for code, (_, values) in zip(distinct[place].tolist(), coded, strict=True)
            )
            counts[key] = counts.get(key, 0) + int(rows[place])
    if len(counts) < 2:
        return [("", result)]
    found: list[tuple[str, SweepResult]] = []
    for key, rows_of_it in counts.items():
        workload = dict(zip(fields, key, strict=True))
        found.append((workload_name(workload), _one(result, workload, rows_of_it)))
    return found


def _one(result: SweepResult, workload: Mapping[str, Any], rows: int) -> OneWorkload:
    plan = result.plan
    # What stays the same in all rows is no axis of theirs.
    axes = [_with(axis, workload) for axis in plan_axes(plan)]
    return OneWorkload(
        Plan({**plan.space, "axes": axes}, plan.digest, rows, plan.kinds, plan.chunk_points),
        Totals(rows, rows, 0, {}, 0), 0.0, 0, allow_risk=result.allow_risk, whole=result,
        workload=workload,
    )  # fmt: skip


def _with(axis: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return an axis with the points of one workload alone."""
    places = {place: name for place, name in enumerate(axis["fields"]) if name in workload}
    points = [
        point
        for point in axis["points"]
        if all(point[place] == workload[name] for place, name in places.items())
    ]
    return {**axis, "points": points or list(axis["points"])}
