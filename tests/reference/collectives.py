"""Plain-Python collectives: every algorithm walked step by step, one collective at a time.

A fabric is a dict with the fields of a FABRIC record, and may hold the ``layout`` of the group: the
sizes of its domains, how many of them lie in a pod and in a zone (0: all), and whether they stray
over rails. Each algorithm returns its latency and its time on the wire, or None where it does not
serve the operation.
"""

import math

REDUCING = ("all_reduce", "all_gather", "reduce_scatter")
ROOTED = ("broadcast", "reduce")
EXCHANGES = ("all_to_all", "all_to_all_v")


def listed(fabric, name, local):
    """Rate of an irregular node, or 0."""
    rates = fabric[name]
    return rates[local] * fabric["scale_up_efficiency"] if local < len(rates) else 0.0


def group_rate(fabric, local):
    if listed(fabric, "local_ring_bytes_per_s", local) > 0:
        return listed(fabric, "local_ring_bytes_per_s", local)
    links = (local - 1) * fabric["peer_bytes_per_s"]
    return min(fabric["scale_up_bytes_per_s"], links) * fabric["scale_up_efficiency"]


def pair_rate(fabric, local):
    if listed(fabric, "local_pair_bytes_per_s", local) > 0:
        return listed(fabric, "local_pair_bytes_per_s", local)
    one_link = min(fabric["scale_up_bytes_per_s"], fabric["peer_bytes_per_s"])
    return one_link * fabric["scale_up_efficiency"]


def domain_sizes(n, local, fabric):
    """Members of each domain; without a layout one is filled after the other."""
    if "layout" in fabric:
        return fabric["layout"]["sizes"]
    return [min(local, n - first) for first in range(0, n, local)]


def least(n, local, fabric):
    return min(domain_sizes(n, local, fabric))


def domain_of(n, local, fabric):
    """Domain of each rank, the ranks of a domain side by side."""
    sizes = domain_sizes(n, local, fabric)
    return [domain for domain, size in enumerate(sizes) for _ in range(size)]


def tier_of(domain, fabric, tier):
    """Pod or zone of a domain."""
    each = fabric.get("layout", {}).get(tier, 0)
    return domain // each if each else 0


def crosses(fabric, tier):
    return fabric.get("layout", {}).get(tier, 0) > 0


def far_hop(one, other, fabric):
    """Latency from one domain to another."""
    hop, spine = fabric["nic_latency_s"], fabric["spine_latency_s"]
    other_pod = tier_of(one, fabric, "pod") != tier_of(other, fabric, "pod")
    if fabric["plain_tree"] or fabric.get("layout", {}).get("strays") or other_pod:
        hop += spine
    if tier_of(one, fabric, "zone") != tier_of(other, fabric, "zone"):
        hop += fabric["core_latency_s"]
    return hop


def longest_hop(fabric):
    """Latency between the domains that are furthest from each other."""
    layout = fabric.get("layout", {})
    spine = fabric["plain_tree"] or layout.get("strays") or crosses(fabric, "pod")
    hop = fabric["nic_latency_s"] + (fabric["spine_latency_s"] if spine else 0.0)
    return hop + (fabric["core_latency_s"] if crosses(fabric, "zone") else 0.0)


def tree_hops(n, local, fabric):
    """Hops from a root to a leaf: through zones, then pods, then domains, in log-many steps."""
    last = len(domain_sizes(n, local, fabric)) - 1
    plain = {**fabric, "layout": {**fabric.get("layout", {}), "pod": 0, "zone": 0}}
    total = math.ceil(math.log2(last + 1)) * longest_hop(plain)
    stays = fabric["plain_tree"] or fabric.get("layout", {}).get("strays")
    for tier, latency in (
        ("pod", 0.0 if stays else fabric["spine_latency_s"]),
        ("zone", fabric["core_latency_s"]),
    ):
        if crosses(fabric, tier):
            total += math.ceil(math.log2(tier_of(last, fabric, tier) + 1)) * latency
    return total


