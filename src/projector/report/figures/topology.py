"""The drawing of a node: devices around a circle or beside switches, links by tier, adapters."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise, permutations, product
from typing import Any, NamedTuple

from projector.report.figures.figure import (
    FAINT,
    INK,
    PALETTE,
    SOFT,
    Axes,
    Figure,
    head,
    new_figure,
)
from projector.topology.build import Topology
from projector.topology.node import End

# What drawings of nodes share: colours, widths, devices, adapters.
DEVICE_FACE, PACKAGE_FACE, HOST_FACE, NIC_FACE = "#FFFFFF", "#E9EDF1", "#F6E9D2", "#DDEBE4"

NARROWEST, WIDEST, WIDEST_OUTER = 1.2, 6.5, 3.2
"""Line widths in points: of the slowest links, and of the fastest between devices and others."""

MANY_LINKS = 14
"""Links between devices beyond which they are drawn thinner."""

BRIGHT = (PALETTE[0], PALETTE[3], PALETTE[2], PALETTE[5], PALETTE[1], PALETTE[4])

MUTED = ("#A9814B", "#8F8F8F", "#B58AA5", "#6E9C86", "#7C8FB0")

Point = tuple[float, float]


class TierStyle(NamedTuple):
    """How the links of a tier are drawn."""

    colour: str
    width: float


def tier_styles(topology: Topology) -> dict[str, TierStyle]:
    """Return colour and width of each tier: links between devices stand out, others are thin."""
    inner = {link.tier: link.gb_per_s for link in topology.device_links()}
    outer = {link.tier: link.gb_per_s for link in topology.links if link.tier not in inner}
    styles = {}
    thinner = min(1.0, MANY_LINKS / max(1, len(topology.device_links())))
    for tiers, colours, widest, crowd in (
        (inner, BRIGHT, WIDEST, thinner), (outer, MUTED, WIDEST_OUTER, 1.0)
    ):  # fmt: skip
        for place, name in enumerate(sorted(tiers, key=lambda name: -tiers[name])):
            width = max(NARROWEST, widest * math.sqrt(tiers[name] / max(tiers.values())) * crowd)
            styles[name] = TierStyle(colours[place % len(colours)], width)
    return styles


def draw_line(axes: Axes, points: Sequence[Point], style: TierStyle, zorder: float = 2.0) -> None:
    """Draw a line through points in the style of a tier."""
    xs, ys = zip(*points, strict=True)
    axes.plot(
        xs, ys, color=style.colour, lw=style.width, solid_capstyle="round", zorder=zorder, alpha=0.9
    )


def draw_device(axes: Axes, at: Point, radius: float, text: str, points: float) -> None:
    """Draw a device as a box with its number."""
    from matplotlib.patches import FancyBboxPatch

    side = 1.5 * radius
    box = FancyBboxPatch(
        (at[0] - side / 2.0, at[1] - side / 2.0), side, side,
        boxstyle=f"round,pad={0.22 * radius},rounding_size={0.3 * radius}",
        fc=DEVICE_FACE, ec=INK, lw=1.1, zorder=4.0,
    )  # fmt: skip
    axes.add_patch(box)
    axes.text(*at, text, ha="center", va="center", fontsize=points, weight="bold", zorder=5.0)


def draw_adapter(axes: Axes, at: Point, text: str, radius: float, points: float) -> None:
    """Draw an adapter as a small box, its text within it."""
    width, height = 3.0 * radius, 1.7 * radius
    corner = at[0] - width / 2.0, at[1] - height / 2.0
    draw_box(axes, corner, width, height, NIC_FACE, zorder=4.0)
    fitting = min(1.0, 7.0 / len(text))
    axes.text(*at, text, ha="center", va="center", fontsize=points * fitting, zorder=5.0)


def draw_box(
    axes: Axes, corner: Point, width: float, height: float, face: str, *, zorder: float,
    edge: str = SOFT, lw: float = 0.8,
) -> None:  # fmt: skip
    """Draw a rectangle from its lower left corner."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(corner, width, height, fc=face, ec=edge, lw=lw, zorder=zorder))


def adapters(topology: Topology) -> dict[str, tuple[int, ...]]:
    """Return the devices next to adapters, those of the same devices together: ``0``, ``4-7``."""
    together: dict[tuple[int, ...], list[str]] = {}
    for end, members in _hanging(topology, "nic").items():
        together.setdefault(members, []).append(str(end)[3:])
    return {
        names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}": members
        for members, names in together.items()
    }


