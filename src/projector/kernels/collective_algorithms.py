"""Codes of collectives and the terms of every algorithm that can serve them.

An algorithm is a latency term (steps times the latency of a hop) plus the traffic of the busiest
link over its rate, and infinite where it does not serve. ``docs/collectives.md`` derives the terms
and names their sources. The reduction in a switch has no term here: it has a measured rate.

Units
    time s, buffers bytes, rates bytes/s per device and direction.
"""

import math
from typing import NamedTuple

from ._jit import helper
from .spans import ceil_log2

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
    "reduce",
    "all_to_all_v",
)
"""Names by operation code."""

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, SEND_RECV = range(6)
REDUCE, ALL_TO_ALL_V = 6, 7

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


class Group(NamedTuple):
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
    """What a member sends through its adapter where a group passes each pod's border once, as
    chains and trees do."""
    hop_s: float
    nic_hop_s: float
    """The longest hop between domains."""
    least: int
    """Members in the emptiest domain."""
    chain_far_s: float
    """Hops between domains of a chain through all of them."""
    tree_far_s: float
    """The same from the root to a leaf of a tree."""
    crossing_bytes_per_s: float
    """What a member sends through its adapter where all of it leaves the pod."""
    p2p_bytes_per_s: float
    """The same from one rank to another."""
    far_exchange_s: float
    """Seconds for each byte of the buffer that an exchange spends between domains."""
    forwarded_share: float
    """Share of the buffer that an exchange first moves within the domain, to the right rail."""
    peers_s: float
    """What an exchange spends on its peers in other domains besides."""


@helper
def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


@helper
def copies_own_block(op: int) -> bool:
    """Whether each rank has a block that an out-of-place call copies and does not send."""
    return op < BROADCAST or op == ALL_TO_ALL_V


@helper
def _is_rooted(op: int) -> bool:
    """Whether one rank has, or gets, the whole buffer; a reduce is a broadcast in reverse."""
    return op in (BROADCAST, REDUCE)


@helper
def _is_exchange(op: int) -> bool:
    return op in (ALL_TO_ALL, ALL_TO_ALL_V)


@helper
def _passes(op: int) -> int:
    """Trips of the buffer round the group: an all-reduce reduces, then gathers."""
    return 2 if op == ALL_REDUCE else 1


@helper
def _ring(op: int, size: float, group: Group) -> float:
    """One ring through each member's links, in a chain of chunks; all rings run side by side."""
    if _is_exchange(op) or op == SEND_RECV:
        return math.inf
    ranks, local, domains = group.ranks, group.local, group.domains
    passes = _passes(op)
    share = 1.0 if _is_rooted(op) else (ranks - 1) / ranks
    traffic = passes * share * size
    if domains == 1:
        return traffic / group.group_bytes_per_s + passes * (ranks - 1) * group.hop_s
    # Each ring leaves the domain through another member's adapter; the emptiest has fewest.
    wire_s = traffic / group.least / group.nic_bytes_per_s
    if local > 1:
        wire_s = max(wire_s, traffic * ((local - 1) / local) / group.group_bytes_per_s)
    hops_s = (ranks - domains) * group.hop_s + group.chain_far_s
    return wire_s + passes * hops_s


@helper
def _tree(op: int, size: float, group: Group) -> float:
    """Chains within the domains, a double binary tree across them, chunk by chunk."""
    if group.domains == 1 or not (op == ALL_REDUCE or _is_rooted(op)):
        return math.inf
    local, domains = group.local, group.domains
    passes = _passes(op)
    # With two domains each is the root of one tree and the leaf of the other, so that it sends
    # the buffer once; an inner domain of a larger tree sends half up and half to two children.
    sent = size if domains == 2 else passes * size
    wire_s = sent / group.least / group.nic_bytes_per_s
    if local > 1:
        chain = passes * size * ((local - 1) / local)
        wire_s = max(wire_s, chain / group.group_bytes_per_s)
    hops_s = (local - 1) * group.hop_s + group.tree_far_s
    return wire_s + passes * hops_s


