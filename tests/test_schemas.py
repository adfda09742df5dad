"""Schemas: they are current, shipped files keep to them, and mistakes do not."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from projector.cli.main import run
from projector.config import resources

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def kind_of(example):
    return {"space": "space", "serve": "deployment"}.get(example.stem.partition("_")[0], "job")


FILES = [(kind_of(path), path) for path in EXAMPLES if not path.stem.startswith("rl_")]
FILES += [("device", path) for path in sorted((ROOT / "examples" / "devices").glob("*.yaml"))]
FILES += [
    (kind, ROOT / folder / f"{name}.yaml")
    for kind, folder in (("device", "hardware"), ("model", "models"))
    for name in resources.shipped(folder)
]


@pytest.fixture(scope="module")
def validators():
    paths = (ROOT / "schemas").glob("*.json")
    schemas = {path.stem: json.loads(path.read_text()) for path in paths}
    kind = jsonschema.Draft202012Validator
    for schema in schemas.values():
        kind.check_schema(schema)
    return {name: kind(schema) for name, schema in schemas.items()}


@pytest.mark.thorough
def test_they_are_current():
    subprocess.run([sys.executable, ROOT / "docs" / "make_schemas.py", "--check"], check=True)


@pytest.mark.parametrize(("kind", "path"), FILES, ids=lambda each: getattr(each, "stem", each))
def test_shipped_files_keep_to_them(kind, path, validators):
    data = yaml.safe_load(path.read_text())
    if path.stem == "recipes":
        pytest.skip("no model but a table of layouts")
    validators[kind].validate(data)


@pytest.mark.parametrize(("section", "key", "value"), [
    ("parallelism", "tpp", 4),
    ("parallelism", "tp", 0),
    ("parallelism", "tp", "four"),
    ("training", "precision", "fp9"),
    ("cluster", "devices", "h100"),
])  # fmt: skip
def test_mistakes_are_found(section, key, value, validators):
    data = yaml.safe_load((ROOT / "examples" / "mixtral_8x22b_mi355x.yaml").read_text())
    validators["job"].validate(data)
    data[section] = {**data[section], key: value}
    assert not validators["job"].is_valid(data)


def test_fields_are_explained(validators):
    shapes = validators["job"].schema["$defs"]["ParallelismConfig"]["properties"]
    assert "Tensor parallelism" in shapes["tp"]["description"]
    assert shapes["tensor_model_parallel_size"]["description"] == "Same as tp."
    assert len(validators["space"].schema["properties"]["axes"]["properties"]) > 100


def test_outputs_of_other_jobs_keep_to_them(validators, capsys):
    for command in ("memory", "performance"):
        assert run(
            [command, "--config", str(ROOT / "examples/deepseek_v3_h800.yaml"), "--json"]
        ) in {0, 3}
        found = json.loads(capsys.readouterr().out)
        validators[f"{command}_output"].validate(found)
        broken = copy.deepcopy(found)
        del broken["schema_version"]
        assert not validators[f"{command}_output"].is_valid(broken)


def test_the_command_prints_them(capsys):
    assert run(["schema"]) == 0
    names = capsys.readouterr().out.split()
    assert {"job", "space", "device", "performance_output"} <= set(names)
    assert run(["schema", "job"]) == 0
    assert capsys.readouterr().out == (ROOT / "schemas" / "job.json").read_text()
    assert run(["schema", "jobs"]) == 2
    assert "known: attention_output" in capsys.readouterr().err
