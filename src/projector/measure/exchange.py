"""Ranks that measure together: their groups, what they agree on, collectives alone and in layers.

The functions take torch as a parameter, so that this module loads without it. NCCL serves NVIDIA's
GPUs, RCCL AMD's under the same name, gloo a CPU. Numbers that ranks must agree on travel through
gloo everywhere, so that nothing is added to the queue of a GPU.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from projector.errors import MeasurementError
from projector.measure.comm import Comm, Group, Tensor
from projector.measure.devices import GpusAtHand
from projector.measure.keys import OperationKey
from projector.measure.pace import Runner, Seconds
from projector.measure.parts import UnsupportedError, is_out_of_memory
from projector.measure.task import Task

Torch = Any
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Underway:
    """A collective that runs beside what is computed meanwhile."""

    work: Any
    result: Tensor
    source: Tensor
    """Held until it is over."""

    def wait(self) -> Tensor:
        """Have what follows wait for the result, and return it."""
        self.work.wait()
        return self.result


class Collectives:
    """The collectives of one process group, on tensors whose first dimension is divided."""

    def __init__(self, torch: Torch, handle: Any) -> None:
        distributed = torch.distributed
        self.torch, self.distributed, self.handle = torch, distributed, handle
        self.size = distributed.get_world_size(handle)
        self.rank = distributed.get_rank(handle)
        # torch 2.13 renamed both and warns about the old names.
        self._gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
        self._scatter = getattr(
            distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor
        )

    def reduce_all(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, in place."""
        return self.start_sum(x).wait()

    def maximum(self, x: Tensor) -> Tensor:
        """Return the maximum over the ranks."""
        x = x.detach().clone()
        self.distributed.all_reduce(x, op=self.distributed.ReduceOp.MAX, group=self.handle)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Return the rows of all ranks, in their order."""
        return self.start_gather(x).wait()

    def scatter(self, x: Tensor) -> Tensor:
        """Return this rank's part of the rows of the sum."""
        return self.start_scatter(x).wait()

    def start_sum(self, x: Tensor) -> Underway:
        """Begin an all-reduce in place."""
        x = x.contiguous()
        return Underway(self.distributed.all_reduce(x, group=self.handle, async_op=True), x, x)

    def start_gather(self, x: Tensor) -> Underway:
        """Begin an all-gather of rows."""
        x = x.contiguous()
        gathered = x.new_empty((x.shape[0] * self.size, *x.shape[1:]))
        return Underway(self._gather(gathered, x, group=self.handle, async_op=True), gathered, x)

    def start_scatter(self, x: Tensor) -> Underway:
        """Begin a reduce-scatter of rows."""
        x = x.contiguous()
        part = x.new_empty((x.shape[0] // self.size, *x.shape[1:]))
        return Underway(self._scatter(part, x, group=self.handle, async_op=True), part, x)

    def swap(self, x: Tensor) -> Tensor:
        """Return what each rank had for this one: equal parts of the rows."""
        x = x.contiguous()
        received = self.torch.empty_like(x)
        self.distributed.all_to_all_single(received, x, group=self.handle)
        return received

    def pass_on(self, x: Tensor) -> Tensor:
        """Return the rows of the rank before, and send the own to the one after."""
        distributed, handle = self.distributed, self.handle
        received = self.torch.empty_like(x)
        after = distributed.get_global_rank(handle, (self.rank + 1) % self.size)
        before = distributed.get_global_rank(handle, (self.rank - 1) % self.size)
        messages = [
            distributed.P2POp(distributed.isend, x, after, handle),
            distributed.P2POp(distributed.irecv, received, before, handle),
        ]
        for message in distributed.batch_isend_irecv(messages):
            message.wait()
        return received


OfGroup = Callable[[Collectives, Tensor], Tensor]


class Together(Comm):
    """A `Comm` over process groups. What a group of one rank is asked for changes nothing."""

    def __init__(self, torch: Torch, groups: dict[Group, Any], degrees: dict[Group, int]) -> None:
        super().__init__({group: degree for group, degree in degrees.items() if degree > 1})
        self._groups = {group: Collectives(torch, groups[group]) for group in self._degrees}
        self._apply = _both_ways(torch)
        self._linear = _entering_linear(torch)
        self._plain_linear = torch.nn.functional.linear

    def rank(self, group: Group) -> int:
        """Return which of the ranks this one is."""
        return self._groups[group].rank if group in self._groups else 0

    def enter(self, x: Tensor, *, group: Group, divided: bool) -> Tensor:
        """Gather divided tokens; else pass them and sum their gradients."""
        if divided:
            return self.gather(x, group=group)
        return self._both(x, group, _unchanged, Collectives.reduce_all)

    def enter_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, group: Group, divided: bool
    ) -> Tensor:
        """Gather or pass, and multiply; gradients travel beside the GEMM of the weight's."""
        if group not in self._groups:
            return self._plain_linear(x, weight, bias)
        return self._linear(x, weight, bias, self._groups[group], divided)

    def leave(self, x: Tensor, *, group: Group, divided: bool) -> Tensor:
        """Sum partial results, and keep the own tokens where they are divided."""
        if not divided:
            return self.total(x, group=group)
        return self._both(x, group, Collectives.scatter, Collectives.gather)

    def swap(self, x: Tensor, *, group: Group) -> Tensor:
        """Exchange equal parts of the rows with every rank."""
        return self._both(x, group, Collectives.swap, Collectives.swap)

    def gather(self, x: Tensor, *, group: Group) -> Tensor:
        """Return the rows of all ranks; the backward scatters the sum of gradients."""
        return self._both(x, group, Collectives.gather, Collectives.scatter)

    def total(self, x: Tensor, *, group: Group) -> Tensor:
        """Return the sum over the ranks; the backward passes."""
        return self._both(x, group, Collectives.reduce_all, _unchanged)

    def largest(self, x: Tensor, *, group: Group) -> Tensor:
        """Return the maximum over the ranks; it has no backward."""
        return self._groups[group].maximum(x) if group in self._groups else x

    def _both(self, x: Tensor, group: Group, there: OfGroup, back: OfGroup) -> Tensor:
        if group not in self._groups:
            return x
        of_group = self._groups[group]
        return self._apply(x, partial(there, of_group), partial(back, of_group))


def _unchanged(of_group: Collectives, x: Tensor) -> Tensor:
    del of_group
    return x


def _both_ways(torch: Torch) -> Callable[[Tensor, Change, Change], Tensor]:
    """Return a function of autograd whose forward and backward are given.

    Sums are in place, as Megatron-LM's are: what comes out of a GEMM has no other reader.
    """

    class BothWays(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, there: Any, back: Any) -> Tensor:
            ctx.back = back
            return there(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
            return ctx.back(gradient), None, None

    apply: Callable[[Tensor, Change, Change], Tensor] = BothWays.apply
    return apply


def _entering_linear(torch: Torch) -> Callable[..., Tensor]:
    """Return the first linear layer of a tensor-parallel region as a function of autograd.

    Its backward is that of Megatron-LM's ``LinearWithGradAccumulationAndAsyncCommunication``: with
    divided tokens the input is gathered again beside the GEMM of the input gradient, whose sum is
    scattered beside that of the weight gradient; else an all-reduce runs beside the latter.
    """
    linear = torch.nn.functional.linear

    class EnteringLinear(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: Collectives, divided: bool
        ) -> Tensor:
            ctx.group, ctx.divided, ctx.has_bias = group, divided, bias is not None
            ctx.save_for_backward(x, weight)
            return linear(group.gather(x) if divided else x, weight, bias)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
            x, weight = ctx.saved_tensors
            group, wants = ctx.group, ctx.needs_input_grad
            gather = group.start_gather(x) if ctx.divided and wants[1] else None
            of_x = gradient @ weight
            start = group.start_scatter if ctx.divided else group.start_sum
            exchange = start(of_x)
            of_weight = of_bias = None
            if wants[1]:
                of_weight = gradient.t() @ (x if gather is None else gather.wait())
            if ctx.has_bias and wants[2]:
                of_bias = gradient.sum(dim=0)
            return exchange.wait(), of_weight, of_bias, None, None

    apply: Callable[..., Tensor] = EnteringLinear.apply
    return apply


Run = Callable[[], object]
Layout = dict[Group, list[list[int]]]
"""Groups of each dimension, each the ranks in it."""

LONGEST_WAIT = timedelta(minutes=2)
"""How long a rank waits for the others inside a collective before it gives up."""


class LostRankError(Exception):
    """Another rank has died or hangs. Nothing can be measured any more, and no program is it."""


WIDE = ("head.tp.all_reduce", "forward")
"""Label and phase of what is exchanged in FP32: maximum and sums of the loss. All else has 16 bits
or is counted as if."""

GROUP_OF: tuple[tuple[str, Group], ...] = (
    ("attention.cp.", "cp"),
    ("moe.dispatch", "ep"),
    ("moe.combine", "ep"),
    ("moe.etp.", "etp"),
)
"""Collectives that do not run over consecutive ranks, by how their labels begin."""


def layout(ranks: int, *, tp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1) -> Layout:
    """Return the groups of each dimension, laid out as Megatron-LM does.

    Attention counts ``rank = t + tp * (c + cp * d)`` and experts ``rank = t + etp * (e + ep * d)``:
    ``RankGenerator`` of Megatron-LM's ``core/parallel_state.py`` with its default order
    ``tp-cp-ep-dp-pp``, here without a pipeline. The ranks of the world are a multiple of ``tp *
    cp`` and of ``etp * ep``. Every rank is in one group of each dimension.
    """
    for names, size in (("tp * cp", tp * cp), ("etp * ep", etp * ep)):
        if ranks % size:
            msg = f"{names} = {size} does not divide the {ranks} ranks that measure"
            raise MeasurementError(msg, key="ranks", value=ranks, allowed=f"a multiple of {size}")
    return {
        "tp": _strided(ranks, tp, 1),
        "cp": _strided(ranks, cp, tp),
        "etp": _strided(ranks, etp, 1),
        "ep": _strided(ranks, ep, etp),
    }


def _strided(ranks: int, size: int, stride: int) -> list[list[int]]:
    """Return groups of ``size`` ranks that lie ``stride`` apart."""
    block = size * stride
    return [
        list(range(start + offset, start + offset + block, stride))
        for start in range(0, ranks, block)
        for offset in range(stride)
    ]


@dataclass
class Ranks:
    """The ranks of one task; one alone has no process group and nothing to wait for."""

    torch: Torch
    rank: int = 0
    count: int = 1
    degrees: dict[Group, int] = field(default_factory=dict)
    groups: dict[Group, Any] = field(default_factory=dict)
    """Process group of each dimension that has more than one rank."""
    control: Any = None
    """All ranks over gloo."""
    blocks: dict[int, Any] = field(default_factory=dict)
    """Process groups of so many consecutive ranks, for collectives by themselves."""

    def comm(self, degrees: dict[Group, int]) -> Comm:
        """Return what layers of degrees communicate through: these groups, or without peers."""
        asked = {group: degree for group, degree in degrees.items() if degree > 1}
        if asked and all(self.degrees.get(group) == degree for group, degree in asked.items()):
            return Together(self.torch, self.groups, degrees)
        return Comm(degrees)

    def agree(self, value: float) -> float:
        """Return the largest value of all ranks."""
        return self.largest([value])[0]

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each value over all ranks."""
        if self.count == 1:
            return list(values)
        torch = self.torch
        held = torch.tensor(list(values), dtype=torch.float64)
        try:
            torch.distributed.all_reduce(
                held, op=torch.distributed.ReduceOp.MAX, group=self.control
            )
        except RuntimeError as error:
            raise LostRankError(str(error)) from error
        return [float(value) for value in held]

    def backend(self, device: Any) -> str:
        """Return the library that serves collectives of tensors of a device."""
        if device.type != "cuda":
            return "gloo"
        return "rccl" if self.torch.version.hip else "nccl"

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Make every rank fail where one does, so that none waits for another for ever."""
        try:
            yield
        except Exception as error:
            self.agree(_severity(error))
            raise
        worst = self.agree(0.0)
        if worst > 0.0:
            raise _elsewhere(worst)

    def block(self, size: int) -> Any:
        """Return the process group of this rank's block of so many, None for a rank left over."""
        if size not in self.blocks:
            distributed, own = self.torch.distributed, None
            for first in range(0, self.count - size + 1, size):
                members = list(range(first, first + size))
                handle = distributed.new_group(members, timeout=LONGEST_WAIT)
                own = handle if self.rank in members else own
            self.blocks[size] = own
        return self.blocks[size]

    def group_for(self, key: OperationKey) -> Any:
        """Return the process group of a collective; rings send on and receive from before."""
        for start, group in GROUP_OF:
            degree = self.degrees.get(group, 1)
            in_ring = key.operation == "send_recv" and degree > 1
            if key.label.startswith(start) and (in_ring or degree == key.ranks > 1):
                return self.groups[group]
        return self.block(key.ranks) if key.ranks > 1 else None

    def leave(self) -> None:
        """Give the process groups back."""
        if self.count > 1:
            self.torch.distributed.destroy_process_group()


def kind_of_device(torch: Torch, asked: str, at_hand: GpusAtHand | None) -> str:
    """Return ``cuda`` (torch's name for all GPUs) or ``cpu``; ``auto`` takes a GPU at hand."""
    if asked == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if asked == "auto" and at_hand is None:
        return "cpu"
    what = f"the {at_hand.name or at_hand.vendor + ' GPU'} of this machine" if at_hand else "no GPU"
    sees = f"cannot see {what}" if at_hand else f"sees {what}"
    built = torch.version.cuda or torch.version.hip
    why = (
        f"it is built for {built}; check the driver and which devices are visible"
        if built
        else "it is a build for CPUs; pytorch.org/get-started has those for CUDA and ROCm"
    )
    msg = f"torch {torch.__version__} {sees}: {why}"
    raise MeasurementError(msg, key="device", value=asked, allowed="cpu, or a GPU that torch sees")


def _severity(error: Exception) -> float:
    """Return a number that says what went wrong; of several the largest counts."""
    if is_out_of_memory(error):
        return 3.0
    return 1.0 if isinstance(error, UnsupportedError) else 2.0


def _elsewhere(severity: float) -> Exception:
    """Return the error of a rank that could have gone on."""
    if severity == 3.0:
        return MemoryError("another rank ran out of memory")
    if severity == 1.0:
        return UnsupportedError("another rank cannot run it")
    return RuntimeError("it failed on another rank")


def join(torch: Torch, task: Task, kind: str) -> Ranks:
    """Join the ranks of a task, as torchrun numbers them, on that GPU or on ``cpu``."""
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if count != task.ranks:
        msg = f"the task wants {task.ranks} ranks, and {count} were started"
        raise MeasurementError(msg, key="ranks", value=count, allowed=task.ranks)
    if kind == "cuda":
        local, seen = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= seen:
            msg = f"{count} ranks need as many GPUs, and torch sees {seen}"
            allowed = f"at most {seen}"
            raise MeasurementError(msg, key="benchmark_gpus", value=count, allowed=allowed)
        torch.cuda.set_device(local)
    if count == 1:
        return Ranks(torch)
    groups = layout(count, tp=task.tp, cp=task.cp, ep=task.ep, etp=task.etp)
    distributed = torch.distributed
    if kind == "cuda" and not distributed.is_nccl_available():
        msg = f"torch {torch.__version__} has neither NCCL nor RCCL, which {count} GPUs need"
        raise MeasurementError(msg, key="torch", value=torch.__version__)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=LONGEST_WAIT)
    ranks = Ranks(torch, rank, count)
    ranks.control = distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)
    for name, members_of in groups.items():
        ranks.degrees[name] = len(members_of[0])
        for members in members_of:
            if len(members) == 1:
                continue
            # Every rank makes every group, in the same order.
            handle = distributed.new_group(members, timeout=LONGEST_WAIT)
            if rank in members:
                ranks.groups[name] = handle
    return ranks


