"""Random structured inputs for every reader, for spaces and for kernels.

Each input must end in a result or a `ProjectorError`, within a second. Inputs are documents that
are right, changed at random: fields that are missing, twice, of another type, far out of range,
texts with bytes that do not belong there, expressions, axes, shapes, journals.

    python validation/hostile_input.py 1000000          # all kinds, in processes
    python validation/hostile_input.py --one hf:4711    # one of them again

A kind and a number give an input, on every machine.
"""

import argparse
import copy
import json
import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import projector as pj
from projector.calibrate.runs import read_table
from projector.cli.main import run as run_command
from projector.config.device_file import load_device
from projector.config.load import parse_override
from projector.config.model_file import load_model
from projector.config.network import load_network
from projector.config.space import Expression
from projector.config.yaml_file import parse_yaml, read_yaml
from projector.errors import ProjectorError
from projector.planning import question
from projector.rl.job import read_rl
from projector.serving.api import read_case
from projector.single.gemm import list_gemms
from projector.sweeps import journal
from projector.topology.node import read_node
from projector.validate.run import validate

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 1.0
"""Processor time that an input may take."""

GIVEN_UP_S = 60.0
"""Time after which an input counts as one that takes for ever."""

MOST_BYTES = 8 << 30
"""Memory that a process may map."""

ODD: list[Any] = [
    -1, 0, 1, 2, 3, 5, 7, 24, 1000, 131072, 10**6, 10**12, 10**30, 2**63, -(2**63), 0.5, 2.5, 1e300,
    -0.0, 1e-300, "8", "x", "", " ", "nan", "1e5", "0x10", "1:30", "yes", "2026-01-01", "ü\u2028",
    "$HOME", "${X:1}", "../x.yaml", "h100", "llama3.1_8b", None, True, False, [1], [], [[]],
    {"a": 1}, {}, {"extends": "h100"}, {"value": 3, "source": "x"}, float("nan"), float("inf"),
]  # fmt: skip
PIECES = [
    "{", "}", "[", "]", ":", ",", "- ", "? ", "&a ", "*a", "<<: ", "!!int ", "!x ", "|\n", ">\n",
    "'", '"', "#", "%", "\n", "\t", "\\", "\x00", "\x85", "\ufeff", "$(", "`", "${", "$", "--",
    "999999999999", "1e999", "-1", ".inf", ".nan", "null", "true", "~", "@", "\ud7ff", "é", "((",
    "\r\n", "if", "then", "fi", ";", "&&", "||", "<<EOF", "EOF", "/*", "*", "?", "export ", "=",
    "((i++))", ")",
]  # fmt: skip

