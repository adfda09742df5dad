"""Write docs/seeds.md: what five documents print, beside what our commands print.

With --check only say whether it is current. Figures of the documents stand here with their
section; ours are read from the commands that the page names.
"""

import contextlib
import csv
import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from projector.cli.main import run
from projector.config.model_file import load_model

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "validation"))

import infinity_fabric  # noqa: E402
import methodology  # noqa: E402
import timeline_findings  # noqa: E402

TARGET = ROOT / "docs" / "seeds.md"

SAMPLE = "memory --config examples/mixtral_8x22b_seed_sample.yaml"
STEP = "performance --config examples/mixtral_8x22b_mi355x.yaml"
LOCKED = "examples/devices/b200_1300mhz.yaml"
LAYERS, MICROBATCHES, PASSES = 14, 16, 2
"""Of a stage of four, of a step; forward and backward."""

Figure = float | str


class Item(NamedTuple):
    """One figure of a document and where ours comes from."""

    what: str
    command: str
    printed: float
    read: Callable[[dict[str, Any]], float]
    digits: int = 2
    unit: str = ""


@cache
def answer(command: str, environment: str = "", codes: tuple[int, ...] = (0, 3)) -> dict[str, Any]:
    """Return the JSON object of a command that ends with one of the codes."""
    text = io.StringIO()
    given = dict(pair.split("=") for pair in environment.split())
    with (
        contextlib.redirect_stdout(text),
        contextlib.chdir(ROOT),
        mock.patch.dict(os.environ, given),
        mock.patch("projector.projection.profiling.gpus_at_hand", return_value=None),
    ):
        code = run([*shlex.split(command), "--json", "--quiet"])
    assert code in codes, command
    found: dict[str, Any] = json.loads(text.getvalue())
    return found


def documented(*keys: str) -> Callable[[dict[str, Any]], float]:
    """Return the reader of one figure of the documented closed forms."""

    def read(found: dict[str, Any]) -> float:
        value: Any = found["documented"]
        for key in keys:
            value = value[key]
        return float(value)

    return read


def _parts() -> Iterator[Item]:
    for name, parameters, gib in (
        ("embedding", 616_562_688, 0.1875), ("dense_transformer_layer", 390_107_136, 3.25),
        ("self_attention", 88_080_384, 0.625), ("mlp", 301_989_888, 1.6875),
        ("moe_transformer_layer", 390_156_288, 5.125), ("router", 49_152, 0.1875),
        ("moe_mlp", 301_989_888, 3.375), ("output_layer", 616_562_688, 3.0625),
    ):  # fmt: skip
        if name not in {"mlp", "router", "moe_mlp", "self_attention"}:
            yield Item(f"`{name}`, parameters", SAMPLE, parameters,
                       documented("components", name, "parameters"), 0)  # fmt: skip
        yield Item(f"`{name}`, activations", SAMPLE, gib,
                   documented("components", name, "activation_gib"), 4, "GiB")  # fmt: skip


def _collective(*names: str, key: str = "time_ms") -> Callable[[dict[str, Any]], float]:
    return lambda found: sum(found["communication"][name][key] for name in names)


GRADIENTS = ("dp:grad_reduce", "dp:experts.grad_reduce")
GATHERS = ("dp:param_all_gather", "dp:experts.param_all_gather")
EXCHANGES = ("ep:moe.dispatch", "ep:moe.combine")

