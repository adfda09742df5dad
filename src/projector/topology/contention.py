"""Rates of flows that share links."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from projector.errors import ConfigError
from projector.topology.graph import Directed
from projector.topology.routes import Route


def fair_rates(
    routes: Sequence[Route],
    capacities: Mapping[Directed, float],
    most_gb_per_s: Sequence[float] | None = None,
) -> list[float]:
    """Return the max-min fair rate of each flow, in GB/s.

    All rates grow alike until a link is full. Its flows stop there, the others grow on (Bertsekas
    and Gallager, Data Networks, 6.5.2).

    Parameters
    ----------
    routes : sequence of Route
        Way of each flow; a flow of one vertex crosses no link.
    capacities : mapping
        GB/s of each link and direction, as `Net.capacities` returns them.
    most_gb_per_s : sequence of float, optional
        What the sender of each flow makes at most; none means that only links bound it.
    """
    most = [float("inf")] * len(routes) if most_gb_per_s is None else list(most_gb_per_s)
    users: dict[Directed, set[int]] = {}
    for flow, route in enumerate(routes):
        for link in pairwise(route.path):
            users.setdefault(link, set()).add(flow)
    unlimited = [
        flow
        for flow, route in enumerate(routes)
        if len(route.path) < 2 and most[flow] == float("inf")
    ]
    if unlimited:
        msg = f"flow {unlimited[0]} crosses no link, so that nothing bounds its rate"
        raise ConfigError(msg, key="flows", value=list(routes[unlimited[0]].path))
    rates = [0.0] * len(routes)
    growing = set(range(len(routes)))
    while growing:
        # What each link has left for each flow that still grows on it.
        shares = {
            link: (capacities[link] - sum(rates[flow] for flow in flows - growing))
            / len(flows & growing)
            for link, flows in users.items()
            if flows & growing
        }
        level = min([*shares.values(), *(most[flow] for flow in growing)])
        full = {link for link, share in shares.items() if share <= level * (1.0 + 1e-12)}
        stopped = {flow for flow in growing if most[flow] <= level}
        stopped |= {flow for link in full for flow in users[link] & growing}
        for flow in stopped:
            rates[flow] = level
        growing -= stopped
    return rates
