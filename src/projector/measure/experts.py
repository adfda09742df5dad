"""Mixture of experts of a layer: router, permutation, exchange, grouped GEMMs and back.

A grouped GEMM is the one of this build of torch, or a loop over experts.

Every expert gets the same number of tokens, times the load of the fullest rank: scores and top-k
are computed, and then tokens go round the experts in turn. What a real router sends depends on
the text; balanced loads are what the operation table has, and make a measurement repeatable.
"""

from collections.abc import Callable
from dataclasses import dataclass

from projector.measure import parts
from projector.measure.blocks import ONE, Builder, Columns, Linear, Mlp, ceil_div
from projector.measure.narrow import NarrowExperts, NarrowLinear, check_extents, has_narrow_experts
from projector.measure.parts import Kit, Tensor, Torch

LOOP = "loop over experts"


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """A way to multiply rows that are sorted by expert, the same number of each."""

    torch: Torch
    name: str
    library: Callable[..., Tensor] | None

    def multiply(self, left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
        """Multiply rows [n, k] by [experts, k, m]; or [k, n] by [n, m], the rows divided.

        The rows of each expert end at ``ends``, int32[experts].
        """
        if self.library is not None:
            return self.library(left, right, offs=ends)
        groups = ends.shape[0]
        if right.dim() == 3:
            blocks = zip(left.chunk(groups), right, strict=True)
            return self.torch.cat([block @ weight for block, weight in blocks])
        blocks = zip(left.chunk(groups, dim=1), right.chunk(groups), strict=True)
        return self.torch.stack([block @ rows for block, rows in blocks])


def choose_grouped(kit: Kit, dtype: object, n_in: int, n_out: int) -> GroupedGemm:
    """Return the grouped GEMM of this build, tried both ways, or a loop where it has none."""
    torch = kit.torch
    functional = torch.nn.functional
    for owner, name, shown in (
        (functional, "grouped_mm", "torch.nn.functional.grouped_mm"),
        (torch, "_grouped_mm", "torch._grouped_mm"),
    ):
        found = GroupedGemm(torch, shown, getattr(owner, name, None))
        if found.library is None:
            continue
        try:
            x = kit.random(32, n_in, dtype=dtype).requires_grad_()
            w = kit.random(2, n_out, n_in, dtype=dtype).requires_grad_()
            out = found.multiply(x, w.transpose(1, 2), ends_of(kit, 2, 16))
            out.backward(torch.ones_like(out))
        except (RuntimeError, NotImplementedError, TypeError):
            continue
        return found
    return GroupedGemm(torch, LOOP, None)


def ends_of(kit: Kit, groups: int, rows: int) -> Tensor:
    """Return where the rows of equal groups end, int32[groups]."""
    torch = kit.torch
    return torch.arange(rows, rows * groups + 1, rows, dtype=torch.int32, device=kit.device)


CLAMP = 7.0
"""Inputs of the activation that are clamped stay below this in gpt-oss; time does not depend on
it."""

DISPATCHERS = ("alltoall", "allgather", "deepep", "hybridep")


class Routing:
    """Which token goes to which expert, balanced, and what of it a forward computes."""

    def __init__(self, kit: Kit, columns: Columns) -> None:
        torch, c = kit.torch, columns
        self.torch, self.topk = torch, max(1, c.topk)
        self.experts = max(1, c.experts)
        self.sent = c.outer_tokens * self.topk
        load = (c.load_2e20 or ONE) / ONE
        self.of_expert = max(1, ceil_div(round(self.sent * load), self.experts))
        self.rows = self.of_expert * self.experts
        self.expert_of_row = torch.arange(self.rows, device=kit.device) % self.experts
        self.numbers = torch.arange(self.experts, device=kit.device)
        self.waits = c.host_sync == 1

    def scores(self, logits: Tensor) -> Tensor:
        """Return the weights of each token's experts, [tokens, topk]."""
        weights, _ = self.torch.softmax(logits.float(), dim=-1).topk(self.topk, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True)

    def order(self) -> tuple[Tensor, Tensor]:
        """Sort by expert: the pair of token and expert of each row, and the token alone."""
        experts, order = self.torch.sort(self.expert_of_row, stable=True)
        # A histogram of torch reads its largest value back and waits for the device.
        ends = self.torch.searchsorted(experts, self.numbers, right=True)
        if self.waits:
            ends.tolist()
        pair = order % self.sent
        return pair, pair // self.topk


def unpermute(out: Tensor, weights: Tensor, pair: Tensor, token: Tensor, tokens: int) -> Tensor:
    """Sum what experts return, times its weight: from [rows, hidden] to [s, hidden]."""
    weighted = out * weights.flatten().index_select(0, pair).to(out.dtype)[:, None]
    return out.new_zeros(tokens, out.shape[1]).index_add(0, token, weighted)


def sort_chunks(x: Tensor, outer: int, inner: int) -> Tensor:
    """Exchange the order of chunks: by rank and expert to by expert and rank."""
    chunks = x.view(outer, inner, -1, x.shape[-1])
    return chunks.transpose(0, 1).reshape(x.shape[0], x.shape[-1])


class ExpertLinear:
    """The weights of all experts of a rank, and their grouped GEMM."""

    def __init__(self, builder: Builder, experts: int, n_in: int, n_out: int, rows: int) -> None:
        """Make weights [experts, n_out, n_in] for so many rows of each."""
        self.torch, self.rows = builder.torch, rows
        self.ends = ends_of(builder.kit, experts, rows)
        self.one_by_one: NarrowLinear | None = None
        self.multiply: Callable[[Tensor, Tensor], Tensor]
        if not builder.is_narrow:
            self.weights = [builder.weight(experts, n_out, n_in)]
            grouped = choose_grouped(builder.kit, builder.dtype, n_in, n_out)
            self.multiply = lambda x, w: grouped.multiply(x, w.transpose(1, 2), self.ends)
            builder.note(grouped.name)
        else:
            check_extents(n_in, n_out, rows)
            fmt = builder.narrow_format
            if has_narrow_experts(builder.kit, fmt, n_in, n_out):
                made = NarrowExperts(fmt, self.ends)
                builder.narrow_experts.append(made)
                self.weights, self.multiply = [builder.weight(experts, n_out, n_in)], made
                builder.note("torch._scaled_grouped_mm")
            else:
                self.one_by_one = builder.narrow
                self.weights = [builder.weight(n_out, n_in) for _ in range(experts)]
                builder.note("experts in a loop")
        self.bias = builder.weight(experts, 1, n_out) if builder.columns.mlp_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply rows that are sorted by expert."""
        if self.one_by_one is not None:
            narrow = self.one_by_one
            blocks = zip(x.split(self.rows), self.weights, strict=True)
            out = self.torch.cat([narrow(block, weight) for block, weight in blocks])
        else:
            out = self.multiply(x, self.weights[0])
        if self.bias is not None:
            out = (out.view(len(self.ends), self.rows, -1) + self.bias).view(out.shape)
        return out


class Experts:
    """The feed-forward part of a layer with experts."""

    def __init__(self, builder: Builder) -> None:
        c = builder.columns
        self.builder, self.columns, self.torch = builder, c, builder.torch
        self.routing = Routing(builder.kit, c)
        self.router = Linear(builder, c.hidden, c.experts, bias=c.router_bias == 1)
        self.local = max(1, c.experts // c.ep)
        self.sources = c.ep * c.etp
        rows = self.routing.of_expert * self.sources
        width = c.expert_ffn // c.etp
        self.first = ExpertLinear(builder, self.local, c.hidden, width * (1 + c.gated), rows)
        self.second = ExpertLinear(builder, self.local, width, c.hidden, rows)
        self.shared = Mlp(builder, c.shared_ffn) if c.shared_ffn else None
        self.gate = Linear(builder, c.hidden, 1) if c.shared_ffn and c.shared_gate else None
        if c.ep > 1 and c.dispatcher:
            builder.note(f"all-to-all in place of {DISPATCHERS[c.dispatcher]}")

    def __call__(self, x: Tensor) -> Tensor:
        """Route, compute, and add the shared experts."""
        weights = self.routing.scores(self.router(x))
        pair, token = self.routing.order()
        out = self.exchange_back(self.compute(self.exchange(x.index_select(0, token))))
        out = unpermute(out, weights, pair, token, x.shape[0])
        if self.shared is None:
            return out
        shared = self.shared(x)
        return out + (shared if self.gate is None else shared * self.gate(x).sigmoid())

    def exchange(self, rows: Tensor) -> Tensor:
        """Bring the rows of this rank's experts here, sorted by expert."""
        comm, c = self.builder.comm, self.columns
        if c.ep > 1:
            rows = comm.swap(rows, group="ep")
        if c.etp > 1:
            rows = comm.enter(rows, group="etp", divided=True)
        sorts = self.sources > 1 and self.local > 1
        return sort_chunks(rows, self.sources, self.local) if sorts else rows

    def exchange_back(self, rows: Tensor) -> Tensor:
        """Return them to their senders."""
        comm, c = self.builder.comm, self.columns
        if self.sources > 1 and self.local > 1:
            rows = sort_chunks(rows, self.local, self.sources)
        if c.etp > 1:
            rows = comm.leave(rows, group="etp", divided=True)
        return comm.swap(rows, group="ep") if c.ep > 1 else rows

    def compute(self, rows: Tensor) -> Tensor:
        """Run the experts."""
        inner = self.first(rows)
        if self.columns.clamped:
            inner = inner.clamp(-CLAMP, CLAMP)
        return self.second(parts.activate(self.torch, inner, gated=self.columns.gated == 1))
