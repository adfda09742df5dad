"""Programs of a task as something that can be run and timed, over a torch that is passed in."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from projector.measure.comm import Comm
from projector.measure.exchange import Ranks, collective
from projector.measure.layers import build_layer
from projector.measure.pace import Runner, Seconds
from projector.measure.parts import Kit, UnsupportedError
from projector.measure.stopwatch import KernelRunner, PartsRunner, Stopwatch
from projector.measure.task import CopyProgram, LayerProgram, OperationProgram, Pace

COLD_BYTES = 64 * 2**20
"""Operands take turns until so much was touched, so that caches do not hold them all."""

MOST_SETS = 8


@dataclass(slots=True)
class Bench:
    """What programs are measured with."""

    kit: Kit
    watch: Stopwatch
    comm: Comm
    pace: Pace
    ranks: Ranks


@dataclass(slots=True)
class Prepared:
    """A program ready to run."""

    runner: Runner
    backend: str
    numbers: dict[str, float] = field(default_factory=dict)


def _sets(num_bytes: float) -> int:
    return max(1, min(MOST_SETS, int(COLD_BYTES // max(1.0, num_bytes))))


def prepare_gemm(bench: Bench, program: OperationProgram) -> Prepared:
    """Make a GEMM with the layout that its phase has in a linear layer."""
    kit, key = bench.kit, program.key
    if key.dtype not in ("fp32", "tf32", "bf16", "fp16"):
        msg = f"GEMMs in {key.dtype} are not measured yet"
        raise UnsupportedError(msg)
    torch, dtype = kit.torch, kit.wide_type(key.dtype)
    batch = () if key.batch == 1 else (key.batch,)

    def one() -> Callable[[], object]:
        if key.phase == "forward":
            left = kit.random(*batch, key.m, key.k, dtype=dtype)
            right = kit.random(*batch, key.n, key.k, dtype=dtype).mT
        elif key.phase == "backward":
            left = kit.random(*batch, key.m, key.k, dtype=dtype)
            right = kit.random(*batch, key.k, key.n, dtype=dtype)
        else:
            left = kit.random(*batch, key.k, key.m, dtype=dtype).mT
            right = kit.random(*batch, key.k, key.n, dtype=dtype)
        return lambda: torch.matmul(left, right)

    size = dtype.itemsize * key.batch * (key.m * key.k + key.n * key.k)
    return Prepared(KernelRunner(bench.watch, [one() for _ in range(_sets(size))]), "torch.matmul")


def prepare_operation(bench: Bench, program: OperationProgram) -> Prepared:
    """Make one operator."""
    if program.key.kind == "gemm":
        return prepare_gemm(bench, program)
    if program.key.kind in ("collective", "exchange"):
        return prepare_collective(bench, program)
    msg = f"operations of kind {program.key.kind} are not measured yet"
    raise UnsupportedError(msg)


def prepare_collective(bench: Bench, program: OperationProgram) -> Prepared:
    """Make a collective, in which all ranks take part."""
    run = collective(bench.ranks, program.key, bench.kit.device)
    backend = f"torch.distributed {bench.ranks.backend(bench.kit.device)}"
    return Prepared(KernelRunner(bench.watch, [run]), backend)


def prepare_copy(bench: Bench, program: CopyProgram) -> Prepared:
    """Make a copy from one place of memory to another; half of the bytes is read, half written."""
    torch, kit = bench.kit.torch, bench.kit
    elements = max(1, program.bytes // 8)
    source = kit.random(elements, dtype=torch.float32)
    target = torch.empty_like(source)
    return Prepared(KernelRunner(bench.watch, [lambda: target.copy_(source)]), "torch.copy_")


class LayerRunner(PartsRunner):
    """Times forward and backward of a layer."""

    def __init__(self, bench: Bench, layer: Any) -> None:
        """Make input and gradient."""
        self.torch, self.layer = bench.kit.torch, layer
        self.x = layer.inputs()
        self.out: Any = None
        with self.torch.no_grad():
            self.gradient = self.torch.randn_like(layer(self.x))
        super().__init__(bench.watch, (("forward", self.forward), ("backward", self.backward)))

    def forward(self) -> None:
        """Run the layer."""
        self.out = self.layer(self.x)

    def backward(self) -> None:
        """Run its backward."""
        self.out.backward(self.gradient)
        self.out = self.x.grad = None
        for weight in self.layer.builder.weights:
            weight.grad = None

    def sample(self, runs: int) -> Seconds:
        """Return the mean seconds of both."""
        return PartsRunner.sample(self, runs)


def prepare_layer(bench: Bench, program: LayerProgram) -> Prepared:
    """Make a layer."""
    layer = build_layer(bench.kit, bench.comm, program.layer, program.delay_s)
    return Prepared(LayerRunner(bench, layer), ", ".join(layer.builder.notes))


def prepare_later(bench: Bench, program: Any) -> Prepared:  # noqa: ARG001
    """Say that a program is not measured."""
    msg = f"programs of kind {program.program} are not measured yet"
    raise UnsupportedError(msg)


MAKERS: dict[str, Callable[[Bench, Any], Prepared]] = {
    "operation": prepare_operation,
    "copy": prepare_copy,
    "layer": prepare_layer,
    "step": prepare_later,
    "clock": prepare_later,
}
