"""A node without a switch, drawn around a circle."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise, permutations, product
from typing import TYPE_CHECKING, NamedTuple

from projector.report.figures.figure import INK, SOFT
from projector.report.figures.topology_parts import (
    HOST_FACE,
    PACKAGE_FACE,
    Point,
    TierStyle,
    adapters,
    domains,
    draw_adapter,
    draw_device,
    draw_line,
)
from projector.topology.build import Topology
from projector.topology.node import End

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ARRANGED = 5
"""Packages of which every order is looked at."""


class Ring(NamedTuple):
    """Where things stand around the circle of a node without a switch."""

    angles: dict[int, float]
    """Of each device, in radians, clockwise from the top."""
    radius: float
    """Half the size of a device; the devices stand on a circle of radius 1."""
    step: float
    """Angle between two devices of a package."""

    def at(self, number: int, distance: float = 1.0, turn: float = 0.0) -> Point:
        """Return the point at a distance from the centre, next to a device."""
        return polar(self.angles[number] + turn, distance)


def polar(angle: float, distance: float) -> Point:
    """Return a point; angles run clockwise from the top."""
    return distance * math.sin(angle), distance * math.cos(angle)


def draw_circle(axes: "Axes", topology: Topology, styles: dict[str, TierStyle]) -> None:
    """Draw devices around a circle, links as chords, host memory and adapters outside."""
    ring = _ring(topology)
    for link in topology.device_links():
        assert isinstance(link.a, int)
        assert isinstance(link.b, int)
        draw_line(axes, (ring.at(link.a), ring.at(link.b)), styles[link.tier])
    _draw_packages(axes, topology, ring)
    for number in ring.angles:
        draw_device(axes, ring.at(number), ring.radius, str(number), min(12.0, 75.0 * ring.radius))
    _draw_circle_host(axes, topology, ring, styles)
    _draw_circle_adapters(axes, topology, ring, styles)
    reach = 1.92 if topology.node.host is not None else 1.4
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach))


def _ring(topology: Topology) -> Ring:
    """Return angles: packages in the order in which fewest links cross, the widest short."""
    order = arranged(topology)
    groups = {number: i for i, group in enumerate(topology.packages) for number in group}
    gap = 0.6 if len(topology.packages) < topology.num_devices else 0.0
    turns = [
        1.0 + (gap if groups[a] != groups[b] else 0.0) for a, b in pairwise((*order, order[0]))
    ]
    step = 2.0 * math.pi / sum(turns)
    angles, angle = {}, 0.0
    for number, turn in zip(order, turns, strict=True):
        angles[number] = angle
        angle += turn * step
    # The first package stands at the top, in the middle.
    first = topology.packages[groups[order[0]]]
    shift = sum(angles[number] for number in first) / len(first)
    angles = {number: angle - shift for number, angle in angles.items()}
    return Ring(angles, min(0.17, 0.36 * step), step)


def arranged(topology: Topology) -> tuple[int, ...]:
    """Return the devices in the order around the circle."""
    groups = topology.packages
    links = [(link.a, link.b, link.gb_per_s) for link in topology.device_links()]
    natural = tuple(number for group in groups for number in group)
    if len({rate for *_, rate in links}) == 1 or len(groups) > MOST_ARRANGED:
        return natural
    best, least = natural, (math.inf, math.inf)
    for rest in permutations(groups[1:]):
        for flips in product((False, True), repeat=len(groups)):
            turned = zip((groups[0], *rest), flips, strict=True)
            order = [n for group, flip in turned for n in (reversed(group) if flip else group)]
            cost = _disorder(order, links)
            if cost < least:
                best, least = tuple(order), cost
    return best


def _disorder(order: list[int], links: list[tuple[End, End, float]]) -> tuple[float, float]:
    """Return how many links cross, and their length, wide ones counting more."""
    place = {number: i for i, number in enumerate(order)}
    chords = [sorted((place[a], place[b])) for a, b, _ in links]  # type: ignore[index]  # devices
    crossed = sum(a < c < b < d or c < a < d < b for (a, b), (c, d) in combinations(chords, 2))
    length = sum(
        rate * math.sin(math.pi * (b - a) / len(order))
        for (a, b), (*_, rate) in zip(chords, links, strict=True)
    )
    return float(crossed), length


def _draw_packages(axes: "Axes", topology: Topology, ring: Ring) -> None:
    from matplotlib.patches import Wedge

    beside = {number for members in adapters(topology).values() for number in members}
    for i, group in enumerate(topology.packages):
        if len(group) < 2:
            continue
        low, high = _span(ring, group, 0.62)
        wedge = Wedge(
            (0.0, 0.0), 1.0 + 1.55 * ring.radius, 90.0 - math.degrees(high),
            90.0 - math.degrees(low), width=3.1 * ring.radius, fc=PACKAGE_FACE, ec=SOFT, lw=0.8,
            zorder=1.0,
        )  # fmt: skip
        axes.add_patch(wedge)
        # At one end: links to the host leave from the middle, those to adapters at the other.
        at_end = min(group, key=lambda number: (number in beside, ring.angles[number]))
        outwards = 1.0 if ring.angles[at_end] > 0.5 * (low + high) else -1.0
        angle = ring.angles[at_end] + 0.12 * outwards * ring.step
        _arc_text(axes, angle, 1.0 + 2.0 * ring.radius, f"{topology.node.package} {i}")


def _span(ring: Ring, group: Sequence[int], margin: float) -> tuple[float, float]:
    angles = [ring.angles[number] for number in group]
    return min(angles) - margin * ring.step, max(angles) + margin * ring.step


def _arc_text(axes: "Axes", angle: float, distance: float, text: str, colour: str = SOFT) -> None:
    """Write along the circle, never upside down."""
    turn = -math.degrees(angle) % 360.0
    upright = turn if turn <= 90.0 or turn >= 270.0 else turn - 180.0
    axes.text(
        *polar(angle, distance), text, rotation=upright, ha="center", va="center", fontsize=8.5,
        color=colour, zorder=6.0,
    )  # fmt: skip


def _draw_circle_host(
    axes: "Axes", topology: Topology, ring: Ring, styles: dict[str, TierStyle]
) -> None:
    from matplotlib.patches import Wedge

    host = topology.node.host
    if host is None:
        return
    inside, outside = 1.68, 1.88
    spans = {}
    for end, members in domains(topology).items():
        low, high = _span(ring, members, 0.42)
        spans[end] = low, high
        wedge = Wedge(
            (0.0, 0.0), outside, 90.0 - math.degrees(high), 90.0 - math.degrees(low),
            width=outside - inside, fc=HOST_FACE, ec=SOFT, lw=0.8, zorder=3.0,
        )  # fmt: skip
        axes.add_patch(wedge)
        middle = 0.5 * (low + high)
        _arc_text(axes, middle, 0.5 * (inside + outside), f"NUMA {str(end)[4:]}", INK)
        if host.port is None:
            for number in members:
                draw_line(axes, (ring.at(number), ring.at(number, inside)), styles[host.tier], 0.5)
            continue
        port = polar(middle, 1.5)
        for number in members:
            draw_line(axes, (ring.at(number), port), styles[host.tier], 0.5)
        draw_line(axes, (port, polar(middle, inside)), styles[host.port], 0.6)
        axes.plot(*port, "o", ms=6.0, color=styles[host.port].colour, zorder=3.0)
    if host.between is not None:
        _draw_between(axes, topology, spans, styles[host.between], 0.5 * (inside + outside))


def _draw_between(
    axes: "Axes",
    topology: Topology,
    spans: dict[End, tuple[float, float]],
    style: TierStyle,
    distance: float,
) -> None:
    """Join domains that stand side by side; the legend says that all of a host are joined."""
    linked = {
        frozenset((link.a, link.b))
        for link in topology.links
        if link.a in spans and link.b in spans
    }
    around = sorted(spans, key=lambda end: spans[end][0])
    for one, other in zip(around, (*around[1:], around[0]), strict=True):
        if frozenset((one, other)) in linked:
            low, high = spans[one][1], spans[other][0]
            high += 2.0 * math.pi if high < low else 0.0
            steps = [low + (high - low) * i / 20.0 for i in range(21)]
            draw_line(axes, [polar(angle, distance) for angle in steps], style, 2.0)


def _draw_circle_adapters(
    axes: "Axes", topology: Topology, ring: Ring, styles: dict[str, TierStyle]
) -> None:
    if topology.node.adapters is None:
        return
    style = styles[topology.node.adapters.tier]
    groups = {number: group for group in topology.packages for number in group}
    for end, members in adapters(topology).items():
        number = members[0]
        # Away from the middle of the package, where the links to the host are.
        middle = sum(ring.angles[each] for each in groups[number]) / len(groups[number])
        side = 1.0 if ring.angles[number] >= middle else -1.0
        at = ring.at(number, 1.46, side * min(0.3 * ring.step, 0.2))
        for member in members:
            draw_line(axes, (ring.at(member), at), style, 0.6)
        radius = min(0.085, 0.55 * ring.radius)
        draw_adapter(axes, at, f"NIC {end}", radius, min(7.5, 88.0 * radius))