@helper
def _halving_doubling(op: int, size: float, group: Group) -> float:
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
        steps = ceil_log2(ranks) if whole else ceil_log2(ranks) - 1
        core = 1 << steps
        traffic = passes * ((core - 1) / core) * size
        if whole:
            return traffic / group.pair_bytes_per_s + passes * steps * group.hop_s
        return (traffic + 2.0 * size) / group.pair_bytes_per_s + (2 * steps + 2) * group.hop_s
    if not whole or not _is_power_of_two(local) or group.least < local:
        return math.inf
    # The large exchanges stay in the domain.
    time_s = ((domains - 1) / domains) * size / local / group.nic_bytes_per_s
    time_s += group.tree_far_s
    if local > 1:
        time_s += ((local - 1) / local) * size / group.pair_bytes_per_s
        time_s += ceil_log2(local) * group.hop_s
    return passes * time_s


@helper
def _bruck(op: int, size: float, group: Group) -> float:
    """Log-many steps of growing distance; across domains some member's every step leaves."""
    if op not in (ALL_GATHER, ALL_TO_ALL):
        return math.inf
    ranks = group.ranks
    steps = ceil_log2(ranks)
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
    rate = group.crossing_bytes_per_s
    if group.local > 1:
        rate = min(rate, group.pair_bytes_per_s)
    return traffic / rate + steps * group.nic_hop_s


@helper
def _direct(op: int, size: float, group: Group) -> float:
    """All pairs at once: in one step with whole buffers, or in two with shares of them."""
    if op == SEND_RECV:
        if group.domains == 1:
            return size / group.pair_bytes_per_s + group.hop_s
        return size / group.p2p_bytes_per_s + group.nic_hop_s
    if group.domains > 1:
        return math.inf
    ranks = group.ranks
    share_s = ((ranks - 1) / ranks) * size / group.group_bytes_per_s
    if op == ALL_REDUCE or _is_rooted(op):
        whole_s = (ranks - 1) * size / group.group_bytes_per_s
        return min(whole_s + group.hop_s, 2.0 * share_s + 2.0 * group.hop_s)
    return share_s + group.hop_s


@helper
def _hierarchical(op: int, size: float, group: Group) -> float:
    """Rings within the domains, then one ring per local rank across them; not pipelined."""
    local, domains = group.local, group.domains
    if domains == 1 or local == 1 or op == SEND_RECV:
        return math.inf
    near_s = ((local - 1) / local) * size / group.group_bytes_per_s
    if _is_exchange(op):
        # Members first collect, for each local peer, all that goes to peers of its index.
        far_s = group.far_exchange_s * size
        issue_s = (local - 1 + domains - 1) * group.hop_s
        return near_s + far_s + issue_s + group.nic_hop_s
    if _is_rooted(op):
        # A scatter in the root's domain, one chain per local rank, and a gather in every domain.
        hops_s = group.hop_s + (local - 1) * group.hop_s + group.chain_far_s
        return 2.0 * near_s + size / group.least / group.nic_bytes_per_s + hops_s
    far_s = ((domains - 1) / domains) * size / group.least / group.nic_bytes_per_s
    hops_s = (local - 1) * group.hop_s + group.chain_far_s
    return _passes(op) * (near_s + far_s + hops_s)


@helper
def _pairwise(op: int, size: float, group: Group) -> float:
    """Each pair exchanges its block; links of the domain and adapters work side by side."""
    if not _is_exchange(op):
        return math.inf
    ranks, local = group.ranks, group.local
    time_s = 0.0
    if local > 1:
        near = ((local - 1) / ranks + group.forwarded_share) * size
        time_s = near / group.group_bytes_per_s
    # Messages are issued one after the other and fly together.
    latency_s = (ranks - 1) * group.hop_s
    if group.domains > 1:
        time_s = max(time_s, group.far_exchange_s * size)
        latency_s += group.nic_hop_s + group.peers_s
    return time_s + latency_s


@helper
def algorithm_seconds(algorithm: int, op: int, size: float, group: Group) -> float:
    """Time of one algorithm without the start, infinite where it does not serve or is unknown."""
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
    if algorithm == PAIRWISE:
        return _pairwise(op, size, group)
    return math.inf
