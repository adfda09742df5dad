"""The commands of the run that collects counters."""

import os
import shlex

import pytest

from projector.measure.recorder import write_counter_commands
from projector.trace.counters import load_metrics

COMMAND = ["python", "train.py", "--name", "two words"]


def call_of(script):
    """Return the words of the script's one command."""
    lines = [line for line in script.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 1
    return shlex.split(lines[0])


def test_rocprofv3_runs_the_program_once_for_each_set(tmp_path):
    folder = tmp_path / "my traces"
    folder.mkdir()
    script = write_counter_commands(folder, COMMAND, "AMD")
    words = call_of(script)
    assert words[0] == "rocprofv3"
    assert words[words.index("--") + 1 :] == COMMAND
    assert words[words.index("-d") + 1] == str(folder / "counters")
    listed = (folder / "counters.txt").read_text().splitlines()
    assert words[words.index("-i") + 1] == str(folder / "counters.txt")
    assert listed == [f"pmc: {' '.join(each)}" for each in load_metrics().collect["AMD"]]
    assert os.access(script, os.X_OK)


def test_ncu_is_given_every_metric_at_once(tmp_path):
    words = call_of(write_counter_commands(tmp_path, COMMAND, "NVIDIA"))
    assert words[0] == "ncu"
    assert words[-len(COMMAND) :] == COMMAND
    metrics = words[words.index("--metrics") + 1].split(",")
    assert metrics == [name for each in load_metrics().collect["NVIDIA"] for name in each]


@pytest.mark.parametrize("vendor", ["AMD", "NVIDIA"])
def test_what_is_collected_gives_utilisation_and_cycles(vendor):
    """Nothing is collected for nothing: the metrics of the gap follow from it."""
    collected = {name for each in load_metrics().collect[vendor] for name in each}
    for metric in ("matrix_utilisation", "cycles"):
        ways = load_metrics().metrics[metric].ways
        assert any(any(name in way.of for name in collected) for way in ways), metric
