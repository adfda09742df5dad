"""Mixture-of-experts layers: router, permutation, dispatch, grouped experts, combine.

First those of training, then those of inference steps.
"""

from functools import partial

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.engine import inference_operators
from projector.kernels.collective_algorithms import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from projector.kernels.moe_exchange import (
    BULK_COMBINE,
    BULK_DISPATCH,
    COMBINE,
    DISPATCH,
    LOW_LATENCY,
)
from projector.lower.cluster_columns import LOAD_ONE
from projector.operations.communication import (
    GroupRow,
    emit_collective,
    emit_gather_and_scatter,
    emit_region_exit,
    group_row,
)
from projector.operations.linear import COLUMN, ROW, Linear, emit_adapted, emit_linear, emit_memory
from projector.operations.mlp import SEGMENT_FC1, SEGMENT_FC2, SHARED_BIT, emit_activation, emit_mlp
from projector.operations.shapes import Shapes, StepShapes, ceil_div
from projector.operations.table import (
    AGAIN,
    BACKWARD,
    COMPUTE_OTHER,
    DROPS,
    EP_COMM,
    EXCHANGE,
    FORWARD,
    MEMORY,
    TP_COMM,
    WHOLE_LAYER,
    Row,
    TableBuilder,
)

MOE_BIT, MOE_ACT_BIT = 1 << 4, 1 << 5
MADE_AGAIN = MOE_BIT | AGAIN
ALLTOALL, ALLGATHER, DEEPEP, HYBRIDEP = range(4)

FP8_BYTES = 1.0 + 4.0 / 128.0
"""An element that is sent in FP8, with an FP32 scale for every 128."""


EXECUTION = (
    "moe.router", "moe.latent.down", "moe.host", "moe.shared.first", "moe.shared.second",
    "moe.shared.exit", "moe.permute", "moe.dispatch", "moe.etp.all_gather", "moe.sort", "moe.pad",
    "moe.experts", "moe.etp.reduce_scatter", "moe.combine", "moe.unpermute", "moe.latent.up",
)  # fmt: skip
"""Parts of a forward in the order in which they run, which is not that of their rows. Of shared
experts the projections and what follows them on TP stand apart."""

EXECUTION_BESIDE_SHARED = (
    "moe.router", "moe.latent.down", "moe.host", "moe.permute", "moe.shared.first",
    "moe.dispatch", "moe.etp.all_gather", "moe.sort", "moe.pad", "moe.experts",
    "moe.etp.reduce_scatter", "moe.shared.second", "moe.combine", "moe.shared.exit",
    "moe.unpermute", "moe.latent.up",
)  # fmt: skip
"""The same where exchanges hide behind shared experts (Megatron's
``moe_shared_expert_overlap``)."""


