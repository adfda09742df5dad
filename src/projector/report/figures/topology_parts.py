"""What drawings of nodes share: colours, widths, devices, adapters."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from projector.report.figures.figure import INK, PALETTE, SOFT
from projector.topology.build import Topology
from projector.topology.node import End

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """Return a colour and a width for every tier, the fastest between devices first.

    Links between devices stand out; those to the host and to adapters are thin and muted.
    """
    inner = {link.tier: link.gb_per_s for link in topology.device_links()}
    outer = {link.tier: link.gb_per_s for link in topology.links if link.tier not in inner}
    styles = {}
    for tiers, colours, widest in ((inner, BRIGHT, WIDEST), (outer, MUTED, WIDEST_OUTER)):
        crowd = (
            min(1.0, MANY_LINKS / max(1, len(topology.device_links()))) if tiers is inner else 1.0
        )
        for place, name in enumerate(sorted(tiers, key=lambda name: -tiers[name])):
            share = math.sqrt(tiers[name] / max(tiers.values()))
            width = max(NARROWEST, widest * share * crowd)
            styles[name] = TierStyle(colours[place % len(colours)], width)
    return styles


def draw_line(axes: "Axes", points: Sequence[Point], style: TierStyle, zorder: float = 2.0) -> None:
    """Draw a line through points in the style of a tier."""
    xs, ys = zip(*points, strict=True)
    axes.plot(
        xs, ys, color=style.colour, lw=style.width, solid_capstyle="round", zorder=zorder, alpha=0.9
    )


def draw_device(axes: "Axes", at: Point, radius: float, text: str, points: float) -> None:
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


def draw_adapter(axes: "Axes", at: Point, text: str, radius: float, points: float) -> None:
    """Draw an adapter as a small box, its text within it."""
    from matplotlib.patches import Rectangle

    width, height = 3.0 * radius, 1.7 * radius
    axes.add_patch(
        Rectangle(
            (at[0] - width / 2.0, at[1] - height / 2.0),
            width,
            height,
            fc=NIC_FACE,
            ec=SOFT,
            lw=0.8,
            zorder=4.0,
        )
    )
    fitting = min(1.0, 7.0 / len(text))
    axes.text(*at, text, ha="center", va="center", fontsize=points * fitting, zorder=5.0)


def domains(topology: Topology) -> dict[End, tuple[int, ...]]:
    """Return the devices of each NUMA domain."""
    return _hanging(topology, "numa")


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
