"""Real layers in torch's autograd, of the shapes that one rank of a job holds.

Extents are divided over ranks as Megatron-LM divides them: columns of the first and rows of the
second projection over TP, tokens outside these regions over TP too under sequence parallelism,
the sequence over CP, experts over EP. Where it communicates, a layer calls its `Comm`.
Torch is passed in, so that this module loads without it.
"""

import time
from typing import Any

from projector.measure import parts
from projector.measure.comm import Comm
from projector.measure.parts import AttentionShape, Kit, Tensor, UnsupportedError
from projector.measure.task import LayerSpec


class Columns:
    """The columns of a workload, 0 where the record has none."""

    def __init__(self, values: dict[str, int]) -> None:
        """Keep the columns."""
        self._values = values

    def __getattr__(self, name: str) -> int:
        """Return a column by its name."""
        return self._values.get(name, 0)

    @property
    def tokens(self) -> int:
        """Tokens of a rank inside the tensor-parallel region."""
        return self.micro_batch * self.seq // max(1, self.cp)

    @property
    def outer_tokens(self) -> int:
        """Tokens outside of it."""
        return self.tokens // max(1, self.tp) if self.sequence_parallel else self.tokens

    @property
    def divided(self) -> bool:
        """Whether they are divided over TP."""
        return bool(self.sequence_parallel)


def ceil_div(value: int, divisor: int) -> int:
    """Divide, rounding up."""
    return -(-value // max(1, divisor))


class Builder:
    """Makes weights and remembers them."""

    def __init__(self, kit: Kit, comm: Comm, spec: LayerSpec) -> None:
        """Begin with no weights."""
        self.kit, self.comm, self.spec = kit, comm, spec
        self.torch = kit.torch
        self.columns = Columns(spec.columns)
        self.dtype = kit.wide_type(spec.dtype)
        self.weights: list[Tensor] = []
        self.notes: list[str] = []

    def weight(self, *shape: int) -> Tensor:
        """Return a new weight."""
        weight = self.kit.parameter(*shape, dtype=self.dtype)
        self.weights.append(weight)
        return weight

    def note(self, text: str) -> None:
        """Remember what ran a part, once."""
        if text not in self.notes:
            self.notes.append(text)


class Norm:
    """One norm over rows of some width."""

    def __init__(self, builder: Builder, width: int) -> None:
        """Make scale and, for layer norms, shift."""
        self.torch, self.eager = builder.torch, builder.columns.eager == 1
        self.scale = builder.weight(width)
        self.shift = builder.weight(width) if builder.columns.norm_parameters == 2 else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise rows."""
        return parts.norm(self.torch, x, self.scale, self.shift, eager=self.eager)


class Linear:
    """``Y = X W' + bias``."""

    def __init__(self, builder: Builder, n_in: int, n_out: int, *, bias: bool = False) -> None:
        """Make weights [n_out, n_in]."""
        self.run = builder.torch.nn.functional.linear
        self.weight = builder.weight(n_out, n_in)
        self.bias = builder.weight(n_out) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply rows."""
        return self.run(x, self.weight, self.bias)


class GroupedAttention:
    """Multi-head and grouped-query attention."""

    def __init__(self, builder: Builder) -> None:
        """Make the projections of the rank's heads."""
        c = builder.columns
        self.builder, self.columns = builder, c
        self.heads, self.key_heads = c.heads // c.tp, ceil_div(c.key_heads, c.tp)
        self.query = self.heads * c.d_qk
        self.key, self.value = self.key_heads * c.d_qk, self.key_heads * c.d_v
        width = self.query + self.key + self.value
        self.qkv = Linear(builder, c.hidden, width, bias=c.attention_bias >= 1)
        self.proj = Linear(builder, self.heads * c.d_v, c.hidden, bias=c.attention_bias == 2)
        self.length = c.seq // c.cp
        self.rotations = parts.rotations(builder.kit, self.length, c.d_qk, builder.dtype)
        shape = AttentionShape(
            self.heads, self.key_heads, c.seq, c.seq, c.d_qk, c.d_v, causal=True, window=c.window,
            dtype=builder.dtype,
        )  # fmt: skip
        self.core = parts.choose_attention(builder.kit, shape, builder.spec.attention)
        builder.note(self.core.name)

    def __call__(self, x: Tensor) -> Tensor:
        """Attend."""
        torch, comm, c = self.builder.torch, self.builder.comm, self.columns
        x = comm.enter(x, group="tp", divided=c.divided)
        batch = (c.micro_batch, self.length)
        query, key, value = self.qkv(x).split((self.query, self.key, self.value), dim=-1)
        query = query.view(*batch, self.heads, c.d_qk).transpose(1, 2)
        key = key.view(*batch, self.key_heads, c.d_qk).transpose(1, 2)
        value = value.view(*batch, self.key_heads, c.d_v).transpose(1, 2)
        if c.rope:
            query = parts.rotate(torch, query, *self.rotations)
            key = parts.rotate(torch, key, *self.rotations)
        out = self.core.run(query, key, value)
        out = out.transpose(1, 2).reshape(c.tokens, self.heads * c.d_v)
        return comm.leave(self.proj(out), group="tp", divided=c.divided)


class Mlp:
    """Dense MLP, with a gate or without."""

    def __init__(self, builder: Builder, width: int) -> None:
        """Make both projections of the rank's share of the inner channels."""
        c = builder.columns
        self.builder, self.columns = builder, c
        inner = ceil_div(width, c.tp)
        bias = c.mlp_bias == 1
        self.first = Linear(builder, c.hidden, inner * (1 + c.gated), bias=bias)
        self.second = Linear(builder, inner, c.hidden, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Project up, activate, project down."""
        comm, c = self.builder.comm, self.columns
        x = comm.enter(x, group="tp", divided=c.divided)
        x = parts.activate(self.builder.torch, self.first(x), gated=c.gated == 1)
        return comm.leave(self.second(x), group="tp", divided=c.divided)


class TransformerLayer:
    """Norm, attention, residual; norm, MLP or experts, residual."""

    def __init__(self, builder: Builder, delay_s: float = 0.0) -> None:
        """Make all parts."""
        c = builder.columns
        self.builder, self.delay_s = builder, delay_s
        self.before = Norm(builder, c.hidden)
        self.attention = GroupedAttention(builder)
        self.between = Norm(builder, c.hidden)
        self.feed_forward = Mlp(builder, c.ffn)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the stream after the layer."""
        if self.delay_s:
            time.sleep(self.delay_s)
        x = x + self.attention(self.before(x))
        return x + self.feed_forward(self.between(x))

    def inputs(self) -> Tensor:
        """Return a random input that wants a gradient."""
        c, builder = self.builder.columns, self.builder
        x = builder.kit.random(c.outer_tokens, c.hidden, dtype=builder.dtype)
        return x.requires_grad_()


def build_layer(kit: Kit, comm: Comm, spec: LayerSpec, delay_s: float = 0.0) -> Any:
    """Return a layer with random weights.

    Raises
    ------
    UnsupportedError
        If this device cannot run it.
    """
    builder = Builder(kit, comm, spec)
    if spec.kind != "dense":
        msg = f"layers of kind {spec.kind} are not measured yet"
        raise UnsupportedError(msg)
    return TransformerLayer(builder, delay_s)
