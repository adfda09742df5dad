"""Plain-Python exchange between experts: one dispatch or combine at a time.

A fabric and the costs are dicts with the fields of a FABRIC and an EXCHANGE record.
"""

import itertools
import math

from reference import collectives


def expected_parts(parts, experts, topk, groups=0, group_topk=0):
    """Mean number of distinct parts over every choice of experts, one by one; for small layers."""
    share = experts // parts
    chosen_groups = [range(experts)]
    if 0 < group_topk < groups:
        size = experts // groups
        chosen_groups = [
            [expert for group in visited for expert in range(group * size, (group + 1) * size)]
            for visited in itertools.combinations(range(groups), group_topk)
        ]
    counts = [
        len({expert // share for expert in picked})
        for eligible in chosen_groups
        for picked in itertools.combinations(eligible, topk)
    ]
    return sum(counts) / len(counts)


def link_rate(fabric, local):
    as_exchange = {**fabric, "local_ring_bytes_per_s": fabric["local_exchange_bytes_per_s"]}
    return collectives.group_rate(as_exchange, local) / fabric["scale_up_efficiency"]


def adapter_rate(fabric):
    return fabric["nic_p2p_bytes_per_s"] or fabric["nic_bytes_per_s"]


def copies_time(op, tokens, size, copies, local, channels, fabric, costs):
    of_token = costs["scan_s"][op]
    of_token += copies * costs["message_s"][op]
    of_token += copies * size / costs["channel_bytes_per_s"][op]
    times = [tokens / channels * of_token]
    if local > 1:
        # One of the members of a domain is the rank itself, whose copies take no link.
        leaving = tokens * copies * size * (1 - 1 / local)
        times.append(leaving / costs["link_efficiency"][op] / link_rate(fabric, local))
    return max(times)


def tiers(fabric):
    """What higher tiers of the network add to the hop between the furthest domains."""
    return collectives.longest_hop(fabric) - fabric["nic_latency_s"]


def host_writes_time(op, tokens, size, ranks, costs):
    """Seconds in which a thread of the host writes ``tokens`` to other domains, piece by piece."""
    pieces = tokens / 8
    if ranks <= 16:
        of_piece = {0: 20, 1: 12, 2: 20, 3: 12}[op]
        pieces = tokens / of_piece
    times = [pieces * costs["exchange_write_s"]]
    if costs["exchange_proxy_bytes_per_s"]:
        times.append(tokens * size / costs["exchange_proxy_bytes_per_s"])
    return max(times)


def moe_exchange_time(op, tokens, size, copies, reached, n, local, channels, fabric, costs):
    """Seconds of ``op``: 0 and 2 a dispatch, 1 and 3 a combine, 4 the low-latency kernel."""
    if n == 1 or 0 in (tokens, size, copies):
        return 0.0
    domains = math.ceil(n / local)
    doublings = math.ceil(math.log2(domains))
    # What the members of the emptiest domain send leaves it for all others.
    elsewhere = 1 - (n - local * (domains - 1)) / n
    if op == 4:
        near = far = 0.0
        if local > 1:
            rate = link_rate(fabric, local) * costs["low_latency_link_efficiency"]
            near = tokens * copies * size * local / n / rate
        if domains > 1:
            far = tokens * copies * size * elsewhere / adapter_rate(fabric)
        start = costs["low_latency_start_s"] + doublings * costs["low_latency_doubling_s"]
        start += tiers(fabric) if domains > 1 else 0.0
        return start + max(near, far)
    first = copies * size / costs["first_bytes_per_s"][op]
    inside = copies_time(op, tokens, size, copies, local, channels, fabric, costs)
    if domains == 1:
        return costs["start_s"][op] + first + inside
    forward = inside * costs["forward_slowdown"][op]
    adapters = adapter_rate(fabric) * costs["adapter_share"][op]
    network = tokens * reached * elsewhere * size / adapters
    # A thread writes for every member what a full domain leaves to the others.
    written = tokens * reached * (1 - local / n)
    network = max(network, host_writes_time(op, written, size, n, costs))
    # The first chunk of each channel passes one stage after the other.
    alone = min(tokens, channels * costs["chunk_tokens"][op]) / tokens
    pipeline = max(forward, network) + alone * min(forward, network)
    start = costs["network_start_s"][op] + doublings * costs["doubling_s"][op] + tiers(fabric)
    return start + first + pipeline
