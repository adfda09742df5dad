"""Seconds of every row of the operation table, and what each workload adds up to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from projector.arrays import Flags, Floats, Ints, bits
from projector.errors import NumericError
from projector.kernels.attention import attention_time_columns
from projector.kernels.collectives import collective_time_columns
from projector.kernels.elementwise import elementwise_time_column
from projector.kernels.gemm import gemm_time_columns
from projector.kernels.grouping import group_rows
from projector.kernels.moe_exchange import UNITS_OF_CHANNEL, moe_exchange_time_column
from projector.lower.cluster_columns import LOAD_ONE
from projector.lower.hardware import SLOWDOWNS
from projector.lower.stages import RECOMPUTE_FULL, is_layer
from projector.lower.workload_columns import ADDS, ADDS_APART
from projector.lower.workloads import Workloads
from projector.operations import table as ops
from projector.operations import work as works
from projector.operations.linear import FP8, ROWWISE
from projector.operations.shapes import Shapes

NUM_SEGMENTS = 8
NUM_PHASES = 3

ORIGINS = ("analytic", "measured", "scaled")
"""Where the time of a row comes from: modelled, measured, or measured at other extents."""

ANALYTIC, MEASURED, SCALED = range(3)


class MeasuredRows(NamedTuple):
    """What measurements make of a table."""

    time_s: Floats
    """float64[rows]: seconds of all repeats, modelled where nothing was measured."""
    origin: Ints
    """int64[rows]: position in `ORIGINS`."""
    extra_s: Floats
    """float64[2, workloads, phases]: beyond rows and host; of a backward, and of B and W apart."""
    host_share: Floats
    """float64[2, workloads, phases]: share of the modelled host that it takes, if that is less."""
    layer_origin: Ints
    """int64[workloads, phases]: position in `ORIGINS` of the sum of each layer."""


class RowTimes(Protocol):
    """Measurements that replace modelled times, as a record of another job gives them."""

    @property
    def optimizer_share(self) -> float | None:
        """Measured time of an optimizer's update over the modelled one; None: not measured."""

    @property
    def send_share(self) -> float | None:
        """The same of a message between stages of a pipeline that stays within a domain."""

    def rows(self, table: ops.OperationTable, workloads: Workloads, time_s: Floats) -> MeasuredRows:
        """Replace what is known of the modelled seconds of all repeats, float64[rows]."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Device time of each row, without what surrounds kernels."""

    time_s: Floats
    """Seconds of all repeats of a row; of a collective before anything hides it."""
    exposed_s: Floats
    """What of it lengthens the step: all of it for compute, the rest of a hidden collective
    and the slowdown it causes beside it."""
    detail: Ints
    """Limiter of a compute row or algorithm of a collective; -1 where there is none."""
    measured: MeasuredRows | None = None
    """Where the times come from, if some were measured."""


@dataclass(frozen=True, slots=True)
class WorkloadCosts:
    """What one microbatch of each workload costs a rank."""

    exposed_s: Floats
    """float64[workloads, phases, categories]; recomputation counts as backward."""
    launches: Floats
    """float64[workloads, phases]: kernels the host launches."""
    calls: Floats
    """float64[workloads, phases]: operators it dispatches besides."""
    syncs: Floats
    """float64[workloads, phases]: times the host waits."""
    saved_bytes: Floats
    """float64[workloads]: activations kept from forward to backward, after recomputation."""
    weight_bytes: Floats
    """float64[workloads]: the part of `saved_bytes` that weight gradients need: inputs of GEMMs."""
    unchecked_bytes: Floats
    """float64[workloads]: bytes kept without recomputation: the working set of a layer while it
    is recomputed."""
    transient_bytes: Floats
    """float64[workloads]: the largest working set of one operation."""
    placeholder_bytes: Floats
    """float64[workloads]: gradients in 16 bits that a library keeps for autograd, one of each
    shape, where GEMMs add to the main gradients."""
    dense_parameters: Floats
    """float64[workloads]: parameters of one rank outside routed experts."""
    expert_parameters: Floats
    """float64[workloads]: parameters of routed experts of one rank."""
    trained_dense: Floats
    """float64[workloads]: those of `dense_parameters` that are trained: all, or adapters."""
    trained_experts: Floats
    """float64[workloads]: the same of `expert_parameters`."""
    packed_parameters: Floats
    """float64[workloads]: frozen parameters that lie in 4 bits, experts included."""
    recompute_flop: Floats
    """float64[workloads]: matrix FLOP that recomputation repeats."""
    work: Floats
    """float64[workloads, kinds, 3]: of `work.KINDS`; seconds, FLOP and bytes of their kernels."""
    measured: MeasuredRows | None = None
    """What was measured of layers, if anything was."""


