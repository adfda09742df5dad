"""Costs of workloads that are kept from one batch of jobs to the next.

What a workload keeps, launches and computes follows from its shape alone. A device decides what a
kernel takes, and a fabric what a collective takes. So the operations of a shape are found once,
each is timed once for a device or for a fabric, and a workload puts both together.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from projector.arrays import Array, Flags, Floats, GrowingArray, Ints, KnownKeys, Records
from projector.kernels.grouping import concatenated_ranges, group_rows, offsets
from projector.lower.machines import Machines
from projector.lower.workload_columns import WORKLOAD
from projector.lower.workloads import Workloads
from projector.operations import cost
from projector.operations.emit import emit_operations
from projector.operations.table import COLLECTIVE, EXCHANGE, TP_COMM, OperationTable, TableBuilder
from projector.operations.work import with_seconds

MOST_WORKLOADS = 200_000
"""Workloads whose times are kept from one batch to the next."""

MOST_SHAPES = 50_000
"""Shapes whose operations are kept."""

MOST_MACHINES = 1 << 15
"""Devices and fabrics that are looked up; a device takes 7 kB."""

_BITS = 21
"""Bits of each of the three numbers that one key tells apart: together they fit in an int64."""


def packed(*parts: Ints) -> Ints:
    """Return one number for each combination of some numbers of `_BITS` bits."""
    code = np.zeros_like(parts[0])
    for part in parts:
        if part.max(initial=0) >> _BITS:
            msg = f"jobs differ in more than {1 << _BITS} shapes, layouts, trainings or machines"
            raise OverflowError(msg)
        code = code << _BITS | part
    return code


def unpacked(code: Ints, parts: int) -> tuple[Ints, ...]:
    """Return the numbers that `packed` has made one of."""
    mask = (1 << _BITS) - 1
    return tuple(code >> _BITS * place & mask for place in reversed(range(parts)))


class GrowingColumns:
    """Columns that get more rows, each by its name."""

    def __init__(self) -> None:
        """Begin without any."""
        self._columns: dict[str, GrowingArray] = {}

    def add(self, columns: Mapping[str, Array]) -> None:
        """Add rows to some columns, behind those that are there."""
        for name, values in columns.items():
            if name not in self._columns:
                self._columns[name] = GrowingArray(values.dtype, *values.shape[1:])
            self._columns[name].add(values)

    def length(self, name: str) -> int:
        """Return the number of rows of a column."""
        return len(self._columns[name]) if name in self._columns else 0

    def take(self, name: str, rows: Ints) -> Array:
        """Return some rows of a column."""
        return self._columns[name].all().take(rows, axis=0)


class KnownWorkloads(NamedTuple):
    """Workloads as `Workloads` has them."""

    shapes: Records
    shape: Ints
    on_device: Ints
    on_fabric: Ints


class KnownCosts:
    """Costs of workloads by their shape, device and fabric."""

    def __init__(self) -> None:
        """Begin without any."""
        self.machines = Machines()
        """Devices and fabrics that the workloads of all batches are numbered by."""
        self._shapes = _Shapes()
        self._forget()

    def _forget(self) -> None:
        self._keys = KnownKeys()
        """Of workloads: their shapes, devices and fabrics."""
        self._times = GrowingColumns()
        """`SummedTimes` of workloads, and their keys."""

    def make_room(self) -> bool:
        """Forget what has become too much, between two batches; return whether something was.

        What is left is numbered anew.
        """
        machines, shapes = len(self.machines) > MOST_MACHINES, len(self._shapes) > MOST_SHAPES
        if machines:
            self.machines = Machines()
        if shapes:
            self._shapes = _Shapes()
        if machines or shapes or len(self) > MOST_WORKLOADS:
            self._forget()
            return True
        return False

    def __len__(self) -> int:
        """Return how many workloads are known."""
        return len(self._keys)

    def numbers(self, workloads: Workloads) -> Ints:
        """Return the number under which each workload is known, from 0 on; new ones are costed."""
        shape = self._shapes.numbers(workloads).take(workloads.shape)
        key = packed(shape, workloads.on_device, workloads.on_fabric)
        new = np.flatnonzero(self._keys.missing(key))
        if len(new):
            device, fabric = workloads.on_device[new], workloads.on_fabric[new]
            placed = self._shapes.placed(workloads, shape[new], device, fabric)
            self._times.add({"key": key[new], **self._shapes.times(placed)._asdict()})
            self._keys.add(key[new])
        return self._keys.rows(key)

    def take(self, number: Ints) -> tuple[KnownWorkloads, cost.WorkloadCosts]:
        """Return some workloads by their numbers, and what they cost."""
        shape, on_device, on_fabric = unpacked(self._times.take("key", number), 3)
        times = cost.SummedTimes(
            *(self._times.take(name, number) for name in cost.SummedTimes._fields)
        )
        counted = {name: each.take(shape, axis=0) for name, each in self._shapes.counts.items()}
        counted["work"] = with_seconds(counted["work"], times.seconds)
        known = KnownWorkloads(self._shapes.records, shape, on_device, on_fabric)
        return known, cost.WorkloadCosts(exposed_s=times.exposed_s, measured=None, **counted)


class _Rows(NamedTuple):
    row: Ints
    """Those of one shape after the other."""
    first: Ints
    """int64[shapes + 1]: where those of each begin."""

    @classmethod
    def of(cls, table: OperationTable, num_shapes: int, chosen: Flags) -> "_Rows":
        row = np.flatnonzero(chosen)
        return cls(row, offsets(np.bincount(table.workload[row], minlength=num_shapes)))

    def of_shapes(self, shape: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the rows of some shapes, which of them has each, and where those of each begin."""
        count = (self.first[1:] - self.first[:-1])[shape]
        row = self.row[concatenated_ranges(self.first[shape], count)]
        return row, np.repeat(np.arange(len(shape)), count), offsets(count)[:-1]


