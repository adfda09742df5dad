"""The drawing of a cluster: hosts, rails, leaf, spine and core switches."""

from itertools import pairwise
from typing import NamedTuple

from projector.report.figures import figure as fig
from projector.topology.cluster import Cluster

MOST_SHOWN = 3
"""Hosts of a pod, pods of a zone and zones that are drawn; dots stand for the others."""

HOST_FACE, LEAF_FACE, SPINE_FACE, CORE_FACE = "#E9EDF1", "#DDEBE4", "#F6E9D2", "#EBDDE6"

HOST_Y, LEAF_Y, SPINE_Y, CORE_Y = 0.0, 2.0, 3.9, 5.4

RAIL, GAP, HOST, HOST_STEP = 0.52, 0.9, 1.2, 1.36
"""Widths of a leaf, of the gap between pods, of a host, and of a host with its gap."""

DOTS = 0.6
"""Width of the mark for hosts that are left out, in hosts."""

RAIL_COLOURS = (*fig.PALETTE, "#8C6D46")


class PodPlace(NamedTuple):
    """Where a pod stands."""

    zone: int
    pod: int
    left: float
    width: float
    hosts: tuple[int, ...]


def cluster_figure(cluster: Cluster) -> fig.Figure:
    """Draw the first and the last pods of a cluster with their first and last hosts."""
    network = cluster.network
    places = pod_places(cluster)
    right = places[-1].left + places[-1].width
    top = CORE_Y if cluster.zones > 1 else SPINE_Y if _has_spine(cluster) else LEAF_Y
    # What stands beside the drawing takes the width of three leaves more.
    width = min(15.0, max(7.5, 0.7 * (right + 3.6)))
    unit = width / (right + 3.6)
    bottom = -0.85 if cluster.pods > 1 else -0.5
    figure = fig.new_figure(width, unit * (top + 0.4 - bottom) + 1.0)
    axes = figure.subplots()
    for place in places:
        _draw_pod(axes, cluster, place, unit)
    if _has_spine(cluster):
        _draw_spines(axes, cluster, places, unit)

    # Where hosts and pods are left out.
    def dots(x: float, y: float) -> None:
        axes.text(x, y, "· · ·", ha="center", va="center", fontsize=13.0, color=fig.SOFT)

    for place in places:
        xs = _host_x(place)
        if len(place.hosts) > 1 and place.hosts[-1] - place.hosts[-2] > 1:
            dots(0.5 * (xs[-1] + xs[-2]), HOST_Y)
    for one, other in pairwise(places):
        if other.pod - one.pod > 1:
            dots(0.5 * (one.left + one.width + other.left), LEAF_Y)
    _draw_rates(axes, cluster, right + 0.5, unit)
    axes.set(xlim=(-0.3, right + 3.3), ylim=(bottom, top + 0.4))
    axes.set_aspect("equal")
    axes.set_axis_off()
    kind = "rail-optimised" if network.rail_optimised else "plain"
    devices = cluster.hosts * network.gpus_per_node
    sizes = [f"{devices:,} {cluster.topology.node.unit}s in {cluster.hosts:,} hosts"]
    sizes += [f"{cluster.pods:,} pods"] if cluster.pods > 1 else []
    sizes += [f"{cluster.zones:,} zones"] if cluster.zones > 1 else []
    fig.head(figure, f"{network.name}, {kind} fat tree", ", ".join(sizes))
    return figure


def _has_spine(cluster: Cluster) -> bool:
    return any(link.tier == "spine" for link in cluster.links)


def _shown(count: int) -> tuple[int, ...]:
    """Return which of several are drawn: all of a few, or the first ones and the last."""
    return tuple(range(count)) if count <= MOST_SHOWN + 1 else (*range(MOST_SHOWN - 1), count - 1)


def _ends(count: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((0, count - 1)))


def pod_places(cluster: Cluster) -> list[PodPlace]:
    """Return the pods that are drawn, from left to right."""
    network = cluster.network
    pod_hosts = min(network.pod_nodes or cluster.hosts, cluster.hosts)
    zone_pods = min(network.core_pods or cluster.pods, cluster.pods)
    rails = network.nics_per_node if network.rail_optimised else 1
    places: list[PodPlace] = []
    left = 0.0
    for zone in _ends(cluster.zones):
        first = zone * zone_pods
        pods = min(zone_pods, cluster.pods - first)
        # Several zones leave room for two pods of each.
        for pod in _shown(pods) if cluster.zones == 1 else _ends(pods):
            begin = (first + pod) * pod_hosts
            end = min(begin + pod_hosts, cluster.hosts)
            hosts = tuple(begin + host for host in _shown(end - begin))
            dots = DOTS if end - begin > len(hosts) else 0.0
            width = max(rails * RAIL, HOST_STEP * (len(hosts) + dots))
            places.append(PodPlace(zone, first + pod, left, width, hosts))
            left += width + GAP
        left += 0.5
    return places


def _host_x(place: PodPlace) -> list[float]:
    """Return the middles of the hosts of a pod, with a gap where some are left out."""
    count = len(place.hosts)
    left_out = count and place.hosts[-1] != place.hosts[0] + count - 1
    slots = count + (DOTS if left_out else 0.0)
    step = place.width / slots
    middles = [place.left + step * (i + 0.5) for i in range(count)]
    if left_out:
        middles[-1] += DOTS * step
    return middles


def _leaf_x(cluster: Cluster, place: PodPlace) -> list[float]:
    rails = cluster.network.nics_per_node if cluster.network.rail_optimised else 1
    step = place.width / rails
    return [place.left + step * (rail + 0.5) for rail in range(rails)]


