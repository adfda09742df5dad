"""Draw the figures of docs/topology.md."""

from functools import partial

from make_pictures import FIGURES, draw

from projector.report.figures.cluster import cluster_figure
from projector.report.figures.figure import save_figure
from projector.report.figures.topology import node_figure
from projector.topology.build import load_topology
from projector.topology.cluster import build_cluster, load_node

COLOURS = 128
NODES = ("mi250x", "mi300x", "h100", "gb200_nvl72")
CLUSTER = ("network.pod_nodes=32", "network.core_pods=8", "network.core_oversubscription=7")


def main() -> None:
    """Draw them all."""
    (FIGURES / "topology").mkdir(parents=True, exist_ok=True)
    for name in NODES:
        topology = load_topology(name)
        draw(f"topology/{name}", partial(save_figure, draw=partial(node_figure, topology)), COLOURS)
    cluster = build_cluster(load_node("h100", CLUSTER), 3072)
    draw("topology/cluster", partial(save_figure, draw=partial(cluster_figure, cluster)), COLOURS)


if __name__ == "__main__":
    main()