PRIMUS = [
    Item("parameters", SAMPLE, 140_845_350_912, documented("parameters_total"), 0),
    Item("parameters of a rank", SAMPLE, 6_078_750_720, documented("parameters_per_rank"), 0),
    Item("parameters and optimizer", SAMPLE, 79.26, documented("param_optimizer_gib"), 2, "GiB"),
    Item("activations", SAMPLE, 503.56, documented("activation_gib"), 2, "GiB"),
    Item("total", SAMPLE, 582.82, documented("total_gib"), 2, "GiB"),
    *_parts(),
    Item("step of the sample output", STEP, 10_052, lambda f: f["iteration_time_ms"], 0, "ms"),
    Item("projected, in its validation", STEP, 3_426, lambda f: f["tokens_per_s_per_gpu"], 0,
         "tokens/s/GPU"),
    Item("measured, in its validation", STEP, 3_475, lambda f: f["tokens_per_s_per_gpu"], 0,
         "tokens/s/GPU"),
    Item("traffic of gradients and weights", STEP, 540.274, _collective(*GRADIENTS, *GATHERS), 1,
         "ms"),
    Item("of it experts", STEP, 483.2, _collective(GRADIENTS[1], GATHERS[1]), 1, "ms"),
    Item("of it the rest", STEP, 57.1, _collective(GRADIENTS[0], GATHERS[0]), 1, "ms"),
    Item("exchange of a layer, forward", STEP, 3.913, lambda f: _collective(*EXCHANGES)(f)
         / (LAYERS * MICROBATCHES * PASSES), 3, "ms"),
    Item("70B FSDP BF16 on MI325X, measured", "performance --config "
         "examples/llama3.1_70b_fsdp_mi325x.yaml", 1_174, lambda f: f["tokens_per_s_per_gpu"], 0,
         "tokens/s/GPU"),
    Item("70B FP8 on MI325X, measured", "performance --config "
         "examples/llama3.1_70b_fp8_mi325x.yaml", 1_726, lambda f: f["tokens_per_s_per_gpu"], 0,
         "tokens/s/GPU"),
    Item("8B FP8 on MI325X, measured", "performance --config "
         "examples/llama3.1_8b_fp8_mi325x.yaml", 16_186, lambda f: f["tokens_per_s_per_gpu"], 0,
         "tokens/s/GPU"),
]  # fmt: skip

EXPERIMENT = "--config examples/megatron/configs/MI355X/mixtral_8x22B_v0.1-BF16-pretrain.yaml"
COMMANDS = [
    ("NNODES=1 HSA_NO_SCRATCH_RECLAIM=1", f"memory {EXPERIMENT}"),
    ("NNODES=1 HSA_NO_SCRATCH_RECLAIM=1", f"performance {EXPERIMENT} --target-nodes 4"),
    ("", f"performance {EXPERIMENT} --profiling-mode simulate --target-nodes 4"),
    ("", f"performance {EXPERIMENT} --profiling-mode simulate --gpu-arch mi355x --target-nodes 4"),
    ("NNODES=1 GPUS_PER_NODE=8",
     f"performance {EXPERIMENT} --benchmark-gpus 1 --target-nodes 4"),
    ("", f"performance {EXPERIMENT} --profiling-mode both --target-nodes 4"),
    ("PRIMUS_TP=1 PRIMUS_PP=3 PRIMUS_EP=8", f"performance {EXPERIMENT} --target-nodes 6"),
]  # fmt: skip
"""Environment and command line of every command that the projection tool's document prints."""

EXAMPLES = {
    f"gemm 4096 4096 16384 --gpu {LOCKED} --dtype nvfp4 --model ws_persistent --tile 128x64:2x1 "
    "--out-bytes 4": (
        376.1631394230768, 6.153846153846154, 0.1040625, 26.64, 6.3015384615384615,
        1.3612307692307695, 22.32, 1.2652307692307694,
    ),
    f"gemm 4096 7168 257 --gpu {LOCKED} --dtype fp8 --model ws_persistent --tile 64x256:2x1 "
    "--out-bytes 1": (
        20.65007692307692, 6.153846153846154, 0.111, 0.89146875, 0.3953846153846154,
        1.0652307692307692, 0.096375, 0.8012307692307692,
    ),
}  # fmt: skip
TERMS = {
    "predicted": "time_us", "overhead": "setup_s", "first load": "first_load_s",
    "loads of a wave": "load_s", "math of a wave": "matrix_s", "epilogue of a wave": "epilogue_s",
    "last loads": "last_load_s", "last epilogue": "last_epilogue_s",
}  # fmt: skip


