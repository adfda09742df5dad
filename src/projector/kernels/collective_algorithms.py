"""Codes of collectives and the terms of every algorithm that can serve them.

An algorithm takes a latency and, for each byte of the buffer, the time of its busiest link.
``docs/collectives.md`` derives the terms and names their sources. The reduction in a switch has no
terms here: it has a measured rate.

Units
    time s, buffers bytes, inverse rates s/byte per device and direction.
"""

from typing import NamedTuple

from projector.kernels._jit import inlined
from projector.kernels.spans import ceil_log2

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
    "pat",
)
"""Names by algorithm code."""

RING, TREE, HALVING_DOUBLING, BRUCK, DIRECT, HIERARCHICAL, IN_NETWORK, PAIRWISE, PAT = range(9)

NUM_OPERATIONS = len(OPERATIONS)
NUM_ALGORITHMS = len(ALGORITHMS)

NO_ALGORITHM = -1
"""Code of a row that moves nothing, or that has no valid time."""

_RINGS = 1 << RING | 1 << DIRECT | 1 << HIERARCHICAL
_EXCHANGES = 1 << DIRECT | 1 << HIERARCHICAL | 1 << PAIRWISE
_SERVED_BY = (
    _RINGS | 1 << TREE | 1 << HALVING_DOUBLING | 1 << BRUCK | 1 << IN_NETWORK,
    _RINGS | 1 << HALVING_DOUBLING | 1 << BRUCK | 1 << PAT,
    _RINGS | 1 << HALVING_DOUBLING | 1 << BRUCK | 1 << PAT,
    _EXCHANGES | 1 << BRUCK,
    _RINGS | 1 << TREE,
    1 << DIRECT,
    _RINGS | 1 << TREE,
    _EXCHANGES,
)
"""Algorithms that may serve each operation, a bit each."""

_IN_A_DOMAIN = ~(1 << TREE | 1 << HIERARCHICAL | 1 << PAT)
_ACROSS_DOMAINS = ~(1 << DIRECT)


class Group(NamedTuple):
    """The members of one collective and what their links take."""

    ranks: int
    local: int
    """Members in the fullest domain."""
    least: int
    """Members in the emptiest domain."""
    domains: int
    group_s: float
    """Seconds for a byte that a member sends to all its peers in the domain together."""
    pair_s: float
    """The same to one peer in the domain."""
    nic_s: float
    """The same through its adapter where a group passes each pod's border once, as chains and
    trees do."""
    crossing_s: float
    """The same where all of it leaves the pod."""
    p2p_s: float
    """The same from one rank to another."""
    far_exchange_s: float
    """Seconds for each byte of the buffer that an exchange spends between domains."""
    forwarded_share: float
    """Share of the buffer that an exchange first moves within the domain, to the right rail."""
    hop_s: float
    """From one member to its neighbour in the domain, along a chain that stands."""
    step_s: float
    """An exchange with partners that are not neighbours in a chain."""
    issue_s: float
    """Each message of such an exchange."""
    nic_hop_s: float
    """The longest hop between domains."""
    chain_far_s: float
    """Hops between domains of a chain through all of them."""
    tree_far_s: float
    """The same from the root to a leaf of a tree."""
    peers_s: float
    """What an exchange spends on its peers in other domains besides."""
    start_s: float
    """Of a collective within the domain."""
    pat_s: float
    """Seconds of the adapter for a second of a ring's, where aggregated trees send."""
    chain_s: float
    """Seconds for a byte that a member passes on in its domain's part of a tree."""


@inlined
def copies_own_block(op: int) -> bool:
    """Whether each rank has a block that an out-of-place call copies and does not send."""
    return op < BROADCAST or op == ALL_TO_ALL_V


@inlined
def is_exchange(op: int) -> bool:
    """Whether every pair has messages of its own."""
    return op in (ALL_TO_ALL, ALL_TO_ALL_V, SEND_RECV)


@inlined
def _is_rooted(op: int) -> bool:
    """Whether one rank has, or gets, the whole buffer; a reduce is a broadcast in reverse."""
    return op in (BROADCAST, REDUCE)


@inlined
def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


@inlined
def _passes(op: int) -> float:
    """Trips of the buffer round the group: an all-reduce reduces, then gathers."""
    return 2.0 if op == ALL_REDUCE else 1.0


