"""The rows of one workload of a sweep: speeds of different models cannot be compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Flags
from projector.report.figures.axes import workload_fields, workload_name
from projector.report.figures.rows import axes_of, codes
from projector.sweeps.journal import Totals
from projector.sweeps.result import SweepResult
from projector.sweeps.store import Plan

if TYPE_CHECKING:
    import pyarrow as pa

MOST_WORKLOADS = 6
"""Workloads that have a picture of their own: each takes further readings of all rows."""


@dataclass(repr=False)
class OneWorkload(SweepResult):
    """A sweep of which only the rows of one workload are seen."""

    whole: SweepResult | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Field -> value that its rows have."""

    def tables(self, columns: Sequence[str] | None = None) -> Iterator["pa.Table"]:
        """Yield the rows of the workload chunk by chunk, as `SweepResult.tables` does."""
        import pyarrow as pa

        assert self.whole is not None
        names = self._names(columns)
        for table in self.whole.tables([*names, *self.workload]):
            mask = _mask(table, self.workload)
            if mask.any():
                yield table.filter(pa.array(mask)).select(names)


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
    axes = [_with(axis, workload) for axis in plan.space.get("axes") or ()]
    of_it = Plan({**plan.space, "axes": axes}, plan.digest, rows, plan.kinds, plan.chunk_points)
    return OneWorkload(
        of_it, Totals(rows, rows, 0, {}, 0), 0.0, 0,
        allow_risk=result.allow_risk, whole=result, workload=workload,
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


def _mask(table: "pa.Table", workload: Mapping[str, Any]) -> Flags:
    mask = np.ones(len(table), np.bool_)
    for name, value in workload.items():
        code, values = codes(table, name)
        own = np.array([each == value for each in values], np.bool_)
        mask &= own[code] if len(own) else False
    return mask