@contextmanager
def numbers_in_range() -> Iterator[None]:
    """Raise `NumericError` where a kernel reports a time that is not a number."""
    try:
        yield
    except (ValueError, FloatingPointError) as error:
        raise NumericError(f"a cost model overflowed: {error}") from None


def cost_rows(
    table: ops.OperationTable, workloads: Workloads, measured: RowTimes | None = None
) -> RowCosts:
    """Cost the whole table on the devices and fabrics of its workloads.

    ``measured`` replaces times of rows before overlap is worked out.
    """
    time_s, detail = time_rows(table, workloads)
    replaced = None
    if measured is not None:
        replaced = measured.rows(table, workloads, time_s)
        time_s = replaced.time_s
    exposed_s = exposed_times(table, time_s, hiding_slowdowns(table, workloads), len(workloads))
    return RowCosts(time_s, exposed_s, detail, replaced)


def time_rows(table: ops.OperationTable, workloads: Workloads) -> tuple[Floats, Ints]:
    """Return seconds of all repeats of each row, and its limiter or algorithm."""
    time_s = np.zeros(len(table))
    detail = np.full(len(table), -1, np.int64)
    device = workloads.columns.device[table.workload]
    fabric = workloads.columns.fabric[table.workload]
    with numbers_in_range():
        _cost_gemms(table, workloads, device, time_s, detail)
        _cost_attention(table, workloads, device, time_s, detail)
        rows = np.flatnonzero(table.kind == ops.MEMORY)
        time_s[rows] = elementwise_time_column(
            table.bytes[rows] / table.rate_share[rows],
            np.zeros(len(rows)),
            table.exponentials[rows],
            device[rows],
            workloads.devices,
        )
        rows = np.flatnonzero(table.kind == ops.COLLECTIVE)
        time_s[rows], detail[rows] = collective_time_columns(
            table.operation[rows], table.bytes[rows], table.ranks[rows], table.local[rows],
            fabric[rows], workloads.fabrics, table.span[rows],
        )  # fmt: skip
        if len(rows := np.flatnonzero(table.kind == ops.EXCHANGE)):
            time_s[rows] = moe_exchange_time_column(
                table.operation[rows], table.tokens[rows], table.token_bytes[rows],
                table.ranks_reached[rows], table.domains_reached[rows], table.ranks[rows],
                table.local[rows], table.units[rows] / UNITS_OF_CHANNEL, fabric[rows],
                workloads.fabrics, workloads.exchanges, table.span[rows],
            )  # fmt: skip
        if workloads.exchanges["exchange_wait_s"].any():
            # Exchanges beyond the domain wait: all-to-alls and fused ones alike.
            rows = np.flatnonzero((table.category == ops.EP_COMM) & (table.ranks > table.local))
            # Of two microbatches whose layers run beside each other, the exchanges wait at once.
            beside = (table.segment[rows] == ops.WHOLE_LAYER) & (table.partner_share[rows] == 0.5)
            wait_s = workloads.exchanges["exchange_wait_s"][fabric[rows]]
            time_s[rows] += np.where(beside, 0.5 * wait_s, wait_s)
    time_s *= table.repeats
    if not np.all(np.isfinite(time_s)):
        msg = "the time of an operation is not finite; an extent exceeds the range of the models"
        raise NumericError(msg)
    return time_s, detail


