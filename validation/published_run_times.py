"""Print published and projected time of whole training runs; --record stores ours."""

import sys
from pathlib import Path

import yaml

import projector as pj

TABLE = Path(__file__).with_suffix(".yaml")
KEY = "projected"


def main() -> None:
    """Project every run of the table."""
    text = TABLE.read_text(encoding="utf-8")
    print(f"{'run':30} {'measure':9} {'published':>11} {'ours':>11} {'ratio':>6} {'days':>6} band")
    for run in yaml.safe_load(text):
        step = pj.project_performance(run["job"])
        ours = step.run
        value = getattr(ours, run["measure"])
        print(
            f"{run['name']:30} {run['measure']:9} {run['published']:11,.0f} {value:11,.0f} "
            f"{value / run['published']:6.2f} {ours.days:6.1f} "
            f"{ours.days_low:.1f} to {ours.days_high:.1f}; goodput {ours.goodput:.3f}, "
            f"{ours.failures:.0f} failures, {step.tflops_per_gpu:.0f} TFLOP/s/GPU, "
            f"fits: {step.memory.fits}"
        )
        text = _recorded(text, run["name"], float(f"{value:.4g}"))
    if "--record" in sys.argv[1:]:
        TABLE.write_text(text, encoding="utf-8")


def _recorded(text: str, name: str, value: float) -> str:
    """Put our value behind the published one of a run."""
    before, after = text.split(f"- name: {name}\n")
    head, tail = after.split("  published: ", 1)
    published, rest = tail.split("\n", 1)
    if rest.startswith(f"  {KEY}: "):
        rest = rest.split("\n", 1)[1]
    line = f"  published: {published}\n  {KEY}: {value:g}\n"
    return f"{before}- name: {name}\n{head}{line}{rest}"


if __name__ == "__main__":
    main()
