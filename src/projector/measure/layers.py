"""Real layers in torch's autograd, of the shapes that one rank of a job holds.

Extents are divided over ranks as Megatron-LM divides them: columns of the first and rows of the
second projection over TP, tokens outside these regions over TP too under sequence parallelism,
the sequence over CP, experts over EP. Where it communicates, a layer calls its `Comm`.
Torch is passed in, so that this module loads without it.
"""

import time
from collections.abc import Callable
from typing import Any

from projector.measure import parts
from projector.measure.attention_layers import GroupedAttention, LatentAttention
from projector.measure.blocks import Builder, Columns, Linear, Norm, ceil_div
from projector.measure.comm import Comm
from projector.measure.experts import Experts
from projector.measure.mlp_layer import Mlp
from projector.measure.parts import Kit, Tensor
from projector.measure.task import LayerKind, LayerSpec


class Layer:
    """What every kind of layer has."""

    def __init__(self, builder: Builder) -> None:
        """Keep the weights and the shape."""
        self.builder, self.columns = builder, builder.columns
        self.torch, self.comm = builder.torch, builder.comm

    @property
    def weights(self) -> list[Tensor]:
        """All weights of the rank."""
        return self.builder.weights

    @property
    def backend(self) -> str:
        """What runs the parts that could be run in several ways."""
        return ", ".join(self.builder.notes)

    def inputs(self) -> Tensor:
        """Return a random input that wants a gradient."""
        c = self.columns
        x = self.builder.kit.random(c.outer_tokens, c.hidden, dtype=self.builder.dtype)
        return x.requires_grad_()

    def __call__(self, x: Tensor) -> Tensor:
        """Run the forward."""
        raise NotImplementedError