@inlined
def algorithms_for(op: int, group: Group) -> int:
    """Return the algorithms that can serve a group, a bit each; in-network not yet ruled out."""
    served = _SERVED_BY[op]
    ranks, local = group.ranks, group.local
    if group.domains == 1:
        served &= _IN_A_DOMAIN
        if op != ALL_REDUCE and not _is_power_of_two(ranks):
            served &= ~(1 << HALVING_DOUBLING)
        return served
    if op != SEND_RECV:
        served &= _ACROSS_DOMAINS
    if local == 1:
        served &= ~(1 << HIERARCHICAL)
    if group.least < local or not (_is_power_of_two(ranks) and _is_power_of_two(local)):
        served &= ~(1 << HALVING_DOUBLING)
    return served


@inlined
def far_hops(algorithm: int, op: int, ranks: int, domains: int) -> float:
    """Return the hops between domains that follow one another in the latency of an algorithm."""
    if domains == 1:
        return 0.0
    if algorithm in (DIRECT, PAIRWISE) or (algorithm == HIERARCHICAL and is_exchange(op)):
        return 1.0
    if algorithm == BRUCK:
        return _passes(op) * ceil_log2(ranks)
    if algorithm in (RING, HIERARCHICAL):
        return _passes(op) * (domains - 1)
    return _passes(op) * ceil_log2(domains)


@inlined
def ring(op: int, group: Group) -> tuple[float, float]:
    """One ring through each member's links, in a chain of chunks; all rings run side by side."""
    passes = _passes(op)
    traffic = passes if _is_rooted(op) else passes * ((group.ranks - 1) / group.ranks)
    if group.domains == 1:
        return passes * (group.ranks - 1) * group.hop_s, traffic * group.group_s
    # Each ring leaves the domain through another member's adapter; the emptiest has fewest.
    wire_s = traffic / group.least * group.nic_s
    if group.local > 1:
        wire_s = max(wire_s, traffic * ((group.local - 1) / group.local) * group.group_s)
    hops_s = (group.ranks - group.domains) * group.hop_s + group.chain_far_s
    return passes * hops_s, wire_s


@inlined
def tree(op: int, group: Group) -> tuple[float, float]:
    """Chains within the domains, a double binary tree across them, chunk by chunk."""
    passes = _passes(op)
    wire_s = _tree_far_wire_s(passes, group)
    if group.local > 1:
        # A member within the chain passes the whole buffer on, up and down; of two members one
        # sends it up and the other down.
        wire_s = max(wire_s, (passes if group.local > 2 else 1.0) * group.chain_s)
    return passes * ((group.local - 1) * group.hop_s + group.tree_far_s), wire_s


@inlined
def _tree_far_wire_s(passes: float, group: Group) -> float:
    """Time of a byte of the buffer on the adapters of a double binary tree of domains."""
    # With two domains each is the root of one tree and the leaf of the other, so that it sends
    # the buffer once; an inner domain of a larger tree sends half up and half to two children.
    sent = 1.0 if group.domains == 2 else passes
    return sent / group.least * group.nic_s


@inlined
def in_network(switch_s: float, group: Group) -> tuple[float, float]:
    """Up to the switch of each domain and down again; a tree joins several domains."""
    if group.domains == 1:
        return 2.0 * group.hop_s, switch_s
    latency_s = 2.0 * (group.hop_s + group.tree_far_s)
    return latency_s, max(switch_s, _tree_far_wire_s(2.0, group))


@inlined
def halving_doubling(op: int, group: Group) -> tuple[float, float]:
    """Exchange with one partner a step, halves while reducing, doubles while gathering."""
    passes = _passes(op)
    one_s = group.step_s + group.issue_s
    ranks, local = group.ranks, group.local
    if group.domains == 1:
        # The members beyond a power of two hand their buffer to a partner and get it back.
        whole = _is_power_of_two(ranks)
        steps = ceil_log2(ranks) if whole else ceil_log2(ranks) - 1
        core = 1 << steps
        latency_s = passes * steps * one_s
        traffic = passes * ((core - 1) / core)
        if whole:
            return latency_s, traffic * group.pair_s
        return latency_s + 2.0 * one_s, (traffic + 2.0) * group.pair_s
    # The large exchanges stay in the domain.
    latency_s = ceil_log2(group.domains) * one_s + group.tree_far_s
    wire_s = ((group.domains - 1) / group.domains) / local * group.nic_s
    if local > 1:
        latency_s += ceil_log2(local) * one_s
        wire_s += ((local - 1) / local) * group.pair_s
    return passes * latency_s, passes * wire_s


