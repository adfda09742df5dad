"""Time of collective operations of one group of devices, the best algorithm of each.

Shape suffixes
    G   collectives in the batch
Units
    time s, buffers bytes, rates bytes/s per device and direction. Floats are float64, counts and
    codes int64.

Every algorithm is a latency term (steps times the latency of a hop) plus the traffic of the
busiest link over its rate. ``docs/collectives.md`` derives the terms and names their sources.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Array, Floats, Ints, Records

from ._jit import helper, kernel

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
)
"""Names by operation code."""

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, SEND_RECV = range(6)

ALGORITHMS = (
    "ring",
    "tree",
    "halving_doubling",
    "bruck",
    "direct",
    "hierarchical",
    "in_network",
    "pairwise",
)
"""Names by algorithm code."""

RING, TREE, HALVING_DOUBLING, BRUCK, DIRECT, HIERARCHICAL, IN_NETWORK, PAIRWISE = range(8)

NUM_OPERATIONS = len(OPERATIONS)
NUM_ALGORITHMS = len(ALGORITHMS)

NO_ALGORITHM = -1
"""Code of a row that moves nothing, or that has no valid time."""

ANY_ALGORITHM = 0
"""Value of ``algorithms`` that restricts nothing."""

LIBRARY_ALGORITHMS = 1 << RING | 1 << TREE | 1 << IN_NETWORK | 1 << PAIRWISE
"""What NCCL and RCCL choose among by default."""

FABRIC = np.dtype(
    [
        # Into the scale-up fabric, per device and direction; link rate, before efficiency.
        ("scale_up_bytes_per_s", np.float64),
        # The most one pair of devices gets: one link of a mesh, all of a switch.
        ("peer_bytes_per_s", np.float64),
        # Share of both link rates that a large collective reaches.
        ("scale_up_efficiency", np.float64),
        # One hop within the domain; also what it costs to issue one message of an exchange.
        ("scale_up_latency_s", np.float64),
        # Any collective.
        ("start_s", np.float64),
        # What the protocol without flags beside the data adds; it moves half the bytes.
        ("simple_start_s", np.float64),
        # Algorithm bandwidth (buffer bytes over time) of a switch-reduced all-reduce; 0 is none.
        ("in_network_bytes_per_s", np.float64),
        ("in_network_min_gpus", np.int64),
        # Share of a device of its node's adapters, already times their efficiency.
        ("nic_bytes_per_s", np.float64),
        ("nic_latency_s", np.float64),
        # What a collective that leaves the domain adds to start_s.
        ("network_start_s", np.float64),
        # Devices of a scale-up domain.
        ("domain_gpus", np.int64),
        # Extra traffic, in units of buffer/ranks, of an out-of-place collective.
        ("self_copy_share", np.float64),
        # Bit a set: algorithm a may be chosen. Where none of them serves an operation, any may.
        ("algorithms", np.int64),
    ]
)
"""One (device, network) pair."""


class _Group(NamedTuple):
    """The members of one collective and the rates of their links."""

    ranks: int
    local: int
    """Members in the fullest domain."""
    domains: int
    group_bytes_per_s: float
    """What a member can send to all its peers in the domain together."""
    pair_bytes_per_s: float
    """What a member can send to one peer in the domain."""
    nic_bytes_per_s: float
    hop_s: float
    nic_hop_s: float


def algorithm_mask(*names: str) -> int:
    """Return the value of the field ``algorithms`` that allows the named ones.

    Raises
    ------
    ValueError
        For a name that is not one of ``ALGORITHMS``.
    """
    unknown = sorted(set(names) - set(ALGORITHMS))
    if unknown:
        msg = f"unknown algorithm {', '.join(unknown)}; known: {', '.join(ALGORITHMS)}"
        raise ValueError(msg)
    return sum(1 << ALGORITHMS.index(name) for name in set(names))


@helper
def _ceil_log2(count: int) -> int:
    steps = 0
    while (1 << steps) < count:
        steps += 1
    return steps


@helper
def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


@helper
def _passes(op: int) -> int:
    """Trips of the buffer round the group: an all-reduce reduces, then gathers."""
    return 2 if op == ALL_REDUCE else 1


@helper
def _ring(op: int, size: float, group: _Group) -> float:
    """One ring through each member's links, in a chain of chunks; all rings run side by side."""
    if op in (ALL_TO_ALL, SEND_RECV):
        return math.inf
    ranks, local, domains = group.ranks, group.local, group.domains
    passes = _passes(op)
    share = 1.0 if op == BROADCAST else (ranks - 1) / ranks
    traffic = passes * share * size
    if domains == 1:
        return traffic / group.group_bytes_per_s + passes * (ranks - 1) * group.hop_s
    # Each of the `local` rings leaves the domain through another member's adapter.
    wire_s = traffic / local / group.nic_bytes_per_s
    if local > 1:
        wire_s = max(wire_s, traffic * ((local - 1) / local) / group.group_bytes_per_s)
    hops_s = (ranks - domains) * group.hop_s + (domains - 1) * group.nic_hop_s
    return wire_s + passes * hops_s