def uplink_share(senders_of, fabric):
    """Share of the adapters' rate that the links out of a pod, and out of a zone, leave.

    ``senders_of`` gives the share of the adapters of a pod, or of a zone, that send out of it.
    """
    shares = [1.0]
    for tier in ("pod", "zone"):
        if crosses(fabric, tier):
            over = max(1.0, fabric[f"{tier}_oversubscription"])
            shares.append(1 / over / senders_of(fabric["layout"][tier]))
    return min(shares)


def chain_rate(fabric):
    """Adapter rate where one of a group's domains in a pod sends out of it."""
    return fabric["nic_bytes_per_s"] * uplink_share(lambda domains: 1 / domains, fabric)


def crossing_rate(fabric):
    return fabric["nic_bytes_per_s"] * uplink_share(lambda domains: 1.0, fabric)


def exchange_far(size, n, local, fabric):
    """Seconds between domains of an exchange of equal blocks: adapters, and links out of tiers."""
    nic = fabric["nic_p2p_bytes_per_s"] or fabric["nic_bytes_per_s"]
    block = size / n
    seconds = [(n - min(domain_sizes(n, local, fabric))) * block / nic]
    for tier in ("pod", "zone"):
        if crosses(fabric, tier):
            inside = min(n, local * fabric["layout"][tier])
            over = max(1.0, fabric[f"{tier}_oversubscription"])
            seconds.append((n - inside) * block / (nic / over))
    return max(seconds)


def chain_hops(n, local, fabric):
    """Latency of a chunk that visits every rank, once."""
    domain = domain_of(n, local, fabric)
    return sum(
        fabric["scale_up_latency_s"]
        if domain[i] == domain[i + 1]
        else far_hop(domain[i], domain[i + 1], fabric)
        for i in range(n - 1)
    )


def trips(op):
    return 2 if op == "all_reduce" else 1


def exchange_s(messages, fabric):
    """Latency of one step in which a member sends ``messages`` to partners of any place."""
    issued = sum(fabric["exchange_issue_s"] for _ in range(messages))
    return fabric["exchange_step_s"] + issued


def ring(op, size, n, local, fabric):
    if op not in (*REDUCING, *ROOTED):
        return None
    chunks = [size] if op in ROOTED else [size / n] * (trips(op) * (n - 1))
    sent = sum(chunks)
    hops = trips(op) * chain_hops(n, local, fabric)
    if local == n:
        return hops, sent / group_rate(fabric, n)
    # One ring for each member of the emptiest domain, each with an equal part; in each of them
    # one member of a domain sends to the next domain and the others send to a neighbour.
    nic = sent / least(n, local, fabric) / chain_rate(fabric)
    near = (local - 1) * sent / local / group_rate(fabric, local) if local > 1 else 0.0
    return hops, max(nic, near)


def tree_across(op, size, n, local, fabric):
    """Latency of a double binary tree of domains, and the time of its bytes on the adapters."""
    # Two trees carry half of the buffer each. A domain is an inner vertex of at most one.
    half = size / 2
    if op == "all_reduce":
        two = len(domain_sizes(n, local, fabric)) == 2
        up_as_leaf, up_as_inner = half, 0.0 if two else half
        sent = up_as_leaf + up_as_inner + (1 if two else 2) * half
    else:
        sent = 2 * half
    nic = sent / (least(n, local, fabric) * chain_rate(fabric))
    return trips(op) * tree_hops(n, local, fabric), nic


def tree(op, size, n, local, fabric):
    if len(domain_sizes(n, local, fabric)) == 1 or op not in ("all_reduce", *ROOTED):
        return None
    latency, nic = tree_across(op, size, n, local, fabric)
    near = 0.0
    if local > 1:
        # What each member of the chain sends: to the one above it, to the one below it.
        up = [size if member > 0 else 0.0 for member in range(local)]
        down = [size if member < local - 1 else 0.0 for member in range(local)]
        busiest = max(map(sum, zip(up, down, strict=True))) if op == "all_reduce" else size
        near = busiest / (group_rate(fabric, local) * fabric["tree_efficiency"])
    hops = (local - 1) * fabric["scale_up_latency_s"]
    return trips(op) * hops + latency, max(nic, near)


