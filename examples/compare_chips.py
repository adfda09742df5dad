"""Find which part of an H100 is worth most for which workload: matrix rate, memory or links.

python examples/compare_chips.py [FOLDER]         the figure goes to FOLDER, by default out/

The figure needs the extra `plot`, Sobol indices the extra `sensitivity`.
"""

import math
import sys
from pathlib import Path

import projector as pj
from projector.errors import ProjectorError, UnsupportedError
from projector.report.figures.heat_map import write_heat_map
from projector.searches.sensitivity import sensitivity, workloads_of
from projector.searches.sobol import sobol_indices

DEVICE = "cluster.device."
# What makes up each knob; fields of one knob are multiplied together.
KNOBS = {
    "matrix rate": (f"{DEVICE}matrix_flop_per_clk_per_cu.bf16",),
    "HBM rate": (f"{DEVICE}hbm_peak_tb_per_s",),
    "links": (
        f"{DEVICE}scale_up_gb_per_s",
        f"{DEVICE}scale_up_peer_gb_per_s",
        "cluster.network.nic_gbit_per_s",
    ),
}
LINKS_OF_H100 = (450.0, 450.0, 400.0)
FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
AXES = {
    KNOBS["matrix rate"][0]: {"scale": list(FACTORS)},
    KNOBS["HBM rate"][0]: {"scale": list(FACTORS)},
    ", ".join(KNOBS["links"]): [[value * f for value in LINKS_OF_H100] for f in FACTORS],
}


def job(model: str, seq_length: int, nodes: int, **parallelism: int) -> dict[str, object]:
    """Return a job on H100s."""
    return {
        "model": model,
        "parallelism": parallelism,
        "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": seq_length},
        "cluster": {"device": "h100", "nodes": nodes},
    }


WORKLOADS = {
    "Llama 8B, data parallel": job("llama3.1_8b", 8192, 8),
    "Llama 70B, TP 8 PP 4": job("llama3.1_70b", 8192, 8, tp=8, pp=4),
    "Llama 8B, 128 K tokens": job("llama3.1_8b", 131072, 8, tp=2, cp=16),
    "Qwen3 30B-A3B, EP 16": job("qwen3_30b_a3b", 4096, 8, ep=16),
}
CHECKED = "Qwen3 30B-A3B, EP 16"


def slope(rows: list[dict[str, object]], knob: str) -> float:
    """Return the percent of step time that one percent of a knob saves, mean over the matrix.

    The slope of the least squares plane through ln(step) over the logarithms of the knobs; as the
    matrix is complete, each knob has its slope on its own.
    """
    x = [math.log(row[KNOBS[knob][0]]) for row in rows]
    y = [math.log(row["iteration_time_ms"]) for row in rows]
    middle = math.fsum(x) / len(x)
    spread = math.fsum((each - middle) ** 2 for each in x)
    return -math.fsum((a - middle) * b for a, b in zip(x, y, strict=True)) / spread


def main() -> None:
    """Print what each knob is worth, check one workload, draw one map."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
    folder.mkdir(parents=True, exist_ok=True)

    results = {name: pj.sweep({"base": base, "axes": AXES}) for name, base in WORKLOADS.items()}
    print(
        f"{len(FACTORS) ** len(KNOBS)} chips, half to twice an H100 in each of {len(KNOBS)} parts"
    )
    print("Percent of the step that one percent more of a part saves, mean over all chips\n")
    print(f"{'workload':<25}{''.join(f'{knob:>13}' for knob in KNOBS)}  worth most")
    worths = {}
    for name, result in results.items():
        rows = result.to_arrow().to_pylist()
        worths[name] = worth = {knob: slope(rows, knob) for knob in KNOBS}
        best = max(worth, key=lambda knob: worth[knob])
        print(f"{name:<25}{''.join(f'{each:>13.2f}' for each in worth.values())}  {best}")

    # The same question to the tools made for it: at the H100 itself, and over the whole range.
    # Were ln(step) a plane, the share of its variance S1 would be that of the squared slope.
    fields = ["+".join(names) for names in KNOBS.values()]
    effects = {e.field: e for e in sensitivity(WORKLOADS[CHECKED], fields=fields).effects}
    print(f"\n{CHECKED}")
    print(f"{'part':<13}{'at an H100':>12}{'squared share':>15}{'Sobol S1':>10}{'ST':>7}")
    try:
        (workload,) = workloads_of([WORKLOADS[CHECKED]])
        sobol = sobol_indices([workload], fields=fields, factor=max(FACTORS), samples=256)
        indices = {each.field: each for each in sobol.indices}
    except UnsupportedError as error:  # SALib is an extra
        print(f"({error.message})")
        indices = {}
    squares = {knob: each**2 for knob, each in worths[CHECKED].items()}
    for knob, field in zip(KNOBS, fields, strict=True):
        share = squares[knob] / math.fsum(squares.values())
        line = f"{knob:<13}{-effects[field].elasticity:>12.2f}{share:>15.2f}"
        if field in indices:
            line += f"{indices[field].s1:>10.2f}{indices[field].st:>7.2f}"
        print(line)

    figure = folder / "chips.png"
    write_heat_map(results[CHECKED], [KNOBS["matrix rate"][0], KNOBS["links"][2]], figure)
    print(f"\nFigure: {figure}, each cell with the best HBM rate of the matrix")


if __name__ == "__main__":
    try:
        main()
    except (ProjectorError, OSError) as error:
        sys.exit(f"error: {error}")