def _term(key: str) -> Callable[[dict[str, Any]], float]:
    def read(found: dict[str, Any]) -> float:
        (one,) = found["gemms"]
        return float(one[key] if key in one else one["terms"][key] * 1e6)

    return read


GEMMS = [
    Item(f"{command.split(' --')[0].removeprefix('gemm ').replace(' ', ' x ')}: {what}", command,
         printed, _term(key), 6, "us")
    for command, figures in EXAMPLES.items()
    for (what, key), printed in zip(TERMS.items(), figures, strict=True)
]  # fmt: skip


def table(items: Sequence[Item]) -> list[str]:
    """Return the rows of one document; the command stands in its first row."""
    lines = ["| item | document | ours | off | command |", "|---|---|---|---|---|"]
    before = ""
    for item in items:
        ours = item.read(answer(item.command))
        off = ours / item.printed - 1.0
        text = "" if abs(off) < 5e-5 else f"{off:+.1%}".replace("%", " %")
        command = "" if item.command == before else f"`projector {item.command}`"
        figures = [
            f"{value:,.{item.digits}f} {item.unit}".strip() for value in (item.printed, ours)
        ]
        lines.append(f"| {item.what} | {figures[0]} | {figures[1]} | {text} | {command} |")
        before = item.command
    return lines


def commands() -> list[str]:
    """Return every command of the projection tool's document and what it prints here."""
    lines = ["| exported before | after `projector` | result |", "|---|---|---|"]
    for environment, command in COMMANDS:
        found = answer(command, environment, (0, 1, 2, 3))
        if "error" in found:
            result = found["error"].split(";")[0]
        elif "iteration_time_ms" in found:
            result = f"{found['iteration_time_ms']:,.0f} ms a step, "
            result += f"{found['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU"
        else:
            result = f"{found['peak_gib']:,.2f} GiB, {found['verdict'].replace('_', ' ')}"
        exported = f"`{environment}`" if environment else ""
        lines.append(f"| {exported} | `{command}` | {result} |")
    return lines


def fabric() -> list[str]:
    """Return what of the interconnect study stands, and what does not."""
    rows = [*infinity_fabric.figures()]
    far = [row for row in rows if abs(row.error) > infinity_fabric.WITHIN]
    count = f"{len(rows) - len(far)} of {len(rows)}" if far else f"All {len(rows)}"
    lines = [
        f"{count} figures and findings are within "
        f"{infinity_fabric.WITHIN:.0%} of the study's, or keep its bound. "
        "[transfers.md](transfers.md) has them all.".replace("%", " %"),
    ]
    if far:
        lines += ["", "| figure | unit | study | ours |", "|---|---|---|---|"]
        lines += [
            f"| {row.what} | {row.unit} | {infinity_fabric.printed(row.low, row.high)} "
            f"| {row.model:.4g} |"
            for row in far
        ]
    return lines


ROOFLINE = """\
The methodology counts 27 benchmarks and lists none; its ten categories make {rows} rows. {held}
follow from its own equations, {failed} do not. `python validation/methodology.py` prints them.
[first_order.md](first_order.md#does-it-hold) has their sources and our tile models beside them, and
[its equations](first_order.md#equations) the symbols.

| | benchmark | the methodology says | published | its equations | holds |
|---|---|---|---|---|---|"""


def roofline() -> list[str]:
    """Return the benchmarks of the methodology, row by row, and why some do not follow."""
    rows = methodology.read()["rows"]
    ours = {row["id"]: methodology.compute(row).first_order for row in rows}
    failed = [row for row in rows if not methodology.holds(row, ours[row["id"]])]
    held = len(rows) - len(failed)
    lines = ROOFLINE.format(rows=len(rows), held=held, failed=len(failed)).split("\n")
    for number, row in enumerate(rows, 1):
        cells = (
            str(number),
            f"{row['category']}: {row['quantity']}",
            row["claim"],
            _value(row["published"], row["unit"]),
            _value(ours[row["id"]], row["unit"]),
            "**no**" if row in failed else "yes",
        )
        lines.append(f"| {' | '.join(cells)} |")
    reasons = {**_counts(), **_state_bytes(), **_kept_bytes(), **_days()}
    assert reasons.keys() == {row["id"] for row in failed}
    lines += ["", "Why these do not follow:", ""]
    lines += [f"- {row['category']}, {row['quantity']}: {reasons[row['id']]}." for row in failed]
    return lines


