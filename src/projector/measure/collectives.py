"""Collectives of a process group, and of layers in autograd, over a torch that is passed in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from projector.measure.comm import Group, Tensor

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
        """Take the names that this version of torch has."""
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
        x = x.contiguous()
        self.distributed.all_reduce(x, group=self.handle)
        return x

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
        work = self._gather(gathered, x, group=self.handle, async_op=True)
        return Underway(work, gathered, x)

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

    def send_first(self, x: Tensor) -> Tensor:
        """Give everybody the first rank's rows, in place."""
        first = self.distributed.get_global_rank(self.handle, 0)
        self.distributed.broadcast(x, first, group=self.handle)
        return x

    def reduce_first(self, x: Tensor) -> Tensor:
        """Leave the sum with the first rank, in place."""
        first = self.distributed.get_global_rank(self.handle, 0)
        self.distributed.reduce(x, first, group=self.handle)
        return x


def _first(module: Any, *names: str) -> Any:
    """Return the first of some functions that a module has."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


class Together:
    """A `Comm` over process groups. What a group of one rank is asked for changes nothing."""

    def __init__(self, torch: Torch, groups: dict[Group, Any], degrees: dict[Group, int]) -> None:
        """Take the process groups that layers of these degrees are split over."""
        self._groups: dict[Group, Collectives] = {
            group: Collectives(torch, groups[group])
            for group, degree in degrees.items()
            if degree > 1
        }
        self._apply = _both_ways(torch)
        self._linear = _entering_linear(torch)
        self._plain_linear = torch.nn.functional.linear

    def degree(self, group: Group) -> int:
        """Return the ranks of a group."""
        return self._groups[group].size if group in self._groups else 1

    def rank(self, group: Group) -> int:
        """Return which of them this one is."""
        return self._groups[group].rank if group in self._groups else 0

    def enter(self, x: Tensor, *, group: Group, divided: bool) -> Tensor:
        """Gather divided tokens; else pass them and sum their gradients."""
        if divided or group not in self._groups:
            return self.gather(x, group=group)
        return self._apply(x, _unchanged, self._groups[group].reduce_all)

    def enter_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, group: Group, divided: bool
    ) -> Tensor:
        """Gather or pass, and multiply; gradients travel beside the GEMM of the weight's."""
        if group not in self._groups:
            return self._plain_linear(x, weight, bias)
        return self._linear(x, weight, bias, self._groups[group], divided)

    def leave(self, x: Tensor, *, group: Group, divided: bool) -> Tensor:
        """Sum partial results, and keep the own tokens where they are divided."""
        if not divided or group not in self._groups:
            return self.total(x, group=group)
        of_group = self._groups[group]
        return self._apply(x, of_group.scatter, of_group.gather)

    def swap(self, x: Tensor, *, group: Group) -> Tensor:
        """Exchange equal parts of the rows with every rank."""
        if group not in self._groups:
            return x
        swap = self._groups[group].swap
        return self._apply(x, swap, swap)

    def gather(self, x: Tensor, *, group: Group) -> Tensor:
        """Return the rows of all ranks; the backward scatters the sum of gradients."""
        if group not in self._groups:
            return x
        of_group = self._groups[group]
        return self._apply(x, of_group.gather, of_group.scatter)

    def total(self, x: Tensor, *, group: Group) -> Tensor:
        """Return the sum over the ranks; the backward passes."""
        if group not in self._groups:
            return x
        return self._apply(x, self._groups[group].reduce_all, _unchanged)

    def largest(self, x: Tensor, *, group: Group) -> Tensor:
        """Return the maximum over the ranks; it has no backward."""
        return self._groups[group].maximum(x) if group in self._groups else x


def _unchanged(x: Tensor) -> Tensor:
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
