"""Mixture-of-experts layers: router, permutation, dispatch, grouped experts, combine."""

from functools import partial

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.collective_algorithms import ALL_GATHER, REDUCE_SCATTER
from projector.lower.sections import LOAD_ONE
from projector.operations.communication import emit_collective, emit_region_exit
from projector.operations.linear import emit_linear, emit_memory
from projector.operations.mlp import SHARED_BIT, emit_activation, emit_mlp
from projector.operations.shapes import Shapes, StepShapes, ceil_div
from projector.operations.table import (
    BACKWARD,
    EP_COMM,
    EXCHANGE,
    FORWARD,
    TP_COMM,
    WHOLE_LAYER,
    TableBuilder,
)

MOE_BIT, MOE_ACT_BIT = 1 << 4, 1 << 5
ALLTOALL, ALLGATHER, DEEPEP = range(3)


def emit_moe(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the MoE layers in ``where``.

    A rank holds s tokens before dispatch. After it, each of its experts/EP experts has
    s * topk * ETP * EP / experts of them on average, times the load of the fullest rank.
    """
    if len(where) == 0:
        return
    sent = shapes.outer_tokens * shapes.topk
    local_experts = np.maximum(1, shapes.experts // np.maximum(1, shapes.ep))
    arriving = ceil_div(sent * shapes.etp * shapes.load_2e20, LOAD_ONE)
    per_expert = ceil_div(arriving, local_experts)
    width = shapes.expert_ffn // np.maximum(1, shapes.etp)
    _emit_router(table, shapes, where)
    emit_mlp(
        table, shapes, where[shapes.shared_ffn[where] > 0], "moe.shared", shapes.shared_ffn,
        bit=SHARED_BIT | MOE_BIT,
    )  # fmt: skip
    gate = where[(shapes.shared_gate[where] == 1) & (shapes.shared_ffn[where] > 0)]
    emit_linear(
        table, shapes, gate, "moe.shared.gate", tokens=shapes.outer_tokens, n_in=shapes.hidden,
        n_out=1, wide=True, saves_input=False, recompute_bit=SHARED_BIT | MOE_BIT,
    )  # fmt: skip
    arriving_f = arriving.astype(np.float64)
    _emit_permutation(table, shapes, where, sent.astype(np.float64), arriving_f)
    _emit_exchange(table, shapes, where)
    _emit_expert_tp(table, shapes, where, arriving_f)
    expert = partial(
        emit_linear,
        table,
        shapes,
        where,
        tokens=per_expert,
        groups=local_experts,
        bias=shapes.mlp_bias,
        expert=1,
        recompute_bit=MOE_BIT,
        saved_tokens=_ratio(arriving, local_experts),
    )
    working_set = 2.0 * arriving_f * (shapes.hidden + width * (2.0 + shapes.gated))
    expert(
        "moe.experts.fc1",
        n_in=shapes.hidden,
        n_out=width * (1 + shapes.gated),
        transient_bytes=working_set,
        flop=2.0 * arriving_f * shapes.hidden * width * (1 + shapes.gated),
    )
    emit_activation(
        table, shapes, where, "moe.experts.act", arriving_f * width, MOE_ACT_BIT | MOE_BIT
    )
    expert(
        "moe.experts.fc2",
        n_in=width,
        n_out=shapes.hidden,
        flop=2.0 * arriving_f * shapes.hidden * width,
    )


def emit_replicated_experts(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints
) -> None:
    """Emit the MoE layers of inference steps: all experts on every rank, each split over TP.

    With uniform routing ``experts * (1 - (1 - topk / experts)**tokens)`` experts are active;
    only their weights are read.
    """
    if len(where) == 0:
        return
    layers = table.repeated(steps.moe_layers)
    experts = np.maximum(1, shapes.experts)
    active = active_experts(experts, shapes.topk, shapes.tokens)
    pairs = shapes.tokens * shapes.topk
    rows, copies = ceil_div(pairs, active), pairs.astype(np.float64)
    inner = ceil_div(shapes.expert_ffn, shapes.tp)
    scores = shapes.tokens * experts.astype(np.float64)
    emit_linear(
        layers, shapes, where, "moe.router", tokens=shapes.tokens, n_in=shapes.hidden,
        n_out=experts, wide=True, out_bytes=4.0,
    )  # fmt: skip
    emit_memory(
        layers, where, "moe.route", forward_bytes=4.0 * scores + 24.0 * copies,
        backward_bytes=0.0, launches=3.0,
    )  # fmt: skip
    emit_memory(
        layers,
        where,
        "moe.permute",
        backward_bytes=0.0,
        forward_bytes=2.0 * shapes.operand_bytes * copies * shapes.hidden,
    )
    grouped = partial(emit_linear, layers, shapes, where, tokens=rows, groups=active, expert=1)
    grouped("moe.experts.fc1", n_in=shapes.hidden, n_out=inner * (1 + shapes.gated))
    emit_activation(layers, shapes, where, "moe.experts.act", copies * inner, MOE_ACT_BIT)
    grouped("moe.experts.fc2", n_in=np.maximum(1, inner), n_out=shapes.hidden)
    emit_memory(
        layers,
        where,
        "moe.finalise",
        backward_bytes=0.0,
        forward_bytes=2.0 * (copies + shapes.tokens) * shapes.hidden,
    )
    activations = 2.0 * shapes.tokens * shapes.hidden
    emit_region_exit(layers, shapes, where, "moe.tp", activations, 0)
    emit_mlp(
        layers, shapes, where[shapes.shared_ffn[where] > 0], "moe.shared", shapes.shared_ffn,
        reduces=False,
    )  # fmt: skip


def active_experts(experts: Ints, topk: Ints, tokens: Ints) -> Ints:
    """Return the expected number of experts that some token picks, at least ``topk``."""
    missed: Floats = (1.0 - topk / np.maximum(1, experts)) ** tokens
    expected = np.rint(experts * (1.0 - missed)).astype(np.int64)
    return np.maximum(np.maximum(expected, topk), 1)


def _ratio(total: Ints, parts: Ints) -> Floats:
    """Return the mean load of an expert, for bytes that are not padded to whole rows."""
    return np.asarray(total / parts, np.float64)


def _emit_router(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit scores, top-k and auxiliary loss; the router itself stays in 16 bits."""
    scores = shapes.outer_tokens * shapes.experts.astype(np.float64)
    emit_linear(
        table, shapes, where, "moe.router", tokens=shapes.outer_tokens, n_in=shapes.hidden,
        n_out=shapes.experts, bias=shapes.router_bias, wide=True, recompute_bit=MOE_BIT,
    )  # fmt: skip
    fused = shapes.permute_fusion == 1
    emit_memory(
        table, where, "moe.router.topk", forward_bytes=20.0 * scores, backward_bytes=12.0 * scores,
        exponentials=scores, launches=np.where(fused, 4.0, 10.0), saved_bytes=8.0 * scores,
        recompute_bit=MOE_BIT,
    )  # fmt: skip


def _emit_permutation(
    table: TableBuilder, shapes: Shapes, where: Ints, sent: Floats, arriving: Floats
) -> None:
    """Emit what orders tokens by expert.

    They are gathered before dispatch and summed with their weights after combine; what arrives
    from several ranks is sorted by local expert.
    """
    hidden = shapes.hidden.astype(np.float64)
    fused = shapes.permute_fusion == 1
    tokens = shapes.outer_tokens.astype(np.float64)
    launches = np.where(fused, 2.0, 8.0)
    drops_nothing = shapes.host_sync == 1
    for label in ("moe.permute", "moe.unpermute"):
        moved = 2.0 * hidden * (tokens + sent)
        emit_memory(
            table, where, label, forward_bytes=moved, backward_bytes=moved, launches=launches,
            recompute_bit=MOE_BIT, transient_bytes=2.0 * hidden * sent,
            # The host must know the counts to size what arrives.
            syncs=drops_nothing * 1.0 if label == "moe.permute" else 0.0,
        )  # fmt: skip
    sorts = where[(shapes.ep[where] > 1) & (shapes.experts[where] > shapes.ep[where])]
    moved = 4.0 * hidden * arriving
    emit_memory(
        table, sorts, "moe.sort", forward_bytes=2.0 * moved, backward_bytes=2.0 * moved,
        launches=2.0 * launches, recompute_bit=MOE_BIT,
    )  # fmt: skip


def _emit_exchange(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit dispatch and combine.

    The exchange sends each token to every expert it chose. A de-duplicating dispatcher (DeepEP)
    sends it once to each node it must reach, and forwards within the node; the expected number
    of distinct nodes of topk uniform draws over N nodes is N * (1 - (1 - 1/N)**topk), at most
    the groups a token may visit.
    """
    split = where[shapes.ep[where] > 1]
    if len(split) == 0:
        return
    ep = np.maximum(1, shapes.ep)
    local = np.maximum(1, shapes.ep_local)
    tokens, hidden = shapes.outer_tokens.astype(np.float64), shapes.hidden
    copies = tokens * shapes.topk
    near, far = (local - 1.0) / ep, (ep - local) / ep
    nodes = ep / local
    nodes_reached = nodes * (1.0 - (1.0 - 1.0 / nodes) ** shapes.topk)
    limit = np.where(shapes.group_topk > 0, shapes.group_topk, nodes)
    nodes_reached = np.minimum(nodes_reached, limit)
    remote_once = tokens * nodes_reached * (1.0 - 1.0 / nodes)
    ranks_reached = ep * (1.0 - (1.0 - 1.0 / ep) ** shapes.topk)
    near_once = tokens * ranks_reached * (local - 1.0) / local
    deduplicated = shapes.dispatcher == DEEPEP
    near_tokens = np.where(deduplicated, np.minimum(near_once, copies), copies * near)
    far_tokens = np.where(deduplicated, np.minimum(remote_once, copies * far), copies * far)
    load = shapes.load_2e20 / LOAD_ONE
    exchange = split[shapes.dispatcher[split] != ALLGATHER]
    hides = shapes.ep_overlap == 1
    for label, phase, element in (
        ("moe.dispatch", FORWARD, shapes.dispatch_bytes),
        ("moe.combine", FORWARD, 2),
        # The backward of a combine is a dispatch of gradients, and the reverse.
        ("moe.combine", BACKWARD, 2),
        ("moe.dispatch", BACKWARD, 2),
    ):
        table.add(
            exchange, label, kind=EXCHANGE, phase=phase, category=EP_COMM,
            local_bytes=near_tokens * hidden * element * load,
            remote_bytes=far_tokens * hidden * element * load,
            bytes=(near_tokens + far_tokens) * hidden * element * load,
            ranks=ep, local=local, span=shapes.ep_span, segment=WHOLE_LAYER,
            exposed_share=np.where(hides, 0.0, 1.0), partner_share=np.where(hides, 0.5, 0.0),
            recompute_bit=MOE_BIT if phase == FORWARD else 0,
        )  # fmt: skip
    gathered = split[shapes.dispatcher[split] == ALLGATHER]
    everything = 2.0 * tokens * hidden * ep
    for label, operations in (
        ("moe.dispatch", (ALL_GATHER, REDUCE_SCATTER)),
        ("moe.combine", (REDUCE_SCATTER, ALL_GATHER)),
    ):
        for phase, operation in zip((FORWARD, BACKWARD), operations, strict=True):
            emit_collective(
                table, gathered, label, phase=phase, category=EP_COMM, operation=operation,
                num_bytes=everything, ranks=ep, local=local, span=shapes.ep_span,
                recompute_bit=MOE_BIT if phase == FORWARD else 0,
            )  # fmt: skip


def _emit_expert_tp(table: TableBuilder, shapes: Shapes, where: Ints, arriving: Floats) -> None:
    """Emit expert tensor parallelism: tokens gathered before, partial sums scattered after."""
    split = where[shapes.etp[where] > 1]
    num_bytes = 2.0 * arriving * shapes.hidden
    for label, operations in (
        ("moe.etp.all_gather", (ALL_GATHER, REDUCE_SCATTER)),
        ("moe.etp.reduce_scatter", (REDUCE_SCATTER, ALL_GATHER)),
    ):
        for phase, operation in zip((FORWARD, BACKWARD), operations, strict=True):
            emit_collective(
                table, split, label, phase=phase, category=TP_COMM, operation=operation,
                num_bytes=num_bytes, ranks=np.maximum(1, shapes.etp),
                local=np.maximum(1, shapes.etp_local), span=shapes.etp_span,
                recompute_bit=MOE_BIT if phase == FORWARD else 0,
            )  # fmt: skip
