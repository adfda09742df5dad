"""Time of collective operations of one group of devices, the best algorithm of each.

Shape suffixes
    G   collectives in the batch
Units
    time s, buffers bytes, rates bytes/s per device and direction. Floats are float64, counts and
    codes int64.

The terms of the algorithms are in :mod:`.collective_algorithms`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats, Ints, Records
from projector.kernels._jit import inlined, kernel
from projector.kernels.collective_algorithms import (
    ALGORITHMS,
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    BRUCK,
    DIRECT,
    HALVING_DOUBLING,
    HIERARCHICAL,
    IN_NETWORK,
    NO_ALGORITHM,
    NUM_ALGORITHMS,
    NUM_OPERATIONS,
    PAIRWISE,
    PAT,
    REDUCE,
    REDUCE_SCATTER,
    RING,
    SEND_RECV,
    TREE,
    Group,
    algorithms_for,
    bruck,
    copies_own_block,
    direct,
    direct_whole,
    far_hops,
    halving_doubling,
    hierarchical,
    in_network,
    is_exchange,
    pairwise,
    pat,
    ring,
    tree,
)
from projector.kernels.columns import broadcast_columns, raise_first_invalid
from projector.kernels.spans import far_links, is_span, span_of

MAX_LISTED_LOCAL = 16
"""Most members of a domain for which a record lists rates of an irregular node."""

FABRIC = np.dtype(
    [
        # Into the scale-up fabric, per device and direction; link rate, before efficiency.
        ("scale_up_bytes_per_s", np.float64),
        # The most one pair of devices gets: one link of a mesh, all of a switch.
        ("peer_bytes_per_s", np.float64),
        # Share of both link rates that a large collective reaches.
        ("scale_up_efficiency", np.float64),
        # One hop of a ring or tree within the domain.
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
        # A hop between domains without flags beside the data, and with them.
        ("nic_latency_s", np.float64),
        ("nic_flag_latency_s", np.float64),
        # The same for messages between two ranks and for exchanges; 0 is as for the others.
        ("nic_p2p_bytes_per_s", np.float64),
        # What an exchange adds for each peer beyond the domain.
        ("exchange_peer_s", np.float64),
        # Rate of the adapters of a pod, or of a zone, over that of the links that leave it; up
        # to 1, or 0, they are bound by nothing but the adapters.
        ("pod_oversubscription", np.float64),
        ("zone_oversubscription", np.float64),
        # What a hop takes besides where it passes a spine switch, and a core switch.
        ("spine_latency_s", np.float64),
        ("core_latency_s", np.float64),
        # 1: all nodes are beyond a spine switch. 0: adapters of one rail share a leaf switch.
        ("plain_tree", np.int64),
        # 1: an exchange moves what goes to another rail to that rail within the domain.
        ("forwards", np.int64),
        # What a collective that leaves the domain adds to start_s.
        ("network_start_s", np.float64),
        # Whether data may carry flags across domains, and whether a tree across domains may
        # join reductions in their switches.
        ("network_flags", np.int64),
        ("network_in_network", np.int64),
        # Share of the rates of a domain that its part of a tree across domains reaches.
        ("tree_efficiency", np.float64),
        # Devices of a scale-up domain.
        ("domain_gpus", np.int64),
        # Extra traffic, in units of buffer/ranks, of an out-of-place collective.
        ("self_copy_share", np.float64),
        # Bit a set: algorithm a may put flags beside its data.
        ("flagged_algorithms", np.int64),
        # Bytes on the wire for a byte of data with flags, within and across domains.
        ("flag_traffic", np.float64),
        ("network_flag_traffic", np.float64),
        # A byte of data for each time without flags comes in chunks. What one costs, and the most
        # that a collective spends on filling and draining the links.
        ("chunk_s", np.float64),
        ("fill_limit_s", np.float64),
        # The same of a reduction in the switch, and of a collective that leaves the domain.
        ("in_network_chunk_s", np.float64),
        ("network_chunk_s", np.float64),
        ("network_fill_limit_s", np.float64),
        # Rates within a domain in an exchange over those in a ring.
        ("exchange_efficiency", np.float64),
        # Bit n set: in groups of n members of a domain rings have one link of a mesh.
        ("single_ring_groups", np.int64),
        # Largest buffer of a gather or scatter that has one ring of an irregular node.
        ("gather_ring_bytes", np.float64),
        # An exchange with partners that are not neighbours in a chain, each message of it, what it
        # costs more without flags, and the largest message that has them.
        ("exchange_step_s", np.float64),
        ("exchange_issue_s", np.float64),
        ("exchange_simple_start_s", np.float64),
        ("exchange_flag_bytes", np.float64),
        # Rate of an adapter under aggregated trees over that under a ring.
        ("pat_efficiency", np.float64),
        # Bit a set: algorithm a may be chosen. Where none of them serves an operation, any may.
        ("algorithms", np.int64),
        # The same of those that the library has between domains; aggregated trees are for groups of
        # one member a domain.
        ("network_algorithms", np.int64),
        # Of an irregular node, by the number of local members: what a member sends to all its
        # peers in rings, and in an exchange of all with all, and to one peer; link rates, before
        # efficiency. 0 takes the closed form.
        ("local_ring_bytes_per_s", np.float64, (MAX_LISTED_LOCAL + 1,)),
        ("local_exchange_bytes_per_s", np.float64, (MAX_LISTED_LOCAL + 1,)),
        ("local_pair_bytes_per_s", np.float64, (MAX_LISTED_LOCAL + 1,)),
    ]
)
"""One (device, network) pair."""

BEYOND_DOMAIN = (
    "nic_bytes_per_s",
    "nic_latency_s",
    "nic_flag_latency_s",
    "nic_p2p_bytes_per_s",
    "exchange_peer_s",
    "pod_oversubscription",
    "zone_oversubscription",
    "spine_latency_s",
    "core_latency_s",
    "plain_tree",
    "forwards",
    "network_start_s",
    "network_flags",
    "network_flag_traffic",
    "network_in_network",
    "network_chunk_s",
    "network_fill_limit_s",
)
"""Fields of `FABRIC` that no group within one domain looks at."""


def algorithm_mask(*names: str) -> int:
    """Return the value of the field ``algorithms`` that allows the named ones.

    Raises `ValueError` for a name that is not one of ``ALGORITHMS``.
    """
    unknown = sorted(set(names) - set(ALGORITHMS))
    if unknown:
        raise ValueError(f"unknown algorithm {', '.join(unknown)}; known: {', '.join(ALGORITHMS)}")
    return sum(1 << ALGORITHMS.index(name) for name in set(names))


@inlined
def local_rates(record: Records, local: int, exchanges: bool) -> tuple[float, float]:
    """Return what a member sends to all peers of its domain together, and to one of them."""
    scale_up, peer = float(record["scale_up_bytes_per_s"]), float(record["peer_bytes_per_s"])
    efficiency = float(record["scale_up_efficiency"])
    group, pair = min(scale_up, (local - 1) * peer), min(scale_up, peer)
    if local <= MAX_LISTED_LOCAL:
        listed_group = float(record["local_ring_bytes_per_s"][local])
        if exchanges:
            listed_group = float(record["local_exchange_bytes_per_s"][local])
        listed_pair = float(record["local_pair_bytes_per_s"][local])
        group = listed_group if listed_group > 0.0 else group
        pair = listed_pair if listed_pair > 0.0 else pair
    return group * efficiency, pair * efficiency


@inlined
def _group(
    record: Records, ranks: int, local: int, code: int, group_rate: float, pair_rate: float
) -> Group:
    hop_s, start_s = float(record["scale_up_latency_s"]), float(record["start_s"])
    step_s, issue_s = float(record["exchange_step_s"]), float(record["exchange_issue_s"])
    if code == 0 and local == ranks:
        return Group(
            ranks, local, local, 1, 1.0 / group_rate, 1.0 / pair_rate, 0.0, 0.0, 0.0, 0.0, 0.0,
            hop_s, step_s, issue_s, 0.0, 0.0, 0.0, 0.0, start_s, 1.0, 0.0,
        )  # fmt: skip
    span = span_of(code, ranks, local)
    far = far_links(record, span, ranks, local)
    far_peers = ranks - span.least
    peers_s = far_peers * float(record["exchange_peer_s"])
    on_rails = record["plain_tree"] == 0
    forwards = on_rails and record["forwards"] == 1
    if on_rails and not forwards and not span.strays and span.pod_domains == 0:
        # What goes to another rail passes the spine, unlike a chain.
        peers_s += float(record["spine_latency_s"])
    return Group(
        ranks,
        local,
        span.least,
        span.domains,
        1.0 / group_rate if local > 1 else 0.0,
        1.0 / pair_rate,
        1.0 / far.chain_bytes_per_s,
        1.0 / far.crossing_bytes_per_s,
        1.0 / far.p2p_bytes_per_s,
        far.exchange_s,
        far_peers / ranks * ((local - 1) / local) if forwards else 0.0,
        hop_s,
        step_s,
        issue_s,
        far.longest_hop_s,
        far.chain_s,
        far.tree_s,
        peers_s,
        start_s,
        1.0 / float(record["pat_efficiency"]),
        1.0 / (group_rate * float(record["tree_efficiency"])) if local > 1 else 0.0,
    )


class _Protocols(NamedTuple):
    op: int
    size: float
    ranks: int
    domains: int
    simple_s: float
    """What a collective without flags takes besides."""
    chunk_s: float
    fill_limit_s: float
    flag_traffic: float
    flagged: int
    """Algorithms that may have flags, a bit each."""
    copy_s: float
    """Time of a byte of the buffer for the copy of a rank's own block."""
    hop_saving_s: float
    """What a hop between domains takes less with flags."""


