"""Mixture-of-experts layers: router, permutation, dispatch, grouped experts, combine."""

from functools import partial

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from projector.kernels.moe_exchange import BULK_COMBINE, BULK_DISPATCH, COMBINE, DISPATCH
from projector.lower.cluster_columns import LOAD_ONE
from projector.operations.adapters import COLUMN, ROW, emit_adapted
from projector.operations.communication import (
    CollectiveRow,
    emit_collective,
)
from projector.operations.linear import emit_linear, emit_memory
from projector.operations.mlp import SEGMENT_FC1, SEGMENT_FC2, SHARED_BIT, emit_activation, emit_mlp
from projector.operations.shapes import Shapes, ceil_div
from projector.operations.table import (
    BACKWARD,
    COMPUTE_OTHER,
    EP_COMM,
    EXCHANGE,
    FORWARD,
    MEMORY,
    TP_COMM,
    WHOLE_LAYER,
    TableBuilder,
)

MOE_BIT, MOE_ACT_BIT = 1 << 4, 1 << 5
ALLTOALL, ALLGATHER, DEEPEP, HYBRIDEP = range(4)

FP8_BYTES = 1.0 + 4.0 / 128.0
"""An element that is sent in FP8, with an FP32 scale for every 128."""


EXECUTION = (
    "moe.router", "moe.host", "moe.shared.first", "moe.shared.second", "moe.shared.exit",
    "moe.permute", "moe.dispatch", "moe.etp.all_gather", "moe.sort", "moe.experts",
    "moe.etp.reduce_scatter", "moe.combine", "moe.unpermute",
)  # fmt: skip
"""Parts of a forward in the order in which they run, which is not that of their rows. Of shared
experts the projections and what follows them on TP stand apart."""

EXECUTION_BESIDE_SHARED = (
    "moe.router", "moe.host", "moe.permute", "moe.shared.first", "moe.dispatch",
    "moe.etp.all_gather", "moe.sort", "moe.experts", "moe.etp.reduce_scatter",
    "moe.shared.second", "moe.combine", "moe.shared.exit", "moe.unpermute",
)  # fmt: skip
"""The same where exchanges hide behind shared experts (Megatron's
``moe_shared_expert_overlap``)."""


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
    _emit_host(table, shapes, where)
    _emit_permutation(table, shapes, where, sent.astype(np.float64), arriving_f)
    _emit_exchange(table, shapes, where)
    _emit_expert_tp(table, shapes, where, arriving_f)
    expert = partial(
        emit_adapted, table, shapes, where, tokens=per_expert, groups=local_experts,
        bias=shapes.mlp_bias, expert=1, recompute_bit=MOE_BIT,
        saved_tokens=_ratio(arriving, local_experts),
    )  # fmt: skip
    outputs = {"fc1": width * (1 + shapes.gated), "gate": width, "up": width}
    working_set = 2.0 * arriving_f * (shapes.hidden + width * (2.0 + shapes.gated))
    expert(
        "moe.experts.fc1", outputs, COLUMN, n_in=shapes.hidden, n_out=width * (1 + shapes.gated),
        transient_bytes=working_set,
        flop=2.0 * arriving_f * shapes.hidden * width * (1 + shapes.gated),
    )  # fmt: skip
    _emit_clamp(table, shapes, where, arriving_f * width)
    emit_activation(
        table, shapes, where, "moe.experts.act", arriving_f * width, MOE_ACT_BIT | MOE_BIT
    )
    expert(
        "moe.experts.fc2", {"fc2": shapes.hidden}, ROW, n_in=width, n_out=shapes.hidden,
        flop=2.0 * arriving_f * shapes.hidden * width,
    )  # fmt: skip
    _emit_expert_bias(table, shapes, where, arriving_f * shapes.hidden)


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


