"""AIConfigurator beside ours on rows of serving; --record writes docs/serving.md and a table.

Usage: ``aiconfigurator.py PYTHON [--each N] [--record]``, where PYTHON is one that has the package
``aiconfigurator`` (0.12.0; its measured database lies in the wheel of ``aiconfigurator-core``).

The rows, by a rule that knows no result: those that our reader takes (`why_not_eligible`), of a
device, engine and model of its database, with lengths of their own, neither speculative nor with
prefill and decode apart (of these it searches batches itself). Of each of `GROUPS` N, at even steps
in the order of the table. A row that either tool refuses counts for none.

Both get what the reader makes of a row: split, types, lengths as stated, concurrency. Where the
most load is measured, ours simulates the requests and AIConfigurator takes the best of the largest
batches that fit, with the engine's limits for both. Its database has one release of each engine,
hardly ever that of the row. Types of experts in MXFP4 are those of its checkpoint.
"""

import argparse
import csv
import json
import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.config import bands
from projector.errors import ProjectorError
from projector.serving.generation import Generation
from projector.serving.load import Load
from projector.validate.kind import Outcome, Row, Without
from projector.validate.names import source_of
from projector.validate.run import without
from projector.validate.serving import (
    Case,
    Shared,
    phase_of,
    project,
    project_without,
    read_case,
    why_not_eligible,
)
from projector.validate.serving_loads import is_decode_alone, number_in, reported, stated

HERE = Path(__file__).resolve().parent
TABLE = HERE / "data" / "serving_measured.csv"
FOUND = HERE / "aiconfigurator.csv"
PAGE = HERE.parent / "docs" / "serving.md"
BEGIN, END = "<!-- aiconfigurator: begin -->\n", "<!-- aiconfigurator: end -->\n"

SYSTEMS = {
    "NVIDIA A100 SXM 80GB": "a100_sxm",
    "NVIDIA H100 SXM 80GB": "h100_sxm",
    "NVIDIA H200 SXM": "h200_sxm",
    "NVIDIA B200 SXM": "b200_sxm",
    "NVIDIA GB200": "gb200",
}
ENGINES = {
    "tensorrt_llm": "trtllm", "sglang": "sglang", "vllm": "vllm", "vllm_async": "vllm",
}  # fmt: skip
MODELS = {
    "Llama-3-70B": "meta-llama/Meta-Llama-3.1-70B",
    "Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "Llama-3.3-70B": "meta-llama/Meta-Llama-3.1-70B",
    "Llama-3.1-405B": "meta-llama/Meta-Llama-3.1-405B",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
    "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "Qwen3.5-397B-A17B": "Qwen/Qwen3.5-397B-A17B",
    "Llama-4-Scout-17B-16E": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "MiniMax-M2": "MiniMaxAI/MiniMax-M2.5",
    "gpt-oss-120b": "openai/gpt-oss-120b",
}
"""Our name of a model -> a configuration of its package with the same extents."""
TYPES = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
}

GROUPS = (
    "dense, most load",
    "dense, concurrency: tokens and rates",
    "dense, concurrency: first tokens",
    "experts, most load",
    "experts, concurrency: tokens and rates",
    "experts, concurrency: first tokens",
)
OWN = "silicon_sample.csv"
"""In the source of a row: a sample that its repository compares itself with."""


class Point(NamedTuple):
    """A row that both tools are asked for."""

    line: int
    row: Row
    case: Case
    group: str


