"""Plain-Python collectives: every algorithm walked step by step, one collective at a time.

A fabric is a dict with the fields of a FABRIC record, and may hold the ``layout`` of the group: the
sizes of its domains, how many of them lie in a pod and in a zone (0: all), and whether they stray
over rails. Each function returns the time without the
start, or None where the algorithm does not serve the operation.
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


def ring(op, size, n, local, fabric):
    if op not in (*REDUCING, *ROOTED):
        return None
    chunks = [size] if op in ROOTED else [size / n] * (trips(op) * (n - 1))
    sent = sum(chunks)
    hops = trips(op) * chain_hops(n, local, fabric)
    if local == n:
        return sent / group_rate(fabric, n) + hops
    # One ring per local member, each with an equal part; in each of them one member of the
    # domain sends to the next domain and the others send to a neighbour.
    nic = sent / min(domain_sizes(n, local, fabric)) / chain_rate(fabric)
    near = (local - 1) * (sent / local) / group_rate(fabric, local) if local > 1 else 0.0
    return max(nic, near) + hops


def tree(op, size, n, local, fabric):
    domains = len(domain_sizes(n, local, fabric))
    if domains == 1 or op not in ("all_reduce", *ROOTED):
        return None
    # Two trees carry half of the buffer each. A domain is an inner vertex of at most one.
    half = size / 2
    if op == "all_reduce":
        children = 1 if domains == 2 else 2
        up_as_leaf = half
        up_as_inner = 0.0 if domains == 2 else half
        sent = up_as_leaf + up_as_inner + children * half
    else:
        sent = 2 * half
    nic = sent / (min(domain_sizes(n, local, fabric)) * chain_rate(fabric))
    near = 0.0
    if local > 1:
        near = trips(op) * size * (local - 1) / local / group_rate(fabric, local)
    hops = (local - 1) * fabric["scale_up_latency_s"] + tree_hops(n, local, fabric)
    return max(nic, near) + trips(op) * hops


def halving_doubling(op, size, n, local, fabric):
    if op not in REDUCING:
        return None
    whole = n == 2 ** int(math.log2(n))
    hop = fabric["scale_up_latency_s"]
    if local == n:
        if not whole and op != "all_reduce":
            return None
        core = 2 ** int(math.log2(n))
        total, block, partners = 0.0, size, core
        while partners > 1:
            block /= 2
            total += block / pair_rate(fabric, local) + hop
            partners //= 2
        total *= trips(op)
        if not whole:
            total += 2 * (size / pair_rate(fabric, local) + hop)
        return total
    if not whole or local != 2 ** int(math.log2(local)):
        return None
    if min(domain_sizes(n, local, fabric)) < local:
        return None
    total, block, distance = 0.0, size, 1
    while distance < n:
        block /= 2
        if distance < local:
            total += block / pair_rate(fabric, local) + hop
        else:
            total += block / chain_rate(fabric)
        distance *= 2
    return trips(op) * (total + tree_hops(n, local, fabric))


def bruck(op, size, n, local, fabric):
    if op not in ("all_gather", "all_to_all"):
        return None
    rate, hop = pair_rate(fabric, local), fabric["scale_up_latency_s"]
    if local < n:
        rate = crossing_rate(fabric) if local == 1 else min(rate, crossing_rate(fabric))
        hop = longest_hop(fabric)
    total, distance = 0.0, 1
    while distance < n:
        if op == "all_gather":  # what is held doubles until all is there
            blocks = min(distance, n - distance)
        else:
            blocks = len([block for block in range(n) if block & distance])
        total += blocks * size / n / rate + hop
        distance *= 2
    return total


def direct(op, size, n, local, fabric):
    hop = fabric["scale_up_latency_s"]
    if op == "send_recv":
        if local == 2:
            return size / pair_rate(fabric, local) + hop
        nic = fabric["nic_p2p_bytes_per_s"] or fabric["nic_bytes_per_s"]
        share = uplink_share(lambda senders: 1 / senders, fabric)
        return size / (nic * share) + longest_hop(fabric)
    if local < n:
        return None
    shares = (n - 1) * (size / n) / group_rate(fabric, n)
    if op in ("all_reduce", *ROOTED):
        return min((n - 1) * size / group_rate(fabric, n) + hop, 2 * (shares + hop))
    return shares + hop


def hierarchical(op, size, n, local, fabric):
    if op == "send_recv" or local in (1, n):
        return None
    sizes = domain_sizes(n, local, fabric)
    domains, least, nic = len(sizes), min(sizes), chain_rate(fabric)
    hop = fabric["scale_up_latency_s"]
    far_hops = chain_hops(n, local, fabric) - (n - domains) * hop
    if op in EXCHANGES:
        # One message to each local peer, with its share of all blocks, and one to the peer of
        # the same index in each other domain, with all blocks for that domain.
        within = sum(size / local / group_rate(fabric, local) + hop for _ in range(local - 1))
        across = exchange_far(size, n, local, fabric) + (domains - 1) * hop
        return within + across + longest_hop(fabric)
    if op in ROOTED:
        spread = (local - 1) * size / local / group_rate(fabric, local) + hop
        chain = size / least / nic + far_hops
        return spread + chain + ring("all_gather", size, local, local, fabric)
    within = ring("all_gather", size, local, local, fabric)
    across = trips(op) * ((domains - 1) * (size / least / domains) / nic + far_hops)
    # All-reduce scatters, reduces across and gathers; the others do one of the two.
    return trips(op) * within + across


def in_network(op, size, n, local, fabric):
    if op != "all_reduce" or local < n or n < fabric["in_network_min_gpus"]:
        return None
    if fabric["in_network_bytes_per_s"] == 0:
        return None
    return size / fabric["in_network_bytes_per_s"] + 2 * fabric["scale_up_latency_s"]


def pairwise(op, size, n, local, fabric):
    if op not in EXCHANGES:
        return None
    block = size / n
    near = (local - 1) * block
    issue = (n - 1) * fabric["scale_up_latency_s"]
    if local == n:
        return near / group_rate(fabric, local) + issue
    far_peers = n - min(domain_sizes(n, local, fabric))
    layout = fabric.get("layout", {})
    if not (fabric["forwards"] or fabric["plain_tree"] or layout.get("strays")):
        # Other rails are beyond a spine, as other pods are.
        issue += 0.0 if crosses(fabric, "pod") else fabric["spine_latency_s"]
    if fabric["forwards"] and not fabric["plain_tree"]:
        # All but what goes to the own rail is handed to a local peer first.
        near += far_peers * block * (local - 1) / local
    near_s = near / group_rate(fabric, local) if local > 1 else 0.0
    issue += far_peers * fabric["exchange_peer_s"]
    return max(near_s, exchange_far(size, n, local, fabric)) + issue + longest_hop(fabric)


ALGORITHMS = (
    ring,
    tree,
    halving_doubling,
    bruck,
    direct,
    hierarchical,
    in_network,
    pairwise,
)


def start(n, local, fabric):
    return fabric["start_s"] + (fabric["network_start_s"] if local < n else 0.0)


def self_copy(op, size, n, fabric):
    if op not in (*REDUCING, *EXCHANGES):
        return 0.0
    rate = fabric["scale_up_bytes_per_s"] * fabric["scale_up_efficiency"]
    return fabric["self_copy_share"] * size / n / rate


def algorithm_times(op, size, n, local, fabric):
    """Time of each algorithm that serves the operation, by its code."""
    times = {}
    for code, algorithm in enumerate(ALGORITHMS):
        time_s = algorithm(op, size, n, local, fabric)
        if time_s is not None:
            copy = 0.0 if algorithm is in_network else self_copy(op, size, n, fabric)
            plain = fabric["simple_start_s"] + time_s + copy
            flagged = algorithm(op, 2 * size, n, local, fabric) + 2 * copy
            best = plain if algorithm is in_network else min(plain, flagged)
            times[code] = start(n, local, fabric) + best
    allowed = {code: t for code, t in times.items() if fabric["algorithms"] >> code & 1}
    return allowed or times


def collective_time(op, size, n, local, fabric):
    """Seconds; None where the fabric allows an algorithm that is not in the list."""
    if n == 1 or size == 0:
        return 0.0
    if not 0 <= fabric["algorithms"] < 2 ** len(ALGORITHMS):
        return None
    return min(algorithm_times(op, size, n, local, fabric).values())


def moe_exchange_time(local_bytes, remote_bytes, n, local, fabric):
    if local_bytes == 0 and remote_bytes == 0:
        return 0.0
    domains = len(set(domain_of(n, local)))
    near = local_bytes / group_rate(fabric, local) if local > 1 else 0.0
    far = remote_bytes / fabric["nic_bytes_per_s"] if domains > 1 else 0.0
    hops = fabric["scale_up_latency_s"] if local > 1 else 0.0
    hops += math.ceil(math.log2(domains)) * fabric["nic_latency_s"]
    return start(n, local, fabric) + fabric["simple_start_s"] + hops + max(near, far)
