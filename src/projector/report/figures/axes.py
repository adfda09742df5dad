"""What the axes of a sweep are to a picture: hardware, workloads, fields that are tied."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from projector.config.space import Expression
from projector.errors import ConfigError
from projector.report.figures.words import HARDWARE, words_of
from projector.sweeps.store import Plan

WORKLOAD = ("model", "training.seq_length")
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
    axes = plan.space.get("axes")
    for axis in axes if isinstance(axes, list) else []:
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
    """Yield fields that an expression computes from one axis alone, with that axis.

    Each value of the axis must give another value, or they are not tied.
    """
    derived = plan.space.get("derived")
    axes = plan.space.get("axes")
    fields = [
        field for axis in (axes if isinstance(axes, list) else []) for field in axis["fields"]
    ]
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
    names = dict.fromkeys(words_of(each).name for each in (field, *tied.get(field, ())))
    return " = ".join(names)


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
    axes = plan.space.get("axes")
    values: dict[Any, Any] = {}
    for axis in axes if isinstance(axes, list) else []:
        if field in axis["fields"]:
            place = axis["fields"].index(field)
            for point in axis["points"]:
                values.setdefault(_hashable(point)[place], point[place])
    return list(values.values())


def _hashable(point: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        value if isinstance(value, int | float | str | None) else repr(value) for value in point
    )