def _hanging(topology: Topology, kind: str) -> dict[End, tuple[int, ...]]:
    """Return the devices next to each vertex of a kind, such as a NUMA domain."""
    near: dict[End, list[End]] = {vertex.end: [] for vertex in topology.vertices}
    for link in topology.links:
        near[link.a].append(link.b)
        near[link.b].append(link.a)
    found = {}
    for vertex in topology.vertices:
        if vertex.kind == kind:
            ends = near[vertex.end]
            ports = [end for end in ends if str(end).startswith("port")]
            ends = [*ends, *(further for port in ports for further in near[port])]
            found[vertex.end] = tuple(sorted(end for end in ends if isinstance(end, int)))
    return found


def node_figure(topology: Topology) -> Figure:
    """Draw a node: around a circle, or above and below its switch."""
    styles = tier_styles(topology)
    if topology.node.switch is None:
        figure = new_figure(8.8, 6.2)
        axes = figure.subplots()
        draw_circle(axes, topology, styles)
    else:
        figure = draw_rows(topology, styles)
        (axes,) = figure.axes
    axes.set_aspect("equal")
    axes.set_axis_off()
    units = f"{topology.node.unit} 0 to {topology.num_devices - 1}"
    head(figure, topology.node.name, f"{units}; rates of links per direction")
    from matplotlib.lines import Line2D

    handles, labels = [], []
    by_tier = {link.tier: link for link in topology.links}
    for name, style in styles.items():
        link = by_tier[name]
        handles.append(Line2D([], [], color=style.colour, lw=style.width, solid_capstyle="butt"))
        side = f"{link.width} x {link.gb_per_s / link.width:.4g} = " if link.width > 1 else ""
        labels.append(f"{name.replace('_', ' ')}: {side}{link.gb_per_s:.4g} GB/s")
    beside = topology.node.switch is None
    axes.legend(
        handles,
        labels,
        loc="center left" if beside else "upper center",
        bbox_to_anchor=(1.01, 0.5) if beside else (0.5, 0.0),
        ncols=1 if beside else len(labels),
        frameon=False,
        handlelength=2.6 if beside else 1.8,
        labelspacing=0.9,
        columnspacing=1.4,
        fontsize=9.5 if beside else 9.0,
    )
    return figure


# A node with a switch, drawn above and below it.
class Rows(NamedTuple):
    """Where the devices of a switched node stand."""

    places: dict[int, Point]
    side: dict[int, float]
    """1 above the switch, -1 below."""
    width: float


