import itertools
import json
import shlex

import pytest
import yaml

from projector.cli.main import run
from projector.config.resources import settings_of
from projector.envelope import flatten
from projector.errors import ConfigError
from projector.serving.api import read_case
from projector.serving.deployment import DEGREES
from projector.serving.launch import DYNAMO, ENGINES, launches, words_in, words_of

SPLITS = [
    dict(zip(DEGREES, degrees, strict=True))
    for degrees in itertools.product((1, 2, 4), (1, 2), (1, 2, 4, 8), (1, 2, 4))
]
"""tp, pp, ep and attention DP; those that cannot exist are left out."""

DRAFT = {"tokens": 2, "acceptance": 0.8, "draft": "mtp"}


def case(**words):
    load = {"load.batch": 24, "load.context": 4096, "load.output": 512}
    return read_case(
        None, {"model": "deepseek_v3", "device": "h200", "dtype": "fp8", **load, **words}
    )


def emitted(engine, **words):
    read = case(**words)
    return launches(engine, read.deployment, read.traffic)


def text_of(launch):
    return [*launch.files.values()][-1]


def options_of(text):
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {
        word: True if value.startswith("--") else yaml.safe_load(value)
        for word, value in pairs
        if word.startswith("--")
    }


def read_launch(engine, text):
    """Return the words of a deployment that a script, or the file of one, says."""
    table = settings_of("launch")[engine]
    said = flatten(yaml.safe_load(text)) if "file" in table else options_of(text)
    return words_in(table, said)


def read_graph(text):
    """Return type of a worker -> the words of a deployment that a manifest says."""
    spec = yaml.safe_load(text)["spec"]
    table, found = settings_of("launch")[DYNAMO][spec["backendFramework"]], {}
    for component in spec["components"][1:]:
        args = component["podTemplate"]["spec"]["containers"][0]["args"]
        said = flatten(json.loads(args[-1])) if "file" in table else options_of(shlex.join(args))
        found[component["type"]] = words_in(table, said)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_read_again_it_is_the_deployment_or_it_is_refused(engine):
    written = refused = 0
    for split in SPLITS:
        try:
            read = case(**split, kv_cache_bytes=1)
        except ConfigError:
            continue
        words = words_of(read.deployment, read.traffic)
        try:
            (launch,) = launches(engine, read.deployment, read.traffic)
        except ConfigError:
            refused += 1
            continue
        again = read_launch(engine, text_of(launch))
        for name in (*DEGREES, "cache", "length"):
            assert again[name] == words[name]
        batch = again.get("stage_batch") or again["group_batch"] * again["attention_dp"]
        assert batch >= 24
        tokens = again.get("step_tokens") or again["stage_tokens"] // again["attention_dp"]
        assert tokens == read.deployment.max_step_tokens
        written += 1
    assert written > 10
    # Only the options of SGLang say every split.
    assert (refused == 0) == (engine == "sglang")


@pytest.mark.parametrize("engine", ENGINES)
def test_only_options_of_the_table_are_written(engine):
    table = settings_of("launch")[engine]
    known = [table["options"], table["mtp"], table["prefill"], table["decode"]]
    known = {name for part in [*known, table.get("fused", {})] for name in part}
    apart = {"disaggregated": {"prefill": {"tp": 8, "attention_dp": 1, "ep": 1}}}
    model = {"model.mtp_num_layers": 1, "speculative": DRAFT}
    for launch in emitted(engine, tp=1, attention_dp=8, ep=8, **apart, **model):
        text = text_of(launch)
        options = {line.split()[0] for line in text.splitlines() if line.startswith("  --")}
        assert options <= known
        if launch.role == "decode":
            assert read_launch(engine, text)["drafts"] == 2
        else:
            assert "drafts" not in read_launch(engine, text)


def test_both_sides_are_written_with_their_roles():
    prefill, decode = emitted("vllm", tp=8, disaggregated={"prefill": {"tp": 4, "pp": 2}})
    assert (prefill.role, decode.role) == ("prefill", "decode")
    assert "kv_producer" in text_of(prefill)
    assert "kv_consumer" in text_of(decode)
    assert read_launch("vllm", text_of(prefill))["pp"] == 2


def test_what_cannot_be_said_is_named():
    (launch,) = emitted("sglang", tp=1, attention_dp=16, ep=16)
    named = " ".join(launch.unsaid)
    for word in ("gpu_memory_utilization", "page_tokens", "dtype", "cluster.nodes"):
        assert word in named
    with pytest.raises(ConfigError, match="TensorRT-LLM would run attention_dp 8") as caught:
        emitted("trtllm", tp=2, attention_dp=4, ep=8)
    assert caught.value.key == "attention_dp"


