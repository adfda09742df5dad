"""Give emitted files to the parsers of the programs that they are for.

    python validation/check_emitted.py [--python PYTHON] [--checker COMMAND] [--json FILE] [JOB ...]

Every job of `JOBS` is written in every format and given to the parser of its program, where this
Python (or another one) can import it; otherwise it is said what to install. `upstream_parsers.py`
asks the parsers. Another checker is a command that takes the name of a program and a file,
``--capability N`` (Megatron: compute capability of the device) or ``--ranks N`` (DeepSpeed:
data-parallel ranks). It ends with 0 if the program's own parser accepts the file, and its last line
begins with ``accepted`` or ``refused``. A line ``accepted PROGRAM: {...}`` may hold values that the
program has parsed: those that `EXPECTED` knows are compared with the job's.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

H100_2 = {"device": "h100", "nodes": 2}
H100_8 = {"device": "h100", "nodes": 8}
H100_16 = {"device": "h100", "nodes": 16}
STEP = {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096}


def _job(
    model: Any, split: Mapping[str, Any], cluster: Mapping[str, Any], **training: Any
) -> dict[str, Any]:
    return {
        "model": model,
        "parallelism": dict(split),
        "training": {**STEP, **training},
        "cluster": dict(cluster),
    }


def _fp8(recipe: str) -> dict[str, Any]:
    return _job("llama3.1_8b", {"tp": 2}, H100_2, precision="fp8", fp8_recipe=recipe)


B200 = {"device": "b200", "nodes": 2}
JOBS: dict[str, dict[str, Any]] = {
    "dense": _job("llama3.1_8b", {"tp": 2}, H100_2),
    "dense TP 8 PP 4 VPP 5": _job("llama3.1_70b", {"tp": 8, "pp": 4, "vpp": 5}, H100_8),
    "dense, Blackwell, CP 2": _job("llama3.1_70b", {"tp": 4, "cp": 2, "pp": 2}, B200),
    "CP 4 by all-to-all": _job("llama3.1_8b", {"cp": 4, "cp_comm_type": "a2a"}, H100_2),
    "tied embeddings": _job("llama3.2_1b", {}, H100_2),
    "learned positions": _job("gpt3_1.3b", {"tp": 2}, H100_2, seq_length=2048),
    "biases": _job("qwen2.5_7b", {"tp": 4}, H100_2),
    "norms of heads": _job("qwen3_8b", {"tp": 2, "pp": 2}, H100_2),
    "windows": _job("mistral_7b_v0.1", {"tp": 2}, H100_2),
    "sandwich norms": _job("gemma3_27b", {"tp": 8}, H100_2),
    "partial rotation": _job("glm4_9b", {"tp": 2}, H100_2),
    "squared ReLU": _job("nemotron4_15b", {"tp": 8}, H100_2),
    "experts": _job("mixtral_8x7b", {"ep": 8, "pp": 2}, H100_2),
    "experts, TP 2, CP 2": _job("qwen3_30b_a3b", {"tp": 2, "cp": 2, "ep": 8, "etp": 1}, H100_2),
    "experts, biases, sinks": _job("gpt_oss_20b", {"ep": 8}, H100_2),
    "experts, one visited": _job("llama4_scout", {"ep": 16, "tp": 2, "etp": 1}, H100_8),
    "MLA": _job("deepseek_v2_lite", {"ep": 8}, H100_2),
    "MLA, groups, uneven stages": _job("deepseek_v3", {"pp": 8, "ep": 16}, H100_16),
    "MLA, one group": _job("kimi_k2", {"pp": 8, "ep": 16}, H100_16),
    "MLA, MTP": _job({"extends": "deepseek_v3", "mtp_num_layers": 1}, {"pp": 16, "ep": 8}, H100_16),
    "FP8 delayed": _fp8("delayed"),
    "FP8 tensorwise": _fp8("tensorwise"),
    "FP8 rowwise": _fp8("rowwise"),
    "FP8 blockwise": _fp8("blockwise"),
    "MXFP8": _job("llama3.1_8b", {"tp": 2}, B200, precision="mxfp8"),
    "NVFP4": _job("llama3.1_8b", {"tp": 2}, B200, precision="nvfp4"),
    "FSDP 2": _job("llama3.1_8b", {"fsdp": 2}, H100_2),
    "FSDP 2, TP 2": _job("llama3.1_70b", {"fsdp": 2, "tp": 2}, H100_8),
    "FSDP 2, tied": _job("llama3.2_3b", {"fsdp": 2}, H100_2),
    "FSDP 1": _job("llama3.1_8b", {"fsdp": 1}, H100_2),
    "ZeRO 3": _job("llama3.1_8b", {"zero_stage": 3}, H100_2),
    "ZeRO 2, TP 2": _job("llama3.1_8b", {"zero_stage": 2, "tp": 2}, H100_2),
    "uneven stages": _job("llama3.1_8b", {"pp": 4, "tp": 2}, {"device": "h100", "nodes": 4})
    | {"model": {"extends": "llama3.1_8b", "num_layers": 30}},
    "stages by a layout": _job(
        "llama3.1_8b",
        {"pp": 2, "vpp": 2, "pipeline_model_parallel_layout": "Et*7|t*9|t*9|t*7L"},
        H100_2,
    ),
    "recomputation": _job("llama3.1_8b", {"tp": 2}, H100_2, recompute="full"),
    "DeepEP": _job("deepseek_v3", {"pp": 16, "ep": 8}, H100_16, moe={"dispatcher": "deepep"}),
    "zero bubble": _job("llama3.1_8b", {"pp": 4}, H100_2, schedule="zerobubble"),
    "LoRA": _job("llama3.1_8b", {"tp": 2}, H100_2, adapter="lora"),
    "hybrid, Mamba-1": _job("jamba_v0.1", {}, H100_2),
    "hybrid, Mamba-2": _job("nemotron_h_8b", {"tp": 2, "pp": 2, "vpp": 2}, H100_2),
    "hybrid, experts": _job("nemotron3_super_120b_a12b", {"pp": 4, "ep": 8}, H100_8),
    "hybrid, MLA": _job("zebra_llama_1b", {"pp": 3}, {"device": "h100", "nodes": 3}),
    "hybrid, gated delta net": _job("qwen3_next_80b_a3b", {"tp": 2, "ep": 8, "etp": 1}, H100_8),
    "hybrid, Kimi's delta": _job("kda_300m", {}, H100_2),
    "sparse attention": _job("deepseek_v3.2", {"pp": 8, "ep": 16}, H100_16),
    "impossible layout": _job("llama3.1_8b", {"tp": 3}, H100_2),
}
"""Jobs of every kind."""


def _count(model: Any, name: str) -> Any:
    return None if model.moe is None else getattr(model.moe, name)


EXPECTED: dict[str, Callable[[Any], Any]] = {
    "dp": lambda job: (
        job.cluster.gpus // (job.parallelism.tp * job.parallelism.pp * job.parallelism.cp)
    ),
    "layers": lambda job: job.model.num_layers,
    "hidden": lambda job: job.model.hidden_size,
    "heads": lambda job: job.model.num_attention_heads,
    "query_groups": lambda job: job.model.query_groups,
    "experts": lambda job: _count(job.model, "num_experts"),
    "topk": lambda job: _count(job.model, "router_topk"),
    "groups": lambda job: _count(job.model, "num_groups"),
    "router": lambda job: _count(job.model, "router_score_function"),
    "scaling": lambda job: _count(job.model, "router_scaling_factor"),
    "rotary_base": lambda job: job.model.rotary_base,
    "norm_epsilon": lambda job: job.model.norm_epsilon,
    "one_plus": lambda job: job.model.zero_centered_norms,
    "unrotated": lambda job: job.model.num_layers // (job.model.no_rope_freq or 1 << 30),
    "stage": lambda job: job.parallelism.sharding_stage,
    "train_batch": lambda job: job.training.global_batch_size,
    "micro": lambda job: job.training.micro_batch_size,
    "pp": lambda job: job.parallelism.pp,
}
"""Value that a checker may report -> the same of a job; None and 0 expect nothing."""

BAD = {"refused upstream", "other values", "not checked"}
FORMATS = ("megatron", "primus", "torchtitan", "deepspeed")


def check(name: str, data: Mapping[str, Any], kind: str, checker: list[str]) -> dict[str, Any]:
    """Write one job in one format and give the file to its program."""
    from projector import emit_job, load_job
    from projector.errors import ProjectorError

    row: dict[str, Any] = {"job": name, "format": kind}
    try:
        job = load_job(data)
        emitted = emit_job(job, kind)
    except ProjectorError as error:
        return row | {"outcome": "refused by us", "why": str(error)}
    row["carried"] = sorted(emitted.carried)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"job{emitted.suffix}")
        file.write_text(emitted.text, encoding="utf-8")
        further = {
            "megatron": ["--capability", str(_capability(job))],
            "deepspeed": ["--ranks", str(EXPECTED["dp"](job))],
        }.get(kind, [])
        done = subprocess.run(  # noqa: S603  # the user's own command
            [*checker, kind, str(file), *further], capture_output=True, text=True, check=False
        )
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:] or [""]
    if not said[0].startswith(("accepted", "refused")):
        # A checker that breaks has judged nothing.
        return row | {"outcome": "not checked", "why": said[0]}
    if done.returncode:
        return row | {"outcome": "refused upstream", "why": said[0]}
    _, brace, values = said[0].partition("{")
    parsed = json.loads(brace + values) if brace else {}
    differing = {
        key: (value, wanted)
        for key, value in parsed.items()
        if key in EXPECTED and (wanted := EXPECTED[key](job)) not in {None, 0}
        if value != wanted
    }
    outcome = "other values" if differing else "accepted"
    return row | {"outcome": outcome, "why": str(differing or ""), "parsed": parsed}


def _capability(job: Any) -> int:
    """Return the major compute capability that Megatron asks the device for."""
    return 10 if job.cluster.device.architecture == "blackwell" else 9


def main() -> int:
    """Print the table of outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", help="names of jobs, all if none")
    parser.add_argument("--python", default=sys.executable, help="the Python of the programs")
    parser.add_argument("--checker", help="another command that checks a file")
    parser.add_argument("--json", help="a file for the rows")
    parser.add_argument("--format", action="append", choices=FORMATS)
    chosen = parser.parse_args()
    own = [chosen.python, str(Path(__file__).with_name("upstream_parsers.py"))]
    checker = shlex.split(chosen.checker) if chosen.checker else own
    rows = []
    for name in chosen.jobs or JOBS:
        for kind in chosen.format or FORMATS:
            rows.append(check(name, JOBS[name], kind, checker))
            print("{job:28} {format:11} {outcome:16} {why:.220}".format(**rows[-1]), flush=True)
    print()
    for kind in chosen.format or FORMATS:
        found = [row["outcome"] for row in rows if row["format"] == kind]
        print(f"{kind:11}", {each: found.count(each) for each in sorted(set(found))})
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(rows, indent=1))
    return any(row["outcome"] in BAD for row in rows)


if __name__ == "__main__":
    sys.exit(main())
