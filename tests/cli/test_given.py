"""Options that would have no effect are refused."""

import json
from pathlib import Path

import pytest
import yaml

from projector.cli.main import run

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXTRAL = str(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
SENSITIVITY = f"sensitivity --config {MIXTRAL} --field hbm_peak_tb_per_s"
TRANSFER = "topology transfer mi300x --from 0 --to 1 --to 2"


@pytest.mark.parametrize(
    ("command", "key", "needs"),
    [
        (f"{SENSITIVITY} --samples 64", "samples", "--sobol"),
        (f"{SENSITIVITY} --seed 3", "seed", "--sobol"),
        (f"{SENSITIVITY} --range 3", "factor", "--sobol or --map"),
        (f"{SENSITIVITY} --weight 3", "weights", "several --config"),
        (f"sweep {EXAMPLES / 'space_schedules.yaml'} --overwrite", "overwrite", "--out PATH"),
        ("topology routes mi300x 0 1 --flow 0-1", "ends", "--flow"),
        ("topology routes mi300x 0 1 --route shortest", "route", "--flow"),
        (f"{TRANSFER} --bytes 1MiB", "size", "one --to"),
        (f"{TRANSFER} --accesses 2", "accesses", "one --to"),
        (f"{TRANSFER} --sweep", "sweep", "one --to"),
        (f"{TRANSFER} --route shortest", "route", "one --to"),
        ("calibrate gemm_measured none.csv --device h100 --force", "force", "--out"),
        ("probe --force", "force", "--out"),
    ],
)
def test_options_without_effect_are_refused(command, key, needs, capsys):
    assert run([*command.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)
    assert error["key"] == key
    assert needs in error["error"]
    assert "has no effect here" in err


def test_the_defaults_of_such_options_are_none_of_them(capsys):
    assert run(SENSITIVITY.split()) == 0
    assert run(TRANSFER.split()) == 0
    capsys.readouterr()


def test_all_schedules_are_compared_before_numbers_are_varied(tmp_path, capsys):
    job = {
        "model": "llama3.1_8b",
        "parallelism": {"pp": 4},
        "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": 1},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    every = ["--config", str(path), "--json", "--pipeline-schedule-algorithm", "all"]
    assert run(["performance", *every]) == 0
    fastest = json.loads(capsys.readouterr().out)
    assert fastest["schedule"] != "1f1b"
    assert run(["sensitivity", *every, "--field", "hbm_peak_tb_per_s"]) == 0
    varied = json.loads(capsys.readouterr().out)
    assert varied["iteration_time_ms"] == fastest["iteration_time_ms"]
