"""Files of a step that other tools open, asked for by ``projector performance``."""

import pytest

from projector.cli.project import StepFiles
from projector.errors import ConfigError


def test_a_timeline_and_a_snapshot_are_two_files(tmp_path):
    place = str(tmp_path / "step.json")
    with pytest.raises(ConfigError, match="is the file of --timeline"):
        StepFiles(place, place).check()
    StepFiles(place, str(tmp_path / "step.pickle")).check()
    StepFiles(None, None).check()


@pytest.mark.parametrize("end", ["", "/"])
def test_a_name_that_is_too_long(end):
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        StepFiles("x" * 300 + end, None).check()