class TransformerLayer(Layer):
    """Norm, attention, residual; norm, MLP or experts, residual.

    A layer of more than two norms has the others behind attention and MLP.
    """

    def __init__(self, builder: Builder) -> None:
        """Make all parts."""
        super().__init__(builder)
        c = self.columns
        if c.compiled:
            builder.note("eager in place of compiled")
        count = max(2, c.norms)
        self.norms = [Norm(builder, c.hidden) for _ in range(count)]
        attention = LatentAttention if c.mla else GroupedAttention
        self.attention: Callable[[Tensor], Tensor] = attention(builder)
        self.feed_forward: Callable[[Tensor], Tensor] = (
            Experts(builder) if builder.spec.kind == "moe" else Mlp(builder, c.ffn)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return the stream after the layer."""
        before, between, *behind = self.norms
        attended = self.attention(before(x))
        x = x + (behind[0](attended) if behind else attended)
        fed = self.feed_forward(between(x))
        return x + (behind[1](fed) if len(behind) > 1 else fed)


class Embedding(Layer):
    """Rows of the rank's part of the vocabulary, and learned positions where the model has them."""

    def __init__(self, builder: Builder) -> None:
        """Make the table."""
        super().__init__(builder)
        c = self.columns
        self.rows = ceil_div(c.vocab, c.tp)
        self.table = builder.weight(self.rows, c.hidden)
        self.positions = builder.weight(c.positions, c.hidden) if c.positions else None
        length = c.seq // max(1, c.cp)
        places = self.torch.arange(length, device=builder.kit.device)
        self.places = (places % max(1, c.positions)).repeat(c.micro_batch)

    def inputs(self) -> Tensor:
        """Return random tokens."""
        return self.builder.kit.integers(self.columns.tokens, below=self.columns.vocab)

    def __call__(self, x: Tensor) -> Tensor:
        """Look tokens up; those of other ranks' rows give zeros, which the ranks then sum."""
        c, embed = self.columns, self.torch.nn.functional.embedding
        if c.tp > 1:
            own = x - self.comm.rank("tp") * self.rows
            outside = (own < 0) | (own >= self.rows)
            found = embed(own.masked_fill(outside, 0), self.table)
            out = found.masked_fill(outside[:, None], 0.0)
        else:
            out = embed(x, self.table)
        if self.positions is not None:
            out = out + embed(self.places, self.positions)
        return self.comm.leave(out, group="tp", divided=c.divided)


IN_PLACE = 2
"""Bytes that a loss keeps of a logit where the gradient takes its place."""


class Head(Layer):
    """Final norm, output layer over the rank's part of the vocabulary, and the loss."""

    def __init__(self, builder: Builder, tied: Tensor | None = None) -> None:
        """Make the output layer, or take the embedding's table."""
        super().__init__(builder)
        c = self.columns
        self.norm = Norm(builder, c.hidden)
        self.rows = ceil_div(c.vocab, c.tp)
        self.table = builder.weight(self.rows, c.hidden) if tied is None else tied
        self.targets = builder.kit.integers(c.tokens, below=c.vocab)
        self.fused = 0 < c.loss_saved_bytes <= IN_PLACE and c.tp <= 1
        self.in_place = parts.in_place_loss(self.torch)
        builder.note("loss in place" if self.fused else "loss on FP32 logits")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the loss."""
        x, c = self.norm(x), self.columns
        if c.tp > 1:
            logits = self.comm.enter_linear(x, self.table, None, group="tp", divided=c.divided)
            return self.divided_loss(logits)
        logits = self.torch.nn.functional.linear(x, self.table)
        if self.fused:
            return self.in_place(logits, self.targets)
        return parts.plain_loss(self.torch, logits, self.targets)

    def divided_loss(self, logits: Tensor) -> Tensor:
        """Return the loss over a vocabulary that ranks share: three sums over them."""
        torch, comm = self.torch, self.comm
        wide = logits.float()
        most = comm.largest(wide.detach().amax(dim=-1), group="tp")
        wide = wide - most[:, None]
        own = self.targets - comm.rank("tp") * self.rows
        outside = (own < 0) | (own >= self.rows)
        found = wide.gather(1, own.masked_fill(outside, 0)[:, None])[:, 0]
        wanted = comm.total(found.masked_fill(outside, 0.0), group="tp")
        total = comm.total(wide.exp().sum(dim=-1), group="tp")
        return (torch.log(total) - wanted).mean()


class MtpProjection(Layer):
    """What joins output and embedding before a module that predicts a further token."""

    def __init__(self, builder: Builder) -> None:
        """Make two norms and a projection."""
        super().__init__(builder)
        hidden = self.columns.hidden
        self.norms = [Norm(builder, hidden), Norm(builder, hidden)]
        self.proj = Linear(builder, 2 * hidden, hidden, narrow=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Join the stream with itself, since no other is at hand."""
        first, second = self.norms
        return self.proj(self.torch.cat((first(x), second(x)), dim=-1))


class Delayed(Layer):
    """A layer that sleeps in every forward: a slowdown of known length."""

    def __init__(self, layer: Layer, delay_s: float, wait: Callable[[], None]) -> None:
        """Keep the layer."""
        super().__init__(layer.builder)
        self.layer, self.delay_s, self.wait = layer, delay_s, wait

    def inputs(self) -> Tensor:
        """Return the input of the layer."""
        return self.layer.inputs()

    def __call__(self, x: Tensor) -> Tensor:
        """Sleep once the device is idle, where nothing can hide it, and run the layer."""
        self.wait()
        time.sleep(self.delay_s)
        return self.layer(x)


KINDS: dict[LayerKind, Callable[[Builder], Layer]] = {
    "dense": TransformerLayer,
    "moe": TransformerLayer,
    "embedding": Embedding,
    "head": Head,
    "mtp": MtpProjection,
}


def build_layer(kit: Kit, comm: Comm, spec: LayerSpec) -> Layer:
    """Return a layer with random weights."""
    return KINDS[spec.kind](Builder(kit, comm, spec))


def build_model(
    kit: Kit, comm_of: Callable[[LayerSpec], Comm], specs: list[LayerSpec]
) -> list[Layer]:
    """Return layers in model order; a tied head shares the weight of the embedding."""
    layers: list[Layer] = []
    table: Any = None
    for spec in specs:
        builder = Builder(kit, comm_of(spec), spec)
        if spec.kind == "head" and builder.columns.tied and table is not None:
            layers.append(Head(builder, table))
            continue
        layer = KINDS[spec.kind](builder)
        if isinstance(layer, Embedding):
            table = layer.table
        layers.append(layer)
    return layers


__all__ = ["Columns", "Delayed", "Layer", "build_layer", "build_model"]
