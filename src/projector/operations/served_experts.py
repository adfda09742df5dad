"""Mixture-of-experts layers of inference steps: on every device, or divided and exchanged."""

from functools import partial

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.inference import inference_operators
from projector.kernels.collective_algorithms import ALL_GATHER, REDUCE_SCATTER
from projector.kernels.moe_exchange import COMBINE, DISPATCH, LOW_LATENCY
from projector.operations.communication import emit_collective, emit_region_exit
from projector.operations.linear import emit_linear, emit_memory
from projector.operations.mlp import emit_activation, emit_mlp
from projector.operations.moe import FP8_BYTES, MOE_ACT_BIT
from projector.operations.shapes import Shapes, StepShapes, ceil_div
from projector.operations.table import EP_COMM, EXCHANGE, FORWARD, TP_COMM, TableBuilder

NO_EXCHANGE = -1
"""Instead of the operation of an exchange."""


def emit_served_experts(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints
) -> None:
    """Emit the MoE layers of inference steps, as the fullest rank runs them.

    All devices of a stage hold the routed experts: ``ep`` parts, and each expert split over the
    devices of a part. Within one attention group every device has all tokens and computes its
    experts' share, which are summed over TP. Several groups exchange their tokens by a fused
    kernel, or gather them all and scatter the sums.
    """
    if len(where) == 0:
        return
    layers = table.repeated(steps.moe_layers)
    experts = np.maximum(1, shapes.experts)
    parts = np.maximum(1, shapes.ep)
    pairs = part_pairs(
        steps.stage_tokens, experts, shapes.topk, parts, steps.largest_part, steps.part_load
    )
    active = active_experts(experts // parts, pairs, steps.stage_tokens)
    exchanged = steps.exchange != NO_EXCHANGE
    _emit_routing(layers, shapes, where, experts)
    _emit_dispatch(layers, shapes, steps, where, pairs)
    # Kernels for few tokens deliver them by expert and sum up what comes back.
    around = where[steps.exchange[where] != LOW_LATENCY]
    copies = pairs.astype(np.float64)
    emit_memory(
        layers,
        around,
        "moe.permute",
        backward_bytes=0.0,
        forward_bytes=2.0 * shapes.operand_bytes * copies * shapes.hidden,
    )
    inner = ceil_div(shapes.expert_ffn, np.maximum(1, shapes.etp))
    rows = ceil_div(pairs, active)
    grouped = partial(emit_linear, layers, shapes, where, tokens=rows, groups=active, expert=1)
    grouped("moe.experts.fc1", n_in=shapes.hidden, n_out=inner * (1 + shapes.gated))
    emit_activation(layers, shapes, where, "moe.experts.act", copies * inner, MOE_ACT_BIT)
    grouped("moe.experts.fc2", n_in=np.maximum(1, inner), n_out=shapes.hidden)
    emit_memory(
        layers,
        around,
        "moe.finalise",
        backward_bytes=0.0,
        forward_bytes=2.0 * (copies + _summed_tokens(shapes, steps, exchanged)) * shapes.hidden,
    )
    _emit_combine(layers, shapes, steps, where, pairs)
    activations = 2.0 * shapes.tokens * shapes.hidden
    emit_region_exit(layers, shapes, where[~exchanged[where]], "moe.tp", activations, 0)
    shared = where[shapes.shared_ffn[where] > 0]
    # Partial sums of shared experts join those of the routed ones, where these are summed at all.
    for present, reduces in (
        (shared[~exchanged[shared]], False),
        (shared[exchanged[shared]], True),
    ):
        emit_mlp(layers, shapes, present, "moe.shared", shapes.shared_ffn, reduces=reduces)


def part_pairs(
    tokens: Ints, experts: Ints, topk: Ints, parts: Ints, largest: Floats, load: Floats
) -> Ints:
    """Return the expected pairs of token and expert of the fullest of ``parts``, int64[steps].

    Parameters
    ----------
    tokens : int64[steps]
        Of all attention groups; each picks ``topk`` distinct experts, all sets equally likely.
    largest : float64[steps]
        Expected largest of ``parts`` independent standard normal numbers.
    load : float64[steps]
        Factor on the pairs of the fullest part, for routing that is less even.

    Notes
    -----
    The picks of a token that lie in one part are hypergeometric. The sum over tokens is taken as
    normal, with equal correlation between the parts, as their total is fixed::

        fullest = t k / n + largest sqrt(t k (1/n) (1 - 1/n) (E - k) / (E - 1) n / (n - 1))

    No part gets more than every pick that it has experts for.
    """
    picks = (tokens * topk).astype(np.float64)
    chance = 1.0 / parts
    variance = picks * chance * (1.0 - chance) * (experts - topk) / np.maximum(1, experts - 1)
    spread = np.sqrt(variance * parts / np.maximum(1, parts - 1))
    fullest = load * (picks / parts + largest * spread)
    most = tokens * np.minimum(topk, experts // parts)
    pairs: Ints = np.minimum(np.ceil(fullest), most).astype(np.int64)
    return pairs


def active_experts(experts: Ints, pairs: Ints, tokens: Ints) -> Ints:
    """Return the expected number of ``experts`` that some token picks, at least one token's picks.

    Each token picks ``pairs / tokens`` of them on average.
    """
    picked = pairs / tokens
    missed: Floats = (1.0 - picked / np.maximum(1, experts)) ** tokens
    expected = np.rint(experts * (1.0 - missed)).astype(np.int64)
    least = np.minimum(np.ceil(picked).astype(np.int64), experts)
    return np.maximum(np.maximum(expected, least), 1)


def _emit_routing(table: TableBuilder, shapes: Shapes, where: Ints, experts: Ints) -> None:
    costs = inference_operators()
    scores = shapes.tokens * experts.astype(np.float64)
    picks = (shapes.tokens * shapes.topk).astype(np.float64)
    emit_linear(
        table, shapes, where, "moe.router", tokens=shapes.tokens, n_in=shapes.hidden,
        n_out=experts, wide=True, out_bytes=4.0,
    )  # fmt: skip
    emit_memory(
        table, where, "moe.route", forward_bytes=costs.router_score_bytes * scores
        + costs.router_pick_bytes * picks, backward_bytes=0.0, launches=costs.router_kernels,
    )  # fmt: skip


def _summed_tokens(shapes: Shapes, steps: StepShapes, exchanged: Flags) -> Floats:
    """Return the tokens for which a device writes a sum over its experts."""
    gathered = np.where(steps.gathers == 1, steps.stage_tokens, shapes.tokens)
    arriving = ceil_div(shapes.tokens, shapes.tp) * steps.ranks_reached
    return np.where(exchanged, arriving, gathered.astype(np.float64))


def _emit_dispatch(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints, pairs: Ints
) -> None:
    """Emit what brings tokens to their experts; FP8 layers send them in FP8."""
    element = np.where(shapes.operand_bytes < 2.0, FP8_BYTES, 2.0)
    for op in (DISPATCH, LOW_LATENCY):
        present = where[steps.exchange[where] == op]
        _emit_exchange(table, shapes, steps, present, "moe.dispatch", op, element, pairs)
    _emit_gathered(table, shapes, steps, where, "moe.dispatch", ALL_GATHER)


def _emit_combine(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints, pairs: Ints
) -> None:
    """Emit what brings results back, in 16 bits, and to all devices of an attention group."""
    element = np.full(len(shapes), 2.0)
    for op, back in ((DISPATCH, COMBINE), (LOW_LATENCY, LOW_LATENCY)):
        present = where[steps.exchange[where] == op]
        _emit_exchange(table, shapes, steps, present, "moe.combine", back, element, pairs)
    _emit_gathered(table, shapes, steps, where, "moe.combine", REDUCE_SCATTER)
    split = where[(steps.exchange[where] != NO_EXCHANGE) & (shapes.tp[where] > 1)]
    emit_collective(
        table, split, "moe.tp.all_gather", phase=FORWARD, category=TP_COMM, operation=ALL_GATHER,
        num_bytes=2.0 * shapes.tokens * shapes.hidden, ranks=shapes.tp, local=shapes.tp_local,
    )  # fmt: skip


def _emit_exchange(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints, label: str, op: int,
    element: Floats, pairs: Ints,
) -> None:  # fmt: skip
    """Emit a fused dispatch or combine; devices of an attention group share its tokens."""
    parts, local = np.maximum(1, shapes.ep), steps.stage_local
    sent = ceil_div(shapes.tokens, shapes.tp).astype(np.float64)
    mean = steps.stage_tokens * shapes.topk / parts
    tokens = sent * np.maximum(1.0, pairs / np.maximum(1.0, mean))
    size = shapes.hidden * element
    # The kernel for few tokens sends a copy to every expert.
    copies = np.where(op == LOW_LATENCY, shapes.topk, steps.ranks_reached).astype(np.float64)
    near = copies * (local - 1.0) / local
    far = np.where(op == LOW_LATENCY, copies, steps.domains_reached) * (parts - local) / parts
    table.add(
        where, label, kind=EXCHANGE, phase=FORWARD, category=EP_COMM, operation=op, tokens=tokens,
        token_bytes=size, ranks_reached=copies, domains_reached=steps.domains_reached,
        units=steps.exchange_units, ranks=parts, local=local, bytes=tokens * (near + far) * size,
    )  # fmt: skip


def _emit_gathered(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints, label: str, operation: int
) -> None:
    """Emit the gather of the tokens of all attention groups, or the scatter of their sums."""
    everything = 2.0 * steps.attention_dp * shapes.tokens * shapes.hidden
    emit_collective(
        table, where[steps.gathers[where] == 1], label, phase=FORWARD, category=EP_COMM,
        operation=operation, num_bytes=everything, ranks=steps.attention_dp,
        local=steps.groups_local,
    )  # fmt: skip
