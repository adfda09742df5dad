"""What collectives among the first devices of an irregular node can move.

Nodes whose devices are all joined alike need none of this: a ring through a full mesh or a switch
uses all links of every device.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise, permutations, product
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats
from projector.topology.build import Directed, Link, Net, Topology, Vertex, net_of
from projector.topology.node import End
from projector.topology.routes import find_routes

MOST_MEMBERS = 16
"""Longest group for which rates are listed."""

MOST_PERMUTED = 8
"""Members up to which every order of a ring is looked at; beyond it, `MOST_SEARCHES` are made."""

MOST_RINGS = 600
"""Rings from which the best mix is made."""

MOST_WAYS = 4
"""Equal ways between two members that are looked at."""

MOST_SEARCHES, MOST_STEPS = 200, 2000
"""Searches for a ring among many members, and steps of each."""

Ring = tuple[tuple[End, ...], ...]
"""The way of each step of a ring."""


class LocalRates(NamedTuple):
    """GB/s of one member and direction, by the number of members; 0 where nothing is listed."""

    ring_gb_per_s: Floats
    """float64[MOST_MEMBERS + 1]: all rings together, through the members in their best orders."""
    pair_gb_per_s: Floats
    """float64[MOST_MEMBERS + 1]: the slowest pair of members, alone on its widest route."""
    exchange_gb_per_s: Floats
    """float64[MOST_MEMBERS + 1]: what a member sends to all others while all of them do."""


def local_rates(topology: Topology) -> LocalRates:
    """Return what rings, pairs and exchanges of the first devices of a node reach.

    A ring goes through every member once. Steps between neighbours use their link; others are
    forwarded over the fewest links. The library runs several rings side by side, each on its share
    of the links. The best shares are those of a linear programme over all rings with the fewest
    forwarded steps: the largest sum of shares for which no link carries more than it can. RCCL
    searches for the same, and ships the two rings that result for MI250X (``rome_model_73``).

    A regular node has zeros: the closed form of a mesh or switch holds for it.
    """
    if is_regular(topology):
        nothing = np.zeros(MOST_MEMBERS + 1)
        return LocalRates(nothing, nothing, nothing)
    links = topology.device_links()
    # Shares do not depend on the unit, so that a sweep over rates searches once.
    unit = max(link.gb_per_s for link in links)
    edges = tuple((link.a, link.b, link.gb_per_s / unit) for link in links)
    return LocalRates(*(unit * rates for rates in _shares(topology.num_devices, edges)))


def is_regular(topology: Topology) -> bool:
    """Whether every device has the same links to every other: one switch, or a full equal mesh."""
    links = topology.device_links()
    if len({(link.gb_per_s, link.latency_us) for link in links}) > 1:
        return False
    count = topology.num_devices
    mesh = count * (count - 1) // 2
    return len(links) == (mesh if topology.node.switch is None else count)


@lru_cache(maxsize=64)
def _shares(count: int, edges: tuple[tuple[End, End, float], ...]) -> LocalRates:
    """Return the rates in units of the widest link."""
    ends = dict.fromkeys([*range(count), *(end for a, b, _ in edges for end in (a, b))])
    vertices = [Vertex(end, "device" if isinstance(end, int) else "switch", 0) for end in ends]
    net = net_of(vertices, [Link(a, b, "", 1, rate, 0.0) for a, b, rate in edges])
    capacities = net.capacities()
    most = min(count, MOST_MEMBERS)
    wide = [find_routes(net, member) for member in range(most)]
    near = {a: {b for b in range(most) if b in net.near[a]} for a in range(most)}
    widths = {(a, b): wide[a][b].gb_per_s for a, b in permutations(range(most), 2)}
    widest = _widest_ways(net, most, widths)
    ways = _ways(net, most)
    ring, pair, exchange = (np.zeros(MOST_MEMBERS + 1) for _ in range(3))
    for n in range(2, most + 1):
        pair[n] = min(widths[step] for step in permutations(range(n), 2))
        loads = _exchange_loads(widest, n)
        exchange[n] = (n - 1) * min(capacities[link] / load for link, load in loads.items())
        ring[n] = _ring_share(n, near, ways, capacities)
    return LocalRates(ring, pair, exchange)


def _widest_ways(
    net: Net, most: int, widths: dict[tuple[int, int], float]
) -> dict[tuple[int, int], list[tuple[End, ...]]]:
    """Return, for each pair, its widest ways over the fewest links."""
    found: dict[tuple[int, int], list[tuple[End, ...]]] = {}
    for width in set(widths.values()):
        near = {
            end: {b: link for b, link in links.items() if link.gb_per_s >= width}
            for end, links in net.near.items()
        }
        ways = _ways(Net(net.kinds, near), most)
        found |= {step: ways[step] for step, own in widths.items() if own == width}
    return found


def _exchange_loads(
    ways: dict[tuple[int, int], list[tuple[End, ...]]], n: int
) -> dict[Directed, float]:
    """Return how many flows of an exchange cross each link, spread over equal ways evenly."""
    loads: dict[Directed, float] = {}
    for step in permutations(range(n), 2):
        for path in ways[step]:
            for link in pairwise(path):
                loads[link] = loads.get(link, 0.0) + 1.0 / len(ways[step])
    return loads


def _ways(net: Net, n: int) -> dict[tuple[int, int], list[tuple[End, ...]]]:
    """Return the ways from each member to each other over the fewest links, in order."""
    ways: dict[tuple[int, int], list[tuple[End, ...]]] = {}
    for a in range(n):
        paths: dict[End, list[tuple[End, ...]]] = {a: [(a,)]}
        edge: list[End] = [a]
        while edge:
            further: dict[End, list[tuple[End, ...]]] = {}
            for end in edge:
                for neighbour in net.near[end]:
                    if neighbour not in paths:
                        known = further.setdefault(neighbour, [])
                        known += [(*path, neighbour) for path in paths[end]][:MOST_WAYS]
            paths |= further
            edge = list(further)
        ways |= {(a, b): paths[b][:MOST_WAYS] for b in range(n) if b != a and b in paths}
    return ways


def _ring_share(
    n: int,
    near: dict[int, set[int]],
    ways: dict[tuple[int, int], list[tuple[End, ...]]],
    capacities: dict[Directed, float],
) -> float:
    """Return the largest sum of shares of rings through the first ``n`` devices."""
    rings = _rings(n, near, ways)
    links = sorted(capacities, key=str)
    rows = {link: row for row, link in enumerate(links)}
    loads = np.zeros((len(links), len(rings)))
    for column, ring in enumerate(rings):
        for path in ring:
            for link in pairwise(path):
                loads[rows[link], column] += 1.0
    return largest_sum(loads, np.array([capacities[link] for link in links]))


def largest_sum(loads: Floats, limits: Floats) -> float:
    """Return the largest sum of non-negative shares x for which ``loads @ x <= limits``.

    ``loads`` says how often a ring crosses a link, ``float64[links, rings]``, and every ring
    crosses some; ``limits`` what a link can carry, at least 0.
    """
    # Where all devices are joined alike, nothing is to be solved, and nothing imported.
    from scipy.optimize import linprog  # type: ignore[import-untyped,unused-ignore]

    found = linprog(np.full(loads.shape[1], -1.0), A_ub=loads, b_ub=limits, method="highs")
    return float(-found.fun)


def _rings(
    n: int, near: dict[int, set[int]], ways: dict[tuple[int, int], list[tuple[End, ...]]]
) -> list[Ring]:
    """Return directed rings through the first ``n`` devices with the fewest forwarded steps."""
    orders = list(_orders(n, near))
    forwarded = [sum(b not in near[a] for a, b in _steps(order)) for order in orders]
    fewest = min(forwarded)
    rings: list[Ring] = []
    for order, steps in zip(orders, forwarded, strict=True):
        if steps == fewest:
            rings += islice(product(*(ways[step] for step in _steps(order))), MOST_RINGS)
        if len(rings) > MOST_RINGS:
            break
    return rings[:MOST_RINGS]


def _steps(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(order, (*order[1:], order[0]), strict=True)


def _orders(n: int, near: dict[int, set[int]]) -> Iterator[tuple[int, ...]]:
    """Yield orders of a ring: all of few members, many of neighbours alone among more."""
    if n <= MOST_PERMUTED:
        for rest in permutations(range(1, n)):
            yield (0, *rest)
        return
    found = set()
    for search in range(MOST_SEARCHES):
        order = _neighbouring(n, near, search)
        if order is not None:
            # Both ways round, so that the links of one ring are used in both directions.
            found |= {order, (order[0], *reversed(order[1:]))}
    yield from sorted(found)
    if not found:
        yield tuple(range(n))


def _neighbouring(n: int, near: dict[int, set[int]], search: int) -> tuple[int, ...] | None:
    """Return a ring of neighbours, or none if a search finds none, by varied orders of links."""

    def shuffled(a: int) -> Iterator[int]:
        inside = (b for b in near[a] if b < n)
        return iter(sorted(inside, key=lambda b: ((a + 1) * (b + 3) * (search + 7) * 7919) % 1009))

    order, stack = [0], [shuffled(0)]
    for _ in range(MOST_STEPS):
        following = next(stack[-1], None)
        if following is None:
            stack.pop()
            order.pop()
            if not stack:
                return None
        elif following not in order:
            order.append(following)
            if len(order) == n and 0 in near[following]:
                return tuple(order)
            stack.append(shuffled(following))
    return None