def _value(value: Figure, unit: str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f} {unit}" if value >= 1000.0 else f"{value:.4g} {unit}"


def _counts() -> dict[str, str]:
    """Return what the dense formula has other than Llama 3, in billions."""
    found = {}
    for name, row in (("llama3_8b", "parameters_8b"), ("llama3_70b", "parameters_70b")):
        model = load_model(name)
        h, layers, heads = model.hidden_size, model.num_layers, model.num_attention_heads
        square, table = layers * h * h / 1e9, h * model.vocab_size / 1e9
        formula = table + 12.0 * square + (13 * layers + 2) * h / 1e9
        gate = (3.0 * model.ffn_hidden_size / h - 8.0) * square
        keys = 2.0 * (model.query_groups / heads - 1.0) * square
        norms = -(11.0 * layers + 1.0) * h / 1e9
        found[row] = (
            f"{formula:.2f} B by the formula, {gate:+.2f} for a gated MLP, {keys:+.2f} for "
            f"{model.query_groups} key heads of {heads}, {table:+.2f} for a second table, "
            f"{norms:+.3f} for no biases make {formula + gate + keys + table + norms:.2f} B"
        )
    return found


def _state_bytes() -> dict[str, str]:
    parts = (2, 4, 4, 4, 4)
    each = sum(parts)
    text = (
        f"{' + '.join(map(str, parts))} = {each} bytes of 70 B are {70 * each:,} GB; the Playbook"
    )
    text += (
        f" has 16 bytes ({70 * 16:,} GB) without FP32 accumulation and 20 ({70 * 20:,} GB) with it"
    )
    return {"states_70b_18": text}


def _kept_bytes() -> dict[str, str]:
    """Return what is left of the activations of GPT-3, in bytes of a token and element a layer."""
    found = {}
    for name, length in (("1k", 1024), ("8k", 8192), ("32k", 32768)):
        whole = 34.0 + 5.0 * methodology.GPT3["heads"] * length / methodology.GPT3["hidden"]
        found[f"checkpointed_{name}"] = (
            f"34 + 5 a s / h = {whole:,.0f} bytes, of which it keeps 30 %, {0.3 * whole:,.1f}; "
            f"a whole forward pass needs 2, {0.15 * whole:,.0f} times less"
        )
    return found


def _days() -> dict[str, str]:
    flop, day = 6.0 * 175e9 * 300e9, 86400.0
    ours, paper = flop / (1024 * 0.45 * 312e12) / day, flop * 8.0 / 6.0 / (1024 * 140e12) / day
    text = (
        f"6 N D = {flop:.3g} FLOP over 1,024 x 0.45 x 312 TFLOP/s are {ours:.1f} days and not 28;"
    )
    text += (
        f" the paper's 140 TFLOP/s count 8 N D, with recomputation: {paper:.1f} days, an MFU of "
    )
    return {"gpt3_days": text + f"{140 * 6 / 8 / 312:.3f}"}


HEAD = """\
# What the documents print, and what we print

Generated by `docs/make_seeds.py`; a test keeps it current. Five published documents are behind this
project. Here each of their figures stands beside ours, with the command that prints ours. Where the
command is missing, it is that of the row above.
"""

GEMM_MODELS = """
`tile`, the default model, follows the kernels of the library that `--library` or a column `library`
of the shapes names. The document measured CuTeDSL kernels, so compare with `cutedsl`
([measured GEMMs](gemm_measured.md)). `ws_persistent` and `sol` are the two models of the document.
Its `predict_gemm.py` is `projector gemm --csv shapes.csv --model ws_persistent --out pred.csv
--plot scurve.png`: the table has every term. A column `measured_us` of the shapes makes the
S-curve.
"""

