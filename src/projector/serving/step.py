"""Seconds of inference steps: terms, gaps between kernels, waits for the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Floats, Ints, Records
from projector.config.engine import dequantising
from projector.errors import NumericError
from projector.kernels.attention import attention_time_columns
from projector.kernels.collectives import collective_time_columns
from projector.kernels.elementwise import elementwise_time_column
from projector.kernels.gemm import gemm_time_columns
from projector.kernels.grouped import grouped_gemm_time_columns
from projector.kernels.grouping import group_rows
from projector.kernels.moe_exchange import UNITS_OF_CHANNEL, moe_exchange_time_column
from projector.operations import table as ops
from projector.operations.shapes import is_narrow
from projector.serving.columns import StepColumns, has_prompts, scheduled
from projector.serving.deployment import Deployment
from projector.units import MICROSECOND

BREAKDOWN = ("gemm", "attention", "other", "tp_comm", "pp_comm", "ep_comm", "launch", "host")
"""Terms of a step, which add up to it: ``launch`` is the device's time between kernels, ``host``
what the device waits for the host beyond that."""

LAUNCH, HOST = 6, 7

LIMITS = ("compute", "memory", "communication", "launch", "host")
"""What a step may be limited by."""

COMPUTE, MEMORY, COMMUNICATION = range(3)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of steps."""

    breakdown_s: Floats
    """float64[steps, len(BREAKDOWN)]."""
    latency_s: Floats
    """float64[steps]: first stage to last, every stage idle while another works."""
    interval_s: Floats
    """float64[steps]: between two batches of the slowest stage, with a batch in each stage."""
    limits_s: Floats
    """float64[steps, len(LIMITS)]: the latency by what limits the operations. The seconds of an
    operation belong to its higher roof: FLOP over the matrix rate, or bytes over the memory rate
    (Williams et al., Roofline, CACM 2009)."""


def totals_of(table: ops.OperationTable, row_s: Floats, columns: StepColumns) -> Floats:
    """Add up the rows of each step, float64[steps, LAUNCH + 5].

    These are the seconds of each term that rows have, then kernels, then operators that launch
    nothing, then seconds that `LIMITS` of rows limit. ``row_s`` has the seconds of one repeat of
    each row.
    """
    steps = len(columns)
    is_compute = _compute_s(table, columns) > _memory_s(table, columns)
    linked = (table.kind == ops.COLLECTIVE) | (table.kind == ops.EXCHANGE)
    limit = np.where(linked, COMMUNICATION, np.where(is_compute, COMPUTE, MEMORY))

    def added(slot: Ints, values: Floats, width: int) -> Floats:
        # In the order of the rows; none are float64 zeros.
        added = np.bincount(slot, values * table.repeats, steps * width)
        return added.astype(np.float64).reshape(steps, width)

    return np.concatenate(
        [
            added(table.workload * LAUNCH + table.category, row_s, LAUNCH),
            added(table.workload, table.launches, 1),
            added(table.workload, table.calls, 1),
            added(table.workload * 3 + limit, row_s, 3),
        ],
        axis=1,
    )


@dataclass(frozen=True, slots=True)
class Hosts:
    """What the host side of deployments costs, one entry a deployment."""

    prefill_graph: Flags
    decode_graph: Flags
    graph_gap_s: Floats
    """Between kernels of a graph."""
    queue_gap_s: Floats
    """Between kernels of a full queue."""
    launch_s: Floats
    """Of a kernel."""
    operator_s: Floats
    """Of an operator."""
    step_s: Floats
    """Between two steps, while the device waits."""
    sequence_s: Floats
    """The same for each sequence of the step."""
    groups: Ints
    """Attention groups, each with a scheduler of its own."""
    stages: Ints
    layers: Ints


def between_steps_us(deployment: Deployment) -> float:
    """Return what a step takes beside kernels, gaps and sequences, us."""
    runs, model = deployment.runs, deployment.model
    latent = model.mla is not None and deployment.cluster.device.vendor == "amd"
    return runs.step_us + latent * runs.latent_layer_us * model.num_layers


