"""Memory-bound operators by the label of their row, on the shapes of the layer they belong to.

An operator is the same code that a layer runs. Where the backward of an operator has no kernel of
its own in autograd, it is written out: a residual addition adds two gradients on the way back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from projector.measure import parts
from projector.measure.blocks import Columns, ceil_div
from projector.measure.experts import CLAMP, Routing, sort_chunks, unpermute
from projector.measure.layers import IN_PLACE, assemble
from projector.measure.narrow import RECIPES, format_of
from projector.measure.parts import Kit, Tensor, UnsupportedError
from projector.measure.task import LayerSpec, OperationProgram

ELEMENT_BYTES = 2.0
"""Of 16-bit activations, in which the table counts."""


@dataclass(frozen=True, slots=True)
class MemoryOperator:
    """An operator and what makes its operands."""

    name: str
    inputs: Callable[[], tuple[Tensor, ...]]
    run: Callable[..., Any]
    explicit: bool = False
    """Whether it is itself what the phase runs, instead of something that autograd turns round."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an operator is made from."""

    kit: Kit
    columns: Columns
    spec: LayerSpec
    program: OperationProgram

    @property
    def torch(self) -> Any:
        """Torch."""
        return self.kit.torch

    @property
    def dtype(self) -> Any:
        """Type of activations."""
        return self.kit.wide_type(self.spec.dtype)

    def leaf(self, *shape: int) -> Tensor:
        """Return an operand that wants a gradient."""
        return self.kit.random(*shape, dtype=self.dtype).requires_grad_()


def memory_operator(kit: Kit, program: OperationProgram) -> MemoryOperator:
    """Return the operator of a label, without a layer a pass over as many bytes as its row has."""
    if program.layer is None:
        return _stream(kit, program.key.bytes)
    context = Context(kit, Columns(program.layer.columns), program.layer, program)
    label = program.key.label
    ending = known_label(label)
    if ending is None:
        raise UnsupportedError(f"no operator of torch is known for {label}")
    return OPERATORS[ending](context)


def known_label(label: str) -> str | None:
    """Return the entry of `OPERATORS` that a label has, None if there is none."""
    fits = (each for each in OPERATORS if label == each or label.endswith(f".{each}"))
    return next(fits, None)


def _stream(kit: Kit, num_bytes: float) -> MemoryOperator:
    """Return a scaling that reads half of the bytes and writes half."""
    torch = kit.torch
    elements = max(1, round(num_bytes / (2.0 * ELEMENT_BYTES)))

    def inputs() -> tuple[Tensor, ...]:
        x = kit.random(elements, dtype=torch.bfloat16)
        return x, torch.empty_like(x)

    return MemoryOperator(
        "torch.mul", inputs, lambda x, out: torch.mul(x, 1.5, out=out), explicit=True
    )