LAUNCHED = """
The next table has every command of the document, with `projector` in place of its launcher `bash
runner/primus-cli direct --script primus/cli/main.py -- projection`. Our experiment has the settings
of Primus' own file of that name: micro-batches of 2, 128 sequences, no virtual stages. The results
are those of a machine without a GPU. `--benchmark-gpus 1` and `--profiling-mode both` measure, so
they need a GPU of the job's type ([measure.md](measure.md)), as the document says.
"""

WHY = """
The document's memory sample is its closed form, which we have term by term. Our report also has the
physical peak of the job. [memory.md](memory.md) says why both differ.

Our traffic of gradients is one pass of FP32 gradients and one of BF16 weights; the document has one
all-reduce. Most of ours hides behind the last backward pass. An exchange of a layer moves 402 MB
for a GPU, dispatch and combine together, at 103 GB/s in the document. Ours has 400 GB/s, from
all-to-alls that were measured within a node ([collectives](collectives.md)). Compare our step with
the measured one.
"""


TRACED = "python validation/timeline_findings.py"
"""Projects the five cases under FSDP 1 and 2, writes traces, reads them back and measures."""
BATCHES = ("b1s4", "b2s4", "b4s4")
"""The study's runs at 4k tokens, by their batch."""

CASE = (
    "performance --config examples/measure_llama3_8b.yaml parallelism.tp=1 parallelism.pp=1 "
    "cluster.device=mi300x cluster.nodes=1 parallelism.fsdp={fsdp} training.seq_length={length} "
    "training.micro_batch_size={batch} training.global_batch_size={whole}"
)
ATTENTION = "attention {batch} 32 {length} --kv-heads 8 --gpu mi300x{backward}"
UP_PROJECTION = "gemm {tokens} 14336 4096 --gpu mi300x"


class Seen(NamedTuple):
    """A finding of the profiling study, and whether ours shows it."""

    what: str
    section: str
    study: str
    ours: str
    holds: bool
    command: str


@cache
def traced() -> dict[tuple[str, int], timeline_findings.Finding]:
    """Return what the traces of our own steps measure, by case and version of FSDP."""
    with tempfile.TemporaryDirectory() as folder:
        found = [
            timeline_findings.finding(name, fsdp, Path(folder))
            for fsdp in (1, 2)
            for name in timeline_findings.CASES
        ]
    return {(each.name, each.fsdp): each for each in found}


def step_of(name: str, fsdp: int = 2) -> tuple[str, dict[str, Any]]:
    """Return the command of a case, and its answer."""
    batch, length = timeline_findings.CASES[name]
    command = CASE.format(fsdp=fsdp, length=length, batch=batch, whole=8 * batch)
    return command, answer(command)


def attention_of(name: str, backward: str) -> tuple[str, float]:
    """Return the command of the attention of a layer, and its milliseconds."""
    batch, length = timeline_findings.CASES[name]
    command = ATTENTION.format(batch=batch, length=length, backward=backward)
    return command, float(answer(command)["time_ms"])


def percent(share: float, digits: int = 0) -> str:
    """Return a share as people read it."""
    return f"{share:.{digits}%}".replace("%", " %")


def chopper() -> Iterator[Seen]:
    """Yield the findings of the profiling study beside ours."""
    yield from _rates()
    yield from _durations()
    yield from _overlaps()
    yield from _clocks()


