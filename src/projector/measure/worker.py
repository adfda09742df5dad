"""The process that measures: reads a task, runs its programs on torch, writes an answer.

It is started as ``python -m projector.measure.worker TASK.json ANSWER.json``, by torchrun where
several ranks measure together, and takes one task after the other, each as soon as its file is
there: the files of the second one end in ``1``. Only this module and `recorder` import torch.
"""

import gc
import os
import platform
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch

from projector.errors import ProjectorError
from projector.measure import devices
from projector.measure import task as tasks
from projector.measure.exchange import LostRankError, Ranks, join, kind_of_device
from projector.measure.guard import end_with_parent
from projector.measure.pace import Stopwatch
from projector.measure.parts import Kit
from projector.measure.runners import Bench
from projector.measure.session import Session
from projector.measure.smi import address_of
from projector.measure.vendor import Sampler

LOOKS_EVERY_S = 0.005
"""How often a worker that waits looks for its next task."""


def main(task_path: str, answer_path: str, *, serving: bool = False) -> int:
    """Measure what a file asks for into another.

    ``serving`` goes on with further ones until it is killed, and allocates free memory alone.
    """
    end_with_parent()
    # What importing torch left behind stays; each collection would look through it again.
    gc.freeze()
    ranks = None
    for turn in count():
        number = turn or ""
        task = tasks.Task.model_validate_json(_awaited(Path(f"{task_path}{number}")))
        answered = Path(f"{answer_path}{number}")
        try:
            kind = kind_of_device(torch, task.device, devices.gpus_at_hand())
            if ranks is None:
                if kind == "cpu" and serving:
                    devices.limit_memory()
                ranks = join(torch, task, kind)
            answer = measure(task.model_copy(update={"device": kind}), ranks)
            if ranks.rank == 0:
                tasks.write_answer(answered, answer)
            if not serving:
                ranks.leave()
                break
            if ranks.rank == 0:
                tasks.tell(tasks.ANSWER_IS_THERE)
        except ProjectorError as error:
            tasks.write_answer(answered, error)
            return 2
        except LostRankError as error:
            sys.stderr.write(f"LostRankError: {error}\n")
            sys.stderr.flush()
            # Leaving in order would wait for the other rank once more.
            os._exit(tasks.LOST_RANK)
    return 0


def _awaited(path: Path) -> str:
    while not path.exists():
        time.sleep(LOOKS_EVERY_S)
    return path.read_text("utf-8")


def measure(task: tasks.Task, ranks: Ranks | None = None) -> tasks.Answer:
    """Run all programs of a task in this process, one rank of those that measure together."""
    if task.threads:
        torch.set_num_threads(task.threads)
    found = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(found if task.device == "auto" else task.device)
    if device.type == "cuda":
        # Counters of memory want a number in some releases of torch.
        device = torch.device("cuda", torch.cuda.current_device())
    bench = Bench(Kit(torch, device, task.seed), Stopwatch(torch, device), ranks or Ranks(torch))
    with _sampler(device) as sampler:
        outcomes = Session(bench, task.pace, sampler).measure(task.programs)
    return tasks.Answer(environment=environment(device, task), outcomes=outcomes)


def _sampler(device: Any) -> Sampler:
    if device.type != "cuda":
        return Sampler(None)
    index = torch.cuda.current_device()
    return Sampler(index, pci=address_of(torch.cuda.get_device_properties(index)))


def environment(device: Any, task: tasks.Task) -> tasks.Environment:
    """Describe where this process measures."""
    backend: Literal["cpu", "cuda", "rocm"] = "cpu"
    runtime = ""
    if device.type == "cuda":
        backend = "rocm" if torch.version.hip else "cuda"
        runtime = torch.version.hip or torch.version.cuda or ""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        # Some builds for ROCm know no names; the kernel has the device.
        hand = None if properties.name else devices.gpus_at_hand()
        name, memory = hand.name if hand else properties.name, properties.total_memory
    else:
        name, memory = devices.cpu_name(), devices.memory_bytes().total
    return tasks.Environment(
        device=name, backend=backend, memory_bytes=memory, ranks=task.ranks,
        threads=torch.get_num_threads() if backend == "cpu" else None,
        torch=torch.__version__, runtime=runtime, libraries=_libraries(backend),
        driver=devices.driver_at_hand() if backend != "cpu" else "",
        system=f"{platform.platform()}, {devices.cpu_name()}",
    )  # fmt: skip


def _libraries(backend: str) -> dict[str, str]:
    if backend == "cpu":
        found = {
            "oneDNN": "linked" if torch.backends.mkldnn.is_available() else "",
            "MKL": "linked" if torch.backends.mkl.is_available() else "",
            "CPU capability": torch.backends.cpu.get_cpu_capability(),
        }
        return {name: text for name, text in found.items() if text}
    found = {}
    if torch.backends.cudnn.is_available():
        found["MIOpen" if backend == "rocm" else "cuDNN"] = str(torch.backends.cudnn.version())
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        version = ".".join(str(part) for part in torch.cuda.nccl.version())
        found["RCCL" if backend == "rocm" else "NCCL"] = version
    try:
        import flash_attn
    except ImportError:
        pass
    else:
        found["flash_attn"] = flash_attn.__version__
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], serving=True))