def _box(
    axes: fig.Axes, x: float, y: float, width: float, height: float, face: str, text: str,
    points: float,
) -> None:  # fmt: skip
    from matplotlib.patches import FancyBboxPatch

    box = FancyBboxPatch(
        (x - width / 2.0, y - height / 2.0), width, height,
        boxstyle="round,pad=0,rounding_size=0.07", fc=face, ec=fig.SOFT, lw=0.9, zorder=3.0,
    )  # fmt: skip
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", fontsize=points, color=fig.INK, zorder=4.0)


def _draw_pod(axes: fig.Axes, cluster: Cluster, place: PodPlace, unit: float) -> None:
    network = cluster.network
    nics = network.nics_per_node
    leaves = _leaf_x(cluster, place)
    points = min(9.0, 17.0 * unit)
    for host, x in zip(place.hosts, _host_x(place), strict=True):
        text = f"host {host:,}"
        fitting = min(points, 108.0 * HOST * unit / len(text))
        _box(axes, x, HOST_Y, HOST, 0.7, HOST_FACE, text, fitting)
        for nic in range(nics):
            at = x + HOST * ((nic + 0.5) / nics - 0.5) * 0.9
            leaf = leaves[nic] if network.rail_optimised else leaves[0]
            # Adapters of one leaf end side by side.
            end = leaf if network.rail_optimised else leaf + 0.75 * (at - leaf)
            axes.plot(
                (at, end), (HOST_Y + 0.35, LEAF_Y - 0.25),
                color=RAIL_COLOURS[nic % len(RAIL_COLOURS)] if network.rail_optimised else fig.SOFT,
                lw=1.3, alpha=0.85, zorder=1.0,
            )  # fmt: skip
    if network.rail_optimised:
        for rail, x in enumerate(leaves):
            step = place.width / len(leaves)
            _box(axes, x, LEAF_Y, 0.82 * step, 0.5, LEAF_FACE, str(rail), min(9.0, 22.0 * unit))
    else:
        _box(axes, leaves[0], LEAF_Y, 0.8 * place.width, 0.5, LEAF_FACE, "leaf switches", points)
    if cluster.pods > 1:
        axes.text(
            place.left + 0.5 * place.width, HOST_Y - 0.62, f"pod {place.pod:,}", ha="center",
            va="center", fontsize=points, color=fig.SOFT,
        )  # fmt: skip


def _draw_spines(axes: fig.Axes, cluster: Cluster, places: list[PodPlace], unit: float) -> None:
    points = min(9.0, 17.0 * unit)
    middles = []
    for zone in dict.fromkeys(place.zone for place in places):
        own = [place for place in places if place.zone == zone]
        left, right = own[0].left, own[-1].left + own[-1].width
        middle = 0.5 * (left + right)
        middles.append(middle)
        width = max(2.4, 0.8 * (right - left))
        name = "spine switches" if cluster.zones == 1 else f"spine switches, zone {zone:,}"
        _box(axes, middle, SPINE_Y, width, 0.5, SPINE_FACE, name, points)
        for place in own:
            for x in _leaf_x(cluster, place):
                share = (x - left) / (right - left)
                end = middle + width * (share - 0.5) * 0.92
                axes.plot(
                    (x, end), (LEAF_Y + 0.25, SPINE_Y - 0.25), color=fig.SOFT, lw=1.6, zorder=1.0
                )
    if cluster.zones > 1:
        middle = 0.5 * (middles[0] + middles[-1])
        width = max(3.0, 0.7 * (middles[-1] - middles[0]))
        _box(axes, middle, CORE_Y, width, 0.5, CORE_FACE, "core switches", points)
        for zone, x in enumerate(middles):
            share = zone / (len(middles) - 1)
            end = middle + width * (share - 0.5) * 0.8
            axes.plot((x, end), (SPINE_Y + 0.25, CORE_Y - 0.25), color=fig.INK, lw=2.2, zorder=1.0)


def _draw_rates(axes: fig.Axes, cluster: Cluster, x: float, unit: float) -> None:
    network = cluster.network
    adapter = cluster.adapter_gb_per_s
    pod_hosts = cluster.parts[0].pods[0].num_hosts
    zone_hosts = cluster.parts[0].num_hosts
    rails = f"{network.nics_per_node} rails, " if network.rail_optimised else ""
    lines = [
        (HOST_Y, f"{network.gpus_per_node} {cluster.topology.node.unit}s a host"),
        (0.5 * (HOST_Y + LEAF_Y), f"{network.nics_per_node} x {adapter:g} GB/s\na host"),
        (LEAF_Y, f"{rails}{pod_hosts:,} hosts a pod"),
    ]
    if _has_spine(cluster):
        text = _rates(pod_hosts * cluster.host_gb_per_s, "pod", network.pod_oversubscription)
        lines.append((0.5 * (LEAF_Y + SPINE_Y), text))
        if cluster.pods > 1:
            lines.append((SPINE_Y, f"{-(-zone_hosts // pod_hosts):,} pods"))
    if cluster.zones > 1:
        text = _rates(zone_hosts * cluster.host_gb_per_s, "zone", network.core_oversubscription)
        lines += [(0.5 * (SPINE_Y + CORE_Y), text), (CORE_Y, f"{cluster.zones:,} zones")]
    for y, text in lines:
        axes.text(
            x, y, text, ha="left", va="center", fontsize=max(7.5, min(9.5, 18.0 * unit)),
            color=fig.INK, linespacing=1.4,
        )  # fmt: skip


def _rates(full_gb_per_s: float, of: str, oversubscription: float) -> str:
    rate = full_gb_per_s / oversubscription
    text = f"{rate / 1000.0:.4g} TB/s" if rate >= 1000.0 else f"{rate:.4g} GB/s"
    taper = "full rate" if oversubscription == 1.0 else f"{oversubscription:g} : 1 tapered"
    return f"{text} a {of}\n{taper}"