class Told(NamedTuple):
    """What is said of a point: its tool's answer, ours, ours without the source of the row."""

    found: dict[str, Any]
    ours: Outcome
    apart: Outcome

    @property
    def refused(self) -> str:
        """Why one of the tools says nothing."""
        return str(self.found.get("error") or ("" if self.ours.ratio else self.ours.status))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("--each", type=int, help="rows of each group, at even steps; default: all")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    points = _chosen(given.each)
    asked = json.dumps([_asked(point) for point in points])
    # -P: this folder has a module of the package's name.
    ran = subprocess.run(  # noqa: S603  # the user names the interpreter
        [given.python, "-P", str(HERE / "aiconfigurator_side.py")],
        input=asked, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    rows = [point.row for point in points]
    sources = [source_of(row["source"]) for row in rows]
    constants = [without("serving", name) or Without(name, {}) for name in sources]
    both = zip(json.loads(ran.stdout), project(rows), project_without(rows, constants), strict=True)
    pairs = [(point, Told(*told)) for point, told in zip(points, both, strict=True)]
    text = "\n".join(_page(pairs)) + "\n"
    print(text)
    for point, told in pairs:
        if told.refused:
            print(f"line {point.line}: {told.refused}")
    if given.record:
        _write(pairs)
        page = PAGE.read_text(encoding="utf-8")
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}{text}{END}{rest.split(END)[1]}", encoding="utf-8")


