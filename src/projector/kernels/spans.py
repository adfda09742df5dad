"""How a group lies beyond its fullest domain, as one whole number.

A code of 0 is a group in one pod that fills its domains one after the other: ``ceil(n / local)``
of them, the last with the rest. A job's groups are whole numbers in records that compare exactly,
so that a span is one as well.

Units: time s, rates bytes/s per device and direction. Counts are int64.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Ints, Records
from projector.kernels._jit import inlined


@inlined
def ceil_log2(count: int) -> int:
    """Return how often one doubles until there are ``count``."""
    steps, rest = 0, count - 1
    for width in (32, 16, 8, 4, 2, 1):
        if rest >> width > 0:
            steps += width
            rest >>= width
    return steps + rest if rest > 0 else steps


_LEAST_BITS, _MORE_BITS, _TIER_BITS = 12, 10, 20
_LEAST, _MORE, _TIER = (1 << _LEAST_BITS) - 1, (1 << _MORE_BITS) - 1, (1 << _TIER_BITS) - 1
_POD_AT = _LEAST_BITS + _MORE_BITS
_ZONE_AT = _POD_AT + _TIER_BITS
_STRAYS_AT = _ZONE_AT + _TIER_BITS


class Span(NamedTuple):
    """A group beyond its fullest domain."""

    domains: int
    least: int
    """Members of the emptiest domain."""
    pod_domains: int
    """Domains of the group in one pod; 0 where one pod holds them all. Of two ranks in two pods
    it is how many ranks of the pod share what one of them sends beyond it."""
    zone_domains: int
    """The same of a zone."""
    strays: bool
    """Whether members of different domains hang on different rails."""


def span_codes(
    ranks: ArrayLike,
    local: ArrayLike,
    *,
    domains: ArrayLike,
    least: ArrayLike,
    pod_domains: ArrayLike = 0,
    zone_domains: ArrayLike = 0,
    strays: ArrayLike = 0,
) -> Ints:
    """Pack what `Span` holds of each group; what exceeds its bits is kept as the most they hold.

    Returns int64[groups]: 0 where a group fills its domains one after the other in one pod.
    """
    n, most = np.asarray(ranks, np.int64), np.maximum(np.asarray(local, np.int64), 1)
    in_order = -(-n // most)
    rest = n - most * (in_order - 1)
    more = np.clip(np.asarray(domains) - in_order, 0, _MORE)
    fewest = np.where((np.asarray(least) == rest) & (more == 0), 0, np.clip(least, 0, _LEAST))
    code = fewest | more << _LEAST_BITS
    code = code | np.clip(pod_domains, 0, _TIER).astype(np.int64) << _POD_AT
    code = code | np.clip(zone_domains, 0, _TIER).astype(np.int64) << _ZONE_AT
    return np.asarray(code | np.asarray(strays, np.int64) << _STRAYS_AT, np.int64)


def pair_codes(codes: Ints) -> Ints:
    """Return the codes of neighbours in the chains of groups: pairs in two domains, 1 in each."""
    return codes >> _POD_AT << _POD_AT


@inlined
def span_of(code: int, ranks: int, local: int) -> Span:
    """Unpack the code of a group of ``ranks``, ``local`` of them in the fullest domain."""
    in_order = -(-ranks // local)
    domains = in_order + (code >> _LEAST_BITS & _MORE)
    least = code & _LEAST
    if least == 0:
        least = ranks - local * (in_order - 1)
    return Span(
        domains,
        least,
        code >> _POD_AT & _TIER,
        code >> _ZONE_AT & _TIER,
        code >> _STRAYS_AT & 1 == 1,
    )


@inlined
def is_span(code: int, ranks: int, local: int) -> bool:
    """Whether a code can be that of the group."""
    span = span_of(code, ranks, local)
    return code >= 0 and span.domains <= ranks and span.least <= local


class FarLinks(NamedTuple):
    """What the links between the domains of one group give it."""

    chain_bytes_per_s: float
    """What a member sends where the group passes each pod's border once in each direction."""
    crossing_bytes_per_s: float
    """What a member sends where all of it leaves the pod."""
    p2p_bytes_per_s: float
    """What one rank sends to another."""
    exchange_s: float
    """Seconds for each byte of a buffer of which each member gets an equal block."""
    longest_hop_s: float
    chain_s: float
    """Hops between domains of a chain through all of them."""
    tree_s: float
    """The same from the root to a leaf of a tree."""


@inlined
def _tier_share(domains: int, oversubscription: float) -> float:
    """Share of the adapters' rate where one of ``domains`` in each pod sends out of it."""
    if domains == 0 or oversubscription <= 1.0:
        return 1.0
    return min(1.0, domains / oversubscription)


@inlined
def far_links(record: Records, span: Span, ranks: int, local: int) -> FarLinks:
    """Rates and latencies between the domains of a group, for a FABRIC record.

    Groups of one kind run at once. Each passes the border of a pod with one of its domains there,
    so that they need ``1 / pod_domains`` of the adapters of a pod at once, and get
    ``1 / oversubscription`` of their rate.
    """
    nic = float(record["nic_bytes_per_s"])
    p2p = float(record["nic_p2p_bytes_per_s"])
    p2p = p2p if p2p > 0.0 else nic
    pod_over = max(1.0, float(record["pod_oversubscription"]))
    zone_over = max(1.0, float(record["zone_oversubscription"]))
    pods = max(2, -(-span.domains // span.pod_domains)) if span.pod_domains > 0 else 1
    zones = max(2, -(-span.domains // span.zone_domains)) if span.zone_domains > 0 else 1
    share = min(_tier_share(span.pod_domains, pod_over), _tier_share(span.zone_domains, zone_over))
    least_share = min(1.0 / pod_over if pods > 1 else 1.0, 1.0 / zone_over if zones > 1 else 1.0)
    if not p2p > 0.0:
        return FarLinks(0.0, 0.0, 0.0, math.inf, 0.0, 0.0, 0.0)
    exchange_s = (ranks - span.least) / ranks / p2p
    if pods > 1:
        beyond = max(0, ranks - span.pod_domains * local) / ranks
        exchange_s = max(exchange_s, beyond * pod_over / p2p)
    if zones > 1:
        beyond = max(0, ranks - span.zone_domains * local) / ranks
        exchange_s = max(exchange_s, beyond * zone_over / p2p)
    hop_s, spine_s = float(record["nic_latency_s"]), float(record["spine_latency_s"])
    core_s = float(record["core_latency_s"]) if zones > 1 else 0.0
    if record["plain_tree"] == 1 or span.strays:
        hop_s, spine_s = hop_s + spine_s, 0.0
    spine_s = spine_s if pods > 1 else 0.0
    chain_s = (span.domains - 1) * hop_s + (pods - 1) * spine_s + (zones - 1) * core_s
    tree_s = ceil_log2(span.domains) * hop_s + ceil_log2(pods) * spine_s
    tree_s += ceil_log2(zones) * core_s
    return FarLinks(
        nic * share, nic * least_share, p2p * share, exchange_s, hop_s + spine_s + core_s,
        chain_s, tree_s,
    )  # fmt: skip
