"""Reading and writing what a worker answers: an `Answer`, or the error that kept it from one."""

import json
from pathlib import Path

from pydantic import ValidationError

from projector.errors import MeasurementError, ProjectorError
from projector.files import write_whole
from projector.measure.task import Answer, Task

LOST_RANK = 75
"""Exit code of a rank that has waited in vain for another one: BSD's ``EX_TEMPFAIL``."""


def write_answer(path: Path, answer: Answer) -> None:
    """Write what was measured; the file appears whole."""
    write_whole(path, answer.model_dump_json().encode(), key="answer")


def write_error(path: Path, error: ProjectorError) -> None:
    """Write why nothing could be measured; the worker then ends with an exit code above 0."""
    write_whole(path, json.dumps(error.to_dict()).encode(), key="answer")


def read_error(path: Path) -> MeasurementError | None:
    """Return the error that a worker has written, None if it has written none."""
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        message = stated["error"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return MeasurementError(
        str(message),
        key=str(stated.get("key", "")),
        value=stated.get("value"),
        allowed=stated.get("allowed"),
    )


def read_answer(task: Task, path: Path) -> Answer:
    """Return what a worker has answered."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        msg = "the worker ended without an answer"
        raise MeasurementError(msg, key="worker", allowed="an answer") from None
    try:
        answer = Answer.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        why = f"{where}: {first['msg']}" if where else first["msg"]
        msg = f"the worker's answer cannot be read: {why}"
        raise MeasurementError(msg, key="worker", value=text, allowed="an answer") from None
    asked, outcomes = len(task.programs), len(answer.outcomes)
    if asked != outcomes:
        msg = f"the worker answered {outcomes} programs of {asked}"
        raise MeasurementError(msg, key="worker", value=outcomes, allowed=asked)
    return answer
