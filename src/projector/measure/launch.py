"""A training command, with the recorder put between launcher and script."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from projector.errors import ConfigError, MeasurementError
from projector.files import check_name, made_folder
from projector.measure.process import INSTALL
from projector.measure.vendor import signals_to

_ASK = "import sys, importlib.util; sys.exit(importlib.util.find_spec('torch') is None)"
_RECORDER = "projector.measure.recorder"
_LAUNCHERS = ("python", "torchrun", "accelerate")
_LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_MODULE = ("-m", "--module")


class Recorded(NamedTuple):
    """What a recorded run left behind."""

    traces: list[str]
    samples: list[str]
    counters: str | None
    """Script that collects counters, where there was a GPU."""


def recording_command(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return ``train.py ...``, ``python``, ``torchrun`` or ``-m`` with the recorder around it."""
    place = _program(command)
    launcher = list(command[:place])
    name = Path(launcher[0]).name if launcher else ""
    if launcher and not name.startswith(_LAUNCHERS):
        msg = f"{name} does not take a module to run; use record_trace in the script instead"
        raise _not_recorded(msg, command)
    module = ["--module"] if command[place] in _MODULE else []
    program = command[place + len(module) :]
    start = launcher or [sys.executable]
    return [*start, "-m", _RECORDER, *options, *module, *program]


def _program(command: Sequence[str]) -> int:
    """Return where in a command its script stands, or the ``-m`` before its module."""
    place = 0
    while place < len(command):
        word, following = command[place], command[place + 1 : place + 2]
        if word in _MODULE and following:
            if following[0] not in _LAUNCHING_MODULES:
                return place
            place += 1
        elif word.endswith(".py"):
            return place
        place += 1
    raise _not_recorded("no Python script or module stands in the command", command)


def _not_recorded(msg: str, command: Sequence[str]) -> ConfigError:
    allowed = "[python | torchrun ... | accelerate launch ...] SCRIPT.py or -m MODULE, and options"
    return ConfigError(msg, key="command", value=" ".join(command), allowed=allowed)


def record_command(
    command: Sequence[str],
    folder: str | Path,
    options: Sequence[str] = (),
    *,
    overwrite: bool = False,
    output: TextIO | None = None,
) -> Recorded:
    """Run a training command and record some of its iterations into a folder.

    An iteration ends with the step of the first optimizer. With ``overwrite`` a folder that holds a
    recording already is used, and its traces are deleted. The command's own output goes to this
    process's, unless to ``output``.
    """
    check_name(folder, key="out")
    place = Path(folder)
    arguments = recording_command(command, ["--out", str(place), *options])
    former = _left(place)
    if (former.traces or former.samples) and not overwrite:
        msg = f"{place} holds a recording already"
        raise ConfigError(
            msg, key="out", value=str(place), allowed="another folder, or --overwrite"
        )
    made_folder(place, key="out")
    for path in (*former.traces, *former.samples):
        Path(path).unlink()
    try:
        if Path(arguments[0]).name.startswith("python") and _run([arguments[0], "-c", _ASK], None):
            msg = f"recording needs torch where the command runs: {INSTALL}"
            raise MeasurementError(msg, key="command", value=" ".join(command), allowed=INSTALL)
        code = _run(arguments, output)
    except OSError as error:
        raise _not_recorded(f"{arguments[0]} cannot be run: {error.strerror}", command) from None
    left = _left(place)
    if code:
        kept = f"; {len(left.traces)} traces were written" if left.traces else ""
        how = f"exit code {code}" if code > 0 else f"signal {-code} ({signal.strsignal(-code)})"
        msg = f"the command ended with {how}{kept}"
        raise MeasurementError(msg, key="command", value=" ".join(command))
    if not left.traces:
        msg = "nothing was recorded: no optimizer stepped often enough after the warm-up"
        raise MeasurementError(
            msg, key="warmup", allowed="fewer warm-up iterations, or record_trace in the script"
        )
    return left


def _run(arguments: Sequence[str], output: TextIO | None) -> int:
    """Run a command and return its exit code; the first Ctrl-C is its own, and is waited for."""
    with (
        subprocess.Popen(arguments, stdout=output) as process,  # noqa: S603
        # SIGTERM is passed on, so that the command does not outlive this process.
        signals_to(lambda *_: process.terminate(), signal.SIGTERM),
    ):
        try:
            return process.wait()
        except KeyboardInterrupt:
            sys.stderr.write("projector: waiting for the trace; Ctrl-C again ends it at once\n")
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.kill()
            raise


def _left(folder: Path) -> Recorded:
    counters = folder / "counters.sh"
    return Recorded(
        sorted(str(path) for path in folder.glob("rank*.json.gz")),
        sorted(str(path) for path in folder.glob("rank*.samples.jsonl")),
        str(counters) if counters.exists() else None,
    )
