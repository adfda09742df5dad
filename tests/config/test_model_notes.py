"""What the reader of a model cannot follow reaches everybody who projects the model."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from projector.cli.main import run
from projector.config.first_order_job import load_first_order_job
from projector.config.load import Variants, load_job
from projector.config.model_file import load_model
from projector.sweeps.table import load_space

DENSE = {
    "model_type": "gemma2",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
}
EXPERTS = {
    **{key: value for key, value in DENSE.items() if key != "attn_logit_softcapping"},
    "model_type": "deepseek_v3",
    "kv_lora_rank": 128,
    "q_lora_rank": None,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "topk_group": 1,
    "num_nextn_predict_layers": 1,
}
SOFT_CAP, MODULE = "soft cap", "multi-token-prediction"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DENSE))
    return path


def job_of(model: Any, device: str = "h100") -> dict[str, Any]:
    return {
        "model": model,
        "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 2048},
        "cluster": {"device": device, "nodes": 1},
    }


def has(notes: Any, word: str) -> bool:
    return sum(word in note for note in notes) == 1


def test_every_way_to_name_a_model_keeps_its_notes(file: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(yaml.safe_dump({"extends": "config.json", "num_layers": 2}))
    for source in (DENSE, str(file), file, str(own), {"extends": str(file), "num_layers": 2}):
        assert has(load_model(source).notes, SOFT_CAP), source
        assert has(load_job(job_of(source)).notes, SOFT_CAP), source
    assert has(load_job(job_of("llama3_8b"), {"model": str(file)}).notes, SOFT_CAP)
    assert has(load_job(job_of(str(file)), {"model.num_layers": 2}).notes, SOFT_CAP)


def test_a_job_file_names_a_model_beside_itself(file: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(job_of(file.name)))
    assert has(load_job(job).notes, SOFT_CAP)


def test_notes_go_with_their_model() -> None:
    job = load_job(job_of(DENSE))
    assert has(load_job(job, {"training.micro_batch_size": 2}).notes, SOFT_CAP)
    assert load_job(job, {"model": "llama3_8b"}).notes == ()
    variants = Variants(job)
    assert has(variants.job({"parallelism.tp": 2}).notes, SOFT_CAP)
    assert has(variants.job({"model.num_layers": 2}).notes, SOFT_CAP)
    assert variants.job({"model": "llama3_8b"}).notes == ()
    assert has(Variants(load_job(job_of("llama3_8b"))).job({"model": DENSE}).notes, SOFT_CAP)


def test_a_field_that_settles_a_note_takes_it_away() -> None:
    job = load_job(job_of(EXPERTS))
    assert has(job.notes, MODULE)
    assert load_job(job, {"model.mtp_num_layers": 1}).notes == ()
    assert load_job(job_of(EXPERTS), {"model.mtp_num_layers": 1}).notes == ()


def test_jobs_of_the_first_order_model_have_them_too() -> None:
    job = load_first_order_job(job_of(DENSE, "tpu_v5p"))
    assert has(job.notes, SOFT_CAP)
    assert has(load_first_order_job(job, {"parallelism.tp": 2}).notes, SOFT_CAP)
    other = load_first_order_job(job, {"model": "llama3_8b"})
    assert not any(SOFT_CAP in note for note in other.notes)


def test_a_space_has_those_of_its_base_and_its_axes() -> None:
    axes = {"parallelism.tp": [1, 2]}
    assert has(load_space({"base": job_of(DENSE), "axes": axes}).notes, SOFT_CAP)
    models = {"model": ["llama3_8b", EXPERTS]}
    notes = load_space({"base": job_of(DENSE), "axes": models}).notes
    assert has(notes, MODULE)
    assert not any(SOFT_CAP in note for note in notes)


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "FILE"],
        ["memory", "--config", "JOB"],
        ["performance", "--config", "JOB"],
        ["performance", "--config", "JOB", "--fidelity", "first-order"],
        ["sweep", "SPACE"],
        ["serve", "--model", "FILE", "--device", "h100"],
        ["serve", "--model", "FILE", "--device", "h100", "--fidelity", "first-order"],
    ],
    ids=" ".join,
)
def test_every_command_warns(
    arguments: list[str], file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, space = tmp_path / "job.yaml", tmp_path / "space.yaml"
    job.write_text(yaml.safe_dump(job_of(file.name)))
    space.write_text(yaml.safe_dump({"base": job.name, "axes": {"parallelism.tp": [1]}}))
    names = {"FILE": str(file), "JOB": str(job), "SPACE": str(space)}
    command = [names.get(word, word) for word in arguments]
    assert run([*command, "--json"]) == 0
    assert has(json.loads(capsys.readouterr().out)["warnings"], SOFT_CAP)
    assert run(command) == 0
    assert "soft cap" in capsys.readouterr().err