_RIGHT = read_yaml(Path(__file__).with_suffix(".yaml"))
JOB, PRIMUS, DEEPSPEED, SIMUMAX, DEPLOYMENT = (
    _RIGHT[name] for name in ("job", "primus", "deepspeed", "simumax", "deployment")
)
RL, SERVED, TRACE = (_RIGHT[name] for name in ("rl", "served", "trace"))
SCRIPT, TOML, TRAINER, SHAPES = (_RIGHT[name] for name in ("script", "toml", "trainer", "shapes"))
HF = _RIGHT["mixtral"]
MLA = HF | _RIGHT["latent"]
DENSE = {
    name: value for name, value in HF.items() if "experts" not in name and name != "layer_types"
}
TYPES: list[tuple[dict[str, Any], list[str]]] = [
    (HF, ["mixtral", "gpt_oss", "granitemoe", "olmoe", "minimax_m2", "jamba", "x"]),
    (MLA, ["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "qwen3_moe", "dots1"]),
    (DENSE, ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "granite", "olmo2", "phi3", "gpt2",
             "falcon", "mpt", "bloom", "seed_oss", "smollm3", "llama4_text"]),
]  # fmt: skip
"""Configurations of Hugging Face, and the types of models that have such."""

AXES: list[tuple[str, list[Any]]] = [
    ("parallelism.tp", [1, 2, 3]),
    ("parallelism.pp", [1, 2]),
    ("cluster.nodes", [1, 2, 4]),
    ("training.global_batch_size", [{"range": [32, 96, 32]}, {"powers_of_two": [16, 64]}]),
    ("cluster.device.hbm_gib", [{"scale": [0.5, 1, 2]}, {"log": [40, 160, 3]}]),
    ("cluster.device", ["h100", "mi300x", "nothing"]),
    ("training.recompute", ["none", "full", {"modules": ["mlp"]}]),
    ("training.schedule", ["1f1b", "zerobubble", "gpipe"]),
    ("parallelism.pp, parallelism.tp", [[1, 2], [2, 1]]),
    ("model.num_layers", [{"expression": "8 * pp"}]),
    ("training.micro_batch_size", [{"expression": "tp ** 3 % 2"}]),
    ("cluster.network.nic_gbit_per_s", [100, 200, -1]),
]  # fmt: skip
TERMS = ["tp", "pp", "nodes", "gpus", "dp", "microbatches", "2", "63", "10**9", "0.5", "'a'",
         "[1, 2]", "(1,)", "num_layers", "parallelism.tp", "nothing", "-1", "1e308", "None",
         "True"]  # fmt: skip
STEPS = [" + ", " - ", " * ", " / ", " // ", " % ", " ** ", " < ", " == ", " in ", " and ", " or ",
         " if 1 else ", ", "]  # fmt: skip


class Place(NamedTuple):
    """Where inputs find a folder for their files."""

    folder: Path

    def file(self, name: str, text: str) -> Path:
        """Return a file with a text."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        return path


def odd(draw: random.Random) -> Any:
    """Return something that hardly any field takes."""
    value = copy.deepcopy(draw.choice(ODD))
    if draw.random() < 0.05:
        for _ in range(draw.choice([1, 3, 70, 300])):
            value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def changed(draw: random.Random, value: Any) -> Any:
    """Return a document with a few of its parts replaced, left out or added."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice([0, 0, 1, 1, 1, 2, 3, 6])):
        holders = list(_holders(value))
        if not holders:
            break
        holder, key = draw.choice(holders)
        step = draw.random()
        if step < 0.65:
            holder[key] = odd(draw)
        elif step < 0.8:
            del holder[key]
        elif isinstance(holder, dict):
            holder[draw.choice([f"{key}x", str(key).upper(), "extends", "", "a.b"])] = odd(draw)
        else:
            holder.insert(0, odd(draw))
    return value


def _holders(value: Any, deepest: int = 30) -> Iterator[tuple[Any, Any]]:
    inside: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    for key, inner in inside:
        yield value, key
        if deepest:
            yield from _holders(inner, deepest - 1)


def torn(draw: random.Random, text: str) -> str:
    """Return a text with pieces cut out, put in, moved or repeated."""
    for _ in range(draw.choice([1, 1, 2, 3, 8])):
        at = draw.randrange(len(text) + 1)
        to = min(len(text), at + draw.choice([1, 1, 5, 40]))
        piece = draw.choice(PIECES) * draw.choice([1, 1, 1, 2, 50, 1000])
        text = draw.choice([
            text[:at] + text[to:],
            text[:at] + piece + text[at:],
            text[:at] + text[at:to] * draw.choice([2, 20]) + text[to:],
            text[:at] + piece + text[to:],
        ])  # fmt: skip
    return text


def _document(draw: random.Random, data: Any) -> str:
    text = json.dumps(data)
    return torn(draw, text) if draw.random() < 0.3 else text


def _given(draw: random.Random) -> dict[str, Any]:
    """Return what many files leave out."""
    return {"cluster.device": "h100", "cluster.nodes": 2} if draw.random() < 0.9 else {}


def read_yaml_text(draw: random.Random, place: Place) -> None:
    """Parse YAML that was torn."""
    del place
    text = draw.choice(_TEXTS)
    start = draw.randrange(max(1, len(text) - 600))
    parse_yaml(torn(draw, text[start : start + draw.choice([50, 200, 600])]))


def read_override(draw: random.Random, place: Place) -> None:
    """Parse an override and lay it over a job."""
    del place
    field = draw.choice(_FIELDS)
    value = draw.choice([str(odd(draw)), json.dumps(odd(draw)), torn(draw, "[1, {a: 2}]")])
    key, parsed = parse_override(torn(draw, f"{field}={value}") if draw.random() < 0.2
                                 else f"{field}={value}")  # fmt: skip
    pj.load_job(_JOB, {key: parsed})


def read_job(draw: random.Random, place: Place) -> None:
    """Read a job given in Python."""
    del place
    pj.load_job(changed(draw, JOB))


def read_job_file(draw: random.Random, place: Place) -> None:
    """Read a native file."""
    pj.load_job(place.file("job.yaml", _document(draw, changed(draw, JOB))))


def read_primus(draw: random.Random, place: Place) -> None:
    """Read a Primus experiment."""
    pj.load_job(place.file("primus.yaml", _document(draw, changed(draw, PRIMUS))), _given(draw))


def read_script(draw: random.Random, place: Place) -> None:
    """Read a launch script of Megatron-LM."""
    text = torn(draw, SCRIPT) if draw.random() < 0.9 else SCRIPT
    pj.load_job(place.file("train.sh", text), _given(draw))


def read_toml(draw: random.Random, place: Place) -> None:
    """Read a file of torchtitan."""
    text = torn(draw, TOML) if draw.random() < 0.9 else TOML
    pj.load_job(place.file("titan.toml", text), _given(draw))


def read_peer(draw: random.Random, place: Place) -> None:
    """Read a file of DeepSpeed or SimuMax, with the model and devices given."""
    data = changed(draw, draw.choice([DEEPSPEED, SIMUMAX]))
    path = place.file("peer.json", _document(draw, data))
    more = {"model": "llama3.1_8b", "training.seq_length": 4096}
    pj.load_job(path, {**_given(draw), **more} if draw.random() < 0.8 else None)


def read_huggingface(draw: random.Random, place: Place) -> None:
    """Read a config.json as a mapping or a file."""
    usual, types = draw.choice(TYPES)
    config = {**usual, "model_type": draw.choice(types)}
    data = changed(draw, draw.choice(_PUBLISHED) if draw.random() < 0.5 else config)
    if draw.random() < 0.7:
        load_model(data)
    else:
        load_model(place.file("config.json", _document(draw, data)))


def read_hardware(draw: random.Random, place: Place) -> None:
    """Read devices, networks and nodes that extend others."""
    del place
    kind = draw.randrange(3)
    if kind == 0:
        field = draw.choice(_DEVICE_FIELDS)
        load_device({"extends": draw.choice(["h100", "mi300x", "x"]), field: odd(draw)})
    elif kind == 1:
        network = changed(draw, _NETWORK)
        load_network(network)
    else:
        read_node(changed(draw, _NODE), "node")


def read_expression(draw: random.Random, place: Place) -> None:
    """Compile and evaluate an expression."""
    del place
    text = draw.choice(TERMS)
    for _ in range(draw.randrange(12)):
        shape = draw.choice(
            ["({})", "[{}]", "-{}", "not {}", "round({})", "max({})", "abs({})", "{}"]
        )
        text = shape.format(text + draw.choice(STEPS) + draw.choice(TERMS))
    expression = Expression(torn(draw, text) if draw.random() < 0.1 else text, "constraints[0]")
    known = dict.fromkeys(["tp", "pp", "nodes", "gpus", "dp", "microbatches", "num_layers",
                           "parallelism.tp"], 2)  # fmt: skip
    expression.check_names(known)
    expression({name: odd(draw) if draw.random() < 0.1 else value for name, value in known.items()})


def read_space(draw: random.Random, place: Place) -> None:
    """Read a space, and look at some of its points."""
    del place
    space = pj.load_space(_space(draw))
    for index in draw.sample(range(space.size), min(3, space.size)):
        overrides = space.overrides(index)
        if all(space.keeps(each, overrides) for each in space.constraints):
            pj.load_job(space.base, overrides)


def sweep_space(draw: random.Random, place: Place) -> None:
    """Sweep a small space in memory."""
    del place
    space = pj.load_space(_space(draw))
    if space.size <= 64:
        pj.sweep(space, workers=1).best(1)


def _space(draw: random.Random) -> Any:
    axes: dict[str, Any] = {}
    for field, values in draw.sample(AXES, draw.choice([1, 1, 2, 2, 3])):
        one = draw.choice(values)
        axes[field] = one if isinstance(one, dict) and "modules" not in one else values[:2]
    constraints = [
        f"{draw.choice(TERMS)}{draw.choice(STEPS)}{draw.choice(TERMS)}"
        for _ in range(draw.choice([0, 0, 1, 2]))
    ]
    space = {"base": _JOB, "axes": axes, "constraints": constraints}
    if draw.random() < 0.4:
        return space
    return {"base": _JOB, **changed(draw, {"axes": axes, "constraints": constraints})}


def read_journal(draw: random.Random, place: Place) -> None:
    """Read the journal and the manifest of a sweep."""
    line = {"chunk": 1, "points": 9, "rows": 8, "fit": 7, "at_risk": 1, "bytes": 5,
            "infeasible": {"why": 1}}  # fmt: skip
    text = "".join(json.dumps(changed(draw, line)) + "\n" for _ in range(3))
    place.file(journal.JOURNAL, torn(draw, text) if draw.random() < 0.5 else text)
    place.file(journal.MANIFEST, _document(draw, changed(draw, {"format": 1, "space": JOB})))
    totals = journal.Totals()
    for _, entry in journal.entries(place.folder):
        if entry is not None:
            totals.add(journal.totals_of(entry))
    journal.read_manifest(place.folder)


def read_record(draw: random.Random, place: Place) -> None:
    """Read a file that should be a record of measurements."""
    data = {"schema": 1, "environment": {"device": "x"}, "rows": [{"key": "a", "time_s": 1.0}]}
    pj.load_record(place.file("record.json", _document(draw, changed(draw, data))))


def read_shipped(draw: random.Random, place: Place) -> None:
    """Read a shipped file that was torn, with the reader of its folder."""
    path = draw.choice(_SHIPPED)
    text = path.read_text(encoding="utf-8")
    own = place.file(f"shipped{path.suffix}", torn(draw, text) if draw.random() < 0.95 else text)
    if path.parts[-2] == "nodes":
        read_node(own, "node")
    elif path.parts[-2] in {"hardware", "devices"}:
        load_device(own)
    elif path.parts[-2] == "models":
        load_model(own)
    elif path.name.startswith("space"):
        pj.load_space(own)
    elif path.name.startswith("serve"):
        read_case(own)
    elif path.name.startswith("rl"):
        read_rl(own)
    else:
        pj.load_job(own, _given(draw))


def read_rl_step(draw: random.Random, place: Place) -> None:
    """Read a step of reinforcement learning."""
    del place
    read_rl(changed(draw, RL), {"rollout.tp": 2} if draw.random() < 0.5 else None)


def read_load(draw: random.Random, place: Place) -> None:
    """Read a deployment and its load."""
    path = place.file("serve.yaml", _document(draw, changed(draw, SERVED)))
    read_case(path if draw.random() < 0.5 else changed(draw, SERVED))


def read_question(draw: random.Random, place: Place) -> None:
    """Read what a plan is asked for."""
    del place
    step = draw.randrange(5)
    value = odd(draw) if draw.random() < 0.5 else torn(draw, draw.choice(_ASKED))
    if step == 0:
        question.read_tokens(value)
    elif step == 1:
        question.read_gpus(value if draw.random() < 0.5 else [8, value])
    elif step == 2:
        question.read_batches(value if draw.random() < 0.5 else [8, value])
    elif step == 3:
        question.read_kinds(value if draw.random() < 0.5 else ["h100", value])
    else:
        prices = {"h100": value} if draw.random() < 0.5 else value
        question.read_prices(prices, question.read_kinds(["h100"]))


def read_trainer(draw: random.Random, place: Place) -> None:
    """Read a script of Hugging Face's Trainer."""
    text = torn(draw, TRAINER) if draw.random() < 0.9 else TRAINER
    pj.load_job(place.file("trainer.sh", text), _given(draw))


def read_shapes(draw: random.Random, place: Place) -> None:
    """Read tables of GEMMs, and of measured jobs."""
    text = _document(draw, "") if draw.random() < 0.02 else torn(draw, SHAPES)
    path = place.file("shapes.csv", text)
    if draw.random() < 0.3:
        read_table(path)
    else:
        list_gemms([], path)


def read_rows(draw: random.Random, place: Place) -> None:
    """Project measured rows whose cells were changed."""
    kind = draw.choice([*_TABLES])
    head, *rows = _TABLES[kind]
    path = place.file("rows.csv", "\n".join([head, torn(draw, draw.choice(rows))]))
    validate(kind, path)


def read_trace(draw: random.Random, place: Place) -> None:
    """Read a trace of a few events, whole or torn."""
    events = changed(draw, TRACE)
    trace = pj.load_trace(place.file("trace.json", _document(draw, events)))
    trace.summary()


def _number(draw: random.Random, usual: list[Any]) -> Any:
    value = draw.choice(usual)
    step = draw.random()
    if step < 0.1:
        return odd(draw)
    if step < 0.2:
        return np.asarray(value)
    return np.array([value, draw.choice(usual)]) if step < 0.3 else value


_SIZES = [0, 1, 7, 64, 128, 1000, 4096, 8192, 131072, 10**9]
_DEVICES = ["h100", "mi300x", "mi355x", "a100", "b200", "mi250x"]


def kernel_gemm(draw: random.Random, place: Place) -> None:
    """Time a multiplication."""
    del place
    pj.gemm_time(
        _number(draw, _SIZES), _number(draw, _SIZES), _number(draw, _SIZES),
        device=draw.choice(_DEVICES), dtype=draw.choice(["bf16", "fp8", "fp32", "mxfp4", "x", 3]),
        batch=_number(draw, [1, 1, 8, 64]), out_bytes=_number(draw, [2.0, 4.0]),
        clock_mhz=draw.choice([None, None, 1500, 1e9, odd(draw)]),
    )  # fmt: skip


def kernel_attention(draw: random.Random, place: Place) -> None:
    """Time an attention."""
    del place
    pj.attention_time(
        _number(draw, [1, 2, 8]), _number(draw, [1, 8, 32, 64]), _number(draw, _SIZES),
        head_dim=_number(draw, [64, 128, 192, 256]), device=draw.choice(_DEVICES),
        kv_heads=draw.choice([None, 1, 8, odd(draw)]), causal=draw.choice([True, False]),
        window=_number(draw, [0, 0, 128, 4096]), backward=draw.choice([True, False]),
    )  # fmt: skip


def kernel_collective(draw: random.Random, place: Place) -> None:
    """Time a collective."""
    del place
    pj.collective_time(
        draw.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                     "send_recv", "reduce", "all_to_all_v", "x"]),
        _number(draw, [0, 8, 1e6, 1 << 30, 1e18]), _number(draw, [1, 2, 3, 8, 16, 72, 1000, 10**6]),
        device=draw.choice(_DEVICES), stride=draw.choice([1, 1, 2, 8, odd(draw)]),
        algorithm=draw.choice([None, None, "ring", "tree", "bruck", "hypercube", "x"]),
    )  # fmt: skip


