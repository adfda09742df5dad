"""Restoring: times measured of a benchmark job, as times of the rows of the job asked for.

A row whose kernel was measured takes what was measured. A row that has a counterpart, the same
operation in the same kind of layer at other extents, takes the counterpart's time scaled by the
model. What has no counterpart stays as it is modelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError
from projector.kernels.collective_algorithms import ALL_TO_ALL
from projector.lower.workloads import Workloads
from projector.measure.keys import OperationKey, keys_of
from projector.operations import table as ops
from projector.operations.cost import ANALYTIC, MEASURED, NUM_PHASES, SCALED, MeasuredRows
from projector.operations.work import repeated_rows

TpRule = Literal["ratio", "linear"]
"""How compute is restored to another tensor parallelism: by the ratio of what the model says of
both shapes, or in proportion to their ranks (Primus)."""

TP_RULES: tuple[TpRule, ...] = get_args(TpRule)

HIDING = ("segment", "exposed_share", "partner_share")
"""Columns that say what hides a collective."""

FUSING = ("eager", "compiled", "permute_fusion", "fused_experts", "padding_fusion")
"""Columns of workloads that say which kernels run beside GEMMs."""


class _Counterparts(NamedTuple):
    workload: Ints
    """int64[workloads]: workload of the same kind; -1 without one."""
    row: Ints
    """int64[rows]: row of the same operation; -1 without one."""
    keys: list[OperationKey]
    same: Flags
    """bool[workloads, phases]: whether the layer of the benchmark job runs the same kernels."""


@dataclass(frozen=True, eq=False)
class Restoration:
    """What a record says of a benchmark job: `RowTimes` of any job with the same model."""

    table: ops.OperationTable
    """Rows of the benchmark job."""
    workloads: Workloads
    modelled_s: Floats
    """float64[rows]: modelled seconds of one run of each row."""
    times: Mapping[OperationKey, float]
    """Measured seconds of one run."""
    factor: Floats
    """float64[workloads, phases]: by which rows of a layer are longer within it than alone."""
    extra_s: Floats
    """float64[2, workloads, phases]: see `MeasuredRows`."""
    host_share: Floats
    """float64[2, workloads, phases]"""
    whole: Flags
    """bool[workloads, phases]: whether layers were measured as a whole."""
    tp_rule: TpRule = "ratio"
    optimizer_share: float | None = None
    send_share: float | None = None

    @classmethod
    def of_rows(
        cls,
        table: ops.OperationTable,
        workloads: Workloads,
        time_s: Floats,
        times: Mapping[OperationKey, float],
        tp_rule: str = "ratio",
    ) -> "Restoration":
        """Return the restoration from operations: modelled ``time_s`` [rows], measured by key."""
        rule = next((name for name in TP_RULES if name == tp_rule), None)
        if rule is None:
            msg = f"tp_rule is {' or '.join(TP_RULES)}, got {tp_rule!r}"
            raise ConfigError(msg, key="tp_rule", value=tp_rule, allowed=list(TP_RULES))
        shape = len(workloads.rows), NUM_PHASES
        once_s = time_s / np.maximum(table.repeats, 1.0)
        return cls(
            table, workloads, once_s, times, np.ones(shape), np.zeros((2, *shape)),
            np.ones((2, *shape)), np.zeros(shape, np.bool_), rule,
        )  # fmt: skip

    @cached_property
    def measured_s(self) -> Floats:
        """Measured seconds of one run of each row of the benchmark job; NaN where unknown."""
        return np.array([self.times.get(key, np.nan) for key in self._keys], np.float64)

    @cached_property
    def _keys(self) -> list[OperationKey]:
        return keys_of(self.table, np.arange(len(self.table)))

    @cached_property
    def has_rows(self) -> Flags:
        """bool[workloads, phases]: whether any row that takes time was measured by itself."""
        known = ~np.isnan(self.measured_s) & (self.modelled_s > 0.0)
        slot = self.table.workload * NUM_PHASES + self.table.phase
        counts = np.bincount(slot[known], minlength=len(self.workloads.rows) * NUM_PHASES)
        return counts.reshape(-1, NUM_PHASES) > 0

    @cached_property
    def _row_of(self) -> dict[tuple[int, str, int, int], int]:
        return {name: row for row, name in enumerate(_names(self.table, self.table.workload))}

    def rows(self, table: ops.OperationTable, workloads: Workloads, time_s: Floats) -> MeasuredRows:
        """Replace what is known of the modelled seconds of all repeats, float64[rows]."""
        found = self._counterparts(table, workloads)
        once_s, origin = self._once(
            table, workloads, time_s / np.maximum(table.repeats, 1.0), found
        )
        has = found.row >= 0
        factor = self.factor[found.workload[table.workload[has]], table.phase[has]]
        once_s[has] *= factor
        # A row within a measured layer that was not measured apart follows from the layer.
        origin[has] = np.where((origin[has] == ANALYTIC) & (factor != 1.0), SCALED, origin[has])
        # Rows that nothing is known of keep the bits of the model.
        restored_s = np.where(origin == ANALYTIC, time_s, once_s * table.repeats)
        return self._within_layers(table, workloads, restored_s, origin, found)

    def _counterparts(self, table: ops.OperationTable, workloads: Workloads) -> _Counterparts:
        here, there = self.workloads.columns, workloads.columns
        known: dict[tuple[int, ...], int] = {}
        for row, kind in enumerate(zip(here.kind, here.window, here.dtype, strict=True)):
            # Of one kind in several types that one stands for others as well.
            for name in (tuple(map(int, kind)), tuple(map(int, kind[:2])), (int(kind[0]),)):
                known.setdefault(name, row)
        workload = np.full(len(workloads.rows), -1, np.int64)
        for row, kind in enumerate(zip(there.kind, there.window, there.dtype, strict=True)):
            whole = tuple(map(int, kind))
            names = (whole, whole[:2], whole[:1])
            workload[row] = next((known[name] for name in names if name in known), -1)
        names_of_rows = _names(table, workload[table.workload])
        row_of = np.array([self._row_of.get(name, -1) for name in names_of_rows], np.int64)
        keys = keys_of(table, np.arange(len(table)))
        pairs = zip(row_of.tolist(), keys, strict=True)
        other = np.array([row < 0 or key != self._keys[row] for row, key in pairs], np.bool_)
        for column in HIDING:
            other |= getattr(table, column) != getattr(self.table, column)[row_of]
        slot = table.workload * NUM_PHASES + table.phase
        others = np.bincount(slot[other], minlength=len(workload) * NUM_PHASES)
        return _Counterparts(workload, row_of, keys, others.reshape(-1, NUM_PHASES) == 0)

    def _once(
        self,
        table: ops.OperationTable,
        workloads: Workloads,
        modelled_s: Floats,
        found: _Counterparts,
    ) -> tuple[Floats, Ints]:
        once_s, origin = modelled_s.copy(), np.full(len(table), ANALYTIC)
        rows = np.flatnonzero(found.row >= 0)
        other = found.row[rows]
        measured, modelled = self.measured_s[other], self.modelled_s[other]
        known = ~np.isnan(measured)
        rows, measured, modelled = rows[known], measured[known], modelled[known]
        exchanged = (table.category[rows] == ops.EP_COMM) & (
            (table.kind[rows] == ops.EXCHANGE)
            | ((table.kind[rows] == ops.COLLECTIVE) & (table.operation[rows] == ALL_TO_ALL))
        )
        share = modelled_s[rows] / np.where(modelled > 0.0, modelled, 1.0)
        by_ratio = np.where(modelled > 0.0, measured * share, modelled_s[rows])
        by_delta = np.maximum(0.0, modelled_s[rows] - modelled + measured)
        once_s[rows] = np.where(exchanged, by_delta, by_ratio)
        origin[rows] = np.where(exchanged | (modelled > 0.0), SCALED, ANALYTIC)
        for row, key in enumerate(found.keys):
            if key in self.times:
                once_s[row], origin[row] = self.times[key], MEASURED
        if self.tp_rule == "linear":
            shares = self._tp_shares(workloads, found.workload)[table.workload[rows]]
            # Another kernel is no matter of ranks: it stays scaled by the model.
            alike = self._fused_alike(workloads, found.workload)[table.workload[rows]]
            linear = (shares != 1.0) & (table.category[rows] < ops.TP_COMM)
            linear &= alike | (table.kind[rows] != ops.MEMORY)
            once_s[rows[linear]] = (measured * shares)[linear]
            origin[rows[linear]] = SCALED
        return once_s, origin

    def _tp_shares(self, workloads: Workloads, counterpart: Ints) -> Floats:
        shares = self.workloads.columns.tp[counterpart] / workloads.columns.tp
        return np.where(counterpart >= 0, shares, 1.0)

    def _fused_alike(self, workloads: Workloads, counterpart: Ints) -> Flags:
        """Return whether workloads run the memory-bound kernels of the benchmark job."""
        alike = counterpart >= 0
        for name in FUSING:
            here, there = (getattr(each.columns, name) for each in (self.workloads, workloads))
            alike &= here[counterpart] == there
        return alike

    def _within_layers(
        self, table: ops.OperationTable, workloads: Workloads, time_s: Floats, origin: Ints,
        found: _Counterparts,
    ) -> MeasuredRows:  # fmt: skip
        """Say what layers take besides their rows, recomputation included.

        What a layer takes beyond its rows follows the number of its kernels.
        """
        counterpart, has = found.workload, found.workload >= 0
        here, there = (
            _launches(each, len(of.rows))
            for each, of in ((self.table, self.workloads), (table, workloads))
        )
        kernels = there / np.where(here > 0.0, here, 1.0)[counterpart]
        extra_s = np.where(has[:, None], self.extra_s[:, counterpart] * kernels, 0.0)
        if self.tp_rule == "linear":
            extra_s *= self._tp_shares(workloads, counterpart)[:, None]
        # Which share of each workload's forward recomputation repeats, float64[workloads].
        num = len(workloads.rows)
        forward = table.phase == ops.FORWARD
        again = repeated_rows(table, workloads)
        total = np.bincount(table.workload[forward], time_s[forward], num)
        repeated = np.bincount(table.workload[again], time_s[again], num)
        extra_s[..., ops.BACKWARD] += extra_s[..., ops.FORWARD] * (
            repeated / np.where(total > 0.0, total, 1.0)
        )
        same = found.same & (there == here[counterpart])
        whole = has[:, None] & self.whole[counterpart]
        return MeasuredRows(
            time_s=time_s,
            origin=origin,
            extra_s=extra_s,
            host_share=np.where(has[:, None], self.host_share[:, counterpart], 1.0),
            layer_origin=np.where(whole, np.where(same, MEASURED, SCALED), ANALYTIC),
        )


def _launches(table: ops.OperationTable, num_workloads: int) -> Floats:
    """Return the kernels of each workload, float64[workloads, phases], without recomputation."""
    slot = table.workload * NUM_PHASES + table.phase
    kernels = np.where(table.category < ops.TP_COMM, table.launches, 1.0) * table.repeats
    total = np.bincount(slot, kernels, num_workloads * NUM_PHASES).astype(np.float64, copy=False)
    return total.reshape(-1, NUM_PHASES)


def _names(table: ops.OperationTable, workload: Ints) -> list[tuple[int, str, int, int]]:
    seen: dict[tuple[int, int, int], int] = {}
    names = []
    rows = zip(table.workload.tolist(), table.label.tolist(), table.phase.tolist(), strict=True)
    for (own, label, phase), of in zip(rows, workload.tolist(), strict=True):
        number = seen.get((own, label, phase), 0)
        seen[own, label, phase] = number + 1
        names.append((of, table.labels[label], phase, number))
    return names
