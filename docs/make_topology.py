"""Draw the figures of docs/topology.md."""

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from projector.report.figures.cluster import write_cluster_figure
from projector.report.figures.topology import write_node_figure
from projector.topology.build import load_topology
from projector.topology.cluster import build_cluster, load_node

FIGURES = Path(__file__).with_name("figures") / "topology"
COLOURS = 128
NODES = ("mi250x", "mi300x", "h100", "gb200_nvl72")
CLUSTER = ("network.pod_nodes=32", "network.core_pods=8", "network.core_oversubscription=7")


def draw(name: str, write: Callable[[Path], None]) -> None:
    """Write a figure in few colours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.png"
        write(path)
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(FIGURES / f"{name}.png", optimize=True)


def main() -> None:
    """Draw them all."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name in NODES:
        draw(name, lambda path, name=name: write_node_figure(load_topology(name), path))
    cluster = build_cluster(load_node("h100", CLUSTER), 3072)
    draw("cluster", lambda path: write_cluster_figure(cluster, path))


if __name__ == "__main__":
    main()
