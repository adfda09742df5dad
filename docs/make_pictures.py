"""Draw the figures of docs/pictures.md and docs/run.md."""

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

import projector
from projector.report.figures.heat_map import write_heat_map
from projector.report.figures.interval import write_interval
from projector.report.figures.pareto import write_pareto
from projector.report.figures.roofline import write_roofline

ROOT = Path(__file__).resolve().parents[1]
FIGURES = Path(__file__).with_name("figures")
COLOURS = 224
SPACE = {
    "base": {
        "model": "llama3.1_70b",
        "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 8192},
        "cluster": {"device": "h100", "nodes": 4},
    },
    "axes": {
        "parallelism.tp": [1, 2, 4, 8],
        "parallelism.pp": [1, 2, 4, 5, 8, 10, 16],
        "parallelism.cp": [1, 2],
        "parallelism.zero_stage": [1, 2],
        "training.recompute": ["none", "selective", "full"],
        "training.micro_batch_size": [1, 2, 4],
    },
}
RUN = {
    "run.tokens": 15.6e12,
    "cluster.nodes": 2048,
    "cluster.network": "grand_teton_h100",
    "training.global_batch_size": 2048,
}


def draw(name: str, write: Callable[[Path], None], colours: int = COLOURS) -> None:
    """Write a figure in few colours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.png"
        write(path)
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            few = image.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    few.save(FIGURES / f"{name}.png", optimize=True)


def main() -> None:
    """Draw them all."""
    mixtral = ROOT / "examples" / "mixtral_8x22b_mi355x.yaml"
    llama = ROOT / "examples" / "llama3.1_405b_h100.yaml"
    found = projector.search(str(mixtral), top=1)
    draw("pareto", lambda path: write_pareto(found, path))
    draw("roofline", lambda path: write_roofline(projector.load_job(str(mixtral)), path))
    draw("interval", lambda path: write_interval(projector.load_job(str(llama), RUN), path))
    rows = projector.sweep(SPACE, workers=1)
    draw("heat_map", lambda path: write_heat_map(rows, ["pp", "tp"], path))


if __name__ == "__main__":
    main()
