"""A node with a switch, drawn above and below it."""

from typing import TYPE_CHECKING, NamedTuple

from projector.report.figures.figure import FAINT, INK, SOFT, figure_of, new_figure
from projector.report.figures.topology_parts import (
    DEVICE_FACE,
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
    from matplotlib.figure import Figure


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


def draw_rows(topology: Topology, styles: dict[str, TierStyle]) -> "Figure":
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
        side = rows.side[number]
        draw_line(axes, ((x, y), (x, side * 0.32)), styles[switch.tier], 1.0)
    _draw_direct(axes, topology, rows, styles)
    _draw_hosts(axes, topology, rows)
    _draw_row_host(axes, topology, rows, styles, unit)
    _draw_row_adapters(axes, topology, rows, styles, unit)
    for number, at in rows.places.items():
        draw_device(axes, at, 0.26, str(number), min(12.0, 22.0 * unit))
    axes.set(xlim=(-0.7, rows.width - 0.3), ylim=(low, top))
    assert figure_of(axes) is figure
    return figure


def _draw_bar(axes: "Axes", topology: Topology, rows: Rows, unit: float) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    switch = topology.node.switch
    assert switch is not None
    left, width = -0.55, rows.width + 0.1
    axes.add_patch(
        Rectangle((left, -0.32), width, 0.64, fc=PACKAGE_FACE, ec=SOFT, lw=0.8, zorder=2.0)
    )
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


def _draw_direct(
    axes: "Axes", topology: Topology, rows: Rows, styles: dict[str, TierStyle]
) -> None:
    """Draw links between devices beside a switch as arcs."""
    from matplotlib.patches import FancyArrowPatch

    for link in topology.device_links():
        if isinstance(link.a, int) and isinstance(link.b, int):
            style = styles[link.tier]
            arc = FancyArrowPatch(
                rows.places[link.a], rows.places[link.b], arrowstyle="-", color=style.colour,
                lw=style.width, connectionstyle="arc3,rad=0.25", zorder=1.5,
            )  # fmt: skip
            axes.add_patch(arc)


def _draw_hosts(axes: "Axes", topology: Topology, rows: Rows) -> None:
    """Frame the devices of each host, and of each package in it."""
    from matplotlib.patches import Rectangle

    for group in topology.packages:
        if len(group) > 1:
            xs = [rows.places[number][0] for number in group]
            y = rows.places[group[0]][1]
            axes.add_patch(
                Rectangle(
                    (min(xs) - 0.44, y - 0.42),
                    max(xs) - min(xs) + 0.88,
                    0.84,
                    fc=PACKAGE_FACE,
                    ec=SOFT,
                    lw=0.6,
                    zorder=1.8,
                )
            )
    per_host = topology.network.gpus_per_node
    hosts = -(-topology.num_devices // per_host)
    for host in range(hosts if hosts > 1 else 0):
        numbers = range(host * per_host, min((host + 1) * per_host, topology.num_devices))
        xs = [rows.places[number][0] for number in numbers]
        side = rows.side[numbers[0]]
        low, high = sorted((side * 0.85, side * 3.3))
        axes.add_patch(
            Rectangle(
                (min(xs) - 0.58, low),
                max(xs) - min(xs) + 1.16,
                high - low,
                fc="none",
                ec=FAINT,
                lw=1.2,
                zorder=0.4,
            )
        )
        axes.text(
            0.5 * (min(xs) + max(xs)), side * 3.46, f"host {host}", ha="center", va="center",
            fontsize=7.5, color=SOFT,
        )  # fmt: skip


def _draw_row_host(
    axes: "Axes", topology: Topology, rows: Rows, styles: dict[str, TierStyle], unit: float
) -> None:
    from matplotlib.patches import Rectangle

    host = topology.node.host
    if host is None:
        return
    boxes: dict[End, tuple[float, float, float]] = {}
    for end, members in domains(topology).items():
        xs = [rows.places[number][0] for number in members]
        side = rows.side[members[0]]
        y = side * 3.0
        boxes[end] = min(xs) - 0.4, max(xs) + 0.4, y
        axes.add_patch(
            Rectangle(
                (min(xs) - 0.4, y - 0.2),
                max(xs) - min(xs) + 0.8,
                0.4,
                fc=HOST_FACE,
                ec=SOFT,
                lw=0.8,
                zorder=3.0,
            )
        )
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
                right = boxes[link.b][0]
                draw_line(axes, ((left, y), (right, y)), styles[host.between], 2.0)


def _draw_row_adapters(
    axes: "Axes", topology: Topology, rows: Rows, styles: dict[str, TierStyle], unit: float
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