def _rates() -> Iterator[Seen]:
    cases = traced()
    best = {
        n: max(one.tokens_per_s_per_gpu for (_, m), one in cases.items() if m == n) for n in (1, 2)
    }
    lost = [
        1.0 - cases[name, n].tokens_per_s_per_gpu / best[n]
        for n in (1, 2)
        for name in ("b1s4", "b1s8")
    ]
    yield Seen(
        "throughput lost at batch one",
        "observation 1",
        "about 30 %",
        span(lost),
        min(lost) > 0.25,
        TRACED,
    )
    for n in (1, 2):
        rates = {name: cases[name, n].tokens_per_s_per_gpu for name in timeline_findings.CASES}
        order = sorted(rates, key=rates.__getitem__)
        yield Seen(
            f"slowest to fastest, FSDP {n}",
            "V-A1",
            "b1 (4k, 8k), then b2s8, b2s4 and b4s4",
            ", ".join(order),
            {*order[:2]} == {"b1s4", "b1s8"} and order[2] == "b2s8",
            TRACED,
        )
    faster = [
        cases[name, 2].tokens_per_s_per_gpu / cases[name, 1].tokens_per_s_per_gpu - 1.0
        for name in timeline_findings.CASES
    ]
    yield Seen(
        "FSDP 2 over FSDP 1",
        "observation 5",
        "faster",
        f"{span(faster)} faster",
        min(faster) > 0.0,
        TRACED,
    )
    for phase in ("forward", "optimizer"):
        first, backward = cases["b1s4", 1].launch_of[phase], cases["b1s4", 1].launch_of["backward"]
        yield Seen(
            f"launch overhead of the {phase}, b1s4, FSDP 1",
            "observation 3",
            "more than of the backward",
            f"{percent(first, 1)}, of the backward {percent(backward, 1)}",
            first > backward,
            TRACED,
        )
    launches = [cases[name, 2].launch for name in BATCHES]
    yield falls("launch overhead with the batch, FSDP 2", "observation 3, insight 6", launches, 1)


def falls(what: str, where: str, shares: list[float], digits: int = 0) -> Seen:
    """Return whether shares fall from each batch to the next."""
    shown = ", ".join(percent(share, digits) for share in shares)
    return Seen(what, where, "falls", shown, shares == sorted(shares, reverse=True), TRACED)


def _durations() -> Iterator[Seen]:
    command, small = step_of("b1s4")
    terms = small["breakdown_ms"]
    gemm, fa, rest = (terms[f"compute_{kind}"] for kind in ("gemm", "attention", "other"))
    share = gemm / (gemm + fa + rest)
    yield Seen(
        "GEMMs in forward and backward, b1s4",
        "V-A2",
        "about 60 %",
        percent(share),
        abs(share - 0.6) < 0.1,
        command,
    )
    command, large = step_of("b4s4")
    ratio = large["breakdown_ms"]["optimizer"] / terms["optimizer"]
    yield Seen(
        "optimizer, b4s4 over b1s4",
        "V-B3",
        "constant",
        f"{ratio:.2f}",
        abs(ratio - 1.0) < 0.01,
        command,
    )
    command = UP_PROJECTION.format(tokens=16384)
    ratio = _gemm_us(command) / _gemm_us(UP_PROJECTION.format(tokens=4096))
    yield Seen(
        "GEMMs, four times the tokens",
        "V-B1",
        "with b s",
        f"{ratio:.2f} times",
        abs(ratio / 4.0 - 1.0) < 0.1,
        command,
    )
    command, longer = attention_of("b1s8", "")
    ratio = longer / attention_of("b1s4", "")[1]
    yield Seen(
        "attention forward, 8k over 4k",
        "V-B2",
        "with b s^2",
        f"{ratio:.2f} times",
        abs(ratio / 4.0 - 1.0) < 0.15,
        command,
    )
    for length in ("4", "8"):
        command, twice = attention_of(f"b2s{length}", " --backward")
        ratio = twice / attention_of(f"b1s{length}", " --backward")[1]
        yield Seen(
            f"attention backward at {length}k, batch two over one",
            "observation 2, insight 1",
            "below 1",
            f"{ratio:.2f} times",
            ratio < 1.0,
            command,
        )


def _gemm_us(command: str) -> float:
    (one,) = answer(command)["gemms"]
    return float(one["time_us"])


