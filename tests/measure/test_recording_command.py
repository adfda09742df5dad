"""Where the recorder goes in the command of a training run."""

import os
import signal
import subprocess
import sys

import pytest

from projector.errors import ConfigError, MeasurementError
from projector.measure.launch import record_command, recording_command

RECORDER = ["-m", "projector.measure.recorder", "--out", "t"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train.py --lr 1", [sys.executable, *RECORDER, "train.py", "--lr", "1"]),
        ("python -u train.py a.py", ["python", "-u", *RECORDER, "train.py", "a.py"]),
        ("python -m pkg.train -m x", ["python", *RECORDER, "--module", "pkg.train", "-m", "x"]),
        (
            "torchrun --nproc-per-node 8 train.py --x",
            ["torchrun", "--nproc-per-node", "8", *RECORDER, "train.py", "--x"],
        ),
        (
            "python3.11 -m torch.distributed.run --nproc-per-node 2 -m pkg.train",
            ["python3.11", "-m", "torch.distributed.run", "--nproc-per-node", "2", *RECORDER,
             "--module", "pkg.train"],
        ),
    ],
)  # fmt: skip
def test_the_recorder_stands_between_launcher_and_script(command, expected):
    assert recording_command(command.split(), ["--out", "t"]) == expected


@pytest.mark.parametrize("command", ["ls -l", "python -c pass", "deepspeed train.py", ""])
def test_what_cannot_be_recorded_is_refused(command):
    with pytest.raises(ConfigError) as refused:
        recording_command(command.split(), [])
    assert refused.value.key == "command"


def test_a_recording_is_not_written_over_unasked(tmp_path):
    (tmp_path / "rank0.json.gz").write_bytes(b"former")
    with pytest.raises(ConfigError, match="holds a recording"):
        record_command(["train.py"], tmp_path)
    assert (tmp_path / "rank0.json.gz").read_bytes() == b"former"


@pytest.mark.thorough
def test_a_command_that_fails_says_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import nothing_of_that_name")
    with pytest.raises(MeasurementError, match="exit code 1"):
        record_command([str(script)], tmp_path / "out")


def test_a_program_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be run"):
        record_command(["python9.99", "train.py"], tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made or written"):
        record_command(["train.py"], tmp_path / "file")


STOPPING = """
import signal, sys, time
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1.0)
    print("written", flush=True)
"""

RUN = "import sys; from projector.measure.launch import _run; sys.exit(_run(sys.argv[1:], None))"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_is_waited_for(number):
    command = [sys.executable, "-c", RUN, sys.executable, "-c", STOPPING]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "begun\n"
        if number == signal.SIGINT:  # A terminal sends it to both.
            os.killpg(process.pid, number)
            assert process.stdout.read() == "written\n"
        else:  # It is passed on, so that the pipe ends with the command.
            process.send_signal(number)
            assert process.stdout.read() == ""
        process.wait()


def test_a_python_without_torch_is_told_how_to_get_it(tmp_path, monkeypatch, capfd):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None\n")
    (tmp_path / "train.py").write_text("print('trains')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MeasurementError, match=r"needs torch .*pip install .\.\[torch\]"):
        record_command([str(tmp_path / "train.py")], tmp_path / "out")
    assert capfd.readouterr() == ("", "")


def test_a_folder_whose_name_is_too_long_is_refused():
    with pytest.raises(ConfigError, match="File name too long"):
        record_command(["train.py"], "x" * 300, [])
