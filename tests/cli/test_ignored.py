"""Settings of a file that change nothing: listed on request, and always in the JSON object."""

import json

import pytest

from projector.cli.main import run

SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --lr 1e-4 "
    "--num-attention-heads 8 --vocab-size 1000 --micro-batch-size 1 --global-batch-size 8 "
    "--seq-length 512 --bf16 --seed 3 --frobnicate 1 --frobnicate-too 2\n"
)


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT)
    return str(file)


@pytest.mark.parametrize("fidelity", ["tiles", "first-order"])
def test_json_lists_the_settings_that_change_nothing(script, capsys, fidelity):
    job = ["--config", script, "--gpu-arch", "h100", "--fidelity", fidelity, "--json"]
    for command in ("memory", "performance"):
        run([command, *job])
        found = json.loads(capsys.readouterr().out)
        assert found["ignored_settings"] == ["--lr", "--seed"]
        (unknown,) = [text for text in found["warnings"] if "unknown" in text]
        assert unknown == (
            "2 unknown Megatron arguments were ignored: --frobnicate, --frobnicate-too"
        )


def test_the_list_is_printed_on_request(script, capsys):
    run(["memory", "--config", script, "--gpu-arch", "h100"])
    assert "--lr" not in capsys.readouterr().err
    run(["memory", "--config", script, "--gpu-arch", "h100", "--list-ignored"])
    told = capsys.readouterr().err
    assert f"settings of {script} that change nothing (2): --lr, --seed" in told