def test_the_command_writes_the_first_of_a_search(capsys, tmp_path):
    words = ["serve", "--search", "--model", "llama3.1_8b", "--device", "h100", "--gpus", "2"]
    words += ["--output", "64", "--ttft-ms", "300"]
    assert run([*words, "--emit", f"trtllm={tmp_path / 'run'}"]) == 0
    assert "Ranked" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "run").iterdir()}
    roles = ("serve",) if "serve.sh" in names else ("prefill", "decode")
    assert names == {f"{role}.{ending}" for role in roles for ending in ("sh", "yaml")}
    plain = ["serve", "--model", "llama3.1_8b", "--device", "h100", "--batch", "8"]
    assert run([*plain, "--emit", "vllm"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/sh\n# vLLM")
    assert run([*plain, "--emit", "triton"]) == 2
    assert "vllm, sglang, trtllm, dynamo" in capsys.readouterr().err
    assert run([*plain, "--emit", "vllm="]) == 2
    assert "names no folder" in capsys.readouterr().err
    assert run([*words, "--tpot-ms", "0.01", "--emit", "vllm"]) == 3
    assert "--emit wrote nothing" in capsys.readouterr().err


BACKENDS = {"vllm": 1, "sglang": 4, "tensorrt_llm": 1}
"""Engine of a deployment -> attention TP that it can say beside attention groups."""

FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"backendFramework", "components"},
    "component": {"name", "type", "replicas", "multinode", "podTemplate"},
    "container": {"name", "image", "command", "args", "env", "resources"},
}
"""Those of deploy/operator/api/v1beta1 of ai-dynamo/dynamo@006b6e1, and of a pod, that are used."""


@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize("apart", [False, True])
def test_a_manifest_is_the_deployment(engine, apart):
    tp = BACKENDS[engine]
    words = {"tp": tp, "attention_dp": 16 // tp, "ep": 16, "cluster.nodes": 2, "engine": engine}
    if apart:
        words["disaggregated"] = {"prefill": {"tp": 8, "attention_dp": 1, "ep": 1}}
        words |= {"model.mtp_num_layers": 1, "speculative": DRAFT}
    read = case(**words, kv_cache_bytes=1)
    (launch,) = launches("dynamo", read.deployment, read.traffic, (3, 2))
    text = launch.files["dynamo.yaml"]
    manifest = yaml.safe_load(text)
    assert set(manifest) == FIELDS[""]
    assert set(manifest["spec"]) == FIELDS["spec"]
    front, *workers = manifest["spec"]["components"]
    roles = ["prefill", "decode"] if apart else ["worker"]
    assert [front["type"], *(each["type"] for each in workers)] == ["frontend", *roles]
    assert [each["replicas"] for each in workers] == ([3, 2] if apart else [2])
    for each in (front, *workers):
        assert set(each) <= FIELDS["component"]
        (main,) = each["podTemplate"]["spec"]["containers"]
        assert set(main) <= FIELDS["container"]
        assert main["name"] == "main"
        assert all(isinstance(word, str) for word in main.get("args", []))
    assert workers[-1]["multinode"] == {"nodeCount": 2}
    found = read_graph(text)
    for role, side in zip(
        roles[::-1], (read.deployment, read.deployment.prefill_side), strict=False
    ):
        for name in DEGREES:
            assert found[role][name] == getattr(side, name)
        assert found[role].get("drafts", 0) == (2 if apart and role == "decode" else 0)
    if apart:
        assert "multinode" not in workers[0]
        assert workers[0]["podTemplate"]["spec"]["containers"][0]["args"][2:4] == [
            "--disaggregation-mode", "prefill",
        ]  # fmt: skip


def test_dynamo_runs_the_engine_of_the_deployment(capsys, tmp_path):
    plain = ["serve", "--model", "llama3.1_8b", "--device", "h100", "--batch", "8"]
    assert run([*plain, "--emit", "dynamo"]) == 2
    assert "engine (generic) is none that Dynamo runs" in capsys.readouterr().err
    assert run([*plain, "engine=vllm", "--emit", f"dynamo={tmp_path / 'k8s'}"]) == 0
    found = read_graph((tmp_path / "k8s" / "dynamo.yaml").read_text())
    assert found["worker"]["tp"] == 1
    read = case(tp=2, attention_dp=4, ep=8, engine="tensorrt_llm")
    with pytest.raises(ConfigError, match="TensorRT-LLM would run attention_dp 8"):
        launches("dynamo", read.deployment, read.traffic)
