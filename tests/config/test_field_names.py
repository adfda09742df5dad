import pytest

import projector as pj
from projector.cli.main import run
from projector.config.job import Job
from projector.config.names import aliases_of, in_full, job_field, native_names, shortened
from projector.config.space import flat_fields, readable_names
from projector.errors import ConfigError
from projector.searches.sensitivity import sensitivity
from projector.sweeps.table import load_space

JOB = {
    "model": "llama3.1_8b",
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 1},
}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("tp", "parallelism.tp"),
        ("mbs", "training.micro_batch_size"),
        ("micro-batch-size", "training.micro_batch_size"),
        ("tensor_model_parallel_size", "parallelism.tp"),
        ("nodes", "cluster.nodes"),
        ("device", "cluster.device"),
        ("tokens", "run.tokens"),
        ("recompute", "training.recompute"),
        ("recompute.granularity", "training.recompute.granularity"),
        ("hbm_peak_tb_per_s", "cluster.device.hbm_peak_tb_per_s"),
        ("model", "model"),
        ("model.num_layers", "model.num_layers"),
        ("nothing", "nothing"),
        ("adapter", "training.adapter"),
        ("adapter.rank", "training.adapter.rank"),
        # One of these alone would make LoRA of a full training.
        ("rank", "rank"),
        ("dropout", "dropout"),
        ("r", "r"),
    ],
)
def test_a_short_name_stands_for_a_field(name, field):
    assert job_field(name) == field


def test_short_names_are_those_of_sweeps():
    flat = flat_fields(pj.load_job(JOB))
    of_sweeps = readable_names(flat)
    for name, field in of_sweeps.items():
        if name in {"tp", "pp", "zero_stage", "seq_length", "nodes", "precision", "schedule"}:
            assert job_field(name) == field
    assert shortened(["cluster.device.a.x", "parallelism.x", "run.x", "b.y"]) == {
        "x": "parallelism.x",
        "y": "b.y",
    }


def test_overrides_of_one_field_count_in_their_order():
    assert in_full({"tp": 4, "parallelism.pp": 2, "parallelism.tp": 8}) == {
        "parallelism.pp": 2,
        "parallelism.tp": 8,
    }
    assert in_full({"parallelism.tensor-model-parallel-size": 4}) == {"parallelism.tp": 4}
    assert native_names("training.recompute.recompute_modules") == (
        "training",
        "recompute",
        "modules",
    )
    assert aliases_of("cluster")["gpu"] == "device"
    assert aliases_of("no.section") == {}


@pytest.mark.parametrize(
    ("name", "nearest"), [("tpp", "parallelism.tp"), ("micro_batch", "training.micro_batch_size")]
)
def test_an_unknown_name_is_answered_with_the_nearest_field(name, nearest):
    with pytest.raises(ConfigError, match=f"no field '{name}'.*{nearest}") as error:
        pj.load_job(JOB, {name: 1})
    assert error.value.key == name
    assert nearest in error.value.allowed
    with pytest.raises(ConfigError, match="begins with its section: name, model, parallelism"):
        pj.load_job(JOB, {"zzzzz.q": 1})


def test_a_short_name_is_understood_wherever_fields_are_named():
    job = pj.load_job(JOB, {"tp": 8, "hbm_peak_tb_per_s": 4.0})
    assert job.parallelism.tp == 8
    assert job.cluster.device.hbm_peak_tb_per_s == 4.0
    space = load_space({"base": JOB, "axes": {"tp": [1, 2], "mbs, gbs": [[1, 32], [2, 64]]}})
    assert space.fields == (
        "parallelism.tp",
        "training.micro_batch_size",
        "training.global_batch_size",
    )
    (effect,) = sensitivity(JOB, fields=["hbm_peak_tb_per_s"]).effects
    assert effect.field == "cluster.device.hbm_peak_tb_per_s"
    with pytest.raises(ConfigError, match=r"^tp: a plan chooses it"):
        pj.project_plan("llama3.1_8b", "1T", gpus=[64], overrides={"tp": 8})


def test_a_short_name_is_understood_by_commands(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: llama3.1_8b\n"
        "training: {micro_batch_size: 1, global_batch_size: 32, seq_length: 4096}\n"
        "cluster: {device: h100, nodes: 1}\n"
    )
    outputs = set()
    for name in ("tp", "parallelism.tp", "tensor_model_parallel_size"):
        assert run(["memory", "--config", str(path), "--json", f"{name}=4"]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1
    assert run(["memory", "--config", str(path), "tpp=4"]) == 2
    assert "did you mean parallelism.tp" in capsys.readouterr().err
    assert Job.model_fields.keys() >= {"parallelism", "training"}


@pytest.mark.parametrize(
    ("name", "value", "words", "allowed"),
    [
        ("recompute", True, "should be none, selective, full or a mapping, not true", None),
        ("recompute", 1, "should be none, selective, full or a mapping, not 1", None),
        ("recompute.modules", "mlp", "should be a list", "a list"),
        ("tp", "two", "should be a whole number", "a whole number"),
        ("tp", 2.5, "should be a whole number", "a whole number"),
        ("tp", True, "should be a number, not true", "a number"),
        ("gpu_clock_mhz", "fast", "should be a number", "a number"),
        ("cuda_graphs", "maybe", "should be true or false", "true or false"),
        ("schedule", 3, "should be text", "text"),
        ("optimizer", 3, "should be a name or a mapping, not 3", "a name or a mapping"),
        ("elementwise", "foo", "should be fused or eager", ["fused", "eager"]),
        ("fsdp", 3, "should be false, 1 or 2", [False, 1, 2]),
        ("cluster.software", 3, "should be a mapping", "a mapping"),
    ],
)
def test_wrong_values_are_told_in_the_words_of_the_field(name, value, words, allowed):
    with pytest.raises(ConfigError) as error:
        pj.load_job(JOB, {name: value})
    field = job_field(name)
    assert error.value.message.startswith(f"{field}: {words}")
    assert error.value.key == field
    assert allowed is None or error.value.allowed == allowed
    for word in ("valid", "parse", "input", "tuple", "integer"):
        assert word not in error.value.message


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("kernel", "training.attention_kernel"),
        ("parallelims.pp", "parallelism.pp"),
        ("batch", "training.micro_batch_size"),
        ("sequence", "parallelism.sequence_parallel"),
    ],
)
def test_a_part_of_a_name_finds_the_field(name, first):
    with pytest.raises(ConfigError) as error:
        pj.load_job(JOB, {name: 1})
    assert error.value.allowed[0] == first


def test_a_model_that_does_not_exist_is_the_model_of_the_job():
    with pytest.raises(ConfigError, match=r"^model: unknown model") as error:
        pj.load_job(JOB, {"model": "llama9"})
    assert error.value.key == "model"