@inlined
def _protocols(record: Records, op: int, size: float, group: Group) -> _Protocols:
    simple_s, flagged = float(record["simple_start_s"]), int(record["flagged_algorithms"])
    if is_exchange(op):
        simple_s = float(record["exchange_simple_start_s"])
        # A message between two local ranks of one index holds the blocks of many.
        flagged &= ~(1 << HIERARCHICAL)
        block = size / group.ranks
        if op == SEND_RECV:
            flagged, block = 1 << DIRECT, size
        if block > float(record["exchange_flag_bytes"]):
            flagged = 0
    chunk_s, fill_limit_s = float(record["chunk_s"]), float(record["fill_limit_s"])
    traffic = float(record["flag_traffic"])
    saving_s = float(record["nic_latency_s"]) - float(record["nic_flag_latency_s"])
    if group.domains > 1:
        traffic = float(record["network_flag_traffic"])
        if record["network_flags"] == 0:
            flagged = 0
        chunk_s = float(record["network_chunk_s"])
        fill_limit_s = float(record["network_fill_limit_s"])
    copy_s = 0.0
    share = float(record["self_copy_share"])
    if share > 0.0 and copies_own_block(op):
        rate = float(record["scale_up_bytes_per_s"]) * float(record["scale_up_efficiency"])
        copy_s = share / (group.ranks * rate)
    return _Protocols(
        op, size, group.ranks, group.domains, simple_s, chunk_s, fill_limit_s, traffic, flagged,
        copy_s, max(0.0, saving_s),
    )  # fmt: skip