def _chosen(each: int | None) -> list[Point]:
    """Return the rows that both are asked for, in the order of the table."""
    shared = Shared()
    found: dict[str, list[Point]] = {name: [] for name in GROUPS}
    with TABLE.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        for row in reader:
            if why_not_eligible(row) or not _is_taken(row):
                continue
            try:
                case = read_case(row, shared, Without("", {}))
            except (ValueError, ProjectorError):
                continue
            if _is_known(case):
                group = _group(row, case)
                found[group].append(Point(reader.line_num, row, case, group))
    return [
        rows[index * len(rows) // count]
        for rows in found.values()
        for count in [min(each or len(rows), len(rows))]
        for index in range(count)
    ]


def _is_known(case: Case) -> bool:
    """Whether its database has the device, the engine and the model."""
    of = case.deployment
    is_engine = of.cluster.device.name in SYSTEMS and of.engine in ENGINES
    return is_engine and of.model.name in MODELS


def _is_taken(row: Row) -> bool:
    """Whether a row has lengths and a layout that its tool is asked for as they are."""
    notes = stated(row)
    is_apart = "disaggregated" in notes and not is_decode_alone(row)
    is_spec = notes.get("speculative", "none") != "none"
    return not (is_apart or is_spec or "MLPerf" in row["phase"]) and bool(row["output_len"].strip())


def _group(row: Row, case: Case) -> str:
    kind = "experts" if case.deployment.model.moe is not None else "dense"
    if isinstance(case.work, Load) and case.work.arrival == "offline":
        return f"{kind}, most load"
    first = phase_of(row) == bands.FIRST
    return f"{kind}, concurrency: {'first tokens' if first else 'tokens and rates'}"


def _asked(point: Point) -> dict[str, Any]:
    """Return the arguments of its ``cli_estimate``; ``most`` asks for the best of batches."""
    row, case = point.row, point.case
    of, engine = case.deployment, ENGINES[case.deployment.engine]
    asked: dict[str, Any] = {
        "model_path": MODELS[of.model.name],
        "system_name": SYSTEMS[of.cluster.device.name],
        "backend_name": engine,
        "isl": int(number_in(row["input_len"])),
        "osl": int(number_in(row["output_len"])),
        "tp_size": of.tp, "pp_size": of.pp, "attention_dp_size": of.attention_dp,
        "kvcache_quant_mode": "fp8" if of.kv_cache_bytes == 1 else "bfloat16",
    }  # fmt: skip
    if of.dtype in TYPES and of.weights is None:
        asked["gemm_quant_mode"] = TYPES[of.dtype]
    if of.model.moe is not None:
        asked |= {"moe_tp_size": of.expert_tp, "moe_ep_size": of.ep}
        if "gemm_quant_mode" in asked:
            asked["moe_quant_mode"] = asked["gemm_quant_mode"]
        if of.narrow_layers != "all":
            asked["gemm_quant_mode"] = "bfloat16"
    if engine == "trtllm" and isinstance(case.work, Load):
        asked["free_gpu_memory_fraction"] = of.gpu_memory_utilization
    if isinstance(case.work, Generation):
        asked["mode"] = "static_gen" if case.is_decode_alone else "static"
        return asked | {"batch_size": math.ceil(case.work.batch / of.attention_dp)}
    if case.work.arrival == "offline":
        limits = case.scheduler.max_num_seqs, case.scheduler.max_num_batched_tokens
        return asked | {"most": dict(zip(("batch", "tokens"), limits, strict=True))}
    return asked | {"batch_size": math.ceil(case.work.concurrency / of.attention_dp)}


def _value(point: Point, found: dict[str, Any]) -> float:
    """Return what its tool says, in the unit of the row."""
    row, case = point.row, point.case
    what = reported(row["unit"])
    if what.quantity in {"ttft", "tpot"}:
        return float(found[what.quantity])
    if what.quantity == "e2e":
        return float(found["request_latency"])
    if what.quantity == "user":
        return number_in(row["output_len"]) / float(found["request_latency"]) * 1e3
    gpus = 1 if what.per_gpu else case.deployment.gpus * case.replicas
    rate = float(found["tokens/s/gpu"]) * gpus
    prompt, output = number_in(row["input_len"]), number_in(row["output_len"])
    return (
        rate
        * {"output": 1.0, "input": prompt / output, "all": 1.0 + prompt / output}[what.quantity]
    )


Pair = tuple[Point, Told]


def _ratios(pair: Pair) -> tuple[float, ...]:
    """Return projected over measured values: its tool's, ours, ours without the source."""
    point, told = pair
    said = _value(point, told.found) / point.case.measured
    return said, float(told.ours.ratio or 0.0), float(told.apart.ratio or 0.0)


def _page(pairs: Sequence[Pair]) -> list[str]:
    """Return the lines of the table: errors of the rows that both project."""
    lines = [
        "| rows | asked | both | AIConfigurator | ours | ours, source left out |",
        "|---|---|---|---|---|---|",
    ]
    wholes = {
        "all": "",
        "dense": "dense",
        "experts": "experts",
        **dict(zip(GROUPS, GROUPS, strict=True)),
    }
    for name, begin in wholes.items():
        lines.append(_line(name, [pair for pair in pairs if pair[0].group.startswith(begin)]))
    own = [pair for pair in pairs if OWN in pair[0].row["source"]]
    lines.append(_line("samples of AIConfigurator's repository", own))
    lines.append(_line("all others", [pair for pair in pairs if pair not in own]))
    known = [pair for pair in pairs if not pair[1].refused]
    releases = sorted(
        {f"{_asked(of)['backend_name']} {told.found['release']}" for of, told in known}
    )
    return [*lines, "", f"Releases in its database: {', '.join(releases)}."]


def _line(name: str, pairs: Sequence[Pair]) -> str:
    known = np.array([_ratios(pair) for pair in pairs if not pair[1].refused]).reshape(-1, 3)
    errors = np.abs(known - 1.0) * 100.0
    cells = [
        f"{np.median(column):.1f} / {np.percentile(column, 90):.1f}" if len(known) else ""
        for column in errors.T
    ]
    return f"| {name} | {len(pairs)} | {len(known)} | {' | '.join(cells)} |"


def _write(pairs: Sequence[Pair]) -> None:
    with FOUND.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((
            "line", "group", "model", "gpu", "engine", "unit", "measured",
            "aiconfigurator", "ours", "ours_left_out", "refused",
        ))  # fmt: skip
        for pair in pairs:
            point, told = pair
            row, measured = point.row, point.case.measured
            head = (point.line, point.group, row["model"], row["gpu"], row["engine"], row["unit"])
            values = (
                ["", "", ""] if told.refused else [f"{r * measured:.5g}" for r in _ratios(pair)]
            )
            writer.writerow((*head, f"{measured:.6g}", *values, told.refused))


if __name__ == "__main__":
    main()
