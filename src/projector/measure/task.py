"""What the worker is asked to measure, what it tells meanwhile, and what it answers.

Task and answer are JSON; progress is marked lines on its standard output.

The worker is a process of its own (`projector.measure.worker`), and no other process of ours
imports torch. It reads one `Task` and writes one `Answer`; each program of the task has one
outcome, in the same order. A program that runs out of memory, or that the build of torch cannot
run, is an outcome too.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from projector.config._base import Config
from projector.errors import MeasurementError, ProjectorError
from projector.files import write_whole
from projector.measure.keys import OperationKey

Status = Literal["ok", "out_of_memory", "unsupported", "failed"]
LayerKind = Literal["dense", "moe", "embedding", "head", "mtp"]

LEAST_S = 1e-9
"""What took less was not measured: no clock of a host or a device tells less apart."""


class Pace(Config):
    """How often something is run until its time counts."""

    warm_up_s: float = Field(0.1, ge=0.0)
    """At least so long is warmed up, and until three runs in a row differ by less than
    ``settled``."""
    most_warm_up_s: float = Field(5.0, gt=0.0)
    """Then it counts as settled all the same, which the outcome says."""
    settled: float = Field(0.03, gt=0.0)
    repeats: int = Field(11, gt=0)
    """Timed runs; programs of one task take turns, so that drift meets all alike."""
    least_s: float = Field(0.002, gt=0.0)
    """Shorter operations are repeated back to back until one sample takes this long."""
    enough_s: float | None = Field(None, gt=0.0)
    """What was timed for so long in all has no further runs once three in a row differ by less than
    a fifth of ``settled``; by default all have ``repeats``."""


class LayerSpec(Config):
    """One layer, as a rank of the measured job holds it: the columns of its workload.

    Names are those of `projector.lower.workload_columns`; extents are of the whole model, and
    ``tp``, ``ep``, ``cp`` say how ranks share them.
    """

    kind: LayerKind
    columns: dict[str, int]
    dtype: str
    """Matrix type: a key of ``Device.matrix_types``, such as ``bf16``."""
    attention: str = "flash"
    """Attention backend: ``flash``, ``cudnn``, ``sdpa`` or ``math``."""


class OperationProgram(Config):
    """One kernel by itself; a collective where ranks are there."""

    program: Literal["operation"] = "operation"
    key: OperationKey
    layer: LayerSpec | None = None
    """The layer that it belongs to, for memory-bound operations that are known by their label."""


class LayerProgram(Config):
    """Forward and backward of one real layer, in autograd."""

    program: Literal["layer"] = "layer"
    layer: LayerSpec
    delay_s: float = Field(0.0, ge=0.0)
    """Slept in every forward: a known slowdown that tests measure again."""


class StepProgram(Config):
    """A whole training step of a few layers: embedding, layers, head, loss, optimizer."""

    program: Literal["step"] = "step"
    layers: list[LayerSpec]
    """In model order, embedding first and head last."""
    optimizer: Literal["adam", "sgd"] = "adam"


class CopyProgram(Config):
    """A copy of so many bytes within the memory of the device, read and written."""

    program: Literal["copy"] = "copy"
    bytes: int = Field(gt=0)


class ClockProgram(Config):
    """The clock, and the power, that a device sustains under a load of one matrix type."""

    program: Literal["clock"] = "clock"
    dtype: str
    seconds: float = Field(2.0, gt=0.0)


Program = Annotated[
    OperationProgram | LayerProgram | StepProgram | CopyProgram | ClockProgram,
    Field(discriminator="program"),
]


def name_of(program: Program) -> str:
    """Return what people call a program while it runs."""
    match program:
        case OperationProgram(key=key):
            return f"{key.label} {key.phase}"
        case LayerProgram(layer=layer):
            return f"{layer.kind} layer"
        case StepProgram(layers=layers):
            return f"step of {len(layers)} layers"
        case CopyProgram():
            return f"copy of {program.bytes:,} bytes"
        case ClockProgram():
            return f"clock under {program.dtype}"


class Task(Config):
    """Everything that one worker measures."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``cuda`` is torch's name for GPUs of both vendors; ``auto`` takes one where there is one."""
    ranks: int = Field(1, gt=0)
    tp: int = Field(1, gt=0)
    cp: int = Field(1, gt=0)
    ep: int = Field(1, gt=0)
    etp: int = Field(1, gt=0)
    """Tensor parallelism of experts. Ranks of TP are numbered first, then those of CP; of experts
    those of ETP, then those of EP, over the same ranks."""
    threads: int | None = Field(None, gt=0)
    """Threads of a CPU; all cores unless stated."""
    seed: int = 0
    pace: Pace = Pace()
    programs: list[Program]


