"""Files of a step that other tools open, asked for by ``projector performance``."""

from pathlib import Path

import pytest

from projector.cli.main import run
from projector.cli.project import StepFiles
from projector.errors import ConfigError

JOB = Path(__file__).parents[2] / "examples" / "measure_llama3_8b.yaml"


def test_a_timeline_and_a_snapshot_are_two_files(tmp_path):
    place = str(tmp_path / "step.json")
    with pytest.raises(ConfigError, match="is the file of --timeline"):
        StepFiles(place, place).check()
    StepFiles(place, str(tmp_path / "step.pickle")).check()
    StepFiles(None, None).check()


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    StepFiles(chakra=str(tmp_path / "new")).check()
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match="it is not empty; name a new folder") as caught:
        StepFiles(chakra=str(tmp_path)).check()
    assert caught.value.key == "chakra"


def test_execution_traces_are_written(tmp_path, capsys):
    folder = tmp_path / "et"
    options = ["--config", str(JOB), "--chakra", str(folder), "model.num_layers=4"]
    assert run(["performance", *options]) == 0
    assert (folder / "step.0.et").stat().st_size > 1000
    assert f"wrote {folder}; ASTRA-sim reads it" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["", "/"])
def test_a_name_that_is_too_long(end):
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        StepFiles("x" * 300 + end, None).check()