def _norm(at: Context) -> MemoryOperator:
    """Norms of one place: their number follows from the label, as in the operation table."""
    c, place = at.columns, at.program.key.label.split(".")[0]
    count = {"attention": (c.norms + 1) // 2, "mlp": c.norms // 2, "mtp": 2}.get(place, 1)
    shift = c.norm_parameters == 2

    def inputs() -> tuple[Tensor, ...]:
        return (
            *(at.leaf(c.outer_tokens, c.hidden) for _ in range(max(1, count))),
            at.leaf(c.hidden),
            *([at.leaf(c.hidden)] if shift else []),
        )

    def run(*operands: Tensor) -> tuple[Tensor, ...]:
        *streams, weight = operands[:-1] if shift else operands
        bias = operands[-1] if shift else None
        return tuple(parts.norm(at.torch, x, weight, bias, eager=c.eager == 1) for x in streams)

    return MemoryOperator("layer_norm" if shift else "rms_norm", inputs, run)


def _norms(at: Context, shapes: Sequence[tuple[int, ...]]) -> MemoryOperator:
    """Norms of streams of several shapes, each with its own weights."""
    eager = at.columns.eager == 1

    def run(*operands: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(operands[::2], operands[1::2], strict=True)
        return tuple(parts.norm(at.torch, x, w, None, eager=eager) for x, w in pairs)

    both = [each for shape in shapes for each in (shape, shape[-1:])]
    return MemoryOperator("rms_norm", lambda: tuple(at.leaf(*each) for each in both), run)


def _latent_norm(at: Context) -> MemoryOperator:
    c = at.columns
    return _norms(at, [(c.outer_tokens, width) for width in (c.q_lora, c.kv_lora) if width])


def _local_heads(c: Columns) -> tuple[int, int]:
    return c.heads // c.tp, ceil_div(c.key_heads, c.tp)


def _qk_norm(at: Context) -> MemoryOperator:
    c, heads = at.columns, _local_heads(at.columns)
    if c.qk_norm == 1:
        return _norms(at, [(c.tokens, count, c.d_qk) for count in heads])
    return _norms(at, [(c.tokens, count * c.d_qk) for count in heads])


def _residual(at: Context) -> MemoryOperator:
    c = at.columns

    def inputs() -> tuple[Tensor, ...]:
        return tuple(at.kit.random(c.outer_tokens, c.hidden, dtype=at.dtype) for _ in range(2))

    return MemoryOperator("torch.add", inputs, at.torch.add, explicit=True)


def _rope(at: Context) -> MemoryOperator:
    c = at.columns
    heads, key_heads = _local_heads(c)
    length = c.seq // c.cp
    width = c.d_rope if c.mla else c.d_qk
    turns = parts.rotations(at.kit, length, width, at.dtype)

    def of_heads(count: int, size: int) -> Tensor:
        made = at.kit.random(c.micro_batch, length, count, size, dtype=at.dtype)
        return made.transpose(1, 2).requires_grad_()

    if c.mla:
        return MemoryOperator(
            "rotate and join",
            lambda: (of_heads(heads, c.d_qk), of_heads(heads, c.d_nope), of_heads(1, c.d_rope)),
            lambda query, key, shared: assemble(at.torch, query, key, shared, turns),
        )
    return MemoryOperator(
        "rotate",
        lambda: (of_heads(heads, width), of_heads(key_heads, width)),
        lambda query, key: tuple(parts.rotate(at.torch, x, *turns) for x in (query, key)),
    )


def _join(at: Context) -> MemoryOperator:
    c = at.columns
    heads, key_heads = _local_heads(c)
    widths = (heads * c.d_qk, key_heads * c.d_qk, key_heads * c.d_v)
    return MemoryOperator(
        "torch.cat",
        lambda: tuple(at.kit.random(c.tokens, width, dtype=at.dtype) for width in widths),
        lambda *gradients: at.torch.cat(gradients, dim=-1),
        explicit=True,
    )


def _expert_rows(at: Context) -> tuple[Routing, int]:
    """Return the routing of a layer, and the rows that its experts on this rank get."""
    c, routing = at.columns, Routing(at.kit, at.columns)
    # That the host waits for counts is no part of the kernels; a layer has it.
    routing.waits = False
    return routing, routing.of_expert * c.ep * c.etp * max(1, c.experts // c.ep)


def _act(at: Context) -> MemoryOperator:
    c, label = at.columns, at.program.key.label
    if label.startswith("moe.experts"):
        rows, width = _expert_rows(at)[1], c.expert_ffn // c.etp
    else:
        whole = c.shared_ffn if label.startswith("moe.shared") else c.ffn
        rows, width = c.tokens, ceil_div(whole, c.tp)
    gated = c.gated == 1
    return MemoryOperator(
        "silu and product" if gated else "gelu",
        lambda: (at.leaf(rows, width * (1 + gated)),),
        lambda x: parts.activate(at.torch, x, gated=gated),
    )


def _clamp(at: Context) -> MemoryOperator:
    c = at.columns
    rows, width = _expert_rows(at)[1], c.expert_ffn // c.etp * (1 + c.gated)
    return MemoryOperator(
        "torch.clamp", lambda: (at.leaf(rows, width),), lambda x: x.clamp(-CLAMP, CLAMP)
    )


def _expert_bias(at: Context) -> MemoryOperator:
    c = at.columns
    _, rows = _expert_rows(at)
    local = max(1, c.experts // c.ep)
    return MemoryOperator(
        "bias times weight of each row",
        lambda: (at.leaf(local, rows // local, c.hidden), at.leaf(local, 1, c.hidden)),
        lambda x, bias: x + bias,
    )


def _topk(at: Context) -> MemoryOperator:
    c, routing = at.columns, Routing(at.kit, at.columns)
    return MemoryOperator(
        "softmax, topk", lambda: (at.leaf(c.outer_tokens, c.experts),), routing.scores
    )


def _permute(at: Context) -> MemoryOperator:
    c, (routing, _) = at.columns, _expert_rows(at)
    return MemoryOperator(
        "sort, index_select",
        lambda: (at.leaf(c.outer_tokens, c.hidden),),
        lambda x: x.index_select(0, routing.order()[1]),
    )


def _unpermute(at: Context) -> MemoryOperator:
    c, (routing, _) = at.columns, _expert_rows(at)
    pair, token = routing.order()
    return MemoryOperator(
        "index_add",
        lambda: (at.leaf(routing.rows, c.hidden), at.leaf(c.outer_tokens, routing.topk)),
        lambda out, weights: unpermute(out, weights, pair, token, c.outer_tokens),
    )


def _sort(at: Context) -> MemoryOperator:
    """Sort what arrived by local expert, and what they return back."""
    c, (_, rows) = at.columns, _expert_rows(at)
    sources, local = c.ep * c.etp, max(1, c.experts // c.ep)
    return MemoryOperator(
        "transposed copy",
        lambda: (at.leaf(rows, c.hidden), at.leaf(rows, c.hidden)),
        lambda there, back: (
            sort_chunks(there, sources, local), sort_chunks(back, local, sources)
        ),
    )  # fmt: skip


def _embedding(at: Context) -> MemoryOperator:
    c = at.columns
    rows = ceil_div(c.vocab, c.tp)
    tokens = at.kit.integers(c.tokens, below=rows)
    return MemoryOperator(
        "embedding",
        lambda: (at.leaf(rows, c.hidden),),
        lambda table: at.torch.nn.functional.embedding(tokens, table),
    )


def _loss(at: Context) -> MemoryOperator:
    c = at.columns
    columns = ceil_div(c.vocab, c.tp)
    targets = at.kit.integers(c.tokens, below=columns)
    in_place = 0 < c.loss_saved_bytes <= IN_PLACE
    loss = parts.in_place_loss(at.torch) if in_place else partial(parts.plain_loss, at.torch)
    return MemoryOperator(
        "loss in place" if in_place else "loss on FP32 logits",
        lambda: (at.leaf(c.tokens, columns),),
        lambda x: loss(x, targets),
    )


def _quantise(at: Context) -> MemoryOperator:
    """Quantise rows and columns: 2 bytes read (4 with scales of tensor or row), 1 written twice."""
    recipe = RECIPES[at.columns.fp8_recipe]
    fmt = format_of(at.kit, at.spec.dtype, recipe)
    once_more = recipe in ("tensorwise", "rowwise")
    width = max(1, at.columns.hidden)
    rows = max(1, round(at.program.key.bytes / (4.0 + 2.0 * once_more) / width))
    return MemoryOperator(
        f"quantise, {recipe}",
        lambda: (at.kit.random(rows, width, dtype=at.dtype),),
        lambda x: (fmt.quantise(x), fmt.quantise(x.t().contiguous())),
        explicit=True,
    )


def _accumulate(at: Context) -> MemoryOperator:
    size = at.columns.accumulate_bytes or 4
    wide = at.torch.float32 if size == 4 else at.torch.bfloat16
    elements = max(1, round(at.program.key.bytes / (2.0 + 2.0 * size)))
    return MemoryOperator(
        "add_",
        lambda: (
            at.kit.random(elements, dtype=wide), at.kit.random(elements, dtype=at.torch.bfloat16)
        ),
        lambda main, gradient: main.add_(gradient),
        explicit=True,
    )  # fmt: skip


def _softmax(at: Context) -> MemoryOperator:
    c = at.columns
    heads, _ = _local_heads(c)
    shape = (c.micro_batch * heads, c.seq // c.cp, c.seq)
    mask = at.torch.ones(shape[1:], dtype=at.torch.bool, device=at.kit.device).triu(1)
    return MemoryOperator(
        "scale, mask, softmax",
        lambda: (at.leaf(*shape),),
        lambda x: (x * c.d_qk**-0.5).masked_fill(mask, float("-inf")).softmax(dim=-1),
    )


OPERATORS: dict[str, Callable[[Context], MemoryOperator]] = {
    "attention.latent_norm": _latent_norm,
    "attention.qk_norm": _qk_norm,
    "attention.qkv.join": _join,
    "attention.core.softmax": _softmax,
    "attention.rope": _rope,
    "moe.router.topk": _topk,
    "moe.permute": _permute,
    "moe.unpermute": _unpermute,
    "moe.sort": _sort,
    "moe.experts.clamp": _clamp,
    "moe.experts.bias": _expert_bias,
    "head.loss": _loss,
    "norm": _norm,
    "residual": _residual,
    "act": _act,
    "quantise": _quantise,
    "accumulate": _accumulate,
    "embedding": _embedding,
}
"""Label, or how it ends, -> what makes the operator; the first that fits."""