def halving_doubling(op, size, n, local, fabric):
    if op not in REDUCING:
        return None
    whole = n == 2 ** int(math.log2(n))
    step = exchange_s(1, fabric)
    if local == n:
        if not whole and op != "all_reduce":
            return None
        core = 2 ** int(math.log2(n))
        latency, wire, block, partners = 0.0, 0.0, size, core
        while partners > 1:
            block /= 2
            wire += block / pair_rate(fabric, local)
            latency += step
            partners //= 2
        latency, wire = trips(op) * latency, trips(op) * wire
        if not whole:
            latency, wire = latency + 2 * step, wire + 2 * size / pair_rate(fabric, local)
        return latency, wire
    if not whole or local != 2 ** int(math.log2(local)) or least(n, local, fabric) < local:
        return None
    latency, wire, block, distance = 0.0, 0.0, size, 1
    while distance < n:
        block /= 2
        latency += step
        if distance < local:
            wire += block / pair_rate(fabric, local)
        else:
            wire += block / chain_rate(fabric)
        distance *= 2
    latency += tree_hops(n, local, fabric)
    return trips(op) * latency, trips(op) * wire


def bruck(op, size, n, local, fabric):
    if op not in (*REDUCING, "all_to_all"):
        return None
    rate, step = pair_rate(fabric, local), exchange_s(1, fabric)
    if local < n:
        rate = crossing_rate(fabric) if local == 1 else min(rate, crossing_rate(fabric))
        step += longest_hop(fabric)
    latency, wire, distance = 0.0, 0.0, 1
    while distance < n:
        if op in REDUCING:  # what is held doubles until all is there, or halves until all is summed
            blocks = min(distance, n - distance)
        else:
            blocks = len([block for block in range(n) if block & distance])
        latency += step
        wire += blocks * size / n / rate
        distance *= 2
    return trips(op) * latency, trips(op) * wire


def direct(op, size, n, local, fabric):
    if op == "send_recv":
        latency = exchange_s(1, fabric)
        if local == 2:
            return latency, size / pair_rate(fabric, local)
        nic = fabric["nic_p2p_bytes_per_s"] or fabric["nic_bytes_per_s"]
        share = uplink_share(lambda senders: 1 / senders, fabric)
        return latency + longest_hop(fabric), size / (nic * share)
    if local < n:
        return None
    latency, shares = exchange_s(n - 1, fabric), (n - 1) * (size / n) / group_rate(fabric, n)
    if op in ("all_reduce", *ROOTED):
        return 2 * latency, 2 * shares
    return latency, shares


def direct_whole(op, size, n, local, fabric):
    """The other way to go direct: in one step, with whole buffers."""
    if local < n or op not in ("all_reduce", *ROOTED):
        return None
    return exchange_s(n - 1, fabric), (n - 1) * size / group_rate(fabric, n)


def hierarchical(op, size, n, local, fabric):
    if op == "send_recv" or local in (1, n):
        return None
    sizes = domain_sizes(n, local, fabric)
    domains, rails, nic = len(sizes), min(sizes), chain_rate(fabric)
    hop, call = fabric["scale_up_latency_s"], fabric["start_s"]
    far_hops = chain_hops(n, local, fabric) - (n - domains) * hop
    if op in EXCHANGES:
        # One message to each local peer, with its share of all blocks, and one to the peer of
        # the same index in each other domain, with all blocks for that domain.
        within = (local - 1) * size / local / group_rate(fabric, local)
        latency = exchange_s(local - 1, fabric) + call + exchange_s(domains - 1, fabric)
        return latency + longest_hop(fabric), within + exchange_far(size, n, local, fabric)
    gather_latency, gather_wire = ring("all_gather", size, local, local, fabric)
    if op in ROOTED:
        # A scatter, a chain on each rail and a gather.
        latency = hop + call + far_hops + call + gather_latency
        return latency, 2 * gather_wire + size / rails / nic
    across = (domains - 1) * size / rails / domains / nic
    calls = 2 if op == "all_reduce" else 1
    # All-reduce scatters, reduces across and gathers; the others do one of the two.
    latency = trips(op) * (gather_latency + far_hops) + calls * call
    return latency, trips(op) * (gather_wire + across)


