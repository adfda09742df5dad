"""The drawing of a node: devices by package, links by tier, host memory and adapters."""

from pathlib import Path
from typing import TYPE_CHECKING

from projector.report.figures.figure import head, new_figure, save_figure
from projector.report.figures.topology_circle import draw_circle
from projector.report.figures.topology_parts import TierStyle, tier_styles
from projector.report.figures.topology_rows import draw_rows
from projector.topology.build import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_node_figure(topology: Topology, path: str | Path) -> None:
    """Draw a node; the file appears whole or not at all."""
    save_figure(path, lambda: node_figure(topology))


def node_figure(topology: Topology) -> "Figure":
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
    _draw_legend(axes, topology, styles)
    return figure


def _draw_legend(axes: "Axes", topology: Topology, styles: dict[str, TierStyle]) -> None:
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