def kernel_schedule(draw: random.Random, place: Place) -> None:
    """Simulate a schedule."""
    del place

    def few(usual: list[Any]) -> Any:
        return odd(draw) if draw.random() < 0.1 else draw.choice(usual)

    pj.simulate_schedule(
        draw.choice(["1f1b", "gpipe", "interleaved", "zerobubble", "zerobubble-h2",
                     "zbv-formatted", "dualpipe", "x"]),
        pp=few([1, 2, 3, 4, 8]), vpp=few([1, 1, 2, 3]), microbatches=few([1, 2, 4, 8, 32]),
        f=few([1.0, 0.5, 0.0]), b=few([1.0, 2.0]), w=few([1.0, 0.3]), p2p=few([0.0, 0.1]),
        overlap_p2p=draw.choice([True, False]),
    )  # fmt: skip


def project(draw: random.Random, place: Place) -> None:
    """Project a changed job, memory and step."""
    del place
    step = pj.project_performance(pj.load_job(changed(draw, JOB)))
    json.dumps(step.to_dict(), allow_nan=False)


def serve(draw: random.Random, place: Place) -> None:
    """Project a deployment."""
    del place
    pj.project_serving(deployment=changed(draw, DEPLOYMENT))


def command(draw: random.Random, place: Place) -> None:
    """Run a command line on a changed file; its exit code is one of the documented ones."""
    path = place.file("job.yaml", _document(draw, changed(draw, JOB)))
    words = [draw.choice(["memory", "both", "compare", "x"]), "--config", str(path), "--quiet"]
    if draw.random() < 0.5:
        words.insert(draw.randrange(len(words)), str(odd(draw)).replace("\0", ""))
    code = run_command(words)
    if code not in {0, 2, 3}:
        msg = f"exit code {code} of {words}"
        raise AssertionError(msg)