class _Shapes:
    """Shapes with their operations, those of one shape after the other."""

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}
        self.records: Records = np.zeros(0, WORKLOAD)
        """WORKLOAD[shapes]."""
        self.counts: dict[str, Array] = {}
        """Columns of `WorkloadCosts` that no time enters, one row a shape."""
        self._table = TableBuilder().build()
        nothing = np.zeros(0, np.int64)
        self._slots = cost.TimeSlots(nothing, nothing, nothing == 1)

    def __len__(self) -> int:
        return len(self._number)

    def numbers(self, workloads: Workloads) -> Ints:
        """Return the number of each shape; new ones get one."""
        size, content = WORKLOAD.itemsize, workloads.shapes.tobytes()
        keys = [content[begin : begin + size] for begin in range(0, len(content), size)]
        new = [row for row, key in enumerate(keys) if key not in self._number]
        if new:
            self._add(workloads, workloads.shapes[new])
            for row in new:
                self._number[keys[row]] = len(self)
        return np.array([self._number[key] for key in keys], np.int64)

    def _add(self, workloads: Workloads, records: Records) -> None:
        nowhere = np.zeros(len(records), np.int64)
        shapes = replace(
            workloads,
            shapes=records,
            shape=np.arange(len(records)),
            on_device=nowhere,
            on_fabric=nowhere,
        )
        emitted = emit_operations(records)
        order = np.argsort(emitted.workload, kind="stable")
        table = emitted.take(order, emitted.workload[order])
        counts, slots = cost.count_workloads(table, shapes), cost.time_slots(table, shapes)
        for name in _COUNTED:
            more = getattr(counts, name)
            known = self.counts.get(name)
            self.counts[name] = more if known is None else np.concatenate([known, more])
        self._slots = self._slots.joined(slots)
        numbered = replace(table, workload=table.workload + len(self.records))
        self._table = self._table.joined(numbered)
        self.records = np.concatenate([self.records, records])
        self._index()

    def _index(self) -> None:
        table, num = self._table, len(self.records)
        self._by_fabric = np.isin(table.kind, (COLLECTIVE, EXCHANGE))
        self._every = _Rows.of(table, num, np.ones(len(table), np.bool_))
        self._of_fabric = _Rows.of(table, num, self._by_fabric)
        self._of_device = _Rows.of(table, num, ~self._by_fabric)
        self._place = np.empty(len(table), np.int64)
        """Of each row among those of its shape that the same part of a machine decides."""
        for rows in (self._of_fabric, self._of_device):
            shape = table.workload[rows.row]
            self._place[rows.row] = np.arange(len(shape)) - rows.first[shape]
        self._hiding = cost.HidingRows.of(table)
        hiding = (table.category >= TP_COMM) & (table.exposed_share < 1.0)
        self._hides = np.bincount(table.workload[hiding], minlength=num) > 0

    def placed(self, like: Workloads, shape: Ints, device: Ints, fabric: Ints) -> Workloads:
        """Return workloads that have these shapes."""
        return replace(like, shapes=self.records, shape=shape, on_device=device, on_fabric=fabric)

    def times(self, placed: Workloads) -> cost.SummedTimes:
        nowhere = np.zeros(len(placed), np.int64)
        of_device, begin = self._timed(placed, self._of_device, placed.on_device, nowhere)
        of_fabric, begin_fabric = self._timed(placed, self._of_fabric, nowhere, placed.on_fabric)
        row, owner, _ = self._every.of_shapes(placed.shape)
        begin_fabric += len(of_device)
        begins = np.where(self._by_fabric[row], begin_fabric[owner], begin[owner])
        time_s = np.concatenate([of_device, of_fabric])[begins + self._place[row]]
        exposed_s = time_s
        hiding = np.flatnonzero(self._hides[placed.shape][owner])
        if len(hiding):
            table = self._hiding.take(row[hiding], owner[hiding])
            slowdown = cost.hiding_slowdowns(table, placed)
            exposed_s = time_s.copy()
            exposed_s[hiding] = cost.exposed_times(table, time_s[hiding], slowdown, len(placed))
        return cost.sum_times(self._slots.take(row), owner, exposed_s, time_s, len(placed))

    def _timed(
        self, placed: Workloads, rows: _Rows, device: Ints, fabric: Ints
    ) -> tuple[Floats, Ints]:
        """Time the rows that one part of a machine decides, once for each shape on each.

        Returned are float64[n] and int64[workloads], where the times of each workload's rows begin.
        """
        first, like = group_rows(placed.shape, device, fabric)
        parts = self.placed(placed, placed.shape[first], device[first], fabric[first])
        row, owner, begin = rows.of_shapes(parts.shape)
        time_s, _ = cost.time_rows(self._table.take(row, owner), parts)
        return time_s, begin[like]


_COUNTED = tuple(
    field.name
    for field in fields(cost.WorkloadCosts)
    if field.name not in ("exposed_s", "measured")
)