@inlined
def _fill_s(wire_s: float, chunk_s: float, limit_s: float) -> float:
    """Return what filling and draining the links takes with the best number of chunks."""
    return min(2.0 * math.sqrt(chunk_s * wire_s), limit_s)


@inlined
def _better(least: tuple[float, int], time_s: float, algorithm: int) -> tuple[float, int]:
    return (time_s, algorithm) if time_s < least[0] else least


@inlined
def _tried(
    least: tuple[float, int], algorithm: int, terms: tuple[float, float], protocols: _Protocols
) -> tuple[float, int]:
    """Return the better of ``least`` and an algorithm with its better protocol; no start."""
    latency_s, wire_s = terms
    wire_s = protocols.size * (wire_s + protocols.copy_s)
    time_s = latency_s + protocols.simple_s + wire_s
    time_s += _fill_s(wire_s, protocols.chunk_s, protocols.fill_limit_s)
    if protocols.flagged >> algorithm & 1:
        saving_s = protocols.hop_saving_s
        latency_s -= (
            far_hops(algorithm, protocols.op, protocols.ranks, protocols.domains) * saving_s
        )
        time_s = min(time_s, latency_s + protocols.flag_traffic * wire_s)
    return _better(least, time_s, algorithm)


@inlined
def _in_network_s(record: Records, size: float, group: Group, fill_limit_s: float) -> float:
    """Return the time of a reduction in the switch, whose rate holds the copies already."""
    switch_s, chunk_s = 1.0 / float(record["in_network_bytes_per_s"]), 0.0
    if group.domains > 1:
        switch_s /= float(record["tree_efficiency"])
        chunk_s = float(record["network_chunk_s"])
    latency_s, wire_s = in_network(switch_s, group)
    wire_s *= size
    chunk_s = max(chunk_s, float(record["in_network_chunk_s"]))
    fill_s = _fill_s(wire_s, chunk_s, fill_limit_s)
    return wire_s + fill_s + latency_s + float(record["simple_start_s"])