def in_network(op, size, n, local, fabric):
    rate, hop = fabric["in_network_bytes_per_s"], fabric["scale_up_latency_s"]
    fewest = max(2, fabric["in_network_min_gpus"])
    if op != "all_reduce" or least(n, local, fabric) < fewest or rate == 0:
        return None
    if local == n:
        return 2 * hop, size / rate
    if not fabric["network_in_network"]:
        return None
    latency, nic = tree_across(op, size, n, local, fabric)
    return 2 * hop + latency, max(nic, size / (rate * fabric["tree_efficiency"]))


def pairwise(op, size, n, local, fabric):
    if op not in EXCHANGES:
        return None
    block = size / n
    near = (local - 1) * block
    latency = exchange_s(n - 1, fabric)
    if local == n:
        return latency, near / group_rate(fabric, local)
    far_peers = n - least(n, local, fabric)
    layout = fabric.get("layout", {})
    if not (fabric["forwards"] or fabric["plain_tree"] or layout.get("strays")):
        # Other rails are beyond a spine, as other pods are.
        latency += 0.0 if crosses(fabric, "pod") else fabric["spine_latency_s"]
    if fabric["forwards"] and not fabric["plain_tree"]:
        # All but what goes to the own rail is handed to a local peer first.
        near += far_peers * block * (local - 1) / local
    near_s = near / group_rate(fabric, local) if local > 1 else 0.0
    latency += far_peers * fabric["exchange_peer_s"] + longest_hop(fabric)
    return latency, max(near_s, exchange_far(size, n, local, fabric))


def pat(op, size, n, local, fabric):
    sizes = domain_sizes(n, local, fabric)
    if len(sizes) == 1 or op not in ("all_gather", "reduce_scatter"):
        return None
    # Between local ranks of one index a step doubles the reach; then a ring in each domain.
    rate = chain_rate(fabric) * fabric["pat_efficiency"]
    latency = tree_hops(n, local, fabric)
    wire = (len(sizes) - 1) / len(sizes) * size / min(sizes) / rate
    if local > 1:
        ring_latency, ring_wire = ring("all_gather", size, local, local, fabric)
        latency, wire = latency + fabric["start_s"] + ring_latency, wire + ring_wire
    return latency, wire


ALGORITHMS = (
    ring,
    tree,
    halving_doubling,
    bruck,
    direct,
    hierarchical,
    in_network,
    pairwise,
    pat,
)


def start(n, local, fabric):
    return fabric["start_s"] + (fabric["network_start_s"] if local < n else 0.0)


def self_copy(op, size, n, fabric):
    if op not in (*REDUCING, "all_to_all", "all_to_all_v"):
        return 0.0
    rate = fabric["scale_up_bytes_per_s"] * fabric["scale_up_efficiency"]
    return fabric["self_copy_share"] * size / n / rate


def fill(wire, chunk, limit):
    """The least of k·chunk + wire/k over the chunks k, which need not be whole."""
    return min(2 * (chunk * wire) ** 0.5, limit)


def may_flag(code, op, size, n, fabric):
    """Whether the algorithm may put flags beside its data."""
    if op == "send_recv":
        return size <= fabric["exchange_flag_bytes"]
    if op in EXCHANGES and (
        size / n > fabric["exchange_flag_bytes"] or ALGORITHMS[code] is hierarchical
    ):
        return False
    return fabric["flagged_algorithms"] >> code & 1 == 1