class Timing(Config):
    """Seconds of one run, over all repeats."""

    median_s: float = Field(ge=0.0)
    low_s: float = Field(ge=0.0)
    """Quarter of the runs were faster."""
    high_s: float = Field(ge=0.0)
    """Quarter of the runs were slower."""
    repeats: int = Field(gt=0)
    settled: bool = True
    clock_mhz: float | None = None
    """Median clock of the device while it ran; null where the vendor's library is not there."""
    power_w: float | None = None


class Outcome(Config):
    """What one program measured."""

    status: Status
    message: str = ""
    times: dict[str, Timing] = Field(default_factory=dict)
    """``time`` of an operation or copy; ``forward``, ``backward`` and, where the layer can tell
    them apart, ``input_gradient`` and ``weight_gradient`` of a layer; of a step also
    ``optimizer`` and ``total``."""
    numbers: dict[str, float] = Field(default_factory=dict)
    """``saved_bytes``, ``peak_allocated_bytes``, ``peak_reserved_bytes``, ``parameters``,
    ``clock_mhz`` …, each under a name with its unit."""
    backend: str = ""
    """What ran it: the library or the function of torch."""

    def timing(self, part: str = "time") -> Timing | None:
        """Return how long a part took, none where it did not run or took no time."""
        found = self.times.get(part) if self.status == "ok" else None
        return None if found is None or found.median_s < LEAST_S else found


class Environment(Config):
    """Where a measurement was taken."""

    device: str
    """Name of the device as its runtime gives it, such as ``NVIDIA H100 80GB HBM3``."""
    backend: Literal["cpu", "cuda", "rocm"]
    memory_bytes: int
    ranks: int = Field(1, gt=0)
    threads: int | None = None
    torch: str
    runtime: str = ""
    """Version of CUDA or ROCm."""
    driver: str = ""
    libraries: dict[str, str] = Field(default_factory=dict)
    """Versions of cuDNN, NCCL or RCCL, oneDNN …"""
    system: str = ""
    """Operating system and processor."""


class Answer(Config):
    """What one worker measured."""

    environment: Environment
    outcomes: list[Outcome]
    """One for each program, in their order; those of rank 0, times the slowest rank's."""


LOST_RANK = 75
"""Exit code of a rank that has waited in vain for another one: BSD's ``EX_TEMPFAIL``."""


def write_answer(path: Path, answer: Answer | ProjectorError) -> None:
    """Write what was measured, or why nothing could be; the file appears whole."""
    if isinstance(answer, ProjectorError):
        text = json.dumps(answer.to_dict())
    else:
        text = answer.model_dump_json()
    write_whole(path, text.encode(), key="answer")


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


Progress = Callable[[str], None]
"""Told what is measured now, one line at a time."""

MARK = "\x1e"
"""First character of such a line: ASCII's record separator, which no library prints."""


ANSWER_IS_THERE = ""
"""What a worker tells that waits for its next task."""


def tell(text: str) -> None:
    """Say, from a worker, what it does now; a sign of life as well."""
    sys.stdout.write(f"{MARK}{text}\n")
    sys.stdout.flush()


def told(line: str) -> str | None:
    """Return what a line of a worker's output tells, None for any other line."""
    return line[len(MARK) :].strip() if line.startswith(MARK) else None


class Sparing:
    """Passes progress on once something takes longer than a while, and then a line each while."""

    def __init__(self, tell: Progress, every_s: float = 1.0) -> None:
        self._tell, self._every_s = tell, every_s
        self._next = time.monotonic() + every_s

    def __call__(self, text: str) -> None:
        """Pass a line on, unless it comes too soon after the last one."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            self._tell(text)
