"""Published throughput under a load against the simulation of it, by engine.

The rules below were fixed before the first comparison; no constant is taken from these rows. Rows
without lengths (MLPerf) cannot be projected.
"""

import argparse
import csv
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.config.cluster import ClusterConfig
from projector.errors import ProjectorError
from projector.serving.deployment import Deployment
from projector.serving.load import Load, Scheduler
from projector.serving.simulation import LoadResult, simulate_load
from projector.validate.names import device_of, precision_of

TABLE = Path(__file__).parent / "data" / "serving_measured.csv"

TRT_REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (1000, 2000): 1500,
    (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (1000, 1000): 3000,
    (500, 2000): 3000, (20000, 2000): 1000,
}  # fmt: skip
"""Requests by input and output length (TensorRT-LLM v1.0, docs/source/performance/perf-overview.md,
"Preparing a Dataset")."""

ONLINE_REQUESTS = 8
"""Requests of an online row over its concurrency, where the row states none."""


class Case(NamedTuple):
    """A row as the simulation takes it."""

    engine: str
    deployment: Deployment
    load: Load
    scheduler: Scheduler
    quantity: str
    """``tokens_per_s``, ``tpot_ms`` or ``ttft_ms``."""
    measured: float


OLDER = 187
"""Rows of the table whose wording `read` knows; those behind them came later, from other hands."""


def table() -> list[dict[str, str]]:
    """Return these rows."""
    with TABLE.open(newline="", encoding="utf-8") as stream:
        return list(islice(csv.DictReader(stream), OLDER))


def read(row: Mapping[str, str]) -> Case | None:
    """Return a row under a load; None where it is of another kind or states no lengths."""
    phase = row["phase"]
    under_load = phase.startswith(("offline", "serving", "online"))
    if not under_load or not row["input_len"]:
        return None
    framework = row["framework"]
    trt = "TensorRT" in framework
    engine = "TensorRT-LLM" if trt else "vLLM, offline" if "offline" in phase else "vLLM, online"
    lengths = int(row["input_len"]), int(row["output_len"])
    settings: dict[str, Any] = {"input_tokens": lengths[0], "output_tokens": lengths[1]}
    stated = re.search(r"\d+", row["batch_or_concurrency"])
    if trt:
        settings |= {"arrival": "offline", "requests": TRT_REQUESTS[lengths]}
        scheduler = Scheduler(
            max_num_seqs=2048, prompts="whole", admission="whole_sequence", page_tokens=32
        )
    elif "offline" in phase:
        assert stated is not None
        settings |= {"arrival": "offline", "requests": int(stated.group())}
        most = int(stated.group()) if "max seqs" in row["batch_or_concurrency"] else 1024
        scheduler = Scheduler(max_num_seqs=max(1024, most), max_num_batched_tokens=16384)
    else:
        assert stated is not None
        many = int(stated.group())
        prompts = re.search(r"(\d+) prompts", row["notes"])
        requests = int(prompts.group(1)) if prompts else ONLINE_REQUESTS * many
        settings |= {"arrival": "closed", "concurrency": many, "requests": requests, "warm_up": 0}
        scheduler = Scheduler()
    unit = row["unit"]
    quantity = "tokens_per_s"
    if unit.startswith("ms"):
        quantity = "tpot_ms" if "TPOT" in unit else "ttft_ms"
    deployment = _deployment(row, trt, scheduler)
    return Case(engine, deployment, Load.parse(settings), scheduler, quantity, float(row["value"]))


def _deployment(row: Mapping[str, str], trt: bool, scheduler: Scheduler) -> Deployment:
    tp = int(row["tp"])
    precision = row["precision"].lower()
    cluster = ClusterConfig.parse({"device": device_of(row["gpu"])})
    settings: dict[str, Any] = {
        "model": row["model"],
        "cluster": cluster,
        "tp": tp,
        "engine": "tensorrt_llm" if trt else "vllm",
        "max_step_tokens": scheduler.max_num_batched_tokens,
        "max_sequences": scheduler.max_num_seqs,
    }
    if "a16w4" in precision:
        settings |= {"dtype": "bf16", "weights": "mxfp4"}
    else:
        settings["dtype"] = precision_of(precision)
    # The checkpoints of TensorRT-LLM's table have an FP8 cache (recalled, not verified).
    settings["kv_cache_bytes"] = 1 if trt or "kv" in precision else 2
    if trt:
        # "In many cases" 0.95 of what is free, says the page.
        settings["gpu_memory_utilization"] = 0.95
    found = Deployment.parse(settings)
    if trt and found.model.moe is not None and tp > 1:
        # The page runs these with attention data parallelism; we take experts as divided over all.
        found = Deployment.parse(settings | {"tp": 1, "attention_dp": tp, "ep": tp})
    return found


def value_of(quantity: str, result: LoadResult) -> float:
    """Return the quantity of a row."""
    if quantity == "tpot_ms":
        return float(np.nanmean(result.tpot_s)) * 1e3
    if quantity == "ttft_ms":
        return result.percentile_s("ttft", 50) * 1e3
    outputs = float(result.load.output_tokens.mean or 0.0) * result.requests
    return outputs / result.makespan_s


def _line(ratio: float, name: str, row: Mapping[str, str], case: Case, result: LoadResult) -> str:
    lengths = f"{row['input_len']:>6} {row['output_len']:>5}"
    state = f"cache {result.cache_peak:4.2f}  preempted {result.preemptions:5}"
    return (
        f"{ratio:6.2f}  {name:40} {lengths} {case.quantity:12} "
        f"batch {result.mean_batch:6.0f}  {state}  prompts {result.prompt_share:4.2f}"
    )


def main() -> None:
    """Print each row, and the error by engine and by model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument(
        "--without-host", action="store_true", help="leave out the engine's time between steps"
    )
    arguments = parser.parse_args()
    groups: dict[str, list[float]] = defaultdict(list)
    rows = table()
    for row in rows:
        try:
            case = read(row)
            if case is None:
                continue
            deployment = case.deployment
            if arguments.without_host:
                none = {"step_overhead_us": 0.0, "sequence_overhead_us": 0.0}
                deployment = deployment.model_copy(update=none)
            result = simulate_load(deployment, case.load, case.scheduler)
        except ProjectorError as error:
            print(f"not projected: {row['model']} on {row['n_gpus']} {row['gpu']}: {error}")
            continue
        ratio = value_of(case.quantity, result) / case.measured
        name = f"{row['model']} {row['precision'].split()[0]} {row['n_gpus']} x {row['gpu']}"
        offline = "offline" in row["phase"]
        of_rates = case.quantity == "tokens_per_s"
        if of_rates:
            groups[case.engine].append(ratio)
        quantity = "" if of_rates else f", {case.quantity}"
        groups[f"  {case.engine}, {name}{quantity}"].append(ratio)
        if offline and case.engine != "TensorRT-LLM":
            total = 1.0 + int(row["input_len"]) / int(row["output_len"])
            groups[f"{case.engine}, if prompts count"].append(ratio * total)
        if arguments.rows:
            print(_line(ratio, name, row, case, result))
    print(f"{'':60}  rows  median error  p90     median ratio")
    for name, ratios in sorted(groups.items()):
        errors = [abs(ratio - 1.0) for ratio in ratios]
        middle = math.exp(float(np.median(np.log(ratios))))
        print(
            f"{name:60}  {len(ratios):4}  {np.median(errors):11.1%}  "
            f"{np.percentile(errors, 90):6.1%}  {middle:10.2f}"
        )


if __name__ == "__main__":
    main()
