"""The process that measures: reads a task, runs its programs on torch, writes an answer.

It is started as ``python -m projector.measure.worker TASK.json ANSWER.json``, by torchrun where
several ranks measure together. Only this module imports torch.
"""

import platform
import re
import sys
import time
from pathlib import Path
from typing import Any, Literal

import torch

from projector.errors import ProjectorError
from projector.measure.answers import write_answer, write_error
from projector.measure.devices import gpus_at_hand
from projector.measure.exchange import InStep, Ranks, join, kind_of_device
from projector.measure.guard import end_with_parent
from projector.measure.pace import Together, take_turns, warm_up
from projector.measure.parts import Kit, UnsupportedError, is_out_of_memory
from projector.measure.progress import tell
from projector.measure.runners import MAKERS, Bench
from projector.measure.stopwatch import Stopwatch
from projector.measure.task import Answer, Environment, Outcome, Program, Status, Task, name_of


def main(task_path: str, answer_path: str) -> int:
    """Measure what one file asks for and write the answer to another, or why there is none."""
    end_with_parent()
    task = Task.model_validate_json(Path(task_path).read_text("utf-8"))
    try:
        kind = kind_of_device(torch, task.device, gpus_at_hand())
        ranks = join(torch, task, kind)
        answer = measure(task.model_copy(update={"device": kind}), ranks)
        if ranks.rank == 0:
            write_answer(Path(answer_path), answer)
        ranks.leave()
    except ProjectorError as error:
        write_error(Path(answer_path), error)
        return 2
    return 0


def measure(task: Task, ranks: Ranks | None = None) -> Answer:
    """Run all programs of a task in this process, one rank of those that measure together."""
    if task.threads:
        torch.set_num_threads(task.threads)
    ranks = ranks or Ranks(torch)
    device = torch.device(_device_type(task.device))
    bench = Bench(
        kit=Kit(torch, device, task.seed), watch=Stopwatch(torch, device),
        comm=ranks.comm({"tp": task.tp, "cp": task.cp, "ep": task.ep, "etp": task.etp}),
        pace=task.pace, ranks=ranks,
    )  # fmt: skip
    outcomes = _outcomes(bench, task.programs)
    return Answer(environment=environment(device, task), outcomes=outcomes)


def _device_type(asked: str) -> str:
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return asked


def _outcomes(bench: Bench, programs: list[Program]) -> list[Outcome]:
    outcomes = []
    for number, program in enumerate(programs):
        if bench.ranks.rank == 0:
            tell(f"{number + 1} of {len(programs)}: {name_of(program)}")
        outcomes.append(_alone(bench, program))
    return outcomes


def _alone(bench: Bench, program: Program) -> Outcome:
    ranks = bench.ranks
    try:
        with ranks.all_or_none():
            prepared = MAKERS[program.program](bench, program)
        runner = prepared.runner if ranks.count == 1 else InStep(prepared.runner, ranks)
        settled = warm_up(runner, bench.pace, time.perf_counter, Together(ranks.agree))
        (samples,) = take_turns([runner], [settled], bench.pace.repeats)
    except UnsupportedError as error:
        return Outcome(status="unsupported", message=str(error))
    except (RuntimeError, MemoryError) as error:
        status: Status = "out_of_memory" if is_out_of_memory(error) else "failed"
        return Outcome(status=status, message=str(error).splitlines()[0])
    return Outcome(
        status="ok", times=samples.timings(), numbers=prepared.numbers, backend=prepared.backend
    )


def environment(device: Any, task: Task) -> Environment:
    """Describe where this process measures."""
    backend: Literal["cpu", "cuda", "rocm"] = "cpu"
    runtime, libraries = "", {}
    if device.type == "cuda":
        backend = "rocm" if torch.version.hip else "cuda"
        runtime = torch.version.hip or torch.version.cuda or ""
        properties = torch.cuda.get_device_properties(device)
        name, memory = properties.name, properties.total_memory
        if torch.backends.cudnn.is_available():
            libraries["cudnn"] = str(torch.backends.cudnn.version())
    else:
        name, memory = _processor(), _memory_bytes()
    return Environment(
        device=name, backend=backend, memory_bytes=memory, ranks=task.ranks,
        threads=torch.get_num_threads() if backend == "cpu" else None, torch=torch.__version__,
        runtime=runtime, libraries=libraries, system=f"{platform.platform()}, {_processor()}",
    )  # fmt: skip


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        text = Path("/proc/meminfo").read_text("utf-8")
    except OSError:
        return 0
    found = re.search(r"MemTotal:\s*(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