MOST_PARTS = 8
"""Parts that one runner times at most, such as forward and backward."""

UNDIVIDED = ("all_reduce", "broadcast", "reduce", "send_recv")
"""Operations whose buffer need not be divided by the ranks."""


class InStep:
    """A runner whose samples start together on all ranks and take as long as on the slowest."""

    def __init__(self, runner: Runner, ranks: Ranks) -> None:
        """Wrap the runner of this rank; that of every other rank has the same parts."""
        self.runner, self.ranks = runner, ranks

    def sample(self, runs: int) -> Seconds:
        """Return mean seconds of each part on its slowest rank; fails on every rank if on one."""
        ranks = self.ranks
        ranks.agree(0.0)  # Every rank is here.
        try:
            seconds = self.runner.sample(runs)
        except Exception as error:
            ranks.largest([_severity(error), *[0.0] * MOST_PARTS])
            raise
        rest = [0.0] * (MOST_PARTS - len(seconds))
        worst, *slowest = ranks.largest([0.0, *seconds.values(), *rest])
        if worst > 0.0:
            raise _elsewhere(worst)
        return dict(zip(seconds, slowest, strict=False))


def collective(ranks: Ranks, key: OperationKey, device: Any) -> Run:
    """Return one collective as something that runs, with a buffer of random numbers on a device.

    Ranks beyond the last whole group take no part, and are given something that does nothing.
    ``bytes`` of the key is the whole buffer, as in the operation table: the gathered output, the
    input that is scattered, all that one rank holds in an all-to-all.
    """
    if key.kind == "exchange":
        msg = "a fused dispatch or combine needs DeepEP's or HybridEP's own kernels"
        raise UnsupportedError(msg)
    if key.ranks > ranks.count:
        raise UnsupportedError(f"it needs {key.ranks} ranks, and {ranks.count} measured")
    handle = ranks.group_for(key)
    if handle is None:
        return lambda: None
    torch = ranks.torch
    distributed, of_group = torch.distributed, Collectives(torch, handle)
    first = distributed.get_global_rank(handle, 0)
    wide = (key.label, key.phase) == WIDE
    dtype = torch.float32 if wide else torch.bfloat16
    # Whole parts for every rank.
    elements = key.bytes / (4 if wide else 2)
    part = max(1, round(elements / of_group.size))
    length = part if key.operation == "all_gather" else part * of_group.size
    if key.operation in UNDIVIDED:
        length = max(1, round(elements))
    generator = torch.Generator(device=device).manual_seed(ranks.rank)
    # Sums in place grow run after run, which takes no longer.
    buffer = torch.empty(length, device=device, dtype=dtype).normal_(generator=generator)
    runs: dict[str, Callable[[Tensor], object]] = {
        "all_reduce": of_group.reduce_all,
        "all_gather": of_group.gather,
        "reduce_scatter": of_group.scatter,
        "all_to_all": of_group.swap,
        "all_to_all_v": of_group.swap,
        "broadcast": lambda x: distributed.broadcast(x, first, group=handle),
        "reduce": lambda x: distributed.reduce(x, first, group=handle),
        "send_recv": of_group.pass_on,
    }
    run = runs[key.operation]
    return lambda: run(buffer)
