"""Dense MLP, also used for shared experts."""

from projector.measure import parts
from projector.measure.blocks import Builder, Linear, ceil_div
from projector.measure.parts import Tensor


class Mlp:
    """Two projections around an activation, with a gate or without."""

    def __init__(self, builder: Builder, width: int) -> None:
        """Make the rank's share of ``width`` inner channels."""
        c = builder.columns
        self.builder, self.columns = builder, c
        inner, bias = ceil_div(width, c.tp), c.mlp_bias == 1
        self.first = Linear(builder, c.hidden, inner * (1 + c.gated), bias=bias, narrow=True)
        self.second = Linear(builder, inner, c.hidden, bias=bias, narrow=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Project up, activate, project down."""
        comm, c = self.builder.comm, self.columns
        x = self.first.enter(x, comm, divided=c.divided)
        x = parts.activate(self.builder.torch, x, gated=c.gated == 1)
        return comm.leave(self.second(x), group="tp", divided=c.divided)