@helper
def _tree(op: int, size: float, group: _Group) -> float:
    """Chains within the domains, a double binary tree across them, chunk by chunk."""
    if group.domains == 1 or op not in (ALL_REDUCE, BROADCAST):
        return math.inf
    local, domains = group.local, group.domains
    passes = _passes(op)
    # With two domains each is the root of one tree and the leaf of the other, so that it sends
    # the buffer once; an inner domain of a larger tree sends half up and half to two children.
    sent = size if domains == 2 else passes * size
    wire_s = sent / local / group.nic_bytes_per_s
    if local > 1:
        chain = passes * size * ((local - 1) / local)
        wire_s = max(wire_s, chain / group.group_bytes_per_s)
    hops_s = (local - 1) * group.hop_s + _ceil_log2(domains) * group.nic_hop_s
    return wire_s + passes * hops_s


@helper
def _halving_doubling(op: int, size: float, group: _Group) -> float:
    """Exchange with one partner a step, halves while reducing, doubles while gathering."""
    if op not in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER):
        return math.inf
    ranks, local, domains = group.ranks, group.local, group.domains
    passes = _passes(op)
    whole = _is_power_of_two(ranks)
    if domains == 1:
        if not whole and op != ALL_REDUCE:
            return math.inf
        # The members beyond a power of two hand their buffer to a partner and get it back.
        steps = _ceil_log2(ranks) if whole else _ceil_log2(ranks) - 1
        core = 1 << steps
        traffic = passes * ((core - 1) / core) * size
        if whole:
            return traffic / group.pair_bytes_per_s + passes * steps * group.hop_s
        return (traffic + 2.0 * size) / group.pair_bytes_per_s + (2 * steps + 2) * group.hop_s
    if not whole or not _is_power_of_two(local):
        return math.inf
    # The large exchanges stay in the domain.
    time_s = ((domains - 1) / domains) * size / local / group.nic_bytes_per_s
    time_s += _ceil_log2(domains) * group.nic_hop_s
    if local > 1:
        time_s += ((local - 1) / local) * size / group.pair_bytes_per_s
        time_s += _ceil_log2(local) * group.hop_s
    return passes * time_s


@helper
def _bruck(op: int, size: float, group: _Group) -> float:
    """Log-many steps of growing distance; across domains some member's every step leaves."""
    if op not in (ALL_GATHER, ALL_TO_ALL):
        return math.inf
    ranks = group.ranks
    steps = _ceil_log2(ranks)
    blocks = ranks - 1
    if op == ALL_TO_ALL:
        # Step s forwards the blocks whose distance has bit s set.
        blocks = 0
        for step in range(steps):
            half = 1 << step
            blocks += ranks // (2 * half) * half + max(0, ranks % (2 * half) - half)
    traffic = blocks / ranks * size
    if group.domains == 1:
        return traffic / group.pair_bytes_per_s + steps * group.hop_s
    rate = group.nic_bytes_per_s
    if group.local > 1:
        rate = min(rate, group.pair_bytes_per_s)
    return traffic / rate + steps * group.nic_hop_s


@helper
def _direct(op: int, size: float, group: _Group) -> float:
    """All pairs at once: in one step with whole buffers, or in two with shares of them."""
    if op == SEND_RECV:
        if group.domains == 1:
            return size / group.pair_bytes_per_s + group.hop_s
        return size / group.nic_bytes_per_s + group.nic_hop_s
    if group.domains > 1:
        return math.inf
    ranks = group.ranks
    share_s = ((ranks - 1) / ranks) * size / group.group_bytes_per_s
    if op in (ALL_REDUCE, BROADCAST):
        whole_s = (ranks - 1) * size / group.group_bytes_per_s
        return min(whole_s + group.hop_s, 2.0 * share_s + 2.0 * group.hop_s)
    return share_s + group.hop_s