def _overlaps() -> Iterator[Seen]:
    cases = traced()
    whole = [cases["b1s4", n].attention_overlap for n in (1, 2)]
    yield Seen(
        "attention forward beside communication, b1s4",
        "V-C4",
        "about 100 %",
        span(whole),
        min(whole) > 0.95,
        TRACED,
    )
    overlaps = [cases[name, 1].overlap for name in BATCHES]
    yield falls("overlap with the batch, FSDP 1", "insight 4", overlaps)
    names = ("b1s4", "b4s4")
    moved = [
        sum(item["time_ms"] for item in step_of(name)[1]["communication"].values())
        for name in names
    ]
    yield Seen(
        "communication, b4s4 over b1s4",
        "insight 2",
        "1 in theory and in the tail",
        f"{moved[1] / moved[0]:.2f}",
        abs(moved[1] / moved[0] - 1.0) < 0.05,
        step_of("b4s4")[0],
    )


def _clocks() -> Iterator[Seen]:
    device = answer("hardware mi300x --full")["device"]
    slower = device["comm_compute_slowdown"]
    yield Seen(
        "GEMMs under full overlap",
        "V-C2",
        "15 to 20 % longer",
        percent(slower),
        0.15 <= slower <= 0.2,
        "hardware mi300x --full",
    )
    for what, field, study in (
        ("clock", "fsdp1_clock_share", "20 to 25 % higher"),
        ("memory clock", "fsdp1_memory_clock_share", "about 20 % higher"),
    ):
        gain = 1.0 / device[field] - 1.0
        yield Seen(
            f"{what} under FSDP 2 over FSDP 1",
            "V-F, observation 6",
            study,
            percent(gain),
            0.19 < gain < 0.26,
            "hardware mi300x --full",
        )
    command = f"{UP_PROJECTION.format(tokens=8192)} --explain"
    (one,) = answer(command)["gemms"]
    factors = {name: value for name, value in one["factors"].items() if name != "ideal_s"}
    most = max(factors, key=factors.__getitem__)
    yield Seen(
        "largest factor of a large GEMM over its theory",
        "V-G",
        "frequency",
        f"{most} ({factors[most]:.2f})",
        most == "frequency",
        command,
    )
    peaks = [step_of("b2s4", n)[1]["memory"]["peak_gib"] for n in (1, 2)]
    yield Seen(
        "peak of memory, FSDP 1 over FSDP 2",
        "II-B",
        "spikes",
        f"{peaks[0] / peaks[1]:.2f} times",
        peaks[0] > peaks[1],
        step_of("b2s4", 1)[0],
    )


