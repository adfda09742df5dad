"""``projector rl`` as its users run it."""

import json
import re
from pathlib import Path

import pytest

import projector as pj
from projector.cli.main import run

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "rl_llama8b_h100.yaml")
SMALL = ("responses.prompts=16", "rollout.tp=1")


@pytest.fixture
def projector_run(capsys):
    def call(*arguments):
        code = run(["rl", "--config", EXAMPLE, *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_page_shows_what_is_printed(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "rl.md").read_text(encoding="utf-8")
    examples = re.findall(r"```text\n\$ projector (rl .*)\n([\s\S]*?)\n```", page)
    assert len(examples) == 2
    for command, shown in examples:
        assert run([*command.split(), "--quiet"]) == 0
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        lines = [line for line in shown.splitlines() if line != "..."]
        assert [line for line in lines if line in printed] == lines


def test_json_is_the_result_of_python(projector_run):
    code, out, err = projector_run("--json", "--quiet", *SMALL)
    assert (code, err) == (0, "")
    found = pj.project_rl(EXAMPLE, overrides={"responses.prompts": 16, "rollout.tp": 1})
    assert json.loads(out) == json.loads(json.dumps(found.to_dict()))
    assert {"phases_ms", "idle", "held_gib", "bound", "verdict", "uncertainty"} <= json.loads(
        out
    ).keys()


def test_json_of_a_search_has_every_split(projector_run):
    code, out, _ = projector_run("--search", "--gpus", 16, "--json", *SMALL)
    ranked = json.loads(out)["configurations"]
    assert code == 0
    assert [each["step_ms"] for each in ranked] == sorted(each["step_ms"] for each in ranked)
    assert ranked[0]["overrides"].keys() >= {"placement", "rollout_gpus", "training.cluster.nodes"}


def test_what_does_not_fit_is_projected_all_the_same(projector_run):
    large = ("offload=false", "rollout.gpu_memory_utilization=0.9")
    code, out, _ = projector_run(*large, *SMALL)
    assert code == 3
    assert "\nDOES NOT FIT\n" in out
    little = ("rollout.pp=1", "rollout.gpu_memory_utilization=0.15")
    code, _, err = projector_run("--search", *little, *SMALL)
    assert code == 3
    assert "no split of the devices fits" in err
    code, out, _ = projector_run("--search", "--json", *little, *SMALL)
    assert (code, json.loads(out)["configurations"]) == (3, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["staleness=1"], "staleness: should be 0 where colocated (got 1)"),
        (["placement=apart"], "rollout_gpus: is required where rollout and training lie apart"),
        (["rollout.tp=3"], "rollout: tp (3) must divide num_attention_heads (32)"),
        (["--gpus", "32"], "--gpus has no effect here: it needs --search"),
        (["responses.tokens.high=0"], "responses.tokens.high: "),
    ],
)
def test_mistakes(projector_run, arguments, message):
    code, out, err = projector_run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_one_field_of_the_lengths_is_set_beside_the_others(projector_run):
    code, out, _ = projector_run("--json", "--quiet", *SMALL, "responses.tokens.mean=1500")
    assert code == 0
    tokens = {"kind": "lognormal", "mean": 1500, "high": 3896}
    changes = {"responses.prompts": 16, "rollout.tp": 1, "responses.tokens": tokens}
    found = pj.project_rl(EXAMPLE, overrides=changes)
    assert json.loads(out) == json.loads(json.dumps(found.to_dict()))