class HidingRows(NamedTuple):
    """Columns of an operation table that decide what hides behind what."""

    workload: Ints
    kind: Ints
    phase: Ints
    category: Ints
    segment: Ints
    ranks: Ints
    local: Ints
    units: Floats
    exposed_share: Floats
    partner_share: Floats

    @classmethod
    def of(cls, table: ops.OperationTable) -> "HidingRows":
        """Return those of a table."""
        return cls(*(getattr(table, name) for name in cls._fields))

    def take(self, rows: Ints, workload: Ints) -> "HidingRows":
        """Return some of the rows as those of other workloads, int64[rows taken]."""
        return HidingRows._make([workload, *(column.take(rows) for column in self[1:])])


def hiding_rows(table: ops.OperationTable | HidingRows) -> Ints:
    """Return the rows of collectives of which something may hide."""
    return np.flatnonzero((table.category >= ops.TP_COMM) & (table.exposed_share < 1.0))


def hiding_slowdowns(table: ops.OperationTable | HidingRows, workloads: Workloads) -> Floats:
    """Return by which share each of `SLOWDOWNS` takes longer, float64[hiding rows, 3]."""
    rows = hiding_rows(table)
    device = workloads.columns.device[table.workload[rows]]
    slowdown = workloads.slowdown[device]
    # A fused exchange takes its compute units from what runs beside it.
    fused = np.flatnonzero(table.kind[rows] == ops.EXCHANGE)
    taken = table.units[rows[fused]] / workloads.devices["compute_units"][device[fused]]
    slowdown[fused, : SLOWDOWNS.index("collective")] = np.minimum(taken, 1.0)[:, np.newaxis]
    return slowdown


def _cost_gemms(
    table: ops.OperationTable, workloads: Workloads, device: Ints, time_s: Floats, detail: Ints
) -> None:
    rows = np.flatnonzero(table.kind == ops.GEMM)
    extents = np.stack([table.m[rows], table.n[rows], table.k[rows], table.batch[rows]], axis=1)
    # Rows of several routed experts are grouped GEMMs, each pass with a library rate of its own.
    forward, backward = (
        workloads.devices[f"grouped_{name}_efficiency"][device[rows]]
        for name in ("forward", "backward")
    )
    grouped = np.where(table.phase[rows] == ops.FORWARD, forward, backward)
    is_grouped = (table.expert[rows] == 1) & (table.batch[rows] > 1)
    efficiency = np.where(is_grouped, grouped, 1.0)
    efficiency *= workloads.gemm_shares[device[rows], table.dtype[rows]]
    efficiency *= _software_shares(workloads, table.workload[rows], table.dtype[rows], is_grouped)
    dtype, out_bytes, of_device = table.dtype[rows], table.out_bytes[rows], device[rows]
    # Layers that differ in what they recompute have the same GEMMs.
    first, same = group_rows(extents, dtype, bits(out_bytes), bits(efficiency), of_device)
    seconds, limiter, _ = gemm_time_columns(
        extents[first], dtype[first], out_bytes[first], efficiency[first], of_device[first],
        workloads.devices,
    )  # fmt: skip
    time_s[rows], detail[rows] = seconds[same] / table.rate_share[rows], limiter[same]


def _software_shares(workloads: Workloads, of_row: Ints, dtype: Ints, is_grouped: Flags) -> Floats:
    """Return what of a device's rates the software of each row reaches, float64[rows]."""
    columns = workloads.columns
    by_rows = (columns.fp8_recipe[of_row] == ROWWISE) & (dtype == FP8)
    rowwise = np.where(by_rows, columns.rowwise_gemm_share_2e20[of_row] / LOAD_ONE, 1.0)
    # Inference states no share.
    stated = columns.grouped_gemm_share_2e20[of_row]
    return np.where(is_grouped & (stated > 0), stated / LOAD_ONE, 1.0) * rowwise