Input = Callable[[random.Random, Place], None]
KINDS: dict[str, tuple[float, Input]] = {
    "yaml": (30, read_yaml_text),
    "override": (15, read_override),
    "job": (6, read_job),
    "job_file": (2, read_job_file),
    "primus": (3, read_primus),
    "script": (4, read_script),
    "toml": (4, read_toml),
    "peer": (3, read_peer),
    "hf": (15, read_huggingface),
    "hardware": (1.5, read_hardware),
    "expression": (30, read_expression),
    "space": (1.5, read_space),
    "sweep": (0.1, sweep_space),
    "journal": (3, read_journal),
    "record": (5, read_record),
    "shipped": (3, read_shipped),
    "rl": (1, read_rl_step),
    "load": (3, read_load),
    "question": (15, read_question),
    "trainer": (3, read_trainer),
    "shapes": (3, read_shapes),
    "rows": (0.5, read_rows),
    "trace": (1.5, read_trace),
    "gemm": (20, kernel_gemm),
    "attention": (15, kernel_attention),
    "collective": (10, kernel_collective),
    "schedule": (20, kernel_schedule),
    "project": (0.3, project),
    "serve": (0.3, serve),
    "command": (0.1, command),
}
"""Kind -> how many of all inputs it has, relative to the others, and what makes one."""