def with_protocols(code, op, size, n, local, fabric, terms, flagged_latency):
    latency, wire = terms
    exchanges = op in (*EXCHANGES, "send_recv")
    simple = fabric["exchange_simple_start_s" if exchanges else "simple_start_s"]
    chunk, limit = fabric["chunk_s"], fabric["fill_limit_s"]
    if local < n:
        chunk, limit = fabric["network_chunk_s"], fabric["network_fill_limit_s"]
    if ALGORITHMS[code] is in_network:
        chunk = fabric["in_network_chunk_s"]
        if local < n:
            chunk = max(chunk, fabric["network_chunk_s"])
        return simple + latency + wire + fill(wire, chunk, limit)
    wire += self_copy(op, size, n, fabric)
    plain = simple + latency + wire + fill(wire, chunk, limit)
    if not may_flag(code, op, size, n, fabric) or (local < n and not fabric["network_flags"]):
        return plain
    traffic = fabric["network_flag_traffic" if local < n else "flag_traffic"]
    return min(plain, flagged_latency + traffic * wire)


def rated(op, size, n, local, fabric):
    """The links of a domain as an exchange finds them, or the one link of a lonely ring."""
    if op in (*EXCHANGES, "send_recv"):
        efficiency = fabric["scale_up_efficiency"] * fabric["exchange_efficiency"]
        rates = fabric["local_exchange_bytes_per_s"]
        return {**fabric, "scale_up_efficiency": efficiency, "local_ring_bytes_per_s": rates}
    listed_rates = list(fabric["local_ring_bytes_per_s"])
    if local < len(listed_rates) and fabric["single_ring_groups"] >> local & 1:
        listed_rates[local] = pair_rate(fabric, local) / fabric["scale_up_efficiency"]
    fabric = {**fabric, "local_ring_bytes_per_s": listed_rates}
    most = fabric["gather_ring_bytes"]
    if most and op in ("all_gather", "reduce_scatter") and local == n and local < len(listed_rates):
        one_ring = 2 * pair_rate(fabric, local) * max(1, size / most)
        slower = min(group_rate(fabric, local), one_ring) / fabric["scale_up_efficiency"]
        listed_rates[local] = slower
    return fabric


def algorithm_times(op, size, n, local, fabric):
    """Time of each algorithm that serves the operation, by its code."""
    times = {}
    for code, algorithm in enumerate(ALGORITHMS):
        ways = [algorithm, direct_whole] if algorithm is direct else [algorithm]
        # With flags the same hops are faster.
        hops = fabric["nic_latency_s"], min(fabric["nic_latency_s"], fabric["nic_flag_latency_s"])
        links = rated(op, size, n, local, fabric)
        terms = [
            tuple(way(op, size, n, local, {**links, "nic_latency_s": each}) for each in hops)
            for way in ways
        ]
        alone = [
            with_protocols(code, op, size, n, local, fabric, plain, flagged[0])
            for plain, flagged in terms
            if plain
        ]
        if alone:
            times[code] = start(n, local, fabric) + min(alone)
    allowed = {code: t for code, t in times.items() if fabric["algorithms"] >> code & 1}
    allowed = allowed or times
    if local == n:
        return unless_asked(op, allowed)
    beyond = {
        code: t
        for code, t in allowed.items()
        if fabric["network_algorithms"] >> code & 1 and (local == 1 or ALGORITHMS[code] is not pat)
    }
    return unless_asked(op, beyond or allowed)


def unless_asked(op, times):
    """Leave out Bruck's reductions, which libraries lack, where anything else may serve."""
    others = {code: t for code, t in times.items() if ALGORITHMS[code] is not bruck}
    return others or times if op in ("all_reduce", "reduce_scatter") else times


def collective_time(op, size, n, local, fabric):
    """Seconds; None where the fabric allows an algorithm that is not in the list."""
    if n == 1 or size == 0:
        return 0.0
    if not 0 <= fabric["algorithms"] < 2 ** len(ALGORITHMS):
        return None
    return min(algorithm_times(op, size, n, local, fabric).values())