@helper
def _hierarchical(op: int, size: float, group: _Group) -> float:
    """Rings within the domains, then one ring per local rank across them; not pipelined."""
    local, domains = group.local, group.domains
    if domains == 1 or local == 1 or op not in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER):
        return math.inf
    near_s = ((local - 1) / local) * size / group.group_bytes_per_s
    far_s = ((domains - 1) / domains) * size / local / group.nic_bytes_per_s
    hops_s = (local - 1) * group.hop_s + (domains - 1) * group.nic_hop_s
    return _passes(op) * (near_s + far_s + hops_s)


@helper
def _pairwise(op: int, size: float, group: _Group) -> float:
    """Each pair exchanges its block; links of the domain and adapters work side by side."""
    if op != ALL_TO_ALL:
        return math.inf
    ranks, local = group.ranks, group.local
    time_s = 0.0
    if local > 1:
        time_s = ((local - 1) / ranks) * size / group.group_bytes_per_s
    # Messages are issued one after the other and fly together.
    latency_s = (ranks - 1) * group.hop_s
    if group.domains > 1:
        time_s = max(time_s, ((ranks - local) / ranks) * size / group.nic_bytes_per_s)
        latency_s += group.nic_hop_s
    return time_s + latency_s


@helper
def _seconds(algorithm: int, op: int, size: float, group: _Group) -> float:
    """Time of one algorithm without the start, infinite where it does not serve."""
    if algorithm == RING:
        return _ring(op, size, group)
    if algorithm == TREE:
        return _tree(op, size, group)
    if algorithm == HALVING_DOUBLING:
        return _halving_doubling(op, size, group)
    if algorithm == BRUCK:
        return _bruck(op, size, group)
    if algorithm == DIRECT:
        return _direct(op, size, group)
    if algorithm == HIERARCHICAL:
        return _hierarchical(op, size, group)
    return _pairwise(op, size, group)


