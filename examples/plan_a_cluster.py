"""Plan which cluster trains Llama 3.1 70B on a token target in time, and what a budget changes.

python examples/plan_a_cluster.py [FOLDER]        files go to FOLDER, by default out/

The figure needs the extra `plot` (pip install '.[plot]').
"""

import sys
from pathlib import Path

import projector as pj
from projector.errors import ProjectorError
from projector.report.figures.figure import save_figure
from projector.report.job_file import write_job
from projector.report.plan import plan_figure

MODEL, TOKENS = "llama3.1_70b", "1T"
DEADLINE_DAYS = 30.0
USD_PER_GPU_HOUR = {"h100": 2.50, "mi300x": 2.00}  # ours, not a quote
BUDGET_USD = 500_000.0


def show(plan: pj.PlanResult) -> None:
    """Print the answer, the choices, and what would do where none keeps the limits."""
    print(f"{plan.answer}\n")
    print(" GPUs  device     days     to   GPU-hours         USD  layout")
    for each in plan.listed:
        run = each.run
        print(
            f"{each.gpus:>5,}  {each.label:<7} {run.days:>7.1f} {run.days_high:>6.1f}"
            f" {run.gpu_hours:>11,.0f} {run.cost_usd:>11,.0f}  {each.layout}; {each.remark}"
        )
    for remedy in plan.would_do:
        print(f"Would do: {remedy.text}")
    print()


def main() -> None:
    """Plan by a deadline, then within a budget, and keep the first plan."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
    folder.mkdir(parents=True, exist_ok=True)
    question = {"devices": ["h100", "mi300x"], "usd_per_gpu_hour": USD_PER_GPU_HOUR, "top": 6}

    in_time = pj.project_plan(MODEL, TOKENS, deadline_days=DEADLINE_DAYS, **question)
    show(in_time)
    cheap = pj.project_plan(MODEL, TOKENS, budget_usd=BUDGET_USD, gpus=[256, 512], **question)
    show(cheap)

    save_figure(folder / "plan.png", lambda: plan_figure(in_time))
    print(f"Figure: {folder / 'plan.png'}")
    if in_time.choices:
        write_job(in_time.choices[0].job, folder / "plan.yaml", in_time.answer)
        print(f"Job: {folder / 'plan.yaml'}")


if __name__ == "__main__":
    try:
        main()
    except (ProjectorError, OSError) as error:
        sys.exit(f"error: {error}")