def span(shares: Sequence[float]) -> str:
    """Return the least and the largest of some shares."""
    low, high = (f"{share:.0%}".removesuffix("%") for share in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def seen() -> list[str]:
    """Return the table of the profiling study."""
    lines = ["| finding | section | study | ours | holds | command |", "|---|---|---|---|---|---|"]
    before = ""
    for one in chopper():
        command = one.command if one.command == TRACED else f"projector {one.command}"
        shown = "" if command == before else f"`{command}`"
        holds = "yes" if one.holds else "**no**"
        lines.append(
            f"| {one.what} | {one.section} | {one.study} | {one.ours} | {holds} | {shown} |"
        )
        before = command
    return lines


CASES = """\
The cases are Llama 3 8B on eight MI300X, named by batch and length in k tokens: b2s8 has two
sequences of 8k a GPU. Traces are those of our own steps: written, read back and measured as those
of a real run are ([there](timeline_export.md#the-findings-of-a-study)). Clocks and the slowdown of
GEMMs are taken from the study, so their rows only show that they reach the projection.
"""

CHOPPER = """
What does not hold:

- In the study the backward of FlashAttention takes longer at batch one than at batch two; it calls
  the kernel poorly optimised. The library is the cause, not the device: with {library} batch two
  takes {measured:.2f} times as long as batch one at 4k on MI300X, and in ours {modelled:.2f}.
  PyTorch's own kernel reached 9.6 to 19.9 TFLOP/s there in 2024, in Llama 3 8B
  ([pytorch#135431](https://github.com/pytorch/pytorch/issues/135431)). The study prints bars and no
  figures, so nothing can be fitted to it. If our backward took as long at batch one as at batch
  two, batch one would lose {lost} under FSDP 2.
- Attention and eager element-wise kernels are faster in ours, so GEMMs have a larger share.
- Attention of 4k tokens at batch one leaves compute units idle in ours. From 32k on, twice the
  length takes four times as long.
- The study counts the wait for the first gathered layers as launch overhead of the forward. In ours
  it is exposed communication.
- Spikes of memory under FSDP 1 depend on when the host frees blocks
  ([memory.md](memory.md#not-modelled)). Ours holds two gathered layers under FSDP 1 and 2 alike.

Not projected, but measured by `projector trace` on a run ([trace.md](trace.md)): differences
between devices (insight 3, observation 4), preparation and call of launches (equations 1 to 3,
insight 5), cores in use (equations 4 and 5, insight 7), and padding, utilisation, overlap and clock
of kernels (equations 6 to 10).
"""


def slow_backward() -> dict[str, float | str]:
    """Return what a later library takes at batch one and two, and what batch one would lose."""
    wanted = {"gpu": "MI300X", "pass": "bwd", "seq_len": "4096", "head_dim": "128",
              "v_head_dim": "128", "q_heads": "32", "kv_heads": "32", "causal": "True"}  # fmt: skip
    with (ROOT / "validation/data/attention_measured.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if wanted.items() <= row.items()]
    (library,) = {row["impl"] for row in rows}
    one, two = (next(float(r["time_ms"]) for r in rows if r["batch"] == n) for n in "12")
    cases, layers = traced(), load_model("llama3_8b").num_layers
    best = max(each.tokens_per_s_per_gpu for (_, n), each in cases.items() if n == 2)
    lost = []
    for length in (4, 8):
        case = cases[f"b1s{length}", 2]
        slower, faster = (attention_of(f"b{n}s{length}", " --backward")[1] for n in (2, 1))
        tokens = length * 1024
        step_s = tokens / case.tokens_per_s_per_gpu + layers * (slower - faster) / 1e3
        lost.append(1.0 - tokens / step_s / best)
    ours = [attention_of(name, " --backward")[1] for name in ("b1s4", "b2s4")]
    return {
        "library": library.partition(" (")[0],
        "measured": two / one,
        "modelled": ours[1] / ours[0],
        "lost": span(lost),
    }


CLOSED = """
The multiplier of owned clusters is in [cost.md](cost.md).

The methodology's interface marks Claude, GPT-5 and Gemini "(est.)" and gives no dimensions. Ours
are marked the same way. `projector models` lists them. A projection of one warns how far its count
may be off, and where the count is from.

| model | parameters | active | estimated |
|---|---|---|---|
"""


def closed() -> list[str]:
    """Return the models that are estimated, as `projector models NAME` prints them."""
    lines = []
    for name in answer("models")["models"]:
        if answer("models")["models"][name]["name"].endswith("(est.)"):
            one = answer(f"models {name}")
            total, active = (one[f"parameters_{key}"] / 1e9 for key in ("total", "active"))
            (note,) = one["warnings"]
            said = note.partition("is estimated ")[2].partition(";")[0]
            lines.append(f"| `{name}` | {total:,.0f} B | {active:,.0f} B | {said} |")
    return lines


def page() -> str:
    """Return the page."""
    parts = [
        HEAD,
        "## Primus projection (AMD ROCm blog, 2026)\n",
        *table(PRIMUS),
        LAUNCHED,
        *commands(),
        WHY,
        "## Data movement on MI250X (Schieffer et al., KTH)\n",
        *fabric(),
        "\n## gemm-model (H. Barclay)\n",
        *table(GEMMS),
        GEMM_MODELS,
        "## Chopper (Kurzynski, Aga, Wu)\n",
        CASES,
        *seen(),
        CHOPPER.format(**slow_backward()),
        "## The equations behind Roofline\n",
        *roofline(),
        CLOSED + "\n".join(closed()),
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(TARGET.read_text(encoding="utf-8") != page())
    TARGET.write_text(page(), encoding="utf-8")