@helper
def _group(fabrics: Records, fabric: int, ranks: int, local: int) -> _Group:
    record = fabrics[fabric]
    scale_up = float(record["scale_up_bytes_per_s"])
    peer = float(record["peer_bytes_per_s"])
    efficiency = float(record["scale_up_efficiency"])
    return _Group(
        ranks,
        local,
        -(-ranks // local),
        min(scale_up, (local - 1) * peer) * efficiency,
        min(scale_up, peer) * efficiency,
        float(record["nic_bytes_per_s"]),
        float(record["scale_up_latency_s"]),
        float(record["nic_latency_s"]),
    )


@helper
def _is_valid_group(ranks: int, local: int, fabric: int, fabrics: Records) -> bool:
    if not 0 <= fabric < fabrics.shape[0]:
        return False
    return 1 <= local <= ranks and local <= fabrics[fabric]["domain_gpus"]


@helper
def _has_rates(group: _Group) -> bool:
    """Whether the links that the group needs move something."""
    if not group.pair_bytes_per_s > 0.0:
        return False
    return group.domains == 1 or group.nic_bytes_per_s > 0.0


@helper
def _start_s(fabrics: Records, fabric: int, domains: int) -> float:
    start_s = float(fabrics[fabric]["start_s"])
    if domains > 1:
        start_s += float(fabrics[fabric]["network_start_s"])
    return start_s


@helper
def _best(op: int, size: float, group: _Group, fabrics: Records, fabric: int) -> tuple[float, int]:
    """Return the least time of the allowed algorithms, without the start, and the algorithm."""
    record = fabrics[fabric]
    copy_s = 0.0
    if op < BROADCAST and record["self_copy_share"] > 0.0:
        rate = float(record["scale_up_bytes_per_s"]) * float(record["scale_up_efficiency"])
        copy_s = float(record["self_copy_share"]) * size / group.ranks / rate
    simple_s = float(record["simple_start_s"])
    allowed = record["algorithms"]
    best_s = math.inf
    best = NO_ALGORITHM
    for trial in range(2 * NUM_ALGORITHMS):
        algorithm = trial % NUM_ALGORITHMS
        # The second round, which lifts the restriction, is for operations not served by the first.
        if trial == NUM_ALGORITHMS and best != NO_ALGORITHM:
            break
        if trial < NUM_ALGORITHMS and not (allowed >> algorithm) & 1:
            continue
        if algorithm == IN_NETWORK:
            rate = float(record["in_network_bytes_per_s"])
            if (
                op != ALL_REDUCE
                or group.domains > 1
                or not rate > 0.0
                or group.ranks < record["in_network_min_gpus"]
            ):
                continue
            # Up to the switch and down again; its rate holds the copies already.
            time_s = size / rate + 2.0 * group.hop_s + simple_s
        else:
            # Flags beside the data double the traffic and save the simple protocol's start.
            flagged_s = _seconds(algorithm, op, 2.0 * size, group) + 2.0 * copy_s
            time_s = min(flagged_s, _seconds(algorithm, op, size, group) + copy_s + simple_s)
        if time_s < best_s:
            best_s = time_s
            best = algorithm
    return best_s, best


@kernel
def collective_times(
    op_G: Ints,
    bytes_G: Floats,
    ranks_G: Ints,
    local_G: Ints,
    fabric_G: Ints,
    fabrics: Records,
    time_s_G: Floats,
    algorithm_G: Ints,
) -> int:
    """Time of each collective with the best valid algorithm, and that algorithm.

    Parameters
    ----------
    op_G : int64[G]
        Operation codes, positions in ``OPERATIONS``.
    bytes_G : float64[G]
        The whole buffer. All-reduce: the tensor that every rank holds. All-gather: the gathered
        output. Reduce-scatter: the input of one rank. All-to-all: what one rank holds in total,
        of which it keeps 1/n. Broadcast and send/recv: the message.
    ranks_G : int64[G]
        Members n of the group.
    local_G : int64[G]
        Most members that share a scale-up domain, 1 to n; the group spans ``ceil(n / local)``
        domains.
    fabric_G : int64[G]
        Rows of ``fabrics``.
    fabrics : FABRIC[F]
        Link rates and latencies.
    time_s_G : float64[G]
        Output, overwritten; NaN in an invalid row, 0 where n is 1 or there are no bytes.
    algorithm_G : int64[G]
        Output, overwritten; position in ``ALGORITHMS`` or ``NO_ALGORITHM``.

    Returns
    -------
    int
        0, or 1 if some row is invalid: a code or count out of range, more local members than
        the domain has devices, a send/recv of other than two ranks, a link without a rate, or
        a time that is not finite.

    Notes
    -----
    No contention between collectives that run at once, and unequal domains are all taken to be
    as full as the fullest, which is optimistic.
    """
    status = 0
    for g in range(op_G.shape[0]):
        op, size = int(op_G[g]), float(bytes_G[g])
        ranks, local, fabric = int(ranks_G[g]), int(local_G[g]), int(fabric_G[g])
        time_s_G[g] = math.nan
        algorithm_G[g] = NO_ALGORITHM
        if (
            not 0 <= op < NUM_OPERATIONS
            or not 0.0 <= size < math.inf
            or not _is_valid_group(ranks, local, fabric, fabrics)
            or (op == SEND_RECV and ranks > 2)
        ):
            status = 1
            continue
        if ranks == 1 or size == 0.0:
            time_s_G[g] = 0.0
            continue
        group = _group(fabrics, fabric, ranks, local)
        if not _has_rates(group):
            status = 1
            continue
        time_s, algorithm = _best(op, size, group, fabrics, fabric)
        time_s += _start_s(fabrics, fabric, group.domains)
        if not 0.0 <= time_s < math.inf:
            status = 1
            continue
        time_s_G[g] = time_s
        algorithm_G[g] = algorithm
    return status


@kernel
def moe_exchange_times(
    local_bytes_G: Floats,
    remote_bytes_G: Floats,
    ranks_G: Ints,
    local_G: Ints,
    fabric_G: Ints,
    fabrics: Records,
    time_s_G: Floats,
) -> int:
    """Time of each dispatch or combine of a mixture of experts by a fused exchange kernel.

    Parameters
    ----------
    local_bytes_G : float64[G]
        What one rank sends to other members of its domain, forwarded tokens included.
    remote_bytes_G : float64[G]
        What one rank sends through its adapter, after any de-duplication per node.
    ranks_G, local_G, fabric_G, fabrics
        As for ``collective_times``.
    time_s_G : float64[G]
        Output, overwritten; NaN in an invalid row, 0 where n is 1 or there are no bytes.

    Returns
    -------
    int
        0, or 1 if some row is invalid, which includes local bytes without local peers and
        remote bytes without another domain.

    Notes
    -----
    ``t = start + max(local / group rate, remote / nic) + hop + ceil(log2(domains)) * nic hop``.
    """
    status = 0
    for g in range(local_bytes_G.shape[0]):
        near, far = float(local_bytes_G[g]), float(remote_bytes_G[g])
        ranks, local, fabric = int(ranks_G[g]), int(local_G[g]), int(fabric_G[g])
        time_s_G[g] = math.nan
        if (
            not 0.0 <= near < math.inf
            or not 0.0 <= far < math.inf
            or not _is_valid_group(ranks, local, fabric, fabrics)
            or (near > 0.0 and local == 1)
            or (far > 0.0 and local == ranks)
        ):
            status = 1
            continue
        if near == 0.0 and far == 0.0:
            time_s_G[g] = 0.0
            continue
        group = _group(fabrics, fabric, ranks, local)
        if not _has_rates(group):
            status = 1
            continue
        time_s = 0.0
        latency_s = _start_s(fabrics, fabric, group.domains)
        latency_s += float(fabrics[fabric]["simple_start_s"])
        if local > 1:
            time_s = near / group.group_bytes_per_s
            latency_s += group.hop_s
        if group.domains > 1:
            time_s = max(time_s, far / group.nic_bytes_per_s)
            latency_s += _ceil_log2(group.domains) * group.nic_hop_s
        time_s += latency_s
        if not 0.0 <= time_s < math.inf:
            status = 1
            continue
        time_s_G[g] = time_s
    return status


def _columns(values: tuple[ArrayLike, ...], dtypes: tuple[type, ...]) -> tuple[Array, ...]:
    """Broadcast to one dimension; writable, since numba compiles anew for read-only arrays."""
    shape = np.broadcast_shapes((1,), *map(np.shape, values))
    return tuple(
        np.require(np.broadcast_to(value, shape), dtype, ["C", "W"])
        for value, dtype in zip(values, dtypes, strict=True)
    )


def _raise_first_invalid(what: str, time_s_G: Floats, **columns: Any) -> None:
    row = int(np.flatnonzero(np.isnan(time_s_G))[0])
    values = ", ".join(f"{name} {column[row]}" for name, column in columns.items())
    msg = f"{what} {row} has no valid time: {values}"
    raise ValueError(msg)


def collective_time_columns(
    op: ArrayLike,
    buffer_bytes: ArrayLike,
    ranks: ArrayLike,
    local: ArrayLike,
    fabric_index: ArrayLike,
    fabrics: Records,
) -> tuple[Floats, Ints]:
    """Return the columns ``(time_s, algorithm)`` of ``collective_times``; scalars broadcast.

    Raises
    ------
    ValueError
        Where a row has no valid time, with the values of the first such row.
    """
    op_G, bytes_G, ranks_G, local_G, fabric_G = _columns(
        (op, buffer_bytes, ranks, local, fabric_index),
        (np.int64, np.float64, np.int64, np.int64, np.int64),
    )
    fabrics = np.require(fabrics, FABRIC, ["C", "W"])
    time_s_G = np.empty(op_G.shape[0])
    algorithm_G = np.empty(op_G.shape[0], np.int64)
    if collective_times(op_G, bytes_G, ranks_G, local_G, fabric_G, fabrics, time_s_G, algorithm_G):
        _raise_first_invalid(
            "collective",
            time_s_G,
            op=op_G,
            bytes=bytes_G,
            ranks=ranks_G,
            local=local_G,
            fabric=fabric_G,
        )
    return time_s_G, algorithm_G


def moe_exchange_time_column(
    local_bytes: ArrayLike,
    remote_bytes: ArrayLike,
    ranks: ArrayLike,
    local: ArrayLike,
    fabric_index: ArrayLike,
    fabrics: Records,
) -> Floats:
    """Return the column ``time_s`` of ``moe_exchange_times``; scalars broadcast.

    Raises
    ------
    ValueError
        Where a row has no valid time, with the values of the first such row.
    """
    near_G, far_G, ranks_G, local_G, fabric_G = _columns(
        (local_bytes, remote_bytes, ranks, local, fabric_index),
        (np.float64, np.float64, np.int64, np.int64, np.int64),
    )
    fabrics = np.require(fabrics, FABRIC, ["C", "W"])
    time_s_G = np.empty(near_G.shape[0])
    if moe_exchange_times(near_G, far_G, ranks_G, local_G, fabric_G, fabrics, time_s_G):
        _raise_first_invalid(
            "exchange",
            time_s_G,
            local_bytes=near_G,
            remote_bytes=far_G,
            ranks=ranks_G,
            local=local_G,
            fabric=fabric_G,
        )
    return time_s_G