@inlined
def _least(
    candidates: int, op: int, size: float, group: Group, record: Records
) -> tuple[float, int]:
    """Return the least time and its algorithm, the first of equal ones.

    One branch for each algorithm: a loop over codes takes twice as long.
    """
    protocols = _protocols(record, op, size, group)
    least = math.inf, NO_ALGORITHM
    if candidates >> RING & 1:
        least = _tried(least, RING, ring(op, group), protocols)
    if candidates >> TREE & 1:
        least = _tried(least, TREE, tree(op, group), protocols)
    if candidates >> HALVING_DOUBLING & 1:
        least = _tried(least, HALVING_DOUBLING, halving_doubling(op, group), protocols)
    if candidates >> BRUCK & 1:
        least = _tried(least, BRUCK, bruck(op, group), protocols)
    if candidates >> DIRECT & 1:
        least = _tried(least, DIRECT, direct(op, group), protocols)
        if op in (ALL_REDUCE, BROADCAST, REDUCE):
            least = _tried(least, DIRECT, direct_whole(group), protocols)
    if candidates >> HIERARCHICAL & 1:
        least = _tried(least, HIERARCHICAL, hierarchical(op, group), protocols)
    if candidates >> IN_NETWORK & 1:
        switch_s = _in_network_s(record, size, group, protocols.fill_limit_s)
        least = _better(least, switch_s, IN_NETWORK)
    if candidates >> PAIRWISE & 1:
        least = _tried(least, PAIRWISE, pairwise(group), protocols)
    if candidates >> PAT & 1:
        least = _tried(least, PAT, pat(group), protocols)
    return least


@inlined
def _best(op: int, size: float, group: Group, record: Records) -> tuple[float, int]:
    """Return the least time of the allowed algorithms, without the start, and the algorithm."""
    allowed = int(record["algorithms"])
    if allowed >> NUM_ALGORITHMS:
        return math.inf, NO_ALGORITHM  # It names an algorithm that nobody knows.
    serving = algorithms_for(op, group)
    if serving >> IN_NETWORK & 1 and (
        not float(record["in_network_bytes_per_s"]) > 0.0
        or group.least < max(2, int(record["in_network_min_gpus"]))
        or (group.domains > 1 and record["network_in_network"] == 0)
    ):
        serving &= ~(1 << IN_NETWORK)
    # A restriction is lifted for operations that none of the allowed algorithms serves.
    candidates = allowed & serving or serving
    if group.domains > 1:
        within = candidates & ~(1 << PAT) if group.local > 1 else candidates
        candidates = within & int(record["network_algorithms"]) or candidates
    if op in (ALL_REDUCE, REDUCE_SCATTER) and candidates != 1 << BRUCK:
        candidates &= ~(1 << BRUCK)  # No library of GPUs reduces so.
    return _least(candidates, op, size, group, record)


