"""Mistakes that users make: each exits 2, prints no result, and says what to do about it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from projector.cli.main import run

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXTRAL = EXAMPLES / "mixtral_8x22b_mi355x.yaml"
DENSE = EXAMPLES / "llama3.1_8b_fp8_mi325x.yaml"

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

# What is changed in which example; the key of the error; words of the remedy.
OVERRIDES = {
    "tp does not divide heads": (MIXTRAL, ["parallelism.tp=5"], "parallelism.tp", ["48", "legal"]),
    "experts of a dense model": (DENSE, ["parallelism.ep=8"], "parallelism.ep", ["dense model"]),
    "layers that cannot be laid out": (
        MIXTRAL, ["parallelism.vpp=16"], "parallelism.pp", ["56 layers", "at most"]
    ),
    "layout with too few stages": (
        MIXTRAL,
        ["parallelism.pipeline_model_parallel_layout=Et*28|t*28L"],
        "parallelism.pipeline_model_parallel_layout",
        ["8"],
    ),
    "batch that does not divide": (
        MIXTRAL, ["--global-batch-size", "250"], "training.global_batch_size", ["nearest", "256"]
    ),
    "unknown GPU": (MIXTRAL, ["cluster.device=mi365x"], "cluster.device", ["nearest", "mi355x"]),
    "unknown GPU by option": (MIXTRAL, ["--gpu-arch", "h10"], "cluster.device", ["h100"]),
    "unknown model": (MIXTRAL, ["model=mixtral_8x23b"], "model", ["mixtral_8x22b"]),
    "misspelt key": (MIXTRAL, ["parallelism.ppp=4"], "parallelism.ppp", ["did you mean 'pp'"]),
    "misspelt section": (MIXTRAL, ["parallelims.pp=4"], "parallelims", ["parallelism"]),
    "negative bandwidth": (
        MIXTRAL,
        ["cluster.network.nic_gbit_per_s=-400"],
        "cluster.network.nic_gbit_per_s",
        ["greater than 0"],
    ),
    "sequence that cp does not divide": (
        MIXTRAL,
        ["parallelism.cp=2", "training.seq_length=8190"],
        "training.seq_length",
        ["multiple of 4"],
    ),
    "unknown schedule": (
        MIXTRAL, ["--pipeline-schedule-algorithm", "1f1c"], "schedule", ["1f1b"]
    ),
    "clock above the peak": (
        MIXTRAL, ["--gpu-clock-mhz", "9000"], "cluster.gpu_clock_mhz", ["2400"]
    ),
    "no nodes": (MIXTRAL, ["--target-nodes", "0"], "cluster.nodes", ["greater than 0"]),
    "no override": (MIXTRAL, ["parallelism.tp"], "parallelism.tp", ["key=value"]),
    "profiling that is not there": (
        MIXTRAL, ["--profiling-mode", "measure"], "profiling_mode", ["simulate", "benchmark"]
    ),
    "simulating a record": (
        MIXTRAL,
        ["--profiling-mode", "simulate", "--load-benchmark", "record.json"],
        "load_benchmark",
        ["nothing that is measured"],
    ),
    "measuring what is loaded": (
        MIXTRAL,
        ["--load-benchmark", "record.json", "--save-benchmark", "again.json"],
        "save_benchmark",
        ["not measured again"],
    ),
    "record that is not there": (
        MIXTRAL, ["--load-benchmark", "nowhere.json"], "load_benchmark", ["does not exist"]
    ),
    "record that is none": (
        MIXTRAL, ["--load-benchmark", MIXTRAL], "load_benchmark", [MIXTRAL.name]
    ),
    "record without a folder": (
        MIXTRAL, ["--save-benchmark", "nowhere/record.json"], "save_benchmark", ["no folder"]
    ),
    "measuring on nothing": (
        MIXTRAL, ["--benchmark-gpus", "0"], "benchmark_gpus", ["1 is enough"]
    ),
    "closed forms of a record": (
        MIXTRAL,
        ["--load-benchmark", "record.json", "--fidelity", "first-order"],
        "load_benchmark",
        ["closed forms"],
    ),
    "missing hardware file": (
        MIXTRAL, ["--hardware-config", "nowhere.yaml"], "hardware_config", ["does not exist"]
    ),
}  # fmt: skip


def run_with(capsys, *arguments):
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def check(capsys, arguments, key, words):
    code, out, err = run_with(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    code, out, err_of_json = run_with(capsys, *arguments, "--json")
    found = json.loads(out)
    assert code == 2
    assert found.keys() == {"error", "key", "value", "allowed"}
    assert found["key"].startswith(key)
    assert err_of_json == err == f"error: {found['error']}\n"


@pytest.mark.parametrize("mistake", OVERRIDES)
def test_setting(mistake, capsys):
    config, changes, key, words = OVERRIDES[mistake]
    check(capsys, ["performance", "--config", config, *changes], key, words)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("empty", "", ["is empty"]),
        ("bomb", BOMB, ["values"]),
        ("list", "[1, 2]", ["not a mapping"]),
        ("broken", "model: [", ["not valid YAML", "line"]),
        ("twice", "model: a\nmodel: b\n", ["given twice"]),
        ("missing", None, ["does not exist"]),
    ],
)
def test_file(name, text, words, tmp_path, capsys):
    path = tmp_path / f"{name}.yaml"
    if text is not None:
        path.write_text(text)
    check(capsys, ["memory", "--config", path], "", words)


def test_directory(tmp_path, capsys):
    check(capsys, ["memory", "--config", tmp_path], "config", ["is a directory"])


@pytest.mark.parametrize("model_type", ["zamba2", "rwkv"])
def test_hybrid_model(model_type, tmp_path, capsys):
    folder = tmp_path / "hybrid"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": model_type, "hidden_size": 4096, "num_hidden_layers": 52})
    )
    model = f"model={folder / 'config.json'}"
    check(capsys, ["memory", "--config", DENSE, model], "model", [model_type])


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        (["performance"], "--config", ["Missing option"]),
        (["performance", "--benchmark-gpu", "8"], "--benchmark-gpu", ["No such option"]),
        (["performance", "--config", "x", "--target-nodes", "y"], "--target-nodes", ["'y'"]),
        (["perfomance"], "", ["did you mean 'performance'"]),
        (["train"], "", ["there is no command 'train'"]),
        (["sweep"], "space", ["SPACE"]),
        (["sweep", "nowhere.yaml"], "space", ["nowhere.yaml"]),
        (["models", "mixtral_8x23b"], "model", ["mixtral_8x22b"]),
        (["hardware", "mi365x"], "device", ["mi355x"]),
        (["init", "--nodes", "0"], "cluster.nodes", ["greater than 0"]),
        (["init", "--device", "mi365x"], "cluster.device", ["mi355x"]),
        (["compare", "nowhere.yaml", "nowhere.yaml"], "config", ["does not exist"]),
    ],
)
def test_command_line(arguments, key, words, capsys):
    check(capsys, arguments, key, words)


def test_init_into_a_folder_that_is_missing(tmp_path, capsys):
    target = tmp_path / "missing" / "job.yaml"
    check(capsys, ["init", "--output", target], "output", ["cannot be written"])
    assert not target.parent.exists()


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        (["--gpu-clock-mhz", "nan"], "cluster.gpu_clock_mhz", "nan"),
        (["--gpu-clock-mhz", "-inf"], "cluster.gpu_clock_mhz", "-inf"),
        (["training.moe.capacity_factor=.nan"], "training.moe.capacity_factor", "nan"),
    ],
)
def test_numbers_that_json_does_not_have(changes, key, value, capsys):
    _, out, _ = run_with(capsys, "memory", "--config", MIXTRAL, *changes, "--json")
    found = json.loads(out)
    assert (found["key"], found["value"]) == (key, value)


def test_text_that_is_no_unicode():
    main = "from projector.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, "memory", "--config", b"\xff", "--json"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["value"] == "\udcff"


@pytest.mark.parametrize("text", ["parallelism: {tp: 5}", "training: {micro_batch_size: x}"])
def test_compare_says_which_file_is_wrong(text, tmp_path, capsys):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        f"model: llama3.1_8b\ncluster: {{device: h100}}\n{text}\n"
        + ("" if "training" in text else "training: {mbs: 1, gbs: 8, seq_length: 4096}\n")
    )
    for files in ((DENSE, wrong), (wrong, DENSE)):
        code, _, err = run_with(capsys, "compare", *files)
        assert code == 2
        assert err.splitlines()[-1].startswith(f"error: {wrong}: ")