def hosts_of(deployments: Sequence[Deployment]) -> Hosts:
    """Read the host side of deployments."""

    def seconds(values: list[float]) -> Floats:
        return np.array(values, np.float64) * MICROSECOND

    runs = [each.runs for each in deployments]
    devices = [each.cluster.device for each in deployments]
    software = [each.cluster.software for each in deployments]
    return Hosts(
        prefill_graph=np.array([each.prefill_graph for each in runs], np.bool_),
        decode_graph=np.array([each.decode_graph for each in runs], np.bool_),
        graph_gap_s=seconds([each.kernel_start_graph_us for each in devices]),
        queue_gap_s=seconds([each.kernel_start_us for each in devices]),
        launch_s=seconds([each.launch_us for each in software]),
        operator_s=seconds([each.operator_us for each in software]),
        step_s=seconds([between_steps_us(each) for each in deployments]),
        sequence_s=seconds([each.sequence_us for each in runs]),
        groups=np.array([each.attention_dp for each in deployments], np.int64),
        stages=np.array([each.pp for each in deployments], np.int64),
        layers=np.array([each.model.num_layers for each in deployments], np.int64),
    )


def finished(
    totals: Floats, hosts: Hosts, deployment: Ints, counts: Mapping[str, Ints]
) -> StepTimes:
    """Return the times of steps, each of a ``deployment`` (a row in ``hosts``) and some `COUNTS`.

    ``totals`` are those of `totals_of`.
    A step with prompts is of no fixed size, so that it is captured where a prefill is.
    """
    prefill, decode = hosts.prefill_graph[deployment], hosts.decode_graph[deployment]
    captured = np.where(has_prompts(counts), prefill, decode)
    gap_s = np.where(captured, hosts.graph_gap_s[deployment], hosts.queue_gap_s[deployment])
    breakdown = np.empty((len(deployment), len(BREAKDOWN)))
    breakdown[:, :LAUNCH] = totals[:, :LAUNCH]
    launches, calls = totals[:, LAUNCH : LAUNCH + 2].T
    breakdown[:, LAUNCH] = launches * gap_s
    busy_s = _total_s(breakdown[:, :HOST])
    host_s = launches * hosts.launch_s[deployment]
    host_s = host_s + (launches + calls) * hosts.operator_s[deployment]
    waiting_s = np.where(captured, 0.0, np.maximum(0.0, host_s - busy_s))
    own_s = hosts.sequence_s[deployment] * scheduled(counts, hosts.groups[deployment])
    breakdown[:, HOST] = waiting_s + (hosts.step_s[deployment] + own_s)
    latency_s = _total_s(breakdown)
    send_s = breakdown[:, ops.PP_COMM]
    stages, layers = hosts.stages[deployment], hosts.layers[deployment]
    share = -(-layers // stages) / layers
    interval_s = np.where(
        stages > 1, (latency_s - send_s) * share + send_s / np.maximum(1, stages - 1), latency_s
    )
    limits_s = np.concatenate([totals[:, LAUNCH + 2 :], breakdown[:, LAUNCH:]], axis=1)
    return StepTimes(breakdown, latency_s, interval_s, limits_s)


def _total_s(breakdown: Floats) -> Floats:
    """Add terms up one after the other, so that a term of 0 changes no bit."""
    total_s = np.zeros(len(breakdown))
    for term_s in breakdown.T:
        total_s += term_s
    return total_s


def cost_rows(table: ops.OperationTable, steps: StepColumns) -> Floats:
    """Return the seconds of one repeat of each row."""
    try:
        return _cost_rows(table, steps)
    except (ValueError, FloatingPointError) as error:
        raise NumericError(f"a cost model overflowed: {error}") from None


def _cost_rows(table: ops.OperationTable, steps: StepColumns) -> Floats:
    row_s = np.zeros(len(table))
    device = steps.shapes.rows["device"][table.workload]
    rows = np.flatnonzero(table.kind == ops.GEMM)
    row_s[rows] = _gemm_s(table, steps, rows)
    rows = np.flatnonzero(table.kind == ops.ATTENTION)
    extents = (table.batch, table.heads, table.key_heads, table.m, table.n, table.k, table.d_v)
    read = [column[rows] for column in (*extents, table.causal, table.window)]
    read += [steps.shapes.wide_dtype[table.workload[rows]], device[rows]]
    # Batches have the chunks of a long prompt in common.
    first, like = group_rows(*read)
    *extents_a, causal, window, dtype, device_a = (column[first] for column in read)
    time_s, _ = attention_time_columns(
        np.stack(extents_a, axis=1), causal, window, np.zeros(len(first), np.int64), dtype,
        device_a, steps.devices,
    )  # fmt: skip
    row_s[rows] = time_s[like]
    rows = np.flatnonzero(table.kind == ops.MEMORY)
    traffic_s = elementwise_time_column(
        table.bytes[rows], np.zeros(len(rows)), np.zeros(len(rows)), device[rows], steps.devices
    )
    on, devices = device[rows], steps.devices
    code = steps.shapes.wide_dtype[table.workload[rows]]
    # Rows that also multiply stream a cache, in kernels made for it.
    streamed_s = table.bytes[rows] / devices["hbm_bytes_per_s"][on]
    traffic_s = np.where(table.flop[rows] > 0.0, streamed_s, traffic_s)
    rate = devices["attention_flop_per_s"][on, code]
    matrix_s = table.flop[rows] / (rate * devices["attention_forward_efficiency"][on])
    # A kernel that does little still waits for memory once.
    latency_s = table.launches[rows] * devices["hbm_latency_s"][on]
    row_s[rows] = np.maximum(traffic_s, matrix_s) + latency_s
    rows = np.flatnonzero(table.kind == ops.COLLECTIVE)
    row_s[rows], _ = collective_time_columns(
        table.operation[rows], table.bytes[rows], table.ranks[rows], table.local[rows],
        steps.shapes.rows["fabric"][table.workload[rows]], steps.fabrics,
    )  # fmt: skip
    rows = np.flatnonzero(table.kind == ops.EXCHANGE)
    row_s[rows] = moe_exchange_time_column(
        table.operation[rows], table.tokens[rows], table.token_bytes[rows],
        table.ranks_reached[rows], table.domains_reached[rows], table.ranks[rows],
        table.local[rows], table.units[rows] / UNITS_OF_CHANNEL,
        steps.shapes.rows["fabric"][table.workload[rows]], steps.fabrics, steps.exchanges,
    )  # fmt: skip
    return row_s


def _gemm_s(table: ops.OperationTable, steps: StepColumns, rows: Ints) -> Floats:
    """Return the seconds of GEMM rows.

    A kernel for narrow weights reads as much as a GEMM with ``weight_share`` times the columns.
    It is no faster than the matrix rate allows, nor with several tiles of rows than the wide GEMM
    would be from infinitely fast memory; a single tile streams the weights, and the padding of wide
    kernels does not hold it up. Widening weights takes vector instructions that loads do not hide,
    once for each tile of rows. With many rows the weights are widened into memory first, and
    multiplied as wide ones.
    """
    workload = table.workload[rows]
    device = steps.shapes.rows["device"][workload]
    extents = np.stack([table.m[rows], table.n[rows], table.k[rows], table.batch[rows]], axis=1)
    expert = table.expert[rows] == 1
    start_s = steps.devices["gemm_overhead_s"][device]

    def times(extent: Ints, devices: Records = steps.devices) -> Floats:
        out = np.empty(len(rows))
        out[~expert], _, _ = gemm_time_columns(
            extent[~expert], table.dtype[rows][~expert], table.out_bytes[rows][~expert],
            np.ones(np.count_nonzero(~expert)), device[~expert], devices,
        )  # fmt: skip
        groups = extent[expert, 3]
        out[expert], _ = grouped_gemm_time_columns(
            np.concatenate([[0], np.cumsum(groups)]), np.repeat(extent[expert, 0], groups),
            np.arange(len(groups)), extent[expert, 1:3], np.zeros(len(groups), np.int64),
            steps.grouped_class[workload[expert]], steps.grouped,
        )  # fmt: skip
        out[expert] += start_s[expert]
        return out

    wide_s = times(extents)
    kept = is_narrow(table, steps.extents.narrow_layers[table.workload])[rows]
    share = np.where(kept, steps.weight_share[workload], 1.0)
    narrow = share < 1.0
    if not np.any(narrow):
        return wide_s
    fewer = extents.copy()
    fewer[narrow, 1] = np.ceil(extents[narrow, 1] * share[narrow])
    rate = steps.devices["matrix_flop_per_s"][device, table.dtype[rows]]
    light_s = 2.0 * np.prod(extents.astype(np.float64), axis=1) / rate
    weights = np.prod(extents[:, 1:].astype(np.float64), axis=1)
    passes = np.ceil(extents[:, 0] / dequantising().rows_a_pass)
    at_once = steps.devices.copy()
    at_once["gemm_hbm_bytes_per_s"] = np.inf
    busy_s = np.where((passes > 1.0) & ~expert, times(extents, at_once), light_s)
    read_s = np.minimum(wide_s, np.maximum(times(fewer), np.maximum(light_s, busy_s)))
    fused_s = read_s + passes * weights * steps.widen_s[workload]
    # One kernel reads the narrow weights and writes wide ones.
    moved = weights * steps.shapes.operand_bytes[workload] * (1.0 + share)
    apart_s = wide_s + moved / steps.devices["hbm_bytes_per_s"][device] + start_s
    return np.where(narrow, np.minimum(fused_s, apart_s), wide_s)


def _compute_s(table: ops.OperationTable, columns: StepColumns) -> Floats:
    """Return the seconds of each row at the matrix rate."""
    device = columns.shapes.rows["device"][table.workload]
    flop = 2.0 * table.m.astype(np.float64) * table.n * table.k * table.batch
    flop = np.where(table.kind == ops.ATTENTION, _attention_flop(table), flop)
    flop = np.where((table.kind == ops.GEMM) | (table.kind == ops.ATTENTION), flop, table.flop)
    wide = columns.shapes.wide_dtype[table.workload]
    of_gemm = columns.devices["matrix_flop_per_s"][device, table.dtype]
    of_attention = columns.devices["attention_flop_per_s"][device, wide]
    rate = np.where(table.kind == ops.GEMM, of_gemm, of_attention)
    seconds: Floats = flop / rate
    return seconds


def _attention_flop(table: ops.OperationTable) -> Floats:
    """Return the FLOP of fused attention; a causal one sees about half of its new keys."""
    seen = np.where(table.window > 0, np.minimum(table.n, table.window), table.n)
    pairs = table.m * (seen - np.where(table.causal == 1, np.minimum(table.m, seen) / 2.0, 0.0))
    flop: Floats = 2.0 * table.batch * table.heads * pairs * (table.k + table.d_v)
    return flop


def _memory_s(table: ops.OperationTable, columns: StepColumns) -> Floats:
    """Return the seconds of each row at the memory rate; each operand moves once."""
    device = columns.shapes.rows["device"][table.workload]
    width = columns.shapes.operand_bytes[table.workload]
    share = columns.weight_share[table.workload]
    m, n, k = (column.astype(np.float64) for column in (table.m, table.n, table.k))
    gemm = table.batch * (width * (m * k + share * k * n) + table.out_bytes * m * n)
    widths = table.k + table.d_v
    attention = 2.0 * table.batch * (table.heads * m * widths + table.key_heads * n * widths)
    moved = np.where(table.kind == ops.GEMM, gemm, table.bytes)
    moved = np.where(table.kind == ops.ATTENTION, attention, moved)
    seconds: Floats = moved / columns.devices["hbm_bytes_per_s"][device]
    return seconds
