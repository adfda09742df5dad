"""Print published and projected steps of reinforcement learning; --record stores ours.

It writes their band into ``hardware/uncertainty.yaml`` too: plain quantiles, as nothing was fitted.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import projector as pj
from projector.config.model_file import load_model

TABLE = Path(__file__).with_suffix(".csv")
BANDS = Path(__file__).resolve().parents[1] / "hardware" / "uncertainty.yaml"
QUANTILES = {"low_68": 0.16, "high_68": 0.84, "low_90": 0.05, "high_90": 0.95}


def step_of(row: dict[str, str]) -> dict[str, Any]:
    """Return the step of a row; docs/rl.md says what its recipes leave open."""
    gpus, node = int(row["gpus"]), int(row["gpus_per_node"])
    late = row["policy"] == "1-step off"
    generating = gpus // 2 if late else gpus
    tp, cp, ep, pp = (int(row[f"train_{name}"]) for name in ("tp", "cp", "ep", "pp"))
    layout = {"decoder_first_pipeline_num_layers": row["first_layers"]}
    layout["decoder_last_pipeline_num_layers"] = row["last_layers"]
    split: dict[str, Any] = {"tp": tp, "cp": cp, "ep": ep, "etp": 1, "pp": pp}
    split |= {name: int(value) for name, value in layout.items() if value}
    most, prompt = int(row["max_tokens"]), int(row["prompt_tokens"])
    return {
        "training": {
            "model": row["model"],
            "parallelism": split,
            "training": {
                "micro_batch_size": 1,
                "global_batch_size": int(row["train_batch"]),
                "seq_length": most,
                "recompute": row["recompute"],
            },
            "cluster": {
                "device": row["device"],
                "nodes": (gpus - generating * late) // node,
            },
        },
        "rollout": {
            "tp": int(row["rollout_tp"]),
            "engine": row["engine"],
            "gpu_memory_utilization": 0.8 if late else 0.6,
        },
        "responses": {
            "prompts": int(row["prompts"]),
            "group": int(row["responses"]) // int(row["prompts"]),
            "prompt_tokens": prompt,
            "tokens": {
                "kind": "lognormal",
                "mean": float(row["mean_tokens"]) - prompt,
                "high": most - prompt,
            },
        },
        "placement": "apart" if late else "colocated",
        "rollout_gpus": generating,
        "staleness": int(late),
    }


def read_rows() -> list[dict[str, str]]:
    """Return the rows of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Project every step of the table."""
    rows = read_rows()
    for row in rows:
        found = pj.project_rl(step_of(row))
        row["projected_s"] = f"{found.step_s:.1f}"
        row["first_s"] = row["first_s"] or row["projected_s"]
        told = " ".join(f"{name} {value:.1f}" for name, value in found.phases_s.items())
        print(
            f"{row['release']} {row['model']:14} {row['device']:6} {row['gpus']:>4} "
            f"{row['policy']:10} {float(row['step_s']):7.1f} {found.step_s:7.1f} "
            f"{found.step_s / float(row['step_s']):5.2f}  {found.verdict}  {told}"
        )
    ratios = np.array([float(row["step_s"]) / float(row["projected_s"]) for row in rows])
    print(f"{len(rows)} steps, median {np.median(1.0 / ratios):.2f}")
    if "--record" in sys.argv[1:]:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        record(rows, ratios)


def record(rows: list[dict[str, str]], ratios: Any) -> None:
    """Write the bands of all steps, of dense models and of mixtures of experts."""
    text = BANDS.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    models = {row["model"]: load_model(row["model"]) for row in rows}
    experts = np.array([models[row["model"]].moe is not None for row in rows])
    content["rl"] = {
        name: {key: round(float(np.quantile(part, level)), 3) for key, level in QUANTILES.items()}
        | {"runs": len(part), "sources": 1}
        for name, part in (("all", ratios), ("dense", ratios[~experts]), ("moe", ratios[experts]))
    }
    head = text[: text.index("anchored:")]
    body = yaml.safe_dump(content, sort_keys=True, default_flow_style=None, width=100)
    BANDS.write_text(head + body, encoding="utf-8")


if __name__ == "__main__":
    main()