def _cost_attention(
    table: ops.OperationTable, workloads: Workloads, device: Ints, time_s: Floats, detail: Ints
) -> None:
    rows = np.flatnonzero(table.kind == ops.ATTENTION)
    names = ("batch", "heads", "key_heads", "m", "n", "k", "d_v")
    columns = [getattr(table, name)[rows] for name in (*names, "causal", "window", "dtype")]
    backward = (table.phase[rows] == ops.BACKWARD).astype(np.int64)
    # As with GEMMs; devices that share a schedule of work-groups, which takes long, are neighbours.
    rates = (workloads.devices[name] for name in ("compute_units", "attention_flop_per_s"))
    _, like = group_rows(*columns, backward, group_rows(*map(bits, rates))[1][device[rows]])
    first, same = group_rows(like, device[rows])
    order = np.argsort(like[first], kind="stable")
    first, same = first[order], np.argsort(order)[same]
    *extents, causal, window, dtype = (column[first] for column in columns)
    seconds, limiter = attention_time_columns(
        np.stack(extents, axis=1), causal, window, backward[first], dtype, device[rows[first]],
        workloads.devices,
    )  # fmt: skip
    time_s[rows], detail[rows] = seconds[same], limiter[same]


class Hidden(NamedTuple):
    """What of the collectives that may hide is hidden, and what that costs."""

    rows: Ints
    """int64[h]: rows of the table."""
    waited_s: Floats
    """float64[h]: what of each nothing hides."""
    hidden_s: Floats
    """float64[h]: what of it hides, as long as it takes with nothing beside it."""
    longer: Floats
    """float64[h]: how many times as long that takes beside compute."""
    slowed: Floats
    """float64[h]: share by which the compute beside it takes longer."""


def exposed_times(
    table: ops.OperationTable | HidingRows, time_s: Floats, slowdown: Floats, num_workloads: int
) -> Floats:
    """Return what of the seconds of each row lengthens a step; see `hidden_times`."""
    hidden = hidden_times(table, time_s, slowdown, num_workloads)
    exposed_s = time_s.copy()
    # The compute beside what hides takes longer.
    slowdown_s = hidden.slowed * hidden.longer * hidden.hidden_s
    exposed_s[hidden.rows] = hidden.waited_s + slowdown_s
    return exposed_s