def _rows(topology: Topology) -> Rows:
    per_host = topology.network.gpus_per_node
    hosts = -(-topology.num_devices // per_host)
    above = hosts if hosts <= 2 else -(-hosts // 2)
    places, sides = {}, {}
    gap = 0.35 if hosts > 1 else 0.0
    for number in range(topology.num_devices):
        host, place = divmod(number, per_host)
        side = 1.0 if host < above else -1.0
        column = host % above if above else host
        places[number] = (column * (per_host + gap) + place, side * 1.45)
        sides[number] = side
    return Rows(places, sides, max(x for x, _ in places.values()) + 1.0)


def draw_rows(topology: Topology, styles: dict[str, TierStyle]) -> Figure:
    """Draw the devices of each host beside a bar of switch chips, in one row or two."""
    rows = _rows(topology)
    both = min(rows.side.values()) < 0.0
    inches = min(16.0, max(8.6, 0.95 * rows.width))
    unit = (inches - 0.4) / (rows.width + 0.6)
    top = 3.6 if topology.node.host is not None else 2.2
    low = -top if both else -0.5
    figure = new_figure(inches, unit * (top - low) + 1.2)
    axes = figure.subplots()
    styles = {
        name: TierStyle(style.colour, max(0.8, style.width * min(1.0, 1.6 * unit)))
        for name, style in styles.items()
    }
    _draw_bar(axes, topology, rows, unit)
    switch = topology.node.switch
    assert switch is not None
    for number, (x, y) in rows.places.items():
        draw_line(axes, ((x, y), (x, rows.side[number] * 0.32)), styles[switch.tier], 1.0)
    from matplotlib.patches import FancyArrowPatch

    # Links between devices beside a switch are arcs.
    for link in topology.device_links():
        if isinstance(link.a, int) and isinstance(link.b, int):
            style = styles[link.tier]
            arc = FancyArrowPatch(
                rows.places[link.a], rows.places[link.b], arrowstyle="-", color=style.colour,
                lw=style.width, connectionstyle="arc3,rad=0.25", zorder=1.5,
            )  # fmt: skip
            axes.add_patch(arc)
    _draw_hosts(axes, topology, rows)
    _draw_row_host(axes, topology, rows, styles, unit)
    _draw_row_adapters(axes, topology, rows, styles, unit)
    for number, at in rows.places.items():
        draw_device(axes, at, 0.26, str(number), min(12.0, 22.0 * unit))
    axes.set(xlim=(-0.7, rows.width - 0.3), ylim=(low, top))
    return figure


def _draw_bar(axes: Axes, topology: Topology, rows: Rows, unit: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    switch = topology.node.switch
    assert switch is not None
    left, width = -0.55, rows.width + 0.1
    draw_box(axes, (left, -0.32), width, 0.64, PACKAGE_FACE, zorder=2.0)
    cell = width / switch.chips
    for chip in range(switch.chips):
        box = FancyBboxPatch(
            (left + chip * cell + 0.08, -0.22), cell - 0.16, 0.44,
            boxstyle="round,pad=0,rounding_size=0.06", fc=DEVICE_FACE, ec=INK, lw=0.9, zorder=3.0,
        )  # fmt: skip
        axes.add_patch(box)
        axes.text(
            left + (chip + 0.5) * cell, 0.0, f"{switch.name} {chip}", ha="center", va="center",
            fontsize=min(9.0, 9.0 * cell * unit), zorder=4.0,
        )  # fmt: skip


def _draw_hosts(axes: Axes, topology: Topology, rows: Rows) -> None:
    for group in topology.packages:
        if len(group) > 1:
            xs = [rows.places[number][0] for number in group]
            corner, width = (min(xs) - 0.44, rows.places[group[0]][1] - 0.42), max(xs) - min(xs)
            draw_box(axes, corner, width + 0.88, 0.84, PACKAGE_FACE, lw=0.6, zorder=1.8)
    per_host = topology.network.gpus_per_node
    hosts = -(-topology.num_devices // per_host)
    for host in range(hosts if hosts > 1 else 0):
        numbers = range(host * per_host, min((host + 1) * per_host, topology.num_devices))
        xs = [rows.places[number][0] for number in numbers]
        side = rows.side[numbers[0]]
        low, high = sorted((side * 0.85, side * 3.3))
        corner, width = (min(xs) - 0.58, low), max(xs) - min(xs) + 1.16
        draw_box(axes, corner, width, high - low, "none", edge=FAINT, lw=1.2, zorder=0.4)
        axes.text(
            0.5 * (min(xs) + max(xs)), side * 3.46, f"host {host}", ha="center", va="center",
            fontsize=7.5, color=SOFT,
        )  # fmt: skip


def _draw_row_host(
    axes: Axes, topology: Topology, rows: Rows, styles: dict[str, TierStyle], unit: float
) -> None:
    host = topology.node.host
    if host is None:
        return
    boxes: dict[End, tuple[float, float, float]] = {}
    for end, members in _hanging(topology, "numa").items():
        xs = [rows.places[number][0] for number in members]
        y = rows.side[members[0]] * 3.0
        boxes[end] = min(xs) - 0.4, max(xs) + 0.4, y
        corner, width = (min(xs) - 0.4, y - 0.2), max(xs) - min(xs) + 0.8
        draw_box(axes, corner, width, 0.4, HOST_FACE, zorder=3.0)
        axes.text(
            0.5 * (min(xs) + max(xs)), y, f"NUMA {str(end)[4:]}", ha="center", va="center",
            fontsize=min(9.0, 18.0 * unit), zorder=4.0,
        )  # fmt: skip
        for number in members:
            x, start = rows.places[number]
            draw_line(axes, ((x - 0.16, start), (x - 0.16, y)), styles[host.tier], 1.2)
    if host.between is not None:
        for link in topology.links:
            if link.tier == host.between and link.a in boxes and link.b in boxes:
                _, left, y = boxes[link.a]
                draw_line(axes, ((left, y), (boxes[link.b][0], y)), styles[host.between], 2.0)


def _draw_row_adapters(
    axes: Axes, topology: Topology, rows: Rows, styles: dict[str, TierStyle], unit: float
) -> None:
    if topology.node.adapters is None:
        return
    style = styles[topology.node.adapters.tier]
    for end, members in adapters(topology).items():
        x = sum(rows.places[number][0] for number in members) / len(members) + 0.17
        side = rows.side[members[0]]
        for number in members:
            draw_line(
                axes, ((rows.places[number][0] + 0.17, side * 1.45), (x, side * 2.28)), style, 1.2
            )
        text = end if unit < 0.6 else f"NIC {end}"
        draw_adapter(axes, (x, side * 2.28), text, 0.15, min(8.0, 14.0 * unit))


# A node without a switch, drawn around a circle.
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


def draw_circle(axes: Axes, topology: Topology, styles: dict[str, TierStyle]) -> None:
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


def _draw_packages(axes: Axes, topology: Topology, ring: Ring) -> None:
    beside = {number for members in adapters(topology).values() for number in members}
    for i, group in enumerate(topology.packages):
        if len(group) < 2:
            continue
        low, high = _span(ring, group, 0.62)
        outside, width = 1.0 + 1.55 * ring.radius, 3.1 * ring.radius
        _draw_wedge(axes, (low, high), outside, width, PACKAGE_FACE, 1.0)
        # At one end: links to the host leave from the middle, those to adapters at the other.
        at_end = min(group, key=lambda number: (number in beside, ring.angles[number]))
        outwards = 1.0 if ring.angles[at_end] > 0.5 * (low + high) else -1.0
        angle = ring.angles[at_end] + 0.12 * outwards * ring.step
        _arc_text(axes, angle, 1.0 + 2.0 * ring.radius, f"{topology.node.package} {i}")


def _draw_wedge(
    axes: Axes, span: tuple[float, float], outside: float, width: float, face: str, zorder: float
) -> None:
    from matplotlib.patches import Wedge

    end, begin = (90.0 - math.degrees(angle) for angle in span)
    style: dict[str, Any] = {"width": width, "fc": face, "ec": SOFT, "lw": 0.8, "zorder": zorder}
    axes.add_patch(Wedge((0.0, 0.0), outside, begin, end, **style))


def _span(ring: Ring, group: Sequence[int], margin: float) -> tuple[float, float]:
    angles = [ring.angles[number] for number in group]
    return min(angles) - margin * ring.step, max(angles) + margin * ring.step


def _arc_text(axes: Axes, angle: float, distance: float, text: str, colour: str = SOFT) -> None:
    """Write along the circle, never upside down."""
    turn = -math.degrees(angle) % 360.0
    upright = turn if turn <= 90.0 or turn >= 270.0 else turn - 180.0
    axes.text(
        *polar(angle, distance), text, rotation=upright, ha="center", va="center", fontsize=8.5,
        color=colour, zorder=6.0,
    )  # fmt: skip


def _draw_circle_host(
    axes: Axes, topology: Topology, ring: Ring, styles: dict[str, TierStyle]
) -> None:
    host = topology.node.host
    if host is None:
        return
    inside, outside = 1.68, 1.88
    spans = {}
    for end, members in _hanging(topology, "numa").items():
        low, high = _span(ring, members, 0.42)
        spans[end] = low, high
        _draw_wedge(axes, (low, high), outside, outside - inside, HOST_FACE, 3.0)
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
        # Joined are domains side by side; the legend says that all of a host are.
        linked = {frozenset((link.a, link.b)) for link in topology.links}
        around = sorted(spans, key=lambda end: spans[end][0])
        for one, other in zip(around, (*around[1:], around[0]), strict=True):
            if frozenset((one, other)) in linked:
                low, high = spans[one][1], spans[other][0]
                high += 2.0 * math.pi if high < low else 0.0
                steps = [low + (high - low) * i / 20.0 for i in range(21)]
                draw_line(
                    axes,
                    [polar(angle, 0.5 * (inside + outside)) for angle in steps],
                    styles[host.between],
                    2.0,
                )


def _draw_circle_adapters(
    axes: Axes, topology: Topology, ring: Ring, styles: dict[str, TierStyle]
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
