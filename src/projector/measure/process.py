"""Runs what is measured in a process of its own, so that its end never ends the caller."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from projector.errors import MeasurementError
from projector.measure.task import Answer, Task

Progress = Callable[[str], None]
"""Told what the worker does now, one line at a time."""


def run_task(
    task: Task, *, timeout_s: float | None = None, progress: Progress | None = None
) -> Answer:
    """Measure every program of a task.

    Parameters
    ----------
    task : Task
        What to measure.
    timeout_s : float, optional
        Seconds after which the worker counts as hung and is ended.
    progress : callable, optional
        Called with one line of text whenever the worker starts something new.

    Returns
    -------
    Answer
        One outcome for each program.

    Raises
    ------
    MeasurementError
        If the worker died, hung, or answered nothing that can be read.
    """
    del progress
    with tempfile.TemporaryDirectory(prefix="projector-") as folder:
        asked, answered = Path(folder, "task.json"), Path(folder, "answer.json")
        asked.write_text(task.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "projector.measure.worker", str(asked), str(answered)]
        try:
            run = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            msg = f"the measurement took more than {timeout_s:g} s and was ended"
            raise MeasurementError(msg, key="timeout_s", value=timeout_s) from None
        if run.returncode or not answered.exists():
            msg = f"the worker ended with exit code {run.returncode}: {run.stderr[-2000:]}"
            raise MeasurementError(msg, key="worker", value=run.returncode)
        try:
            return Answer.model_validate_json(answered.read_text(encoding="utf-8"))
        except ValidationError as error:
            msg = f"the worker's answer cannot be read: {error}"
            raise MeasurementError(msg, key="worker") from None