def hidden_times(
    table: ops.OperationTable | HidingRows, time_s: Floats, slowdown: Floats, num_workloads: int
) -> Hidden:
    """Hide collectives behind the compute of their segment, where their row allows it.

    A collective takes t seconds with exposed share e, beside compute of c seconds of which it may
    use the share p. Beside it a collective takes longer by the device's ``compute_comm_slowdown``
    r, so that it lengthens the step by ``e*t + max(0, (1-e)*t - p*c/(1+r))``. While they run beside
    each other the compute takes longer by its ``comm_compute_slowdown``, or that of the network for
    the share of hops that leave the domain (``slowdown``, of `hiding_slowdowns`). The shares of one
    segment add up to at most one, so faster compute never makes a step slower.
    """
    slot = (table.workload * 2 + (table.phase != ops.FORWARD).astype(np.int64)) * NUM_SEGMENTS
    size = num_workloads * 2 * NUM_SEGMENTS
    compute, rows = np.flatnonzero(table.category < ops.TP_COMM), hiding_rows(table)
    segment_s = np.bincount(slot[compute] + table.segment[compute], time_s[compute], size)
    hides_in_segment = rows[table.segment[rows] != ops.WHOLE_LAYER]
    claimed = np.bincount(
        slot[hides_in_segment] + table.segment[hides_in_segment],
        table.partner_share[hides_in_segment],
        size,
    )
    free_s = (segment_s * (1.0 - claimed)).reshape(-1, NUM_SEGMENTS)
    whole_s = np.zeros(len(free_s))
    for segment in range(NUM_SEGMENTS):
        whole_s += free_s[:, segment]
    beside = table.segment[rows]
    partner_s = np.where(
        beside == ops.WHOLE_LAYER,
        whole_s[slot[rows] // NUM_SEGMENTS],
        segment_s[slot[rows] + np.maximum(beside, 0)],
    )
    never = table.exposed_share[rows] * time_s[rows]
    longer = 1.0 + slowdown[:, 2]
    rest = np.maximum(0.0, time_s[rows] - never - table.partner_share[rows] * partner_s / longer)
    hidden = time_s[rows] - never - rest
    leaving = share_leaving(table.ranks[rows], table.local[rows])
    slowed = (1.0 - leaving) * slowdown[:, 0] + leaving * slowdown[:, 1]
    return Hidden(rows, never + rest, np.maximum(hidden, 0.0), longer, slowed)


def share_leaving(ranks: Ints, local: Ints) -> Floats:
    """Return which share of the hops of a ring leaves the scale-up domain."""
    domains = -(-ranks // local)
    return np.where(domains > 1, domains / ranks, 0.0)


def _sums(slot: Ints, values: Floats, size: int) -> Floats:
    """Add values up by slot, in the order of the rows."""
    return np.bincount(slot, values, size).astype(np.float64, copy=False)


def _weight_gradients(table: ops.OperationTable, workloads: Workloads) -> tuple[Floats, Floats]:
    """Return what gradients of layers' weights take in 16 bits before they are main gradients.

    Where GEMMs add to the main gradients, autograd is handed a tensor that nothing is written to:
    Transformer Engine keeps one of each shape (``get_dummy_wgrad``), so experts share theirs.
    Where a kernel of its own adds them, the largest lies beside the working set. What FSDP reduces
    is counted with what it gathers.
    """
    num = len(workloads)
    of_layer = is_layer(workloads.columns.kind)[table.workload]
    rows = np.flatnonzero((table.kind == ops.GEMM) & (table.phase == ops.WEIGHT) & of_layer)
    workload = table.workload[rows]
    size = np.asarray(2.0 * table.m[rows] * table.n[rows], np.float64)
    accumulation = workloads.columns.accumulation
    kept = np.where(accumulation == ADDS, _sums(workload, size, num), 0.0)
    largest = np.zeros(num)
    np.maximum.at(largest, workload, size * table.batch[rows])
    return kept, np.where(accumulation == ADDS_APART, largest, 0.0)


def sum_workloads(
    table: ops.OperationTable, costs: RowCosts, workloads: Workloads
) -> WorkloadCosts:
    """Add the rows of each workload up, repeating what is recomputed in the backward."""
    slots = time_slots(table, workloads)
    times = sum_times(slots, table.workload, costs.exposed_s, costs.time_s, len(workloads))
    counted = count_workloads(table, workloads)
    return replace(
        counted,
        exposed_s=times.exposed_s,
        work=works.with_seconds(counted.work, times.seconds),
        measured=costs.measured,
    )


class TimeSlots(NamedTuple):
    """Where the time of each row of a table is added."""

    slot: Ints
    """int64[rows]: phase and category."""
    kind: Ints
    """int64[rows]: of `work.KINDS`."""
    again: Flags
    """bool[rows]: rows that recomputation runs once more, in the backward."""

    def take(self, rows: Ints) -> "TimeSlots":
        """Return those of some rows."""
        return TimeSlots(self.slot[rows], self.kind[rows], self.again[rows])

    def joined(self, other: "TimeSlots") -> "TimeSlots":
        """Return those of two tables."""
        return TimeSlots._make(map(np.concatenate, zip(self, other, strict=True)))


def time_slots(table: ops.OperationTable, workloads: Workloads) -> TimeSlots:
    """Find out where times are added."""
    return TimeSlots(
        table.phase * len(ops.CATEGORIES) + table.category,
        works.kinds_of_rows(table, workloads),
        works.repeated_rows(table, workloads),
    )


class SummedTimes(NamedTuple):
    """Times of workloads."""

    exposed_s: Floats
    """float64[workloads, phases, categories]; recomputation counts as backward."""
    seconds: Floats
    """float64[workloads, kinds]: of their kernels."""


def sum_times(
    slots: TimeSlots, workload: Ints, exposed_s: Floats, time_s: Floats, num: int
) -> SummedTimes:
    """Add the times of rows, of `RowCosts`, up by their workloads, in the order of the rows."""
    terms, again = len(ops.CATEGORIES), np.flatnonzero(slots.again)
    width = NUM_PHASES * terms
    summed = _sums(workload * width + slots.slot, exposed_s, num * width)
    repeated = workload[again] * width + ops.BACKWARD * terms + slots.slot[again] % terms
    summed += _sums(repeated, exposed_s[again], num * width)
    seconds = works.sum_kinds(workload, slots.kind, again, time_s, num)
    return SummedTimes(summed.reshape(num, NUM_PHASES, terms), seconds)


def count_workloads(table: ops.OperationTable, workloads: Workloads) -> WorkloadCosts:
    """Add up what the rows of each workload are but for their times, which are left 0."""
    num = len(workloads)
    dropped, again = works.dropped_rows(table, workloads), works.repeated_rows(table, workloads)
    phases = table.workload * NUM_PHASES + table.phase
    phases_again = (table.workload * NUM_PHASES + ops.BACKWARD)[again]

    def per_phase(values: Floats) -> Floats:
        total = _sums(phases, values, num * NUM_PHASES)
        total += _sums(phases_again, values[again], num * NUM_PHASES)
        return total.reshape(num, NUM_PHASES)

    saved_of_row = np.where(dropped, 0.0, table.saved_bytes)
    unchecked = _sums(table.workload, table.saved_bytes, num)
    saved = _sums(table.workload, saved_of_row, num)
    shapes = Shapes(workloads.rows)
    full = workloads.columns.recompute == RECOMPUTE_FULL
    checkpoint = 2.0 * shapes.outer_tokens * shapes.hidden
    transient = np.zeros(num)
    np.maximum.at(transient, table.workload, table.transient_bytes)
    placeholders, apart = _weight_gradients(table, workloads)
    experts = table.expert == 1
    trained = np.where(
        shapes.frozen[table.workload] * (1 - table.adapter) == 1, 0.0, table.parameters
    )
    packed = (table.kind == ops.GEMM) & (table.adapter == 0)
    packed &= workloads.columns.packed_base[table.workload] == 1
    return WorkloadCosts(
        exposed_s=np.zeros((num, NUM_PHASES, len(ops.CATEGORIES))),
        launches=per_phase(
            np.where(table.category < ops.TP_COMM, table.launches, 1.0) * table.repeats
        ),
        calls=per_phase(table.calls * table.repeats),
        syncs=per_phase(table.syncs),
        saved_bytes=np.where(full, checkpoint, saved),
        weight_bytes=np.minimum(
            _sums(table.workload, np.where(table.kind == ops.GEMM, saved_of_row, 0.0), num),
            np.where(full, checkpoint, saved),
        ),
        unchecked_bytes=unchecked,
        transient_bytes=transient + apart,
        placeholder_bytes=placeholders,
        dense_parameters=_sums(table.workload[~experts], table.parameters[~experts], num),
        expert_parameters=_sums(table.workload[experts], table.parameters[experts], num),
        trained_dense=_sums(table.workload[~experts], trained[~experts], num),
        trained_experts=_sums(table.workload[experts], trained[experts], num),
        packed_parameters=_sums(table.workload[packed], table.parameters[packed], num),
        recompute_flop=_sums(table.workload[again], table.flop[again], num),
        work=works.work_of_workloads(table, again, workloads),
    )
