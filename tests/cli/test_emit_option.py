"""``--emit`` of the commands that project a job."""

import json

import pytest

from projector import load_job
from projector.cli.main import run

JOB = """\
model: llama3.2_1b
parallelism: {tp: 2}
training: {micro_batch_size: 1, global_batch_size: 16, seq_length: 2048}
cluster: {device: h100}
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


@pytest.mark.parametrize("command", ["memory", "performance", "both"])
def test_a_job_is_written_in_place_of_the_report(command, job, tmp_path, capsys):
    assert run([command, "--config", str(job), "--emit", "megatron"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("#!/usr/bin/env bash\n")
    (tmp_path / "again.sh").write_text(out, encoding="utf-8")
    assert load_job(tmp_path / "again.sh").parallelism.tp == 2


def test_the_winner_of_a_search_is_written(job, tmp_path, capsys):
    files = [f"megatron={tmp_path / 'a.sh'}", f"primus={tmp_path / 'b.yaml'}"]
    options = [word for file in files for word in ("--emit", file)]
    options += ["--recompute", "none", "--json", "--top", "2"]
    assert run(["search", "--config", str(job), *options]) == 0
    result = json.loads(capsys.readouterr().out)
    best = result["best"][0]["overrides"]
    assert [each["format"] for each in result["emitted"]] == ["megatron", "primus"]
    for file, each in zip(("a.sh", "b.yaml"), result["emitted"], strict=True):
        again = load_job(tmp_path / file)
        assert each["text"] == (tmp_path / file).read_text(encoding="utf-8")
        assert again.training.micro_batch_size == best["training.micro_batch_size"]
        assert again.parallelism.tp == best["parallelism.tp"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fortran", "known: megatron, primus"),
        ("megatron=job.yaml", "must end in .sh"),
        ("primus=missing/job.yaml", "there is no folder"),
        (f"primus={'x' * 300}.yaml", "cannot be written: File name too long"),
    ],
)
def test_what_could_not_be_written_is_refused_first(text, says, job, capsys):
    assert run(["performance", "--config", str(job), "--emit", text]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert not captured.out


def test_what_the_framework_does_not_read_is_named(job, tmp_path, capsys):
    command = ["performance", "--config", str(job), "parallelism.pp=2"]
    plain, other = (str(tmp_path / name) for name in ("plain.sh", "other.sh"))
    assert run([*command, "--emit", f"megatron={plain}"]) == 0
    assert "cannot be said" not in capsys.readouterr().err
    schedule = "training.schedule=zerobubble"
    assert run([*command, schedule, "--emit", f"megatron={other}"]) == 0
    said = 'training.schedule="zerobubble" cannot be said to Megatron'
    assert said in " ".join(capsys.readouterr().err.split())
    assert run([*command, schedule, "--quiet", "--emit", f"megatron={other}"]) == 0
    assert "carries" not in capsys.readouterr().err


def test_a_search_without_a_winner_says_so(job, tmp_path, capsys):
    target = tmp_path / "winner.sh"
    options = ["--headroom-gib", "79", "--emit", f"megatron={target}"]
    assert run(["search", "--config", str(job), *options]) == 3
    assert "--emit wrote nothing" in capsys.readouterr().err
    assert not target.exists()


PLAN = ("plan", "--model", "llama3.2_1b", "--tokens", "20B", "--device", "h100", "--gpus", "8")


def test_the_first_choice_of_a_plan_is_written_and_runs_there(tmp_path, capsys):
    files = {"torchtitan": tmp_path / "a.toml", "deepspeed": tmp_path / "b.json"}
    options = [word for name, file in files.items() for word in ("--emit", f"{name}={file}")]
    assert run(["plan", "--config", str(plan_job(tmp_path)), *options, "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out)
    first = result["choices"][0]
    assert [each["format"] for each in result["emitted"]] == [*files]
    for file in files.values():
        again = load_job(file)
        assert again.cluster.gpus == first["gpus"]
        assert again.parallelism.tp == first["overrides"]["parallelism.tp"]
        assert again.parallelism.sharding_stage in {0, 2, 3}


def plan_job(folder):
    """Return a file of a run; torchtitan and DeepSpeed have its model."""
    path = folder / "run.yaml"
    path.write_text(
        JOB.replace("llama3.2_1b", "qwen3_0.6b").replace("16,", "64,") + "run: {tokens: 1e9}\n",
        encoding="utf-8",
    )
    return path


def test_a_plan_for_a_framework_offers_what_it_can_run(capsys):
    offered = {}
    for options in ([], ["--emit", "megatron"]):
        assert run([*PLAN, *options, "--quiet"]) == 0
        offered[bool(options)] = capsys.readouterr().out
    assert offered[True].startswith("#!/usr/bin/env bash\n")
    assert not offered[False].startswith("#!")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--emit", "fortran"], "known: megatron, primus"),
        (["--emit", "megatron", "--fidelity", "first-order"], "leave out --fidelity"),
        (["--emit", "torchtitan"], "torchtitan has no flavour"),
    ],
)
def test_a_plan_refuses_what_no_row_could_be(options, says, tmp_path, capsys):
    table = tmp_path / "plan.yaml"
    model = ["--model", "mixtral_8x7b", *PLAN[3:]]
    assert run(["plan", *model, *options, "--job-out", str(table)]) == 2
    captured = capsys.readouterr()
    assert says in " ".join(captured.err.split())
    assert not captured.out
    assert not table.exists()


def test_a_plan_without_a_choice_writes_nothing(tmp_path, capsys):
    target = tmp_path / "run.sh"
    model = ["--model", "llama3.1_405b", *PLAN[3:]]
    assert run(["plan", *model, "--emit", f"megatron={target}", "--quiet"]) == 3
    assert "--emit wrote nothing" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        (["training.adapter=lora"], ["--emit", "megatron=here.sh"], "no words for this job's adap"),
        (["model=mixtral_8x7b"], ["--emit", "torchtitan=here.toml"], "no flavour with the archi"),
        (["model=llama9"], ["--emit", "megatron=here.sh"], "unknown model 'llama9'"),
        (["model.position_embedding=alibi"], ["--emit", "primus=here.yaml"], "has no ALiBi"),
    ],
)
@pytest.mark.parametrize("command", ["performance", "search"])
def test_what_no_framework_could_run_is_one_error_and_no_file(
    command, changes, options, says, job, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    beside = {"performance": ["--timeline", "steps.json"], "search": ["--html", "ranked.html"]}
    other = ["--emit", "deepspeed=other.json"]
    assert run([command, "--config", str(job), *changes, *other, *options, *beside[command]]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("error:") == 1
    assert says in " ".join(captured.err.split())
    assert not captured.out
    assert [path.name for path in tmp_path.iterdir()] == [job.name]


def test_a_search_of_what_the_framework_has_not_names_the_field(job, tmp_path, capsys):
    target = tmp_path / "winner.sh"
    options = ["--recompute", "none", "--emit", f"megatron={target}", "--json"]
    assert run(["search", "--config", str(job), "training.schedule=dualpipe", *options]) == 3
    result = json.loads(capsys.readouterr().out)
    assert result["best"] == []
    assert set(result["infeasible"]) == {"training.schedule"}
    assert not target.exists()


def test_of_several_files_none_is_written_if_one_cannot_be(job, tmp_path, capsys):
    # As a name it is short enough, and what it is called while it is written is not.
    too_long = tmp_path / f"{'x' * 245}.yaml"
    options = ["--emit", f"megatron={tmp_path / 'a.sh'}", "--emit", f"primus={too_long}"]
    assert run(["performance", "--config", str(job), *options]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["job.yaml"]