@kernel(python_us=20.0)
def collective_times(
    op_G: Ints,
    bytes_G: Floats,
    ranks_G: Ints,
    local_G: Ints,
    span_G: Ints,
    fabric_G: Ints,
    fabrics: Records,
    time_s_G: Floats,
    algorithm_G: Ints,
) -> int:
    """Time of each collective with the best valid algorithm, and that algorithm.

    op_G : int64[G]. Operation codes, positions in ``OPERATIONS``.
    bytes_G : float64[G]. The whole buffer. All-reduce: the tensor that every rank holds.
        All-gather: the gathered output. Reduce-scatter: the input of one rank. All-to-all: what one
        rank holds in total, of which it keeps 1/n. Broadcast, reduce and send/recv: the message.
        All-to-all of unequal blocks: the most that one rank holds or gets in total, 1/n of it being
        its own.
    ranks_G : int64[G]. Members n of the group.
    local_G : int64[G]. Most members that share a scale-up domain, 1 to n.
    span_G : int64[G]. How the group lies beyond that domain, from ``span_codes``; 0 is ``ceil(n /
        local)`` domains of one pod, full but for the last.
    fabric_G : int64[G]. Rows of ``fabrics``.
    fabrics : FABRIC[F]. Link rates and latencies.
    time_s_G : float64[G]. Output, overwritten; NaN in an invalid row, 0 where n is 1 or there are
        no bytes.
    algorithm_G : int64[G]. Output, overwritten; position in ``ALGORITHMS`` or ``NO_ALGORITHM``.
    Returns 0, or 1 if some row is invalid: a code or count out of range, more local members than
        the domain has devices, a send/recv of other than two ranks, a link without a rate, an
        unknown algorithm among the allowed ones, or a time that is not finite.

    Groups of one kind run at once and share what leaves a pod; nothing else is shared. Within the
    domains unequal ones are taken to be as full as the fullest, between them as empty as the
    emptiest.
    """
    status = 0
    for g in range(op_G.shape[0]):
        op, size = int(op_G[g]), float(bytes_G[g])
        ranks, local, fabric = int(ranks_G[g]), int(local_G[g]), int(fabric_G[g])
        span = int(span_G[g])
        time_s_G[g] = math.nan
        algorithm_G[g] = NO_ALGORITHM
        if (
            not 0 <= op < NUM_OPERATIONS
            or not 0.0 <= size < math.inf
            or not 0 <= fabric < fabrics.shape[0]
            or not 1 <= local <= ranks
            or not is_span(span, ranks, local)
            or (op == SEND_RECV and ranks > 2)
        ):
            status = 1
            continue
        record = fabrics[fabric]
        if local > record["domain_gpus"]:
            status = 1
            continue
        if ranks == 1 or size == 0.0:
            time_s_G[g] = 0.0
            continue
        group_rate, pair_rate = local_rates(record, local, is_exchange(op))
        if is_exchange(op):
            group_rate *= float(record["exchange_efficiency"])
            pair_rate *= float(record["exchange_efficiency"])
        elif local <= MAX_LISTED_LOCAL and record["single_ring_groups"] >> local & 1:
            group_rate = pair_rate
        crosses = span != 0 or local < ranks
        gather_ring = float(record["gather_ring_bytes"])
        if gather_ring > 0.0 and op in (ALL_GATHER, REDUCE_SCATTER) and not crosses:
            # One ring, both ways around; larger buffers take as long until all rings are faster.
            group_rate = min(group_rate, 2.0 * pair_rate * max(1.0, size / gather_ring))
        if not pair_rate > 0.0 or (crosses and not float(record["nic_bytes_per_s"]) > 0.0):
            status = 1
            continue
        group = _group(record, ranks, local, span, group_rate, pair_rate)
        time_s, algorithm = _best(op, size, group, record)
        time_s += group.start_s
        if group.domains > 1:
            time_s += float(record["network_start_s"])
        if not 0.0 <= time_s < math.inf:
            status = 1
            continue
        time_s_G[g] = time_s
        algorithm_G[g] = algorithm
    return status


def collective_time_columns(
    op: ArrayLike,
    buffer_bytes: ArrayLike,
    ranks: ArrayLike,
    local: ArrayLike,
    fabric_index: ArrayLike,
    fabrics: Records,
    span: ArrayLike = 0,
) -> tuple[Floats, Ints]:
    """Return the columns ``(time_s, algorithm)`` of ``collective_times``; scalars broadcast.

    Raises `ValueError` where a row has no valid time, with the values of the first such row.
    """
    columns = broadcast_columns(
        {"bytes"}, op=op, bytes=buffer_bytes, ranks=ranks, local=local, span=span,
        fabric=fabric_index,
    )  # fmt: skip
    fabrics = np.require(fabrics, FABRIC, ["C", "W"])
    rows = len(columns["op"])
    time_s_G, algorithm_G = np.empty(rows), np.empty(rows, np.int64)
    arguments = (*columns.values(), fabrics, time_s_G, algorithm_G)
    if collective_times(*arguments):
        raise_first_invalid("collective", time_s_G, columns)
    return time_s_G, algorithm_G
