"""Time of dispatch and combine of a mixture of experts by a fused exchange kernel (DeepEP).

Compute units copy the tokens, two of them a channel, so that inside a node their work binds more
often than the links. ``docs/moe.md`` derives the terms and names their sources.

Shape suffixes
    G   exchanges in the batch
    2   ranks and domains that a token reaches
Units: time s, buffers bytes, rates bytes/s per device and direction. Floats are float64, counts and
codes int64.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats, Ints, Records
from projector.kernels._jit import helper, kernel
from projector.kernels.collectives import FABRIC, local_rates
from projector.kernels.columns import broadcast_columns, raise_first_invalid
from projector.kernels.spans import Span, ceil_log2, far_links, is_span, span_of

DISPATCH, COMBINE, BULK_DISPATCH, BULK_COMBINE, LOW_LATENCY = range(5)
"""Operations: tokens to their experts and back again (DeepEP), the same with kernels whose copies
are bulk transfers (DeepEP V2, HybridEP), and either with a kernel for few tokens."""

UNITS_OF_CHANNEL = 2.0
"""Compute units of a channel: one sends, the other receives or forwards."""

_EACH = (LOW_LATENCY,)

EXCHANGE = np.dtype(
    [
        # Of each operation but the last. An exchange inside a domain that moves nothing yet.
        ("start_s", np.float64, _EACH),
        # Of one channel: to look at a token, and to handle and copy one message.
        ("scan_s", np.float64, _EACH),
        ("message_s", np.float64, _EACH),
        ("channel_bytes_per_s", np.float64, _EACH),
        # Share of the scale-up links' rate that all channels together reach.
        ("link_efficiency", np.float64, _EACH),
        # Rate at which the first token passes, before the pipeline of copies is full.
        ("first_bytes_per_s", np.float64, _EACH),
        # An exchange that leaves the domain, instead of start_s; each doubling of the domains.
        ("network_start_s", np.float64, _EACH),
        ("doubling_s", np.float64, _EACH),
        # Time of copies that forward what came from other domains over that of copies within one.
        ("forward_slowdown", np.float64, _EACH),
        # Rate through the adapters over that of a large collective.
        ("adapter_share", np.float64, _EACH),
        # Tokens of a channel that are sent on before its first one is copied at the other end.
        ("chunk_tokens", np.float64, _EACH),
        # Of the network: what a training step waits at each exchange that leaves the domain; what a
        # host thread needs for one write to another domain, and its rate (0: devices write).
        ("exchange_wait_s", np.float64),
        ("exchange_write_s", np.float64),
        ("exchange_proxy_bytes_per_s", np.float64),
        # The kernel for few tokens.
        ("low_latency_start_s", np.float64),
        ("low_latency_doubling_s", np.float64),
        ("low_latency_link_efficiency", np.float64),
    ]
)
"""What exchanges cost on one device, a record beside that of its fabric."""


@helper
def _link_bytes_per_s(fabric: Records, local: int) -> float:
    """Return what a member can send to all its peers in the domain, before any efficiency."""
    group, _ = local_rates(fabric, local, True)
    return group / float(fabric["scale_up_efficiency"])


@helper
def _network_s(sent: float, fabric: Records, span: Span, ranks: int, local: int) -> float:
    """Return the time of what a member sends, of which every domain gets an equal part."""
    return sent * far_links(fabric, span, ranks, local).exchange_s


@helper
def _tiers_s(fabric: Records, span: Span, ranks: int, local: int) -> float:
    longest_s = far_links(fabric, span, ranks, local).longest_hop_s
    return max(0.0, longest_s - float(fabric["nic_latency_s"]))


@helper
def _copies_s(
    op: int, tokens: float, size: float, copies: float, local: int, channels: float,
    fabric: Records, costs: Records,
) -> float:  # fmt: skip
    """Return the time of all copies in a domain: of the channels, or of the links if longer."""
    message_s = float(costs["message_s"][op]) + size / float(costs["channel_bytes_per_s"][op])
    work_s = tokens * (float(costs["scan_s"][op]) + copies * message_s) / channels
    if local == 1:
        return work_s
    rate = _link_bytes_per_s(fabric, local) * float(costs["link_efficiency"][op])
    return max(work_s, tokens * copies * ((local - 1) / local) * size / rate)


@helper
def _written_s(op: int, tokens: float, size: float, ranks: int, costs: Records) -> float:
    """Return the time in which a host thread writes a member's tokens to other domains.

    A write takes along as many tokens as DeepEP v1 sends in one piece, by the ranks of its group.
    """
    piece = 8.0
    if ranks <= 16:
        piece = 20.0 if op in (DISPATCH, BULK_DISPATCH) else 12.0
    time_s = tokens / piece * float(costs["exchange_write_s"])
    if float(costs["exchange_proxy_bytes_per_s"]) > 0.0:
        time_s = max(time_s, tokens * size / float(costs["exchange_proxy_bytes_per_s"]))
    return time_s


@helper
def _fused_s(
    op: int, tokens: float, size: float, copies: float, domains_reached: float, ranks: int,
    local: int, span: Span, channels: float, fabric: Records, costs: Records,
) -> float:  # fmt: skip
    """Return the time of a dispatch or combine of the kernel for many tokens."""
    copies_s = _copies_s(op, tokens, size, copies, local, channels, fabric, costs)
    time_s = copies * size / float(costs["first_bytes_per_s"][op])
    if span.domains == 1:
        return time_s + float(costs["start_s"][op]) + copies_s
    forward_s = copies_s * float(costs["forward_slowdown"][op])
    sent = tokens * domains_reached * size / float(costs["adapter_share"][op])
    network_s = _network_s(sent, fabric, span, ranks, local)
    leaving = tokens * domains_reached * (ranks - local) / ranks
    network_s = max(network_s, _written_s(op, leaving, size, ranks, costs))
    # Sending and forwarding overlap but for the first chunk of each channel.
    first = min(1.0, float(costs["chunk_tokens"][op]) * channels / tokens)
    time_s += max(forward_s, network_s) + first * min(forward_s, network_s)
    time_s += ceil_log2(span.domains) * float(costs["doubling_s"][op])
    time_s += _tiers_s(fabric, span, ranks, local)
    return time_s + float(costs["network_start_s"][op])


@helper
def _low_latency_s(
    tokens: float, size: float, copies: float, ranks: int, local: int, span: Span,
    fabric: Records, costs: Records,
) -> float:  # fmt: skip
    """Return the time of an exchange that sends every copy straight to its rank."""
    sent = tokens * copies * size
    time_s = float(costs["low_latency_start_s"])
    near_s = 0.0
    if local > 1:
        rate = _link_bytes_per_s(fabric, local) * float(costs["low_latency_link_efficiency"])
        near_s = sent * (local / ranks) / rate
    if span.domains == 1:
        return time_s + near_s
    time_s += max(near_s, _network_s(sent, fabric, span, ranks, local))
    time_s += ceil_log2(span.domains) * float(costs["low_latency_doubling_s"])
    return time_s + _tiers_s(fabric, span, ranks, local)


@helper
def _has_rates(op: int, ranks: int, local: int, fabric: Records, costs: Records) -> bool:
    """Whether the links and copies that an exchange needs move something."""
    if local > 1 and not _link_bytes_per_s(fabric, local) > 0.0:
        return False
    if local < ranks and not float(fabric["nic_bytes_per_s"]) > 0.0:
        return False
    if op == LOW_LATENCY:
        return local == 1 or float(costs["low_latency_link_efficiency"]) > 0.0
    if local > 1 and not float(costs["link_efficiency"][op]) > 0.0:
        return False
    if local < ranks and not float(costs["adapter_share"][op]) > 0.0:
        return False
    first, rate = float(costs["first_bytes_per_s"][op]), float(costs["channel_bytes_per_s"][op])
    return first > 0.0 and rate > 0.0


@helper
def _is_valid(
    op: int, tokens: float, size: float, copies: float, domains_reached: float, ranks: int,
    local: int, code: int, channels: float,
) -> bool:  # fmt: skip
    if not 0 <= op <= LOW_LATENCY or not 1 <= local <= ranks or not 0.0 < channels < math.inf:
        return False
    if not is_span(code, ranks, local):
        return False
    if not 0.0 <= tokens < math.inf or not 0.0 <= size < math.inf:
        return False
    return 0.0 <= copies < math.inf and 0.0 <= domains_reached < math.inf


@kernel
def moe_exchange_times(
    op_G: Ints,
    tokens_G: Floats,
    message_bytes_G: Floats,
    reached_G2: Floats,
    ranks_G: Ints,
    local_G: Ints,
    span_G: Ints,
    channels_G: Floats,
    fabric_G: Ints,
    fabrics: Records,
    exchanges: Records,
    time_s_G: Floats,
) -> int:
    """Time of each dispatch or combine of a mixture of experts by a fused exchange kernel.

    op_G : int64[G]. ``DISPATCH`` to ``LOW_LATENCY``.
    tokens_G : float64[G]. Tokens that a rank sends, times the load of the fullest rank over the
        average one.
    message_bytes_G : float64[G]. One token on its way, scales included.
    reached_G2 : float64[G, 2]. Ranks that a token reaches, its own included: distinct ones, but the
        low-latency kernel sends a copy to every expert. Then the distinct scale-up domains, its own
        included.
    ranks_G : int64[G]. Members of the group.
    local_G : int64[G]. Most members that share a scale-up domain.
    span_G : int64[G]. How the group lies beyond that domain, from ``span_codes``.
    channels_G : float64[G]. Pairs of compute units that copy; the low-latency kernel takes all of
        them.
    fabric_G : int64[G]. Rows of ``fabrics`` and of ``exchanges``.
    fabrics : FABRIC[F]. Link rates.
    exchanges : EXCHANGE[F]. Costs of the kernels on the device of each fabric.
    time_s_G : float64[G]. Output, overwritten; NaN in an invalid row, 0 where n is 1 or nothing is
        sent.
    Returns 0, or 1 if some row is invalid: a code, count or size out of range, more local members
        than the domain has devices, a rate of 0 that is needed, or a time that is not finite.

    With n ranks, L of them in each of D domains, t tokens that reach r ranks and d domains each, C
    channels, b bytes and the adapter rate N, in one pod and with full domains::

        copies  = max(t (scan + r (message + b / rate)) / C, t r (L-1)/L b / (efficiency links))
        inside  : start + r b / first + copies
        beyond  : network start + log2(D) doubling + r b / first + max(F, R) + chunk min(F, R)
                  F = slowdown copies, R = t d (n-L)/n b / (share N)
                  chunk = min(1, chunk tokens C / t)
                  by host threads R >= x / piece write, x b / rate, where x = t d (n-L)/n
        low latency: start + log2(D) doubling + max(t r b L/n / (efficiency links), t r b (n-L)/n
                  / N), where r counts every copy
    """
    for g in range(op_G.shape[0]):
        op, tokens, size = int(op_G[g]), float(tokens_G[g]), float(message_bytes_G[g])
        copies, reached = float(reached_G2[g, 0]), float(reached_G2[g, 1])
        ranks, local, fabric = int(ranks_G[g]), int(local_G[g]), int(fabric_G[g])
        channels, code = float(channels_G[g]), int(span_G[g])
        time_s_G[g] = math.nan
        if not _is_valid(op, tokens, size, copies, reached, ranks, local, code, channels):
            continue
        if not 0 <= fabric < fabrics.shape[0] or fabric >= exchanges.shape[0]:
            continue
        links, costs = fabrics[fabric], exchanges[fabric]
        if local > links["domain_gpus"]:
            continue
        if ranks == 1 or tokens == 0.0 or size == 0.0 or copies == 0.0:
            time_s_G[g] = 0.0
            continue
        if not _has_rates(op, ranks, local, links, costs):
            continue
        span = span_of(code, ranks, local)
        if op == LOW_LATENCY:
            time_s = _low_latency_s(tokens, size, copies, ranks, local, span, links, costs)
        else:
            time_s = _fused_s(
                op, tokens, size, copies, reached, ranks, local, span, channels, links, costs
            )
        if 0.0 <= time_s < math.inf:
            time_s_G[g] = time_s
    return int(np.isnan(time_s_G).any())


def moe_exchange_time_column(
    op: ArrayLike,
    tokens: ArrayLike,
    message_bytes: ArrayLike,
    copies: ArrayLike,
    domains_reached: ArrayLike,
    ranks: ArrayLike,
    local: ArrayLike,
    channels: ArrayLike,
    fabric_index: ArrayLike,
    fabrics: Records,
    exchanges: Records,
    span: ArrayLike = 0,
) -> Floats:
    """Return the column ``time_s`` of ``moe_exchange_times``; scalars broadcast.

    Raises `ValueError` where a row has no valid time, with the values of the first such row.
    """
    columns = broadcast_columns(
        {"tokens", "message_bytes", "copies", "domains_reached", "channels"}, op=op, tokens=tokens,
        message_bytes=message_bytes, copies=copies, domains_reached=domains_reached, ranks=ranks,
        local=local, span=span, channels=channels, fabric=fabric_index,
    )  # fmt: skip
    fabrics = np.require(fabrics, FABRIC, ["C", "W"])
    exchanges = np.require(exchanges, EXCHANGE, ["C", "W"])
    op_G, tokens_G, bytes_G, copies_G, domains_G, *group_GX = columns.values()
    reached_G2, time_s_G = np.stack([copies_G, domains_G], axis=1), np.empty(len(op_G))
    arguments = op_G, tokens_G, bytes_G, reached_G2, *group_GX, fabrics, exchanges, time_s_G
    if moe_exchange_times(*arguments):
        raise_first_invalid("exchange", time_s_G, columns)
    return time_s_G
