"""What layers are put together from: columns, weights, norms, linear layers, the dense MLP."""

from functools import cached_property

from projector.measure import narrow as narrow_types
from projector.measure import parts
from projector.measure.comm import Comm
from projector.measure.parts import Kit, Tensor, UnsupportedError
from projector.measure.task import LayerSpec

ONE = 1 << 20
"""Columns named ``_2e20`` count in parts of this."""


class Columns:
    """The columns of a workload, 0 where it states none; degrees are 1 at least."""

    def __init__(self, values: dict[str, int]) -> None:
        degrees = {name: max(1, values.get(name, 1)) for name in ("tp", "cp", "ep", "etp")}
        self._values = values | degrees

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._values.get(name, 0)

    @property
    def tokens(self) -> int:
        """Tokens of a rank inside the tensor-parallel region."""
        return self.micro_batch * self.seq // self.cp

    @property
    def outer_tokens(self) -> int:
        """Tokens outside of it."""
        return self.tokens // self.tp if self.divided else self.tokens

    @property
    def divided(self) -> bool:
        """Whether they are divided over TP."""
        return self.sequence_parallel == 1 and self.tp > 1


def ceil_div(value: int, divisor: int) -> int:
    """Divide, rounding up."""
    return -(-value // max(1, divisor))


class Builder:
    """Makes weights and remembers them."""

    def __init__(self, kit: Kit, comm: Comm, spec: LayerSpec) -> None:
        self.kit, self.comm, self.spec = kit, comm, spec
        self.torch = kit.torch
        self.columns = Columns(spec.columns)
        self.dtype = kit.wide_type(spec.dtype)
        self.weights: list[Tensor] = []
        self.notes: list[str] = []
        self.narrow_experts: list[narrow_types.NarrowExperts] = []

    def weight(self, *shape: int) -> Tensor:
        """Return a new weight."""
        weight = self.kit.random(*shape, dtype=self.dtype, scale=0.02).requires_grad_()
        self.weights.append(weight)
        return weight

    def note(self, text: str) -> None:
        """Remember what ran a part, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def is_narrow(self) -> bool:
        """Whether linear layers compute in fewer than 16 bits."""
        return self.spec.dtype in narrow_types.NARROW

    @cached_property
    def narrow_format(self) -> narrow_types.Format:
        """How the narrow type is quantised; refused where the device has none."""
        return narrow_types.format_of(
            self.kit, self.spec.dtype, narrow_types.RECIPES[self.columns.fp8_recipe]
        )

    @cached_property
    def narrow(self) -> narrow_types.NarrowLinear:
        """The linear layer of the narrow type."""
        self.note(f"torch._scaled_mm, {self.narrow_format.name}")
        return narrow_types.NarrowLinear(self.narrow_format)

    def refresh(self) -> None:
        """Quantise weights anew, as after a step of the optimizer."""
        if "narrow" in self.__dict__:
            self.narrow.refresh()
        for experts in self.narrow_experts:
            experts.refresh()


class Norm:
    """One norm over rows of some width."""

    def __init__(self, builder: Builder, width: int) -> None:
        self.torch, self.eager = builder.torch, builder.columns.eager == 1
        self.scale = builder.weight(width)
        self.shift = builder.weight(width) if builder.columns.norm_parameters == 2 else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise rows."""
        return parts.norm(self.torch, x, self.scale, self.shift, eager=self.eager)


class Linear:
    """``Y = X W' + bias``, in the narrow type of the layer where it has one."""

    def __init__(
        self, builder: Builder, n_in: int, n_out: int, *, bias: bool = False, narrow: bool = False
    ) -> None:
        if min(n_in, n_out) < 1:
            msg = f"a linear layer of {n_in} x {n_out} has no elements on this rank"
            raise UnsupportedError(msg)
        self.wide = builder.torch.nn.functional.linear
        self.narrow = builder.narrow if narrow and builder.is_narrow else None
        if self.narrow is not None:
            narrow_types.check_extents(n_in, n_out, builder.columns.outer_tokens)
        self.weight = builder.weight(n_out, n_in)
        self.bias = builder.weight(n_out) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply rows."""
        if self.narrow is None:
            return self.wide(x, self.weight, self.bias)
        out = self.narrow(x, self.weight)
        return out if self.bias is None else out + self.bias

    def enter(self, x: Tensor, comm: Comm, *, divided: bool) -> Tensor:
        """Multiply rows that enter a tensor-parallel region here.

        Wide layers exchange gradients beside the GEMM of the weight gradient, as Megatron-LM does.
        """
        if self.narrow is None and comm.degree("tp") > 1:
            return comm.enter_linear(x, self.weight, self.bias, group="tp", divided=divided)
        return self(comm.enter(x, group="tp", divided=divided))


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