class Found(NamedTuple):
    """What became of some inputs of a kind."""

    kind: str
    results: int
    refused: int
    slow: list[str]
    failed: list[str]
    longest_s: float
    seconds: float


def one(kind: str, number: int, place: Place) -> bool:
    """Return whether an input had a result; raise what is no `ProjectorError`."""
    draw = random.Random(f"{kind}:{number}")  # noqa: S311  # no secret
    try:
        KINDS[kind][1](draw, place)
    except ProjectorError as error:
        if not error.message:
            msg = "an error without a message"
            raise AssertionError(msg) from error
        return False
    return True


def try_some(kind: str, numbers: range) -> Found:
    """Try the inputs of a kind with these numbers."""
    results, slow, failed, longest_s = 0, [], [], 0.0
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            before = time.process_time()
            signal.setitimer(signal.ITIMER_REAL, GIVEN_UP_S)
            try:
                results += one(kind, number, Place(Path(folder)))
            except Exception:  # what the script looks for
                failed.append(f"{kind}:{number}\n{traceback.format_exc(limit=-4)}")
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            took_s = time.process_time() - before
            longest_s = max(longest_s, took_s)
            if took_s > LIMIT_S:
                slow.append(f"{kind}:{number} took {took_s:.1f} s")
    refused = len(numbers) - results - len(failed)
    return Found(kind, results, refused, slow, failed, longest_s, time.process_time() - begun)


