"""Draw the figures of docs/pictures.md, docs/run.md and docs/hybrid.md."""

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


HYBRID, TRANSFORMER = "nemotron_h_8b", "llama3.1_8b"
LENGTHS = (8192, 16384, 32768, 65536, 131072, 262144)


def write_hybrid(path: Path) -> None:
    """Draw a hybrid model beside a transformer of its size, over the length of a sequence."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 2.9), layout="constrained")
    titles = ("training, tokens/s/GPU", "decoding, ms a token", "held for a sequence, MiB")
    panels = figure.subplots(1, 3)
    for model, label in ((HYBRID, "Nemotron-H-8B"), (TRANSFORMER, "Llama 3.1 8B")):
        curves = zip(*(hybrid_figures(model, length) for length in LENGTHS), strict=True)
        for panel, values in zip(panels, curves, strict=True):
            panel.loglog(LENGTHS, values, marker="o", label=label)
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("tokens of a sequence", fontsize=9)
        panel.set_xticks(LENGTHS, [f"{length // 1024}k" for length in LENGTHS], fontsize=8)
        panel.set_yscale("log", base=2)
        panel.yaxis.set_major_formatter("{x:,g}")
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=150)


def hybrid_figures(model: str, length: int) -> tuple[float, float, float]:
    """Return tokens/s/GPU of a step, ms a token of eight sequences, and MiB of each of them."""
    cp = max(1, length // 32768)
    job = {
        "model": model,
        "parallelism": {"tp": 2, "cp": cp},
        "training": {
            "micro_batch_size": 1,
            "global_batch_size": 8,
            "seq_length": length,
            "recompute": "full",
        },
        "cluster": {"device": "h100", "nodes": max(1, cp // 4)},
    }
    step = projector.project_performance(job)
    served = projector.project_serving(model, "b300", batch=4, context=length, output=512)
    held = float(served.memory.stage_cache_bytes(length).max()) / 2**20
    return step.tokens_per_s_per_gpu, served.to_dict()["tpot_ms"], held


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
    draw("hybrid", write_hybrid)
    rows = projector.sweep(SPACE, workers=1)
    draw("heat_map", lambda path: write_heat_map(rows, ["pp", "tp"], path))


if __name__ == "__main__":
    main()