def emit_moe(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the MoE layers in ``where``.

    A rank holds s tokens before dispatch. After it, each of its experts/EP experts has
    s * topk * ETP * EP / experts of them on average, times the load of the fullest rank. A capacity
    changes what is sent and what arrives.
    """
    if len(where) == 0:
        return
    picks = shapes.outer_tokens * shapes.topk
    sent = ceil_div(picks * shapes.kept_2e20, LOAD_ONE)
    local_experts = np.maximum(1, shapes.experts // np.maximum(1, shapes.ep))
    arriving = ceil_div(picks * shapes.etp * shapes.load_2e20, LOAD_ONE)
    per_expert = ceil_div(arriving, local_experts)
    width = shapes.expert_ffn // np.maximum(1, shapes.etp)
    _emit_router(table, shapes, where)
    emit_mlp(
        table, shapes, where[shapes.shared_ffn[where] > 0], "moe.shared", shapes.shared_ffn,
        bit=SHARED_BIT | MOE_BIT,
    )  # fmt: skip
    gate = where[(shapes.shared_gate[where] == 1) & (shapes.shared_ffn[where] > 0)]
    emit_linear(
        table, shapes, gate, "moe.shared.gate",
        Linear(
            tokens=shapes.outer_tokens, n_in=shapes.hidden, n_out=1, wide=True, saves_input=False,
            recompute_bit=SHARED_BIT | MOE_BIT,
        ),
    )  # fmt: skip
    arriving_f = arriving.astype(np.float64)
    _emit_latent(table, shapes, where, shapes.outer_tokens)
    _emit_padding(table, shapes, where, arriving_f * shapes.expert_hidden)
    host = partial(table.add, where, "moe.host", kind=MEMORY, category=COMPUTE_OTHER, launches=0.0)
    host(phase=FORWARD, calls=shapes.calls_forward.astype(np.float64), recompute_bit=MADE_AGAIN)
    host(phase=BACKWARD, calls=shapes.calls_backward.astype(np.float64))
    _emit_permutation(table, shapes, where, sent.astype(np.float64), arriving_f)
    _emit_exchange(table, shapes, where)
    split = where[shapes.etp[where] > 1]
    num_bytes = 2.0 * arriving_f * shapes.expert_hidden
    labels = ("moe.etp.all_gather", "moe.etp.reduce_scatter")
    emit_gather_and_scatter(table, shapes, split, labels, TP_COMM, "etp", num_bytes, MOE_BIT)
    alone = shapes.ep == 1  # Recomputation by operators keeps what exchanges bring, both ways.
    expert = partial(
        Linear, tokens=per_expert, groups=local_experts, bias=shapes.mlp_bias, expert=1,
        saved_tokens=arriving / local_experts,
    )  # fmt: skip
    outputs = {"fc1": width * (1 + shapes.gated), "gate": width, "up": width}
    working_set = 2.0 * arriving_f * (shapes.expert_hidden + width * (2.0 + shapes.gated))
    fc1 = expert(
        n_in=shapes.expert_hidden, n_out=width * (1 + shapes.gated), transient_bytes=working_set,
        recompute_bit=MADE_AGAIN | np.where(alone, DROPS, 0),
        flop=2.0 * arriving_f * shapes.expert_hidden * width * (1 + shapes.gated),
    )  # fmt: skip
    emit_adapted(table, shapes, where, "moe.experts.fc1", outputs, COLUMN, fc1)
    _emit_clamp(table, shapes, where, arriving_f * width)
    emit_activation(
        table, shapes, where, "moe.experts.act", arriving_f * width,
        MADE_AGAIN | MOE_ACT_BIT | DROPS,
    )  # fmt: skip
    fc2 = expert(
        n_in=width, n_out=shapes.expert_hidden,
        flop=2.0 * arriving_f * shapes.expert_hidden * width,
        recompute_bit=MOE_BIT | DROPS | np.where(alone, AGAIN, 0),
    )  # fmt: skip
    emit_adapted(table, shapes, where, "moe.experts.fc2", {"fc2": shapes.expert_hidden}, ROW, fc2)
    _emit_expert_bias(table, shapes, where, arriving_f * shapes.expert_hidden)


def _emit_latent(table: TableBuilder, shapes: Shapes, where: Ints, tokens: Ints) -> None:
    """Emit the projections to the narrower width in which experts work, and back (LatentMoE)."""
    narrow = where[shapes.expert_hidden[where] < shapes.hidden[where]]
    linear = partial(Linear, tokens=tokens, recompute_bit=MOE_BIT)
    down = linear(n_in=shapes.hidden, n_out=shapes.expert_hidden)
    up = linear(n_in=shapes.expert_hidden, n_out=shapes.hidden)
    emit_linear(table, shapes, narrow, "moe.latent.down", down)
    emit_linear(table, shapes, narrow, "moe.latent.up", up)


def _emit_router(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit scores, top-k and auxiliary loss; the router itself stays in 16 bits."""
    scores = shapes.outer_tokens * shapes.experts.astype(np.float64)
    emit_linear(
        table, shapes, where, "moe.router",
        Linear(
            tokens=shapes.outer_tokens, n_in=shapes.hidden, n_out=shapes.experts,
            bias=shapes.router_bias, wide=True, recompute_bit=MADE_AGAIN | DROPS,
        ),
    )  # fmt: skip
    emit_memory(
        table, where, "moe.router.topk", forward_bytes=20.0 * scores, backward_bytes=12.0 * scores,
        exponentials=scores, launches=np.where(shapes.permute_fusion == 1, 4.0, 10.0),
        saved_bytes=8.0 * scores, recompute_bit=MADE_AGAIN,
    )  # fmt: skip


def _emit_padding(table: TableBuilder, shapes: Shapes, where: Ints, elements: Floats) -> None:
    """Emit what pads rows of experts to the blocks of narrow GEMMs, and what takes it back.

    Megatron-LM's ``TEGroupedMLP`` copies what arrives and what it returns. HybridEP pads where it
    copies tokens to their experts, as does one kernel of all of them.
    """
    apart = shapes.narrow & (shapes.padding_fusion == 0) & (shapes.fused_experts == 0)
    apart &= shapes.dispatcher != HYBRIDEP
    emit_memory(
        table, where[apart[where]], "moe.pad", forward_bytes=8.0 * elements,
        backward_bytes=8.0 * elements, launches=2.0, recompute_bit=MOE_BIT,
        transient_bytes=2.0 * elements,
    )  # fmt: skip


def _emit_clamp(table: TableBuilder, shapes: Shapes, where: Ints, elements: Floats) -> None:
    """Emit the clamp of both halves before an activation, if it is an operator of its own."""
    clamped = (shapes.clamped == 1) & (shapes.fused_experts == 0)
    emit_memory(
        table, where[clamped[where]], "moe.experts.clamp",
        forward_bytes=shapes.clamp_forward_bytes * elements,
        backward_bytes=shapes.clamp_backward_bytes * elements,
        launches=3.0, backward_launches=7.0, recompute_bit=MADE_AGAIN | MOE_ACT_BIT,
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
        launches=4.0, backward_launches=8.0, recompute_bit=MADE_AGAIN,
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
    hidden = shapes.expert_hidden.astype(np.float64)
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
    came_back = 2.0 * hidden * sent * shapes.per_op * (shapes.ep > 1)
    for label, forward, backward, bits, saved, held in (
        ("moe.permute", gathered, added, MADE_AGAIN, 0.0, 2.0 * hidden * sent),
        ("moe.unpermute", added, gathered, MOE_BIT, came_back, returned),
    ):
        emit_memory(
            table, where, label, forward_bytes=forward, backward_bytes=backward, launches=launches,
            recompute_bit=bits, rate_share=share, saved_bytes=saved, transient_bytes=held,
            # The host must know the counts to size what arrives.
            syncs=drops_nothing * 1.0 if label == "moe.permute" else 0.0,
        )  # fmt: skip
    sorts = where[(shapes.ep[where] > 1) & (shapes.experts[where] > shapes.ep[where])]
    # A fused exchange delivers each token once to a rank, where one pass copies it to its experts.
    sorts = sorts[shapes.dispatcher[sorts] < DEEPEP]
    moved = 4.0 * hidden * arriving
    emit_memory(
        table, sorts, "moe.sort", forward_bytes=2.0 * moved, backward_bytes=2.0 * moved,
        launches=2.0 * launches, recompute_bit=MADE_AGAIN, rate_share=share,
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
    # The ranks that a fused exchange sends a token to already tell what capacity leaves of it.
    fullest = shapes.outer_tokens * (shapes.load_2e20 / np.maximum(1, shapes.kept_2e20))
    for label, phase, element, op in (
        ("moe.dispatch", FORWARD, np.where(shapes.dispatch_bytes == 1, FP8_BYTES, 2.0), DISPATCH),
        ("moe.combine", FORWARD, 2.0, COMBINE),
        # The backward of a combine is a dispatch of gradients, and the reverse.
        ("moe.combine", BACKWARD, 2.0, DISPATCH),
        ("moe.dispatch", BACKWARD, 2.0, COMBINE),
    ):
        size = np.asarray(shapes.expert_hidden * element, np.float64)
        row = _beside(shapes, SEGMENT_FC1 if label == "moe.dispatch" else SEGMENT_FC2)
        row["recompute_bit"] = MOE_BIT if phase == FORWARD else 0
        group = group_row(shapes, "ep")
        emit_collective(
            table, split[shapes.dispatcher[split] == ALLTOALL], label, phase=phase,
            category=EP_COMM, operation=ALL_TO_ALL, num_bytes=tokens * shapes.topk * size,
            **group, **row,
        )  # fmt: skip
        bulk = BULK_DISPATCH if op == DISPATCH else BULK_COMBINE
        for dispatcher, code in ((DEEPEP, op), (HYBRIDEP, bulk)):
            of_kernel = split[shapes.dispatcher[split] == dispatcher]
            _emit_fused(table, shapes, of_kernel, label, phase, code, fullest, size, group, row)
    gathered = split[shapes.dispatcher[split] == ALLGATHER]
    everything = 2.0 * shapes.outer_tokens.astype(np.float64) * shapes.expert_hidden * shapes.ep
    labels = ("moe.dispatch", "moe.combine")
    emit_gather_and_scatter(table, shapes, gathered, labels, EP_COMM, "ep", everything, MOE_BIT)


def _beside(shapes: Shapes, segment: int) -> Row:
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
    tokens: Floats, size: Floats, group: GroupRow, row: Row,
) -> None:  # fmt: skip
    """Emit a fused dispatch or combine; its bytes are all that leave the rank."""
    ep, local = group["ranks"], group["local"]
    ranks_reached = shapes.ranks_reached_2e20 / LOAD_ONE
    domains_reached = shapes.domains_reached_2e20 / LOAD_ONE
    near = ranks_reached * (local - 1.0) / local
    far = domains_reached * (ep - local) / ep
    table.add(
        where, label, kind=EXCHANGE, phase=phase, category=EP_COMM, operation=op, tokens=tokens,
        token_bytes=size, ranks_reached=ranks_reached, domains_reached=domains_reached,
        units=shapes.dispatcher_units, bytes=tokens * (near + far) * size, **group, **row,
    )  # fmt: skip


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
    # Tokens that favour some experts meet no more different ones than with even routing.
    even = np.ones_like(steps.part_load)
    fewest = part_pairs(steps.stage_tokens, experts, shapes.topk, parts, steps.largest_part, even)
    active = active_experts(experts // parts, fewest, steps.stage_tokens)
    exchanged = steps.exchange != NO_EXCHANGE
    _emit_routing(layers, shapes, where, experts)
    _emit_latent(layers, shapes, where, shapes.tokens)
    _emit_dispatch(layers, shapes, steps, where, pairs)
    # Kernels for few tokens deliver them by expert and sum up what comes back.
    around = where[steps.exchange[where] != LOW_LATENCY]
    copies = pairs.astype(np.float64)
    permuted = 2.0 * shapes.operand_bytes * copies * shapes.expert_hidden
    emit_memory(layers, around, "moe.permute", forward_bytes=permuted, backward_bytes=0.0)
    inner = ceil_div(shapes.expert_ffn, np.maximum(1, shapes.etp))
    grouped = partial(Linear, tokens=ceil_div(pairs, active), groups=active, expert=1)
    fc1 = grouped(n_in=shapes.expert_hidden, n_out=inner * (1 + shapes.gated))
    emit_linear(layers, shapes, where, "moe.experts.fc1", fc1)
    emit_activation(layers, shapes, where, "moe.experts.act", copies * inner, MOE_ACT_BIT)
    fc2 = grouped(n_in=np.maximum(1, inner), n_out=shapes.expert_hidden)
    emit_linear(layers, shapes, where, "moe.experts.fc2", fc2)
    summed = 2.0 * (copies + _summed_tokens(shapes, steps, exchanged)) * shapes.expert_hidden
    emit_memory(layers, around, "moe.finalise", forward_bytes=summed, backward_bytes=0.0)
    _emit_combine(layers, shapes, steps, where, pairs)
    activations = 2.0 * shapes.tokens * shapes.hidden
    emit_region_exit(layers, shapes, where[~exchanged[where]], "moe.tp", activations, 0)
    shared = where[shapes.shared_ffn[where] > 0]
    # Partial sums of shared experts join those of the routed ones, where these are summed at all.
    for reduces in (False, True):
        present = shared[exchanged[shared] == reduces]
        emit_mlp(layers, shapes, present, "moe.shared", shapes.shared_ffn, reduces=reduces)


def part_pairs(
    tokens: Ints, experts: Ints, topk: Ints, parts: Ints, largest: Floats, load: Floats
) -> Ints:
    """Return the expected pairs of token and expert of the fullest of ``parts``, int64[steps].

    Each of the tokens of all attention groups picks ``topk`` distinct experts, all sets equally
    likely, so its picks in one part are hypergeometric. The sum over tokens is taken as normal,
    with equal correlation between the parts, as their total is fixed::

        fullest = t k / n + largest sqrt(t k (1/n) (1 - 1/n) (E - k) / (E - 1) n / (n - 1))

    ``largest`` is the expected largest of as many independent standard normal numbers as there are
    parts, ``load`` a factor for routing that is less even. No part gets more than every pick that
    it has experts for.
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
        table, shapes, where, "moe.router",
        Linear(tokens=shapes.tokens, n_in=shapes.hidden, n_out=experts, wide=True, out_bytes=4.0),
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
        _emit_served_exchange(table, shapes, steps, present, "moe.dispatch", op, element, pairs)
    _emit_served_gather(table, shapes, steps, where, "moe.dispatch", ALL_GATHER)


def _emit_combine(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints, pairs: Ints
) -> None:
    """Emit what brings results back, in 16 bits, and to all devices of an attention group."""
    element = np.full(len(shapes), 2.0)
    for op, back in ((DISPATCH, COMBINE), (LOW_LATENCY, LOW_LATENCY)):
        present = where[steps.exchange[where] == op]
        _emit_served_exchange(table, shapes, steps, present, "moe.combine", back, element, pairs)
    _emit_served_gather(table, shapes, steps, where, "moe.combine", REDUCE_SCATTER)
    split = where[(steps.exchange[where] != NO_EXCHANGE) & (shapes.tp[where] > 1)]
    emit_collective(
        table, split, "moe.tp.all_gather", phase=FORWARD, category=TP_COMM, operation=ALL_GATHER,
        num_bytes=2.0 * shapes.tokens * shapes.hidden, ranks=shapes.tp, local=shapes.tp_local,
    )  # fmt: skip


def _emit_served_exchange(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints, label: str, op: int,
    element: Floats, pairs: Ints,
) -> None:  # fmt: skip
    """Emit a fused dispatch or combine; devices of an attention group share its tokens."""
    parts, local = np.maximum(1, shapes.ep), steps.stage_local
    sent = ceil_div(shapes.tokens, shapes.tp).astype(np.float64)
    # Of the fullest part over what every device sends on average, all as full as the fullest.
    devices = shapes.tp * steps.attention_dp
    tokens = np.maximum(sent, pairs * parts / (devices * np.maximum(1, shapes.topk)))
    size = shapes.expert_hidden * element
    # The kernel for few tokens sends a copy to every expert.
    copies = np.where(op == LOW_LATENCY, shapes.topk, steps.ranks_reached).astype(np.float64)
    near = copies * (local - 1.0) / local
    far = np.where(op == LOW_LATENCY, copies, steps.domains_reached) * (parts - local) / parts
    table.add(
        where, label, kind=EXCHANGE, phase=FORWARD, category=EP_COMM, operation=op, tokens=tokens,
        token_bytes=size, ranks_reached=copies, domains_reached=steps.domains_reached,
        units=steps.exchange_units, ranks=parts, local=local, bytes=tokens * (near + far) * size,
    )  # fmt: skip


def _emit_served_gather(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints, label: str, operation: int
) -> None:
    """Emit the gather of the tokens of all attention groups, or the scatter of their sums."""
    everything = 2.0 * steps.attention_dp * shapes.tokens * shapes.expert_hidden
    emit_collective(
        table, where[steps.gathers[where] == 1], label, phase=FORWARD, category=EP_COMM,
        operation=operation, num_bytes=everything, ranks=steps.attention_dp,
        local=steps.groups_local,
    )  # fmt: skip
