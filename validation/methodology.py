"""Compute every row of the Roofline methodology; --record writes the table of docs/first_order.md.

A first-order value comes from `projector.first_order`, a tile value from our own memory, step and
serving models. The rows themselves are facts (methodology_rows.yaml).
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import projector as pj
from projector.config.first_order_job import load_first_order_job
from projector.config.model_file import load_model
from projector.first_order import serving as first_order_serving
from projector.first_order.equations import (
    Constants,
    activation_bytes,
    bubble_fraction,
    bytes_per_parameter,
    checkpointed_bytes,
    crossing_factor,
    dense_parameters,
    kv_cache_bytes,
    ridge_point,
)
from projector.first_order.results import project_performance
from projector.serving.api import project_serving
from projector.serving.columns import cached_tokens, elements_per_token

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "first_order.md"
BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"

MINUS = "\N{MINUS SIGN}"

GPT3 = {"hidden": 12288, "heads": 96, "layers": 96}
CONSTANTS = Constants.of()
Value = float | str


class Computed(NamedTuple):
    """Both values of a row, in its unit."""

    first_order: Value
    tiles: Value


def read() -> dict[str, Any]:
    """Return sources and rows."""
    text = (HERE / "methodology_rows.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


def compute(row: Mapping[str, Any]) -> Computed:
    """Return both values of a row."""
    given = dict(row["compute"])
    return KINDS[given.pop("kind")](**given)


def holds(row: Mapping[str, Any], value: Value) -> bool:
    """Whether a value lies within the tolerance of the published one."""
    if isinstance(value, str):
        return bool(value == row["published"])
    return abs(value / row["published"] - 1.0) <= row["tolerance"]


def _alone(model: Any, **training: Any) -> dict[str, Any]:
    """Return a job on one device, which need not fit it."""
    return {
        "model": model,
        "parallelism": {"zero_stage": 0},
        "training": {"micro_batch_size": 1, "global_batch_size": 1, **training},
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 1},
    }


def _parameters(model: str) -> Computed:
    config = load_model(model)
    formula = dense_parameters(config.hidden_size, config.vocab_size, config.num_layers)
    counted = pj.project_memory(_alone(model, seq_length=1024)).counts.parameters_total
    return Computed(float(formula) / 1e9, counted / 1e9)


def _states(parameters: float, accumulates_beside: bool, model: str) -> Computed:
    each = bytes_per_parameter(CONSTANTS, accumulates_beside=accumulates_beside).total
    fused = not accumulates_beside
    job = _alone(model, seq_length=1024, gradient_accumulation_fusion=fused)
    memory = pj.project_memory(job)
    stage = memory.stages[0]
    held = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    ours = held / memory.counts.parameters_total
    return Computed(float(each) * parameters / 1e9, ours * parameters / 1e9)


def _activations(seq: int, checkpointed: bool) -> Computed:
    kept = activation_bytes(GPT3["layers"], seq, 1, GPT3["hidden"], GPT3["heads"])
    model = {"extends": "gpt3_175b", "max_position_embeddings": seq}
    recompute = "full" if checkpointed else "none"
    job = _alone(model, seq_length=seq, flash_attention=False, recompute=recompute)
    ours = pj.project_memory(job).stages[0].activations_bytes
    first = checkpointed_bytes(kept, CONSTANTS) if checkpointed else kept
    return Computed(float(first) / 1e9, ours / 1e9)


def _cache(model: str, batch: int, seq: int) -> Computed:
    config = load_model(model)
    shape = (config.num_layers, batch, seq, config.query_groups, config.head_dim)
    ours = 2.0 * batch * int(cached_tokens(config, seq)) * elements_per_token(config)
    return Computed(float(kv_cache_bytes(*shape)) / 1e9, ours / 1e9)


def _ridge(device: str, dtype: str) -> Computed:
    from projector.config.device_file import load_device
    from projector.config.first_order import first_order_device

    view, profile, n = first_order_device(device), load_device(device), 16384
    sustained = 2.0 * n**3 / pj.gemm_time(n, n, n, device=device, dtype=dtype)
    streamed = profile.hbm_peak_tb_per_s * profile.hbm_efficiency * 1e12
    ridge = ridge_point(view.peak_flop_per_s(dtype), view.memory_bytes_per_s)
    return Computed(float(ridge), sustained / streamed)


def _decode(model: str, device: str, dtype: str, context: int) -> Computed:
    load = {"batch": 1, "context": context, "dtype": dtype}
    first = first_order_serving.project_serving(model, device, **load)
    ours = project_serving(model, device, **load)
    return Computed(1.0 / first.tpot_s, 1.0 / ours.tpot_s)


def _days(run: str) -> Computed:
    text = (HERE / "published_run_times.yaml").read_text(encoding="utf-8")
    (job,) = (entry["job"] for entry in yaml.safe_load(text) if entry["name"] == run)
    step = project_performance([load_first_order_job(job)])[0]
    ours = pj.project_performance(job)
    assert step.run is not None
    steps = step.run.tokens / step.tokens_per_step
    return Computed(step.run.days, steps * ours.iteration_time_s / 86400.0)


def _bubble(pp: int, microbatches: int, vpp: int) -> Computed:
    name = "interleaved" if vpp > 1 else "1f1b"
    ours = pj.simulate_schedule(name, pp=pp, vpp=vpp, microbatches=microbatches)
    return Computed(float(bubble_fraction(pp, microbatches, vpp)), ours.bubble_fraction)


def _crossing(model: str, seq: int, global_batch: int, nodes: int) -> Computed:
    def time_s(tp: int) -> float:
        training = {"micro_batch_size": 1, "global_batch_size": global_batch, "seq_length": seq}
        job = {"model": model, "parallelism": {"tp": tp}, "training": training}
        return pj.project_performance(
            {**job, "cluster": {"device": "h100", "nodes": nodes}}
        ).iteration_time_s

    return Computed(float(crossing_factor(16, 8, CONSTANTS)), time_s(16) / time_s(8))


def _bound(phase: str, model: str, device: str, dtype: str, context: int) -> Computed:
    load = {"batch": 1, "context": context, "dtype": dtype}
    first = first_order_serving.project_serving(model, device, **load)
    ours = project_serving(model, device, **load)
    part = ours.prefill if phase == "prefill" else ours.decode
    return Computed(getattr(first, f"bound_{phase}"), part.bound)


KINDS: dict[str, Any] = {
    "parameters": _parameters, "states": _states, "activations": _activations, "cache": _cache,
    "ridge": _ridge, "decode": _decode, "days": _days, "bubble": _bubble, "crossing": _crossing,
    "bound": _bound,
}  # fmt: skip


def table(computed: Mapping[str, Computed]) -> str:
    """Return the rows as Markdown: figures first, then sources and remarks."""
    facts = read()
    heads = "| | quantity | published | first-order | tile models | tolerance | holds |"
    lines = [heads, "|---|---|---|---|---|---|---|"]
    notes = []
    for number, row in enumerate(facts["rows"], 1):
        values = computed[row["id"]]
        mark = "" if row["verified"] else " (unverified)"
        cells = [
            str(number),
            f"{row['category']}: {row['quantity']}",
            f"{_text(row['published'])} {row['unit']}".strip() + mark,
            _with_error(row, values.first_order),
            _with_error(row, values.tiles),
            f"{row['tolerance']:.0%}".replace("%", " %") if row["tolerance"] else "equal",
            "yes" if holds(row, values.first_order) else "**no**",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        remark = f" {row['remark'][0].upper()}{row['remark'][1:]}." if "remark" in row else ""
        says = f"Methodology: {row['claim']}. "
        notes.append(f"{number}. {says}Published: {facts['sources'][row['source']]}.{remark}")
    return "\n".join([*lines, "", *notes])


def _with_error(row: Mapping[str, Any], value: Value) -> str:
    if isinstance(value, str):
        return value
    error = value / row["published"] - 1.0
    far = f"{value / row['published']:,.0f} times" if error > 2.0 else f"{error:+.1%}"
    return f"{_text(value)} ({far.replace('%', ' %').replace('-', MINUS)})"


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    digits = 4 if value < 1 else 2 if value < 1000 else 0
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def main() -> None:
    """Print the table, and record it."""
    computed = {row["id"]: compute(row) for row in read()["rows"]}
    text = table(computed)
    print(text)
    if "--record" in sys.argv[1:]:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        _, after = rest.split(END)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
