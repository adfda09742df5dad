"""A stand-in for the worker: answers as told, and remembers what it was asked."""

from projector.errors import MeasurementError
from projector.measure.task import (
    Answer,
    ClockProgram,
    CopyProgram,
    Environment,
    Outcome,
    Timing,
)

H100 = Environment(
    device="NVIDIA H100 80GB HBM3",
    backend="cuda",
    memory_bytes=80 * 2**30,
    torch="2.13.0",
    runtime="13.0",
    driver="580.1",
    libraries={"nccl": "2.29.2"},
)
CPU = Environment(
    device="A Processor", backend="cpu", memory_bytes=2**34, threads=2, torch="2.13.0+cpu"
)


class StandIn:
    """Runs tasks on no machine.

    Parameters
    ----------
    environment : Environment
    rule : callable, optional
        Outcome of a program, None for an ordinary one; it may raise.
    """

    def __init__(self, environment=H100, rule=lambda program: None):
        self.environment, self.rule, self.tasks = environment, rule, []

    def __call__(self, task, heard=None):
        self.tasks.append(task)
        outcomes = []
        for place, program in enumerate(task.programs, start=1):
            if heard is not None:
                heard(f"{place} of {len(task.programs)}: a program")
            outcomes.append(self.rule(program) or ordinary(program))
        return Answer(environment=self.environment, outcomes=outcomes)

    @property
    def programs(self):
        """All programs that were asked for, in order."""
        return [program for task in self.tasks for program in task.programs]


def seconds_of(program):
    if isinstance(program, CopyProgram):
        return 2e-6 + program.bytes / 2.5e12
    key = program.key
    if key.kind == "gemm":
        return 4e-6 + 2.0 * key.m * key.n * key.k * key.batch / 600e12
    if key.kind == "collective":
        return 2e-5 + key.bytes / 300e9
    return 1e-5 + 4.0 * key.batch * key.heads * key.m**2 * key.k / 400e12


def ordinary(program):
    if isinstance(program, ClockProgram):
        numbers = {"clock_mhz": 1395.0, "power_w": 690.0, "flop_per_s": 650e12}
        return Outcome(status="ok", numbers=numbers, backend="torch.matmul")
    time_s = seconds_of(program)
    timing = Timing(
        median_s=time_s, low_s=0.98 * time_s, high_s=1.03 * time_s, repeats=11, clock_mhz=1400.0,
        power_w=650.0,
    )  # fmt: skip
    backends = {"gemm": "torch.matmul", "attention": "flash"}
    kind = "copy" if isinstance(program, CopyProgram) else program.key.kind
    return Outcome(status="ok", times={"time": timing}, backend=backends.get(kind, kind))


def out_of_memory():
    return Outcome(status="out_of_memory", message="tried to allocate 80 GiB")


def died():
    msg = "the worker ended with exit code -9"
    raise MeasurementError(msg, key="worker", value=-9)