@inlined
def bruck(op: int, group: Group) -> tuple[float, float]:
    """Log-many steps of growing distance; across domains some member's every step leaves.

    A reduction takes the steps of a gather in reverse.
    """
    ranks, passes = group.ranks, _passes(op)
    steps = ceil_log2(ranks)
    blocks = ranks - 1
    if op == ALL_TO_ALL:
        # Step s forwards the blocks whose distance has bit s set.
        blocks = 0
        for step in range(steps):
            half = 1 << step
            beyond = (ranks & (2 * half - 1)) - half
            blocks += (ranks >> (step + 1) << step) + max(0, beyond)
    hop_s, wire_s = group.step_s + group.issue_s, group.pair_s
    if group.domains > 1:
        hop_s += group.nic_hop_s
        wire_s = max(wire_s, group.crossing_s) if group.local > 1 else group.crossing_s
    return passes * steps * hop_s, passes * (blocks / ranks) * wire_s


@inlined
def direct(op: int, group: Group) -> tuple[float, float]:
    """All pairs at once with shares of the buffer; an all-reduce and a rooted one do so twice."""
    if op == SEND_RECV:
        latency_s = group.step_s + group.issue_s
        if group.domains == 1:
            return latency_s, group.pair_s
        return latency_s + group.nic_hop_s, group.p2p_s
    latency_s = group.step_s + (group.ranks - 1) * group.issue_s
    wire_s = ((group.ranks - 1) / group.ranks) * group.group_s
    if op == ALL_REDUCE or _is_rooted(op):
        return 2.0 * latency_s, 2.0 * wire_s
    return latency_s, wire_s


@inlined
def direct_whole(group: Group) -> tuple[float, float]:
    """All pairs at once with whole buffers, for an all-reduce or a rooted one, in one step."""
    latency_s = group.step_s + (group.ranks - 1) * group.issue_s
    return latency_s, (group.ranks - 1) * group.group_s


@inlined
def hierarchical(op: int, group: Group) -> tuple[float, float]:
    """Within the domains, then between local ranks of one index, or the other way round."""
    local, domains = group.local, group.domains
    near_s = ((local - 1) / local) * group.group_s
    if is_exchange(op):
        # Members first collect, for each local peer, all that goes to peers of its index.
        latency_s = group.start_s + 2.0 * group.step_s + group.nic_hop_s
        latency_s += (local - 1 + domains - 1) * group.issue_s
        return latency_s, near_s + group.far_exchange_s
    hops_s = (local - 1) * group.hop_s + group.chain_far_s
    if _is_rooted(op):
        # A scatter in the root's domain, one chain per local rank, and a gather in every domain.
        latency_s = 2.0 * group.start_s + group.hop_s + hops_s
        return latency_s, 2.0 * near_s + group.nic_s / group.least
    far_s = ((domains - 1) / domains) / group.least * group.nic_s
    passes = _passes(op)
    # All-reduce: a scatter, an all-reduce and a gather. The others: two calls.
    return passes * (group.start_s + hops_s), passes * (near_s + far_s)


@inlined
def pairwise(group: Group) -> tuple[float, float]:
    """Each pair exchanges its block; links of the domain and adapters work side by side."""
    ranks, local = group.ranks, group.local
    # Messages are issued one after the other and fly together.
    latency_s = group.step_s + (ranks - 1) * group.issue_s
    wire_s = 0.0
    if local > 1:
        wire_s = ((local - 1) / ranks + group.forwarded_share) * group.group_s
    if group.domains > 1:
        wire_s = max(wire_s, group.far_exchange_s)
        latency_s += group.nic_hop_s + group.peers_s
    return latency_s, wire_s


@inlined
def pat(group: Group) -> tuple[float, float]:
    """Send down aggregated trees between local ranks of one index, and round a ring in a domain."""
    local, domains = group.local, group.domains
    latency_s = group.tree_far_s
    wire_s = ((domains - 1) / domains) / group.least * group.nic_s * group.pat_s
    if local > 1:
        latency_s += group.start_s + (local - 1) * group.hop_s
        wire_s += ((local - 1) / local) * group.group_s
    return latency_s, wire_s