def _emit_host(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the operators that keep the host busy beside the kernels of other rows."""
    host = partial(table.add, where, "moe.host", kind=MEMORY, category=COMPUTE_OTHER, launches=0.0)
    host(phase=FORWARD, calls=shapes.calls_forward.astype(np.float64), recompute_bit=MOE_BIT)
    host(phase=BACKWARD, calls=shapes.calls_backward.astype(np.float64))


def _emit_clamp(table: TableBuilder, shapes: Shapes, where: Ints, elements: Floats) -> None:
    """Emit the clamp of both halves before an activation, if it is an operator of its own."""
    clamped = (shapes.clamped == 1) & (shapes.fused_experts == 0)
    emit_memory(
        table, where[clamped[where]], "moe.experts.clamp",
        forward_bytes=shapes.clamp_forward_bytes * elements,
        backward_bytes=shapes.clamp_backward_bytes * elements,
        launches=3.0, backward_launches=7.0, recompute_bit=MOE_ACT_BIT | MOE_BIT,
        rate_share=shapes.eager_share,
    )  # fmt: skip


def _emit_expert_bias(table: TableBuilder, shapes: Shapes, where: Ints, elements: Floats) -> None:
    """Emit the bias of the experts' output, which is multiplied by the weight of each row.

    The bias of the first projection is part of its GEMM.
    """
    apart = (shapes.mlp_bias == 1) & (shapes.fused_experts == 0)
    emit_memory(
        table, where[apart[where]], "moe.experts.bias",
        forward_bytes=shapes.bias_forward_bytes * elements,
        backward_bytes=shapes.bias_backward_bytes * elements,
        launches=4.0, backward_launches=8.0, recompute_bit=MOE_BIT,
        transient_bytes=shapes.bias_transient_bytes * elements, rate_share=shapes.eager_share,
    )  # fmt: skip


def _emit_permutation(
    table: TableBuilder, shapes: Shapes, where: Ints, sent: Floats, arriving: Floats
) -> None:
    """Emit what orders tokens by expert.

    They are gathered before dispatch and summed with their weights after combine; what arrives
    from several ranks is sorted by local expert. With a fused exchange, which delivers a token
    once to each rank, they are gathered after dispatch and summed before combine. Counted from
    Megatron-LM's moe_utils.py and token_dispatcher.py, with and without ``moe_permute_fusion``.
    """
    hidden = shapes.hidden.astype(np.float64)
    fused = shapes.permute_fusion == 1
    delivered = np.where(shapes.dispatcher >= DEEPEP, shapes.ranks_reached_2e20 / LOAD_ONE, 1.0)
    tokens = shapes.outer_tokens * delivered
    launches = np.where(fused, 2.0, 8.0)
    drops_nothing = shapes.host_sync == 1
    gathered = 2.0 * hidden * (tokens + sent)
    # What experts return, sorted back where it was sorted, and what comes back to the senders.
    sorted_again = (shapes.ep > 1) & (shapes.experts > shapes.ep) & (shapes.dispatcher < DEEPEP)
    returned = 2.0 * hidden * (arriving * (1.0 + sorted_again) + sent)
    # A scatter that is no kernel of its own clears the sums and reads the copies, and adds each
    # element by an atomic: ``index_select`` backwards, ``scatter_add_`` forwards.
    share = np.where(fused, 1.0, shapes.eager_share)
    atomics = share * shapes.atomic_bytes * sent * hidden
    added = np.where(fused, gathered, 2.0 * hidden * (tokens + sent) + atomics)
    for label, forward, backward in (
        ("moe.permute", gathered, added),
        ("moe.unpermute", added, gathered),
    ):
        emit_memory(
            table, where, label, forward_bytes=forward, backward_bytes=backward, launches=launches,
            recompute_bit=MOE_BIT, rate_share=share,
            transient_bytes=returned if label == "moe.unpermute" else 2.0 * hidden * sent,
            # The host must know the counts to size what arrives.
            syncs=drops_nothing * 1.0 if label == "moe.permute" else 0.0,
        )  # fmt: skip
    sorts = where[(shapes.ep[where] > 1) & (shapes.experts[where] > shapes.ep[where])]
    # A fused exchange delivers each token once to a rank, where one pass copies it to its experts.
    sorts = sorts[shapes.dispatcher[sorts] < DEEPEP]
    moved = 4.0 * hidden * arriving
    emit_memory(
        table, sorts, "moe.sort", forward_bytes=2.0 * moved, backward_bytes=2.0 * moved,
        launches=2.0 * launches, recompute_bit=MOE_BIT, rate_share=share,
    )  # fmt: skip


def _emit_exchange(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit dispatch and combine.

    The all-to-all sends each token to every expert it chose. A fused exchange (DeepEP, HybridEP)
    sends it once to each domain it must reach and copies it once to each rank there.
    """
    split = where[shapes.ep[where] > 1]
    if len(split) == 0:
        return
    tokens = shapes.outer_tokens * (shapes.load_2e20 / LOAD_ONE)
    narrow = np.where(shapes.dispatch_bytes == 1, FP8_BYTES, 2.0)
    for label, phase, element, op in (
        ("moe.dispatch", FORWARD, narrow, DISPATCH),
        ("moe.combine", FORWARD, 2.0, COMBINE),
        # The backward of a combine is a dispatch of gradients, and the reverse.
        ("moe.combine", BACKWARD, 2.0, DISPATCH),
        ("moe.dispatch", BACKWARD, 2.0, COMBINE),
    ):
        size = np.asarray(shapes.hidden * element, np.float64)
        row: CollectiveRow = {
            **_beside(shapes, SEGMENT_FC1 if label == "moe.dispatch" else SEGMENT_FC2),
            "recompute_bit": MOE_BIT if phase == FORWARD else 0,
            "span": shapes.ep_span,
        }
        emit_collective(
            table, split[shapes.dispatcher[split] == ALLTOALL], label, phase=phase,
            category=EP_COMM, operation=ALL_TO_ALL, num_bytes=tokens * shapes.topk * size,
            ranks=np.maximum(1, shapes.ep), local=np.maximum(1, shapes.ep_local),
            **row,
        )  # fmt: skip
        bulk = BULK_DISPATCH if op == DISPATCH else BULK_COMBINE
        for dispatcher, code in ((DEEPEP, op), (HYBRIDEP, bulk)):
            of_kernel = split[shapes.dispatcher[split] == dispatcher]
            _emit_fused(table, shapes, of_kernel, label, phase, code, tokens, size, row)
    _emit_gathered(table, shapes, split[shapes.dispatcher[split] == ALLGATHER])


def _beside(shapes: Shapes, segment: int) -> CollectiveRow:
    """Return what an exchange may hide behind.

    That is the layer of another microbatch, which both exchanges of a direction share, or one
    projection of the shared experts of its own, of which TP's collectives have their part.
    """
    whole = shapes.ep_overlap == 1
    shared = ~whole & (shapes.shared_overlap == 1) & (shapes.shared_ffn > 0)
    tp = np.maximum(1, shapes.tp)
    left = np.where(tp == 1, 1.0, np.where(shapes.tp_overlap > 0, 0.5 / tp, 0.5))
    return {
        "segment": np.where(shared, segment, WHOLE_LAYER),
        "exposed_share": np.where(whole | shared, 0.0, 1.0),
        "partner_share": np.where(whole, 0.5, np.where(shared, left, 0.0)),
    }


def _emit_fused(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, phase: int, op: int,
    tokens: Floats, size: Floats, row: CollectiveRow,
) -> None:  # fmt: skip
    """Emit a fused dispatch or combine; its bytes are all that leave the rank."""
    ep, local = np.maximum(1, shapes.ep), np.maximum(1, shapes.ep_local)
    ranks_reached = shapes.ranks_reached_2e20 / LOAD_ONE
    domains_reached = shapes.domains_reached_2e20 / LOAD_ONE
    near = ranks_reached * (local - 1.0) / local
    far = domains_reached * (ep - local) / ep
    table.add(
        where, label, kind=EXCHANGE, phase=phase, category=EP_COMM, operation=op, tokens=tokens,
        token_bytes=size, ranks_reached=ranks_reached, domains_reached=domains_reached,
        units=shapes.dispatcher_units, ranks=ep, local=local,
        bytes=tokens * (near + far) * size, **row,
    )  # fmt: skip


def _emit_gathered(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the dispatcher that gathers all tokens on every rank."""
    everything = 2.0 * shapes.outer_tokens.astype(np.float64) * shapes.hidden * shapes.ep
    for label, operations in (
        ("moe.dispatch", (ALL_GATHER, REDUCE_SCATTER)),
        ("moe.combine", (REDUCE_SCATTER, ALL_GATHER)),
    ):
        for phase, operation in zip((FORWARD, BACKWARD), operations, strict=True):
            emit_collective(
                table, where, label, phase=phase, category=EP_COMM, operation=operation,
                num_bytes=everything, ranks=np.maximum(1, shapes.ep),
                local=np.maximum(1, shapes.ep_local), span=shapes.ep_span,
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
