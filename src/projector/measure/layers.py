"""Real layers in torch's autograd, of the shapes that one rank of a job holds.

Self-attention is grouped-query or latent, over tensor and context parallelism.

Extents are divided over ranks as Megatron-LM divides them: columns of the first and rows of the
second projection over TP, tokens outside these regions over TP too under sequence parallelism,
the sequence over CP, experts over EP. Where it communicates, a layer calls its `Comm`.
Torch is passed in, so that this module loads without it.
"""

import time
from collections.abc import Callable
from typing import Any

from projector.measure import parts
from projector.measure.blocks import Builder, Columns, Linear, Mlp, Norm, ceil_div
from projector.measure.comm import Comm
from projector.measure.experts import Experts
from projector.measure.parts import AttentionKernel, AttentionShape, Kit, Tensor
from projector.measure.task import LayerKind, LayerSpec

EXCHANGE_HEADS = 2
"""Code of ``cp_type`` that exchanges heads for sequence."""


class Core:
    """softmax(QK')V of a rank, with what context parallelism moves.

    A rank of a context-parallel group meets half of all keys on average, as the table has it: it
    attends with its queries to so many gathered keys, without a mask. Rings are measured as
    gathers. With head exchange a rank sees whole sequences of its share of the heads.
    """

    def __init__(self, builder: Builder, heads: int, key_heads: int) -> None:
        c = builder.columns
        self.builder, self.columns = builder, c
        self.exchanged = c.cp > 1 and c.cp_type == EXCHANGE_HEADS
        self.divided = c.cp > 1 and not self.exchanged
        shape = core_shape(builder.kit, c, heads, key_heads, builder.spec.dtype)
        self.keys = shape.keys
        self.kernel: AttentionKernel = parts.choose_attention(
            builder.kit, shape, builder.spec.attention
        )
        builder.note(self.kernel.name)
        if self.divided:
            builder.note("keys gathered over CP")
        if c.sinks:
            builder.note("without sinks")
        if c.fp8_attention:
            builder.note("attention in 16 bits")

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend: from [b, heads, s, d] to [b, s, heads, d_v]."""
        if self.exchanged:
            query, key, value = (self.to_heads(part) for part in (query, key, value))
            return self.to_sequence(self.kernel.run(query, key, value)).transpose(1, 2)
        if self.divided:
            key, value = (self.gathered(part) for part in (key, value))
        return self.kernel.run(query, key, value).transpose(1, 2)

    def gathered(self, x: Tensor) -> Tensor:
        """Return the keys, or values, that the queries of this rank meet."""
        rows = self.builder.comm.gather(x.permute(2, 0, 1, 3).contiguous(), group="cp")
        return rows[: self.keys].permute(1, 2, 0, 3)

    def to_heads(self, x: Tensor) -> Tensor:
        """Give parts of the heads away for the rest of the sequence."""
        cp = self.columns.cp
        batch, heads, length, width = x.shape
        if heads < cp:
            x, heads = x.repeat_interleave(cp // heads, dim=1), cp
        parted = x.view(batch, cp, heads // cp, length, width).transpose(0, 1).contiguous()
        swapped = self.builder.comm.swap(parted.flatten(0, 1), group="cp")
        swapped = swapped.view(cp, batch, heads // cp, length, width).permute(1, 2, 0, 3, 4)
        return swapped.reshape(batch, heads // cp, cp * length, width)

    def to_sequence(self, x: Tensor) -> Tensor:
        """Take all heads back of the own part of the sequence."""
        cp = self.columns.cp
        batch, heads, length, width = x.shape
        parted = x.view(batch, heads, cp, length // cp, width).permute(2, 0, 1, 3, 4).contiguous()
        swapped = self.builder.comm.swap(parted.flatten(0, 1), group="cp")
        swapped = swapped.view(cp, batch, heads, length // cp, width).transpose(0, 1)
        return swapped.reshape(batch, cp * heads, length // cp, width)


def core_shape(kit: Kit, c: Columns, heads: int, key_heads: int, dtype: str) -> AttentionShape:
    """Return the extents of a rank's attention, those of the operation table."""
    exchanged = c.cp > 1 and c.cp_type == EXCHANGE_HEADS
    divided = c.cp > 1 and not exchanged
    half = ceil_div(c.seq, 2)
    seen = min(half, c.window) if c.window else half
    return AttentionShape(
        heads=heads // c.cp if exchanged else heads,
        key_heads=max(1, key_heads // c.cp) if exchanged else key_heads,
        queries=c.seq // c.cp if divided else c.seq,
        keys=seen if divided else c.seq,
        d_qk=c.d_qk,
        d_v=c.d_v,
        causal=not divided,
        window=0 if divided else c.window,
        dtype=kit.wide_type(dtype),
    )


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
        self.qkv = Linear(builder, c.hidden, width, bias=c.attention_bias >= 1, narrow=True)
        self.proj = Linear(
            builder, self.heads * c.d_v, c.hidden, bias=c.attention_bias == 2, narrow=True
        )
        self.length = c.seq // c.cp
        self.rotations = parts.rotations(builder.kit, self.length, c.d_qk, builder.dtype)
        widths = (c.d_qk, c.d_qk) if c.qk_norm == 1 else (self.query, self.key)
        self.norms = [Norm(builder, width) for width in widths] if c.qk_norm else []
        self.core = Core(builder, self.heads, self.key_heads)

    def __call__(self, x: Tensor) -> Tensor:
        torch, comm, c = self.builder.torch, self.builder.comm, self.columns
        x = self.qkv.enter(x, comm, divided=c.divided)
        query, key, value = x.split((self.query, self.key, self.value), dim=-1)
        if self.norms and c.qk_norm != 1:
            query, key = self.norms[0](query), self.norms[1](key)
        query, key, value = (
            part.view(c.micro_batch, self.length, heads, -1)
            for part, heads in ((query, self.heads), (key, self.key_heads), (value, self.key_heads))
        )
        if self.norms and c.qk_norm == 1:
            query, key = self.norms[0](query), self.norms[1](key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if c.rope:
            query = parts.rotate(torch, query, *self.rotations)
            key = parts.rotate(torch, key, *self.rotations)
        out = self.core(query, key, value).reshape(c.tokens, self.heads * c.d_v)
        return comm.leave(self.proj(out), group="tp", divided=c.divided)


class LatentAttention:
    """DeepSeek's attention over latents (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    def __init__(self, builder: Builder) -> None:
        """Make down-projections, which every rank has, and up-projections of its heads."""
        c = builder.columns
        self.builder, self.columns = builder, c
        self.heads = c.heads // c.tp
        query = self.heads * c.d_qk
        self.q_down = Linear(builder, c.hidden, c.q_lora, narrow=True) if c.q_lora else None
        self.q_norm = Norm(builder, c.q_lora) if c.q_lora else None
        self.q_up = Linear(builder, c.q_lora or c.hidden, query, narrow=True)
        self.kv_down = Linear(builder, c.hidden, c.kv_lora + c.d_rope, narrow=True)
        self.kv_norm = Norm(builder, c.kv_lora)
        self.kv_up = Linear(builder, c.kv_lora, self.heads * (c.d_nope + c.d_v), narrow=True)
        self.proj = Linear(
            builder, self.heads * c.d_v, c.hidden, bias=c.attention_bias == 2, narrow=True
        )
        self.length = c.seq // c.cp
        self.rotations = parts.rotations(builder.kit, self.length, c.d_rope, builder.dtype)
        self.core = Core(builder, self.heads, self.heads)

    def __call__(self, x: Tensor) -> Tensor:
        comm, c = self.builder.comm, self.columns
        latent, shared = self.kv_down(x).split((c.kv_lora, c.d_rope), dim=-1)
        latent = self.kv_norm(latent)
        queries = x
        if self.q_down is not None and self.q_norm is not None:
            queries = self.q_norm(self.q_down(x))
        queries, latent, shared = (
            comm.enter(part, group="tp", divided=c.divided)
            for part in (queries, latent, shared.contiguous())
        )
        batch = (c.micro_batch, self.length)
        query = self.q_up(queries).view(*batch, self.heads, c.d_qk).transpose(1, 2)
        keys = self.kv_up(latent).view(*batch, self.heads, -1).transpose(1, 2)
        key, value = keys.split((c.d_nope, c.d_v), dim=-1)
        query, key = assemble(
            self.builder.torch, query, key, shared.view(*batch, 1, -1).transpose(1, 2),
            self.rotations,
        )  # fmt: skip
        out = self.core(query, key, value).reshape(c.tokens, self.heads * c.d_v)
        return comm.leave(self.proj(out), group="tp", divided=c.divided)


def assemble(
    torch: parts.Torch, query: Tensor, key: Tensor, shared: Tensor, rotations: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Rotate the rope parts and copy the shared one to the key of every head.

    ``query`` is [b, heads, s, d_nope + d_rope], ``key`` [b, heads, s, d_nope] and ``shared`` [b, 1,
    s, d_rope].
    """
    width = shared.shape[-1]
    plain, turned = query.split((query.shape[-1] - width, width), dim=-1)
    query = torch.cat((plain, parts.rotate(torch, turned, *rotations)), dim=-1)
    of_all = parts.rotate(torch, shared, *rotations).expand(-1, key.shape[1], -1, -1)
    return query, torch.cat((key, of_all), dim=-1)


class Layer:
    """What every kind of layer has."""

    def __init__(self, builder: Builder) -> None:
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
        super().__init__(builder)
        c = self.columns
        if c.compiled:
            builder.note("eager in place of compiled")
        self.norms = [Norm(builder, c.hidden) for _ in range(max(2, c.norms))]
        attention = LatentAttention if c.mla else GroupedAttention
        self.attention: Callable[[Tensor], Tensor] = attention(builder)
        self.feed_forward: Callable[[Tensor], Tensor] = (
            Experts(builder) if builder.spec.kind == "moe" else Mlp(builder, c.ffn)
        )

    def __call__(self, x: Tensor) -> Tensor:
        before, between, *behind = self.norms
        attended = self.attention(before(x))
        x = x + (behind[0](attended) if behind else attended)
        fed = self.feed_forward(between(x))
        return x + (behind[1](fed) if len(behind) > 1 else fed)


class Embedding(Layer):
    """Rows of the rank's part of the vocabulary, and learned positions where the model has them."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        c = self.columns
        self.rows = ceil_div(c.vocab, c.tp)
        self.table = builder.weight(self.rows, c.hidden)
        self.positions = builder.weight(c.positions, c.hidden) if c.positions else None
        places = self.torch.arange(c.seq // max(1, c.cp), device=builder.kit.device)
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
            out = embed(own.masked_fill(outside, 0), self.table).masked_fill(outside[:, None], 0.0)
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
