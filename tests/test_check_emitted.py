"""`validation/check_emitted.py`: emitted files and the programs that they are for."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "validation"
PARSERS = str(FOLDER / "upstream_parsers.py")

DEEPSPEED = """\
import json
from types import SimpleNamespace

dist = SimpleNamespace()

class DeepSpeedConfig:
    def __init__(self, file, mpu):
        said = json.load(open(file))
        print("a line of its own")
        self.zero_config = SimpleNamespace(stage={stage})
        self.train_batch_size = said["train_batch_size"]
        self.train_micro_batch_size_per_gpu = said["train_micro_batch_size_per_gpu"]
        assert mpu.get_data_parallel_world_size() == 8, "other ranks"
"""
"""A stand-in for the part of DeepSpeed that reads its files."""


@pytest.fixture(scope="module")
def checking() -> ModuleType:
    spec = spec_from_file_location("check_emitted", FOLDER / "check_emitted.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("stage", "outcome"),
    [
        ('said["zero_optimization"]["stage"]', "accepted"),
        ("3", "other values"),
        ('said["no such key"]', "refused upstream"),
    ],
)
def test_the_installed_program_judges(stage, outcome, checking, tmp_path, monkeypatch):
    runtime = tmp_path / "deepspeed" / "runtime"
    runtime.mkdir(parents=True)
    (tmp_path / "torch.py").touch()
    for folder in (runtime, runtime.parent):
        (folder / "__init__.py").touch()
    (runtime / "config.py").write_text(DEEPSPEED.replace("{stage}", stage))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = checking.check("dense", checking.JOBS["dense"], "deepspeed", [sys.executable, PARSERS])
    assert row["outcome"] == outcome, row


@pytest.mark.parametrize("kind", ["megatron", "primus", "torchtitan", "deepspeed"])
def test_what_to_install_is_said_where_a_program_is_missing(kind, checking):
    job = checking.JOBS["ZeRO 3" if kind != "torchtitan" else "FSDP 2"]
    # Without the packages of this Python nothing but its own library is there.
    row = checking.check("a job", job, kind, [sys.executable, "-S", "-E", PARSERS])
    assert row["outcome"] == "not checked", row
    assert row["why"].startswith("missing ")
    assert "install" in row["why"] or "PYTHONPATH" in row["why"]


def test_a_refusal_of_ours_asks_no_parser(checking):
    row = checking.check("FSDP 1", checking.JOBS["FSDP 1"], "megatron", ["no such command"])
    assert row["outcome"] == "refused by us"
    assert "no FSDP 1" in row["why"]


def test_a_script_is_run_to_see_its_arguments(checking, tmp_path, monkeypatch):
    from projector import emit_job, load_job

    monkeypatch.syspath_prepend(str(FOLDER))
    import upstream_parsers

    script = tmp_path / "job.sh"
    text = emit_job(load_job(checking.JOBS["dense TP 8 PP 4 VPP 5"]), "megatron").text
    script.write_text(text, encoding="utf-8")
    words, environment = upstream_parsers._launched(script)
    assert words[words.index("--nnodes") + 1] == "8"
    assert words[words.index("--pipeline-model-parallel-size") + 1] == "4"
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
