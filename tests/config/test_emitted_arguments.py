"""What is emitted stands in what was recorded of the program that it is for."""

import re
import shlex
from pathlib import Path

import pytest

from projector import emit_job, load_job
from projector.config.formats.emit.torchtitan import _SHIPPED

RECORDED = Path(__file__).parent / "upstream" / "megatron_arguments.txt"
TYPES = {"int": int, "float": float}

JOBS = {
    "dense": ("llama3.1_70b", {"parallelism.tp": 8, "parallelism.pp": 4, "parallelism.vpp": 5}),
    "windows": ("gemma3_27b", {"parallelism.tp": 8}),
    "sinks": ("gpt_oss_20b", {"parallelism.ep": 8}),
    "one expert": ("llama4_scout", {"parallelism.ep": 16}),
    "mla": ("deepseek_v3", {"parallelism.pp": 8, "parallelism.ep": 16}),
    "groups": ("kimi_k2", {"parallelism.pp": 8, "parallelism.ep": 16}),
    "fsdp": ("llama3.1_8b", {"parallelism.fsdp": 2}),
    "zero 3": ("llama3.1_8b", {"parallelism.zero_stage": 3}),
    "fp8": ("llama3.1_8b", {"training.precision": "fp8", "training.recompute": "full"}),
    "offload": ("qwen3_8b", {"training.optimizer.offload_fraction": 0.5}),
}


def job(name):
    model, changes = JOBS[name]
    described = {
        "model": model,
        "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": 16},
    }
    return load_job(described, changes)


@pytest.fixture(scope="module")
def recorded():
    lines = RECORDED.read_text().splitlines()
    return dict(line.partition(" ")[::2] for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("name", JOBS)
def test_megatron_has_every_argument_and_its_value(name, recorded):
    script = emit_job(job(name), "megatron").text
    lines = re.findall(r"^  (--.+)$", script.partition("torchrun")[0], re.MULTILINE)
    assert len(lines) > 30
    for line in lines:
        argument, *words = shlex.split(line)
        kind, _, several = recorded[argument].partition(" ")
        assert bool(words) == bool(kind), line
        assert several or len(words) <= 1, line
        for word in words:
            if kind in TYPES:
                TYPES[kind](word)
            elif "|" in kind:
                assert word in kind.split("|"), line


@pytest.mark.parametrize("name", ["mla", "groups"])
def test_routers_without_softmax_are_said(name):
    script = emit_job(job(name), "megatron").text
    assert "--moe-router-score-function sigmoid" in script
    assert "--moe-router-enable-expert-bias" in script


def test_torchtitan_has_the_flavours_as_spelt():
    # torchtitan 7e4ab8599, torchtitan/models/*/__init__.py and experiments/gpt_oss/__init__.py.
    spelt = {
        "llama3": {"debugmodel", "8B", "70B", "405B"},
        "llama4": {"debugmodel", "17bx16e", "17bx128e", "17bx16e_irope", "17bx128e_irope"},
        "qwen3": {"0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B"},
        "deepseek_v3": {"debugmodel", "16B", "236B", "671B"},
        "gpt_oss": {"debugmodel", "20b", "120b"},
    }
    for (name, _), flavour in _SHIPPED.items():
        assert flavour in spelt[name]
