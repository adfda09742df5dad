"""Workload columns with the extents every module needs, computed once.

Letters: t tokens of one rank inside the tensor-parallel region, s tokens outside it (divided by
TP as well under sequence parallelism).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints, Records
from projector.kernels.device import FIRST_NARROW, OPERAND_BYTES
from projector.lower.cluster_columns import LOAD_ONE
from projector.lower.workload_columns import ADDS, WorkloadColumns
from projector.operations.table import AGAIN, OperationTable


class Shapes(WorkloadColumns):
    """Columns of the distinct workloads and what follows from them."""

    @cached_property
    def tokens(self) -> Ints:
        """t: tokens of a microbatch on one rank inside the tensor-parallel region."""
        return np.asarray(self.micro_batch * self.seq // self.cp)

    @cached_property
    def outer_tokens(self) -> Ints:
        """s: tokens outside of it."""
        return np.where(self.sequence_parallel == 1, self.tokens // self.tp, self.tokens)

    @cached_property
    def kept_tokens(self) -> Ints:
        """Tokens that linear layers keep of an input that is gathered for them."""
        return np.where(self.keeps_gathered == 1, self.tokens, self.outer_tokens)

    @cached_property
    def operand_bytes(self) -> Floats:
        """Bytes of one operand element of the linear layers, scales included."""
        return np.asarray(OPERAND_BYTES[self.dtype])

    @cached_property
    def gradient_out_bytes(self) -> Floats:
        """Bytes of an element of a weight gradient, read and written where it is added in place."""
        return np.where(self.accumulation == ADDS, 2.0 * self.accumulate_bytes, 2.0)

    @cached_property
    def narrow(self) -> Flags:
        """Whether the linear layers need quantising passes."""
        return np.asarray(self.dtype >= FIRST_NARROW)

    @cached_property
    def eager_share(self) -> Floats:
        """Rate of eager kernels of experts over that of other memory-bound operators."""
        return np.where(self.eager_share_2e20 > 0, self.eager_share_2e20 / LOAD_ONE, 1.0)

    @cached_property
    def per_op(self) -> Ints:
        """1 where recomputation goes by operators."""
        return np.asarray(self.recompute_mask & AGAIN > 0, np.int64)

    @property
    def activation_bytes(self) -> Floats:
        """Bytes of an element that an activation writes."""
        return np.full(len(self), 2.0)

    def of_tokens(self, tokens: Ints) -> "Shapes":
        """Return the columns of what sees only some of the tokens of a rank."""
        shapes = Shapes(self.rows)
        shapes.__dict__["tokens"] = tokens
        return shapes


class InferenceShapes(Shapes):
    """Columns of inference steps, whose engines quantise in the kernel that writes an operand."""

    def __init__(self, rows: Records, tokens: Ints, emitting: Ints) -> None:
        """Keep the records, and for each step the tokens of a rank and those that get logits."""
        super().__init__(rows)
        self._tokens, self.emitting = tokens, emitting

    @cached_property
    def tokens(self) -> Ints:
        """Tokens that go through the layers of one rank: of a batch, of chunks of prompts."""
        return self._tokens

    @cached_property
    def narrow(self) -> Flags:
        """Linear layers have no quantising passes of their own."""
        return np.zeros(len(self), np.bool_)

    @property
    def activation_bytes(self) -> Floats:
        """Bytes of an operand of the next layer."""
        return self.operand_bytes


NARROW_LAYERS: dict[str, tuple[str, ...]] = {
    "all": ("",),
    "feed_forward": ("mlp.", "moe."),
    "experts": ("moe.experts.",),
}
"""Linear layers that are narrow -> what their labels begin with."""


def is_narrow(table: OperationTable, narrow_layers: Ints) -> Flags:
    """Return whether rows belong to layers that are narrow; row of each in `NARROW_LAYERS`."""
    begins = NARROW_LAYERS.values()
    labels = [[label.startswith(each) for label in table.labels] for each in begins]
    held = np.array(labels, np.bool_)  # also where a table has no labels
    return np.asarray(held[narrow_layers, table.label])


@dataclass(frozen=True, slots=True)
class StepShapes:
    """What inference steps have beside the extents of their layers (int64[steps]).

    A step has sequences that decode, chunks of prompts that prefill, or both. Counts are those of
    the fullest rank.
    """

    layers: Ints
    narrow_layers: Ints
    """Row in `NARROW_LAYERS` of the linear layers that are narrow."""
    windowed: Ints
    """Layers whose attention has a window."""
    mixed_layers: Ints
    """Layers with a mixer, of attention or another."""
    attention_layers: Ints
    dense_layers: Ints
    """Layers with one MLP."""
    moe_layers: Ints
    state_layers: Ints
    """int64[steps, mixers]: layers with each of `operations.recurrent.RECURRENT`."""
    sequences: Ints
    """That decode."""
    queries: Ints
    """New tokens of each of them: 1, and those that a draft proposed."""
    context: Ints
    """Tokens of each of them that are cached already."""
    chunks: Ints
    """Prompts, or parts of prompts, that prefill."""
    chunk_tokens: Ints
    """New tokens of each of them."""
    chunk_context: Ints
    """Tokens of each of them that are cached already."""
    cached: Ints
    """Elements that one layer caches of one token on a rank."""
    cache_bytes: Floats
    """float64[steps]: bytes of these."""
    layer_kernels: Floats
    """float64[steps]: kernels of a layer that no row stands for."""
    layer_calls: Floats
    """float64[steps]: operators of a layer that launch nothing."""
    pp: Ints
    pp_local: Ints
    """2 where neighbouring stages share a scale-up domain, 1 where they do not."""
    joins: Ints
    """1 where a module that predicts a further token joins output and embedding first."""
    stage_tokens: Ints
    """Tokens of all attention groups of a stage."""
    attention_dp: Ints
    """Attention groups."""
    groups_local: Ints
    """Groups in a scale-up domain."""
    stage_local: Ints
    """Devices of a stage in one."""
    largest_part: Floats
    """float64[steps]: expected largest of as many normal numbers as experts have parts."""
    part_load: Floats
    """float64[steps]: factor on the load of the fullest part."""
    gathers: Ints
    """1 where experts get the tokens of all groups by a gather."""
    exchange: Ints
    """Operation of a fused exchange that brings them there; -1 where there is none."""
    exchange_units: Ints
    """Compute units that it takes."""
    ranks_reached: Floats
    """float64[steps]: distinct parts on which a token's experts lie."""
    domains_reached: Floats
    """float64[steps]: distinct scale-up domains on which they lie."""

    @property
    def fed_layers(self) -> Ints:
        """Layers with an MLP or experts."""
        return self.dense_layers + self.moe_layers

    @property
    def decode_tokens(self) -> Ints:
        """New tokens of all sequences that decode."""
        return self.sequences * self.queries

    @property
    def tokens(self) -> Ints:
        """Tokens that go through the layers."""
        return self.decode_tokens + self.chunks * self.chunk_tokens

    @property
    def emitting(self) -> Ints:
        """Tokens that get logits: all that decode, and the last one of each chunk."""
        return self.decode_tokens + self.chunks


def ceil_div(value: Any, divisor: Any) -> Any:
    """Divide integers, rounding up."""
    return -(-value // divisor)
