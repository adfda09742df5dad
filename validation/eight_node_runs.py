"""Print measured, projected and error of the published eight-node runs; --record stores ours."""

import sys
from pathlib import Path

import yaml

import projector as pj

TABLE = Path(__file__).with_suffix(".yaml")
KEY = "projected_tokens_per_s_per_gpu"


def main() -> None:
    """Project every run of the table."""
    text = TABLE.read_text(encoding="utf-8")
    print(f"{'run':48} {'measured':>9} {'Primus':>8} {'ours':>8} {'error':>7}")
    for run in yaml.safe_load(text):
        ours = pj.project_performance(run["job"]).tokens_per_s_per_gpu
        measured = run["measured_tokens_per_s_per_gpu"]
        primus = run["primus_tokens_per_s_per_gpu"]
        print(
            f"{run['name']:48} {measured:9,} {primus:8,} {ours:8,.0f} {ours / measured - 1:+7.1%}"
        )
        before, after = text.split(f"- name: {run['name']}\n")
        text = before + f"- name: {run['name']}\n" + _set(after, round(ours, 1))
    if "--record" in sys.argv[1:]:
        TABLE.write_text(text, encoding="utf-8")


def _set(text: str, value: float) -> str:
    """Replace the first recorded projection."""
    head, tail = text.split(f"{KEY}: ", 1)
    _, rest = tail.split("\n", 1)
    return f"{head}{KEY}: {value}\n{rest}"


if __name__ == "__main__":
    main()
