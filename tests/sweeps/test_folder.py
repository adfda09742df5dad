"""Sweeps of a caller whose working directory is gone."""

import os
import subprocess
import sys

import pytest

from projector.errors import ConfigError
from projector.sweeps.engine import sweep
from sweeps.grid import grid


def test_a_working_directory_that_was_removed_is_named(tmp_path, monkeypatch):
    def gone():
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    with pytest.raises(ConfigError, match="working directory does not exist") as caught:
        sweep(grid(), tmp_path / "rows")
    assert caught.value.key == "working_directory"
    assert caught.value.allowed


def test_the_command_says_so_in_one_line(tmp_path):
    code = (
        "import os, sys, tempfile; folder = tempfile.mkdtemp(); os.chdir(folder);"
        "os.rmdir(folder); from projector.cli.main import run;"
        f"sys.exit(run(['sweep', {str(tmp_path / 'space.yaml')!r}, '--quiet']))"
    )
    (tmp_path / "space.yaml").write_text(
        "base: {model: llama3.1_8b, training: {micro_batch_size: 1, global_batch_size: 64, "
        "seq_length: 4096}, cluster: {device: h100, nodes: 1}}\naxes: {parallelism.tp: [1, 2]}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the working directory does not exist any more")