def _give_up(number: int, frame: object) -> None:
    del number, frame
    msg = f"no answer within {GIVEN_UP_S:g} s"
    raise TimeoutError(msg)


def _begin() -> None:
    """Limit memory, keep quiet, and compile what inputs use, which is no part of their time."""
    signal.signal(signal.SIGALRM, _give_up)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: PTH123, SIM115
    for kind in KINDS:
        for number in range(-30, 0):
            try_some(kind, range(number, number + 1))


def _shares(count: int) -> Iterator[tuple[str, range]]:
    whole = sum(weight for weight, _ in KINDS.values())
    for kind, (weight, _) in KINDS.items():
        number = max(1, round(count * weight / whole))
        step = max(20, number // 64)
        for begin in range(0, number, step):
            yield kind, range(begin, min(number, begin + step))


def main() -> int:
    """Try as many inputs as the command line says, and print a table."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("count", nargs="?", type=int, default=100_000)
    reader.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    reader.add_argument("--minutes", type=float, default=600.0, help="end after this time")
    reader.add_argument("--one", metavar="KIND:NUMBER", help="try one input again")
    given = reader.parse_args()
    if given.one:
        kind, _, number = given.one.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            print("a result" if one(kind, int(number), Place(Path(folder))) else "refused")
        return 0
    until = time.monotonic() + given.minutes * 60.0
    found: dict[str, list[Found]] = {kind: [] for kind in KINDS}
    shares = list(_shares(given.count))
    # Mixed, so that a run that ends early has tried all kinds.
    random.Random(0).shuffle(shares)  # noqa: S311  # no secret
    with multiprocessing.get_context("spawn").Pool(given.processes, _begin) as pool:
        for some in pool.imap_unordered(_try_share, shares):
            found[some.kind].append(some)
            if time.monotonic() > until:
                break
    return _report(found)


def _try_share(share: tuple[str, range]) -> Found:
    return try_some(*share)


def _report(found: dict[str, list[Found]]) -> int:
    print("| kind | inputs | results | refused | failed | slow | longest, s | mean, ms |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    bad: list[str] = []
    everything = [part for parts in found.values() for part in parts]
    for kind, parts in [*found.items(), ("all", everything)]:
        results, refused = sum(p.results for p in parts), sum(p.refused for p in parts)
        failed, slow = sum(len(p.failed) for p in parts), sum(len(p.slow) for p in parts)
        number = results + refused + failed
        longest_s = max((p.longest_s for p in parts), default=0.0)
        mean_ms = 1e3 * sum(p.seconds for p in parts) / max(1, number)
        print(f"| {kind} | {number:,} | {results:,} | {refused:,} | {failed} | {slow} | "
              f"{longest_s:.2f} | {mean_ms:.2f} |")  # fmt: skip
        if kind != "all":
            bad += [text for part in parts for text in part.failed + part.slow]
    for text in bad[:40]:
        print(text, file=sys.stderr)
    return 1 if bad else 0


_JOB = pj.load_job(JOB)
_TEXTS = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.yaml"))]
_SHIPPED = [
    *sorted(path for path in (ROOT / "examples").rglob("*.yaml") if "measure" not in path.name),
    *sorted((ROOT / "models").glob("*.yaml")),
    *(ROOT / "hardware" / f"{name}.yaml" for name in ("h100", "mi355x", "gb200", "h100_pcie")),
    *sorted((ROOT / "hardware" / "nodes").glob("*.yaml")),
]
_PUBLISHED = [
    entry["config"]
    for entry in read_yaml(ROOT / "tests" / "reference" / "huggingface_models.yaml").values()
]
_ASKED = ["1e12", "300B", "15.6T", "512,1024", "512..2k", "h100@p5_efa", "mi300x"]
_TABLES = {
    kind: (ROOT / "validation" / "data" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    for kind, name in (
        ("gemm", "gemm_measured"), ("attention", "attention_measured"), ("memory", "memory"),
        ("collectives", "collectives_measured"), ("moe", "moe_measured"),
        ("training", "training_throughput"), ("serving", "serving_measured"),
    )
}  # fmt: skip
_FIELDS = [
    *(f"{section}.{field}" for section in ("parallelism", "training", "cluster", "run")
      for field in type(getattr(_JOB, section)).model_fields),
    "model", "cluster.device.hbm_gib", "model.num_layers", "model.moe", "x.y", "", "a..b",
]  # fmt: skip
_DEVICE_FIELDS = list(type(_JOB.cluster.device).model_fields)
_NETWORK = json.loads(load_network("hgx_h100").model_dump_json(exclude_unset=True))
_NODE = json.loads(read_node("mi300x", "node").model_dump_json(exclude_unset=True))

if __name__ == "__main__":
    sys.exit(main())
