"""Plan how many H100 nodes, in which layout, train Llama 3.1 70B on a token target in time.

python examples/plan_a_cluster.py [FOLDER]        figures go to FOLDER, by default out/

Figures need the extra `plot` (pip install '.[plot]').
"""

import sys
from pathlib import Path

import projector as pj
from projector.report.figures.pareto import write_pareto
from projector.report.figures.scaling import write_scaling

TARGET_TOKENS = 1.0e12
DEADLINE_DAYS = 30.0
USEFUL_SHARE = 0.92  # of the days; the rest goes to restarts, checkpoints and evaluation

# One step sees 8.4 M tokens whatever the cluster, so that every row trains the same model.
JOB = {
    "model": "llama3.1_70b",
    "training": {"micro_batch_size": 1, "global_batch_size": 1024, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 16},
}
SPACE = {
    "base": JOB,
    "axes": {
        "cluster.nodes": [16, 32, 64, 128, 256],
        "parallelism.tp": [1, 2, 4, 8],
        "parallelism.pp, parallelism.vpp": [[1, 1], [2, 1], [4, 1], [4, 5], [8, 1], [8, 5]],
        "parallelism.cp": [1, 2],
        "parallelism.zero_stage": [1, 3],
        "training.micro_batch_size": [1, 2, 4],
        "training.recompute": ["none", "selective", "full"],
    },
    "constraints": ["microbatches >= 1 and microbatches % 1 == 0"],
}
STEPS = TARGET_TOKENS / (JOB["training"]["global_batch_size"] * JOB["training"]["seq_length"])


def days(step_s: float) -> float:
    """Return the days until the target, for one step that takes ``step_s``."""
    return STEPS * step_s / 86_400.0 / USEFUL_SHARE


def main() -> None:
    """Print the plan and draw it."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
    folder.mkdir(parents=True, exist_ok=True)

    result = pj.sweep(SPACE)
    print(f"{result.rows:,} jobs in {result.seconds:.1f} s, {result.does_not_fit:,} do not fit\n")

    # No row of this front is beaten in both GPUs and time: the fastest layout of each size.
    print(" GPUs  layout                                  ms/step  tokens/s/GPU  peak GiB   days")
    front = result.pareto({"gpus": "min", "iteration_time_ms": "min"}).to_pylist()
    for row in front:
        degrees = {name: row[f"parallelism.{name}"] for name in ("tp", "pp", "vpp", "cp", "dp")}
        layout = " ".join(f"{name}{value}" for name, value in degrees.items() if value > 1)
        layout += f" zero{row['parallelism.zero_stage']}"
        layout += f" mbs{row['training.micro_batch_size']} {row['training.recompute']}"
        step_ms, rate = row["iteration_time_ms"], row["tokens_per_s_per_gpu"]
        print(
            f"{row['gpus']:>5,}  {layout:<38} {step_ms:>8,.0f} {rate:>13,.0f}"
            f" {row['peak_gib']:>9.1f} {days(step_ms / 1e3):>6.1f}"
        )
    in_time = [row for row in front if days(row["iteration_time_ms"] / 1e3) <= DEADLINE_DAYS]
    if not in_time:
        sys.exit(f"no cluster of this space is done in {DEADLINE_DAYS:g} days")
    chosen = min(in_time, key=lambda row: row["gpus"])
    nodes = chosen["cluster.nodes"]

    # The space above is what we thought of; the search tries every legal layout of this size.
    found = pj.search(JOB, nodes=nodes, top=1)
    best = found.configurations[0]
    print(
        f"\nSmallest in time: {nodes} nodes. All {found.evaluated:,} legal layouts of it: the best "
        f"takes {days(best.iteration_time_s):.1f} days.\n"
    )
    print("What it costs to leave more memory free\n\nfree GiB  tokens/s/GPU   days  layout")
    for least_free_gib in (0, 15, 30, 45):
        roomy = [e for e in found.configurations if e.headroom_bytes >= least_free_gib * 2**30]
        if not roomy:
            break
        each = roomy[0]  # ranked: the fastest with so much free
        step = pj.project_performance(pj.load_job(found.job, each.overrides))
        degrees = " ".join(f"{name}{value}" for name, value in step.degrees.items() if value > 1)
        training = step.job.training
        print(
            f"{each.headroom_bytes / 2**30:>8.1f} {step.tokens_per_s_per_gpu:>13,.0f}"
            f" {days(each.iteration_time_s):>6.1f}  {degrees} mbs{training.micro_batch_size}"
            f" {training.recompute.granularity} {step.schedule}"
        )
    write_scaling(result, folder / "scaling.png")
    write_pareto(found, folder / "pareto.png")
    print(f"\nFigures: {folder / 'scaling.png'}, {folder / 'pareto.png'}")


if __name__ == "__main__":
    main()
